//! A real Envoy in front of a real upstream, with the configuration of `examples/envoy`.

use std::collections::HashMap;
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use limiter_testkit::server;
use tempfile::TempDir;
use testbed::{Network, Proxy};

use crate::server::{PATIENCE, Server, http, until};
use crate::tools;
use crate::windows::{Admission, assert_windows};

const CONFIG: &str = "
domain: edge
descriptors:
- { key: customer, value: burst, rate_limit: { policy: 60/1h } }
- { key: customer, value: flow, rate_limit: { policy: 50/1s } }
- { key: customer, value: waits, rate_limit: { policy: 5/3s } }
";

/// A proxy, and the upstream behind it.
struct Envoy {
    address: SocketAddr,
    upstream: Upstream,
    process: Child,
    _folder: TempDir,
}

impl Envoy {
    /// Starts Envoy before these servers, for which it waits at most `timeout`, and waits until it is ready.
    fn start(servers: &[Server], timeout: &str) -> Self {
        let (folder, upstream) = (tempfile::tempdir().unwrap(), Upstream::start());
        let example = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/envoy/envoy.yaml");
        let endpoint = |port: u16| {
            format!("- endpoint: {{ address: {{ socket_address: {{ address: 127.0.0.1, port_value: {port} }} }} }}")
        };
        let endpoints: Vec<String> = servers.iter().map(|server| endpoint(server.grpc.port())).collect();
        let mut config = fs::read_to_string(example).unwrap();
        for (theirs, ours) in [
            ("address: 0.0.0.0, port_value: 10000", "address: 127.0.0.1, port_value: 0"),
            (
                "socket_address: { address: 127.0.0.1, port_value: 9000 } }\n      filter",
                "socket_address: { address: 127.0.0.1, port_value: 0 } }\n      filter",
            ),
            (&endpoint(9000), &endpoint(upstream.address.port())),
            (&endpoint(8081), &endpoints.join("\n              ")),
            // No request may pass without a decision.
            ("timeout: 0.25s\n                      #", &format!("timeout: {timeout}\n                      #")),
            ("connect_timeout: 0.25s", "connect_timeout: 20s"),
            ("failure_mode_deny: false", "failure_mode_deny: true"),
        ] {
            assert_eq!(config.matches(theirs).count(), 1, "{theirs} in {config}");
            config = config.replace(theirs, ours);
        }
        config.push_str("\nadmin: { address: { socket_address: { address: 127.0.0.1, port_value: 0 } } }\n");
        let (path, admin) = (folder.path().join("envoy.yaml"), folder.path().join("admin"));
        fs::write(&path, config).unwrap();
        let mut command = Command::new(tools::envoy());
        command.arg("--config-path").arg(&path).arg("--admin-address-path").arg(&admin);
        command.args(["--disable-hot-restart", "--concurrency", "2", "--log-level", "error"]);
        let mut process = command.stdin(Stdio::null()).spawn().unwrap();
        let address = until("Envoy is ready", || {
            assert!(process.try_wait().unwrap().is_none(), "Envoy ended");
            let admin = fs::read_to_string(&admin).ok()?.parse().ok()?;
            let get =
                |path: &str| http(admin, &format!("GET {path} HTTP/1.1\r\nhost: envoy\r\nconnection: close\r\n\r\n"));
            let (status, _) = get("/ready");
            let listeners = get("/listeners").1;
            let edge = listeners.lines().find_map(|line| line.strip_prefix("edge::"))?;
            (status == 200).then(|| edge.parse().unwrap())
        });
        Self { address, upstream, process, _folder: folder }
    }

    fn client(&self) -> Client {
        Client { address: self.address, stream: None }
    }

    /// Sends `requests` requests over 32 connections, and returns how many got each status. Repeats those that no server
    /// decided on, because it was gone.
    fn burst(&self, customer: &str, requests: usize) -> HashMap<u16, usize> {
        let (left, mut statuses) = (AtomicUsize::new(requests), HashMap::new());
        let take = || left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok();
        let work = || {
            let (mut client, mut seen) = (self.client(), Vec::new());
            while take() {
                seen.push(client.decided(customer).status);
            }
            seen
        };
        thread::scope(|scope| {
            let threads: Vec<_> = (0..32).map(|_| scope.spawn(work)).collect();
            for status in threads.into_iter().flat_map(|thread| thread.join().unwrap()) {
                *statuses.entry(status).or_default() += 1;
            }
        });
        statuses
    }

    /// Sends requests over 16 connections for so long, and returns the admissions.
    fn flow(&self, customer: &str, length: Duration) -> Vec<Admission> {
        let began = Instant::now();
        let work = || {
            let (mut client, mut admissions) = (self.client(), Vec::new());
            while began.elapsed() < length {
                let made = began.elapsed();
                if client.decided(customer).status == 200 {
                    admissions.push((made, began.elapsed()));
                }
            }
            admissions
        };
        thread::scope(|scope| {
            let threads: Vec<_> = (0..16).map(|_| scope.spawn(work)).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        })
    }
}

impl Drop for Envoy {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A connection to Envoy, which is opened again when it breaks.
struct Client {
    address: SocketAddr,
    stream: Option<BufReader<TcpStream>>,
}

struct EnvoyResponse {
    status: u16,
    fields: HashMap<String, String>,
}

impl Client {
    /// Returns the first answer that is a decision.
    fn decided(&mut self, customer: &str) -> EnvoyResponse {
        until("a server decides", || {
            let answer = self.request(customer).inspect_err(|_| self.stream = None).ok()?;
            assert!([200, 429, 500].contains(&answer.status), "{}", answer.status);
            Some(answer).filter(|answer| answer.status != 500)
        })
    }

    fn request(&mut self, customer: &str) -> io::Result<EnvoyResponse> {
        let stream = match &mut self.stream {
            Some(stream) => stream,
            None => {
                let stream = TcpStream::connect(self.address)?;
                stream.set_read_timeout(Some(PATIENCE))?;
                stream.set_nodelay(true)?;
                self.stream.insert(BufReader::new(stream))
            }
        };
        write!(stream.get_mut(), "GET / HTTP/1.1\r\nhost: service\r\nx-customer: {customer}\r\n\r\n")?;
        let head = read_head(stream)?.ok_or(io::ErrorKind::UnexpectedEof)?;
        let mut lines = head.lines();
        let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok()).unwrap_or(0);
        let fields = lines.filter_map(|line| line.split_once(": "));
        let fields: HashMap<_, _> = fields.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        let len = fields.get("content-length").map_or(0, |len| len.parse().unwrap());
        stream.read_exact(&mut vec![0; len])?;
        Ok(EnvoyResponse { status, fields })
    }
}

/// A service that answers every request with 200, and counts them.
struct Upstream {
    address: SocketAddr,
    requests: Arc<AtomicUsize>,
}

impl Upstream {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, requests) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
        let counted = Arc::clone(&requests);
        // The threads end with their connections, and the first one with the program.
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let counted = Arc::clone(&counted);
                thread::spawn(move || {
                    let mut stream = BufReader::new(stream);
                    while let Ok(Some(_)) = read_head(&mut stream) {
                        counted.fetch_add(1, Relaxed);
                        if stream.get_mut().write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi").is_err() {
                            break;
                        }
                    }
                });
            }
        });
        Self { address, requests }
    }
}

/// Reads the head of a message, without the empty line after it; `None` at the end.
fn read_head(stream: &mut impl BufRead) -> io::Result<Option<String>> {
    let mut head = String::new();
    loop {
        let start = head.len();
        if stream.read_line(&mut head)? == 0 {
            return Ok(None);
        }
        if &head[start..] == "\r\n" {
            return Ok(Some(head));
        }
    }
}

/// Of many concurrent requests exactly the maximum pass, even when a server is killed between them.
fn a_burst_admits_the_maximum(envoy: &Envoy, servers: &mut Vec<Server>) {
    let before = envoy.upstream.requests.load(Relaxed);
    let first = envoy.burst("burst", 30);
    assert_eq!(first, [(200, 30)].into());
    if servers.len() > 1 {
        servers.pop();
    }
    let second = envoy.burst("burst", 150);
    assert_eq!(second, [(200, 30), (429, 120)].into());
    assert_eq!(envoy.upstream.requests.load(Relaxed) - before, 60);
}

/// No window exceeds its maximum, also when a server is killed meanwhile.
fn a_flow_keeps_its_windows(envoy: &Envoy, servers: &mut Vec<Server>) {
    let admissions = thread::scope(|scope| {
        let flow = scope.spawn(|| envoy.flow("flow", Duration::from_secs(4)));
        thread::sleep(Duration::from_secs(2));
        if servers.len() > 1 {
            servers.pop();
        }
        flow.join().unwrap()
    });
    assert!(admissions.len() > 50, "only {} admitted", admissions.len());
    // The rates of the clocks here and there may differ, by far less than one in a thousand.
    assert_windows(admissions, 50, Duration::from_millis(999));
}

/// A client that waits as long as `retry-after` says is admitted.
fn waiting_helps(envoy: &Envoy) {
    let mut client = envoy.client();
    let denied = until("a request is denied", || Some(client.decided("waits")).filter(|answer| answer.status == 429));
    for name in ["ratelimit", "ratelimit-policy"] {
        assert!(denied.fields.get(name).is_some_and(|field| field.contains("customer=waits")), "{:?}", denied.fields);
    }
    let wait: u64 = denied.fields["retry-after"].parse().unwrap();
    assert!((1..=3).contains(&wait), "{wait}");
    thread::sleep(Duration::from_secs(wait));
    assert_eq!(client.decided("waits").status, 200);
}

fn prove(store: &str, count: usize) {
    let mut servers: Vec<Server> = (0..count).map(|_| Server::start(CONFIG, &["--store", store])).collect();
    // A busy machine may need long.
    let envoy = Envoy::start(&servers, "20s");
    a_burst_admits_the_maximum(&envoy, &mut servers);
    a_flow_keeps_its_windows(&envoy, &mut servers);
    waiting_helps(&envoy);
}

#[test]
fn the_outage_choice_answers_before_envoy_gives_up() {
    let redis = server::Server::start().unwrap();
    let proxy = Proxy::start(([127, 0, 0, 1], redis.port()).into()).unwrap();
    let store = format!("redis://{}", proxy.address());
    let servers = [Server::start(CONFIG, &["--store", &store, "--on-outage", "closed"])];
    let envoy = Envoy::start(&servers, "0.1s");
    assert_eq!(envoy.client().decided("flow").status, 200);
    // Slower than Envoy waits, and faster than the server's own timeout.
    proxy.set(Network::Latency(Duration::from_millis(75)));
    assert_eq!(envoy.client().decided("flow").status, 429);
}

#[test]
fn limits_are_exact_behind_envoy() {
    prove("memory", 1);
    if testbed::test_all() {
        let redis = server::Server::start().unwrap();
        prove(&redis.url(), 1);
        redis.expect_ok(&["FLUSHALL"]).unwrap();
        prove(&redis.url(), 3);
        prove(&server::Cluster::start().unwrap().url(), 1);
    }
}
