//! URLs with TLS: a server with a trusted certificate works, and a server with another certificate is rejected.

use std::fs;
use std::net::TcpListener;

use limiter_cli::store::runtime;
use limiter_postgres::PostgresUrl;
use testbed::server::{Postgres, Server, until};
use testbed::write_certificates;

use crate::common::{command, text};

/// The server is also the only node of a cluster.
#[test]
fn only_a_trusted_certificate_is_accepted() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["trusted", "other"] {
        let folder = folder.path().join(name);
        fs::create_dir(&folder).unwrap();
        write_certificates(&folder);
    }
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let options = format!(
        "--tls-port {port} --tls-cert-file {} --tls-key-file {} --tls-ca-cert-file {} --tls-auth-clients no \
         --cluster-enabled yes --tls-cluster yes --cluster-announce-ip 127.0.0.1",
        path("trusted/server.pem"),
        path("trusted/server.key"),
        path("trusted/ca.pem")
    );
    let server = Server::start_with(&options.split(' ').collect::<Vec<_>>()).unwrap();
    server
        .command::<()>(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"])
        .unwrap();
    let serves = || {
        let info = server.command::<String>(&["CLUSTER", "INFO"])?;
        Ok(info.contains("state:ok"))
    };
    until("the cluster serves", serves).unwrap();
    let [cert, key] = ["trusted/server.pem", "trusted/server.key"]
        .map(|name| fs::read_to_string(path(name)).unwrap());
    let postgres = Postgres::start_with_tls(&cert, &key, None).unwrap();
    let tls = postgres.url() + "?sslmode=verify-full";
    let url: PostgresUrl = tls.parse().unwrap();
    let authority = fs::read(path("trusted/ca.pem")).unwrap();
    let table = url.certificates(Some(authority), None).open().unwrap();
    let table = table.timeout(std::time::Duration::from_secs(20));
    runtime().unwrap().block_on(table.create()).unwrap();
    for url in [
        format!("rediss://127.0.0.1:{port}"),
        format!("rediss+cluster://127.0.0.1:{port}"),
        tls,
    ] {
        for (trusted, status, message) in [
            ("trusted/ca.pem", 0, ""),
            ("other/ca.pem", 1, "certificate"),
        ] {
            let mut reset = command(&["key", "reset", "--name", "search", "--store", &url, "k"]);
            let reset = reset
                .env("SSL_CERT_FILE", path(trusted))
                .env_remove("SSL_CERT_DIR");
            let output = reset.output().unwrap();
            let messages = text(&output.stderr);
            assert_eq!(output.status.code(), Some(status), "{url}: {messages}");
            assert!(messages.contains(message), "{url}: {messages}");
        }
    }
}
