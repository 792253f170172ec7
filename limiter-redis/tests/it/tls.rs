//! TLS with certificates on both sides, to a server, a Cluster and sentinels.

use std::fs;
use std::path::Path;

use limiter_core::{ErrorKind, policy};
use limiter_redis::RedisStoreBuilder;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use testbed::server::{Server, until};

use crate::sentinel::Sentinel;
use crate::support::{builder, free_port, search, send};

/// Writes an authority's certificate, a certificate that it signed, and the key.
fn certificates(folder: &Path) {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    // OpenSSL takes a certificate with its issuer's name for one that signed itself.
    let name = &mut params.distinguished_name;
    name.push(DnType::CommonName, "authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    let own = params.signed_by(&key, &ca).unwrap();
    for (name, text) in [
        ("ca", ca.pem()),
        ("cert", own.pem()),
        ("key", key.serialize_pem()),
    ] {
        fs::write(folder.join(name), text).unwrap();
    }
}

#[tokio::test]
async fn certificates_apply_to_a_server_a_cluster_and_sentinels() {
    let folder = tempfile::tempdir().unwrap();
    certificates(folder.path());
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let read = |name: &str| fs::read(folder.path().join(name)).unwrap();
    let [ca, cert, key] = ["ca", "cert", "key"].map(path);
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

    let [ca, cert, key] = ["ca", "cert", "key"].map(read);
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
