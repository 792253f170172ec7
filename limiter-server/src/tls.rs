//! TLS, and mutual TLS.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, ensure};
use axum_server::tls_rustls::RustlsConfig;
use rustls::RootCertStore;
use rustls::ServerConfig;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;

use crate::listener::Protocol;
use crate::options::Serve;

/// Returns the configuration of TLS for connections that speak `protocol`; `None` if the options have no certificate.
///
/// # Errors
/// If a file cannot be read or does not fit the others.
pub(crate) fn config(options: &Serve, protocol: Protocol) -> anyhow::Result<Option<RustlsConfig>> {
    let (Some(cert), Some(key)) = (&options.tls_cert, &options.tls_key) else { return Ok(None) };
    let provider = Arc::new(default_provider());
    let config = ServerConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions()?;
    let config = match &options.tls_client_ca {
        None => config.with_no_client_auth(),
        Some(file) => {
            let mut roots = RootCertStore::empty();
            for root in certificates(file)? {
                roots.add(root).with_context(|| format!("{}: expected certificates", file.display()))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
            config.with_client_cert_verifier(verifier.with_context(|| file.display().to_string())?)
        }
    };
    let private =
        PrivateKeyDer::from_pem_file(key).with_context(|| format!("{}: expected a private key", key.display()))?;
    let mut config =
        config.with_single_cert(certificates(cert)?, private).with_context(|| cert.display().to_string())?;
    config.alpn_protocols = vec![protocol.alpn().into()];
    Ok(Some(RustlsConfig::from_config(Arc::new(config))))
}

fn certificates(file: &Path) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    let all = CertificateDer::pem_file_iter(file).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let all = all.with_context(|| format!("{}: expected certificates in PEM", file.display()))?;
    ensure!(!all.is_empty(), "{}: expected certificates in PEM, found none", file.display());
    Ok(all)
}
