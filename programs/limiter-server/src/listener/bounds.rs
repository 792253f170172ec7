//! Bounds of a listener: its connections, how long they last, and the memory of their requests.

mod body;
mod departure;

use std::collections::HashMap;
use std::mem;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::Ordering::{AcqRel, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use http::Request;
use metrics::counter;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep};

pub(crate) use self::body::Budgeted;
pub(super) use self::body::Sent;
pub(crate) use self::departure::Departure;
use crate::metrics::REFUSED;
use crate::occasional::Occasional;

/// How long a client may take to send the head of a request. Over HTTP/1, a connection without requests is closed after this time.
pub(super) const HEAD: Duration = Duration::from_secs(60);
/// How long a connection lasts without a request. Pings do not count.
const IDLE: Duration = Duration::from_secs(600);
/// How long a connection above the limit lasts: long enough for a health check.
const BRIEF: Duration = Duration::from_secs(1);
/// The largest number of connections above the limit. Further connections are closed.
const MAX_BRIEF: usize = 1_000;
/// How long a response may stay unread at least, and half of the longest time.
const UNREAD: Duration = Duration::from_secs(15);
/// How long a stopping server keeps a connection after its last request, which the next one may follow, and how often it looks.
const QUIET: Duration = Duration::from_millis(200);
const STEP: Duration = Duration::from_millis(50);
/// The memory of all requests in progress of a listener, in bytes, and the share of an address. The largest message fits into it.
const MEMORY: usize = 64 << 20;
const SHARE: usize = MEMORY / 8 * 7;
/// What a request counts besides its head, its body and its response.
const REQUEST: usize = 8 << 10;
/// What a stream of gRPC's own services counts, which has a task and buffers.
const STREAM: usize = 48 << 10;
/// What a byte of a body counts. The smallest elements of a message take two bytes, and 48 in memory, in a list that may be half
/// empty.
const BODY: usize = 48;
/// What each connection has for one health check at a time, whatever other requests occupy.
const CHECK: usize = 16 << 10;
const CHECKS: [&str; 3] = ["/healthz", "/healthcheck", "/grpc.health.v1.Health/Check"];

/// The bounds of a listener.
#[derive(Clone, Debug)]
pub(crate) struct Bounds(Arc<Listener>);

#[derive(Debug)]
struct Listener {
    name: &'static str,
    lasting: Arc<Semaphore>,
    brief: Arc<Semaphore>,
    memory: Semaphore,
    connections_per_address: usize,
    clients: Mutex<HashMap<IpAddr, Weak<Client>>>,
    refusals: Occasional,
}

/// The share of an address.
#[derive(Debug)]
struct Client {
    address: IpAddr,
    connections: Arc<Semaphore>,
    memory: Semaphore,
}

fn semaphore(permits: usize) -> Arc<Semaphore> {
    Arc::new(Semaphore::new(permits.min(Semaphore::MAX_PERMITS)))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Bounds {
    pub(crate) fn new(name: &'static str, connections: usize, per_address: usize) -> Self {
        Self(Arc::new(Listener {
            name,
            lasting: semaphore(connections),
            brief: semaphore(MAX_BRIEF),
            memory: Semaphore::new(MEMORY),
            connections_per_address: per_address,
            clients: Mutex::default(),
            refusals: Occasional::new(),
        }))
    }

    /// Returns a new connection. `None` if there are too many.
    pub(super) fn connect(&self, address: IpAddr) -> Option<Connection> {
        let client = self.client(address);
        let take = |semaphore: &Arc<Semaphore>| Arc::clone(semaphore).try_acquire_owned().ok();
        let lasting = || take(&client.connections).zip(take(&self.0.lasting));
        let (share, seat) = match lasting() {
            Some((share, seat)) => (Some(share), Some(seat)),
            None => (None, take(&self.0.brief)),
        };
        let Some(seat) = seat else {
            self.note_refusal("connections", address);
            return None;
        };
        Some(Connection {
            _seat: seat,
            share,
            client,
            bounds: self.clone(),
            ends_without_request: Mutex::new(Instant::now() + HEAD),
            requests: Arc::default(),
            unread: Mutex::default(),
            check: Arc::default(),
        })
    }

    /// Returns the share of a client, which controls at least a /64 of IPv6.
    fn client(&self, address: IpAddr) -> Arc<Client> {
        let address = match address.to_canonical() {
            IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64).into(),
            v4 => v4,
        };
        let mut clients = lock(&self.0.clients);
        if let Some(client) = clients.get(&address).and_then(Weak::upgrade) {
            return client;
        }
        if clients.len() == clients.capacity() {
            clients.retain(|_, client| client.strong_count() > 0);
        }
        let client = Arc::new(Client {
            address,
            connections: semaphore(self.0.connections_per_address),
            memory: Semaphore::new(SHARE),
        });
        clients.insert(address, Arc::downgrade(&client));
        client
    }

    /// Counts a refusal, and logs one in ten seconds.
    pub(super) fn note_refusal(&self, reason: &'static str, address: IpAddr) {
        let listener = self.0.name;
        counter!(REFUSED, "listener" => listener, "reason" => reason).increment(1);
        if self.0.refusals.is_due() {
            tracing::warn!(listener, %address, "refused a client: {reason}; see \"Memory\" in the README");
        }
    }
}

/// A connection and its requests.
#[derive(Debug)]
pub(super) struct Connection {
    _seat: OwnedSemaphorePermit,
    /// `None` if the connection is brief.
    share: Option<OwnedSemaphorePermit>,
    client: Arc<Client>,
    bounds: Bounds,
    ends_without_request: Mutex<Instant>,
    /// Shared with the requests in progress.
    requests: Arc<()>,
    /// Shared with the unread responses that began lately.
    unread: Mutex<Arc<()>>,
    /// Whether a health check is in progress.
    check: Arc<AtomicBool>,
}

impl Connection {
    /// Returns a new request, and `true` if there is enough memory for it.
    pub(super) fn begin<B>(self: &Arc<Self>, request: &Request<B>) -> (Arc<InProgress>, bool) {
        *lock(&self.ends_without_request) = Instant::now() + IDLE;
        let path = request.uri().path();
        let check = CHECKS
            .contains(&path)
            .then(|| Room::take(&self.check))
            .flatten();
        let in_progress = Arc::new(InProgress {
            connection: Arc::clone(self),
            _request: Arc::clone(&self.requests),
            free: AtomicUsize::new(check.as_ref().map_or(0, |_| CHECK)),
            _check: check,
            counted: AtomicUsize::new(0),
            is_refused: AtomicBool::new(false),
        });
        let fields = request.headers().iter();
        let head = fields.map(|(name, value)| name.as_str().len() + value.len() + 32);
        let is_stream = path.starts_with("/grpc.") && !CHECKS.contains(&path);
        let own = if is_stream { STREAM } else { REQUEST };
        let fits = in_progress.count(own + head.sum::<usize>());
        (in_progress, fits)
    }

    /// Notes a handshake that failed.
    pub(super) fn note_refusal(&self, reason: &'static str) {
        self.bounds.note_refusal(reason, self.client.address);
    }

    /// Waits until the connection has lasted long enough, or until a response has stayed unread for too long.
    pub(super) async fn ended(&self) {
        if self.share.is_none() {
            return sleep(BRIEF).await;
        }
        let mut before = Arc::new(());
        loop {
            sleep(UNREAD).await;
            let older = mem::replace(&mut before, mem::take(&mut *lock(&self.unread)));
            let end = *lock(&self.ends_without_request);
            if end <= Instant::now() || Arc::strong_count(&older) > 1 {
                return;
            }
        }
    }

    /// Waits until the connection has had no request for a moment.
    pub(super) async fn quiet(&self) {
        let mut since = Instant::now();
        while since.elapsed() < QUIET {
            sleep(STEP).await;
            if Arc::strong_count(&self.requests) > 1 {
                since = Instant::now();
            }
        }
    }
}

/// The room for a health check, of which a connection has one.
#[derive(Debug)]
struct Room(Arc<AtomicBool>);

impl Room {
    fn take(taken: &Arc<AtomicBool>) -> Option<Self> {
        (!taken.swap(true, AcqRel)).then(|| Self(Arc::clone(taken)))
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.0.store(false, Release);
    }
}

/// A request, and what it occupies until its response is sent.
#[derive(Debug)]
pub(super) struct InProgress {
    connection: Arc<Connection>,
    _request: Arc<()>,
    _check: Option<Room>,
    /// The bytes that do not count, of a health check.
    free: AtomicUsize,
    counted: AtomicUsize,
    is_refused: AtomicBool,
}

impl InProgress {
    /// Takes memory. Returns `false` if there is too little.
    pub(super) fn count(&self, bytes: usize) -> bool {
        let rest = |free: usize| free.checked_sub(bytes);
        if self.free.fetch_update(AcqRel, Relaxed, rest).is_ok() {
            return true;
        }
        let (own, all) = self.memory();
        let permits = u32::try_from(bytes).unwrap_or(u32::MAX);
        let reason = match (own.try_acquire_many(permits), all.try_acquire_many(permits)) {
            (Ok(own), Ok(all)) => {
                own.forget();
                all.forget();
                self.counted.fetch_add(bytes, Relaxed);
                return true;
            }
            (Err(_), _) => "address_memory",
            _ => "memory",
        };
        if !self.is_refused.swap(true, Relaxed) {
            self.connection.note_refusal(reason);
        }
        false
    }

    /// Returns the token of a response that nobody has read yet.
    fn unread(&self) -> Arc<()> {
        Arc::clone(&lock(&self.connection.unread))
    }

    /// Returns the memory of the request's address and of its listener.
    fn memory(&self) -> (&Semaphore, &Semaphore) {
        let Connection { client, bounds, .. } = &*self.connection;
        (&client.memory, &bounds.0.memory)
    }
}

impl Drop for InProgress {
    fn drop(&mut self) {
        let counted = mem::take(self.counted.get_mut());
        let (own, all) = self.memory();
        own.add_permits(counted);
        all.add_permits(counted);
    }
}
