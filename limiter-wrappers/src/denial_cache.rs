//! Denials that need no round trip.
//!
//! If only admitted requests count, a denial stays valid until the next entry expires, unless an operation changes the log. The
//! cache answers the same request until then.
//!
//! The instant is on the store's clock. The store read its clock between sending and receiving, so by the local clock the instant
//! lies between `sent + wait` and `received + wait`. The cache forgets the denial at `sent + wait`, so it never denies late.
//! The time that a cached decision reports counts from `received`. It lags behind the store's clock by at most the round trip, so
//! a retry-after is never too short.
//!
//! An append by another process releases nothing: usage grows, and an entry that merges under a resolution counts for longer. So a
//! cached denial stays right. Its retry-after is that of the log without the append, as a decision's always is.

use std::fmt;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use async_trait::async_trait;
use dashmap::DashMap;
use foldhash::fast::RandomState;
use limiter_core::store::{
    At, Facts, JointFacts, JointOp, LogFacts, LogKey, LogPlace, Mode, Op, Otherwise, Outcome, Settlement,
    SettlementFacts, attempt, decide,
};
use limiter_core::{Counting, Decision, Error, Name, Policy, Timer, Timestamp, WindowStore};
use tokio::time::Instant;

/// Answers repeated denials without the store.
///
/// A denial is kept until the next entry of its log expires, which is when its fields change. Until then the same request gets
/// the same decision, minus the time that has passed. Only denials at the store's clock, under a policy that counts admitted
/// requests, without an idempotency key, are kept.
///
/// A denial is also kept no longer than [`max_age`](Self::max_age).
///
/// A change of the log through this wrapper invalidates its denial: a settlement, refund, reset or record, or an acquire that a
/// looser policy admits. Changes by other processes become visible when the denial is no longer kept, so a key that another
/// process unblocks stays denied here until then. The cache assumes that the store's clock does not step and runs as fast as the
/// local clock.
///
/// Clones share one cache.
///
/// # Cancel safety
/// As the store's.
#[derive(Clone, Debug)]
pub struct DenialCache<S> {
    store: S,
    cache: Arc<Cache>,
    max_age: Duration,
}

/// The shortest time between two searches for expired denials.
const SWEEP_INTERVAL: Duration = Duration::from_millis(100);
/// Enough that changes of other logs seldom keep a denial from being cached.
const CHANGE_COUNTERS: usize = 256;

struct Cache {
    /// By the hash of the log. One denial for each.
    denials: DashMap<u64, Denial, RandomState>,
    hasher: RandomState,
    max_keys: usize,
    /// When expired denials may be removed again: a full cache must not be searched for every denial.
    next_sweep: Mutex<Instant>,
    /// Count the changes made through this wrapper, by the hash of the log. A denial that was under way during a change may be
    /// outdated.
    changes: [AtomicU64; CHANGE_COUNTERS],
}

struct Denial {
    name: Name,
    key: Box<[u8]>,
    policy: Policy,
    mode: Mode,
    cost: u64,
    log: LogFacts,
    received: Instant,
    until: Instant,
}

impl fmt::Debug for Cache {
    /// Neither locks the map nor prints keys.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache").field("max_keys", &self.max_keys).finish_non_exhaustive()
    }
}

impl Denial {
    fn answers(&self, op: &Op<'_>) -> bool {
        self.name == op.log.name
            && *self.key == *op.log.key
            && self.cost == op.cost
            && self.mode == op.mode
            && self.policy == *op.policy
    }

    fn facts(&self, now: Instant) -> Facts {
        let passed = u64::try_from(now.duration_since(self.received).as_micros()).unwrap_or(u64::MAX);
        let now = Timestamp::from_micros_saturating(self.log.now.as_micros().saturating_add(passed));
        let log = LogFacts { now, ..self.log.clone() };
        Facts { admitted: false, refundable: false, outcome: Outcome::Nothing, log }
    }
}

impl<S> DenialCache<S> {
    /// Returns `store` with a cache of the denials of at most `max_keys` logs.
    #[must_use]
    pub fn new(store: S, max_keys: usize) -> Self {
        let cache = Cache {
            denials: DashMap::with_hasher(RandomState::default()),
            hasher: RandomState::default(),
            max_keys,
            next_sweep: Mutex::new(Instant::now()),
            changes: [const { AtomicU64::new(0) }; CHANGE_COUNTERS],
        };
        Self { store, cache: Arc::new(cache), max_age: Duration::from_secs(1) }
    }

    /// Sets how long a denial is kept at most. Default: 1 s.
    ///
    /// If another process unblocks a key, by a reset, a refund or a larger limit, this one may go on denying it for so long. With
    /// [`Duration::MAX`] that is until the next entry of the log expires, which is days if a window is. A longer time saves calls
    /// only for keys that are denied for longer: with the default, one that is hammered costs one call per second.
    #[must_use]
    pub const fn max_age(mut self, max_age: Duration) -> Self {
        self.max_age = max_age;
        self
    }

    /// Returns the store.
    pub const fn store(&self) -> &S {
        &self.store
    }

    /// Returns the number of denials held, expired ones included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.cache.denials.len()
    }

    /// Whether no denial is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Cache {
    fn hash(&self, log: LogKey<'_>) -> u64 {
        self.hasher.hash_one(log)
    }

    fn is_cacheable(op: &Op<'_>) -> bool {
        op.at == At::StoreClock
            && op.id.is_none()
            && op.mode != Mode::Record
            && (op.mode == Mode::Peek || op.policy.counting() == Counting::Admitted)
    }

    /// Returns the facts of a denial that still holds.
    fn find(&self, op: &Op<'_>) -> Option<Facts> {
        if !Self::is_cacheable(op) {
            return None;
        }
        let denial = self.denials.get(&self.hash(op.log))?;
        let now = Instant::now();
        (now < denial.until && denial.answers(op)).then(|| denial.facts(now))
    }

    /// Keeps the facts if they are a denial whose fields hold for some time.
    fn keep(&self, op: &Op<'_>, facts: &Facts, sent: Instant, max_age: Duration, changes: u64) {
        if facts.admitted || facts.outcome != Outcome::Nothing || !Self::is_cacheable(op) {
            return;
        }
        let now = facts.log.now.as_micros();
        let used = facts.log.usage.iter().zip(op.policy.limits()).filter(|(usage, _)| usage.used > 0);
        let expiries = used.map(|(usage, limit)| usage.oldest.as_micros() + limit.window().as_micros());
        let Some(wait) = expiries.min().and_then(|expiry| expiry.checked_sub(now)) else { return };
        let received = Instant::now();
        let Some(until) = sent.checked_add(max_age.min(Duration::from_micros(wait))).filter(|until| received < *until)
        else {
            return;
        };
        let hash = self.hash(op.log);
        if self.denials.len() >= self.max_keys && !self.denials.contains_key(&hash) && !self.make_room(received) {
            return;
        }
        let denial = Denial {
            name: op.log.name,
            key: op.log.key.into(),
            policy: op.policy.clone(),
            mode: op.mode,
            cost: op.cost,
            log: facts.log.clone(),
            received,
            until,
        };
        let entry = self.denials.entry(hash);
        // Compared behind the lock of the entry, which a change takes after it has counted itself.
        if self.changes(hash).load(Ordering::SeqCst) == changes {
            entry.insert(denial);
        }
    }

    /// Removes the expired denials, if that was not done just now. Returns whether there is room for another.
    fn make_room(&self, now: Instant) -> bool {
        match self.next_sweep.try_lock() {
            Ok(mut next) if now >= *next => *next = now + SWEEP_INTERVAL,
            _ => return false,
        }
        self.denials.retain(|_, denial| now < denial.until);
        self.denials.len() < self.max_keys
    }

    fn changes(&self, hash: u64) -> &AtomicU64 {
        // The upper bits: the table uses the lower ones.
        &self.changes[(hash >> 32) as usize % CHANGE_COUNTERS]
    }

    fn forget(&self, log: LogKey<'_>) {
        let hash = self.hash(log);
        self.changes(hash).fetch_add(1, Ordering::SeqCst);
        self.denials.remove(&hash);
    }
}

/// Forgets the denial of a log once a change is over, also if the change fails or is dropped: it may have had its effect.
struct Forget<'a>(&'a Cache, LogKey<'a>);

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        self.0.forget(self.1);
    }
}

#[async_trait]
impl<S: WindowStore> WindowStore for DenialCache<S> {
    async fn apply(&self, op: Op<'_>) -> Result<Facts, Error> {
        if let Some(facts) = self.cache.find(&op) {
            return Ok(facts);
        }
        let (sent, changes) = (Instant::now(), self.cache.changes(self.cache.hash(op.log)).load(Ordering::SeqCst));
        let forget = Forget(&self.cache, op.log);
        let facts = self.store.apply(op).await?;
        if facts.outcome == Outcome::Nothing {
            std::mem::forget(forget);
            self.cache.keep(&op, &facts, sent, self.max_age, changes);
        }
        Ok(facts)
    }

    async fn settle(&self, settlement: Settlement<'_>) -> Result<SettlementFacts, Error> {
        let _forget = Forget(&self.cache, settlement.log);
        self.store.settle(settlement).await
    }

    async fn reset(&self, log: LogKey<'_>) -> Result<bool, Error> {
        let _forget = Forget(&self.cache, log);
        self.store.reset(log).await
    }

    async fn apply_all(&self, ops: &[JointOp<'_>]) -> Result<Option<JointFacts>, Error> {
        let known: Option<JointFacts> = ops.iter().map(|joint| self.cache.find(&joint.op).map(Ok)).collect();
        if known.is_some() {
            return Ok(known);
        }
        let changes = |joint: &JointOp<'_>| self.cache.changes(self.cache.hash(joint.op.log)).load(Ordering::SeqCst);
        let sent = Instant::now();
        let changing: Vec<_> = ops.iter().map(|joint| (changes(joint), Forget(&self.cache, joint.op.log))).collect();
        let results = self.store.apply_all(ops).await?;
        for ((joint, (changes, forget)), facts) in ops.iter().zip(changing).zip(results.iter().flatten()) {
            if let Ok(facts) = facts
                && facts.outcome == Outcome::Nothing
            {
                std::mem::forget(forget);
                self.cache.keep(&joint.op, facts, sent, self.max_age, changes);
            }
        }
        Ok(results)
    }

    fn try_decide(&self, op: Op<'_>, otherwise: Otherwise<'_>) -> Poll<Result<Decision, Error>> {
        let attempted = || {
            if let Some(facts) = self.cache.find(&op) {
                return Some(op.checked().map(|op| decide(&op, facts)));
            }
            let decision = attempt(&self.store, op)?;
            if decision.as_ref().is_ok_and(Decision::appended) {
                self.cache.forget(op.log);
            }
            Some(decision)
        };
        attempted().map_or_else(otherwise, Poll::Ready)
    }

    fn timer(&self) -> Option<&dyn Timer> {
        self.store.timer()
    }

    fn place(&self, log: LogKey<'_>) -> LogPlace {
        self.store.place(log).through(&*self.cache)
    }
}
