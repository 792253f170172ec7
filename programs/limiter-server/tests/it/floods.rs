//! Clients that hold what they can.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use futures_util::future::join_all;
use h2::RecvStream;
use http::{Request, Response};
use hyper::body::Bytes;
use limiter_server::options::Options;
use limiter_server::run;
use serde_json::json;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::ask::decided;
use crate::client::{Client, PATIENCE, folder, until};
use crate::program::Program;
use crate::server::{Server, options};

const CONFIG: &str =
    "{domain: d, descriptors: [{key: user, rate_limit: {unit: hour, requests_per_unit: 1000}}]}";
const HEALTH: &str = "GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";

#[tokio::test]
async fn unfinished_bodies_share_a_budget() {
    let server = Program::start(CONFIG, &[]);
    let size = 1 << 20;
    let part = vec![b' '; (1 << 20) - 99];
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
    assert_eq!(server.health().0, 200);

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

/// What each listener's requests in progress, and each of its connections, occupy at most, in KiB.
const REQUESTS: u64 = 64 << 10;
const CONNECTION: u64 = 140 + HEALTH_CHECK;
/// What a health check has, whatever other requests occupy.
const HEALTH_CHECK: u64 = 16;

/// The defaults fit the memory that `deploy/kubernetes.yaml` allows, with 64 MiB for the program.
#[test]
fn what_clients_occupy_fits_the_limit_of_kubernetes() {
    let command = Options::with_variables();
    let default = |name| {
        let mut options = command.get_arguments();
        let option = options.find(|option| option.get_id() == name).unwrap();
        let value = option.get_default_values()[0].to_str().unwrap();
        value.parse::<u64>().unwrap()
    };
    let text = include_str!("../../deploy/kubernetes.yaml");
    let (_, rest) = text.split_once("limits: { memory: ").unwrap();
    let limit = rest.split_once("Mi }").unwrap().0.parse::<u64>().unwrap() << 10;
    let listener = REQUESTS + default("max_connections") * CONNECTION;
    assert!(3 * listener + (64 << 10) <= limit, "{listener} KiB each");
    let product = format!(
        "So clients can occupy {} MiB per listener, which is 8,192 requests, and {CONNECTION} KiB for each connection: with the \
         defaults at most {} MiB",
        REQUESTS >> 10,
        (3 * listener) >> 10
    );
    let readme = include_str!("../../README.md");
    assert!(readme.contains(&product), "README.md lacks: {product}");
}

/// Makes as many requests over HTTP/2 as the server lets connections make, and reads no byte of a body. Returns the
/// connections and the number of requests that were refused.
async fn unread(
    to: SocketAddr,
    connections: usize,
    (path, kind, body): (&str, &str, &'static str),
) -> (Vec<JoinHandle<()>>, Arc<AtomicUsize>) {
    let mut held = Vec::new();
    let refused = Arc::new(AtomicUsize::new(0));
    for _ in 0..connections {
        let stream = tokio::net::TcpStream::connect(to).await.unwrap();
        let handshake = h2::client::Builder::new()
            .initial_window_size(0)
            .handshake(stream);
        let (mut client, mut connection) = handshake.await.unwrap();
        // The server's settings arrive with its first frames.
        let mut pong = connection.ping_pong().unwrap();
        held.push(tokio::spawn(async { _ = connection.await }));
        pong.ping(h2::Ping::opaque()).await.unwrap();
        client = client.ready().await.unwrap();
        assert_eq!(client.current_max_send_streams(), 100);
        for _ in 0..100 {
            let method = if path == "/healthz" { "GET" } else { "POST" };
            let request = Request::builder().method(method);
            let request = request.uri(format!("http://x{path}"));
            let request = request.header("content-type", kind).body(()).unwrap();
            let (answer, mut stream) = client.send_request(request, false).unwrap();
            // A stream of requests goes on.
            let is_all = kind == "application/json";
            let body = Bytes::from_static(body.as_bytes());
            stream.send_data(body, is_all).unwrap();
            let refused = Arc::clone(&refused);
            held.push(tokio::spawn(async move {
                let answer = answer.await;
                let is_refused = |answer: &Response<RecvStream>| {
                    let status = answer.headers().get("grpc-status");
                    status.is_some_and(|it| it == "8") || answer.status() == 503
                };
                refused.fetch_add(usize::from(answer.as_ref().is_ok_and(is_refused)), Relaxed);
                std::future::pending::<()>().await;
                drop(stream);
            }));
        }
    }
    (held, refused)
}

#[tokio::test]
async fn requests_in_progress_share_a_budget() {
    const REFLECTION: &str = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
    let wait = r#"{"domain": "d", "descriptor": [["user", "ann"]], "wait_ms": 60000}"#;
    let json = "application/json";
    // The request, and how many of a client are in progress at most: each counts at least 8 KiB, and a stream 48 KiB.
    for (request, most) in [
        (("/v1/acquire", json, wait), 7_168),
        (("/json", json, "{}"), 7_168),
        // Each connection has room for one more.
        (("/healthz", json, ""), 7_268),
        ((REFLECTION, "application/grpc", "\0"), 1_194),
    ] {
        let server = Program::start(CONFIG, &[]);
        let all = wait.replace("60000", "0, \"cost\": 1000");
        assert_eq!(server.post("/v1/acquire", &all).1["allowed"], true);
        let to = if request.0 == REFLECTION {
            server.grpc
        } else {
            server.http
        };
        let before = server.proc("status", "VmHWM:");
        let (held, refused) = unread(to, 100, request).await;
        let patience = async {
            while refused.load(Relaxed) < 10_000 - most {
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(PATIENCE, patience)
            .await
            .unwrap_or_else(|_| panic!("{refused:?} of {} are refused", request.0));
        assert!(refused.load(Relaxed) < 10_000);
        let occupied = server.proc("status", "VmHWM:") - before;
        println!("{occupied} KiB occupied by {}", request.0);
        assert!(occupied < REQUESTS + 100 * CONNECTION, "{occupied} KiB");
        for task in held {
            task.abort();
            let _ = task.await;
        }
        until("the memory is free", || {
            (server
                .post(
                    "/v1/status",
                    r#"{"domain": "d", "descriptor": [["user", "x"]]}"#,
                )
                .0
                == 200)
                .then_some(())
        });
    }
}

/// Sends a request over HTTP/1 from an address of this machine, and returns the response.
async fn http_from(address: [u8; 4], to: SocketAddr, request: &str) -> String {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind((address, 0).into()).unwrap();
    let mut stream = socket.connect(to).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    let read = stream.read_to_string(&mut answer);
    timeout(PATIENCE, read).await.unwrap().unwrap();
    answer
}

/// Returns the status of a call over gRPC from an address of this machine.
async fn grpc_from(address: [u8; 4], to: SocketAddr, path: &str) -> String {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind((address, 0).into()).unwrap();
    let stream = socket.connect(to).await.unwrap();
    let (client, connection) = h2::client::handshake(stream).await.unwrap();
    let connection = tokio::spawn(connection);
    let mut client = client.ready().await.unwrap();
    let request =
        Request::post(format!("http://x{path}")).header("content-type", "application/grpc");
    let (answer, mut body) = client
        .send_request(request.body(()).unwrap(), false)
        .unwrap();
    body.send_data(Bytes::from_static(&[0; 5]), true).unwrap();
    let mut answer = timeout(PATIENCE, answer).await.unwrap().unwrap();
    let trailers = if answer.headers().contains_key("grpc-status") {
        answer.headers().clone()
    } else {
        while answer.body_mut().data().await.is_some() {}
        answer.body_mut().trailers().await.unwrap().unwrap()
    };
    connection.abort();
    trailers["grpc-status"].to_str().unwrap().to_owned()
}

const DECIDE: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const CHECK: &str = "/grpc.health.v1.Health/Check";

/// Requests of one client that occupy its share of a listener for seconds.
async fn occupy(load: &str, server: &Client) -> (Vec<TcpStream>, Vec<JoinHandle<()>>) {
    let mut streams = Vec::new();
    let mut tasks = Vec::new();
    let part = vec![b' '; 606_000];
    match load {
        "bodies" => {
            // Once the bodies have arrived, heads occupy the rest.
            loop {
                let mut stream = TcpStream::connect(server.http).unwrap();
                let head = "POST /json HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n";
                stream.write_all(head.as_bytes()).unwrap();
                let is_body = streams.len() < 2;
                stream.write_all(if is_body { &part } else { b"" }).unwrap();
                sleep(Duration::from_millis(if is_body { 200 } else { 10 })).await;
                stream.set_nonblocking(true).unwrap();
                if stream.read(&mut [0]).is_ok() {
                    break;
                }
                streams.push(stream);
            }
        }
        "streams" => {
            let stream = tokio::net::TcpStream::connect(server.grpc).await.unwrap();
            let (mut client, connection) = h2::client::handshake(stream).await.unwrap();
            tasks.push(tokio::spawn(async { _ = connection.await }));
            for stream in 0..100 {
                client = client.ready().await.unwrap();
                let request = Request::post(format!("http://x{DECIDE}"));
                let request = request.header("content-type", "application/grpc");
                let (answer, mut body) = client
                    .send_request(request.body(()).unwrap(), false)
                    .unwrap();
                // Messages that lack their end, and then requests without one.
                if stream < 60 {
                    let message = [&[0, 0, 15, 255, 255], &part[..20_145]].concat();
                    body.send_data(Bytes::from(message), false).unwrap();
                } else if stream == 60 {
                    sleep(Duration::from_millis(500)).await;
                }
                tasks.push(tokio::spawn(async move {
                    std::future::pending::<()>().await;
                    drop((answer, body));
                }));
            }
        }
        _ => {
            let wait = r#"{"domain": "d", "descriptor": [["user", "ann"]], "wait_ms": 60000}"#;
            let request = ("/v1/acquire", "application/json", wait);
            tasks = unread(server.http, 82, request).await.0;
        }
    }
    (streams, tasks)
}

#[tokio::test]
async fn health_checks_and_other_clients_pass_whatever_a_client_occupies() {
    const STATUS: &str = "POST /v1/status HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n\
        content-length: 48\r\n\r\n{\"domain\": \"d\", \"descriptor\": [[\"user\", \"bob\"]]}";
    let same = [127, 0, 0, 1];
    let other = [127, 0, 0, 2];
    for load in ["bodies", "streams", "waits"] {
        let server = Server::start(CONFIG, &[]);
        let all = r#"{"domain": "d", "descriptor": [["user", "ann"]], "cost": 1000}"#;
        assert_eq!(server.post("/v1/acquire", all).1["allowed"], true);
        let mut held = vec![occupy(load, &server).await];
        let of_grpc = load == "streams";
        let began = Instant::now();
        loop {
            let is_refused = if of_grpc {
                grpc_from(same, server.grpc, DECIDE).await == "8"
            } else {
                let answer = http_from(same, server.http, STATUS).await;
                let reason = r#"{"error":"too many requests in progress"}"#;
                assert!(
                    answer.starts_with("HTTP/1.1 200") || answer.ends_with(reason),
                    "{answer}"
                );
                answer.starts_with("HTTP/1.1 503")
            };
            if is_refused {
                break;
            }
            assert!(began.elapsed() < PATIENCE, "{load} occupy too little");
            // On a busy machine, heads may come before the bodies, which are then refused.
            sleep(Duration::from_millis(200)).await;
            held.push(occupy(load, &server).await);
        }
        let mut healthy = 0;
        for _ in 0..100 {
            let is_healthy = match of_grpc {
                true => grpc_from(same, server.grpc, CHECK).await == "0",
                false => http_from(same, server.http, HEALTH)
                    .await
                    .starts_with("HTTP/1.1 200"),
            };
            healthy += usize::from(is_healthy);
        }
        assert_eq!(healthy, 100, "{load}");
        if of_grpc {
            // An empty message is invalid.
            assert_eq!(grpc_from(other, server.grpc, DECIDE).await, "3");
        } else {
            let answer = http_from(other, server.http, STATUS).await;
            assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        }
        let listener = if of_grpc { "grpc" } else { "http" };
        let series = r#"limiter_server_refused_total{listener="LISTENER",reason="address_memory"}"#;
        assert!(
            server.metric(&series.replace("LISTENER", listener)) >= Some(1.0),
            "{load}"
        );
        assert_eq!(server.logged("address_memory"), 1, "{load}");
        for task in held.into_iter().flat_map(|(_, tasks)| tasks) {
            task.abort();
        }
    }
}

#[test]
fn the_log_has_no_line_for_each_frame() {
    let server = Program::start(CONFIG, &[]);
    let mut stream = TcpStream::connect(server.grpc).unwrap();
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    // Responses to pings that the server has not sent, and a ping.
    let ping = |flags: &[u8]| [b"\0\0\x08\x06", flags, b"\0\0\0\0pingpong"].concat();
    let frames = [&preface[..], &ping(&[1]).repeat(10_000), &ping(&[0])].concat();
    stream.write_all(&frames).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"pingpong") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        answer.extend(byte);
    }
    assert_eq!(server.logged("PING"), 0);
}

#[test]
fn max_keys_bounds_the_memory_store() {
    let server = Server::start(CONFIG, &["--max-keys", "1000"]);
    for users in [0..1_000, 1_000..2_000, 2_000..3_000] {
        let descriptors: Vec<_> = users
            .map(|user| json!({ "entries": [{ "key": "user", "value": format!("{user}") }] }))
            .collect();
        let body = json!({ "domain": "d", "descriptors": descriptors });
        assert_eq!(server.post("/json", &body.to_string()).0, 200);
    }
    let keys = server.metric("limiter_keys{").unwrap();
    assert!((500.0..=1_000.0).contains(&keys), "{keys} keys");
}

#[test]
fn connections_beyond_the_limits_are_brief() {
    for limit in ["--max-connections", "--max-connections-per-address"] {
        beyond_are_brief(&Server::start(CONFIG, &[limit, "2"]));
    }
}

fn beyond_are_brief(server: &Client) {
    let mut held = [(); 2].map(|()| TcpStream::connect(server.http).unwrap());
    let mut third = TcpStream::connect(server.http).unwrap();
    assert_eq!(server.health().0, 200);
    third.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(third.read(&mut [0]).unwrap_or(0), 0, "it is closed");
    for stream in &mut held {
        stream.write_all(HEALTH.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
}

/// Starts a server on the threads of the test.
async fn here(config: &str) -> (run::Server, TempDir) {
    let (folder, path) = folder(config);
    let server = run::Server::start(&options(&path, &[])).await;
    (server.unwrap(), folder)
}

#[tokio::test]
async fn a_scrape_of_many_rules_delays_no_decision_and_shows_what_happened() {
    const RULES: usize = 20_000;
    let rules: String = (0..RULES)
        .map(|rule| {
            format!(
                "{{key: k, value: v{rule}, rate_limit: {{unit: hour, requests_per_unit: 2}}}}, "
            )
        })
        .collect();
    let (server, _folder) = here(&format!("{{domain: many, descriptors: [{rules}]}}")).await;
    let decide = async |rules: Range<usize>| {
        let rules: Vec<_> = rules.map(|rule| format!("k=v{rule}")).collect();
        let mut request = decided(&rules.join(" & "));
        request.domain = "many".to_owned();
        server.service().decide(&request, None).await.unwrap();
    };
    for start in (0..RULES).step_by(1_000) {
        decide(start..start + 1_000).await;
    }
    let admin = server.admin.clone();
    let scrape = tokio::spawn(async move {
        let mut stream = tokio::net::TcpStream::connect(admin).await.unwrap();
        let request = "GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    });
    let mut decided = 0;
    while !scrape.is_finished() {
        decide(0..1).await;
        decided += 1;
        tokio::task::yield_now().await;
    }
    // All threads of this server are this one.
    assert!(decided > 100, "{decided} decisions during the scrape");
    let answer = scrape.await.unwrap();
    let series = answer
        .lines()
        .filter(|line| line.contains(r#"domain="many""#));
    // Each rule has allowed a request, and counted a hit. The first has denied one, and was near its limit.
    assert_eq!(series.count(), 2 * RULES + 2);
}

#[tokio::test(start_paused = true)]
async fn connections_without_bytes_or_readers_end() {
    let (server, _folder) = here(CONFIG).await;

    // A connection without a byte.
    let mut silent = tokio::net::TcpStream::connect(&*server.grpc).await.unwrap();
    let began = Instant::now();
    let _ = silent.read_to_end(&mut Vec::new()).await;
    assert!(
        (Duration::from_secs(90)..Duration::from_secs(100)).contains(&began.elapsed()),
        "{:?}",
        began.elapsed()
    );

    // A response over HTTP/2 that nobody reads. Its client answers pings.
    let stream = tokio::net::TcpStream::connect(&*server.http).await.unwrap();
    let unread = h2::client::Builder::new()
        .initial_window_size(0)
        .handshake::<_, Bytes>(stream);
    let (client, connection) = unread.await.unwrap();
    let connection = tokio::spawn(connection);
    let mut client = client.ready().await.unwrap();
    let (answer, _) = client
        .send_request(Request::get("http://x/healthz").body(()).unwrap(), true)
        .unwrap();
    let _unread = answer.await.unwrap();
    let began = Instant::now();
    let _ = connection.await.unwrap();
    let lasted = began.elapsed();
    assert!(
        (Duration::from_secs(14)..Duration::from_secs(32)).contains(&lasted),
        "{lasted:?}"
    );

    // More responses than the buffers of the system hold.
    let mut stream = tokio::net::TcpStream::connect(&*server.admin)
        .await
        .unwrap();
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
