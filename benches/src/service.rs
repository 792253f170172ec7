//! `limiter-server` beside a tonic service that always answers OK: the same messages and client, in one process.

use std::fs;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use http::uri::PathAndQuery;
use limiter_memory::MemoryStore;
use limiter_server::options::Serve;
use limiter_server::proto::{Code, DescriptorStatus, Entry, RateLimitDescriptor, RateLimitRequest, RateLimitResponse};
use limiter_server::proto::{RateLimitService, RateLimitServiceServer};
use limiter_server::rules::Rules;
use limiter_server::run::Server;
use limiter_server::service::{Headers, Service};
use limiter_server::store::{Location, OnOutage, Store};
use serde::Deserialize;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

use crate::declared::SERVICE;
use crate::record::{Figures, Measured, Results, put};
use crate::turns::{self, Case, Effort, Turn};

pub(crate) const OURS: &str = "limiter-server";
pub(crate) const PEER: &str = "always OK";
/// The scenario that counts the memory of many keys.
pub(crate) const MEMORY: &str = "service/memory";
/// Its keys, for each that the store may hold.
const KEYS: u64 = 10;

/// Requests in flight, as declared.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Scenario {
    pub(crate) name: String,
    pub(crate) about: String,
    in_flight: usize,
    #[serde(default = "one")]
    rules: usize,
    #[serde(default = "one")]
    descriptors: usize,
    #[serde(default)]
    away: bool,
}

fn one() -> usize {
    1
}

/// Measures the scenarios whose names contain `only`.
pub(crate) fn measure(effort: &Effort, only: Option<&str>) -> Measured {
    let wanted = |name: &str| only.is_none_or(|only| name.contains(only));
    let mut results = Results::new();
    if wanted(MEMORY) {
        eprintln!("{MEMORY}");
        results.insert(MEMORY.to_owned(), memory(effort)?);
    }
    for scenario in SERVICE.scenarios.iter().filter(|scenario| wanted(&scenario.name)) {
        eprintln!("{}: {}", scenario.name, scenario.about);
        results.insert(scenario.name.clone(), compare(scenario, effort).with_context(|| scenario.name.clone())?);
    }
    Ok((results, None))
}

/// Measures ours and the peer in turns.
fn compare(scenario: &Scenario, effort: &Effort) -> Result<Figures> {
    let client = Builder::new_current_thread().enable_all().build()?;
    let (ours, peer) = (start(OURS, scenario.options()?)?, start(PEER, None)?);
    let sides = [(OURS, &ours), (PEER, &peer)];
    let requests: Arc<Vec<RateLimitRequest>> = Arc::new((0..1_024).map(|i| scenario.request(i)).collect());
    let (rounds, calls) = (effort.clients.0, effort.clients.1.max(scenario.in_flight));
    let mut cases = Vec::new();
    for (who, side) in sides {
        let channel = client.block_on(Endpoint::try_from(format!("http://{}", side.address))?.connect())?;
        let (client, requests) = (&client, Arc::clone(&requests));
        let turn = move || client.block_on(side.turn(&channel, &requests, scenario.in_flight, calls));
        cases.push(Case { who, turn: Box::new(turn) });
    }
    // The first turn opens what is opened once.
    for case in &mut cases {
        (case.turn)()?;
    }
    turns::measure(&mut cases, |round| round >= rounds)
}

impl Scenario {
    /// Returns the options of the server.
    fn options(&self) -> Result<Option<(Serve, tempfile::TempDir)>> {
        let folder = tempfile::tempdir()?;
        let config = folder.path().join("limits.yaml");
        fs::write(&config, configuration(self.rules))?;
        let any: SocketAddr = ([127, 0, 0, 1], 0).into();
        // No program listens on this port.
        let store = if self.away { Location::Redis("redis://127.0.0.1:1".to_owned()) } else { Location::Memory };
        let serve = Serve {
            config,
            store,
            max_keys: None,
            outage: OnOutage::Fallback,
            headers: Headers::Ratelimit,
            grpc: any,
            http: any,
            admin: any,
            admin_host: Vec::new(),
            admin_token_file: None,
            tls_cert: None,
            tls_key: None,
            tls_client_ca: None,
        };
        Ok(Some((serve, folder)))
    }

    /// Returns request `i`: for one of 1,024 users, and for one of the rules.
    fn request(&self, i: usize) -> RateLimitRequest {
        let entry = |key: &str, value: String| Entry { key: key.into(), value: value.into() };
        let user = entry("user", format!("user {i}"));
        let by_route = || vec![entry("route", format!("route {}", i % (self.rules - 1).max(1))), user.clone()];
        let all = [
            if self.rules > 1 { by_route() } else { vec![user.clone()] },
            vec![entry("site", "a".to_owned())],
            vec![entry("plan", "gold".to_owned()), user.clone()],
        ];
        let descriptors = all.into_iter().take(self.descriptors);
        let descriptors = descriptors.map(|entries| RateLimitDescriptor { entries, ..Default::default() });
        RateLimitRequest { domain: "bench".to_owned(), descriptors: descriptors.collect(), hits_addend: 0 }
    }
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

/// A server on a thread of its own.
struct Side {
    address: SocketAddr,
    /// The thread's file of times.
    times: String,
    _stop: oneshot::Sender<()>,
}

/// Starts ours if there are options, and otherwise the peer.
fn start(name: &str, options: Option<(Serve, tempfile::TempDir)>) -> Result<Side> {
    let (started, has_started) = std::sync::mpsc::channel();
    let (stop, stopped) = oneshot::channel::<()>();
    let run = move || -> Result<()> {
        let runtime: Runtime = Builder::new_current_thread().enable_all().build()?;
        let thread = fs::read_link("/proc/thread-self")?;
        let times = format!("/proc/{}/schedstat", thread.display());
        runtime.block_on(async {
            if let Some((serve, _folder)) = options {
                let server = Server::start(&serve).await?;
                started.send((server.grpc, times))?;
                let _ = stopped.await;
            } else {
                let listener = TcpListener::bind("127.0.0.1:0").await?;
                started.send((listener.local_addr()?, times))?;
                let service = RateLimitServiceServer::new(AlwaysOk);
                let incoming = tonic::transport::server::TcpIncoming::from(listener).with_nodelay(Some(true));
                let ended = async { drop(stopped.await) };
                tonic::transport::Server::builder()
                    .add_service(service)
                    .serve_with_incoming_shutdown(incoming, ended)
                    .await?;
            }
            Ok(())
        })
    };
    thread::Builder::new().name(name.to_owned()).spawn(run)?;
    let (address, times) = has_started.recv().context("the server did not start")?;
    Ok(Side { address, times, _stop: stop })
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

impl Side {
    /// Returns the processor time that the server's thread has taken, in µs.
    fn processor(&self) -> Result<f64> {
        let times = fs::read_to_string(&self.times)?;
        let nanos: f64 = times.split(' ').next().unwrap_or_default().parse()?;
        Ok(nanos / 1e3)
    }

    /// Makes so many calls. The figures are in µs.
    async fn turn(
        &self,
        channel: &Channel,
        requests: &Arc<Vec<RateLimitRequest>>,
        in_flight: usize,
        calls: usize,
    ) -> Result<Turn> {
        let before = self.processor()?;
        let mut tasks = JoinSet::new();
        for task in 0..in_flight {
            let (channel, requests) = (channel.clone(), Arc::clone(requests));
            tasks.spawn(async move {
                let mut latencies = Vec::with_capacity(calls / in_flight);
                for call in 0..calls / in_flight {
                    let request = requests[(task + call * in_flight) % requests.len()].clone();
                    let began = Instant::now();
                    let answer = ask(channel.clone(), request).await?;
                    latencies.push(began.elapsed());
                    ensure!(answer.overall_code() == Code::Ok, "denied");
                }
                Ok(latencies)
            });
        }
        let mut latencies: Vec<Duration> = Vec::new();
        while let Some(task) = tasks.join_next().await {
            latencies.extend(task??);
        }
        let processor = (self.processor()? - before) / latencies.len() as f64;
        latencies.sort_unstable();
        let quantile = |part: f64| latencies[((latencies.len() - 1) as f64 * part) as usize].as_secs_f64() * 1e6;
        Ok(vec![("processor", processor), ("half", quantile(0.5)), ("p99", quantile(0.99))])
    }
}

async fn ask(channel: Channel, request: RateLimitRequest) -> Result<RateLimitResponse> {
    const PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
    let mut grpc = tonic::client::Grpc::new(channel);
    grpc.ready().await?;
    let codec = ProstCodec::<RateLimitRequest, RateLimitResponse>::default();
    Ok(grpc.unary(Request::new(request), PathAndQuery::from_static(PATH), codec).await?.into_inner())
}

/// Counts the memory after requests of many distinct keys, of which the store may hold a tenth.
fn memory(effort: &Effort) -> Result<Figures> {
    let held = || -> Result<f64> {
        let status = fs::read_to_string("/proc/self/status")?;
        let kib = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB"));
        Ok(kib.context("no VmRSS")?.parse::<f64>()? / 1024.0)
    };
    let before = held()?;
    let store = Store::over(Arc::new(MemoryStore::with_max_keys(effort.keys)));
    let text = configuration(1).replace("10ms", "1h");
    let rules = Rules::parse("bench", text.as_bytes(), store.shared(), None)?;
    let service = Service::new(rules, store, Headers::Ratelimit);
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let scenario =
        Scenario { name: String::new(), about: String::new(), in_flight: 1, rules: 1, descriptors: 1, away: false };
    runtime.block_on(async {
        for i in 0..effort.keys * KEYS as usize {
            let answer = service.decide(&scenario.request(i)).await;
            ensure!(answer.is_ok_and(|answer| answer.overall_code() == Code::Ok), "key {i} is denied");
        }
        Ok(())
    })?;
    let mut figures = Figures::new();
    put(&mut figures, OURS, "MiB", held()? - before);
    Ok(figures)
}
