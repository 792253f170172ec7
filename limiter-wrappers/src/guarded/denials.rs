//! Denials that need no round trip.
//!
//! If only admitted requests count, a denial stays valid until the next entry expires, unless an operation changes the log. The
//! cache repeats the denial until then.
//!
//! The instant is on the store's clock. The store read its clock between sending and receiving, so by the local clock the instant
//! lies between `sent + wait` and `received + wait`. The cache forgets the denial at `sent + wait`, so it never denies late.
//! The time that a cached decision reports counts from `received`. It lags behind the store's clock by at most the round trip, so
//! a retry-after is never too short.
//!
//! An append by another process releases no unit: usage grows, and an entry that merges counts for longer. So a cached denial
//! stays right. Its retry-after does not count the append, like any decision's.

use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dashmap::DashMap;
use foldhash::fast::SeedableRandomState;
use limiter_core::store::{At, Facts, LogFacts, LogKey, Mode, Op, Outcome};
use limiter_core::{Counting, Name, Policy};
use tokio::time::Instant;

/// Enough that changes of other logs seldom keep a denial from being cached.
const CHANGE_COUNTERS: usize = 256;

/// The denials of a store. Caches only denials by the store's clock, with a policy that counts admitted requests and without an
/// idempotency key.
pub(super) struct Denials {
    /// By the hash of the log, modulo the capacity. The latest denial stays.
    denials: DashMap<u64, Denial, SeedableRandomState>,
    hasher: SeedableRandomState,
    max_keys: u64,
    max_age: Duration,
    /// Count the changes made through this wrapper, by the hash of the log. A denial that was under way during a change may be
    /// outdated.
    changes: [AtomicU64; CHANGE_COUNTERS],
}

struct Denial {
    hash: u64,
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
    fn covers(&self, op: &Op<'_>) -> bool {
        self.name == op.log.name
            && *self.key == *op.log.key
            && self.cost == op.cost
            && self.mode == op.mode
            && self.policy == *op.policy
    }

    fn facts(&self, now: Instant) -> Facts {
        let passed = now.duration_since(self.received);
        let clock = self.log.clock.saturating_add(passed);
        // While the clock is behind the newest entry, the log's time stands still.
        let log = LogFacts {
            now: clock.max(self.log.now),
            clock,
            ..self.log.clone()
        };
        Facts {
            admitted: false,
            refundable: false,
            outcome: Outcome::Nothing,
            log,
        }
    }
}

impl Denials {
    pub(super) fn new(max_keys: usize, max_age: Duration, hasher: SeedableRandomState) -> Self {
        Self {
            denials: DashMap::with_hasher(hasher.clone()),
            hasher,
            max_keys: max_keys as u64,
            max_age,
            changes: [const { AtomicU64::new(0) }; CHANGE_COUNTERS],
        }
    }

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
    pub(super) fn find(&self, op: &Op<'_>) -> Option<Facts> {
        if !Self::is_cacheable(op) {
            return None;
        }
        let place = self.hash(op.log).checked_rem(self.max_keys)?;
        let denial = self.denials.get(&place)?;
        let now = Instant::now();
        (now < denial.until && denial.covers(op)).then(|| denial.facts(now))
    }

    /// Begins a call that may change a log.
    pub(super) fn watch(&self, log: LogKey<'_>) -> Watch<'_> {
        let hash = self.hash(log);
        let changes = self.changes(hash).load(Ordering::SeqCst);
        Watch {
            denials: self,
            hash,
            changes,
            sent: Instant::now(),
            has_changed: true,
        }
    }

    fn forget(&self, hash: u64) {
        self.changes(hash).fetch_add(1, Ordering::SeqCst);
        if let Some(place) = hash.checked_rem(self.max_keys) {
            self.denials
                .remove_if(&place, |_, denial| denial.hash == hash);
        }
    }

    fn changes(&self, hash: u64) -> &AtomicU64 {
        // The upper bits: the table uses the lower ones.
        &self.changes[(hash >> 32) as usize % CHANGE_COUNTERS]
    }
}

/// A call under way. At its end, forgets the denial of its log, even if it fails or is dropped, because it may have taken
/// effect.
pub(super) struct Watch<'a> {
    denials: &'a Denials,
    hash: u64,
    changes: u64,
    sent: Instant,
    has_changed: bool,
}

impl Watch<'_> {
    /// Ends the call with its facts, and keeps them if they are a denial whose fields hold for some time.
    pub(super) fn end(mut self, op: &Op<'_>, facts: &Facts) {
        self.has_changed = facts.outcome != Outcome::Nothing;
        if self.has_changed || facts.admitted || !Denials::is_cacheable(op) {
            return;
        }
        let Self { denials, hash, .. } = self;
        let clock = facts.log.clock.as_micros();
        let limits = facts.log.usage.iter().zip(op.policy.limits());
        let used = limits.filter(|(usage, _)| usage.used > 0);
        let expiries =
            used.map(|(usage, limit)| usage.oldest.as_micros() + limit.window().as_micros());
        let Some(wait) = expiries.min().and_then(|expiry| expiry.checked_sub(clock)) else {
            return;
        };
        let received = Instant::now();
        let age = denials.max_age.min(Duration::from_micros(wait));
        let Some(until) = self.sent.checked_add(age).filter(|until| received < *until) else {
            return;
        };
        let Some(place) = hash.checked_rem(denials.max_keys) else {
            return;
        };
        let denial = Denial {
            hash,
            name: op.log.name,
            key: op.log.key.into(),
            policy: op.policy.clone(),
            mode: op.mode,
            cost: op.cost,
            log: facts.log.clone(),
            received,
            until,
        };
        let entry = denials.denials.entry(place);
        // Compared behind the lock of the entry, which a change takes after it has counted itself.
        if denials.changes(hash).load(Ordering::SeqCst) == self.changes {
            entry.insert(denial);
        }
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        if self.has_changed {
            self.denials.forget(self.hash);
        }
    }
}
