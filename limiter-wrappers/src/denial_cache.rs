//! Denials that need no round trip.
//!
//! Where only admitted requests count, a denial is a promise: until the next entry expires, nothing about the log changes unless
//! somebody changes it. So the same request can be answered from here until that instant.
//!
//! The instant is on the store's clock. The store read its clock between sending and receiving, so by the local clock the instant
//! lies between `sent + wait` and `received + wait`. The cache forgets the denial at `sent + wait`, so it never denies late.
//! What it reports counts from `received`, so a retry-after is never too short.

use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dashmap::DashMap;
use foldhash::fast::RandomState;
use limiter_core::store::{At, Facts, LogFacts, LogKey, Mode, Op, Outcome, Settlement, SettlementFacts, decide};
use limiter_core::{Counting, Decision, Error, Name, Policy, Timer, Timestamp, WindowStore};
use tokio::time::Instant;

/// Answers repeated denials without the store.
///
/// A denial is kept until the next entry of its log expires, which is when its fields change. Until then the same request gets
/// the same decision, with the time passed taken off. Only denials at the store's clock, under a policy that counts admitted
/// requests, without an idempotency key, are kept.
///
/// A settlement, refund, reset or record through this wrapper forgets the denials of its log. Changes by other processes show
/// when the denial expires: a key that another process unblocks stays denied here until then. The cache assumes that the
/// store's clock does not step and runs at the speed of the local one.
///
/// Clones share one cache.
///
/// # Cancel safety
/// As the store's.
#[derive(Clone, Debug)]
pub struct DenialCache<S> {
    store: S,
    cache: Arc<Cache>,
}

#[derive(Debug)]
struct Cache {
    /// By the hash of the log. One denial for each.
    denials: DashMap<u64, Denial, RandomState>,
    hasher: RandomState,
    max_keys: usize,
    /// Counts the changes made through this wrapper: a denial that was under way during one may be outdated.
    changes: AtomicU64,
}

#[derive(Debug)]
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
        Facts { admitted: false, outcome: Outcome::Nothing, log: LogFacts { now, ..self.log.clone() } }
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
            changes: AtomicU64::new(0),
        };
        Self { store, cache: Arc::new(cache) }
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
        self.cache.denials.is_empty()
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
        if self.denials.is_empty() || !Self::is_cacheable(op) {
            return None;
        }
        let denial = self.denials.get(&self.hash(op.log))?;
        let now = Instant::now();
        (now < denial.until && denial.answers(op)).then(|| denial.facts(now))
    }

    /// Keeps the facts if they are a denial whose fields hold for some time.
    fn keep(&self, op: &Op<'_>, facts: &Facts, sent: Instant, changes: u64) {
        if facts.admitted || facts.outcome != Outcome::Nothing || !Self::is_cacheable(op) {
            return;
        }
        let now = facts.log.now.as_micros();
        let used = facts.log.usage.iter().zip(op.policy.limits()).filter(|(usage, _)| usage.used > 0);
        // Usage above the maximum hides older entries, whose expiry changes nothing that is reported.
        let expiries = used.map(|(usage, limit)| usage.oldest.as_micros() + limit.window().as_micros());
        let Some(wait) = expiries.min().and_then(|expiry| expiry.checked_sub(now)) else { return };
        let received = Instant::now();
        let Some(until) = sent.checked_add(Duration::from_micros(wait)).filter(|until| received < *until) else {
            return;
        };
        let hash = self.hash(op.log);
        if self.denials.len() >= self.max_keys && !self.denials.contains_key(&hash) {
            self.denials.retain(|_, denial| received < denial.until);
            if self.denials.len() >= self.max_keys {
                return;
            }
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
        // Checked behind the lock of the entry, which a change takes after it has counted itself.
        if self.changes.load(Ordering::SeqCst) == changes {
            entry.insert(denial);
        }
    }

    fn changes(&self) -> u64 {
        self.changes.load(Ordering::SeqCst)
    }

    fn forget(&self, log: LogKey<'_>) {
        self.changes.fetch_add(1, Ordering::SeqCst);
        self.denials.remove(&self.hash(log));
    }
}

impl<S: WindowStore> WindowStore for DenialCache<S> {
    async fn apply(&self, op: Op<'_>) -> Result<Facts, Error> {
        if let Some(facts) = self.cache.find(&op) {
            return Ok(facts);
        }
        if op.mode == Mode::Record {
            let answer = self.store.apply(op).await;
            self.cache.forget(op.log);
            return answer;
        }
        let (sent, changes) = (Instant::now(), self.cache.changes());
        let facts = self.store.apply(op).await?;
        self.cache.keep(&op, &facts, sent, changes);
        Ok(facts)
    }

    async fn settle(&self, settlement: Settlement<'_>) -> Result<SettlementFacts, Error> {
        let answer = self.store.settle(settlement).await;
        self.cache.forget(settlement.log);
        answer
    }

    async fn reset(&self, log: LogKey<'_>) -> Result<bool, Error> {
        let answer = self.store.reset(log).await;
        self.cache.forget(log);
        answer
    }

    fn decide_at_once(&self, op: Op<'_>) -> Option<Result<Decision, Error>> {
        match self.cache.find(&op) {
            Some(facts) => Some(op.checked().map(|op| decide(&op, facts))),
            None => self.store.decide_at_once(op),
        }
    }

    fn timer(&self) -> Option<&dyn Timer> {
        self.store.timer()
    }
}
