//! The store: what a limiter calls.

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};

use async_trait::async_trait;
use limiter_core::store::{self, At, Facts, JointOp, LogKey, Op, Settlement, SettlementFacts};
use limiter_core::{Decision, Error, KeyBuf, Name, SyncStore, Timestamp, WindowStore};

use crate::clock;
use crate::evaluate::{self, apply_any};
use crate::log::inline::NUMBERS;
use crate::log::{LogForm, LogParts};
use crate::placement::lock::{Guard, LogGuard};
use crate::placement::{DirectSlot, Located, Placement, Vacancy};
use crate::saved;

/// A log's first number is below this, so that an inline log can append for long before its numbers run out.
const FIRST_NUMBERS: u32 = NUMBERS / 2;

/// The golden section of [`FIRST_NUMBERS`]: steps of it keep the first numbers of many successive logs far apart.
const FIRST_NUMBER_STEP: u32 = 5_184_335;

/// An in-process store: an exact sliding-window log for each name and key.
///
/// To share a store between limiters or threads, put it in an [`Arc`](std::sync::Arc).
///
/// # Memory
/// Preallocates 256 KiB unless `max_keys` is below 65,536, and with `max_keys` another 64 bytes for each 128 to 256 keys, up to
/// 256 KiB.
///
/// | item | bytes |
/// |---|---|
/// | a key of up to 18 bytes with up to four entries of cost 1 | one slot of 64 |
/// | a longer key | its length plus 16, in addition to the slot |
/// | an entry after the fourth | 4; 8 if a window exceeds 71 minutes or costs differ; 16 if both apply |
/// | a policy of several limits | 32 for each log of more than four entries |
/// | an entry of a log that has seen an idempotency key, a refund, a settlement, a renewal or a resolution | 24 |
///
/// A log's capacity is one to four times its number of entries. A hash table that has only grown is between half and three quarters full.
///
/// A hit of a known key does not allocate, unless the policy has more than four limits.
///
/// # Eviction
/// Keys whose entries have all expired are evicted:
/// - when a fresh key needs their slot;
/// - before a full shard grows;
/// - by [`sweep`](Self::sweep), which a program may call now and then to get memory back that no fresh key needs.
///
/// [`with_max_keys`](Self::with_max_keys) also evicts keys that have not expired.
///
/// # Performance
/// Operations are amortised O(1), independent of the limit, the cost and the number of windows. On a log that has seen an
/// idempotency key, a refund, a settlement, a renewal or a resolution, they are logarithmic in its length. A settlement, a refund or a
/// renewal takes time proportional to the number of entries that are newer than the one it changes; a renewal in a log with
/// idempotency keys, linear time.
///
/// Some inserts take longer: inserts that grow or sweep a shard, and one at about 6,000 keys that moves all keys from direct
/// slots to the shards. `benches/RESULTS.md` in the repository has measurements.
///
/// # Locking
/// Each operation locks only its key's slot or shard, and never across an `.await`. A contended lock spins with exponential
/// backoff, then yields, then sleeps.
pub struct MemoryStore {
    placement: Placement,
    logs_begun: AtomicU32,
    /// How far the store's clock is ahead of the process's, modulo 2^64.
    clock_ahead: u64,
}

#[cold]
#[inline(never)]
fn the_end() -> Timestamp {
    Timestamp::MAX
}

impl MemoryStore {
    /// Returns an empty store without a bound on the number of keys.
    #[must_use]
    pub fn new() -> Self {
        Self::with_max_keys(usize::MAX)
    }

    /// Returns an empty store that never holds more than `max_keys` keys. 0 is treated as 1.
    ///
    /// A fresh key in a full shard evicts an expired key, otherwise the key with the fewest entries, or units where entries
    /// merge. Among equals, it prefers the least recently used. A flood of fresh keys therefore evicts itself. It cannot
    /// unblock a client that is over its limit, unless that client's log has a single entry. An evicted key starts again with
    /// an empty log.
    ///
    /// The bound is split evenly over up to 4,096 shards, so eviction may begin a few per cent below it.
    #[must_use]
    pub fn with_max_keys(max_keys: usize) -> Self {
        Self {
            placement: Placement::new(max_keys.max(1)),
            logs_begun: AtomicU32::new(0),
            clock_ahead: 0,
        }
    }

    /// Sets the store's clock to `now`, from which it runs on. Default: the system's time when the process began to count.
    ///
    /// A store whose logs are [imported](Self::import) continues the clock of the store that exported them. So entries keep
    /// their ages and receipts stay valid, even if the system's clock has been set meanwhile.
    #[must_use]
    pub fn with_clock_at(self, now: Timestamp) -> Self {
        let clock_ahead = now.as_micros().wrapping_sub(clock::micros());
        Self {
            clock_ahead,
            ..self
        }
    }

    #[inline(always)]
    fn now(&self) -> Timestamp {
        // A branch, which is predicted: a select takes a nanosecond.
        let micros = clock::micros().wrapping_add(self.clock_ahead);
        Timestamp::from_micros(micros).unwrap_or_else(|_| the_end())
    }

    #[inline(always)]
    fn time(&self, at: At) -> Timestamp {
        match at {
            At::StoreClock => self.now(),
            At::Given(given) => given,
        }
    }

    /// Returns the number of keys, including expired keys that have not been evicted yet.
    ///
    /// Approximate while other threads use the store: a key that moves to a shard may be missed or counted twice. Locks each
    /// slot and shard in turn.
    #[must_use]
    pub fn len(&self) -> usize {
        self.placement.len()
    }

    /// Returns `true` if the store holds no keys. See [`len`](Self::len).
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns a log's number of entries, including expired entries that no append has dropped yet.
    ///
    /// 0 if the store does not hold the log.
    #[must_use]
    pub fn entries(&self, log: LogKey<'_>) -> usize {
        let found = self.placement.find(log.name.id(), log.key);
        found.map_or(0, |log| log.len())
    }

    /// Evicts all keys whose entries have expired by the store's clock, and returns the number of evicted keys.
    ///
    /// Locks one slot or shard at a time, and frees the memory. A key whose last append had a caller-supplied time stays; see
    /// [`sweep_at`](Self::sweep_at).
    pub fn sweep(&self) -> usize {
        let now = self.now();
        self.placement.sweep(|log| log.has_expired(now))
    }

    /// Evicts all keys whose entries have expired at `given`, and returns the number of evicted keys.
    ///
    /// Unlike [`sweep`](Self::sweep), it includes keys whose last append had a caller-supplied time.
    pub fn sweep_at(&self, given: Timestamp) -> usize {
        let is_over = |log: &LogForm| {
            log.newest()
                .is_none_or(|newest| log.lifetime().is_over_at(newest, given))
        };
        self.placement.sweep(is_over)
    }

    /// Returns a copy of each log, with its limiter's name and its key.
    ///
    /// With [`import`](Self::import), counts survive a restart. A log that is in the store all the time is returned at least once,
    /// as it was at some time during the iteration; a second time it is newer. Logs that come or go meanwhile may be missed.
    ///
    /// # Locking
    /// Each step locks one slot or shard, to copy at most a few dozen logs.
    pub fn export(&self) -> impl Iterator<Item = (Name, KeyBuf, store::Log)> {
        let mut names = Name::all();
        self.placement.copies().filter_map(move |keyed| {
            let (id, key) = keyed.key.parts();
            if id as usize >= names.len() {
                names = Name::all();
            }
            let name = *names.get(id as usize)?;
            let key = KeyBuf::from(key);
            Some((name, key, saved::export(keyed.log)))
        })
    }

    /// Puts a log in the place of the key's log, unless it has expired. Receipts of its entries stay valid.
    ///
    /// With [`with_max_keys`](Self::with_max_keys), this may evict another key, as an insert does.
    pub fn import(&self, key: LogKey<'_>, log: &store::Log) {
        let log = saved::import(log);
        if !log.has_expired(self.now()) {
            self.placement
                .replace(key.name.id(), key.key, log, || self.now());
        }
    }

    /// Decides an operation. Of a common log in a direct slot it does so here, and wraps the decision where it is made: to move it takes
    /// half as long as to make it. All others are decided by calls that no other crate compiles again.
    #[inline(always)]
    fn decide<R>(&self, op: Op<'_>, wrap: impl Fn(Result<Decision, Error>) -> R) -> R {
        if !op.is_checked() {
            return wrap(self.check_and_decide(op));
        }
        let name = op.log.name.id();
        let key = op.log.key;
        let hash = self.placement.hash(name, key);
        if !self.placement.has_direct_slots() {
            return wrap(self.decide_in_shard(None, hash, op));
        }
        // Reading the clock behind a lock stalls on Intel; read it first.
        let now = self.time(op.at);
        match self.placement.find_direct(hash, name, key) {
            Ok(log) => evaluate::apply(log, &op, now, &wrap, |log| {
                wrap(decide_in_slot(log, op, now))
            }),
            Err(slot) => wrap(self.decide_in_shard(Some(slot), hash, op)),
        }
    }

    #[cold]
    #[inline(never)]
    fn check_and_decide(&self, op: Op<'_>) -> Result<Decision, Error> {
        self.decide_now(op.checked()?)
    }

    #[inline(never)]
    fn decide_in_shard(
        &self,
        slot: Option<Guard<'_, DirectSlot>>,
        hash: u64,
        op: Op<'_>,
    ) -> Result<Decision, Error> {
        let found = self
            .placement
            .find_in_shard(slot, hash, op.log.name.id(), op.log.key);
        // The clock is free while the bucket comes from memory. A fresh key needs a time from behind the lock: it may have
        // had a log with a later entry, which has expired since.
        let now = self.time(op.at);
        match found {
            Ok(log) => evaluate::apply(
                log,
                &op,
                now,
                |decision| decision,
                |mut log| evaluate::apply_rest(log.parts(), &op, now),
            ),
            Err(vacancy) => self.insert(vacancy, op.log, |log| {
                evaluate::apply_rest((log, None), &op, now)
            }),
        }
    }

    /// Applies an operation without haste. `clock` returns its time.
    fn facts(&self, op: Op<'_>, clock: impl Fn(At) -> Timestamp) -> Facts {
        match self.placement.locate(op.log.name.id(), op.log.key) {
            Located::InSlot(mut log) => apply_any(log.parts(), &op, clock(op.at)),
            Located::InShard(mut log) => apply_any(log.parts(), &op, clock(op.at)),
            Located::Nowhere(vacancy) => {
                let now = clock(op.at);
                self.insert(vacancy, op.log, |log| apply_any((log, None), &op, now))
            }
        }
    }

    /// Returns the facts of an operation if it repeats another, otherwise those of its peek.
    fn preview(&self, op: &Op<'_>, now: Timestamp) -> Facts {
        let found = self.placement.find(op.log.name.id(), op.log.key);
        let repeated = found.as_deref().and_then(|log| log.repeated(op, now));
        drop(found);
        repeated.unwrap_or_else(|| self.facts(op.to_peek(), |_| now))
    }

    /// Applies an operation to a new log, and inserts it unless it is empty.
    #[inline(never)]
    fn insert<T>(
        &self,
        vacancy: Vacancy<'_>,
        LogKey { name, key }: LogKey<'_>,
        apply: impl FnOnce(&mut LogForm) -> T,
    ) -> T {
        let mut log = LogForm::new(self.first_number());
        let result = apply(&mut log);
        if log.newest().is_some() {
            self.placement
                .insert(vacancy, name.id(), key, log, || self.now());
        }
        result
    }

    /// Returns the number of a new log's first entry. It is far from the numbers of the key's earlier logs, so that a receipt from
    /// that log matches no entry of the same microsecond in this one.
    fn first_number(&self) -> u32 {
        let begun = self.logs_begun.fetch_add(1, Ordering::Relaxed);
        begun.wrapping_mul(FIRST_NUMBER_STEP) % FIRST_NUMBERS
    }
}

#[inline(never)]
fn decide_in_slot(mut log: LogGuard<'_>, op: Op<'_>, now: Timestamp) -> Result<Decision, Error> {
    evaluate::apply_rest(log.parts(), &op, now)
}

impl SyncStore for MemoryStore {
    fn apply_now(&self, op: &Op<'_>) -> Facts {
        self.facts(*op, |at| self.time(at))
    }

    #[inline(always)]
    fn decide_now(&self, op: Op<'_>) -> Result<Decision, Error> {
        self.decide(op, |decision| decision)
    }

    fn apply_all_now(&self, ops: &[JointOp<'_>]) -> Vec<Facts> {
        // All happen at the store's clock or all at one given time.
        let now = self.time(ops.first().map_or(At::StoreClock, |joint| joint.op.at));
        let preview = |joint: &JointOp<'_>| self.preview(&joint.op, now);
        let alone: Vec<Facts> = ops.iter().map(preview).collect();
        let held = JointOp::held(ops, &alone).zip(ops);
        let apply = |(is_held, JointOp { op, .. }): (bool, &JointOp<'_>)| {
            let op = if is_held { op.to_peek() } else { *op };
            self.facts(op, |_| now)
        };
        held.map(apply).collect()
    }

    fn settle_now(&self, settlement: &Settlement<'_>) -> SettlementFacts {
        let LogKey { name, key } = settlement.log;
        let mut found = self.placement.find(name.id(), key);
        // Behind the lock: an entry appended before the call must not be newer.
        let now = self.time(settlement.at);
        let mut none = LogForm::new(0);
        evaluate::settle(found.as_deref_mut().unwrap_or(&mut none), settlement, now)
    }

    fn reset_now(&self, log: LogKey<'_>) -> bool {
        self.placement
            .remove(log.name.id(), log.key)
            .is_some_and(|log| log.newest().is_some())
    }

    fn read_clock(&self) -> Timestamp {
        self.now()
    }
}

#[async_trait]
impl WindowStore for MemoryStore {
    async fn apply(&self, op: Op<'_>) -> Result<Facts, Error> {
        Ok(self.apply_now(&op))
    }

    async fn settle(&self, settlement: Settlement<'_>) -> Result<SettlementFacts, Error> {
        Ok(self.settle_now(&settlement))
    }

    async fn reset(&self, log: LogKey<'_>) -> Result<bool, Error> {
        Ok(self.reset_now(log))
    }

    #[inline(always)]
    fn try_decide(&self, op: Op<'_>) -> Option<Result<Decision, Error>> {
        self.decide(op, Some)
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MemoryStore {
    /// Never locks, so it prints neither keys nor counts.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore")
            .field("direct_slots", &self.placement.has_direct_slots())
            .finish_non_exhaustive()
    }
}
