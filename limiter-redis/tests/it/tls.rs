//! TLS with certificates on both sides, to a server, a Cluster and sentinels.

use std::fs;

use limiter_core::{ErrorKind, policy};
use limiter_redis::RedisStoreBuilder;
use testbed::server::{Server, until};
use testbed::write_certificates;

use crate::sentinel::Sentinel;
use crate::support::{builder, free_port, search, send};

/// The certificates of the authority and of both sides, and their key.
const FILES: [&str; 3] = ["ca.pem", "server.pem", "server.key"];

#[tokio::test]
async fn certificates_apply_to_a_server_a_cluster_and_sentinels() {
    let folder = tempfile::tempdir().unwrap();
    write_certificates(folder.path());
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let read = |name: &str| fs::read(folder.path().join(name)).unwrap();
    let [ca, cert, key] = FILES.map(path);
    let options = [
        ("tls-cert-file", &*cert),
        ("tls-key-file", &key),
        ("tls-ca-cert-file", &ca),
        ("tls-auth-clients", "yes"),
        ("tls-replication", "yes"),
    ];
    let start = |port: u16, more: &[&str]| {
        let port = port.to_string();
        let options = options.map(|(name, value)| [format!("--{name}"), value.to_owned()]);
        let args: Vec<&str> = options.iter().flatten().map(String::as_str).collect();
        Server::start_with(&[&args[..], &["--tls-port", &port], more].concat()).unwrap()
    };
    let [server, node, asked] = [(); 3].map(|()| free_port());
    let _server = start(server, &[]);
    let cluster = "--cluster-enabled yes --tls-cluster yes --cluster-announce-ip 127.0.0.1";
    let cluster = start(node, &cluster.split(' ').collect::<Vec<_>>());
    send(&cluster, "CLUSTER ADDSLOTSRANGE 0 16383");
    let serves = || {
        let info = cluster.command::<String>(&["CLUSTER", "INFO"])?;
        Ok(info.contains("state:ok"))
    };
    until("the cluster serves", serves).unwrap();
    let lines = options
        .map(|(name, value)| format!("{name} {value}\n"))
        .concat();
    let _sentinel = Sentinel::start_with(server, &format!("tls-port {asked}\n{lines}"));

    let [ca, cert, key] = FILES.map(read);
    for url in [
        format!("rediss://127.0.0.1:{server}"),
        format!("rediss+cluster://127.0.0.1:{node}"),
        format!("rediss+sentinel://127.0.0.1:{asked}/m"),
    ] {
        let asks = async |builder: RedisStoreBuilder| {
            let store = builder.connect(&url).await?;
            search(policy!("9/1h"), store).acquire(&url).await
        };
        let own = || Some((cert.clone(), key.clone()));
        let known = builder().certificates(Some(ca.clone()), own());
        assert!(asks(known).await.unwrap().is_allowed(), "{url}");
        for other in [
            builder(),
            builder().certificates(Some(ca.clone()), None),
            builder().certificates(None, own()),
        ] {
            assert!(asks(other).await.is_err(), "{url}");
        }
        let damaged = builder().certificates(Some(b"-----BEGIN CERTIFICATE-----".to_vec()), None);
        let error = damaged.connect(&url).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Configuration, "{url}: {error}");
        let plain = url.replacen("rediss", "redis", 1);
        let plain = builder()
            .certificates(Some(ca.clone()), None)
            .connect(&plain);
        let error = plain.await.unwrap_err().to_string();
        assert!(error.contains("`rediss://`"), "{error}");
    }
}
