//! Clients that hold what they can.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

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
use crate::client::{Client, PATIENCE, folder, http, until};
use crate::program::Program;
use crate::server::{Server, options};

const CONFIG: &str =
    "{domain: d, descriptors: [{key: user, rate_limit: {unit: hour, requests_per_unit: 1000}}]}";
const HEALTH: &str = "GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";

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

/// Requests that a client leaves unfinished, or whose responses it does not read.
struct Load {
    path: &'static str,
    kind: &'static str,
    body: Bytes,
    ends: bool,
    /// Each has 100 requests.
    connections: usize,
}

/// Makes these requests over HTTP/2, and reads no byte of a body. Returns the connections and the number of requests that were refused.
async fn unread(to: SocketAddr, load: &Load) -> (Vec<JoinHandle<()>>, Arc<AtomicUsize>) {
    let mut held = Vec::new();
    let refused = Arc::new(AtomicUsize::new(0));
    for _ in 0..load.connections {
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
            let method = if load.path == "/healthz" {
                "GET"
            } else {
                "POST"
            };
            let request = Request::builder().method(method);
            let request = request.uri(format!("http://x{}", load.path));
            let request = request.header("content-type", load.kind).body(()).unwrap();
            let (answer, mut stream) = client.send_request(request, false).unwrap();
            stream.send_data(load.body.clone(), load.ends).unwrap();
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

const REFLECTION: &str = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
const STATUS: &str = "POST /v1/status HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n\
    content-length: 48\r\n\r\n{\"domain\": \"d\", \"descriptor\": [[\"user\", \"bob\"]]}";

/// All that a client occupies has a bound, and hides neither health checks nor other clients.
#[tokio::test]
async fn requests_in_progress_share_a_budget() {
    let json = "application/json";
    let grpc = "application/grpc";
    let wait = r#"{"domain": "d", "descriptor": [["user", "ann"]], "wait_ms": 60000}"#;
    let part = vec![b' '; (1 << 20) - 99];
    // The end of both bodies never comes.
    let message = [&[0, 0, 15, 255, 255], &*part].concat();
    // A request counts at least 8 KiB, a stream 48 KiB, and a body much more.
    for (path, kind, body, connections, most) in [
        ("/v1/acquire", json, wait.into(), 100, 7_168),
        ("/json", json, "{}".into(), 100, 7_168),
        // Each connection has room for one more.
        ("/healthz", json, Bytes::new(), 100, 7_268),
        (REFLECTION, grpc, "\0".into(), 100, 1_194),
        ("/json", json, part.into(), 1, 40),
        (DECIDE, grpc, message.into(), 1, 40),
    ] {
        let began = Instant::now();
        let is_whole = connections > 1;
        let load = Load {
            path,
            kind,
            body,
            ends: is_whole && kind == json,
            connections,
        };
        let server = Program::start(CONFIG, &[]);
        let all = wait.replace("60000", "0, \"cost\": 1000");
        assert_eq!(server.post("/v1/acquire", &all).1["allowed"], true);
        let (to, listener) = match kind == grpc {
            true => (server.grpc, "grpc"),
            false => (server.http, "http"),
        };
        let before = server.proc("status", "VmHWM:");
        let (held, refused) = unread(to, &load).await;
        let all = 100 * connections;
        let patience = async {
            while refused.load(Relaxed) < all - most {
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(PATIENCE, patience)
            .await
            .unwrap_or_else(|_| panic!("{refused:?} of {path} are refused"));
        assert!(refused.load(Relaxed) < all);
        let occupied = server.proc("status", "VmHWM:") - before;
        println!("{occupied} KiB occupied by {path}");
        assert!(occupied < REQUESTS + 100 * CONNECTION, "{occupied} KiB");

        let [same, other] = [[127, 0, 0, 1], [127, 0, 0, 2]];
        for _ in 0..100 {
            let is_healthy = match kind == grpc {
                true => grpc_from(same, to, CHECK).await == "0",
                false => http_from(same, to, HEALTH).await.contains("200 OK"),
            };
            assert!(is_healthy, "{path}");
        }
        // The bodies of one connection leave room for small requests.
        if is_whole && kind == grpc {
            assert_eq!(grpc_from(same, to, REFLECTION).await, "8");
        } else if is_whole {
            let answer = http_from(same, to, STATUS).await;
            let reason = r#"{"error":"too many requests in progress"}"#;
            let is_refused = answer.starts_with("HTTP/1.1 503") && answer.ends_with(reason);
            assert!(is_refused, "{path}: {answer}");
        }
        if kind == grpc {
            // An empty message is invalid.
            assert_eq!(grpc_from(other, to, DECIDE).await, "3");
        } else {
            let answer = http_from(other, to, STATUS).await;
            assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
        }
        let series = r#"limiter_server_refused_total{listener="LISTENER",reason="address_memory"}"#;
        let series = series.replace("LISTENER", listener);
        assert!(server.metric(&series) >= Some(1.0), "{path}");
        let lines = server.logged("address_memory") as u64;
        let seconds = began.elapsed().as_secs();
        assert!(
            (1..=1 + seconds / 10).contains(&lines),
            "{lines} lines in {seconds} s"
        );
        for task in held {
            task.abort();
            let _ = task.await;
        }
        until("the memory is free", || {
            http(server.http, STATUS).0.eq(&200).then_some(())
        });
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
