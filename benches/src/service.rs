//! `limiter-server` compared with a tonic service that always responds with OK: the same messages and client, in one process.

use std::fs;
use std::net::SocketAddr;
use std::sync::{Arc, LazyLock, mpsc};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use futures::{StreamExt, TryStreamExt, stream};
use http::uri::PathAndQuery;
use limiter_memory::MemoryStore;
use limiter_server::options::Options;
use limiter_server::proto::{Code, DescriptorStatus, Entry, RateLimitDescriptor, RateLimitRequest, RateLimitResponse};
use limiter_server::proto::{RateLimitService, RateLimitServiceServer};
use limiter_server::rules::Rules;
use limiter_server::run::Server;
use limiter_server::service::{Headers, Service};
use limiter_server::store::Store;
use serde::Deserialize;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

use crate::declared::{Declared, parse};
use crate::record::{Figures, put};
use crate::turns::{self, Contestant, Run, Turn};

pub(crate) const OURS: &str = "limiter-server";
pub(crate) const PEER: &str = "always OK";
/// The scenario that counts the memory of many keys.
pub(crate) const MEMORY: &str = "service/memory";
/// The keys that its store may hold, a tenth of those requested.
const HELD: usize = 1_000_000;

pub(crate) static SERVICE: LazyLock<Declared<Scenario>> =
    LazyLock::new(|| parse(include_str!("../scenarios/service.json")));

/// Requests in flight.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Scenario {
    pub(crate) name: String,
    pub(crate) about: String,
    in_flight: usize,
    rules: usize,
    descriptors: usize,
    /// Whether the store is a Redis that is down.
    #[serde(default)]
    away: bool,
}

/// Measures all scenarios.
pub(crate) fn measure(run: &mut Run<'_>) -> Result<()> {
    run.scenario(MEMORY, memory)?;
    SERVICE.scenarios.iter().try_for_each(|scenario| run.scenario(&scenario.name, || compare(scenario)))
}

/// Measures ours and the peer in turns.
fn compare(scenario: &Scenario) -> Result<Figures> {
    let folder = tempfile::tempdir()?;
    let config = folder.path().join("limits.yaml");
    fs::write(&config, configuration(scenario.rules))?;
    // No program listens on this port.
    let store = if scenario.away { "redis://127.0.0.1:1" } else { "memory" };
    let any = "127.0.0.1:0";
    let options =
        ["--store", store, "--on-outage", "fallback", "--grpc", any, "--http", any, "--admin", any, "--config"];
    let options =
        Options::try_parse_from([OURS].iter().chain(&options).map(Into::into).chain([config.into_os_string()]))?;
    let options = options.serve.context("the options are those of the server")?;
    let ours = Process::start(OURS, move || async move {
        let server = Server::start(&options).await?;
        Ok((server.grpc, server))
    })?;
    let peer = Process::start(PEER, move || async move {
        let listener = TcpListener::bind(any).await?;
        let address = listener.local_addr()?;
        let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
        let service = tonic::transport::Server::builder().add_service(RateLimitServiceServer::new(AlwaysOk));
        Ok((address, tokio::spawn(service.serve_with_incoming(incoming))))
    })?;

    let client = runtime()?;
    let requests: Vec<RateLimitRequest> = (0..1_024).map(|i| request(scenario, i)).collect();
    let (rounds, calls) = (15, 2000);
    let mut all = Vec::new();
    for (name, server) in [(OURS, &ours), (PEER, &peer)] {
        let channel = client.block_on(Endpoint::try_from(format!("http://{}", server.address))?.connect())?;
        let (client, requests) = (&client, &requests);
        let turn = move || {
            let before = server.processor()?;
            let ask = |number: usize| ask(channel.clone(), requests[number % requests.len()].clone());
            let mut turn = client.block_on(offer(calls, scenario.in_flight, ask))?;
            turn.push(("processor", (server.processor()? - before) / calls as f64));
            Ok(turn)
        };
        all.push(Contestant { name, turn: Box::new(turn) });
    }
    // The first turn opens what is opened once.
    for contestant in &mut all {
        (contestant.turn)()?;
    }
    turns::measure(&mut all, |round| round >= rounds)
}

fn runtime() -> Result<Runtime> {
    Ok(Builder::new_current_thread().enable_all().build()?)
}

/// Returns request `i`: for one of 1,024 users, and for one of the rules.
fn request(scenario: &Scenario, i: usize) -> RateLimitRequest {
    let entry = |key: &str, value: String| Entry { key: key.into(), value: value.into() };
    let user = entry("user", format!("user {i}"));
    let by_route = || vec![entry("route", format!("route {}", i % (scenario.rules - 1).max(1))), user.clone()];
    let all = [
        if scenario.rules > 1 { by_route() } else { vec![user.clone()] },
        vec![entry("site", "a".to_owned())],
        vec![entry("plan", "gold".to_owned()), user.clone()],
    ];
    let descriptors = all.into_iter().take(scenario.descriptors);
    let descriptors = descriptors.map(|entries| RateLimitDescriptor { entries, ..Default::default() });
    RateLimitRequest { domain: "bench".to_owned(), descriptors: descriptors.collect(), hits_addend: 0 }
}

fn configuration(rules: usize) -> String {
    let limit = "rate_limit: { policy: 1000000/10ms }";
    let mut text = format!("domain: bench\ndescriptors:\n  - key: user\n    {limit}\n  - key: site\n    {limit}\n");
    text += &format!("  - key: plan\n    value: gold\n    descriptors:\n      - key: user\n        {limit}\n");
    for i in 0..rules.saturating_sub(1) {
        text +=
            &format!("  - key: route\n    value: route {i}\n    descriptors:\n      - key: user\n        {limit}\n");
    }
    text
}

/// A server on a separate thread, so that its CPU time is known. Stops when dropped.
struct Process {
    address: SocketAddr,
    /// The thread's file of times.
    times: String,
    _stop: oneshot::Sender<()>,
}

impl Process {
    /// Starts a server, which runs until the second value that `start` returns is dropped.
    fn start<S, F>(name: &str, start: impl FnOnce() -> F + Send + 'static) -> Result<Self>
    where
        F: Future<Output = Result<(SocketAddr, S)>>,
    {
        let (started, has_started) = mpsc::channel();
        let (stop, stopped) = oneshot::channel::<()>();
        let run = move || -> Result<()> {
            let times = format!("/proc/{}/schedstat", fs::read_link("/proc/thread-self")?.display());
            runtime()?.block_on(async {
                let (address, _server) = start().await?;
                started.send((address, times))?;
                let _ = stopped.await;
                Ok(())
            })
        };
        thread::Builder::new().name(name.to_owned()).spawn(run)?;
        let (address, times) = has_started.recv().context("the server did not start")?;
        Ok(Self { address, times, _stop: stop })
    }

    /// Returns the CPU time that the server's thread has taken, in µs.
    fn processor(&self) -> Result<f64> {
        let times = fs::read_to_string(&self.times)?;
        let nanos: f64 = times.split(' ').next().unwrap_or_default().parse()?;
        Ok(nanos / 1e3)
    }
}

struct AlwaysOk;

#[tonic::async_trait]
impl RateLimitService for AlwaysOk {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let ok = |_| DescriptorStatus { code: Code::Ok.into(), ..Default::default() };
        let statuses = request.get_ref().descriptors.iter().map(ok).collect();
        let overall_code = Code::Ok.into();
        Ok(Response::new(RateLimitResponse { overall_code, statuses, response_headers_to_add: Vec::new() }))
    }
}

/// Makes `count` calls, and keeps the given number of them in flight. Returns the median and the 99th percentile of their
/// latencies in µs.
async fn offer<C>(count: usize, in_flight: usize, call: impl Fn(usize) -> C) -> Result<Turn>
where
    C: Future<Output = Result<()>>,
{
    let timed = async |number| {
        let start = Instant::now();
        call(number).await?;
        anyhow::Ok(start.elapsed().as_secs_f64() * 1e6)
    };
    let calls = stream::iter(0..count).map(timed).buffer_unordered(in_flight);
    let mut latencies: Vec<f64> = calls.try_collect::<Vec<_>>().await?;
    latencies.sort_by(f64::total_cmp);
    let at = |percent: usize| latencies[(count * percent / 100).min(count - 1)];
    Ok(vec![("half", at(50)), ("p99", at(99))])
}

async fn ask(channel: Channel, request: RateLimitRequest) -> Result<()> {
    const PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
    let mut grpc = tonic::client::Grpc::new(channel);
    grpc.ready().await?;
    let codec = ProstCodec::<RateLimitRequest, RateLimitResponse>::default();
    let answer = grpc.unary(Request::new(request), PathAndQuery::from_static(PATH), codec).await?.into_inner();
    ensure!(answer.overall_code() == Code::Ok, "denied");
    Ok(())
}

/// Counts the memory after requests of many distinct keys.
fn memory() -> Result<Figures> {
    let resident = || -> Result<f64> {
        let status = fs::read_to_string("/proc/self/status")?;
        let kib = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB"));
        Ok(kib.context("no VmRSS")?.parse::<f64>()? / 1024.0)
    };
    let before = resident()?;
    let store = Store::over(Arc::new(MemoryStore::with_max_keys(HELD)));
    let text = configuration(1).replace("10ms", "1h");
    let rules = Rules::parse("bench", text.as_bytes(), store.shared(), None)?;
    let service = Service::new(rules, store, Headers::Ratelimit);
    let scenario = SERVICE.scenarios.first().context("the first scenario has one rule")?;
    runtime()?.block_on(async {
        for i in 0..10 * HELD {
            let answer = service.decide(&request(scenario, i)).await;
            ensure!(answer.is_ok_and(|answer| answer.overall_code() == Code::Ok), "key {i} is denied");
        }
        Ok(())
    })?;
    let mut figures = Figures::new();
    put(&mut figures, OURS, "MiB", resident()? - before);
    Ok(figures)
}
