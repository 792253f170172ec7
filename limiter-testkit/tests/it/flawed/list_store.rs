//! A store that keeps a list of entries per log.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};
use std::task::Poll;
use std::time::Duration;

use async_trait::async_trait;
use limiter_core::store::{
    At, Entry, Facts, LogFacts, LogKey, Mode, Op, Otherwise, Outcome, Settlement, SettlementFacts, Usage, decide,
};
use limiter_core::{Decision, EntryId, Error, ErrorKind, MAX_COST, PerLimit, Policy, Timestamp, WindowStore};

use super::rules::{Item, system_micros};
use super::{Flaw, wait};

#[derive(Debug, Default)]
pub(super) struct Shared {
    pub(super) logs: HashMap<Vec<u8>, Vec<Item>>,
    /// Removed entries whose ids are still in use.
    pub(super) ghosts: HashMap<Vec<u8>, Vec<Item>>,
    /// Times of removed entries that still clamp later times.
    pub(super) times: HashMap<Vec<u8>, u64>,
    names: u128,
}

#[derive(Debug)]
pub(crate) struct ListStore {
    pub(super) flaw: Flaw,
    shared: Mutex<Shared>,
    started: u64,
}

impl ListStore {
    pub(crate) fn new(flaw: Flaw) -> Self {
        Self { flaw, shared: Mutex::default(), started: system_micros() }
    }

    pub(super) fn has(&self, flaw: Flaw) -> bool {
        self.flaw == flaw
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap()
    }

    pub(super) fn clock(&self) -> u64 {
        self.flaw.clock(self.started)
    }

    /// Returns the time of an operation, clamped to the remembered times.
    fn now(&self, shared: &mut Shared, key: &[u8], op: &Op<'_>, log: &[Item]) -> u64 {
        let now = self.flaw.now((op.at, op.mode), log, op.policy.longest_window(), self.clock());
        let key = if self.has(Flaw::HasOneTimeForAllLogs) { Vec::new() } else { key.to_vec() };
        let now = now.max(shared.times.get(&key).copied().unwrap_or(0));
        let holds = match self.flaw {
            Flaw::HasOneTimeForAllLogs => true,
            Flaw::LetsPeeksHoldTime => op.mode == Mode::Peek,
            _ => false,
        };
        if holds && op.at != At::StoreClock {
            shared.times.insert(key, now);
        }
        now
    }

    /// Returns the caller's time if the flaw uses it in place of the clamped time.
    pub(super) fn unclamped(&self, flaw: Flaw, at: At, now: u64) -> u64 {
        match at {
            At::Given(given) if self.has(flaw) => given.as_micros(),
            _ => now,
        }
    }

    fn repeated(&self, shared: &Shared, key: &[u8], op: &Op<'_>, now: u64) -> Option<Item> {
        let id = op.id.filter(|id| match self.flaw {
            Flaw::IgnoresIds => false,
            Flaw::IgnoresIdsAtTheStoresClock => op.at != At::StoreClock,
            Flaw::IgnoresTheIdZero => id.as_u128() != 0,
            _ => true,
        })?;
        let window = match self.flaw {
            Flaw::RepeatsForEver => u64::MAX,
            Flaw::RepeatsOneTooLate => op.retention().window.as_micros() + 1,
            Flaw::RepeatsForTheWholeWindow => op.retention().window.as_micros(),
            Flaw::RepeatsForTenMinutes if op.has_resolution() => super::merging::TEN_MINUTES,
            Flaw::RepeatsInTheOwnWindow => op.policy.longest_window().as_micros(),
            _ => self.flaw.window(op.receipt_window()),
        };
        let now = self.unclamped(Flaw::RepeatsAtTheGivenTime, op.at, now);
        let is_it = |item: &&Item| {
            let at = if self.has(Flaw::KeepsIdsAtTheGivenTime) { item.given } else { item.at };
            item.id.is_some_and(|other| self.flaw.same_id(other, id))
                && now.saturating_sub(at) < window
                && (!self.has(Flaw::RepeatsOnlyTheSameMode) || item.mode == op.mode)
                && (!self.has(Flaw::RepeatsOnlyTheSameCost) || item.cost == op.cost)
        };
        let everywhere = self.has(Flaw::SharesIdsAcrossKeys);
        let logs = shared.logs.iter().filter(|(other, _)| everywhere || *other == key).flat_map(|(_, log)| log);
        let ghosts = shared.ghosts.get(key).into_iter().flatten();
        logs.chain(ghosts).find(is_it).copied()
    }

    fn append(
        &self,
        shared: &mut Shared,
        log: &mut Vec<Item>,
        op: &Op<'_>,
        (now, admitted, refundable): (u64, bool, bool),
    ) -> Item {
        shared.names += 1;
        let own = match (self.flaw, op.id) {
            (Flaw::NamesEntriesByCount, Some(id)) => id.as_u128(),
            (Flaw::NamesEntriesByCount, None) => log.len() as u128,
            (Flaw::RefundsByIdAlone | Flaw::NamesEntriesByTheirIds, Some(id)) => id.as_u128(),
            _ => shared.names << 64,
        };
        let given = self.unclamped(Flaw::KeepsIdsAtTheGivenTime, op.at, now);
        let before = log.last().map_or(now, |newest| newest.at);
        let (cost, mode, marks) = (op.cost, op.mode, self.flaw.marks_after(log.last(), op, now));
        let id = op.id;
        let item = Item { name: own, id, at: now, given, cost, admitted, refundable, mode, used: 0, marks };
        if !self.has(Flaw::LeavesTheIdToTheOlderEntry) && op.id.is_some() {
            log.iter_mut().filter(|other| other.id == op.id).for_each(|other| other.id = None);
        }
        match log.last_mut() {
            Some(last) if self.has(Flaw::MergesTies) && last.at == item.at && last.admitted == item.admitted => {
                *last = item;
            }
            _ => log.push(item),
        }
        let keeps_old = self.has(Flaw::TrimsOnlyWhatItAdmits) && op.mode == Mode::Acquire && !admitted;
        let merges_first = self.has(Flaw::MergesBeforeItDrops);
        if merges_first {
            self.flaw.merge(log, op, (before, now), item.name);
        }
        self.flaw.retain(log, op, self.unclamped(Flaw::TrimsAtTheGivenTime, op.at, now), keeps_old);
        if let [rest @ .., newest] = &mut log[..] {
            if !self.has(Flaw::TakesMarksOfDroppedEntries) {
                newest.marks = self.flaw.marks_after(rest.last(), op, now);
            }
            newest.marks[0] |= self.flaw.names(op);
        }
        if !merges_first {
            self.flaw.merge(log, op, (before, now), item.name);
        }
        let most = match self.flaw {
            Flaw::CountsEntriesIn8Bits => 1 << 8,
            _ => usize::MAX,
        };
        if log.len() >= most {
            log.remove(0);
        }
        item
    }

    fn apply_step(&self, op: &Op<'_>, earlier: Option<(u64, bool)>) -> (Facts, u64, bool) {
        let mut shared = self.lock();
        let key = self.flaw.key(op.log);
        let mut log = shared.logs.get(&key).cloned().unwrap_or_default();
        let before = log.clone();
        let mut now = self.now(&mut shared, &key, op, &log);
        let repeated = self.repeated(&shared, &key, op, now);
        let (read, fits) = earlier.unwrap_or_else(|| {
            (now, self.flaw.admits(&log, op, self.unclamped(Flaw::CountsAtTheGivenTime, op.at, now)))
        });
        now = read;
        if self.has(Flaw::ReadsTheClockTwice) && op.at == At::StoreClock {
            now = self.now(&mut shared, &key, op, &log);
        }
        let original = repeated.filter(|_| !self.has(Flaw::RepeatsTheVerdictOfNow)).map(|item| item.admitted);
        let admitted = original.unwrap_or(fits);
        let mut refundable = match repeated {
            Some(item) if self.has(Flaw::GivesReceiptsWhenItRepeats) => item.admitted,
            Some(item) => item.refundable,
            None => fits && self.flaw.fits_default(&log, op, op.cost, now),
        };
        let entry =
            |item: Item| Entry { id: EntryId::from_u128(item.name), at: Timestamp::from_micros_saturating(item.at) };
        let mut outcome = repeated.map_or(Outcome::Nothing, |item| Outcome::Repeated(entry(item)));
        let only_checks = self.has(Flaw::ChecksThenAdds) && earlier.is_none();
        if repeated.is_none() && self.flaw.appends(op, admitted) && !only_checks {
            let item = self.append(&mut shared, &mut log, op, (now, admitted, refundable));
            if self.has(Flaw::GivesReceiptsForWhatFitsThen) {
                refundable = admitted && self.flaw.fits_default(&log, op, 0, now);
            }
            outcome = if op.mode == Mode::Peek { Outcome::Nothing } else { Outcome::Appended(entry(item)) };
        } else if self.trims(op, repeated.is_some(), admitted) {
            self.flaw.retain(&mut log, op, now, false);
        }
        if op.mode == Mode::Peek && self.has(Flaw::MergesWhenItPeeks) {
            let newest = log.last().map_or(now, |newest| newest.at);
            self.flaw.merge(&mut log, op, (newest, now), u128::MAX);
        }
        if repeated.is_none()
            && outcome == Outcome::Nothing
            && self.has(Flaw::LeavesIdsOfDenials)
            && op.mode == Mode::Acquire
        {
            let ghost = Item {
                name: 7,
                id: op.id,
                at: now,
                given: now,
                cost: op.cost,
                admitted,
                refundable,
                mode: op.mode,
                used: 0,
                marks: [false; 2],
            };
            shared.ghosts.entry(key.clone()).or_default().push(ghost);
        }
        let shown = if self.has(Flaw::DescribesTheLogBefore) { &before } else { &log };
        let mut facts = self.log_facts(shown, op.policy, op.cost, now);
        if self.has(Flaw::CountsAtTheGivenTime) {
            let then = self.unclamped(self.flaw, op.at, now);
            facts.usage = self.log_facts(shown, op.policy, op.cost, then).usage;
        }
        if let (Flaw::RepeatsTheUsageOfThen, Some(item)) = (self.flaw, repeated) {
            facts.usage = facts.usage.map(|usage| Usage { used: item.used, ..usage });
        }
        if let (Outcome::Appended(_), Some(last)) = (outcome, log.last_mut()) {
            last.used = facts.usage[0].used;
        }
        if !log.is_empty() {
            shared.logs.insert(key, log);
        }
        (Facts { admitted, refundable, outcome, log: facts }, read, fits)
    }

    /// Returns whether a flaw lets an operation that appends nothing drop entries.
    fn trims(&self, op: &Op<'_>, repeated: bool, admitted: bool) -> bool {
        match self.flaw {
            Flaw::TrimsWhenItPeeks => op.mode == Mode::Peek,
            Flaw::TrimsWhenItDenies => op.mode == Mode::Acquire && !repeated && !admitted,
            Flaw::TrimsWhenItRepeats => repeated,
            _ => false,
        }
    }

    pub(super) fn log_facts(&self, log: &[Item], policy: &Policy, cost: u64, now: u64) -> LogFacts {
        let usage: Vec<Usage> = policy.limits().iter().map(|limit| self.flaw.usage(log, limit, cost, now)).collect();
        let at = Timestamp::from_micros_saturating;
        let counts = usage.iter().any(|usage| usage.used > 0);
        let newest = log.last().filter(|_| counts || !self.has(Flaw::HidesTheNewestEntry)).map(|item| at(item.at));
        LogFacts { now: at(now), newest, usage: PerLimit::from_slice(&usage).unwrap() }
    }
}

#[async_trait]
impl WindowStore for ListStore {
    async fn apply(&self, op: Op<'_>) -> Result<Facts, Error> {
        if self.has(Flaw::BlocksItsThread) {
            std::thread::sleep(Duration::from_millis(5));
        }
        let (facts, now, fits) = self.apply_step(&op, None);
        if self.has(Flaw::DeniesByError) && !facts.admitted {
            return Err(Error::new(ErrorKind::Unavailable, "denied"));
        }
        if !self.has(Flaw::ChecksThenAdds) {
            return Ok(facts);
        }
        wait().await;
        std::thread::yield_now();
        Ok(self.apply_step(&op, Some((now, fits))).0)
    }

    fn try_decide(&self, op: Op<'_>, otherwise: Otherwise<'_>) -> Poll<Result<Decision, Error>> {
        let attempted = || match (self.flaw, op.checked()) {
            (Flaw::AppliesWhatItDoesNotDecideAtOnce, Ok(op)) => {
                self.apply_step(&op, None);
                None
            }
            (Flaw::GivesReceiptsForMergedEntries, Ok(mut op)) => {
                let facts = self.apply_step(&op, None).0;
                op.keep = true;
                Some(Ok(decide(&op, facts)))
            }
            (Flaw::GivesReceiptsForAll | Flaw::GivesReceiptsForRecords | Flaw::GivesReceiptsForDenials, Ok(op)) => {
                let mut facts = self.apply_step(&op, None).0;
                facts.refundable |= match self.flaw {
                    Flaw::GivesReceiptsForRecords => op.mode == Mode::Record,
                    Flaw::GivesReceiptsForDenials => op.mode == Mode::Acquire && !facts.admitted,
                    _ => true,
                };
                Some(Ok(decide(&op, facts)))
            }
            (Flaw::DecidesAtOnceWithoutChecks, _) => Some(Ok(decide(&op, self.apply_step(&op, None).0))),
            _ => None,
        };
        attempted().map_or_else(otherwise, Poll::Ready)
    }

    async fn settle(&self, settlement: Settlement<'_>) -> Result<SettlementFacts, Error> {
        if self.has(Flaw::FindsThenSettles) {
            // Another call may remove the entry meanwhile.
            let found = self.find_step(&settlement);
            std::thread::yield_now();
            let mut facts = self.settle_step(&settlement)?;
            facts.applied = found;
            return Ok(facts);
        }
        let facts = self.settle_step(&settlement)?;
        if self.has(Flaw::CapsAfterAPause) {
            wait().await;
            let mut shared = self.lock();
            if let Some(log) = shared.logs.get_mut(&self.flaw.key(settlement.log)).filter(|_| facts.applied) {
                self.flaw.cap(log, MAX_COST);
            }
        }
        Ok(facts)
    }

    async fn reset(&self, log: LogKey<'_>) -> Result<bool, Error> {
        self.reset_step(log)
    }
}
