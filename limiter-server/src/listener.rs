//! Accepts connections and serves them, until it is told to stop.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use axum::Router;
use hyper::server::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

/// The largest number of connections of a listener. Further clients wait in the system's queue.
const MAX_CONNECTIONS: usize = 10_000;
/// How long a client may take to begin: the TLS handshake, the preface of HTTP/2.
const BEGIN: Duration = Duration::from_secs(10);
/// How long a client may take to send the head of a request. A connection without requests is closed after this time, too.
const HEAD: Duration = Duration::from_secs(60);
/// What each HTTP/2 connection begins with.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The version of HTTP that a listener speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http1,
    Http2,
}

impl Protocol {
    /// Returns its name in TLS.
    pub(crate) const fn alpn(self) -> &'static str {
        match self {
            Self::Http1 => "http/1.1",
            Self::Http2 => "h2",
        }
    }
}

/// An open listener.
pub(crate) struct Listener {
    socket: TcpListener,
    protocol: Protocol,
    tls: Option<TlsAcceptor>,
}

impl Listener {
    pub(crate) async fn open(
        address: SocketAddr,
        protocol: Protocol,
        tls: Option<TlsAcceptor>,
    ) -> anyhow::Result<Self> {
        let socket = TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address}"))?;
        Ok(Self { socket, protocol, tls })
    }

    pub(crate) fn address(&self) -> anyhow::Result<SocketAddr> {
        Ok(self.socket.local_addr()?)
    }

    /// Serves connections. When `stop` changes, accepts no more, and returns when the requests in progress have ended.
    pub(crate) async fn serve(self, routes: Router, mut stop: watch::Receiver<bool>) {
        let (graceful, seats) = (GracefulShutdown::new(), Arc::new(Semaphore::new(MAX_CONNECTIONS)));
        let (protocol, tls) = (self.protocol, self.tls);
        loop {
            let accept = async { (Arc::clone(&seats).acquire_owned().await, self.socket.accept().await) };
            let (seat, accepted) = tokio::select! {
                accepted = accept => accepted,
                _ = stop.changed() => break,
            };
            let Ok((stream, _)) = accepted else {
                // No file descriptors are left, for example.
                sleep(Duration::from_millis(10)).await;
                continue;
            };
            let (routes, tls, watcher) = (routes.clone(), tls.clone(), graceful.watcher());
            tokio::spawn(async move {
                if let Err(error) = connection(stream, tls, protocol, routes, watcher).await {
                    tracing::debug!(%error, "a connection failed");
                }
                drop(seat);
            });
        }
        drop(self.socket);
        graceful.shutdown().await;
    }
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

async fn connection(
    stream: TcpStream,
    tls: Option<TlsAcceptor>,
    protocol: Protocol,
    routes: Router,
    watcher: Watcher,
) -> Result<(), Failure> {
    stream.set_nodelay(true)?;
    match tls {
        Some(tls) => serve(timeout(BEGIN, tls.accept(stream)).await??, protocol, routes, watcher).await,
        None => {
            if protocol == Protocol::Http2 {
                timeout(BEGIN, preface(&stream)).await??;
            }
            serve(stream, protocol, routes, watcher).await
        }
    }
}

/// Waits for the preface of HTTP/2, which hyper would do without end.
async fn preface(stream: &TcpStream) -> std::io::Result<()> {
    let mut seen = [0; PREFACE.len()];
    loop {
        let len = stream.peek(&mut seen).await?;
        // hyper refuses what is no preface, and an end.
        if len == 0 || len == PREFACE.len() || seen.get(..len) != PREFACE.get(..len) {
            return Ok(());
        }
        sleep(Duration::from_millis(10)).await;
    }
}

async fn serve<S>(stream: S, protocol: Protocol, routes: Router, watcher: Watcher) -> Result<(), Failure>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (stream, service) = (TokioIo::new(stream), TowerToHyperService::new(routes));
    match protocol {
        Protocol::Http1 => {
            let mut http = http1::Builder::new();
            http.timer(TokioTimer::new()).header_read_timeout(HEAD).max_buf_size(64 << 10).half_close(true);
            watcher.watch(http.serve_connection(stream, service)).await?;
        }
        Protocol::Http2 => {
            let mut http = http2::Builder::new(TokioExecutor::new());
            http.timer(TokioTimer::new()).max_concurrent_streams(1_000);
            http.keep_alive_interval(Duration::from_secs(30)).keep_alive_timeout(Duration::from_secs(20));
            watcher.watch(http.serve_connection(stream, service)).await?;
        }
    }
    Ok(())
}
