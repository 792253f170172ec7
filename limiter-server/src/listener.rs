//! Accepts connections and serves them, until it is told to stop.

mod connection;

use std::convert::Infallible;
use std::future::ready;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use axum_server::tls_rustls::{RustlsAcceptor, RustlsConfig};
use axum_server::{Handle, Server};
use futures_util::future::{BoxFuture, FutureExt};
use http::{Request, Response};
use http_body::Body;
use hyper::body::{Bytes, Incoming};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tower::{BoxError, Service, service_fn};

pub(crate) use self::connection::Budgeted;
use self::connection::{Bounds, Seated, Seats};

/// How long a client may take to send the head of a request. Over HTTP/1, a connection without requests is closed after this time.
const HEAD: Duration = Duration::from_secs(60);
/// The bytes of unfinished bodies that a listener holds.
const BODIES: usize = 32 << 20;

/// What a listener speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// HTTP/1.
    Http,
    /// gRPC over HTTP/2.
    Grpc,
}

impl Protocol {
    /// Returns its name in TLS.
    pub(crate) const fn alpn(self) -> &'static str {
        match self {
            Self::Http => "http/1.1",
            Self::Grpc => "h2",
        }
    }
}

/// Opens a listener at a host and a port. Returns its address.
pub(crate) async fn open(address: &str) -> anyhow::Result<(TcpListener, SocketAddr)> {
    let socket = TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address}"))?;
    let address = socket.local_addr()?;
    Ok((socket, address))
}

/// Serves `routes` until the handle stops it.
pub(crate) fn serve<S, B>(
    socket: TcpListener,
    protocol: Protocol,
    tls: Option<RustlsConfig>,
    routes: S,
    handle: Handle<SocketAddr>,
    max_connections: usize,
) -> BoxFuture<'static, std::io::Result<()>>
where
    S: Service<Request<Budgeted>, Response = Response<B>, Error = Infallible, Future: Send> + Clone + Send + 'static,
    B: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    let server = Server::<SocketAddr>::from_listener(socket).handle(handle).first_request_timeout(HEAD);
    let mut server = match protocol {
        Protocol::Http => server.http1_only(),
        Protocol::Grpc => server.http2_only(),
    };
    let http = server.http_builder();
    http.http1().header_read_timeout(HEAD).max_buf_size(16 << 10).half_close(true);
    http.http2().max_concurrent_streams(1_000);
    http.http2().keep_alive_interval(Duration::from_secs(30)).keep_alive_timeout(Duration::from_secs(20));
    let (seats, budget) = (Seats::new(max_connections), Arc::new(Semaphore::new(BODIES)));
    let connections = service_fn(move |_| {
        let (mut routes, budget) = (routes.clone(), Arc::clone(&budget));
        let service = service_fn(move |request: Request<Incoming>| {
            let budget = Arc::clone(&budget);
            routes.call(request.map(|body| Budgeted { body, budget, taken: None }))
        });
        ready(Ok::<_, Infallible>(Seated { seat: seats.take().map(Arc::new), service }))
    });
    match tls {
        None => server.acceptor(Bounds).serve(connections).boxed(),
        Some(tls) => server.acceptor(RustlsAcceptor::new(tls).acceptor(Bounds)).serve(connections).boxed(),
    }
}
