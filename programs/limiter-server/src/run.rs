//! Starts and stops the server.

use std::collections::HashSet;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{Context, ensure};
use axum::middleware::map_response;
use limiter_memory::MemoryStore;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tonic_health::ServingStatus;
use tonic_health::pb::health_server::{Health as GrpcHealth, HealthServer};
use tonic_health::server::{HealthReporter, health_reporter};
use tracing::info;

use crate::grpc::Grpc;
use crate::guard::Guard;
use crate::health::Health;
use crate::listener::{Bounds, Listener, Socket};
use crate::options::{LogFormat, Serve};
use crate::proto::RateLimitServer;
use crate::reload::{Received, patiently};
use crate::rules::RuleSet;
use crate::service::Service;
use crate::state::{State, in_time};
use crate::store::{Location, Store, StoreBuilder, StoreTls};
use crate::tls::Tls;
use crate::xds::client::Client;
use crate::{admin, grpc, guard, http, metrics, page, reload};

/// How long the start waits for the file of `--state`, and the shutdown for its save.
const LOAD: Duration = Duration::from_secs(60);
const SAVE: Duration = Duration::from_secs(10);
/// How long a start that is forced waits for rules.
const FIRST_RULES: Duration = Duration::from_secs(2);
/// How long the shutdown waits for logs that are not carried over yet.
const FLUSH: Duration = Duration::from_secs(1);

/// The service names of the health check. `ratelimit` is the name of Envoy's own service.
const HEALTH: [&str; 3] = [
    "",
    <RateLimitServer<Grpc> as tonic::server::NamedService>::NAME,
    "ratelimit",
];

/// A running server.
#[derive(Debug)]
pub struct Server {
    /// The address of the gRPC listener.
    pub grpc: String,
    /// The address of the HTTP listener.
    pub http: String,
    /// The address of the admin listener.
    pub admin: String,
    service: Arc<Service>,
    health: HealthReporter,
    state: Option<Arc<State>>,
    listeners: JoinSet<()>,
    background: JoinSet<()>,
}

impl Server {
    /// Opens the listeners and serves. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// If the configuration, an address or a file is wrong. The store may be down.
    pub async fn start(options: &Serve) -> anyhow::Result<Self> {
        // Otherwise hyper panics in each response.
        ensure!(
            SystemTime::now() >= SystemTime::UNIX_EPOCH,
            "the system's clock is before 1970: set it first"
        );
        metrics::install();
        let (store, state) = open_store(options).await?;
        let service = open_service(options, store).await?;
        let tls = Tls::read(options)?;
        let mut background = JoinSet::new();
        follow_rules(options, &service, &mut background).await?;
        let (health, health_service) = health_reporter();
        for name in HEALTH {
            // The state follows.
            health
                .set_service_status(name, ServingStatus::Serving)
                .await;
        }
        let (grpc_socket, grpc) = Socket::open("--grpc", &options.grpc).await?;
        let (http_socket, http) = Socket::open("--http", &options.http).await?;
        let (admin_socket, admin) = Socket::open("--admin", &options.admin).await?;
        let guard = open_guard(options, &admin_socket, &admin)?;

        let mut listening = Listening {
            options,
            service: &service,
            tls: &tls,
            listeners: JoinSet::new(),
        };
        listening.grpc(grpc_socket, health_service)?;
        listening.http(http_socket);
        listening.admin(admin_socket, guard.clone());
        listening.metrics().await?;
        let listeners = listening.listeners;
        watch_secrets(options, tls, guard, &mut background)?;
        if let Some(state) = state.clone() {
            background.spawn(state.keep_saving(options.state_interval));
        }
        background.spawn(metrics::upkeep());
        let checks = Health::new(Arc::clone(&service), &options.unhealthy_when);
        let reporter = health.clone();
        background.spawn(async move { checks.follow(reporter, &HEALTH).await });
        Ok(Self {
            grpc,
            http,
            admin,
            service,
            health,
            state,
            listeners,
            background,
        })
    }

    /// Returns the service.
    #[must_use]
    pub fn service(&self) -> &Arc<Service> {
        &self.service
    }

    /// Stops. Health turns to `NOT_SERVING`, and requests in progress have eight seconds to finish.
    pub async fn stop(mut self) {
        self.background.shutdown().await;
        for name in HEALTH {
            self.health
                .set_service_status(name, ServingStatus::NotServing)
                .await;
        }
        for name in HEALTH {
            // Ends the watchers' streams.
            self.health.clear_service_status(name).await;
        }
        self.service.stopped().cancel();
        while self.listeners.join_next().await.is_some() {}
        self.service.store().flush(FLUSH).await;
        if let Some(state) = self.state {
            // After the last request.
            if let Err(error) = in_time(SAVE, move || state.save()).await {
                tracing::error!("--state: {error}; the file has the last save");
            }
        }
    }
}

/// Starts the listeners.
struct Listening<'a> {
    options: &'a Serve,
    service: &'a Arc<Service>,
    tls: &'a Option<Tls>,
    listeners: JoinSet<()>,
}

impl Listening<'_> {
    fn grpc(
        &mut self,
        socket: Socket,
        health: HealthServer<impl GrpcHealth>,
    ) -> anyhow::Result<()> {
        let routes = grpc::routes(Arc::clone(self.service), health)?;
        let listener = Listener::new(routes, self.tls.clone(), grpc::refuse).http2_only();
        let listener = listener.max_age(self.options);
        let serve = listener.serve(socket, self.bounds("grpc"), self.stop());
        self.listeners.spawn(serve);
        Ok(())
    }

    fn http(&mut self, socket: Socket) {
        let routes = http::routes(Arc::clone(self.service), &self.options.unhealthy_when);
        let tls = self.tls.clone().filter(|_| !self.options.http_plain);
        let listener = Listener::new(routes, tls, http::refuse);
        let listener = listener.max_age(self.options);
        let serve = listener.serve(socket, self.bounds("http"), self.stop());
        self.listeners.spawn(serve);
    }

    fn admin(&mut self, socket: Socket, guard: Guard) {
        let about = page::About::new(self.options.store.name(), self.options.on_outage);
        let routes = admin::routes(Arc::clone(self.service), about);
        let routes = guard::guarded(routes, guard);
        let routes = routes.layer(map_response(page::with_headers));
        let tls = self.tls.clone().filter(|_| !self.options.admin_plain);
        let listener = Listener::new(routes, tls, http::refuse);
        let serve = listener.serve(socket, self.bounds("admin"), self.stop());
        self.listeners.spawn(serve);
    }

    async fn metrics(&mut self) -> anyhow::Result<()> {
        if let Some(address) = &self.options.metrics {
            let (socket, address) = Socket::open("PROMETHEUS_ADDR", address).await?;
            info!("metrics {address}");
            let routes = admin::routes_of_metrics(Arc::clone(self.service));
            let listener = Listener::new(routes, None, http::refuse);
            let serve = listener.serve(socket, self.bounds("metrics"), self.stop());
            self.listeners.spawn(serve);
        }
        Ok(())
    }

    fn bounds(&self, name: &'static str) -> Arc<Bounds> {
        let per_address = self.options.max_connections_per_address;
        Bounds::new(name, self.options.max_connections, per_address)
    }

    fn stop(&self) -> CancellationToken {
        self.service.stopped().clone()
    }
}

/// Opens the store, with the counts of `--state`.
async fn open_store(options: &Serve) -> anyhow::Result<(Store, Option<Arc<State>>)> {
    let memory = MemoryStore::with_max_keys(options.max_keys);
    let (memory, state) = match options.state.clone() {
        Some(file) => {
            ensure!(
                options.store == Location::Memory,
                "--state: it needs --store memory"
            );
            let state = load(file, memory).await.context("--state")?;
            (Arc::clone(state.store()), Some(state))
        }
        None => (Arc::new(memory), None),
    };
    let store = StoreBuilder {
        location: &options.store,
        tls: StoreTls {
            ca: options.store_tls_ca.clone(),
            cert: options.store_tls_cert.clone(),
            key: options.store_tls_key.clone(),
        },
        prefix: &options.prefix,
        timeout: options.store_timeout,
        probe: options.store_probe,
        memory,
        on_outage: options.on_outage,
    };
    Ok((store.open()?, state))
}

/// Reads the rules of files, and returns their service.
async fn open_service(options: &Serve, store: Store) -> anyhow::Result<Arc<Service>> {
    let rules = match (&options.xds, options.config.clone()) {
        (None, Some(config)) => {
            let shared = store.shared().clone();
            patiently(move || RuleSet::read(&config, &shared, None)).await??
        }
        _ => RuleSet::default(),
    };
    let service = Service::new(rules, store, options.headers).with_unmatched(options.unmatched);
    let service = service.with_caller_timeout(options.caller_timeout);
    for warning in service.warnings() {
        tracing::warn!("{warning}");
    }
    Ok(Arc::new(service))
}

/// Returns the guard of the admin listener, which is at `address`.
fn open_guard(options: &Serve, socket: &Socket, address: &str) -> anyhow::Result<Guard> {
    let token = options.admin_token_file.as_deref().map(read_token);
    let token = token.transpose()?;
    let is_local = socket.is_local();
    ensure!(
        is_local || options.tls_cert.is_some() || options.admin_plain,
        "--admin {address}: except on loopback, it needs --tls-cert, or --admin-plain if nobody can read its token on the network"
    );
    Ok(Guard::new(token.as_deref(), is_local, &options.admin_host))
}

/// Follows changes of the rules. Waits for the first rules of a control plane, only briefly if the options choose to start without.
async fn follow_rules(
    options: &Serve,
    service: &Arc<Service>,
    background: &mut JoinSet<()>,
) -> anyhow::Result<()> {
    let (config, service) = (options.config.clone(), Arc::clone(service));
    let Some(settings) = options.xds.clone() else {
        let config = config.context("--config is required")?;
        background.spawn(reload::watch(config, service)?);
        return Ok(());
    };
    let received = patiently(move || Received::new(service, config)).await??;
    let received = Arc::new(received);
    let waits = !settings.starts_without_rules;
    let first = Arc::new(Notify::new());
    let (applied, arrived) = (Arc::clone(&received), Arc::clone(&first));
    info!("rules from the control plane {}", settings.server);
    background.spawn(Client::new(settings).follow(move |resources| {
        let (received, arrived) = (Arc::clone(&applied), Arc::clone(&arrived));
        async move {
            let applied = patiently(move || received.receive(resources)).await;
            applied.map_err(|error| error.to_string())??;
            arrived.notify_one();
            Ok(())
        }
    }));
    match waits {
        true => first.notified().await,
        // So that a restart beside a control plane that is up admits no request without rules.
        false => {
            if timeout(FIRST_RULES, first.notified()).await.is_err() {
                let unmatched = options.unmatched;
                tracing::warn!(
                    "started without rules: until they arrive, no request matches one, and --unmatched ({unmatched:?}) decides"
                );
            }
        }
    }
    if options.config.is_some() {
        background.spawn(received.watch()?);
    }
    Ok(())
}

/// Follows changes of the certificates and the token.
fn watch_secrets(
    options: &Serve,
    tls: Option<Tls>,
    guard: Guard,
    background: &mut JoinSet<()>,
) -> anyhow::Result<()> {
    if let Some(tls) = tls {
        let files = tls.files();
        let read = move || tls.reload();
        background.spawn(reload::watch_secret("the TLS certificates", files, read)?);
    }
    if let Some(file) = options.admin_token_file.clone() {
        let files = vec![file.clone()];
        let read = move || read_token(&file).map(|token| guard.set_token(&token));
        background.spawn(reload::watch_secret("the admin token", files, read)?);
    }
    Ok(())
}

async fn load(file: PathBuf, memory: MemoryStore) -> anyhow::Result<Arc<State>> {
    let loaded = in_time(LOAD, move || State::load(&file, memory)).await?;
    Ok(Arc::new(loaded?))
}

/// Reads the token of the admin listener.
fn read_token(file: &Path) -> anyhow::Result<String> {
    let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
    let token = text.trim();
    let is_sendable = !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic());
    ensure!(
        is_sendable,
        "{}: expected a token of visible ASCII characters",
        file.display()
    );
    Ok(token.to_owned())
}

/// Runs the server until SIGTERM or SIGINT.
///
/// # Errors
/// The errors of [`Server::start`].
pub async fn run(options: &Serve) -> anyhow::Result<()> {
    // Without a handler, SIGHUP would end the program until the configuration is watched.
    let _hangups = signal(SignalKind::hangup())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut stopped = pin!(async {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    });
    let server = tokio::select! {
        server = Server::start(options) => server?,
        () = &mut stopped => return Ok(()),
    };
    info!("limiter-server {}", env!("CARGO_PKG_VERSION"));
    info!("store {}", options.store.shown());
    let rules = server.service.rules();
    let domains: HashSet<_> = rules.with_overrides().map(|rule| &rule.domain).collect();
    let files = options.config.as_deref().map(Path::display);
    let config = files.map_or_else(
        || "of the control plane".to_owned(),
        |files| files.to_string(),
    );
    let domains = domains.len();
    info!(
        "configuration {config}: {} rules in {domains} domains",
        rules.iter().count()
    );
    info!("outage choice {}", options.on_outage.name());
    for (name, address) in [
        ("grpc", &server.grpc),
        ("http", &server.http),
        ("admin", &server.admin),
    ] {
        match options.log_format {
            LogFormat::Text => _ = writeln!(io::stderr(), "limiter-server: {name} {address}"),
            LogFormat::Json => info!("{name} {address}"),
        }
    }
    stopped.await;
    server.stop().await;
    Ok(())
}
