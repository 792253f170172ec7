//! Accepts connections and serves them, until it is told to stop.

mod bounds;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use http::{Request, Response};
use http_body::Body;
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_io_timeout::TimeoutWriter;
use tokio_util::either::Either;
use tokio_util::sync::CancellationToken;
use tower::{BoxError, Service};

pub(crate) use self::bounds::Budgeted;
use self::bounds::{HEAD, Seat, Seats};
use crate::tls::Tls;

/// How long a client may read nothing while something is sent to it.
const WRITE: Duration = Duration::from_secs(30);
/// How long accepting pauses after it failed, for want of file descriptors.
const PAUSE: Duration = Duration::from_millis(50);
/// How long requests in progress may take after the stop.
const GRACE: Duration = Duration::from_secs(8);
/// The bytes of unfinished bodies that a listener holds.
const BODIES: usize = 32 << 20;

/// Opens a listener at a host and a port. Returns its address.
pub(crate) async fn open(address: &str) -> anyhow::Result<(TcpListener, SocketAddr)> {
    let socket = TcpListener::bind(address)
        .await
        .with_context(|| format!("cannot listen on {address}"))?;
    let address = socket.local_addr()?;
    Ok((socket, address))
}

/// The routes and settings of a listener.
pub(crate) struct Listener<S> {
    http: auto::Builder<TokioExecutor>,
    tls: Option<Tls>,
    routes: S,
    budget: Arc<Semaphore>,
}

impl<S, B> Listener<S>
where
    S: Service<Request<Budgeted>, Response = Response<B>, Error = Infallible, Future: Send>
        + Clone
        + Send
        + Sync
        + 'static,
    B: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    /// Returns a listener that serves `routes` over HTTP/1 and HTTP/2.
    pub(crate) fn new(routes: S, tls: Option<Tls>) -> Self {
        let mut http = auto::Builder::new(TokioExecutor::new());
        http.http1()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD)
            .max_buf_size(16 << 10)
            .half_close(true);
        http.http2()
            .timer(TokioTimer::new())
            .max_concurrent_streams(1_000);
        http.http2()
            .keep_alive_interval(Duration::from_secs(30))
            .keep_alive_timeout(Duration::from_secs(20));
        Self {
            http,
            tls,
            routes,
            budget: Arc::new(Semaphore::new(BODIES)),
        }
    }

    /// Refuses HTTP/1.
    pub(crate) fn http2_only(self) -> Self {
        Self {
            http: self.http.http2_only(),
            ..self
        }
    }

    /// Serves until `stop`.
    pub(crate) async fn serve(
        self,
        socket: TcpListener,
        max_connections: usize,
        stop: CancellationToken,
    ) {
        let (listener, seats) = (Arc::new(self), Seats::new(max_connections));
        let (graceful, mut connections) = (GracefulShutdown::new(), JoinSet::new());
        loop {
            let accepted = tokio::select! {
                () = stop.cancelled() => break,
                Some(_) = connections.join_next() => continue,
                accepted = socket.accept() => accepted,
            };
            let Ok((stream, _)) = accepted else {
                tokio::time::sleep(PAUSE).await;
                continue;
            };
            let Some(seat) = seats.take().map(Arc::new) else {
                continue;
            };
            let (listener, watcher) = (Arc::clone(&listener), graceful.watcher());
            connections.spawn(async move {
                tokio::select! {
                    _ = listener.connect(stream, Arc::clone(&seat), watcher) => {}
                    () = seat.ended() => {}
                }
            });
        }
        // New connections are refused instead of left waiting.
        drop(socket);
        let _ = tokio::time::timeout(GRACE, graceful.shutdown()).await;
    }

    /// Serves a connection until its client or the listener ends it.
    async fn connect(
        &self,
        stream: TcpStream,
        seat: Arc<Seat>,
        watcher: Watcher,
    ) -> Result<(), BoxError> {
        stream.set_nodelay(true)?;
        let mut stream = TimeoutWriter::new(stream);
        stream.set_timeout(Some(WRITE));
        let stream = Box::pin(stream);
        let stream = match &self.tls {
            None => Either::Left(stream),
            Some(tls) => Either::Right(tls.accept(stream).await?),
        };
        let service = service_fn(|request: Request<Incoming>| {
            seat.note_request();
            let budget = Arc::clone(&self.budget);
            self.routes.clone().call(request.map(|body| Budgeted {
                body,
                budget,
                taken: None,
            }))
        });
        watcher
            .watch(self.http.serve_connection(TokioIo::new(stream), service))
            .await
    }
}
