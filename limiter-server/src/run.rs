//! Starts and stops the server.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tonic_health::ServingStatus;
use tonic_health::server::{HealthReporter, health_reporter};

use crate::config::Config;
use crate::grpc::Grpc;
use crate::listener::{Listener, Protocol};
use crate::options::Serve;
use crate::proto::RateLimitServiceServer;
use crate::service::Service;
use crate::store::Store;
use crate::{admin, grpc, guard, http, metrics, page, reload, tls};

/// How long requests in progress may take after the server is told to stop.
const GRACE: Duration = Duration::from_secs(8);

/// A running server.
#[derive(Debug)]
pub struct Server {
    /// The address of the gRPC listener.
    pub grpc: SocketAddr,
    /// The address of the HTTP listener.
    pub http: SocketAddr,
    /// The address of the admin listener.
    pub admin: SocketAddr,
    service: Arc<Service>,
    health: HealthReporter,
    stop: watch::Sender<bool>,
    listeners: JoinSet<()>,
    /// Ends with the server.
    _background: JoinSet<()>,
}

impl Server {
    /// Opens the listeners and serves. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// If the configuration, an address or a file is wrong. The store may be away.
    pub async fn start(options: &Serve) -> anyhow::Result<Self> {
        metrics::install();
        let config = Config::read(&options.config)?;
        let store = Store::open(&options.store, options.max_keys, options.outage)?;
        let service = Arc::new(Service::new(&config, store, options.headers));
        let about = page::About::new(options.store.name(), options.outage);
        let token = options.admin_token_file.as_deref().map(read_token).transpose()?;

        let open = |address, protocol: Protocol, with_tls| async move {
            let tls = if with_tls { tls::acceptor(options, protocol.alpn())? } else { None };
            let listener = Listener::open(address, protocol, tls).await?;
            anyhow::Ok((listener.address()?, listener))
        };
        let (grpc, for_grpc) = open(options.grpc, Protocol::Http2, true).await?;
        let (http, for_http) = open(options.http, Protocol::Http1, true).await?;
        let (admin, for_admin) = open(options.admin, Protocol::Http1, false).await?;

        let (health, health_service) = health_reporter();
        health.set_serving::<RateLimitServiceServer<Grpc>>().await;
        let ((stop, stopped), mut listeners) = (watch::channel(false), JoinSet::new());
        listeners.spawn(for_grpc.serve(grpc::routes(Arc::clone(&service), health_service)?, stopped.clone()));
        listeners.spawn(for_http.serve(http::routes(Arc::clone(&service)), stopped.clone()));
        let routes = admin::routes(Arc::clone(&service)).merge(page::routes(Arc::clone(&service), about));
        let routes = guard::guarded(routes, token.as_deref(), admin.ip().is_loopback());
        listeners.spawn(for_admin.serve(routes, stopped));
        let (mut background, reloaded) = (JoinSet::new(), Arc::clone(&service));
        let apply = move |config| reloaded.reload(config);
        background.spawn(reload::watch(options.config.clone(), &config, apply)?);
        background.spawn(metrics::upkeep());
        Ok(Self { grpc, http, admin, service, health, stop, listeners, _background: background })
    }

    /// Returns the service.
    #[must_use]
    pub fn service(&self) -> &Arc<Service> {
        &self.service
    }

    /// Stops. Health turns to `NOT_SERVING`, and requests in progress may end within eight seconds.
    pub async fn stop(mut self) {
        let names = ["", <RateLimitServiceServer<Grpc> as tonic::server::NamedService>::NAME];
        for name in names {
            self.health.set_service_status(name, ServingStatus::NotServing).await;
        }
        for name in names {
            // Ends the streams of those who watch.
            self.health.clear_service_status(name).await;
        }
        let _ = self.stop.send(true);
        let ended = async { while self.listeners.join_next().await.is_some() {} };
        if tokio::time::timeout(GRACE, ended).await.is_err() {
            tracing::warn!("requests in progress did not end in time");
        }
        self.service.store().flush().await;
    }
}

/// Reads the token of the admin listener.
fn read_token(file: &Path) -> anyhow::Result<String> {
    let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
    ensure!(!text.trim().is_empty(), "{}: expected a token, found nothing", file.display());
    Ok(text.trim().to_owned())
}

/// Runs the server until SIGTERM or SIGINT.
///
/// # Errors
/// The errors of [`Server::start`].
pub async fn run(options: &Serve) -> anyhow::Result<()> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let server = Server::start(options).await?;
    for (name, address) in [("grpc", server.grpc), ("http", server.http), ("admin", server.admin)] {
        eprintln!("limiter-server: {name} {address}");
    }
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    server.stop().await;
    Ok(())
}
