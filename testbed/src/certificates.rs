//! Certificates for TLS.

use std::fs;
use std::path::Path;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};

/// Writes `ca.pem` and `ca.key`, the certificate and private key of an authority, and `NAME.pem` and `NAME.key` for the names `server` and `client`: a
/// certificate from it for `localhost` and `127.0.0.1`, and its private key.
///
/// # Panics
/// If a file cannot be written.
pub fn write_certificates(folder: &Path) {
    let new = |names: &[&str]| {
        let names: Vec<_> = names.iter().map(ToString::to_string).collect();
        (
            CertificateParams::new(names).expect("valid names"),
            KeyPair::generate().expect("a key"),
        )
    };
    let write = |name: &str, text: String| {
        fs::write(folder.join(name), text).expect("a file in the folder");
    };
    let (mut params, key) = new(&["localhost", "127.0.0.1"]);
    write("ca.key", key.serialize_pem());
    // OpenSSL takes a certificate with its issuer's name for one that signed itself.
    params
        .distinguished_name
        .push(DnType::CommonName, "authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, key).expect("an authority");
    write("ca.pem", authority.pem());
    for name in ["server", "client"] {
        let (params, key) = new(&["localhost", "127.0.0.1"]);
        let certificate = params.signed_by(&key, &authority).expect("a certificate");
        write(&format!("{name}.pem"), certificate.pem());
        write(&format!("{name}.key"), key.serialize_pem());
    }
}
