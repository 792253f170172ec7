//! The store behind the rules: in memory, or Redis or Postgres behind the recommended stack.

mod refusals;

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;

use anyhow::{Context, anyhow, ensure};
use clap::builder::TypedValueParser;
use clap::error::ErrorKind;
use clap::{Arg, Command, ValueEnum};
use limiter_core::{Limiter, Name, SharedStore, policy};
use limiter_memory::MemoryStore;
use limiter_postgres::{PostgresStore, PostgresUrl};
use limiter_redis::{DEFAULT_PREFIX, RedisStore, RedisStoreBuilder, RedisUrl};
use limiter_wrappers::observe::{ObservedStore, report, report_keys};
use limiter_wrappers::{Guarded, Outage};

use self::refusals::{Refusals, Refusing};

/// How to decide while the store is down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum OnOutage {
    /// Limit in memory, and carry the charges over afterwards.
    #[default]
    Fallback,
    /// Admit requests. If the store refuses decisions, for instance because of a wrong password, fail them instead.
    Open,
    /// Deny requests.
    Closed,
    /// Fail requests: UNAVAILABLE on gRPC, status 500 on /json, 503 on /v1.
    Error,
}

impl OnOutage {
    /// Returns the name of the choice, as in the option.
    #[must_use]
    pub fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// The location of the logs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    /// In this process.
    Memory,
    /// In Redis, a Redis Cluster, or behind sentinels.
    Redis(RedisUrl),
    /// In a table of Postgres.
    Postgres(PostgresUrl),
}

/// Parses the option `--store`. Clap's own parsers print the value, and so the password.
#[derive(Clone, Debug)]
pub(crate) struct LocationParser;

impl TypedValueParser for LocationParser {
    type Value = Location;

    fn parse_ref(
        &self,
        command: &Command,
        _: Option<&Arg>,
        value: &OsStr,
    ) -> Result<Location, clap::Error> {
        Location::parse(&value.to_string_lossy()).map_err(|text| {
            let text = format!("--store: {text}\n");
            clap::Error::raw(ErrorKind::ValueValidation, text).with_cmd(command)
        })
    }
}

impl Location {
    /// Parses the option `--store`.
    ///
    /// # Errors
    /// States what was expected, and shows no password.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text {
            "memory" => Ok(Self::Memory),
            _ if PostgresUrl::matches(text) => text.parse().map(Self::Postgres),
            _ => text.parse().map(Self::Redis),
        }
        .map_err(|error| format!("expected memory or the URL of Postgres or Redis: {error}"))
    }

    /// Returns the location without credentials.
    #[must_use]
    pub fn shown(&self) -> String {
        match self {
            Self::Memory => "memory".to_owned(),
            Self::Redis(url) => url.to_string(),
            Self::Postgres(url) => url.to_string(),
        }
    }

    /// Returns the name of this kind of store.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Memory => "Memory",
            Self::Postgres(_) => "Postgres",
            Self::Redis(url) => match url.to_string() {
                url if url.contains("+cluster://") => "Redis Cluster",
                url if url.contains("+sentinel://") => "Redis Sentinel",
                _ => "Redis",
            },
        }
    }
}

/// The files of certificates for TLS to the store, in PEM. Read at the start.
#[derive(Clone, Debug, Default)]
pub struct StoreTls {
    /// The authorities that must have signed the certificates of the store.
    pub ca: Option<PathBuf>,
    /// The certificate chain of this server.
    pub cert: Option<PathBuf>,
    /// Its private key.
    pub key: Option<PathBuf>,
}

impl StoreTls {
    /// Returns the store or URL with the certificates, if there are any.
    fn applied<T>(
        &self,
        store: T,
        set: impl FnOnce(T, Option<Vec<u8>>, Option<(Vec<u8>, Vec<u8>)>) -> T,
    ) -> anyhow::Result<T> {
        let read = |file: &Option<PathBuf>| {
            let file = file.as_ref();
            let read = |file: &PathBuf| fs::read(file).with_context(|| file.display().to_string());
            file.map(read).transpose()
        };
        let authorities = read(&self.ca)?;
        let client = read(&self.cert)?.zip(read(&self.key)?);
        Ok(match (&authorities, &client) {
            (None, None) => store,
            _ => set(store, authorities, client),
        })
    }
}

/// A shared store with the choice for outages.
type Stack = Guarded<Refusals<ObservedStore<SharedStore>>>;

/// The store of all rules.
pub struct Store {
    shared: SharedStore,
    stack: Option<Stack>,
    refusing: Arc<Refusing>,
    memory: Option<Arc<MemoryStore>>,
    redis: Option<Arc<RedisStore>>,
    report: Box<dyn Fn() + Send + Sync>,
}

/// How often an idle memory store removes expired logs.
const SWEEP: Duration = Duration::from_secs(60);

/// What a store is opened with.
#[derive(Debug)]
pub struct StoreBuilder<'a> {
    /// The location.
    pub location: &'a Location,
    /// The files of certificates.
    pub tls: StoreTls,
    /// The first part of keys in Redis.
    pub prefix: &'a str,
    /// The timeout of a call.
    pub timeout: Duration,
    /// The time from one probe to the next.
    pub probe: Duration,
    /// The store in memory, or the fallback.
    pub memory: Arc<MemoryStore>,
    /// How to decide while the store is down.
    pub on_outage: OnOutage,
}

impl StoreBuilder<'_> {
    /// Opens the store. It is connected to in the background, so it may be down.
    ///
    /// # Errors
    /// If the URL, the prefix or a file is malformed.
    pub fn open(self) -> anyhow::Result<Store> {
        let Self { tls, timeout, .. } = self;
        // A request ends before the call, so that the error contains its cause.
        let response_timeout = timeout - timeout / 6;
        let failed = |error| anyhow!("--store: {error}");
        let mut redis = None;
        let (store, name): (SharedStore, _) = match self.location {
            Location::Memory => return Ok(Store::in_memory(self.memory)),
            Location::Redis(url) => {
                let builder =
                    tls.applied(RedisStore::builder(), RedisStoreBuilder::certificates)?;
                let builder = builder
                    .prefix(self.prefix)
                    .response_timeout(response_timeout);
                let store = builder.connect_lazy(url.with_credentials());
                let store = Arc::new(store.map_err(failed)?);
                redis = Some(Arc::clone(&store));
                (store, "redis")
            }
            Location::Postgres(url) => {
                ensure!(
                    self.prefix == DEFAULT_PREFIX,
                    "--prefix: it is for Redis; for Postgres, choose a schema with ?options=-csearch_path%3DNAME in the URL"
                );
                let url = tls.applied(url.clone(), PostgresUrl::certificates)?;
                let table = url.open_maintained().map_err(failed)?;
                let store = PostgresStore::new(table.timeout(response_timeout));
                (Arc::new(store), "postgres")
            }
        };
        let refusing = Arc::<Refusing>::default();
        let fails_open = self.on_outage == OnOutage::Open;
        let refusals = Refusals::new(observed(store, name), fails_open, Arc::clone(&refusing));
        let stack = Guarded::builder(refusals).timeout(timeout);
        let stack = match self.on_outage {
            OnOutage::Fallback => stack.fallback(self.memory),
            OnOutage::Open => stack.fail_open(),
            OnOutage::Closed => stack.fail_closed(),
            OnOutage::Error => stack.or_error(),
        };
        let stack = stack.on_outage(log);
        let shared: SharedStore = Arc::new(stack.clone());
        tokio::spawn(probe(shared.clone(), self.probe));
        let (stack, reported) = (Some(stack.clone()), stack);
        Ok(Store {
            stack,
            refusing,
            redis,
            report: Box::new(move || report("stack", &reported)),
            ..Store::over(shared)
        })
    }
}

impl Store {
    /// Returns a store that is never down.
    #[must_use]
    pub fn over(shared: SharedStore) -> Self {
        Self {
            shared,
            stack: None,
            refusing: Arc::default(),
            memory: None,
            redis: None,
            report: Box::new(|| {}),
        }
    }

    fn in_memory(store: Arc<MemoryStore>) -> Self {
        tokio::spawn(sweep(Arc::downgrade(&store)));
        let counted = Arc::clone(&store);
        let memory = Some(Arc::clone(&store));
        let observed = Arc::new(observed(store, "memory"));
        let report = Box::new(move || report_keys("memory", counted.len()));
        Self {
            memory,
            report,
            ..Self::over(observed)
        }
    }

    /// Returns the store for limiters.
    #[must_use]
    pub fn shared(&self) -> &SharedStore {
        &self.shared
    }

    /// Returns the memory store. `None` if the counts are elsewhere.
    pub(crate) fn memory(&self) -> Option<&Arc<MemoryStore>> {
        self.memory.as_ref()
    }

    /// Returns `true` if the store or one of its nodes is down or refuses decisions, so that the outage choice decides.
    #[must_use]
    pub fn is_away(&self) -> bool {
        self.refusing.is_any() || self.stack.as_ref().is_some_and(Guarded::in_outage)
    }

    /// Returns the names of the nodes that are down. None has a name unless the store is a Redis Cluster.
    #[must_use]
    pub fn nodes_away(&self) -> Vec<Arc<str>> {
        let nodes = self.stack.iter().flat_map(Guarded::nodes);
        nodes
            .filter(|(_, is_away)| *is_away)
            .filter_map(|(node, _)| node)
            .collect()
    }

    /// Returns the servers of Redis that delete logs when their memory runs short, each with its policy.
    #[must_use]
    pub fn evicting(&self) -> Vec<(String, Arc<str>)> {
        let redis = self.redis.as_ref();
        redis.map_or_else(Vec::new, |redis| redis.evicting())
    }

    /// Carries over charges made while the store was down, within `timeout`.
    pub(crate) async fn flush(&self, timeout: Duration) {
        if let Some(stack) = &self.stack {
            let left = stack.flush(timeout).await;
            if left > 0 {
                tracing::warn!(left, "charges made during an outage are lost");
            }
        }
    }

    /// Returns the units that this process holds in blocks, by the name of the limiter.
    pub(crate) fn held_in_blocks(&self) -> HashMap<Name, u64> {
        let held = self.stack.as_ref().map(Guarded::held_in_blocks);
        held.unwrap_or_default()
    }

    /// Sets the metrics of the store.
    pub fn report(&self) {
        (self.report)();
    }
}

/// Returns a store with metrics. The rules have their own.
fn observed<S>(store: S, name: &'static str) -> ObservedStore<S> {
    ObservedStore::new(store, name).without_limiters()
}

/// Removes expired logs every minute, as long as the store is there.
async fn sweep(store: Weak<MemoryStore>) {
    while let Some(store) = store.upgrade() {
        store.sweep();
        drop(store);
        tokio::time::sleep(SWEEP).await;
    }
}

/// Asks the store from time to time, to detect outages and recovery without traffic.
async fn probe(store: SharedStore, pause: Duration) {
    let probe = Limiter::new("limiter-server/probe", policy!("1/1s"), store);
    loop {
        // The stack notes the outcome.
        let _ = probe.status("probe").await;
        tokio::time::sleep(pause).await;
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
        f.debug_struct("Store")
            .field("shared", &self.shared)
            .field("is_away", &self.is_away())
            .finish_non_exhaustive()
    }
}
