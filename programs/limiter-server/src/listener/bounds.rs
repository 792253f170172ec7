//! Bounds of a listener: its connections, their duration, and the memory of their requests.

mod body;
mod patient;

use std::collections::HashMap;
use std::mem;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::task::AtomicWaker;
use http::Request;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep, sleep_until};

pub(crate) use self::body::Budgeted;
pub(super) use self::body::Sent;
pub(super) use self::patient::Patient;

/// How long a client may take to send the head of a request. Over HTTP/1, a connection without requests is closed after this time.
pub(super) const HEAD: Duration = Duration::from_secs(60);
/// How long a connection lasts without a request. Pings do not count.
const IDLE: Duration = Duration::from_secs(600);
/// How long a connection above the limit lasts: long enough for a health check.
const BRIEF: Duration = Duration::from_secs(1);
/// The largest number of connections above the limit. Further connections are closed.
const BRIEF_SEATS: usize = 1_000;
/// How long a response may stay unread at least, and half of the longest time.
const UNREAD: Duration = Duration::from_secs(15);
/// How often a stopping server looks for connections without requests, and how often in a row it must find none.
const LOOK: Duration = Duration::from_millis(50);
const LOOKS: u32 = 4;
/// The memory of all requests in progress of a listener, in bytes.
const BUDGET: usize = 64 << 20;
/// What a request counts besides its head, its body and its response.
const REQUEST: usize = 8 << 10;
/// What a stream of gRPC's own services counts, which has a task and buffers.
const STREAM: usize = 48 << 10;
/// What a byte of a body counts. The smallest elements of a message take two bytes, and 48 in memory, in a list that may be half
/// empty.
const BODY: usize = 48;

/// The connections of a listener, and the memory of their requests.
#[derive(Clone, Debug)]
pub(crate) struct Seats {
    lasting: Arc<Semaphore>,
    brief: Arc<Semaphore>,
    per_address: usize,
    addresses: Addresses,
    /// The bytes that are left.
    budget: Arc<AtomicUsize>,
}

/// The number of lasting connections by address.
type Addresses = Arc<Mutex<HashMap<IpAddr, usize>>>;

impl Seats {
    pub(crate) fn new(max_connections: usize, per_address: usize) -> Self {
        let semaphore = |seats: usize| Arc::new(Semaphore::new(seats.min(Semaphore::MAX_PERMITS)));
        Self {
            lasting: semaphore(max_connections),
            brief: semaphore(BRIEF_SEATS),
            per_address,
            addresses: Addresses::default(),
            budget: Arc::new(AtomicUsize::new(BUDGET)),
        }
    }

    /// Returns a new connection's seat. `None` if there are too many.
    pub(super) fn take(&self, client: IpAddr) -> Option<Seat> {
        let lasting = || {
            let share = Share::take(&self.addresses, client, self.per_address)?;
            let taken = Arc::clone(&self.lasting).try_acquire_owned().ok()?;
            Some((taken, Some(share)))
        };
        let brief = || Some((Arc::clone(&self.brief).try_acquire_owned().ok()?, None));
        let (taken, share) = lasting().or_else(brief)?;
        Some(Seat {
            _taken: taken,
            share,
            budget: Arc::clone(&self.budget),
            began: Instant::now(),
            last_request: AtomicU64::new(0),
            requests: AtomicUsize::new(0),
            unread: Mutex::default(),
            is_half_closed: AtomicBool::new(false),
            is_http1: AtomicBool::new(false),
            waits: AtomicBool::new(false),
            reader: AtomicWaker::new(),
        })
    }
}

/// A connection, counted for its client's address.
#[derive(Debug)]
struct Share(Addresses, IpAddr);

impl Share {
    fn take(addresses: &Addresses, client: IpAddr, most: usize) -> Option<Self> {
        let client = match client.to_canonical() {
            // One client controls at least a /64.
            IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64).into(),
            v4 => v4,
        };
        let mut all = addresses.lock().unwrap_or_else(PoisonError::into_inner);
        let connections = all.entry(client).or_default();
        if *connections >= most {
            return None;
        }
        *connections += 1;
        Some(Self(Arc::clone(addresses), client))
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(connections) = all.get_mut(&self.1) {
            *connections -= 1;
            if *connections == 0 {
                all.remove(&self.1);
            }
        }
    }
}

/// A connection's place among its listener's connections.
#[derive(Debug)]
pub(super) struct Seat {
    _taken: OwnedSemaphorePermit,
    /// `None` if the connection is brief.
    share: Option<Share>,
    budget: Arc<AtomicUsize>,
    began: Instant,
    /// Milliseconds after the beginning; 0 before the first request.
    last_request: AtomicU64,
    /// The requests in progress.
    requests: AtomicUsize,
    /// Shared with the unread responses that began lately.
    unread: Mutex<Arc<()>>,
    /// Whether the client has closed its half.
    is_half_closed: AtomicBool,
    is_http1: AtomicBool,
    /// Whether the request in progress [waits](Waiting).
    waits: AtomicBool,
    /// The reader that does not know yet that the client has closed its half.
    reader: AtomicWaker,
}

impl Seat {
    /// Returns what a new request occupies, and whether there is enough memory for it.
    pub(super) fn begin<B>(self: &Arc<Self>, request: &mut Request<B>) -> (Arc<Hold>, bool) {
        let after = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_request.store(after.max(1), Relaxed);
        self.requests.fetch_add(1, AcqRel);
        let hold = Arc::new(Hold {
            seat: Arc::clone(self),
            counted: AtomicUsize::new(0),
        });
        if request.version() < http::Version::HTTP_2 {
            self.is_http1.store(true, Relaxed);
            request.extensions_mut().insert(Waiting(Arc::clone(self)));
        }
        let fields = request.headers().iter();
        let head = fields.map(|(name, value)| name.as_str().len() + value.len() + 32);
        let is_stream = request.uri().path().starts_with("/grpc.");
        let own = if is_stream { STREAM } else { REQUEST };
        let fits = hold.count(own + head.sum::<usize>());
        (hold, fits)
    }

    /// Returns the token of a response that nobody has read yet.
    fn unread(&self) -> Arc<()> {
        Arc::clone(&self.unread.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits until the connection has lasted long enough, or until a response has stayed unread for too long.
    pub(super) async fn ended(&self) {
        let (mut look, mut before) = (Instant::now() + UNREAD, Arc::new(()));
        loop {
            let now = Instant::now();
            let end = self.began
                + match self.last_request.load(Relaxed) {
                    _ if self.share.is_none() => BRIEF,
                    0 => HEAD,
                    last => Duration::from_millis(last) + IDLE,
                };
            if end <= now {
                return;
            }
            if look <= now {
                let mut unread = self.unread.lock().unwrap_or_else(PoisonError::into_inner);
                let older = mem::replace(&mut before, mem::take(&mut *unread));
                if Arc::strong_count(&older) > 1 {
                    return;
                }
                look = now + UNREAD;
            }
            sleep_until(end.min(look)).await;
        }
    }

    /// Waits until the connection has had no request for a moment.
    pub(super) async fn quiet(&self) {
        let mut looks = 0;
        while looks < LOOKS {
            sleep(LOOK).await;
            looks = if self.requests.load(Acquire) == 0 {
                looks + 1
            } else {
                0
            };
        }
    }
}

/// What a request occupies until its response is sent.
#[derive(Debug)]
pub(super) struct Hold {
    seat: Arc<Seat>,
    /// The bytes that are taken from the budget.
    counted: AtomicUsize,
}

impl Hold {
    /// Takes memory from the budget. Returns `false` if there is too little.
    pub(super) fn count(&self, bytes: usize) -> bool {
        let rest = |left: usize| left.checked_sub(bytes);
        let is_enough = self.seat.budget.fetch_update(AcqRel, Relaxed, rest).is_ok();
        if is_enough {
            self.counted.fetch_add(bytes, Relaxed);
        }
        is_enough
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.seat.budget.fetch_add(*self.counted.get_mut(), AcqRel);
        self.seat.requests.fetch_sub(1, AcqRel);
        self.seat.reader.wake();
    }
}

/// The connection of a request that may wait. Over HTTP/2, a client that leaves resets its request.
#[derive(Clone, Debug)]
pub(crate) struct Waiting(Arc<Seat>);

impl Waiting {
    /// Drops the request if its client closes the connection, until the guard is dropped. Other requests are answered, because a
    /// client may close its half as soon as it has sent a request.
    pub(crate) fn begin(&self) -> impl Drop + use<> {
        self.0.waits.store(true, Release);
        self.0.reader.wake();
        Waits(Arc::clone(&self.0))
    }
}

struct Waits(Arc<Seat>);

impl Drop for Waits {
    fn drop(&mut self) {
        self.0.waits.store(false, Release);
    }
}
