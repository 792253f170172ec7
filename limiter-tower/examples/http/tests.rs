//! Three processes of this service share one limit through a Redis Cluster.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use futures::future::join_all;
use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use limiter_testkit::server::{Cluster, Server};

use super::*;

/// Another process of this service. It is a test of this program once more, with the arguments in a variable.
struct Process {
    child: Child,
    output: BufReader<ChildStdout>,
    address: String,
}

const SERVE: &str = "HTTP_EXAMPLE_ARGS";

#[test]
fn serve() {
    let Ok(args) = std::env::var(SERVE) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(run(Args::parse_from(args.split(' ')))).unwrap();
}

impl Process {
    fn start(limit: &str, store: &str) -> Self {
        let args = format!("http --listen 127.0.0.1:0 --limit {limit} --store {store}");
        let mut command = Command::new(std::env::current_exe().unwrap());
        let command = command.args(["tests::serve", "--exact", "--nocapture"]).env(SERVE, args);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut lines = output.by_ref().lines().map(Result::unwrap);
        let address = lines.find_map(|line| line.strip_prefix("listening on ").map(str::to_owned));
        Self { child, output, address: address.expect("the process ended") }
    }

    /// Sends SIGINT, as Ctrl-C does, and returns whether the process ended well and what it printed last.
    fn interrupt(mut self) -> (bool, String) {
        let kill = Command::new("kill").args(["-INT", &self.child.id().to_string()]).status().unwrap();
        assert!(kill.success());
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).unwrap();
        (self.child.wait().unwrap().success(), rest)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A status, `Retry-After` and a body.
type Reply = (u16, Option<u64>, String);

#[derive(Clone)]
struct Http(Client<hyper_util::client::legacy::connect::HttpConnector, Empty<Bytes>>);

impl Http {
    fn new() -> Self {
        Self(Client::builder(TokioExecutor::new()).build_http())
    }

    async fn get(&self, url: String, key: Option<&str>) -> Reply {
        let mut request = http::Request::get(url);
        if let Some(key) = key {
            request = request.header("x-api-key", key);
        }
        let response = self.0.request(request.body(Empty::new()).unwrap()).await.unwrap();
        let retry_after = response.headers().get("retry-after").map(|value| value.to_str().unwrap().parse().unwrap());
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, retry_after, String::from_utf8(body.to_vec()).unwrap())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_400_requests_to_three_processes_over_a_cluster_exactly_the_maximum_is_served() {
    const MAX: usize = 57;
    let cluster = Cluster::start().unwrap();
    let processes: Vec<Process> = (0..3).map(|_| Process::start("57/1h", &cluster.url())).collect();
    let http = Http::new();
    let ask = |i: usize| http.get(processes[i % 3].address.clone(), Some("customer-7"));
    let replies = join_all((0..400).map(ask)).await;
    assert_eq!(replies.iter().filter(|reply| reply.0 == 200).count(), MAX);
    let denied: Vec<&Reply> = replies.iter().filter(|reply| reply.0 == 429).collect();
    assert_eq!(denied.len(), 400 - MAX);
    assert!(
        denied.iter().all(|(_, wait, body)| (1..=3600).contains(&wait.unwrap()) && body.contains("quota-exceeded"))
    );
    // Another key is another log.
    assert_eq!(http.get(processes[0].address.clone(), None).await.0, 200);
    // A denial says when one more fits.
    let brief = Process::start("1/2s", &cluster.url());
    let ask = || http.get(brief.address.clone(), Some("customer-8"));
    let wait = loop {
        if let (429, wait, _) = ask().await {
            break wait.unwrap();
        }
    };
    tokio::time::sleep(Duration::from_secs(wait)).await;
    assert_eq!(ask().await.0, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_are_served_and_an_interrupt_ends_the_process() {
    let redis = Server::start().unwrap();
    for store in ["memory".to_owned(), redis.url()] {
        let process = Process::start("2/1h", &store);
        let http = Http::new();
        let statuses = join_all((0..3).map(|_| http.get(process.address.clone(), Some("secret-key")))).await;
        assert_eq!(statuses.iter().filter(|reply| reply.0 == 200).count(), 2);
        let (status, _, metrics) = http.get(format!("{}/metrics", process.address), None).await;
        assert_eq!(status, 200, "metrics are not limited");
        let label = |outcome| {
            format!(
                "store=\"default\",limiter=\"http\",policy=\"2/1h\",limit=\"2/1h\",operation=\"acquire\",outcome=\"{outcome}\""
            )
        };
        for line in [
            format!("limiter_decisions_total{{{}}} 2", label("allowed")),
            format!("limiter_decisions_total{{{}}} 1", label("denied")),
            "limiter_near_limit_total{store=\"default\",limiter=\"http\",policy=\"2/1h\",limit=\"2/1h\"} 1".to_owned(),
            "limiter_store_duration_seconds_count{store=\"default\",limiter=\"http\",operation=\"acquire\"} 3"
                .to_owned(),
        ] {
            assert!(metrics.contains(&line), "{line} is missing in\n{metrics}");
        }
        assert_eq!(metrics.contains("limiter_keys{store=\"default\"} 1"), store == "memory");
        assert!(!metrics.contains("secret-key"));
        let (well, rest) = process.interrupt();
        assert!(well && rest.contains("ended"), "{rest}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_redis_is_a_503() {
    let mut redis = Server::start().unwrap();
    let process = Process::start("2/1h", &redis.url());
    let http = Http::new();
    assert_eq!(http.get(process.address.clone(), None).await.0, 200);
    redis.kill();
    let (status, wait, body) = http.get(process.address.clone(), None).await;
    assert_eq!((status, wait), (503, Some(1)));
    assert!(body.contains("temporary-reduced-capacity"), "{body}");
    let (_, _, metrics) = http.get(format!("{}/metrics", process.address), None).await;
    assert!(metrics.contains("limiter_store_errors_total{store=\"default\",limiter=\"http\""), "{metrics}");
}
