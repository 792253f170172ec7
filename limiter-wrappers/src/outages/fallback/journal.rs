//! What this process knows better than the primary store, and the entries that its receipts name.
//!
//! A charge is the cost of one entry. It waits for as long as the primary store may hold another cost. Once the primary store has
//! confirmed the last one, the charge is kept until nobody can name the entry any more.
//!
//! ```text
//!                      settle ┌────┐        settle ┌────┐
//!             append          │    ▼   send        │    ▼   answer, same cost
//!   local ────────────► waiting, unsent ─────► waiting, sent ─────────────────► confirmed ─── receipts end ───► gone
//!   store                     │                    ▲                             ▲     │
//!                             │ refund             │  settle, primary store away │     │
//!                             │                    └─────────────────────────────┼─────┘
//!                             └──────────────────────────────────────────────────┘
//! ```
//!
//! - A charge with a caller's id begins as sent, because the primary store may hold it from the call that failed.
//! - An entry of the primary store gets a charge when it is settled while the primary store is away. The charge is gone once it is
//!   confirmed.
//! - A reset removes the charges of its log, and waits in their place.
//! - What waits is gone once it has expired, or if there is too much and it is the oldest.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;

use limiter_core::store::{Entry, Op};
use limiter_core::{EntryId, Timestamp};

use super::aged::Aged;
use super::charge::{Charge, LogId, Policies};

/// Most services have few policies.
const RECENT_POLICIES: usize = 8;
const ALL_IDS: (EntryId, EntryId) = (EntryId::from_u128(0), EntryId::from_u128(u128::MAX));

/// What the primary store is to hear.
#[derive(Clone)]
pub(super) enum Change {
    Charge(Charge),
    Reset,
}

pub(super) struct Journal {
    /// What the primary store has not confirmed, by number. Numbers increase.
    waiting: Aged<(LogId, Change)>,
    /// The charges that it has confirmed.
    confirmed: Aged<(LogId, Change)>,
    /// The numbers of what waits, by log.
    order: BTreeSet<(LogId, u64)>,
    /// The numbers of all charges, by their receipts.
    receipts: BTreeMap<(LogId, EntryId, Timestamp), u64>,
    /// The logs on which somebody works: a replay, or a reset.
    busy: BTreeSet<LogId>,
    /// The log that was taken last.
    last_taken: Option<LogId>,
    next: u64,
    /// The time of the local store's clock when it was read last.
    pub(super) now: Timestamp,
    /// Those of the last charges, to be shared.
    recent_policies: VecDeque<Arc<Policies>>,
    pub(super) max: usize,
    dropped: u64,
}

impl Journal {
    pub(super) fn new(max: usize) -> Self {
        Self {
            waiting: Aged::new(),
            confirmed: Aged::new(),
            order: BTreeSet::new(),
            receipts: BTreeMap::new(),
            busy: BTreeSet::new(),
            last_taken: None,
            next: 0,
            now: Timestamp::default(),
            recent_policies: VecDeque::new(),
            max,
            dropped: 0,
        }
    }

    /// Returns how many changes wait.
    pub(super) fn changes(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.len() + self.confirmed.len() == 0
    }

    /// Returns how many changes went because the journal was full.
    pub(super) const fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Returns the number that the next change gets.
    pub(super) const fn next_number(&self) -> u64 {
        self.next
    }

    /// Appends a change. Returns its number.
    pub(super) fn push(&mut self, log: LogId, change: Change, expires: Timestamp) -> u64 {
        let number = self.next;
        self.next += 1;
        if let Change::Charge(Charge { entry, .. }) = change {
            self.receipts.insert((log.clone(), entry.id, entry.at), number);
        }
        self.wait(number, expires, log, change);
        number
    }

    /// Finds the charge of an entry, as its receipt names it.
    pub(super) fn find(&self, log: &LogId, entry: Entry) -> Option<u64> {
        self.receipts.get(&(log.clone(), entry.id, entry.at)).copied()
    }

    /// Finds the newest charge with a caller's id.
    pub(super) fn find_id(&self, log: &LogId, id: EntryId) -> Option<u64> {
        self.numbers(log, (id, id)).max()
    }

    pub(super) fn charge_mut(&mut self, number: u64) -> Option<&mut Charge> {
        let change = self.waiting.get_mut(number).or_else(|| self.confirmed.get_mut(number));
        match change {
            Some((_, Change::Charge(charge))) => Some(charge),
            _ => None,
        }
    }

    pub(super) fn waits(&self, number: u64) -> bool {
        self.waiting.get(number).is_some()
    }

    pub(super) fn refund_waits(&self, number: u64) -> bool {
        matches!(self.waiting.get(number), Some((_, Change::Charge(Charge { cost: 0, .. }))))
    }

    /// Changes the cost of an entry. Returns `false` if the entry is refunded, and stays so.
    pub(super) fn settle(&mut self, number: u64, cost: u64) -> bool {
        let Some(charge) = self.charge_mut(number).filter(|charge| charge.cost > 0) else { return false };
        charge.cost = cost;
        let (never_sent, receipts_end) = (cost == 0 && charge.is_unsent(), charge.receipts_end);
        if never_sent {
            self.confirm(number);
        } else if let Some((log, change)) = self.confirmed.remove(number) {
            self.wait(number, receipts_end, log, change);
        }
        true
    }

    /// Returns the cost under which an entry is to be recorded. `None` if it waits no longer.
    pub(super) fn send(&mut self, number: u64) -> Option<u64> {
        let Some((_, Change::Charge(charge))) = self.waiting.get_mut(number) else { return None };
        charge.local.as_mut().map(|local| *local.sent.get_or_insert(charge.cost))
    }

    /// Notes that the primary store holds an entry under this name, at this cost.
    pub(super) fn answered(&mut self, number: u64, primary: Entry, cost: u64) {
        let Some((_, Change::Charge(charge))) = self.waiting.get_mut(number) else { return };
        charge.primary = Some(primary);
        if charge.cost == cost {
            self.confirm(number);
        }
    }

    /// Removes what waits, or is known, of a log. Returns whether there was anything.
    pub(super) fn discard(&mut self, log: &LogId) -> bool {
        let numbers: Vec<u64> = self.numbers(log, ALL_IDS).chain(self.waiting_of(log)).collect();
        numbers.iter().for_each(|number| self.remove(*number));
        !numbers.is_empty()
    }

    pub(super) fn remove(&mut self, number: u64) {
        let Some((log, change)) = self.waiting.remove(number).or_else(|| self.confirmed.remove(number)) else { return };
        if let Change::Charge(Charge { entry, .. }) = change {
            let receipt = (log.clone(), entry.id, entry.at);
            // A newer charge may have the same id and time.
            if self.receipts.get(&receipt) == Some(&number) {
                self.receipts.remove(&receipt);
            }
        }
        self.order.remove(&(log, number));
    }

    /// Removes what has expired at `now`, by the local store's clock.
    pub(super) fn expire(&mut self, now: Timestamp) {
        self.now = now;
        while let Some(number) = self.waiting.first_expired(now).or_else(|| self.confirmed.first_expired(now)) {
            self.remove(number);
        }
    }

    /// Takes the next log of which something waits, and on which nobody works.
    pub(super) fn take_next(&mut self) -> Option<LogId> {
        let after = self.last_taken.take();
        let next = self.first_free(after).or_else(|| self.first_free(None))?;
        self.last_taken = Some(next.clone());
        self.take(&next).then_some(next)
    }

    /// Takes a log. Returns `false` if somebody else works on it.
    pub(super) fn take(&mut self, log: &LogId) -> bool {
        self.busy.insert(log.clone())
    }

    pub(super) fn put_back(&mut self, log: &LogId) {
        self.busy.remove(log);
    }

    /// Returns what has waited longest of a log, with its number.
    pub(super) fn first(&self, log: &LogId) -> Option<(u64, Change)> {
        let number = self.waiting_of(log).next()?;
        self.waiting.get(number).map(|(_, change)| (number, change.clone()))
    }

    /// Returns the policies of an operation, shared with other charges.
    pub(super) fn policies(&mut self, op: &Op<'_>) -> Arc<Policies> {
        let same = |known: &&Arc<Policies>| known.own == *op.policy && known.limiter.as_ref() == op.limiter_policy;
        if let Some(known) = self.recent_policies.iter().find(same) {
            return Arc::clone(known);
        }
        let new = Arc::new(Policies { own: op.policy.clone(), limiter: op.limiter_policy.cloned() });
        self.recent_policies.truncate(RECENT_POLICIES - 1);
        self.recent_policies.push_front(Arc::clone(&new));
        new
    }

    fn wait(&mut self, number: u64, expires: Timestamp, log: LogId, change: Change) {
        self.order.insert((log.clone(), number));
        self.waiting.insert(number, expires, (log, change));
        while let Some(oldest) = self.waiting.first_beyond(self.max) {
            self.dropped += 1;
            self.remove(oldest);
        }
    }

    /// Keeps a charge that waits no longer for as long as somebody can name its entry.
    fn confirm(&mut self, number: u64) {
        let Some((_, Change::Charge(Charge { receipts_end, local: Some(_), .. }))) = self.waiting.get(number) else {
            return self.remove(number);
        };
        let expires = *receipts_end;
        let Some((log, change)) = self.waiting.remove(number) else { return };
        self.order.remove(&(log.clone(), number));
        self.confirmed.insert(number, expires, (log, change));
        while let Some(oldest) = self.confirmed.first_beyond(self.max) {
            self.remove(oldest);
        }
    }

    /// Returns the first log after another one of which something waits, and on which nobody works.
    fn first_free(&self, mut after: Option<LogId>) -> Option<LogId> {
        loop {
            let bound = after.map_or(Unbounded, |log| Excluded((log, u64::MAX)));
            let (log, _) = self.order.range((bound, Unbounded)).next()?;
            if !self.busy.contains(log) {
                return Some(log.clone());
            }
            after = Some(log.clone());
        }
    }

    fn waiting_of(&self, log: &LogId) -> impl Iterator<Item = u64> {
        self.order.range((log.clone(), 0)..=(log.clone(), u64::MAX)).map(|(_, number)| *number)
    }

    fn numbers(&self, log: &LogId, (from, to): (EntryId, EntryId)) -> impl Iterator<Item = u64> {
        let range = (log.clone(), from, Timestamp::default())..=(log.clone(), to, Timestamp::MAX);
        self.receipts.range(range).map(|(_, number)| *number)
    }
}

#[cfg(test)]
mod tests {
    use limiter_core::policy;
    use limiter_core::store::LogKey;
    use proptest::prelude::*;

    use super::*;
    use crate::outages::fallback::charge::Local;

    fn at(micros: u64) -> Timestamp {
        Timestamp::from_micros_saturating(micros)
    }

    /// The parts of a journal agree.
    fn check(journal: &Journal) {
        assert!(journal.changes() <= journal.max && journal.confirmed.len() <= journal.max);
        assert_eq!(journal.order.len(), journal.changes());
        assert!(journal.order.iter().all(|(log, number)| journal.waiting.get(*number).unwrap().0 == *log));
        for ((log, id, at), number) in &journal.receipts {
            let held = journal.waiting.get(*number).or_else(|| journal.confirmed.get(*number));
            assert!(matches!(held, Some((other, Change::Charge(Charge { entry, .. })))
                if other == log && *entry == Entry { id: *id, at: *at }));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Whatever happens, the parts of a journal agree, and nothing is left of what is gone.
        #[test]
        fn no_change_leaves_a_trace(actions in prop::collection::vec((0..12_u8, 0..3_u8, 0..30_u64), 1..200)) {
            let (policy, mut journal) = (policy!("9/1ms"), Journal::new(20));
            let mut taken = Vec::new();
            for (time, (action, key, number)) in (0..).zip(actions) {
                let key = [key];
                let log = LogId::from(LogKey::new("t".into(), &key));
                // Some have an id that an earlier one has, or a time.
                let entry = |number: u64| Entry { id: EntryId::from_u128(u128::from(number / 2)), at: at(number / 3) };
                let charge = |journal: &mut Journal, cost, primary, by_id: bool| Charge {
                    entry: entry(number),
                    window: policy.longest_window(),
                    receipts_end: at(time + 10 * (number % 7)),
                    is_given: false,
                    cost,
                    primary,
                    local: primary.is_none().then(|| Local {
                        id: EntryId::from_u128(time.into()),
                        verdict: Some((true, true)),
                        sent: by_id.then_some(cost),
                        counts_for: policy.longest_window(),
                        policies: journal.policies(&Op::acquire(&key, &policy)),
                    }),
                };
                match action {
                    0..=3 => {
                        let charge = charge(&mut journal, number % 4 + 1, None, action > 1);
                        let _ = journal.push(log, Change::Charge(charge), at(time + 50));
                    }
                    4 => {
                        let charge = charge(&mut journal, number % 4, Some(entry(number)), false);
                        let _ = journal.push(log, Change::Charge(charge), at(time + 50));
                    }
                    5 | 6 => {
                        if let Some(number) = journal.find(&log, entry(number)) {
                            let was_refunded = journal.charge_mut(number).unwrap().cost == 0;
                            assert_eq!(journal.settle(number, time % 3), !was_refunded);
                        }
                    }
                    7 if number % 4 == 0 => {
                        let _ = journal.discard(&log);
                        assert!(journal.first(&log).is_none() && journal.numbers(&log, ALL_IDS).next().is_none());
                        let _ = journal.push(log, Change::Reset, Timestamp::MAX);
                    }
                    7 => assert_eq!(journal.find_id(&log, entry(number).id).is_some(),
                        journal.receipts.keys().any(|(other, id, _)| *other == log && *id == entry(number).id)),
                    8 => taken.extend(journal.take_next().inspect(|log| assert!(!taken.contains(log)))),
                    9 | 10 => {
                        if let Some((number, change)) = taken.last().and_then(|log| journal.first(log)) {
                            match change {
                                Change::Reset => journal.remove(number),
                                Change::Charge(charge) if charge.primary.is_none() => {
                                    let cost = journal.send(number).unwrap();
                                    journal.answered(number, charge.entry, cost);
                                }
                                Change::Charge(charge) => journal.answered(number, charge.entry, charge.cost),
                            }
                        }
                    }
                    _ => {
                        taken.drain(..).for_each(|log| journal.put_back(&log));
                        journal.expire(at(time));
                    }
                }
                check(&journal);
            }
            taken.drain(..).for_each(|log| journal.put_back(&log));
            while let Some(log) = journal.take_next() {
                while let Some((number, Change::Reset)) = journal.first(&log) {
                    journal.remove(number);
                }
                journal.discard(&log);
                journal.put_back(&log);
            }
            journal.expire(at(1000));
            check(&journal);
            assert!(journal.is_empty() && journal.receipts.is_empty() && journal.busy.is_empty());
        }
    }
}
