//! The store: logs in lines and in shards.

use std::fmt;
use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::Poll;
use std::thread;

use limiter_core::internal::{self, SizedFacts};
use limiter_core::store::{At, Facts, LogKey, Op, Settlement, SettlementFacts, decide};
use limiter_core::{Decision, Error, Limit, NowStore, Timestamp, WindowStore};

use crate::clock;
use crate::common::Look;
use crate::few::Few;
use crate::key::Key;
use crate::line::{Line, Slot};
use crate::locks::{Lock, Locked, Locks, Mapped};
use crate::log::{Common, Log};
use crate::ring::HINTS;
use crate::sweep::{has_expired, make_room, sweep, sweep_or_grow};
use crate::table::Table;

/// How many lines a store has, if any.
const LINES: usize = 4096;

/// Four would do; more of them make it rare that two threads meet.
const SHARDS_PER_THREAD: usize = 32;

/// The first numbers of a store's logs go through half of what there is in steps of the golden section, which keeps those
/// of many successive logs far apart.
const NUMBERS: u32 = Few::NUMBERS / 2;
const NUMBER_STEP: u32 = 5_184_335;

/// Takes the short way with these entries if it can. Each form of a log, and each verdict, returns on its own, so that none
/// has to write its facts where all can find them.
macro_rules! shortly {
    ($limits:expr, $entries:expr, $op:expr, $now:expr $(, $unlock:expr)?) => {{
        let entries = $entries;
        if let Some(look) = Look::<{ $limits }>::new(entries, $op, $now) {
            let limits = look.limits;
            if $op.appends(look.admitted) {
                // What is appended in spite of a denial takes the long way.
                if look.admitted && look.is_taken(entries, $op) {
                    let facts = look.append(entries, $op);
                    $($unlock;)?
                    return A::common($op, limits, facts);
                }
            } else if let Some(facts) = look.facts(entries, $op) {
                $($unlock;)?
                return A::common($op, limits, facts);
            }
        }
    }};
}

/// An in-process store: an exact sliding-window log for each name and key.
///
/// To share a store between limiters or threads, put it in an [`Arc`](std::sync::Arc).
///
/// # Memory
/// Preallocates 256 KiB unless `max_keys` is below 65,536.
///
/// | item | bytes |
/// |---|---|
/// | a key of up to 18 bytes with up to four entries of cost 1 | one slot of 64 |
/// | a longer key | its length plus 16, in addition to the slot |
/// | an entry beyond four | 4; 8 if a window exceeds 71 minutes or costs differ; 16 if both apply |
/// | a policy of several limits | 32 for each log of more than four entries |
/// | an entry of a log that has seen an idempotency key, a refund or a settlement | 24 |
///
/// A log's capacity is one to four times its number of entries. A hash table that has only grown is 7/12 to 7/8 full.
///
/// A hit of a known key does not allocate, unless the policy has more than four limits.
///
/// # Eviction
/// Keys whose entries have all expired are evicted:
/// - when a fresh key needs their slot;
/// - before a full shard grows;
/// - by [`sweep`](Self::sweep), or a [`Sweeper`](crate::Sweeper).
///
/// [`with_max_keys`](Self::with_max_keys) also evicts keys that have not expired.
///
/// # Performance
/// Operations are amortised O(1), independent of the limit, the cost and the number of windows. A settlement or a refund
/// takes time proportional to the number of entries that are newer than the one it changes.
///
/// Some inserts take longer: those that grow or sweep a shard, and one at about 6,000 keys that moves all keys from direct
/// slots to the shards. `benches/RESULTS.md` in the repository has measurements.
///
/// # Locking
/// Each operation locks only its key's slot or shard, and never across an `.await`. A contended lock spins with exponential
/// backoff, then yields, then sleeps.
pub struct MemoryStore {
    /// Each for one key. Locked before the key's shard.
    lines: Locks<Line>,
    /// Whether all lines are closed, for good.
    lines_closed: AtomicBool,
    /// For all keys that are not in a line.
    shards: Locks<Table>,
    /// With so many keys in a shard the lines are closed.
    crowded: usize,
    max_keys_per_shard: usize,
    /// Per store: a stranger who picks the keys cannot pick collisions.
    seed: foldhash::fast::RandomState,
    logs_begun: AtomicU32,
}

impl MemoryStore {
    /// Returns an empty store without a bound on the number of keys.
    #[must_use]
    pub fn new() -> Self {
        Self::build(usize::MAX)
    }

    /// Returns an empty store that never holds more than `max_keys` keys. 0 is treated as 1.
    ///
    /// When a shard is full, an insert evicts expired keys first, then the keys with the fewest entries. Among equals, it
    /// evicts the key whose newest entry is oldest. A flood of fresh keys therefore evicts itself, and cannot free a client
    /// that is over its limit. An evicted key starts again with an empty log.
    #[must_use]
    pub fn with_max_keys(max_keys: usize) -> Self {
        Self::build(max_keys.max(1))
    }

    fn build(max_keys: usize) -> Self {
        let threads = thread::available_parallelism().map_or(4, usize::from);
        // A shard with room for a hundred keys or so evens out how the hash spreads them.
        let shards = Locks::new((threads * SHARDS_PER_THREAD).next_power_of_two().min(max_keys / 128 + 1));
        // `make_room` does not see the keys in lines. So they are closed before a shard is full, or from the beginning.
        let lines_closed = max_keys / 16 < LINES;
        Self {
            lines: Locks::new(if lines_closed { 1 } else { LINES }),
            lines_closed: lines_closed.into(),
            crowded: (LINES / shards.len()).max(8),
            max_keys_per_shard: (max_keys / shards.len()).max(1),
            shards,
            seed: foldhash::fast::RandomState::default(),
            logs_begun: AtomicU32::new(0),
        }
    }

    /// Returns the number of keys, including expired keys that have not been evicted yet.
    ///
    /// Approximate while other threads use the store: a key that moves to a shard may be missed or counted twice. Locks each
    /// slot and shard in turn.
    #[must_use]
    pub fn len(&self) -> usize {
        let lines = self.open_lines().filter(|line| matches!(*line.lock(), Line::Taken(_))).count();
        lines + self.shards.iter().map(|shard| shard.lock().len()).sum::<usize>()
    }

    /// Returns whether the store holds no keys. See [`len`](Self::len).
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of entries of a log, including expired entries that no append has dropped yet.
    ///
    /// 0 if the store does not hold the log.
    #[must_use]
    pub fn entries(&self, log: LogKey<'_>) -> usize {
        self.find(log.name.id(), log.key).map_or(0, |log| log.len())
    }

    /// Evicts all keys whose entries have expired by the store's clock, and returns the number of evicted keys.
    ///
    /// Locks one slot or shard at a time, and frees the memory. A key whose last append had a caller-supplied time stays; see
    /// [`sweep_at`](Self::sweep_at).
    pub fn sweep(&self) -> usize {
        let now = clock::now();
        self.sweep_where(|log| has_expired(log, now))
    }

    /// Evicts all keys whose entries have expired at `given`, and returns the number of evicted keys.
    ///
    /// Unlike [`sweep`](Self::sweep), it includes keys whose last append had a caller-supplied time.
    pub fn sweep_at(&self, given: Timestamp) -> usize {
        self.sweep_where(|log| log.newest().is_none_or(|newest| log.keep().is_over_at(newest, given)))
    }

    fn sweep_where(&self, is_over: impl Fn(&Log) -> bool) -> usize {
        let is_over_in = |line: &mut Line| line.take_if(|slot| is_over(&slot.log)).is_some();
        let lines = self.open_lines().filter(|line| is_over_in(&mut line.lock())).count();
        lines + self.shards.iter().map(|shard| sweep(&mut shard.lock(), self.rehash(), &is_over)).sum::<usize>()
    }

    fn open_lines(&self) -> impl Iterator<Item = &Lock<Line>> {
        self.lines.iter().take(if self.are_lines_closed() { 0 } else { self.lines.len() })
    }

    #[inline(always)]
    fn are_lines_closed(&self) -> bool {
        self.lines_closed.load(Ordering::Acquire)
    }

    #[inline(always)]
    fn hash(&self, name: u32, key: &[u8]) -> u64 {
        let mut hasher = self.seed.build_hasher();
        hasher.write(key);
        // Names are few and nobody's choice but the program's, so they need no more than to spread the equal keys of several.
        hasher.finish() ^ u64::from(name).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    fn rehash(&self) -> impl Fn(&Key) -> u64 {
        |key| {
            let (name, key) = key.parts();
            self.hash(name, key)
        }
    }

    /// The log of a key, or where to put one.
    fn find(&self, name: u32, key: &[u8]) -> Result<Found<'_>, Missing<'_>> {
        let hash = self.hash(name, key);
        if self.are_lines_closed() {
            self.find_in_shard(None, hash, name, key)
        } else {
            self.find_in_line(hash, name, key)
        }
    }

    #[inline(always)]
    fn find_in_line(&self, hash: u64, name: u32, key: &[u8]) -> Result<Found<'_>, Missing<'_>> {
        match Locked::try_map(self.lines.of(hash).lock(), |line| line.log_of(name, key)) {
            Ok(log) => Ok(log),
            Err(line) => self.find_beside(line, hash, name, key),
        }
    }

    /// The log of a key that is not in its line. It moves there if that is vacant.
    #[inline(never)]
    fn find_beside<'a>(
        &'a self,
        mut line: Locked<'a, Line>,
        hash: u64,
        name: u32,
        key: &[u8],
    ) -> Result<Found<'a>, Missing<'a>> {
        if let Line::Vacant = *line {
            let mut table = self.shards.of(hash).lock();
            if let Some(slot) = table.remove(hash, name, key, self.rehash()) {
                *line = Line::Taken(slot);
            }
            let moved = Locked::try_map(line, |line| line.log_of(name, key));
            return moved.map_err(|line| Missing { line: Some(line), table });
        }
        self.find_in_shard(Some(line), hash, name, key)
    }

    /// The log of a key in its shard. The line is unlocked only then: the key must not be put into both.
    #[inline(always)]
    fn find_in_shard<'a>(
        &'a self,
        line: Option<Locked<'a, Line>>,
        hash: u64,
        name: u32,
        key: &[u8],
    ) -> Result<Found<'a>, Missing<'a>> {
        let table = self.shards.of(hash).lock();
        Locked::try_map(table, |table| table.get_mut(hash, name, key).map(|slot| &mut slot.log))
            .map_err(|table| Missing { line, table })
    }

    #[cold]
    #[inline(never)]
    fn check_and_decide(&self, op: Op<'_>) -> Result<Decision, Error> {
        let op = op.checked()?;
        Ok(decide(&op, self.apply_now(&op)))
    }

    /// Applies an operation.
    // Apart at the two sorts of time: each step that depends on the sort would have to ask for it.
    #[inline(always)]
    fn run<A: Answer>(&self, op: &Op<'_>) -> A {
        match op.at {
            At::StoreClock => self.run_at(op, clock::now),
            At::Given(given) => self.run_at_given(*op, given),
        }
    }

    #[inline(never)]
    fn run_at_given<A: Answer>(&self, op: Op<'_>, given: Timestamp) -> A {
        self.run_at(&op, || given)
    }

    #[inline(always)]
    fn run_at<A: Answer>(&self, op: &Op<'_>, now: impl FnOnce() -> Timestamp) -> A {
        let (name, key) = (op.log.name.id(), op.log.key);
        let hash = self.hash(name, key);
        let (found, now) = if self.are_lines_closed() {
            // While the slot comes from memory the clock costs nothing.
            let found = self.find_in_shard(None, hash, name, key);
            (found, now())
        } else {
            // Right behind a lock the clock would wait for it.
            let now = now();
            (self.find_in_line(hash, name, key), now)
        };
        let mut log = match found {
            Ok(log) => log,
            Err(missing) => return A::uncommon(*op, self.insert(missing, *op, now)),
        };
        if op.policy.limits().len() != 1 {
            return apply_several(log, *op, now);
        }
        match log.common::<0>() {
            Common::Few(few) => shortly!(1, few, op, now, drop(log)),
            Common::Units(mut units) => shortly!(1, &mut units, op, now, drop(log)),
            Common::Costs(mut costs) => shortly!(1, &mut costs, op, now, drop(log)),
            Common::Wide(_) | Common::WideCosts(_) => return apply_wide(log, *op, now),
            Common::None => {}
        }
        apply_any(log, *op, now)
    }

    #[inline(never)]
    fn insert(&self, Missing { line, mut table }: Missing<'_>, op: Op<'_>, now: Timestamp) -> Facts {
        // Not a time from before the lock: there is no entry to clamp it to if the key had a log then that has expired since.
        let now = if line.is_some() { time(op.at) } else { now };
        let mut log = Log::new(self.first_number());
        let facts = log.apply(op, now);
        if facts.log.newest.is_none() {
            return facts;
        }
        let slot = Slot { key: Key::new(op.log.name.id(), op.log.key), log };
        if let Some(mut line) = line {
            line.take_if(|old| has_expired(&old.log, clock::now()));
            if let Line::Vacant = *line {
                *line = Line::Taken(slot);
                return facts;
            }
        }
        if table.len() >= self.max_keys_per_shard {
            make_room(&mut table, self.rehash(), clock::now(), self.max_keys_per_shard);
        } else if table.is_full() {
            sweep_or_grow(&mut table, self.rehash(), clock::now());
        }
        // Computed again: that the hash lives so long would cost each call that finds its key a register.
        table.insert(self.hash(op.log.name.id(), op.log.key), slot, self.rehash());
        let crowded = table.len() >= self.crowded;
        // A line must not be locked behind a shard.
        drop(table);
        if crowded && !self.are_lines_closed() {
            self.close_lines();
        }
        facts
    }

    /// Moves all keys to the shards. Until the last has moved, all operations begin with their key's line.
    #[cold]
    fn close_lines(&self) {
        for line in self.lines.iter() {
            let mut line = line.lock();
            if let Some(slot) = line.close() {
                let hash = self.rehash()(&slot.key);
                self.shards.of(hash).lock().insert(hash, slot, self.rehash());
            }
        }
        self.lines_closed.store(true, Ordering::Release);
    }

    /// The number of a new log's first entry: far from those of a log that the key may have had before, lest a receipt
    /// of that, from the same microsecond, names an entry of this.
    fn first_number(&self) -> u32 {
        let begun = self.logs_begun.fetch_add(1, Ordering::Relaxed);
        begun.wrapping_mul(NUMBER_STEP) % NUMBERS
    }
}

/// A key's log, and the lock of its line or shard.
type Found<'a> = Mapped<'a, Log>;

/// Where a key is not, and may be put.
struct Missing<'a> {
    /// `None` once all lines are closed.
    line: Option<Locked<'a, Line>>,
    table: Locked<'a, Table>,
}

#[inline(never)]
fn apply_wide<A: Answer>(mut log: Found<'_>, op: Op<'_>, now: Timestamp) -> A {
    match log.common::<0>() {
        Common::Wide(mut wide) => shortly!(1, &mut wide, &op, now, drop(log)),
        Common::WideCosts(mut wide) => shortly!(1, &mut wide, &op, now, drop(log)),
        _ => {}
    }
    apply_any(log, op, now)
}

#[inline(never)]
fn apply_several<A: Answer>(log: Found<'_>, op: Op<'_>, now: Timestamp) -> A {
    match op.policy.limits().len() {
        2 => apply_sized::<A, 2>(log, &op, now),
        3 => apply_sized::<A, 3>(log, &op, now),
        4 => apply_sized::<A, 4>(log, &op, now),
        _ => apply_any(log, op, now),
    }
}

#[inline(always)]
fn apply_sized<A: Answer, const N: usize>(mut log: Found<'_>, op: &Op<'_>, now: Timestamp) -> A {
    match log.common::<HINTS>() {
        Common::Few(few) => shortly!(N, few, op, now, drop(log)),
        Common::Units(mut units) => shortly!(N, &mut units, op, now, drop(log)),
        Common::Costs(mut costs) => shortly!(N, &mut costs, op, now, drop(log)),
        Common::Wide(mut wide) => shortly!(N, &mut wide, op, now, drop(log)),
        Common::WideCosts(mut wide) => shortly!(N, &mut wide, op, now, drop(log)),
        Common::None => {}
    }
    apply_any(log, *op, now)
}

#[inline(never)]
fn apply_any<A: Answer>(mut log: Found<'_>, op: Op<'_>, now: Timestamp) -> A {
    let facts = log.apply(op, now);
    drop(log);
    A::uncommon(op, facts)
}

/// What an operation returns.
trait Answer {
    /// From the facts of an operation under `N` limits.
    fn common<const N: usize>(op: &Op<'_>, limits: &[Limit; N], facts: SizedFacts<N>) -> Self;
    /// From any facts. By value: that a pointer to the operation may leave would keep it from staying in registers.
    fn uncommon(op: Op<'_>, facts: Facts) -> Self;
}

impl Answer for Facts {
    #[inline(always)]
    fn common<const N: usize>(_: &Op<'_>, _: &[Limit; N], facts: SizedFacts<N>) -> Self {
        facts.into()
    }

    #[inline(always)]
    fn uncommon(_: Op<'_>, facts: Facts) -> Self {
        facts
    }
}

impl Answer for Decision {
    #[inline(always)]
    fn common<const N: usize>(op: &Op<'_>, limits: &[Limit; N], facts: SizedFacts<N>) -> Self {
        internal::decide_sized(op, limits, facts)
    }

    #[inline(never)]
    fn uncommon(op: Op<'_>, facts: Facts) -> Self {
        debug_assert!(facts.verify(&op).is_ok(), "{facts:?} contradict {op:?}");
        decide(&op, facts)
    }
}

/// A decision within something, which is written in place like the decision alone.
macro_rules! decision_within {
    ($answer:ty, $within:expr) => {
        impl Answer for $answer {
            #[inline(always)]
            fn common<const N: usize>(op: &Op<'_>, limits: &[Limit; N], facts: SizedFacts<N>) -> Self {
                $within(Decision::common::<N>(op, limits, facts))
            }

            #[inline(never)]
            fn uncommon(op: Op<'_>, facts: Facts) -> Self {
                $within(Decision::uncommon(op, facts))
            }
        }
    };
}

decision_within!(Result<Decision, Error>, Ok);
decision_within!(Poll<Result<Decision, Error>>, |decision| Poll::Ready(Ok(decision)));

impl NowStore for MemoryStore {
    #[inline]
    fn apply_now(&self, op: &Op<'_>) -> Facts {
        self.run(op)
    }

    #[inline(always)]
    fn decide_now(&self, op: Op<'_>) -> Result<Decision, Error> {
        if op.is_checked() { self.run(&op) } else { self.check_and_decide(op) }
    }

    fn settle_now(&self, settlement: &Settlement<'_>) -> SettlementFacts {
        let found = self.find(settlement.log.name.id(), settlement.log.key);
        // Behind the lock: an entry appended before the call must not be newer.
        let now = time(settlement.at);
        match found {
            Ok(mut log) => log.settle(settlement, now),
            Err(missing) => {
                drop(missing);
                Log::new(0).settle(settlement, now)
            }
        }
    }

    fn reset_now(&self, log: LogKey<'_>) -> bool {
        let (name, key) = (log.name.id(), log.key);
        let hash = self.hash(name, key);
        let mut line = (!self.are_lines_closed()).then(|| self.lines.of(hash).lock());
        let in_line = line.as_mut().and_then(|line| line.take_if(|slot| slot.key.is(name, key)));
        let in_shard = || self.shards.of(hash).lock().remove(hash, name, key, self.rehash());
        in_line.or_else(in_shard).is_some_and(|slot| slot.log.newest().is_some())
    }
}

#[inline]
fn time(at: At) -> Timestamp {
    match at {
        At::StoreClock => clock::now(),
        At::Given(given) => given,
    }
}

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
    fn decide_at_once(&self, op: Op<'_>) -> Option<Result<Decision, Error>> {
        Some(self.decide_now(op))
    }

    #[inline(always)]
    fn poll_decision(
        &self,
        op: Op<'_>,
        _: impl FnOnce() -> Poll<Result<Decision, Error>>,
    ) -> Poll<Result<Decision, Error>> {
        if op.is_checked() { self.run(&op) } else { Poll::Ready(self.check_and_decide(op)) }
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
        f.debug_struct("MemoryStore").field("direct_slots", &!self.are_lines_closed()).finish_non_exhaustive()
    }
}
