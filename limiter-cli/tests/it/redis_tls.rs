//! `rediss://` and `rediss+cluster://` URLs: a server with a trusted certificate works, and a server with another
//! certificate is rejected.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use tempfile::TempDir;
use testbed::server::{Cluster, Server};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::common::text;

/// Returns an authority's certificate as PEM, and the TLS configuration of a server with a certificate from it.
fn authority_and_server() -> (String, ServerConfig) {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let authority = params.self_signed(&key).unwrap().pem();
    let issuer = Issuer::new(params, key);

    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(vec!["localhost".to_owned(), "127.0.0.1".to_owned()])
        .unwrap()
        .signed_by(&key, &issuer)
        .unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap();
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let config = config
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)
        .unwrap();
    (authority, config)
}

/// Terminates TLS and forwards connections to a server on this port.
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

async fn run(args: &[&str], trusted: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_limiter"));
    command
        .args(args)
        .env("SSL_CERT_FILE", trusted)
        .env_remove("SSL_CERT_DIR");
    let run = tokio::task::spawn_blocking(move || command.output().unwrap());
    tokio::time::timeout(Duration::from_secs(30), run)
        .await
        .unwrap()
        .unwrap()
}

/// The files with a trusted authority and another one, and an acceptor with a certificate from the first.
struct Authorities {
    directory: TempDir,
    acceptor: TlsAcceptor,
}

impl Authorities {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (trusted, config) = authority_and_server();
        std::fs::write(directory.path().join("trusted.pem"), trusted).unwrap();
        std::fs::write(directory.path().join("other.pem"), authority_and_server().0).unwrap();
        Self {
            directory,
            acceptor: TlsAcceptor::from(Arc::new(config)),
        }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Asserts that the program connects to a URL if it trusts the authority, and not if it trusts another one.
    async fn assert_checked(&self, url: &str) {
        let reset = [
            "key",
            "reset",
            "--name",
            "search",
            "--store",
            url,
            "customer 7",
        ];
        let output = run(&reset, &self.file("trusted.pem")).await;
        assert!(output.status.success(), "{}", text(&output.stderr));
        let output = run(&reset, &self.file("other.pem")).await;
        assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
        assert!(
            text(&output.stderr).contains("certificate"),
            "{}",
            text(&output.stderr)
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_a_trusted_certificate_is_accepted() {
    let (server, authorities) = (Server::start().unwrap(), Authorities::new());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!(
        "rediss://localhost:{}",
        listener.local_addr().unwrap().port()
    );
    let proxy = tokio::spawn(terminate_tls(
        listener,
        authorities.acceptor.clone(),
        server.port(),
    ));
    authorities.assert_checked(&url).await;
    proxy.abort();
}

/// Every node is behind a TLS proxy, and announces the proxy's port. One URL leads to all nodes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_over_tls_limits_each_key() {
    let (mut cluster, authorities) = (Cluster::start().unwrap(), Authorities::new());
    let (mut proxies, mut ports) = (Vec::new(), Vec::new());
    for node in cluster.nodes_mut() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port().to_string();
        proxies.push(tokio::spawn(terminate_tls(
            listener,
            authorities.acceptor.clone(),
            node.port(),
        )));
        let bus = (node.port() + 10_000).to_string();
        // A node of Redis 6.2 announces a port only from its start on.
        let announced = [
            "--cluster-announce-bus-port",
            &bus,
            "--cluster-announce-port",
            &port,
        ];
        node.restart_with(&[&["--cluster-enabled", "yes"], &announced[..]].concat())
            .unwrap();
        ports.push(port);
    }
    let until = Instant::now() + Duration::from_secs(20);
    for node in cluster.nodes() {
        let says = |command: &str, text: &str| {
            node.command::<String>(&["CLUSTER", command])
                .unwrap()
                .contains(text)
        };
        while !(says("INFO", "cluster_state:ok") && ports.iter().all(|port| says("NODES", port))) {
            assert!(
                Instant::now() < until,
                "the cluster does not serve, or the ports are not announced"
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    // The certificate covers both the host name and the address that the cluster announces.
    let url = format!("rediss+cluster://localhost:{}", ports[0]);
    let load = [
        "load",
        "--store",
        &url,
        "--limit",
        "3/1h",
        "--keys",
        "20",
        "--seconds",
        "1",
    ];
    let output = run(&load, &authorities.file("trusted.pem")).await;
    assert!(output.status.success(), "{}", text(&output.stderr));
    let figures: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&figures["allowed"], &figures["errors"]),
        (&60.into(), &serde_json::json!({})),
        "{figures}"
    );
    for node in cluster.nodes() {
        let stats = node.info("commandstats").unwrap();
        assert!(
            stats.contains("cmdstat_evalsha:"),
            "every node decides: {stats}"
        );
    }

    authorities.assert_checked(&url).await;
    for proxy in proxies {
        proxy.abort();
    }
}
