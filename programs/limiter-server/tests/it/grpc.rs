//! gRPC: Envoy's protocol, bad input, health and TLS.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;

use futures_util::future::join_all;
use http::uri::PathAndQuery;
use limiter_server::proto::{Code, RateLimitRequest, RateLimitResponse, SHOULD_RATE_LIMIT};
use prost::Message;
use testbed::write_certificates;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code as Grpc, Request, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_prost::ProstCodec;

use crate::ask::decided;
use crate::client::{PATIENCE, get, until};
use crate::program::Program;
use crate::server::Server;

const SERVICE: &str = "envoy.service.ratelimit.v3.RateLimitService";
const CONFIG: &str = "
domain: d
descriptors:
  - key: user
    rate_limit: { unit: minute, requests_per_unit: 3 }
";

async fn channel(address: SocketAddr) -> Channel {
    Endpoint::try_from(format!("http://{address}"))
        .unwrap()
        .connect()
        .await
        .unwrap()
}

/// Calls the service with any message, which may be another one than it expects.
async fn call<M: Message + Send + 'static>(
    channel: &Channel,
    message: M,
) -> Result<RateLimitResponse, Status> {
    let mut grpc = tonic::client::Grpc::new(channel.clone());
    grpc.ready()
        .await
        .map_err(|error| Status::unknown(error.to_string()))?;
    let path = PathAndQuery::from_static(SHOULD_RATE_LIMIT);
    let codec = ProstCodec::<M, RateLimitResponse>::default();
    Ok(grpc
        .unary(Request::new(message), path, codec)
        .await?
        .into_inner())
}

fn request(value: &[u8]) -> RateLimitRequest {
    let mut request = decided("user");
    request.descriptors[0].entries[0].value = value.into();
    request
}

/// A request whose domain and descriptors are any bytes.
#[derive(Clone, PartialEq, Message)]
struct Bytes {
    #[prost(bytes = "vec", tag = "1")]
    domain: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    descriptor: Vec<u8>,
}

#[tokio::test]
async fn requests_are_answered_and_bad_ones_refused() {
    let server = Server::start(CONFIG, &[]);
    let channel = channel(server.grpc).await;
    let codes = async |value: &[u8]| {
        let mut codes = Vec::new();
        for _ in 0..4 {
            codes.push(call(&channel, request(value)).await.unwrap().overall_code());
        }
        codes
    };
    let expected = [Code::Ok, Code::Ok, Code::Ok, Code::OverLimit];
    // Envoy copies raw bytes from header fields.
    for value in [
        &b"ann"[..],
        b"\xff",
        b"\xfe",
        b"a\xffb",
        b"bytes:%FF",
        b"bytes:",
        b"%FF",
        b"",
        &[b'x'; (1 << 20) - 99],
    ] {
        assert_eq!(codes(value).await, expected, "{:?}", value.get(..9));
    }
    let shown = server.admin("/page/state");
    assert!(shown.contains(r#""key":"bytes:a%FFb""#), "{shown}");
    // The reasons have their own tests.
    let invalid = call(&channel, RateLimitRequest::default())
        .await
        .unwrap_err();
    assert_eq!(
        (invalid.code(), invalid.message()),
        (
            Grpc::InvalidArgument,
            "domain is empty, expected the name of a domain"
        )
    );
    for domain in [b"\xff\xfe".to_vec(), vec![b'x'; 5 << 20]] {
        let descriptor = Vec::new();
        let answer = call(&channel, Bytes { domain, descriptor }).await;
        let code = answer.unwrap_err().code();
        let is_undecodable = matches!(code, Grpc::Internal | Grpc::OutOfRange);
        assert!(is_undecodable, "{code:?}");
    }
    for (kind, count) in [("invalid", 1.0), ("undecodable", 2.0)] {
        let series = r#"limiter_server_errors_total{interface="grpc",kind="KIND"}"#;
        let found = server.metric(&series.replace("KIND", kind));
        assert_eq!(found, Some(count), "{kind}");
    }
    // A megabyte of each, as a value and in place of a descriptor. They would take minutes if one pass were not enough.
    for byte in b"\0\x01\x08\n\x0a\x12\x1a\"0\\*,=%\x7f\x80\xc3\xff" {
        let many = vec![*byte; (1 << 20) - 99];
        call(&channel, request(&many)).await.unwrap();
        let bytes = Bytes {
            domain: b"d".to_vec(),
            descriptor: many,
        };
        let code = call(&channel, bytes)
            .await
            .map_or_else(|status| status.code(), |_| Grpc::Ok);
        assert!(
            matches!(code, Grpc::Ok | Grpc::Internal | Grpc::InvalidArgument),
            "{byte}: {code:?}"
        );
    }
}

#[tokio::test]
async fn a_message_that_does_not_arrive_ends_its_call() {
    let server = Server::start(CONFIG, &[]);
    let channel = channel(server.grpc).await;
    let never_sent = async |method| {
        let mut grpc = tonic::client::Grpc::new(channel.clone());
        grpc.ready().await.unwrap();
        let path = PathAndQuery::from_static(method);
        let codec = ProstCodec::<RateLimitRequest, RateLimitResponse>::default();
        let never = Request::new(futures_util::stream::pending());
        let answer = grpc.client_streaming(never, path, codec);
        let answer = tokio::time::timeout(PATIENCE, answer).await;
        answer.expect("the call is held").unwrap_err().code()
    };
    let calls = [SHOULD_RATE_LIMIT, "/grpc.health.v1.Health/Check"].map(never_sent);
    assert_eq!(join_all(calls).await, [Grpc::DeadlineExceeded; 2]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_is_told_and_waits_for_requests_in_progress() {
    let mut server = Program::start(CONFIG, &[]);
    let mut health = HealthClient::new(channel(server.grpc).await);
    for service in ["", SERVICE, "ratelimit"] {
        let asked = HealthCheckRequest {
            service: service.to_owned(),
        };
        assert_eq!(
            health.check(asked).await.unwrap().into_inner().status(),
            ServingStatus::Serving
        );
    }
    // Watchers are told before the end, and do not delay it.
    let watched = HealthCheckRequest {
        service: SERVICE.to_owned(),
    };
    let mut watch = health.watch(watched).await.unwrap().into_inner();
    assert_eq!(
        watch.message().await.unwrap().unwrap().status(),
        ServingStatus::Serving
    );

    let body = |cost| {
        format!(
            r#"{{"domain": "d", "descriptor": [["user", "ann"]], "cost": {cost}, "wait_ms": 60000}}"#
        )
    };
    let begin = || {
        let mut stream = TcpStream::connect(server.http).unwrap();
        let kind = "content-type: application/json";
        let len = body(1).len();
        let fields = format!("host: x\r\n{kind}\r\nexpect: 100-continue\r\ncontent-length: {len}");
        stream
            .write_all(format!("POST /v1/acquire HTTP/1.1\r\n{fields}\r\n\r\n").as_bytes())
            .unwrap();
        let mut go_on = [0; 25];
        stream.read_exact(&mut go_on).unwrap();
        assert!(go_on.starts_with(b"HTTP/1.1 100"));
        stream
    };
    let mut ends = begin();
    let never_ends = begin();
    let mut waits = begin();
    assert_eq!(server.post("/v1/acquire", &body(2)).1["allowed"], true);
    waits.write_all(body(2).as_bytes()).unwrap();
    let tried = r#"limiter_store_duration_seconds_count{store="memory",operation="acquire"}"#;
    until("a request waits", || {
        server.metric(tried).filter(|tried| *tried >= 2.0)
    });

    server.signal("TERM");
    assert_eq!(
        watch.message().await.unwrap().unwrap().status(),
        ServingStatus::NotServing
    );
    until("the listener is closed", || {
        TcpStream::connect(server.http).is_err().then_some(())
    });
    ends.write_all(body(1).as_bytes()).unwrap();
    for (mut stream, allowed) in [(waits, false), (ends, true)] {
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let expected = format!("\"allowed\":{allowed}");
        assert!(
            answer.starts_with("HTTP/1.1 200") && answer.contains(&expected),
            "{answer}"
        );
    }
    assert_eq!(server.end().code(), Some(0));
    drop(never_ends);
}

#[tokio::test]
async fn tls_protects_all_interfaces_and_may_ask_for_certificates() {
    let folder = tempfile::tempdir().unwrap();
    write_certificates(folder.path());
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let read = |name: &str| fs::read(folder.path().join(name)).unwrap();
    let cert = path("server.pem");
    let key = path("server.key");
    let ca = path("ca.pem");
    let tls = ["--tls-cert", &*cert, "--tls-key", &*key];
    let one_sided = Server::start(CONFIG, &tls);
    let ask = [&tls[..], &["--tls-client-ca", &*ca]].concat();
    let mutual = Server::start(CONFIG, &ask);
    // As Envoy's own service: TLS for gRPC alone, so that plain probes reach HTTP.
    let as_envoy = Server::start(CONFIG, &[&ask[..], &["--http-plain"]].concat());
    for path in ["/healthcheck", "/healthz"] {
        assert_eq!(get(as_envoy.http, path), (200, "OK\n".into()));
    }
    let [named, other] = ["other.example,localhost", "other.example"].map(|names| {
        Server::start(
            CONFIG,
            &[&ask[..], &["--admin-plain", "--tls-client-name", names]].concat(),
        )
    });

    let plain = ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(read("ca.pem")))
        .domain_name("localhost");
    let known = plain
        .clone()
        .identity(Identity::from_pem(read("client.pem"), read("client.key")));
    for (server, tls, expected) in [
        (&one_sided, Some(&plain), true),
        (&one_sided, None, false),
        (&mutual, Some(&plain), false),
        (&mutual, Some(&known), true),
        (&as_envoy, None, false),
        (&as_envoy, Some(&plain), false),
        (&as_envoy, Some(&known), true),
        (&named, Some(&known), true),
        (&other, Some(&known), false),
    ] {
        let scheme = if tls.is_some() { "https" } else { "http" };
        let endpoint = Endpoint::try_from(format!("{scheme}://{}", server.grpc)).unwrap();
        let endpoint = tls.map_or(endpoint.clone(), |tls| {
            endpoint.tls_config(tls.clone()).unwrap()
        });
        let answered = match endpoint.connect().await {
            Ok(channel) => call(&channel, decided("user=ann")).await.is_ok(),
            Err(_) => false,
        };
        assert_eq!(answered, expected);
    }

    // Clients that were refused leave a trace.
    mutual.until_logged("tls_handshake");
    other.until_logged("client_name");
    let refused = r#"limiter_server_refused_total{listener="grpc",reason="client_name"}"#;
    assert!(other.metric(refused) >= Some(1.0));

    let curl = |to: SocketAddr, options: &str| {
        let options = options.replace("URL", &format!("https://localhost:{}", to.port()));
        let mut curl = Command::new("curl");
        curl.args([
            "-so",
            "/dev/null",
            "-w",
            "%{http_code}",
            "--cacert",
            "ca.pem",
        ]);
        let curl = curl.args(options.split(' ')).current_dir(folder.path());
        String::from_utf8(curl.output().unwrap().stdout).unwrap()
    };
    let known = "--cert client.pem --key client.key";
    let reset = r#"-H x-limiter-admin:1 -d {"domain":"d","path":"user","key":"ann"} URL/reset"#;
    for (to, options, expected) in [
        (one_sided.http, "URL/healthz", "200"),
        (one_sided.admin, "URL/rules", "200"),
        (mutual.http, "URL/healthz", "000"),
        (mutual.admin, "URL/rules", "000"),
        (as_envoy.admin, "URL/rules", "000"),
        (mutual.admin, &format!("{known} {reset}"), "200"),
    ] {
        assert_eq!(curl(to, options), expected, "{options}");
    }
    // The log of changes contains the name in the client's certificate.
    mutual.until_logged("certificate=\"localhost\" removed=\"1 in 1m\"");
    // New certificates apply to new connections, without a restart. Damaged certificates have no effect.
    fs::write(&cert, "").unwrap();
    one_sided.until_logged("cannot reload the TLS certificates");
    write_certificates(folder.path());
    let new = ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(read("ca.pem")))
        .domain_name("localhost");
    let endpoint = Endpoint::try_from(format!("https://{}", one_sided.grpc)).unwrap();
    let connects = async |tls: &ClientTlsConfig| {
        endpoint
            .clone()
            .tls_config(tls.clone())
            .unwrap()
            .connect()
            .await
            .is_ok()
    };
    let renewed = async { while !connects(&new).await {} };
    tokio::time::timeout(PATIENCE, renewed)
        .await
        .expect("new certificates");
    assert!(!connects(&plain).await);
}
