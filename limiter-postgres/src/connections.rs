//! Connections that belong to tasks.
//!
//! A request runs to its end, even if its caller leaves: connecting, preparing, the request, and cleaning up afterwards. A request that
//! takes too long is cancelled, and keeps its connection until the server has responded. So there are never more backends than
//! connections in the pool, and a slow server is not asked to serve still more.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use deadpool_postgres::{Object, Pool, PoolError};
use limiter_core::{BoxFuture, Error};
use limiter_log::async_trait;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_postgres::{CancelToken, NoTls};

use crate::connect::Tls;
use crate::failure::{is_full, is_unprepared, of_pool, of_postgres, spoils, timed_out};
use crate::requests::{Prepare, STATEMENTS};

/// How long a server that has no room for one more connection is not asked for it.
const FULL: Duration = Duration::from_secs(10);
/// The longest timeout; a longer one would overflow.
const MOST_PATIENCE: Duration = Duration::from_secs(365 * 24 * 60 * 60);
/// How often a request is cancelled, after 1, 2, 4 s and so on, before its connection is closed without a response.
const CANCELS: u32 = 5;
/// How long a cancellation may be under way after its request has ended.
const LATE: Duration = Duration::from_millis(100);

/// A request to the server. It may run twice on a connection.
#[async_trait]
pub(crate) trait Request: Send + Sync + 'static {
    type Reply: Send + 'static;
    /// Whether the connection must have the statements.
    const IS_PREPARED: bool = true;

    async fn send(&self, client: &mut Object) -> Result<Self::Reply, tokio_postgres::Error>;
}

type Cancel =
    dyn Fn(CancelToken) -> BoxFuture<'static, Result<(), tokio_postgres::Error>> + Send + Sync;

/// A pool whose connections are counted until their backends are done.
pub(crate) struct Backends {
    pub(crate) pool: Pool,
    /// One for each connection that the pool may have.
    permits: Arc<Semaphore>,
    /// How many of these are set aside, because the server has no room for more connections.
    paused: AtomicUsize,
    /// The timeout in milliseconds that new connections set on the server, if they do.
    server_timeout: Arc<AtomicU64>,
    /// Whether connections create the table if it is missing.
    creates: bool,
    /// Whether a log was saved since the last sweep.
    pub(crate) has_changed: AtomicBool,
}

/// The connections of a table.
#[derive(Clone)]
pub(crate) struct Connections {
    pub(crate) backends: Arc<Backends>,
    cancel: Arc<Cancel>,
    timeout: Duration,
}

impl Connections {
    pub(crate) fn new(pool: Pool, server_timeout: Arc<AtomicU64>, creates: bool) -> Self {
        let size = pool.status().max_size;
        let backends = Backends {
            pool,
            permits: Arc::new(Semaphore::new(size)),
            paused: AtomicUsize::new(0),
            server_timeout,
            creates,
            has_changed: AtomicBool::new(false),
        };
        let connections = Self {
            backends: Arc::new(backends),
            cancel: cancel(NoTls),
            timeout: Duration::ZERO,
        };
        connections.with_timeout(Duration::from_millis(500))
    }

    pub(crate) fn with_tls<T: Tls>(mut self, tls: T) -> Self {
        self.cancel = cancel(tls);
        self
    }

    pub(crate) fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout.min(MOST_PATIENCE);
        // Cancelling comes first; this is for a client that cannot.
        let millis = timeout.as_millis().saturating_add(100);
        let millis = millis.min(i32::MAX.unsigned_abs().into()) as u64;
        self.backends
            .server_timeout
            .store(millis, Ordering::Relaxed);
        self
    }

    /// Returns what finds the connections, as long as they are in use elsewhere.
    pub(crate) fn downgrade(&self) -> impl Fn() -> Option<Self> + Send + use<> {
        let backends = Arc::downgrade(&self.backends);
        let cancel = Arc::clone(&self.cancel);
        let timeout = self.timeout;
        move || {
            Some(Self {
                backends: backends.upgrade()?,
                cancel: Arc::clone(&cancel),
                timeout,
            })
        }
    }

    /// Makes a request. Dropping the future does not stop it.
    pub(crate) async fn request<R: Request>(&self, request: R) -> Result<R::Reply, Error> {
        let deadline = Instant::now() + self.timeout;
        let running = Box::pin(self.clone().serve(request, deadline));
        let reply = timeout_at(deadline, InBackground(Some(running))).await;
        reply.unwrap_or_else(|_| Err(timed_out(&format!("no response within {:?}", self.timeout))))
    }

    async fn serve<R: Request>(self, request: R, deadline: Instant) -> Result<R::Reply, Error> {
        let (mut client, _permit) = self.connection(deadline).await?;
        let mut is_repeated = false;
        let failed = loop {
            let prepare = Prepare {
                creates: self.backends.creates,
            };
            let mut prepared = Ok(());
            if R::IS_PREPARED && client.statement_cache.size() < STATEMENTS.len() {
                // The caller may be gone, but the next request needs the connection.
                let deadline = deadline.max(Instant::now() + self.timeout);
                prepared = self.bounded(&mut client, &prepare, deadline).await;
            }
            let result = match prepared {
                Ok(()) if Instant::now() >= deadline => {
                    return Err(timed_out("the server did not accept a connection in time"));
                }
                Ok(()) => self.bounded(&mut client, &request, deadline).await,
                Err(failed) => Err(failed),
            };
            match result {
                Ok(reply) => return Ok(reply),
                Err(Failed::Postgres(error))
                    if is_unprepared(&error, self.backends.creates) && !is_repeated =>
                {
                    client.statement_cache.clear();
                    is_repeated = true;
                }
                Err(failed) => break failed,
            }
        };
        match failed {
            Failed::Postgres(error) => {
                if spoils(&error) || client.is_closed() {
                    drop(Object::take(client));
                }
                Err(of_postgres(&error))
            }
            Failed::Silent => {
                drop(Object::take(client));
                Err(timed_out("the server did not respond to a cancellation"))
            }
        }
    }

    /// Waits for a connection until the deadline. A connection that is being made is completed after it.
    async fn connection(&self, deadline: Instant) -> Result<(Object, OwnedSemaphorePermit), Error> {
        let backends = &self.backends;
        loop {
            let permit = Arc::clone(&backends.permits).acquire_owned();
            let Ok(Ok(permit)) = timeout_at(deadline, permit).await else {
                return Err(timed_out("no connection became free in time"));
            };
            let error = match backends.pool.get().await {
                Ok(client) => return Ok((client, permit)),
                Err(PoolError::Backend(error)) if is_full(&error) => error,
                Err(error) => return Err(of_pool(error)),
            };
            let size = backends.pool.status().max_size;
            let held = size.saturating_sub(backends.permits.available_permits() + 1);
            let paused = backends.paused.fetch_add(1, Ordering::SeqCst);
            let spare = Arc::clone(backends);
            if paused >= held && backends.pool.status().size == 0 {
                backends.paused.fetch_sub(1, Ordering::SeqCst);
                return Err(of_postgres(&error));
            }
            // The server has no room for one more connection: wait for those that exist or are being made.
            tokio::spawn(async move {
                sleep(FULL).await;
                spare.paused.fetch_sub(1, Ordering::SeqCst);
                drop(permit);
            });
        }
    }

    /// Sends a request, and cancels it at the deadline.
    async fn bounded<R: Request>(
        &self,
        client: &mut Object,
        request: &R,
        deadline: Instant,
    ) -> Result<R::Reply, Failed> {
        let token = client.cancel_token();
        let mut reply = request.send(client);
        if let Ok(reply) = timeout_at(deadline, &mut reply).await {
            return reply.map_err(Failed::Postgres);
        }
        for attempt in 0..CANCELS {
            let pause = Duration::from_secs(1 << attempt);
            // A server that cannot be reached has no use for the connection. One that is late may respond yet.
            if let Ok(Err(_)) = timeout(pause, (self.cancel)(token.clone())).await {
                break;
            }
            if let Ok(reply) = timeout(pause, &mut reply).await {
                // A cancellation that arrives late must find the connection idle.
                sleep(LATE).await;
                return reply.map_err(Failed::Postgres);
            }
        }
        Err(Failed::Silent)
    }
}

impl fmt::Debug for Connections {
    /// Prints no address and no password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connections")
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

enum Failed {
    Postgres(tokio_postgres::Error),
    Silent,
}

fn cancel<T: Tls>(tls: T) -> Arc<Cancel> {
    Arc::new(move |token| {
        let tls = tls.clone();
        Box::pin(async move { token.cancel_query(tls).await })
    })
}

/// A future that continues in a task if it is dropped.
struct InBackground<T: Send + 'static>(Option<BoxFuture<'static, T>>);

impl<T: Send + 'static> Future for InBackground<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let Some(future) = &mut self.0 else {
            return Poll::Pending;
        };
        let result = future.as_mut().poll(context);
        if result.is_ready() {
            self.0 = None;
        }
        result
    }
}

impl<T: Send + 'static> Drop for InBackground<T> {
    fn drop(&mut self) {
        if let (Some(future), Ok(runtime)) = (self.0.take(), Handle::try_current()) {
            runtime.spawn(future);
        }
    }
}
