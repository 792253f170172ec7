//! Clients that hold what they can.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use clap::Parser;
use futures_util::future::join_all;
use http::Request;
use hyper::body::Bytes;
use limiter_server::options::Options;
use limiter_server::run;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, sleep, timeout};

use crate::server::{PATIENCE, Server, http, until};

const CONFIG: &str =
    "{domain: d, descriptors: [{key: user, rate_limit: {unit: hour, requests_per_unit: 1000}}]}";
const HEALTH: &str = "GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";

#[tokio::test]
async fn unfinished_bodies_share_a_budget() {
    let server = Server::start(CONFIG, &[]);
    let (size, part) = (1 << 20, vec![b' '; (1 << 20) - 99]);
    let mut held: Vec<TcpStream> = (0..100)
        .map(|_| {
            let mut stream = TcpStream::connect(server.http).unwrap();
            let head = format!("POST /json HTTP/1.1\r\nhost: x\r\ncontent-length: {size}\r\n\r\n");
            // The server may refuse before it has read everything.
            let _ = stream
                .write_all(head.as_bytes())
                .and_then(|()| stream.write_all(&part));
            stream.set_nonblocking(true).unwrap();
            stream
        })
        .collect();
    let mut refused = 0;
    until("most bodies are refused", || {
        held.retain_mut(|stream| {
            let mut answer = [0; 12];
            let is_refused = stream
                .read(&mut answer)
                .is_ok_and(|_| &answer == b"HTTP/1.1 503");
            refused += usize::from(is_refused);
            !is_refused
        });
        (refused >= 60).then_some(())
    });
    assert_eq!(http(server.http, HEALTH).0, 200);

    let stream = tokio::net::TcpStream::connect(server.grpc).await.unwrap();
    let (mut client, connection) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    let mut calls = Vec::new();
    for _ in 0..100 {
        client = client.ready().await.unwrap();
        let uri = "http://x/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
        let request = Request::post(uri)
            .header("content-type", "application/grpc")
            .body(())
            .unwrap();
        let (answer, mut body) = client.send_request(request, false).unwrap();
        // A message of almost 1 MiB, but for its end.
        let head = Bytes::from_static(&[0, 0, 15, 255, 255]);
        body.send_data(head, false).unwrap();
        body.send_data(Bytes::from(part.clone()), false).unwrap();
        calls.push(async move {
            let answer = answer.await.unwrap();
            drop(body);
            answer.headers()["grpc-status"].clone()
        });
    }
    let answers = timeout(PATIENCE, join_all(calls)).await.unwrap();
    let refused = answers.iter().filter(|status| *status == "8").count();
    assert!(refused >= 60, "{refused} refused");
    let most = server.proc("status", "VmHWM:");
    assert!(most < 200 << 10, "{most} KiB held");
    // The memory is free again.
    let body =
        r#"{"domain": "d", "descriptors": [{"entries": [{"key": "user", "value": "ann"}]}]}"#;
    until("a decision is made", || {
        (server.post("/json", body).0 == 200).then_some(())
    });
}

/// The limit of `deploy/kubernetes.yaml`, in KiB.
fn limit() -> u64 {
    let text = include_str!("../../deploy/kubernetes.yaml");
    let (_, rest) = text.split_once("limits: { memory: ").unwrap();
    rest.split_once("Mi }").unwrap().0.parse::<u64>().unwrap() << 10
}

#[tokio::test]
async fn as_many_connections_as_there_may_be_fit_the_limit_of_kubernetes() {
    let server = Server::start(CONFIG, &[]);
    let mut held = Vec::new();
    // The default of --max-connections.
    for number in 0..4_000 {
        let stream = tokio::net::TcpStream::connect(server.grpc).await;
        let stream =
            stream.unwrap_or_else(|error| panic!("connection {number}, see `ulimit -n`: {error}"));
        let (client, connection) = h2::client::handshake(stream).await.unwrap();
        tokio::spawn(connection);
        let mut client = client.ready().await.unwrap();
        let (answer, _) = client
            .send_request(Request::get("http://x/").body(()).unwrap(), true)
            .unwrap();
        assert_eq!(answer.await.unwrap().headers()["grpc-status"], "12");
        held.push(client);
    }
    let most = server.proc("status", "VmHWM:");
    println!("{most} KiB held");
    assert!(most < limit(), "{most} KiB held");
}

#[test]
fn beyond_max_keys_those_with_the_fewest_entries_are_evicted() {
    let body = |user: &str| format!(r#"{{"domain": "d", "descriptor": [["user", "{user}"]]}}"#);
    let server = Server::start(CONFIG, &["--max-keys", "1000"]);
    let used = |user: &str| {
        server.post("/v1/status", &body(user)).1["used"]
            .as_u64()
            .unwrap()
    };
    for _ in 0..3 {
        server.post("/v1/acquire", &body("often"));
    }
    for user in 0..3_000 {
        assert_eq!(server.post("/v1/acquire", &body(&user.to_string())).0, 200);
    }
    assert_eq!(used("often"), 3);
    let held = (0..3_000)
        .filter(|user| used(&user.to_string()) == 1)
        .count();
    assert!((500..1_000).contains(&held), "{held} keys held");
    assert!(
        server
            .metric("limiter_keys{")
            .is_some_and(|keys| keys <= 1_000.0)
    );
}

#[test]
fn connections_beyond_the_limit_are_brief() {
    let server = Server::start(CONFIG, &["--max-connections", "2"]);
    let mut held = [(); 2].map(|()| TcpStream::connect(server.http).unwrap());
    let mut third = TcpStream::connect(server.http).unwrap();
    assert_eq!(http(server.http, HEALTH).0, 200);
    third.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(third.read(&mut [0]).unwrap_or(0), 0, "it is closed");
    for stream in &mut held {
        stream.write_all(HEALTH.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
}

#[tokio::test(start_paused = true)]
async fn connections_without_requests_or_readers_end() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("limits.yaml");
    std::fs::write(&config, CONFIG).unwrap();
    let any = "127.0.0.1:0";
    let args = [
        "limiter-server",
        "--grpc",
        any,
        "--http",
        any,
        "--admin",
        any,
        "--config",
        config.to_str().unwrap(),
    ];
    let server = run::Server::start(&Options::parse_from(args).serve.unwrap())
        .await
        .unwrap();

    // A connection without a first request.
    let (mut silent, began) = (
        tokio::net::TcpStream::connect(server.grpc).await.unwrap(),
        Instant::now(),
    );
    let _ = silent.read_to_end(&mut Vec::new()).await;
    assert!(
        (Duration::from_secs(60)..Duration::from_secs(70)).contains(&began.elapsed()),
        "{:?}",
        began.elapsed()
    );

    // Pings keep a connection open only for a time.
    let stream = tokio::net::TcpStream::connect(server.grpc).await.unwrap();
    let (client, connection) = h2::client::Builder::new()
        .handshake::<_, Bytes>(stream)
        .await
        .unwrap();
    let connection = tokio::spawn(connection);
    let mut client = client.ready().await.unwrap();
    let (answer, _) = client
        .send_request(Request::get("http://x/").body(()).unwrap(), true)
        .unwrap();
    answer.await.unwrap();
    let began = Instant::now();
    let _ = connection.await.unwrap();
    let lasted = began.elapsed();
    assert!(
        (Duration::from_secs(590)..Duration::from_secs(700)).contains(&lasted),
        "{lasted:?}"
    );

    // More responses than the buffers of the system hold.
    let mut stream = tokio::net::TcpStream::connect(server.admin).await.unwrap();
    stream
        .write_all(
            "GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"
                .repeat(900)
                .as_bytes(),
        )
        .await
        .unwrap();
    sleep(Duration::from_secs(35)).await;
    let mut answers = Vec::new();
    let _ = stream.read_to_end(&mut answers).await;
    let answered = answers
        .windows(12)
        .filter(|part| part == b"HTTP/1.1 200")
        .count();
    assert!((1..900).contains(&answered), "{answered} of 900 answered");
}
