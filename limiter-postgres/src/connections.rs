//! Connections that belong to tasks.
//!
//! A request runs to its end, even if its caller leaves: connecting, preparing, the request, and cleaning up afterwards. A request that
//! takes too long is cancelled, and keeps its connection until the server has responded. So there are never more backends than
//! permits, and a slow server is not asked to serve still more.

use std::fmt;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use limiter_core::{Error, ErrorKind};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_postgres::{Client, Statement};

use crate::connect::Connector;
use crate::failure::{Failed, configuration, timed_out};
use crate::requests::prepare;

/// How long to wait before opening another connection to a full server.
const FULL: Duration = Duration::from_secs(10);
/// How often a request is cancelled, after 1, 2, 4 s and so on, before its connection is closed without a response.
const CANCELS: u32 = 5;
/// How long a cancellation may be under way after its request has ended.
const LATE: Duration = Duration::from_millis(100);

/// A connection to the server, with its prepared statements.
pub(crate) struct Backend {
    pub(crate) client: Client,
    pub(crate) statements: Vec<Statement>,
    _task: JoinSet<()>,
}

/// A request to the server. It runs again if the table was missing or has changed, if it was cancelled before its time, or if
/// it only reads and its connection was lost.
pub(crate) trait Request: Send + Sync + 'static {
    type Reply: Send + 'static;
    /// Whether it may run again after a connection was lost.
    const ONLY_READS: bool = false;

    fn send(
        &self,
        backend: &Backend,
    ) -> impl Future<Output = Result<Self::Reply, tokio_postgres::Error>> + Send;
}

/// The connections of a table.
pub(crate) struct Connections {
    connector: Connector,
    /// The most connections.
    pub(crate) most: usize,
    /// One for each connection.
    permits: Arc<Semaphore>,
    /// How many of these are set aside, because the server has no room for more connections.
    paused: AtomicUsize,
    idle: Mutex<Vec<Backend>>,
    /// Why the last attempt to connect failed, for calls that did not wait for its end. Empty if it succeeded.
    failure: Mutex<String>,
    /// The timeout in milliseconds that new connections set on the server.
    pub(crate) server_timeout: AtomicU64,
    /// Whether connections prepare their statements.
    prepares: AtomicBool,
    /// Whether connections create the table if it is missing.
    pub(crate) creates: AtomicBool,
    /// Whether a log was saved since the last sweep.
    pub(crate) has_changed: AtomicBool,
}

impl Connections {
    pub(crate) fn new(connector: Connector, most: usize, creates: bool) -> Self {
        Self {
            connector,
            most,
            permits: Arc::new(Semaphore::new(most)),
            paused: AtomicUsize::new(0),
            idle: Mutex::default(),
            failure: Mutex::default(),
            server_timeout: AtomicU64::new(0),
            prepares: true.into(),
            creates: creates.into(),
            has_changed: AtomicBool::new(false),
        }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Backend>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a request. Dropping the future does not stop it.
    pub(crate) async fn request<R: Request>(
        self: &Arc<Self>,
        request: R,
        limit: Duration,
    ) -> Result<R::Reply, Error> {
        let runtime = Handle::try_current();
        let runtime = runtime.map_err(|error| configuration(format!("Postgres: {error}")))?;
        let deadline = Instant::now() + limit;
        let running = runtime.spawn(Arc::clone(self).serve(request, limit, deadline));
        match timeout_at(deadline, running).await {
            Ok(Ok(reply)) => reply,
            Ok(Err(error)) if error.is_panic() => {
                let text = "Postgres: a request panicked, and may or may not have taken effect";
                Err(Error::new(ErrorKind::Inconsistent, text))
            }
            Ok(Err(_)) => Err(timed_out("the runtime has ended")),
            Err(_) => Err(self.late(limit)),
        }
    }

    fn late(&self, limit: Duration) -> Error {
        let all = match self.permits.available_permits() {
            0 => format!(", and all {} connections are in use", self.most),
            _ => String::new(),
        };
        let why = match &*self.failure.lock().unwrap_or_else(PoisonError::into_inner) {
            none if none.is_empty() => String::new(),
            why => format!(" (connecting failed before: {why})"),
        };
        timed_out(&format!("no response within {limit:?}{all}{why}"))
    }

    async fn serve<R: Request>(
        self: Arc<Self>,
        request: R,
        limit: Duration,
        deadline: Instant,
    ) -> Result<R::Reply, Error> {
        let mut is_repeated = false;
        loop {
            // A connection that does not stay is closed before its permit is free.
            let (_permit, backend) = self.backend(limit, deadline).await?;
            // The caller may be gone, but the next request needs the connection.
            if Instant::now() >= deadline {
                self.idle().push(backend);
                return Err(timed_out("the server did not accept a connection in time"));
            }
            let reply = request.send(&backend);
            let reply = self.bounded(&backend.client, reply, deadline).await;
            let _ = reply.as_ref().inspect_err(|failed| self.note(failed));
            let is_spoiled = reply.as_ref().is_err_and(Failed::spoils);
            // A new connection creates the table, and prepares statements for its present columns.
            let is_missing = reply.as_ref().is_err_and(Failed::is_missing_table);
            let is_stale = is_missing && self.creates.load(Ordering::Relaxed)
                || reply.as_ref().is_err_and(Failed::is_stale);
            let has_ended = reply.as_ref().is_err_and(Failed::ends_session);
            let is_lost = has_ended || reply.is_err() && backend.client.is_closed();
            let is_read_only = reply.as_ref().is_err_and(Failed::is_read_only);
            if is_lost || is_read_only || is_stale {
                // The others are probably lost as well and do not know it yet, or are read-only, or as stale.
                self.idle().clear();
            } else if !is_spoiled {
                self.idle().push(backend);
            }
            // A cancellation that another request sent too late, or an operator.
            let is_cancelled = reply.as_ref().is_err_and(Failed::is_cancelled);
            let is_foreign = is_cancelled && Instant::now() < deadline;
            if is_repeated || !(is_stale || is_foreign || is_lost && R::ONLY_READS) {
                return reply.map_err(Error::from);
            }
            is_repeated = true;
        }
    }

    /// Waits for a connection until the deadline. A connection that is being made is completed after it.
    async fn backend(
        self: &Arc<Self>,
        limit: Duration,
        deadline: Instant,
    ) -> Result<(OwnedSemaphorePermit, Backend), Error> {
        loop {
            let permit = Arc::clone(&self.permits).acquire_owned();
            let Ok(Ok(permit)) = timeout_at(deadline, permit).await else {
                return Err(self.late(limit));
            };
            while let Some(backend) = self.take_idle() {
                if !backend.client.is_closed() {
                    return Ok((permit, backend));
                }
            }
            let opened = self.open(limit).await;
            let why = opened.as_ref().err().map(Failed::reason);
            *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = why.unwrap_or_default();
            match opened {
                Ok(backend) => return Ok((permit, backend)),
                Err(failed) if failed.loses_statements() => {}
                Err(failed) if failed.is_full() && self.others_exist() => {
                    // The server has no room for one more connection: wait for those that exist or are being made.
                    let paused = Paused(Arc::clone(self), permit);
                    tokio::spawn(async move {
                        sleep(FULL).await;
                        drop(paused);
                    });
                }
                Err(failed) => return Err(failed.into()),
            }
        }
    }

    fn take_idle(&self) -> Option<Backend> {
        self.idle().pop()
    }

    /// Counts the caller's permit as set aside if there are others that are not.
    fn others_exist(&self) -> bool {
        let others = (self.most - 1).saturating_sub(self.permits.available_permits());
        let paused = self.paused.fetch_add(1, Ordering::SeqCst);
        let exist = paused < others || !self.idle().is_empty();
        if !exist {
            self.paused.fetch_sub(1, Ordering::SeqCst);
        }
        exist
    }

    async fn open(&self, limit: Duration) -> Result<Backend, Failed> {
        let server_timeout = Duration::from_millis(self.server_timeout.load(Ordering::Relaxed));
        let (client, task) = self.connector.connect(server_timeout).await?;
        let [creates, prepares] =
            [&self.creates, &self.prepares].map(|it| it.load(Ordering::Relaxed));
        let prepared = prepare(&client, creates, prepares);
        let prepared = self.bounded(&client, prepared, Instant::now() + limit);
        let statements = prepared.await.inspect_err(|failed| self.note(failed))?;
        Ok(Backend {
            client,
            statements,
            _task: task,
        })
    }

    /// From now on, connections prepare no statements if they would get lost.
    fn note(&self, failed: &Failed) {
        if failed.loses_statements() {
            self.prepares.store(false, Ordering::Relaxed);
        }
    }

    /// Waits for a response, and cancels the request at the deadline.
    async fn bounded<T>(
        &self,
        client: &Client,
        reply: impl Future<Output = Result<T, tokio_postgres::Error>>,
        deadline: Instant,
    ) -> Result<T, Failed> {
        let mut reply = pin!(reply);
        if let Ok(reply) = timeout_at(deadline, &mut reply).await {
            return reply.map_err(Failed::Postgres);
        }
        let token = client.cancel_token();
        for attempt in 0..CANCELS {
            let pause = Duration::from_secs(1 << attempt);
            // A server that cannot be reached has no use for the connection. One that is late may respond yet.
            if let Ok(Err(_)) = timeout(pause, self.connector.cancel(&token)).await {
                break;
            }
            if let Ok(reply) = timeout(pause, &mut reply).await {
                // A cancellation that arrives late must find the connection idle.
                sleep(LATE).await;
                return reply.map_err(Failed::Postgres);
            }
        }
        Err(Failed::Silent(
            "the server did not respond to a cancellation",
        ))
    }
}

/// A permit that is set aside, until it is dropped: also when the runtime ends.
struct Paused(
    Arc<Connections>,
    #[expect(dead_code, reason = "dropped last")] OwnedSemaphorePermit,
);

impl Drop for Paused {
    fn drop(&mut self) {
        self.0.paused.fetch_sub(1, Ordering::SeqCst);
    }
}

impl fmt::Debug for Connections {
    /// Prints no address and no password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connections").finish_non_exhaustive()
    }
}
