//! A real Envoy in front of the stand-in of `examples/envoy`, with its configuration.

use std::collections::HashMap;
use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::ops::Deref;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use limiter_testkit::{Admission, worst_window};
use tempfile::TempDir;
use testbed::server;

use crate::client::{Client, exchange, get, until};
use crate::server::Server;
use crate::tools;

const CONFIG: &str = "
domain: edge
descriptors:
- { key: customer, value: burst, rate_limit: { policy: 60/1h } }
- { key: customer, value: flow, rate_limit: { policy: 50/1s } }
- { key: customer, value: waits, rate_limit: { policy: 5/3s } }
";

/// A proxy.
pub(crate) struct Envoy {
    pub(crate) address: SocketAddr,
    admin: SocketAddr,
    process: Child,
    _folder: TempDir,
}

impl Envoy {
    /// Starts Envoy before these servers, for which it waits at most `timeout`, and waits until it is ready.
    pub(crate) fn start(servers: &[impl Deref<Target = Client>], timeout: &str) -> Self {
        Self::start_with(servers, timeout, |example| example)
    }

    /// Like [`start`](Self::start), with a changed configuration.
    pub(crate) fn start_with(
        servers: &[impl Deref<Target = Client>],
        timeout: &str,
        change: impl Fn(String) -> String,
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let stand_in = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let example = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/envoy/envoy.yaml");
        let endpoint = |port: u16| {
            format!(
                "- endpoint: {{ address: {{ socket_address: {{ address: 127.0.0.1, port_value: {port} }} }} }}"
            )
        };
        let endpoints: Vec<String> = servers
            .iter()
            .map(|server| endpoint(server.grpc.port()))
            .collect();
        let mut config = change(fs::read_to_string(example).unwrap());
        for (theirs, ours) in [
            (
                "address: 0.0.0.0, port_value: 10000",
                "address: 127.0.0.1, port_value: 0",
            ),
            (&endpoint(8081), &endpoints.join("\n              ")),
            // No request may pass without a decision.
            (
                "timeout: 0.25s\n                      #",
                &format!("timeout: {timeout}\n                      #"),
            ),
            ("connect_timeout: 0.25s", "connect_timeout: 20s"),
            // A busy server is not gone.
            (
                "timeout: 1s\n          unhealthy_threshold",
                "timeout: 20s\n          unhealthy_threshold",
            ),
            ("failure_mode_deny: false", "failure_mode_deny: true"),
        ] {
            assert_eq!(config.matches(theirs).count(), 1, "{theirs} in {config}");
            config = config.replace(theirs, ours);
        }
        config = config.replace("port_value: 9000", &format!("port_value: {stand_in}"));
        config.push_str(
            "\nadmin: { address: { socket_address: { address: 127.0.0.1, port_value: 0 } } }\n",
        );
        let (path, admin) = (
            folder.path().join("envoy.yaml"),
            folder.path().join("admin"),
        );
        fs::write(&path, config).unwrap();
        let mut command = Command::new(tools::envoy());
        command
            .arg("--config-path")
            .arg(&path)
            .arg("--admin-address-path")
            .arg(&admin);
        command.args([
            "--disable-hot-restart",
            "--concurrency",
            "2",
            "--log-level",
            "error",
        ]);
        let mut process = command.stdin(Stdio::null()).spawn().unwrap();
        let (admin, address) = until("Envoy is ready", || {
            assert!(process.try_wait().unwrap().is_none(), "Envoy ended");
            let admin = fs::read_to_string(&admin).ok()?.parse().ok()?;
            let (status, _) = get(admin, "/ready");
            let listeners = get(admin, "/listeners").1;
            let edge = listeners
                .lines()
                .find_map(|line| line.strip_prefix("edge::"))?;
            (status == 200).then(|| (admin, edge.parse().unwrap()))
        });
        Self {
            address,
            admin,
            process,
            _folder: folder,
        }
    }

    /// Returns the number of requests that have reached the stand-in.
    fn passed(&self) -> u64 {
        let name = "cluster.service.upstream_rq_total";
        let text = get(self.admin, &format!("/stats?filter={name}")).1;
        text.lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
            .unwrap()
            .parse()
            .unwrap()
    }

    /// Returns the status and the head of the first answer that is a decision.
    fn decided(&self, customer: &str) -> (u16, String) {
        until("a server decides", || {
            let fields = format!("host: service\r\nx-customer: {customer}\r\nconnection: close");
            let (status, head, _) =
                exchange(self.address, &format!("GET / HTTP/1.1\r\n{fields}\r\n\r\n"));
            assert!([0, 200, 429, 500].contains(&status), "{head}");
            [200, 429].contains(&status).then_some((status, head))
        })
    }

    /// Returns what 32 clients return, each of which asks as long as `next` has something.
    fn clients<T: Send>(&self, next: impl Fn() -> Option<T> + Sync) -> Vec<T> {
        thread::scope(|scope| {
            let client = || std::iter::from_fn(&next).collect::<Vec<_>>();
            let threads: Vec<_> = (0..32).map(|_| scope.spawn(client)).collect();
            let seen = threads.into_iter().map(|thread| thread.join().unwrap());
            seen.flatten().collect()
        })
    }

    /// Sends `requests` requests, and returns how many got each status. Repeats requests that no server decided on, because it was
    /// gone.
    fn burst(&self, customer: &str, requests: usize) -> HashMap<u16, usize> {
        let sent = AtomicUsize::new(0);
        let statuses = self.clients(|| {
            let is_left = sent.fetch_add(1, Relaxed) < requests;
            is_left.then(|| self.decided(customer).0)
        });
        let mut counts = HashMap::new();
        for status in statuses {
            *counts.entry(status).or_default() += 1;
        }
        counts
    }

    /// Sends requests for so long, and returns the admissions.
    fn flow(&self, customer: &str, length: Duration) -> Vec<Admission> {
        let began = Instant::now();
        let decisions = self.clients(|| {
            let sent = began.elapsed();
            (sent < length).then(|| (sent, self.decided(customer).0, began.elapsed()))
        });
        let admitted = decisions
            .into_iter()
            .filter(|(_, status, _)| *status == 200);
        admitted
            .map(|(sent, _, returned)| Admission {
                sent,
                returned,
                cost: 1,
            })
            .collect()
    }
}

impl Drop for Envoy {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Of many concurrent requests exactly the maximum pass, even when a server is killed between them.
fn a_burst_admits_the_maximum(envoy: &Envoy, servers: &mut Vec<Server>) {
    let before = envoy.passed();
    let first = envoy.burst("burst", 30);
    assert_eq!(first, [(200, 30)].into());
    if servers.len() > 1 {
        servers.pop();
    }
    let second = envoy.burst("burst", 150);
    assert_eq!(second, [(200, 30), (429, 120)].into());
    assert_eq!(envoy.passed() - before, 60);
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
    let worst = worst_window(admissions, Duration::from_millis(999));
    assert!(worst <= 50, "{worst} of at most 50");
}

/// A client that waits for `retry-after` is admitted.
fn waiting_helps(envoy: &Envoy) {
    let denied = until("a request is denied", || {
        Some(envoy.decided("waits")).filter(|(status, _)| *status == 429)
    })
    .1;
    let field = |name: &str| {
        denied
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .unwrap_or_else(|| panic!("{denied}"))
    };
    for name in ["ratelimit: ", "ratelimit-policy: "] {
        assert!(field(name).contains("customer=waits"), "{denied}");
    }
    let wait: u64 = field("retry-after: ").parse().unwrap();
    assert!((1..=3).contains(&wait), "{wait}");
    thread::sleep(Duration::from_secs(wait));
    assert_eq!(envoy.decided("waits").0, 200);
}

fn prove(store: &str, count: usize) {
    let mut servers: Vec<Server> = (0..count)
        .map(|_| Server::start(CONFIG, &["--store", store]))
        .collect();
    // A busy machine may need long.
    let envoy = Envoy::start(&servers, "20s");
    a_burst_admits_the_maximum(&envoy, &mut servers);
    a_flow_keeps_its_windows(&envoy, &mut servers);
    waiting_helps(&envoy);
}

#[test]
fn envoy_stops_asking_a_server_that_is_gone() {
    let redis = server::Server::start().unwrap();
    let start = || Server::start(CONFIG, &["--store", &redis.url()]);
    let mut servers = vec![start(), start()];
    let envoy = Envoy::start(&servers, "20s");
    envoy.burst("burst", 60);
    servers.pop();
    let undecided = || {
        let fields = "host: service\r\nx-customer: burst\r\nconnection: close";
        let request = format!("GET / HTTP/1.1\r\n{fields}\r\n\r\n");
        let statuses = (0..40).map(|_| exchange(envoy.address, &request).0);
        statuses.filter(|status| *status != 429).count()
    };
    until("the health checks notice", || {
        let clusters = get(envoy.admin, "/clusters").1;
        clusters.contains("/failed_active_hc").then_some(())
    });
    until("no earlier request waits", || {
        (undecided() == 0).then_some(())
    });
    assert_eq!((0..5).map(|_| undecided()).sum::<usize>(), 0);
}

#[test]
fn limits_are_exact_behind_envoy() {
    prove("memory", 1);
    if testbed::test_all() {
        let redis = server::Server::start().unwrap();
        prove(&redis.url(), 1);
        redis.command::<()>(&["FLUSHALL"]).unwrap();
        prove(&redis.url(), 3);
        prove(&server::Cluster::start().unwrap().url(), 1);
    }
}
