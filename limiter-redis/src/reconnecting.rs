//! A connection to one server, which is replaced when it fails.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{Client, Cmd, RedisError, RedisFuture, RedisResult, Value};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::eviction::Eviction;
use crate::failure::is_deposed;
use crate::settings::{Runtime, Timeouts};

/// The least time between two connections to a server that refuses to serve.
const PAUSE: Duration = Duration::from_millis(100);
/// A connection is given up after this many response timeouts without a reply.
const SILENT_TIMEOUTS: u32 = 3;

/// Clones share the connection.
///
/// A call opens a new connection, and so resolves the server's name or asks the sentinels again, if the last one
/// - was lost or could not be opened,
/// - leads to a server that may no longer be the master,
/// - gave no reply while calls waited for three response timeouts.
#[derive(Clone)]
pub(crate) struct Reconnecting(Arc<Inner>);

struct Inner {
    connect: Box<Connect>,
    /// `None` if the server holds no logs.
    eviction: Option<Arc<Eviction>>,
    timeouts: Timeouts,
    runtime: Runtime,
    link: RwLock<Option<Arc<Link>>>,
}

/// Opens a connection.
type Connect = dyn Fn() -> RedisFuture<'static, MultiplexedConnection> + Send + Sync;

/// One connection, or the attempt to open it.
struct Link {
    begun: Instant,
    opened: watch::Receiver<Option<RedisResult<MultiplexedConnection>>>,
    is_over: AtomicBool,
    /// For how long calls have waited since the last reply, in microseconds. Concurrent waits count once.
    silence: AtomicU64,
    /// Until when `silence` counts, in microseconds since `begun`.
    counted: AtomicU64,
}

impl Reconnecting {
    /// Returns a connection to a server that is opened when it is first needed.
    pub(crate) fn lazy(
        client: Client,
        eviction: Option<Eviction>,
        timeouts: Timeouts,
        runtime: Runtime,
    ) -> Self {
        let connect = move || -> RedisFuture<'static, _> {
            let client = client.clone();
            Box::pin(async move { timeouts.connect_to(&client).await })
        };
        Self::new(connect, eviction, timeouts, runtime)
    }

    /// Returns a connection that `connect` opens when it is first needed.
    pub(crate) fn new(
        connect: impl Fn() -> RedisFuture<'static, MultiplexedConnection> + Send + Sync + 'static,
        eviction: Option<Eviction>,
        timeouts: Timeouts,
        runtime: Runtime,
    ) -> Self {
        let link = RwLock::default();
        let connect = Box::new(connect);
        Self(Arc::new(Inner {
            connect,
            eviction: eviction.map(Arc::new),
            timeouts,
            runtime,
            link,
        }))
    }

    /// Returns the server and its `maxmemory-policy` if that is known to delete logs.
    pub(crate) fn evicting(&self) -> Option<(String, Arc<str>)> {
        self.0.eviction.as_ref()?.evicting()
    }

    /// Connects now.
    pub(crate) async fn connect(&self) -> RedisResult<()> {
        self.link().connection().await.map(drop)
    }

    /// Sends a command.
    pub(crate) async fn send(&self, cmd: &Cmd) -> RedisResult<Value> {
        self.call(async |mut connection| {
            let reply = connection.send_packed_command(cmd).await;
            reply.and_then(Value::extract_error)
        })
        .await
    }

    /// Sends commands; errors are among the replies.
    #[cfg(feature = "cluster")]
    pub(crate) async fn send_all(&self, commands: &redis::Pipeline) -> RedisResult<Vec<Value>> {
        self.call(async |mut connection| {
            connection
                .send_packed_commands(commands, 0, commands.len())
                .await
        })
        .await
    }

    async fn call<T>(
        &self,
        call: impl AsyncFnOnce(MultiplexedConnection) -> RedisResult<T>,
    ) -> RedisResult<T> {
        let link = self.link();
        let connection = link.connection().await?;
        let wait = Wait::new(&link);
        let reply = call(connection).await;
        wait.end(reply.as_ref().err());
        reply
    }

    /// Returns the current connection, or a new one if it is of no more use.
    fn link(&self) -> Arc<Link> {
        let silent = self.0.timeouts.response.saturating_mul(SILENT_TIMEOUTS);
        let usable = |link: &Option<Arc<Link>>| {
            let link = link.as_ref().filter(|link| link.is_usable(silent));
            link.cloned()
        };
        let current = &self.0.link;
        let found = usable(&current.read().unwrap_or_else(PoisonError::into_inner));
        found.unwrap_or_else(|| {
            let mut current = current.write().unwrap_or_else(PoisonError::into_inner);
            usable(&current).unwrap_or_else(|| {
                let link = Arc::new(self.open());
                *current = Some(Arc::clone(&link));
                link
            })
        })
    }

    /// Opens a connection in the background: a caller may give up before it is there.
    fn open(&self) -> Link {
        let connecting = (self.0.connect)();
        let (sender, opened) = watch::channel(None);
        let eviction = self.0.eviction.clone();
        let patience = self.0.timeouts.connect + self.0.timeouts.response;
        self.0.runtime.spawn(async move {
            let connected = connecting.await;
            let connection = connected.as_ref().ok().cloned();
            sender.send_replace(Some(connected));
            // Callers already send their commands.
            if let (Some(eviction), Some(connection)) = (eviction, connection) {
                let _ = timeout(patience, eviction.read(connection)).await;
            }
        });
        let (is_over, silence, counted) = Default::default();
        Link {
            begun: Instant::now(),
            opened,
            is_over,
            silence,
            counted,
        }
    }
}

impl Link {
    fn is_usable(&self, silent: Duration) -> bool {
        let is_new = self.begun.elapsed() < PAUSE;
        match &*self.opened.borrow() {
            Some(Ok(_)) => {
                let silence = Duration::from_micros(self.silence.load(Ordering::Relaxed));
                !self.is_over.load(Ordering::Relaxed) && (silence < silent || is_new)
            }
            Some(Err(error)) => is_new && !error.is_io_error(),
            // A runtime that ended has dropped the attempt.
            None => self.opened.has_changed().is_ok(),
        }
    }

    async fn connection(&self) -> RedisResult<MultiplexedConnection> {
        if let Some(opened) = &*self.opened.borrow() {
            return opened.clone();
        }
        let mut opened = self.opened.clone();
        let opened = opened.wait_for(Option::is_some).await;
        let dropped = || RedisError::from(std::io::Error::from(std::io::ErrorKind::BrokenPipe));
        opened.map_err(|_| dropped())?.clone().ok_or_else(dropped)?
    }

    fn micros(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_micros()).unwrap_or(u64::MAX)
    }
}

/// A call that waits for its reply. Dropped earlier, it has received no reply.
struct Wait<'a> {
    link: &'a Link,
    since: u64,
    has_reply: bool,
}

impl<'a> Wait<'a> {
    fn new(link: &'a Link) -> Self {
        let since = link.micros();
        Self {
            link,
            since,
            has_reply: false,
        }
    }

    fn end(mut self, error: Option<&RedisError>) {
        let Self { link, .. } = self;
        self.has_reply = true;
        if link.silence.load(Ordering::Relaxed) > 0 {
            link.silence.store(0, Ordering::Relaxed);
        }
        if let Some(error) = error {
            let is_lost = error.is_io_error() || error.is_unrecoverable_error();
            if is_lost || is_deposed(error) && link.begun.elapsed() >= PAUSE {
                link.is_over.store(true, Ordering::Relaxed);
            }
        }
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        if !self.has_reply {
            let now = self.link.micros();
            let counted = self.link.counted.fetch_max(now, Ordering::Relaxed);
            let waited = now.saturating_sub(self.since.max(counted));
            self.link.silence.fetch_add(waited, Ordering::Relaxed);
        }
    }
}
