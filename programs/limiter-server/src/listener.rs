//! Accepts connections and serves them, until it is told to stop.

mod bounds;

use std::convert::Infallible;
use std::fs;
use std::future::pending;
use std::hash::BuildHasher;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::FileTypeExt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use foldhash::fast::RandomState;
use http::{Request, Response, Version};
use http_body::Body;
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_io_timeout::TimeoutStream;
use tokio_util::either::Either;
use tokio_util::sync::CancellationToken;
use tower::{BoxError, Service};

use self::bounds::Connection;
pub(crate) use self::bounds::{Bounds, Watched};
use crate::changes::Client;
use crate::options::{Serve, UNIX};
use crate::tls::{self, Tls};

/// How long a client may leave sent data unread, and how long it may send nothing, which is longer than a call waits. Over HTTP/2, it
/// answers pings meanwhile.
const WRITE: Duration = Duration::from_secs(30);
const READ: Duration = Duration::from_secs(90);
/// How long a client may take for a TLS handshake, and to send the head of a request over HTTP/1.
const HEAD: Duration = Duration::from_secs(60);
/// How long accepting pauses after it failed, for want of file descriptors.
const PAUSE: Duration = Duration::from_millis(50);
/// How long requests in progress may take after the stop.
const GRACE: Duration = Duration::from_secs(8);
/// The requests in progress of a connection over HTTP/2.
const STREAMS: u32 = 100;
/// The bytes that a connection over HTTP/2 may send before they are read, and a request of it.
const WINDOWS: (u32, u32) = (256 << 10, 64 << 10);

/// A socket that listens.
pub(crate) enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Socket {
    /// Opens a socket at a host and a port, or at `unix:` and a path. Errors contain `option`. Returns its address.
    pub(crate) async fn open(option: &str, address: &str) -> anyhow::Result<(Self, String)> {
        let cannot = || format!("{option}: cannot listen on {address}");
        let Some(path) = address.strip_prefix(UNIX) else {
            let socket = TcpListener::bind(address).await.with_context(cannot)?;
            let address = socket.local_addr()?.to_string();
            return Ok((Self::Tcp(socket), address));
        };
        // A process that ends leaves its socket behind. Connecting to a regular file is refused, too.
        let is_socket = fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
        let connected = UnixStream::connect(path).await;
        if is_socket && connected.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused) {
            fs::remove_file(path).with_context(cannot)?;
        }
        let socket = UnixListener::bind(path).with_context(cannot)?;
        Ok((Self::Unix(socket), address.to_owned()))
    }

    /// Returns `true` if only this machine reaches it.
    pub(crate) fn is_local(&self) -> bool {
        match self {
            Self::Tcp(socket) => socket.local_addr().is_ok_and(|to| to.ip().is_loopback()),
            Self::Unix(_) => true,
        }
    }

    /// Returns a new connection and its client's address. Clients of a Unix socket have none.
    async fn accept(&self) -> io::Result<(Stream, Option<IpAddr>)> {
        match self {
            Self::Tcp(socket) => {
                let (stream, client) = socket.accept().await?;
                stream.set_nodelay(true)?;
                Ok((Either::Left(stream), Some(client.ip())))
            }
            Self::Unix(socket) => {
                let (stream, _) = socket.accept().await?;
                Ok((Either::Right(stream), None))
            }
        }
    }
}

type Stream = Either<TcpStream, UnixStream>;

/// Returns a duration that differs by up to a tenth, so that connections that began together do not end together.
fn spread(duration: Duration) -> Duration {
    let part = RandomState::default().hash_one(0) % 1_000;
    duration.mul_f64(0.9 + 0.2 * (part as f64 / 1_000.0))
}

/// The routes and settings of a listener.
pub(crate) struct Listener<S, B> {
    http: auto::Builder<TokioExecutor>,
    tls: Option<Tls>,
    routes: S,
    refuse: fn(bool) -> Response<B>,
    /// The age at which a connection is told to end, and how long it may take then.
    age: Option<(Duration, Duration)>,
}

impl<S, B> Listener<S, B>
where
    S: Service<Request<Watched>, Response = Response<B>, Error = Infallible, Future: Send>
        + Clone
        + Send
        + Sync
        + 'static,
    B: Body<Data = Bytes, Error: Into<BoxError>> + Send + Unpin + 'static,
{
    /// Returns a listener that serves `routes` over HTTP/1 and HTTP/2. `refuse` answers requests for which there is too little
    /// memory, with a reason in its body if its argument is `true`.
    pub(crate) fn new(routes: S, tls: Option<Tls>, refuse: fn(bool) -> Response<B>) -> Self {
        let mut http = auto::Builder::new(TokioExecutor::new());
        http.http1()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD)
            .max_buf_size(16 << 10);
        http.http2()
            .timer(TokioTimer::new())
            .max_concurrent_streams(STREAMS)
            .initial_connection_window_size(WINDOWS.0)
            .initial_stream_window_size(WINDOWS.1)
            .max_send_buf_size(16 << 10)
            .max_header_list_size(16 << 10);
        http.http2()
            .keep_alive_interval(Duration::from_secs(30))
            .keep_alive_timeout(Duration::from_secs(20));
        Self {
            http,
            tls,
            routes,
            refuse,
            age: None,
        }
    }

    /// Ends connections of the age that the options choose.
    pub(crate) fn max_age(self, options: &Serve) -> Self {
        let age = options.max_connection_age;
        let age = age.map(|age| (age, options.max_connection_age_grace));
        Self { age, ..self }
    }

    /// Refuses HTTP/1.
    pub(crate) fn http2_only(self) -> Self {
        Self {
            http: self.http.http2_only(),
            ..self
        }
    }

    /// Serves until `stop`.
    pub(crate) async fn serve(self, socket: Socket, bounds: Arc<Bounds>, stop: CancellationToken) {
        let listener = Arc::new(self);
        let mut connections = JoinSet::new();
        loop {
            let accepted = tokio::select! {
                () = stop.cancelled() => break,
                Some(_) = connections.join_next() => continue,
                accepted = socket.accept() => accepted,
            };
            let (stream, client) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    bounds.note_failure(&error);
                    sleep(PAUSE).await;
                    continue;
                }
            };
            // All clients of a Unix socket count as one.
            let address = client.unwrap_or(Ipv4Addr::UNSPECIFIED.into());
            let Some(connection) = bounds.connect(address) else {
                continue;
            };
            let listener = Arc::clone(&listener);
            let stop = stop.clone();
            connections.spawn(async move {
                let quiet = async {
                    stop.cancelled().await;
                    connection.quiet().await;
                };
                tokio::select! {
                    _ = listener.connect((stream, client), &connection, &stop) => {}
                    () = connection.ended() => {}
                    () = quiet => {}
                }
            });
        }
        // New connections are refused instead of left waiting.
        drop(socket);
        let ended = async { while connections.join_next().await.is_some() {} };
        let _ = timeout(GRACE, ended).await;
    }

    /// Serves a connection until its client or the listener ends it.
    async fn connect(
        &self,
        (stream, address): (Stream, Option<IpAddr>),
        bounds: &Arc<Connection>,
        stop: &CancellationToken,
    ) -> Result<(), BoxError> {
        let mut stream = TimeoutStream::new(stream);
        stream.set_write_timeout(Some(WRITE));
        stream.set_read_timeout(Some(READ));
        let stream = Box::pin(stream);
        let mut certificate = None;
        let stream = match &self.tls {
            None => Either::Left(stream),
            Some(tls) => {
                let accepted = timeout(HEAD, tls.accept(stream)).await?;
                let accepted = accepted.inspect_err(|error| {
                    bounds.note_refusal(tls::reason(error));
                })?;
                certificate = tls::client_name(&accepted);
                Either::Right(accepted)
            }
        };
        let address = address.map_or_else(|| "unix".to_owned(), |address| address.to_string());
        let client = Arc::new(Client {
            address,
            certificate,
        });
        let service = service_fn(|mut request: Request<Incoming>| {
            request.extensions_mut().insert(Arc::clone(&client));
            let (in_progress, fits) = bounds.begin(&request);
            let is_http1 = request.version() < Version::HTTP_2;
            let request = request.map(|body| Watched::request(body, Arc::clone(&in_progress)));
            let answer = fits.then(|| self.routes.clone().call(request));
            let refuse = self.refuse;
            async move {
                let sent = |response: Response<B>| {
                    let request = Arc::clone(&in_progress);
                    Ok::<_, Infallible>(response.map(|body| Watched::response(body, request)))
                };
                // Over HTTP/2, a client could leave the reasons of many refusals unread.
                let Some(answer) = answer else {
                    return sent(refuse(is_http1));
                };
                let response = answer.await?;
                // A stream's size is unknown, but its messages are small.
                let size = response.body().size_hint().exact().unwrap_or(0);
                match in_progress.take(usize::try_from(size).unwrap_or(usize::MAX)) {
                    true => sent(response),
                    false => sent(refuse(is_http1)),
                }
            }
        });
        let connection = self.http.serve_connection(TokioIo::new(stream), service);
        let mut connection = pin!(connection);
        let aged = async {
            match self.age {
                Some((age, _)) => sleep(spread(age)).await,
                None => pending().await,
            }
        };
        let grace = tokio::select! {
            ended = connection.as_mut() => return ended,
            () = stop.cancelled() => GRACE,
            () = aged => self.age.map_or(GRACE, |(_, grace)| grace),
        };
        connection.as_mut().graceful_shutdown();
        timeout(grace, connection).await?
    }
}
