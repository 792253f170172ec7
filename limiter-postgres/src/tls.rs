//! TLS, with rustls.

use std::fmt::Display;
use std::sync::Arc;

use limiter_core::Error;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use tokio_postgres::Config;
use tokio_postgres::config::SslMode;
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::failure::configuration;

/// The certificates for TLS, in PEM.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Certificates {
    /// The system's by default.
    pub(crate) authorities: Option<Vec<u8>>,
    /// The certificate chain and the private key.
    pub(crate) client: Option<(Vec<u8>, Vec<u8>)>,
}

impl Certificates {
    /// Returns the TLS connector.
    pub(crate) fn connector(&self, config: &Config) -> Result<MakeRustlsConnect, Error> {
        let is_plain = config.get_ssl_mode() == SslMode::Disable;
        if is_plain && *self != Self::default() {
            let text = "certificates for Postgres need a URL with sslmode=require";
            return Err(configuration(text.to_owned()));
        }
        let mut roots = RootCertStore::empty();
        match &self.authorities {
            None if is_plain => {}
            None => {
                let system = rustls_native_certs::load_native_certs();
                roots.add_parsable_certificates(system.certs);
            }
            Some(pem) => {
                for authority in chain(pem)? {
                    roots.add(authority).map_err(malformed)?;
                }
            }
        }
        let tls = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(malformed)?
            .with_root_certificates(roots);
        let tls = match &self.client {
            None => tls.with_no_client_auth(),
            Some((certificates, key)) => {
                let key = PrivateKeyDer::from_pem_slice(key).map_err(malformed)?;
                tls.with_client_auth_cert(chain(certificates)?, key)
                    .map_err(malformed)?
            }
        };
        Ok(MakeRustlsConnect::new(tls))
    }
}

fn chain(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, Error> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match all {
        Ok(all) if all.is_empty() => Err(malformed("expected certificates in PEM")),
        all => all.map_err(malformed),
    }
}

fn malformed(reason: impl Display) -> Error {
    configuration(format!("certificates for Postgres: {reason}"))
}
