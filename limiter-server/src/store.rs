//! The store behind the rules: in memory, or Redis behind the recommended stack.

mod refusals;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use anyhow::anyhow;
use limiter_core::{Limiter, SharedStore, WindowStore, policy};
use limiter_memory::{MemoryStore, Sweeper};
use limiter_redis::{RedisStore, is_redis_url};
use limiter_wrappers::observe::{Metrics, ObservedStore, Report};
use limiter_wrappers::{Failsafe, Fallback, Guarded, Outage, Stack};

use self::refusals::Refusals;

/// What answers requests while the store is down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum OnOutage {
    /// A store in memory limits, and its charges are carried over afterwards.
    #[default]
    Fallback,
    /// Requests are admitted.
    Open,
    /// Requests are denied.
    Closed,
    /// Requests fail: UNAVAILABLE, or status 500.
    Error,
}

/// Where the logs are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    /// In this process.
    Memory,
    /// In Redis, a Redis Cluster, or behind sentinels, by a URL.
    Redis(String),
}

impl Location {
    /// Parses the option `--store`.
    ///
    /// # Errors
    /// States what was expected.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text {
            "memory" => Ok(Self::Memory),
            _ if is_redis_url(text) => Ok(Self::Redis(text.to_owned())),
            _ => Err("expected memory, or a URL that starts with redis://, rediss://, redis+unix://, or redis+ or rediss+ and \
                      then cluster:// or sentinel://"
                .to_owned()),
        }
    }

    /// Returns the name of this kind of store.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Memory => "Memory",
            Self::Redis(url) if url.contains("+cluster://") => "Redis Cluster",
            Self::Redis(url) if url.contains("+sentinel://") => "Redis Sentinel",
            Self::Redis(_) => "Redis",
        }
    }
}

/// What [`OnOutage::Fallback`] is made of.
type Recommended = Fallback<Guarded<Refusals<ObservedStore<RedisStore, Metrics>>>, MemoryStore>;

/// The nodes that have failed since the start, and whether each is down now.
type Nodes = Vec<(Option<Arc<str>>, bool)>;

/// The store of all rules.
pub struct Store {
    shared: SharedStore,
    nodes: Box<dyn Fn() -> Nodes + Send + Sync>,
    report: Box<dyn Fn() + Send + Sync>,
    fallback: Option<Arc<Recommended>>,
    _sweeper: Option<Sweeper>,
}

/// How often an idle memory store removes expired logs.
const SWEEP: Duration = Duration::from_secs(60);
/// How often the store is asked when no request asks it, to notice that it is down or back.
const PROBE: Duration = Duration::from_secs(1);

impl Store {
    /// Opens the store. Redis is connected to in the background, so it may be down.
    ///
    /// # Errors
    /// If the URL is malformed.
    pub fn open(location: &Location, max_keys: usize, on_outage: OnOutage) -> anyhow::Result<Self> {
        let memory = MemoryStore::with_max_keys(max_keys);
        let url = match location {
            Location::Memory => return Self::in_memory(memory),
            Location::Redis(url) => url,
        };
        let redis = RedisStore::builder().connect_lazy(url).map_err(|error| anyhow!("--store: {error}"))?;
        let stack = Stack::new(Refusals::new(ObservedStore::new(redis, Metrics::named("redis"))));
        let store = match on_outage {
            OnOutage::Fallback => {
                let stack = Arc::new(stack.fallback(memory).on_outage(log));
                Self { fallback: Some(Arc::clone(&stack)), ..Self::watched(stack, Fallback::nodes) }
            }
            OnOutage::Open => Self::watched(Arc::new(stack.fail_open().on_outage(log)), Failsafe::nodes),
            OnOutage::Closed => Self::watched(Arc::new(stack.fail_closed().on_outage(log)), Failsafe::nodes),
            OnOutage::Error => Self::watched(Arc::new(stack.or_error()), |store| store.store().nodes()),
        };
        tokio::spawn(probe(store.shared.clone()));
        Ok(store)
    }

    /// Returns a store that is never down.
    #[must_use]
    pub fn over(shared: SharedStore) -> Self {
        Self { shared, nodes: Box::new(Vec::new), report: Box::new(|| {}), fallback: None, _sweeper: None }
    }

    fn in_memory(store: MemoryStore) -> anyhow::Result<Self> {
        let (store, metrics) = (Arc::new(store), Metrics::named("memory"));
        let (sweeper, counted) = (Sweeper::start(&store, SWEEP)?, Arc::clone(&store));
        let observed = Arc::new(ObservedStore::new(store, metrics.clone()));
        let report = Box::new(move || metrics.report_keys(counted.len()));
        Ok(Self { report, _sweeper: Some(sweeper), ..Self::over(observed) })
    }

    fn watched<S: WindowStore + Report>(store: Arc<S>, nodes: fn(&S) -> Nodes) -> Self {
        let metrics = Metrics::named("stack");
        let (asked, reported) = (Arc::clone(&store), Arc::clone(&store));
        let nodes = Box::new(move || nodes(&asked));
        Self { nodes, report: Box::new(move || reported.report(&metrics)), ..Self::over(store) }
    }

    /// Returns the store for limiters.
    #[must_use]
    pub fn shared(&self) -> &SharedStore {
        &self.shared
    }

    /// Returns whether the store or one of its nodes is down, so that the outage choice answers.
    #[must_use]
    pub fn is_away(&self) -> bool {
        (self.nodes)().iter().any(|(_, is_away)| *is_away)
    }

    /// Returns the names of the nodes that are down. None has a name unless the store is a Redis Cluster.
    #[must_use]
    pub fn nodes_away(&self) -> Vec<Arc<str>> {
        (self.nodes)().into_iter().filter(|(_, is_away)| *is_away).filter_map(|(node, _)| node).collect()
    }

    /// Carries over what was charged while the store was down, in at most `timeout`.
    pub(crate) async fn flush(&self, timeout: Duration) {
        if let Some(fallback) = &self.fallback {
            let left = fallback.flush(timeout).await;
            if left > 0 {
                tracing::warn!(left, "charges of an outage are lost");
            }
        }
    }

    /// Sets the metrics of the store.
    pub fn report(&self) {
        (self.report)();
    }
}

/// Asks the store every second.
async fn probe(store: SharedStore) {
    let probe = Limiter::new("limiter-server/probe", policy!("1/1s"), store);
    loop {
        // The stack notes the outcome.
        let _ = probe.status("probe").await;
        tokio::time::sleep(PROBE).await;
    }
}

fn log(outage: Outage<'_>) {
    match outage {
        Outage::Began { node, error } => tracing::warn!(node, %error, "the store is down"),
        Outage::Ended { node, calls } => tracing::info!(node, calls, "the store is back"),
        _ => {}
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("shared", &self.shared).field("is_away", &self.is_away()).finish_non_exhaustive()
    }
}
