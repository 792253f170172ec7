//! What the primary store has not heard of yet.
//!
//! A log of the journal is a queue of steps. Its first step is the cursor: a step leaves the queue once the primary store has
//! answered it, so it is sent at least once, and again only if its answer was lost.
//!
//! ```text
//!              settle: new cost              settle: cost to be settled
//!                  ┌─────┐                         ┌─────┐
//!   append ─► charge, unsent ──── send ────► charge, sent ── answer, no new cost ──► gone
//!                  │                               │
//!                  │ refund                        │ answer, new cost
//!                  ▼                               ▼
//!                gone         settle ──────► settlement ──── answer, same cost ────► gone
//!                                              └─────┘ settle: new cost
//!
//!   reset ─► every step of the log is gone; a reset is the only one ──── answer ───► gone
//! ```
//!
//! A charge with a caller's id begins as sent, because the primary store may hold it from the call that failed. A step is also gone
//! once it has expired, or if the journal is full and the step is the oldest of all logs.

use std::collections::hash_map::Entry::{Occupied, Vacant};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use foldhash::fast::RandomState;
use limiter_core::store::{At, Entry, LogKey, Op, Settlement};
use limiter_core::{EntryId, Policy, Receipt, Timestamp};

use super::aged::Aged;
use super::change::{Change, Charge, LogId, Policies, Settle};

/// Most services have few policies.
const RECENT_POLICIES: usize = 8;

struct Step {
    log: LogId,
    change: Change,
    /// The receipt of the entry whose cost this step determines.
    receipt: Option<(EntryId, Timestamp)>,
}

struct Queue {
    /// The numbers of the log's steps, in order.
    steps: VecDeque<u64>,
    /// The log's place in line. `None` while somebody works on it: a replay, or a reset.
    turn: Option<u64>,
}

pub(super) struct Journal {
    steps: Aged<Step>,
    /// Those that have steps, or on which somebody works.
    logs: HashMap<LogId, Queue, RandomState>,
    /// The step that determines the cost of an entry.
    costs: HashMap<(LogId, EntryId, Timestamp), u64, RandomState>,
    /// The logs that wait for a replay, by turn.
    line: BTreeMap<u64, LogId>,
    next_turn: u64,
    /// Those of the last steps, to be shared.
    recent_policies: VecDeque<Arc<Policies>>,
    pub(super) max: usize,
    dropped: u64,
}

impl Journal {
    pub(super) fn new(max: usize) -> Self {
        Self {
            steps: Aged::new(),
            logs: HashMap::default(),
            costs: HashMap::default(),
            line: BTreeMap::new(),
            next_turn: 0,
            recent_policies: VecDeque::new(),
            max,
            dropped: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.steps.len()
    }

    /// Returns how many steps went because the journal was full.
    pub(super) const fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Appends an entry, as its receipt names it, that the local store has appended for `op`. Returns its log.
    pub(super) fn charge(&mut self, op: &Op<'_>, entry: Entry, expires: Timestamp) -> LogId {
        let charge = Charge {
            entry,
            is_given: op.at != At::StoreClock,
            cost: op.cost,
            window: op.retention().window,
            policies: self.policies(op.policy, op.limiter_policy),
            is_sent: op.id.is_some(),
            new_cost: None,
        };
        self.push(op.log, Change::Charge(charge), Some((entry.id, entry.at)), expires)
    }

    /// Changes the step that determines the cost of an entry, as its receipt names it. Returns whether the entry was there, or `None` if
    /// there is no such step. `now` is by the clock of the local store, or the caller's.
    pub(super) fn settle(&mut self, log: LogKey<'_>, receipt: Receipt, cost: u64, now: Timestamp) -> Option<bool> {
        let number = *self.costs.get(&(log.into(), receipt.entry(), receipt.at()))?;
        let old_cost = match &mut self.steps.get_mut(number)?.change {
            // With a resolution, the receipt ends before the entry.
            Change::Charge(_) if receipt.has_expired(now) => return Some(false),
            Change::Charge(charge) if charge.is_sent => {
                let old_cost = charge.new_cost.unwrap_or(charge.cost);
                charge.new_cost = Some(if old_cost == 0 { 0 } else { cost });
                old_cost
            }
            Change::Charge(_) if cost == 0 => {
                self.remove(number);
                return Some(true);
            }
            Change::Charge(Charge { cost: old_cost, .. }) | Change::Settle(Settle { cost: old_cost, .. }) => {
                // A refunded entry stays so.
                std::mem::replace(old_cost, if *old_cost == 0 { 0 } else { cost })
            }
            Change::Reset => return None,
        };
        Some(old_cost > 0)
    }

    /// Appends a settlement of an entry of the primary store.
    pub(super) fn push_settlement(&mut self, settlement: &Settlement<'_>, expires: Timestamp) {
        let Settlement { log, policy, receipt, cost, at, .. } = *settlement;
        let policies = self.policies(policy, None);
        let settle = Settle { receipt, cost, at, policies };
        self.push(log, Change::Settle(settle), Some((receipt.entry(), receipt.at())), expires);
    }

    pub(super) fn push_reset(&mut self, log: LogKey<'_>) {
        self.push(log, Change::Reset, None, Timestamp::MAX);
    }

    /// Removes the steps of a log with a number below `before`. Returns whether there were any.
    pub(super) fn discard(&mut self, log: LogKey<'_>, before: u64) -> bool {
        let Some(queue) = self.logs.get(&log.into()) else { return false };
        let numbers: Vec<u64> = queue.steps.iter().copied().filter(|number| *number < before).collect();
        numbers.iter().for_each(|number| self.remove(*number));
        !numbers.is_empty()
    }

    /// Returns the number of the next step.
    pub(super) const fn next_number(&self) -> u64 {
        self.steps.next()
    }

    /// Removes what has expired at `now`, by the local store's clock.
    pub(super) fn expire(&mut self, now: Timestamp) {
        while let Some((number, step)) = self.steps.remove_expired(now) {
            self.unlink(number, step);
        }
    }

    /// Takes the turn of the log that has waited longest.
    pub(super) fn take_next(&mut self) -> Option<LogId> {
        let (_, log) = self.line.pop_first()?;
        self.logs.get_mut(&log)?.turn = None;
        Some(log)
    }

    /// Takes the turn of a log. Returns `false` if somebody else has it.
    pub(super) fn take(&mut self, log: &LogId) -> bool {
        let Some(queue) = self.logs.get_mut(log) else {
            self.logs.insert(log.clone(), Queue { steps: VecDeque::new(), turn: None });
            return true;
        };
        queue.turn.take().is_some_and(|turn| self.line.remove(&turn).is_some())
    }

    /// Puts a log back in line, if it has steps left.
    pub(super) fn put_back(&mut self, log: &LogId) {
        let Some(queue) = self.logs.get_mut(log) else { return };
        if queue.steps.is_empty() {
            self.logs.remove(log);
        } else {
            queue.turn = Some(self.next_turn);
            self.line.insert(self.next_turn, log.clone());
            self.next_turn += 1;
        }
    }

    /// Returns the first step of a log, with its number.
    pub(super) fn first(&self, log: &LogId) -> Option<(u64, Change)> {
        let number = *self.logs.get(log)?.steps.front()?;
        Some((number, self.steps.get(number)?.change.clone()))
    }

    /// Returns a charge as it is to be sent, unless it is gone. Notes that it is sent.
    pub(super) fn send(&mut self, number: u64) -> Option<Charge> {
        let Change::Charge(charge) = &mut self.steps.get_mut(number)?.change else { return None };
        charge.is_sent = true;
        Some(charge.clone())
    }

    /// Notes that the primary store holds a charge as `entry`.
    pub(super) fn recorded(&mut self, number: u64, entry: Entry) {
        let Some(step) = self.steps.get_mut(number) else { return };
        let Change::Charge(charge) = &step.change else { return };
        let Some(cost) = charge.new_cost else { return self.remove(number) };
        let receipt = Receipt::new(entry.id, entry.at, charge.window);
        let at = if charge.is_given { At::Given(entry.at) } else { At::StoreClock };
        step.change = Change::Settle(Settle { receipt, cost, at, policies: Arc::clone(&charge.policies) });
    }

    /// Notes that the primary store has settled a settlement's entry at `cost`.
    pub(super) fn settled(&mut self, number: u64, cost: u64) {
        if matches!(&self.steps.get(number), Some(Step { change: Change::Settle(settle), .. }) if settle.cost == cost) {
            self.remove(number);
        }
    }

    pub(super) fn remove(&mut self, number: u64) {
        if let Some(step) = self.steps.remove(number) {
            self.unlink(number, step);
        }
    }

    fn push(
        &mut self,
        log: LogKey<'_>,
        change: Change,
        receipt: Option<(EntryId, Timestamp)>,
        expires: Timestamp,
    ) -> LogId {
        let log = LogId::from(log);
        let log = self.logs.get_key_value(&log).map_or(log, |(known, _)| known.clone());
        let number = self.steps.push(expires, Step { log: log.clone(), change, receipt });
        if let Some((entry, at)) = receipt {
            self.costs.insert((log.clone(), entry, at), number);
        }
        match self.logs.entry(log.clone()) {
            Occupied(mut queue) => queue.get_mut().steps.push_back(number),
            Vacant(queue) => {
                self.line.insert(self.next_turn, queue.key().clone());
                queue.insert(Queue { steps: VecDeque::from([number]), turn: Some(self.next_turn) });
                self.next_turn += 1;
            }
        }
        while self.steps.len() > self.max
            && let Some((number, step)) = self.steps.remove_oldest()
        {
            self.dropped += 1;
            self.unlink(number, step);
        }
        log
    }

    /// Removes every trace of a step that is gone.
    fn unlink(&mut self, number: u64, step: Step) {
        let Some(queue) = self.logs.get_mut(&step.log) else { return };
        if let Ok(index) = queue.steps.binary_search(&number) {
            queue.steps.remove(index);
        }
        if queue.steps.is_empty()
            && let Some(turn) = queue.turn
        {
            self.line.remove(&turn);
            self.logs.remove(&step.log);
        }
        if let Some((entry, at)) = step.receipt {
            self.costs.remove(&(step.log, entry, at));
        }
    }

    /// Returns the policies, shared with other steps that have the same.
    fn policies(&mut self, own: &Policy, limiter: Option<&Policy>) -> Arc<Policies> {
        let same = |known: &&Arc<Policies>| known.own == *own && known.limiter.as_ref() == limiter;
        if let Some(known) = self.recent_policies.iter().find(same) {
            return Arc::clone(known);
        }
        let new = Arc::new(Policies { own: own.clone(), limiter: limiter.cloned() });
        self.recent_policies.truncate(RECENT_POLICIES - 1);
        self.recent_policies.push_front(Arc::clone(&new));
        new
    }
}

#[cfg(test)]
mod tests {
    use limiter_core::policy;
    use proptest::prelude::*;

    use super::*;

    fn at(micros: u64) -> Timestamp {
        Timestamp::from_micros_saturating(micros)
    }

    fn check(journal: &Journal) {
        assert!(journal.len() <= journal.max);
        assert_eq!(journal.logs.values().map(|queue| queue.steps.len()).sum::<usize>(), journal.len());
        for (log, queue) in &journal.logs {
            assert!(!queue.steps.is_empty() || queue.turn.is_none());
            assert!(queue.steps.iter().zip(queue.steps.iter().skip(1)).all(|(one, next)| one < next));
            assert!(queue.turn.is_none_or(|turn| journal.line.get(&turn) == Some(log)));
        }
        assert_eq!(journal.line.len(), journal.logs.values().filter(|queue| queue.turn.is_some()).count());
        assert!(journal.costs.values().all(|number| journal.steps.get(*number).is_some()));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Whatever happens, the parts of a journal agree, and nothing is left of steps that are gone.
        #[test]
        fn no_step_leaves_a_trace(actions in prop::collection::vec((0..10_u8, 0..3_u8, 0..30_u64), 1..200)) {
            let (policy, mut journal, mut now) = (policy!("9/1ms"), Journal::new(20), 0);
            let mut taken = Vec::new();
            for (time, (action, key, number)) in (0..).zip(actions) {
                let key = [key];
                let log = Op::peek(&key, &policy).log;
                let receipt = Receipt::new(EntryId::from_u128(number.into()), at(number), policy.longest_window());
                let expires = at(time + 50);
                match action {
                    0..=3 => {
                        let entry = Entry { id: EntryId::from_u128(time.into()), at: at(time) };
                        let _ = journal.charge(&Op::acquire(&key, &policy), entry, expires);
                    }
                    4 => drop(journal.settle(log, receipt, number % 3, at(now))),
                    5 if journal.settle(log, receipt, 1, at(now)).is_none() => {
                        journal.push_settlement(&Settlement::new(log, &policy, receipt, 1), expires);
                    }
                    6 => drop(journal.discard(log, number)),
                    7 => taken.extend(journal.take_next()),
                    8 => {
                        if let Some((number, change)) = taken.last().and_then(|log| journal.first(log)) {
                            match change {
                                Change::Charge(_) => {
                                    let entry = journal.send(number).unwrap().entry;
                                    journal.recorded(number, entry);
                                }
                                Change::Settle(settle) => journal.settled(number, settle.cost),
                                Change::Reset => journal.remove(number),
                            }
                        }
                    }
                    _ => {
                        taken.drain(..).for_each(|log| journal.put_back(&log));
                        now = time;
                        journal.expire(at(now));
                    }
                }
                check(&journal);
            }
            taken.drain(..).for_each(|log| journal.put_back(&log));
            journal.expire(at(now + 1000));
            check(&journal);
            assert!(journal.logs.is_empty() && journal.costs.is_empty() && journal.line.is_empty());
        }
    }
}
