//! Units that this process may admit without asking the store.
//!
//! With a [lease](limiter_core::Limit::with_lease), an acquire that the store decides may take more units than it costs. The
//! rest is a block: later acquires of the same log and policy are spent from it. The store counted the block when it was granted,
//! and counts it for the window and the lease, so every unit spent within a lease counts for at least a window.
//!
//! The store's reading of its clock lies between sending and receiving. A block therefore ends a lease after its request was sent,
//! less a 64th for clocks that differ in speed. It ends by the monotonic and by the system clock, because the first stops while a
//! machine sleeps.
//!
//! The size of a block adapts: a block spent within half a lease is followed by a block of twice the size, a block that was not
//! used up by one of half the size. A block of fewer than eight acquires saves less than it may waste, so it is counted down but
//! not taken.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dashmap::DashMap;
use dashmap::mapref::one::RefMut;
use foldhash::fast::SeedableRandomState;
use limiter_core::internal::Moment;
use limiter_core::store::{
    At, Entry, EntryId, Facts, JointFacts, JointOp, LogFacts, LogKey, Mode, Op, Outcome, Usage,
};
use limiter_core::{Counting, Name, Policy};
use tokio::time::Instant;

/// The acquires of the smallest block that is taken.
const SMALLEST: u64 = 8;

/// The blocks of a store. Bounded like the denial cache.
pub(super) struct Blocks {
    /// By the hash of the log, modulo the capacity. A block that can be spent keeps its place.
    slots: DashMap<u64, Slot, SeedableRandomState>,
    hasher: SeedableRandomState,
    max_keys: u64,
    /// Numbers the requests for blocks, from 1.
    requests: AtomicU64,
    /// Plain acquires with a lease that were decided from blocks, and by calls of the store.
    spent: AtomicU64,
    calls: AtomicU64,
}

/// What is known about a log and a policy.
struct Slot {
    /// Of the log and the policy's limits.
    hash: u64,
    state: State,
    /// When the current block was sent for, or since when its acquires are counted.
    since: Instant,
    /// The acquires of the current block.
    size: u32,
    /// The most units of the next block: half of what remained at the last response; 0 if that took half a lease or more.
    largest: u64,
}

enum State {
    /// No block is taken. This many acquires remain until one may be.
    Counting(u32),
    /// The request with this number is under way.
    Asked(u64),
    /// Acquires are spent from a block.
    Holding(Box<Block>),
}

struct Block {
    request: u64,
    name: Name,
    key: Box<[u8]>,
    policy: Policy,
    lease: Duration,
    /// The cost of the acquire that took it. The block is spent once less is left.
    cost: u64,
    /// The log after the grant.
    log: LogFacts,
    left: u64,
    sent: Moment,
    received: Instant,
}

/// A request for a block. Its end without a grant, or its drop, lets the next acquire ask.
pub(super) struct BlockRequest<'a> {
    blocks: &'a Blocks,
    place: u64,
    request: u64,
    lease: Duration,
    sent: Moment,
    units: u64,
}

/// Returns `true` if acquires with this policy can be decided without calling the store.
///
/// That needs a [lease](limiter_core::Limit::with_lease) of every limit, a policy that counts admitted requests, and maxima of at
/// least 17: a process takes at most half of what remains, and no fewer units than eight acquires cost. Otherwise a lease only has
/// its price: a key at its limit admits less of its rate. Even if it can be used, it is worth its price only for windows of
/// at least 60 leases, and for keys with more than some ten acquires within a lease.
///
/// ```
/// use limiter_core::policy;
/// use limiter_wrappers::can_lease;
///
/// assert!(can_lease(&policy!("100000/1m+1s")));
/// assert!(!can_lease(&policy!("10/1m+1s")));
/// assert!(!can_lease(&policy!("100000/1m+1s, 500/1s")));
/// ```
#[must_use]
pub fn can_lease(policy: &Policy) -> bool {
    policy.lease().is_some()
        && policy.counting() == Counting::Admitted
        && policy.smallest_max() > 2 * SMALLEST
}

/// Returns the lease of a plain acquire: the shortest of the limits that it counts in. `None` for any other operation.
pub(super) fn lease_of(op: &Op<'_>) -> Option<Duration> {
    let lease = op.policy.lease()?;
    let is_plain = op.mode == Mode::Acquire
        && op.policy.counting() == Counting::Admitted
        && op.at == At::StoreClock
        && op.id.is_none()
        && !op.hints.wants_receipt;
    match op.limiter_policy {
        _ if !is_plain => None,
        Some(default) => Some(lease.min(default.lease()?)),
        None => Some(lease),
    }
}

impl Block {
    /// Returns `true` if it may no longer be spent.
    fn has_ended(&self, lease: Duration, now: Moment) -> bool {
        self.sent.has_passed(lease - lease / 64, now)
    }

    fn covers(&self, op: &Op<'_>) -> bool {
        self.left >= op.cost
            && self.name == op.log.name
            && *self.key == *op.log.key
            && self.policy == *op.policy
    }

    /// Returns the facts of a spent acquire: the log as it was granted, at the time that has passed since.
    fn facts(&self, op: &Op<'_>, now: Instant) -> Facts {
        let log = &self.log;
        let passed = now.duration_since(self.received);
        let clock = log.clock.saturating_add(passed);
        Facts {
            admitted: true,
            refundable: false,
            // The log holds the entry already: the one of the block.
            outcome: Outcome::Repeated {
                entry: Entry {
                    id: EntryId::from_u128(0),
                    at: log.now,
                },
                cost: op.cost,
            },
            log: LogFacts {
                now: log.now.max(clock),
                clock,
                ..without(log, self.left)
            },
        }
    }
}

/// Returns a log without the usage by units that are still in a block.
fn without(log: &LogFacts, units: u64) -> LogFacts {
    let unused = |usage: Usage| Usage {
        used: usage.used.saturating_sub(units),
        ..usage
    };
    LogFacts {
        usage: log.usage.map(unused),
        ..log.clone()
    }
}

impl Blocks {
    pub(super) fn new(max_keys: usize, hasher: SeedableRandomState) -> Self {
        Self {
            slots: DashMap::with_hasher(hasher.clone()),
            hasher,
            max_keys: max_keys as u64,
            requests: AtomicU64::new(0),
            spent: AtomicU64::new(0),
            calls: AtomicU64::new(0),
        }
    }

    fn place(&self, log: LogKey<'_>) -> Option<u64> {
        self.hasher.hash_one(log).checked_rem(self.max_keys)
    }

    fn slot(&self, log: LogKey<'_>) -> Option<RefMut<'_, u64, Slot>> {
        self.slots.get_mut(&self.place(log)?)
    }

    fn hash(&self, op: &Op<'_>) -> u64 {
        self.hasher.hash_one((op.log, op.policy.limits()))
    }

    /// Spends several acquires, if blocks cover all of them.
    pub(super) fn spend_all(&self, ops: &[JointOp<'_>]) -> Option<JointFacts> {
        let mut spent = Vec::with_capacity(ops.len());
        for joint in ops {
            let Some(next) = self.spend(&joint.op) else {
                for (joint, (_, request)) in ops.iter().zip(spent) {
                    self.give_back(&joint.op, request);
                }
                return None;
            };
            spent.push(next);
        }
        Some(spent.into_iter().map(|(facts, _)| Ok(facts)).collect())
    }

    /// Spends an acquire from a block that covers it. Returns the facts, and the number of the request that brought the block.
    pub(super) fn spend(&self, op: &Op<'_>) -> Option<(Facts, u64)> {
        let lease = lease_of(op).filter(|_| op.is_checked())?;
        let mut slot = self.slot(op.log)?;
        let block = slot.block().filter(|block| block.covers(op))?;
        let now = Moment::now();
        if block.has_ended(lease, now) {
            return None;
        }
        block.left -= op.cost;
        self.spent.fetch_add(1, Ordering::Relaxed);
        Some((block.facts(op, now.monotonic), block.request))
    }

    /// Returns units to the block that they were spent from, if it is still there.
    fn give_back(&self, op: &Op<'_>, request: u64) {
        self.spent.fetch_sub(1, Ordering::Relaxed);
        if let Some(mut slot) = self.slot(op.log)
            && let Some(block) = slot.block()
            && block.request == request
        {
            block.left += op.cost;
        }
    }

    /// Notes a plain acquire that no block covers. Returns a request for a block, if the acquire should ask for one.
    fn ask(&self, op: &Op<'_>) -> Option<BlockRequest<'_>> {
        let lease = lease_of(op)?;
        let place = self.place(op.log)?;
        let hash = self.hash(op);
        let sent = Moment::now();
        let new = || Slot::new(hash, sent.monotonic);
        let mut slot = self.slots.entry(place).or_insert_with(new);
        if slot.hash != hash {
            if slot.is_in_use(sent) {
                return None;
            }
            *slot = new();
        }
        let units = slot.next_block(op, lease, sent)?;
        let request = self.requests.fetch_add(1, Ordering::Relaxed) + 1;
        slot.state = State::Asked(request);
        Some(BlockRequest {
            blocks: self,
            place,
            request,
            lease,
            sent,
            units,
        })
    }

    /// Notes the store's response to a plain acquire that was sent at this time.
    pub(super) fn note(&self, op: &Op<'_>, facts: &Facts, sent: Instant) {
        let Some(lease) = lease_of(op) else { return };
        self.calls.fetch_add(1, Ordering::Relaxed);
        if let Some(mut slot) = self.slot(op.log)
            && slot.hash == self.hash(op)
        {
            slot.note(op, facts, sent.elapsed() >= lease / 2);
        }
    }

    /// Asks for several operations that are applied as one. Only if they can be repeated without blocks: then no refusal appends.
    pub(super) fn ask_all(&self, ops: &[JointOp<'_>]) -> Vec<Option<BlockRequest<'_>>> {
        let appends = |joint: &JointOp<'_>| {
            joint.keeps_charge || joint.op.mode == Mode::Acquire && joint.op.appends(false)
        };
        let can_repeat = !ops.iter().any(appends);
        let ask = |joint: &JointOp<'_>| match can_repeat && !joint.is_advisory {
            true => self.ask(&joint.op),
            false => None,
        };
        ops.iter().map(ask).collect()
    }

    /// Forgets the block of a log now and when the result is dropped, and with it the blocks of pending requests.
    pub(super) fn forget(&self, log: LogKey<'_>) -> ForgetOnDrop<'_> {
        let forget = ForgetOnDrop(self, self.place(log));
        forget.now();
        forget
    }

    /// Returns how many plain acquires with a lease were decided from blocks, and how many by calls.
    pub(super) fn counts(&self) -> (u64, u64) {
        let [spent, calls] = [&self.spent, &self.calls].map(|count| count.load(Ordering::Relaxed));
        (spent, calls)
    }

    /// Returns the units in blocks that can be spent, by the name of the limiter.
    pub(super) fn held(&self) -> HashMap<Name, u64> {
        let now = Moment::now();
        let mut held = HashMap::new();
        for slot in &self.slots {
            if let State::Holding(block) = &slot.state
                && !block.has_ended(block.lease, now)
            {
                *held.entry(block.name).or_default() += block.left;
            }
        }
        held
    }
}

impl Slot {
    fn new(hash: u64, now: Instant) -> Self {
        Self {
            hash,
            state: State::Counting(1),
            since: now,
            size: 1,
            largest: 0,
        }
    }

    fn block(&mut self) -> Option<&mut Block> {
        match &mut self.state {
            State::Holding(block) => Some(block),
            State::Counting(_) | State::Asked(_) => None,
        }
    }

    /// A block that can be spent keeps its place, and so does a pending request.
    fn is_in_use(&self, now: Moment) -> bool {
        match &self.state {
            State::Counting(_) => false,
            State::Asked(_) => true,
            State::Holding(block) => block.left > 0 && !block.has_ended(block.lease, now),
        }
    }

    /// Notes an acquire that no block covers. Returns the units of the block to ask for.
    fn next_block(&mut self, op: &Op<'_>, lease: Duration, now: Moment) -> Option<u64> {
        let passed = now.monotonic.duration_since(self.since);
        let (is_used_up, has_ended) = match &self.state {
            State::Counting(left) => (*left == 0, passed >= lease),
            State::Asked(_) => return None,
            State::Holding(block) => (block.left < block.cost, block.has_ended(lease, now)),
        };
        if is_used_up && passed < lease / 2 {
            self.size = self.size.saturating_mul(2);
        } else if !is_used_up && has_ended {
            self.size = (self.size / 2).max(1);
        } else if !is_used_up {
            if let State::Counting(left) = &mut self.state {
                *left -= 1;
            }
            return None;
        }
        self.since = now.monotonic;
        // No cost is 0.
        let acquires = (self.largest / op.cost.max(1)).min(self.size.into());
        if acquires < SMALLEST {
            self.count_down();
            return None;
        }
        self.size = u32::try_from(acquires).unwrap_or(self.size);
        Some(acquires * op.cost)
    }

    /// Counts the acquires of a block that is not taken. The current one is the first.
    fn count_down(&mut self) {
        self.state = State::Counting(self.size - 1);
    }

    fn note(&mut self, op: &Op<'_>, facts: &Facts, is_slow: bool) {
        let limits = facts.log.usage.iter().zip(op.policy.limits());
        let remaining = limits.map(|(usage, limit)| limit.max().saturating_sub(usage.used));
        self.largest = match is_slow {
            true => 0,
            false => remaining.min().unwrap_or(0) / 2,
        };
    }
}

impl BlockRequest<'_> {
    /// Returns the slot that waits for this request.
    fn slot(&self) -> Option<RefMut<'_, u64, Slot>> {
        let slot = self.blocks.slots.get_mut(&self.place)?;
        matches!(slot.state, State::Asked(request) if request == self.request).then_some(slot)
    }

    /// Returns the operation with the cost of the block.
    pub(super) fn with_block<'o>(&self, op: Op<'o>) -> Op<'o> {
        op.with_cost(op.cost + self.units)
    }

    /// Ends the request with the facts of an admitted operation [with the block](Self::with_block). Returns the facts of the acquire
    /// alone.
    pub(super) fn grant(self, op: &Op<'_>, facts: Facts) -> Facts {
        self.blocks.calls.fetch_add(1, Ordering::Relaxed);
        // After a lost reply, the store found the entry. Nobody knows how long ago it was granted.
        if !matches!(facts.outcome, Outcome::Appended(_)) {
            return facts;
        }
        let received = Instant::now();
        if let Some(mut slot) = self.slot() {
            let took = received.duration_since(self.sent.monotonic);
            slot.note(op, &facts, took >= self.lease / 2);
            slot.state = State::Holding(Box::new(Block {
                request: self.request,
                name: op.log.name,
                key: op.log.key.into(),
                policy: op.policy.clone(),
                lease: self.lease,
                cost: op.cost - self.units,
                log: facts.log.clone(),
                left: self.units,
                sent: self.sent,
                received,
            }));
        }
        Facts {
            log: without(&facts.log, self.units),
            ..facts
        }
    }
}

impl Drop for BlockRequest<'_> {
    fn drop(&mut self) {
        if let Some(mut slot) = self.slot() {
            slot.count_down();
        }
    }
}

/// Forgets what is at a place when it is dropped.
pub(super) struct ForgetOnDrop<'a>(&'a Blocks, Option<u64>);

impl ForgetOnDrop<'_> {
    fn now(&self) {
        self.1.map(|place| self.0.slots.remove(&place));
    }
}

impl Drop for ForgetOnDrop<'_> {
    fn drop(&mut self) {
        self.now();
    }
}
