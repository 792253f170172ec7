//! Bounds of a listener: its connections, how long they last, and the memory of their requests. Each bound is a semaphore.

mod body;

use std::collections::HashMap;
use std::io;
use std::mem;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use http::Request;
use metrics::counter;
use smallvec::{SmallVec, smallvec};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep};

pub(crate) use self::body::Watched;
use crate::metrics::REFUSED;
use crate::occasional::Occasional;

/// How long a connection above the limit lasts: long enough for a health check.
const BRIEF: Duration = Duration::from_secs(1);
/// The largest number of connections above the limit. Further connections are closed.
const MAX_BRIEF: usize = 1_000;
/// How long a response may stay unread at least, and half of the longest time.
const UNREAD: Duration = Duration::from_secs(15);
/// How long an idle connection stays open on shutdown.
const QUIET: Duration = Duration::from_millis(200);
/// How often a shutdown looks for idle connections.
const STEP: Duration = Duration::from_millis(50);
/// The memory of all requests in progress of a listener, in bytes, and the share of an address. The largest message fits into it.
const MEMORY: usize = 64 << 20;
const SHARE: usize = MEMORY / 8 * 7;
/// What a request counts besides its head, its body and its response; a stream of gRPC's own services has a task and buffers.
const REQUEST: usize = 8 << 10;
const STREAM: usize = 48 << 10;
/// What a byte of a body counts. The smallest elements of a message take two bytes, and 48 in memory, in a list that may be half
/// empty.
const BODY: usize = 48;
/// What each connection has for one health check at a time, whatever other requests occupy.
const CHECK: usize = 2 * REQUEST;
const CHECKS: [&str; 3] = ["/healthz", "/healthcheck", "/grpc.health.v1.Health/Check"];

type Semaphores = SmallVec<[Arc<Semaphore>; 2]>;
type Permits = SmallVec<[OwnedSemaphorePermit; 2]>;

/// Takes permits of all these semaphores, or of none. Fails with the place of one that has too few.
fn take(semaphores: &Semaphores, permits: usize) -> Result<Permits, usize> {
    let permits = u32::try_from(permits).unwrap_or(u32::MAX);
    let take = |(place, semaphore): (_, &Arc<Semaphore>)| {
        let taken = Arc::clone(semaphore).try_acquire_many_owned(permits);
        taken.map_err(|_| place)
    };
    semaphores.iter().enumerate().map(take).collect()
}

fn semaphore(permits: usize) -> Arc<Semaphore> {
    Arc::new(Semaphore::new(permits.min(Semaphore::MAX_PERMITS)))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The bounds of a listener.
#[derive(Debug)]
pub(crate) struct Bounds {
    name: &'static str,
    connections: Arc<Semaphore>,
    brief: Arc<Semaphore>,
    memory: Arc<Semaphore>,
    per_address: usize,
    clients: Mutex<HashMap<IpAddr, Weak<Client>>>,
    refusals: Occasional,
}

/// The share of an address.
#[derive(Debug)]
struct Client {
    address: IpAddr,
    connections: Arc<Semaphore>,
    memory: Arc<Semaphore>,
}

impl Bounds {
    pub(crate) fn new(name: &'static str, connections: usize, per_address: usize) -> Arc<Self> {
        Arc::new(Self {
            name,
            connections: semaphore(connections),
            brief: semaphore(MAX_BRIEF),
            memory: semaphore(MEMORY),
            per_address,
            clients: Mutex::default(),
            refusals: Occasional::new(),
        })
    }

    /// Returns a new connection. `None` if there are too many.
    pub(super) fn connect(self: &Arc<Self>, address: IpAddr) -> Option<Arc<Connection>> {
        let client = self.client(address);
        let lasting = smallvec![
            Arc::clone(&client.connections),
            Arc::clone(&self.connections)
        ];
        let seats = take(&lasting, 1).or_else(|_| take(&smallvec![Arc::clone(&self.brief)], 1));
        let Ok(seats) = seats else {
            self.note_refusal("connections", address);
            return None;
        };
        Some(Arc::new(Connection {
            seats,
            memory: smallvec![Arc::clone(&client.memory), Arc::clone(&self.memory)],
            client,
            bounds: Arc::clone(self),
            check: semaphore(CHECK),
            unread: Mutex::default(),
        }))
    }

    /// Returns the share of a client, which controls at least a /64 of IPv6.
    fn client(&self, address: IpAddr) -> Arc<Client> {
        let address = match address.to_canonical() {
            IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64).into(),
            v4 => v4,
        };
        let mut clients = lock(&self.clients);
        if let Some(client) = clients.get(&address).and_then(Weak::upgrade) {
            return client;
        }
        if clients.len() == clients.capacity() {
            clients.retain(|_, client| client.strong_count() > 0);
        }
        let client = Arc::new(Client {
            address,
            connections: semaphore(self.per_address),
            memory: semaphore(SHARE),
        });
        clients.insert(address, Arc::downgrade(&client));
        client
    }

    /// Counts a refusal, and logs one in ten seconds.
    fn note_refusal(&self, reason: &'static str, address: IpAddr) {
        let listener = self.name;
        counter!(REFUSED, "listener" => listener, "reason" => reason).increment(1);
        if self.refusals.is_due() {
            tracing::warn!(listener, %address, "refused a client: {reason}; see \"Memory\" in the README");
        }
    }

    /// Counts an attempt to accept a connection that failed, and logs one in ten seconds.
    pub(super) fn note_failure(&self, error: &io::Error) {
        let listener = self.name;
        counter!(REFUSED, "listener" => listener, "reason" => "accept").increment(1);
        if self.refusals.is_due() {
            tracing::error!(listener, %error, "cannot accept a connection");
        }
    }
}

/// A connection. Each of its requests in progress holds it.
#[derive(Debug)]
pub(super) struct Connection {
    /// That of the client's address and of the listener; only one if the connection is brief.
    seats: Permits,
    /// That of the client's address, and of the listener.
    memory: Semaphores,
    client: Arc<Client>,
    bounds: Arc<Bounds>,
    /// The memory of a health check.
    check: Arc<Semaphore>,
    /// Shared with the unread responses that began lately.
    unread: Mutex<Arc<()>>,
}

impl Connection {
    /// Returns a new request, and `true` if there is enough memory for it.
    pub(super) fn begin<B>(self: &Arc<Self>, request: &Request<B>) -> (Arc<InProgress>, bool) {
        let path = request.uri().path();
        let is_check = CHECKS.contains(&path);
        let own = match path.starts_with("/grpc.") && !is_check {
            true => STREAM,
            false => REQUEST,
        };
        let fields = request.headers().iter();
        let head = fields.map(|(name, value)| name.as_str().len() + value.len() + 32);
        let size = own + head.sum::<usize>();
        let memory = match is_check && self.check.available_permits() >= size {
            true => smallvec![Arc::clone(&self.check)],
            false => self.memory.clone(),
        };
        let in_progress = Arc::new(InProgress {
            connection: Arc::clone(self),
            memory,
            taken: Mutex::default(),
        });
        let fits = in_progress.take(size);
        (in_progress, fits)
    }

    /// Notes that the client was refused.
    pub(super) fn note_refusal(&self, reason: &'static str) {
        self.bounds.note_refusal(reason, self.client.address);
    }

    /// Waits until the connection has lasted long enough, or until a response has stayed unread for too long.
    pub(super) async fn ended(&self) {
        if self.seats.len() == 1 {
            return sleep(BRIEF).await;
        }
        let mut before = Arc::new(());
        loop {
            sleep(UNREAD).await;
            let older = mem::replace(&mut before, mem::take(&mut *lock(&self.unread)));
            if Arc::strong_count(&older) > 1 {
                return;
            }
        }
    }

    /// Waits until the connection has had no request for a moment.
    pub(super) async fn quiet(self: &Arc<Self>) {
        let mut since = Instant::now();
        while since.elapsed() < QUIET {
            sleep(STEP).await;
            if Arc::strong_count(self) > 1 {
                since = Instant::now();
            }
        }
    }
}

/// A request, and the memory that it occupies until its response is sent.
#[derive(Debug)]
pub(super) struct InProgress {
    connection: Arc<Connection>,
    memory: Semaphores,
    taken: Mutex<Permits>,
}

impl InProgress {
    /// Takes memory. Returns `false` if there is too little.
    pub(super) fn take(&self, bytes: usize) -> bool {
        let more = match take(&self.memory, bytes) {
            Ok(more) => more,
            Err(place) => {
                let reason = ["address_memory", "memory"][place];
                self.connection.note_refusal(reason);
                return false;
            }
        };
        let mut taken = lock(&self.taken);
        if taken.is_empty() {
            *taken = more;
        } else {
            for (taken, more) in taken.iter_mut().zip(more) {
                taken.merge(more);
            }
        }
        true
    }

    /// Returns the token of a response that nobody has read yet.
    fn unread(&self) -> Arc<()> {
        Arc::clone(&lock(&self.connection.unread))
    }
}
