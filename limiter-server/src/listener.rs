//! Accepts connections and serves them, until it is told to stop.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use axum::Router;
use axum::response::Response;
use axum_server::accept::NoDelayAcceptor;
use axum_server::tls_rustls::{RustlsAcceptor, RustlsConfig};
use axum_server::{Handle, Server};
use futures_util::future::{BoxFuture, FutureExt};
use http::Request;
use hyper::body::Incoming;
use tokio::net::TcpListener;
use tokio::sync::{AcquireError, Semaphore};
use tokio::time::timeout;
use tonic::Status;
use tower::{Service, service_fn};

/// The largest number of connections of a listener. Further clients wait in the system's queue.
const MAX_CONNECTIONS: usize = 10_000;
/// How long a client may take to send the head of a request. A connection without requests is closed after this time, too.
const HEAD: Duration = Duration::from_secs(60);
/// How long a call over gRPC may take until its answer begins. The bodies of HTTP have [their own](crate::http) limit.
const CALL: Duration = Duration::from_secs(10);

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

/// Opens a listener. Returns its address, and what serves `routes` there until the handle stops it.
pub(crate) async fn open(
    address: SocketAddr,
    protocol: Protocol,
    tls: Option<RustlsConfig>,
    routes: Router,
    handle: Handle<SocketAddr>,
) -> anyhow::Result<(SocketAddr, BoxFuture<'static, std::io::Result<()>>)> {
    let socket = TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address}"))?;
    let address = socket.local_addr()?;
    let server = Server::<SocketAddr>::from_listener(socket).handle(handle).first_request_timeout(HEAD);
    let mut server = match protocol {
        Protocol::Http => server.http1_only(),
        Protocol::Grpc => server.http2_only(),
    };
    let http = server.http_builder();
    http.http1().header_read_timeout(HEAD).max_buf_size(64 << 10).half_close(true);
    http.http2().max_concurrent_streams(1_000);
    http.http2().keep_alive_interval(Duration::from_secs(30)).keep_alive_timeout(Duration::from_secs(20));
    let seats = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let connections = service_fn(move |_| {
        let (routes, seats) = (routes.clone(), Arc::clone(&seats));
        async move {
            let seat = Arc::new(seats.acquire_owned().await?);
            let answer = move |request| {
                let _taken = &seat;
                answer(routes.clone(), protocol, request)
            };
            Ok::<_, AcquireError>(service_fn(answer))
        }
    });
    let serving = match tls {
        None => server.acceptor(NoDelayAcceptor).serve(connections).boxed(),
        Some(tls) => server.acceptor(RustlsAcceptor::new(tls).acceptor(NoDelayAcceptor)).serve(connections).boxed(),
    };
    Ok((address, serving))
}

async fn answer(mut routes: Router, protocol: Protocol, request: Request<Incoming>) -> Result<Response, Infallible> {
    let answer = routes.call(request);
    match protocol {
        Protocol::Http => answer.await,
        Protocol::Grpc => timeout(CALL, answer).await.unwrap_or_else(|_| {
            Ok(Status::deadline_exceeded(format!("expected the message and its answer within {CALL:?}")).into_http())
        }),
    }
}
