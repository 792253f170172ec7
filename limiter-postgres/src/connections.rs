//! Connections that belong to tasks.
//!
//! A request runs to its end, even if its caller leaves: connecting, preparing, the request, and cleaning up afterwards. A request that
//! takes too long is cancelled, and keeps its connection until the server has responded. A connection that does not stay keeps its slot
//! until the server has closed it. So there are never more backends than slots, and a slow server is not asked to serve still more.

use std::fmt;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use limiter_core::{Error, ErrorKind};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::backend::Backend;
use crate::connect::Connector;
use crate::failure::{Failed, Fate, configuration, timed_out};
use crate::requests::Request;

/// How long to wait before opening another connection to a full server.
const FULL: Duration = Duration::from_secs(10);
/// How often a request is cancelled, after 1, 2, 4 s and so on, before its connection is closed without a response.
const CANCELS: u32 = 5;
/// How long a connection stays without a request, so that other processes may have one.
const IDLE: Duration = Duration::from_secs(30);

/// The connections of a table.
pub(crate) struct Connections {
    connector: Arc<Connector>,
    /// The most connections.
    pub(crate) most: usize,
    /// One for each request that has a connection, or makes one.
    permits: Arc<Semaphore>,
    /// How many of these are set aside, because the server has no room for more connections.
    paused: AtomicUsize,
    /// One for each connection, from its beginning to its end on the server.
    slots: Arc<Semaphore>,
    /// How many connections are being made.
    connecting: AtomicUsize,
    idle: Mutex<Idle>,
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

/// The connections without a request.
#[derive(Default)]
struct Idle {
    /// With the times at which their last requests ended, in this order.
    backends: Vec<(Instant, Backend)>,
    /// Closes those that nobody needs.
    closing: Option<JoinHandle<()>>,
}

impl Connections {
    pub(crate) fn new(connector: Connector, most: usize, creates: bool) -> Self {
        Self {
            connector: Arc::new(connector),
            most,
            permits: Arc::new(Semaphore::new(most)),
            paused: AtomicUsize::new(0),
            slots: Arc::new(Semaphore::new(most)),
            connecting: AtomicUsize::new(0),
            idle: Mutex::default(),
            failure: Mutex::default(),
            server_timeout: AtomicU64::new(0),
            prepares: true.into(),
            creates: creates.into(),
            has_changed: AtomicBool::new(false),
        }
    }

    fn idle(&self) -> MutexGuard<'_, Idle> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn keep(self: &Arc<Self>, backend: Backend) {
        let mut idle = self.idle();
        idle.backends.push((Instant::now(), backend));
        if idle.closing.as_ref().is_none_or(JoinHandle::is_finished) {
            idle.closing = Some(tokio::spawn(close_idle(Arc::downgrade(self))));
        }
    }

    fn take_idle(&self) -> Option<Backend> {
        self.idle().backends.pop().map(|(_, backend)| backend)
    }

    fn drop_all(&self) {
        let all = std::mem::take(&mut self.idle().backends);
        all.into_iter().for_each(|(_, backend)| backend.close());
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
        let connecting = self.connecting.load(Ordering::Relaxed);
        let state = match self.permits.available_permits() {
            _ if connecting > 0 => format!(", while connecting ({connecting} of {})", self.most),
            0 => format!(", and all {} connections are in use", self.most),
            _ => String::new(),
        };
        let why = match &*self.failure.lock().unwrap_or_else(PoisonError::into_inner) {
            none if none.is_empty() => String::new(),
            why => format!(" (connecting failed before: {why})"),
        };
        timed_out(&format!("no response within {limit:?}{state}{why}"))
    }

    async fn serve<R: Request>(
        self: Arc<Self>,
        request: R,
        limit: Duration,
        deadline: Instant,
    ) -> Result<R::Reply, Error> {
        let mut is_repeated = false;
        loop {
            let (_permit, backend) = self.backend(limit, deadline).await?;
            // The caller may be gone, but the next request needs the connection.
            if Instant::now() >= deadline {
                self.keep(backend);
                return Err(timed_out("the server did not accept a connection in time"));
            }
            let reply = request.send(&backend);
            let reply = self.bounded(&backend, reply, deadline).await;
            let _ = reply.as_ref().inspect_err(|failed| self.note(failed));
            let fate = reply.as_ref().map_or_else(
                |failed| {
                    let is_closed = backend.session.client.is_closed();
                    let creates = self.creates.load(Ordering::Relaxed);
                    failed.fate(is_closed, R::ONLY_READS, creates, Instant::now() < deadline)
                },
                |_| Fate::Keep,
            );
            match fate {
                Fate::Keep => self.keep(backend),
                Fate::Drop => backend.close(),
                Fate::DropAll | Fate::Again => {
                    backend.close();
                    self.drop_all();
                }
            }
            if is_repeated || !matches!(fate, Fate::Again) {
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
                if !backend.session.client.is_closed() {
                    return Ok((permit, backend));
                }
            }
            // There is one, or soon: the other requests have fewer.
            let slot = Arc::clone(&self.slots).acquire_owned();
            let Ok(Ok(slot)) = timeout_at(deadline, slot).await else {
                return Err(self.late(limit));
            };
            self.connecting.fetch_add(1, Ordering::Relaxed);
            let opened = self.open(slot, limit).await;
            self.connecting.fetch_sub(1, Ordering::Relaxed);
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

    /// Counts the caller's permit as set aside if there are others that are not.
    fn others_exist(&self) -> bool {
        let others = (self.most - 1).saturating_sub(self.permits.available_permits());
        let paused = self.paused.fetch_add(1, Ordering::SeqCst);
        let exist = paused < others || !self.idle().backends.is_empty();
        if !exist {
            self.paused.fetch_sub(1, Ordering::SeqCst);
        }
        exist
    }

    async fn open(&self, slot: OwnedSemaphorePermit, limit: Duration) -> Result<Backend, Failed> {
        let server_timeout = Duration::from_millis(self.server_timeout.load(Ordering::Relaxed));
        let session = self.connector.connect(server_timeout).await?;
        let mut backend = Backend::new(session, slot);
        let [creates, prepares] =
            [&self.creates, &self.prepares].map(|it| it.load(Ordering::Relaxed));
        let prepared = backend.prepare(creates, prepares);
        let prepared = self.bounded(&backend, prepared, Instant::now() + limit);
        match prepared.await {
            Ok(statements) => {
                backend.statements = statements;
                Ok(backend)
            }
            Err(failed) => {
                self.note(&failed);
                backend.close();
                Err(failed)
            }
        }
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
        backend: &Backend,
        reply: impl Future<Output = Result<T, tokio_postgres::Error>>,
        deadline: Instant,
    ) -> Result<T, Failed> {
        let mut reply = pin!(reply);
        if let Ok(reply) = timeout_at(deadline, &mut reply).await {
            return reply.map_err(Failed::Postgres);
        }
        for attempt in 0..CANCELS {
            let cancel = Arc::clone(&self.connector).cancel(&backend.session);
            // Runs to its end, because a PgBouncer may not survive a cancellation whose connection is closed.
            let cancel = tokio::spawn(cancel);
            let ended = async {
                // A server that cannot be reached has no use for the connection. One that is late may respond yet.
                let is_sent = cancel.await.is_ok_and(|sent| sent.is_ok());
                // Only now can no cancellation arrive that hits the next request.
                if is_sent {
                    Some((&mut reply).await)
                } else {
                    None
                }
            };
            match timeout(Duration::from_secs(1 << attempt), ended).await {
                Ok(Some(reply)) => return reply.map_err(Failed::Postgres),
                Ok(None) => break,
                Err(_) => {}
            }
        }
        Err(Failed::Silent(
            "the server did not respond to a cancellation",
        ))
    }
}

/// Closes connections that nobody has needed for a while, until there are none.
async fn close_idle(connections: Weak<Connections>) {
    loop {
        sleep(IDLE / 4).await;
        let Some(connections) = connections.upgrade() else {
            return;
        };
        let mut idle = connections.idle();
        let is_old = |(since, _): &(Instant, Backend)| since.elapsed() >= IDLE;
        let old = idle.backends.partition_point(is_old);
        let old = idle.backends.drain(..old);
        old.for_each(|(_, backend)| backend.close());
        if idle.backends.is_empty() {
            idle.closing = None;
            return;
        }
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
