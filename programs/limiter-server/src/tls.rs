//! TLS of the listeners, and mutual TLS.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, ensure};
use arc_swap::ArcSwap;
use base64::prelude::{BASE64_STANDARD, Engine};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use sha2::{Digest, Sha256};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use webpki::EndEntityCert;

use crate::options::Serve;

/// TLS of the listeners, which follows its files.
#[derive(Clone, Debug)]
pub(crate) struct Tls {
    options: Serve,
    config: Arc<ArcSwap<ServerConfig>>,
}

impl Tls {
    /// Reads the files of TLS. `None` if the options name no certificate.
    ///
    /// # Errors
    /// If a file cannot be read or does not fit the others.
    pub(crate) fn read(options: &Serve) -> anyhow::Result<Option<Self>> {
        let config = config(options)?.map(|config| Arc::new(ArcSwap::from_pointee(config)));
        Ok(config.map(|config| Self {
            options: options.clone(),
            config,
        }))
    }

    /// Makes the handshake with a client.
    ///
    /// # Errors
    /// If the client or its certificate does not fit.
    pub(crate) async fn accept<I: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: I,
    ) -> io::Result<TlsStream<I>> {
        let acceptor = TlsAcceptor::from(self.config.load_full());
        let stream = acceptor.accept(stream).await?;
        let certificates = stream.get_ref().1.peer_certificates();
        let names = &self.options.tls_client_name;
        if names.is_empty()
            || certificates.is_some_and(|certificates| has_name(certificates, names))
        {
            Ok(stream)
        } else {
            let text = "the client's certificate has no name of --tls-client-name";
            Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
        }
    }

    /// Returns the files.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        let Serve {
            tls_cert,
            tls_key,
            tls_client_ca,
            ..
        } = &self.options;
        [tls_cert, tls_key, tls_client_ca]
            .into_iter()
            .flatten()
            .cloned()
            .collect()
    }

    /// Reads the files again, for new connections. Open ones stay.
    ///
    /// # Errors
    /// The errors of [`read`](Self::read). The old certificates then stay in use.
    pub(crate) fn reload(&self) -> anyhow::Result<()> {
        if let Some(config) = config(&self.options)? {
            self.config.store(Arc::new(config));
        }
        Ok(())
    }
}

fn config(options: &Serve) -> anyhow::Result<Option<ServerConfig>> {
    let (Some(cert), Some(key)) = (&options.tls_cert, &options.tls_key) else {
        return Ok(None);
    };
    let provider = Arc::new(default_provider());
    let config = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()?;
    let config = match &options.tls_client_ca {
        None => config.with_no_client_auth(),
        Some(file) => {
            let roots = Arc::new(roots(file)?);
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider).build();
            config.with_client_cert_verifier(verifier.with_context(|| file.display().to_string())?)
        }
    };
    let private = private_key(key)?;
    let mut config = config
        .with_single_cert(certificates(cert)?, private)
        .with_context(|| cert.display().to_string())?;
    config.alpn_protocols = ["h2", "http/1.1"].map(Into::into).into();
    Ok(Some(config))
}

fn roots(file: &Path) -> anyhow::Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for root in certificates(file)? {
        roots
            .add(root)
            .with_context(|| format!("{}: expected certificates", file.display()))?;
    }
    Ok(roots)
}

/// Reads a private key.
pub(crate) fn private_key(file: &Path) -> anyhow::Result<PrivateKeyDer<'static>> {
    PrivateKeyDer::from_pem_file(file)
        .with_context(|| format!("{}: expected a private key", file.display()))
}

/// Returns why a handshake failed, as a label.
pub(crate) fn reason(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => "client_name",
        _ => "tls_handshake",
    }
}

/// Returns the first name in the client's certificate, or the certificate's SHA-256. `None` if the client sent none.
pub(crate) fn client_name<I>(stream: &TlsStream<I>) -> Option<String> {
    let certificate = stream.get_ref().1.peer_certificates()?.first()?;
    let parsed = EndEntityCert::try_from(certificate).ok();
    let name = parsed.and_then(|parsed| Some(parsed.valid_dns_names().next()?.to_owned()));
    let hash = || BASE64_STANDARD.encode(Sha256::digest(certificate));
    Some(name.unwrap_or_else(|| format!("sha256:{}", hash())))
}

/// Returns `true` if the first of these certificates is valid for one of these names.
fn has_name(certificates: &[CertificateDer<'_>], names: &[String]) -> bool {
    let certificate = certificates
        .first()
        .and_then(|first| EndEntityCert::try_from(first).ok());
    certificate.is_some_and(|certificate| {
        let mut names = names
            .iter()
            .filter_map(|name| ServerName::try_from(&**name).ok());
        names.any(|name| certificate.verify_is_valid_for_subject_name(&name).is_ok())
    })
}

/// Reads the certificates of a file, at least one.
pub(crate) fn certificates(file: &Path) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    let all = CertificateDer::pem_file_iter(file).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let all = all.with_context(|| format!("{}: expected certificates in PEM", file.display()))?;
    ensure!(
        !all.is_empty(),
        "{}: expected certificates in PEM, found none",
        file.display()
    );
    Ok(all)
}
