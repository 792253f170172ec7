//! `limiter-server` compared with tonic services that repeat one response: its own, and a bare OK. Each is a program
//! on the first CPU; they share a client.

use std::env::current_exe;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use http::uri::PathAndQuery;
use limiter_benches::declared::{Declared, parse};
use limiter_benches::record::Figures;
use limiter_benches::turns::{self, Contestant, Run, Turn};
use limiter_server::proto::{
    Code, DescriptorStatus, Entry, RateLimitDescriptor, RateLimitRequest, RateLimitResponse,
};
use limiter_server::proto::{RateLimitServer, RateLimitService, SHOULD_RATE_LIMIT};
use prost::Message;
use serde::Deserialize;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;
use tracing::subscriber::NoSubscriber;

pub(crate) const OURS: &str = "limiter-server";
/// Repeats ours' first response, so it sends the same bytes.
pub(crate) const FLOOR: &str = "same bytes";
pub(crate) const PEER: &str = "always OK";
/// What a server prints before its address.
const READY: &str = "limiter-server: grpc ";
const ANY: &str = "127.0.0.1:0";
/// The argument before the response that the program repeats.
pub const REPEAT: &str = "--repeat";
/// The number of calls in a turn.
const CALLS: usize = 2000;

pub(crate) static SERVICE: LazyLock<Declared<Scenario>> =
    LazyLock::new(|| parse(include_str!("../scenarios/service.json")));

/// Requests in flight.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Scenario {
    pub(crate) name: String,
    pub(crate) about: String,
    in_flight: usize,
    #[serde(default = "one")]
    connections: usize,
    rules: usize,
    descriptors: usize,
    /// Whether the store is a Redis that is down.
    #[serde(default)]
    away: bool,
}

/// Measures all scenarios.
pub(crate) fn measure(run: &mut Run<'_>) -> Result<()> {
    SERVICE.scenarios.iter().try_for_each(|scenario| {
        run.scenario(&scenario.name, || {
            eprintln!("{}", scenario.about);
            compare(scenario)
        })
    })
}

const fn one() -> usize {
    1
}

/// Measures ours and the peers in turns.
fn compare(scenario: &Scenario) -> Result<Figures> {
    let folder = tempfile::tempdir()?;
    let config = folder.path().join("limits.yaml");
    fs::write(&config, configuration(scenario.rules))?;
    // No program listens on this port.
    let store = if scenario.away {
        "redis://127.0.0.1:1"
    } else {
        "memory"
    };
    let options = [
        "--store", store, "--grpc", ANY, "--http", ANY, "--admin", ANY, "--config",
    ];
    let ours = Program::start(Command::new(build()?).args(options).arg(config))?;

    let client = Builder::new_current_thread().enable_all().build()?;
    let requests: Vec<RateLimitRequest> = (0..1_024).map(|i| request(scenario, i)).collect();
    let connect = |server: &Program| {
        client.block_on(Endpoint::try_from(format!("http://{}", server.address))?.connect())
    };
    let first = client.block_on(ask(connect(&ours)?, requests[0].clone()))?;
    let ok = DescriptorStatus {
        code: Code::Ok.into(),
        ..Default::default()
    };
    let bare = RateLimitResponse {
        overall_code: Code::Ok.into(),
        statuses: vec![ok; scenario.descriptors],
        ..RateLimitResponse::default()
    };
    let repeat = |answer: &RateLimitResponse| {
        let file = tempfile::NamedTempFile::new_in(&folder)?;
        fs::write(&file, answer.encode_to_vec())?;
        Program::start(Command::new(current_exe()?).arg(REPEAT).arg(file.path()))
    };
    let servers = [
        (OURS, ours),
        (FLOOR, repeat(&first)?),
        (PEER, repeat(&bare)?),
    ];
    let mut all = Vec::new();
    for (name, server) in &servers {
        let connections = (0..scenario.connections)
            .map(|_| connect(server))
            .collect::<Result<Vec<_>, _>>()?;
        let client = &client;
        let requests = &requests;
        let turn = move || {
            let before = server.processor()?;
            let mut turn = client.block_on(offer(&connections, requests, scenario.in_flight))?;
            turn.push(("processor", (server.processor()? - before) / CALLS as f64));
            Ok(turn)
        };
        all.push(Contestant {
            name,
            turn: Box::new(turn),
        });
    }
    // The first turn includes one-time setup.
    for contestant in &mut all {
        (contestant.turn)()?;
    }
    turns::measure(&mut all, |round| round >= 15)
}

/// Builds the program, and returns its path.
fn build() -> Result<PathBuf> {
    // With this package, which changes the features of dependencies.
    let args = [
        "build",
        "--release",
        "--package",
        OURS,
        "--package",
        env!("CARGO_PKG_NAME"),
        "--bin",
        OURS,
    ];
    let built = Command::new(env!("CARGO")).args(args).status()?;
    ensure!(built.success(), "{OURS} does not build");
    Ok(current_exe()?.with_file_name(OURS))
}

/// Returns request `i`: for one of 1,024 users, and for one of the rules.
fn request(scenario: &Scenario, i: usize) -> RateLimitRequest {
    let entry = |key: &str, value: String| Entry {
        key: key.into(),
        value: value.into(),
    };
    let user = entry("user", format!("user {i}"));
    let by_route = || {
        vec![
            entry(
                "route",
                format!("route {}", i % (scenario.rules - 1).max(1)),
            ),
            user.clone(),
        ]
    };
    let all = [
        if scenario.rules > 1 {
            by_route()
        } else {
            vec![user.clone()]
        },
        vec![entry("site", "a".to_owned())],
        vec![entry("plan", "gold".to_owned()), user.clone()],
    ];
    let descriptors = all.into_iter().take(scenario.descriptors);
    let descriptors = descriptors.map(|entries| RateLimitDescriptor {
        entries,
        ..Default::default()
    });
    RateLimitRequest {
        domain: "bench".to_owned(),
        descriptors: descriptors.collect(),
        hits_addend: 0,
    }
}

fn configuration(rules: usize) -> String {
    let limit = "rate_limit: { policy: 1000000/10ms }";
    let mut text = format!(
        "domain: bench\ndescriptors:\n  - key: user\n    {limit}\n  - key: site\n    {limit}\n"
    );
    text += &format!(
        "  - key: plan\n    value: gold\n    descriptors:\n      - key: user\n        {limit}\n"
    );
    for i in 0..rules.saturating_sub(1) {
        text += &format!(
            "  - key: route\n    value: route {i}\n    descriptors:\n      - key: user\n        {limit}\n"
        );
    }
    text
}

/// A server that runs on the first CPU. Killed when dropped.
struct Program {
    address: SocketAddr,
    process: Child,
}

impl Program {
    /// Starts a server, and waits until it prints its address.
    fn start(command: &Command) -> Result<Self> {
        let mut pinned = Command::new("taskset");
        pinned
            .args(["--cpu-list", "0"])
            .arg(command.get_program())
            .args(command.get_args());
        let mut process = pinned.stderr(Stdio::piped()).spawn().context("taskset")?;
        let lines = BufReader::new(process.stderr.take().context("no stderr")?)
            .lines()
            .map_while(Result::ok);
        let address = lines
            .filter_map(|line| line.strip_prefix(READY)?.parse().ok())
            .next();
        Ok(Self {
            address: address.context("the server did not start")?,
            process,
        })
    }

    /// Returns the CPU time that its threads have taken, in µs.
    fn processor(&self) -> Result<f64> {
        let threads = fs::read_dir(format!("/proc/{}/task", self.process.id()))?;
        threads
            .map(|thread| {
                let times = fs::read_to_string(thread?.path().join("schedstat"))?;
                Ok(times.split(' ').next().unwrap_or_default().parse::<f64>()? / 1e3)
            })
            .sum()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Serves the response in a file to all requests, until the program is killed.
///
/// # Errors
/// If the response is none, or no port is free.
pub fn repeat(file: &str) -> Result<()> {
    let service = Repeated(RateLimitResponse::decode(&*fs::read(file)?)?);
    // Without a subscriber, spans are made to be logged.
    tracing::subscriber::set_global_default(NoSubscriber::default())?;
    // Like limiter-server.
    Runtime::new()?.block_on(async {
        let listener = TcpListener::bind(ANY).await?;
        eprintln!("{READY}{}", listener.local_addr()?);
        let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
        let server = tonic::transport::Server::builder().add_service(RateLimitServer::new(service));
        Ok(server.serve_with_incoming(incoming).await?)
    })
}

struct Repeated(RateLimitResponse);

#[tonic::async_trait]
impl RateLimitService for Repeated {
    async fn should_rate_limit(
        &self,
        _: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        Ok(Response::new(self.0.clone()))
    }
}

/// Makes the calls of a turn over these connections, and keeps the given number of them in flight. Returns the median and the
/// 99th percentile of their latencies in µs.
async fn offer(
    connections: &[Channel],
    requests: &[RateLimitRequest],
    in_flight: usize,
) -> Result<Turn> {
    let timed = async |number: usize| {
        let start = Instant::now();
        let connection = connections[number % connections.len()].clone();
        let answer = ask(connection, requests[number % requests.len()].clone()).await?;
        ensure!(answer.overall_code() == Code::Ok, "denied");
        Ok(start.elapsed().as_secs_f64() * 1e6)
    };
    let calls = stream::iter(0..CALLS)
        .map(timed)
        .buffer_unordered(in_flight);
    let mut latencies: Vec<f64> = calls.try_collect::<Vec<_>>().await?;
    latencies.sort_by(f64::total_cmp);
    Ok(vec![
        ("half", latencies[CALLS / 2]),
        ("p99", latencies[CALLS * 99 / 100]),
    ])
}

async fn ask(channel: Channel, request: RateLimitRequest) -> Result<RateLimitResponse> {
    let mut grpc = tonic::client::Grpc::new(channel);
    grpc.ready().await?;
    let codec = ProstCodec::<RateLimitRequest, RateLimitResponse>::default();
    Ok(grpc
        .unary(
            Request::new(request),
            PathAndQuery::from_static(SHOULD_RATE_LIMIT),
            codec,
        )
        .await?
        .into_inner())
}
