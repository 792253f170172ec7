//! `rediss://` URLs: a server behind TLS whose certificate the system trusts works, another one is refused.

use std::io;
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::Duration;

use limiter_testkit::server::Server;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

/// An authority's certificate as PEM, and what a server with a certificate of it needs.
fn authority_and_server() -> (String, ServerConfig) {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let authority = params.self_signed(&key).unwrap().pem();
    let issuer = Issuer::new(params, key);

    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(vec!["localhost".to_owned()]).unwrap().signed_by(&key, &issuer).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let config = config.with_no_client_auth().with_single_cert(vec![certificate.der().clone()], key).unwrap();
    (authority, config)
}

/// Takes TLS off connections and passes them on to a server on this port.
async fn terminate_tls(listener: TcpListener, acceptor: TlsAcceptor, port: u16) -> io::Result<()> {
    loop {
        let (client, _) = listener.accept().await?;
        let acceptor = acceptor.clone();
        tokio::spawn(async move {
            let mut client = acceptor.accept(client).await?;
            let mut server = TcpStream::connect(("127.0.0.1", port)).await?;
            tokio::io::copy_bidirectional(&mut client, &mut server).await
        });
    }
}

async fn limiter(url: &str, trusted: &std::path::Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_limiter"));
    command
        .args(["key", "reset", "--store", url, "customer 7"])
        .env("SSL_CERT_FILE", trusted)
        .env_remove("SSL_CERT_DIR");
    let run = tokio::task::spawn_blocking(move || command.output().unwrap());
    tokio::time::timeout(Duration::from_secs(30), run).await.unwrap().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_trusted_certificate_is_accepted_and_another_is_refused() {
    let server = Server::start().unwrap();
    let (authority, config) = authority_and_server();
    let (stranger, _) = authority_and_server();
    let dir = tempfile::tempdir().unwrap();
    let [trusted, other] = [("trusted.pem", authority), ("other.pem", stranger)].map(|(name, pem)| {
        let path = dir.path().join(name);
        std::fs::write(&path, pem).unwrap();
        path
    });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("rediss://localhost:{}", listener.local_addr().unwrap().port());
    let proxy = tokio::spawn(terminate_tls(listener, TlsAcceptor::from(Arc::new(config)), server.port()));

    let output = limiter(&url, &trusted).await;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

    let output = limiter(&url, &other).await;
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(message.contains("certificate"), "{message}");
    proxy.abort();
}
