//! Settlements and resets of the store that keeps lists.

use limiter_core::store::{At, LogKey, Mode, Settlement, SettlementFacts};
use limiter_core::{Error, ErrorKind, MAX_COST, Name, PerLimit, Timestamp};

use super::Flaw;
use super::list_store::ListStore;
use super::rules::Item;

impl ListStore {
    /// Returns the index of the entry that a settlement names.
    fn find(&self, log: &[Item], settlement: &Settlement<'_>) -> Option<usize> {
        let (entry, at) = (settlement.receipt.entry().as_u128(), settlement.receipt.at().as_micros());
        let named = log.iter().position(|item| item.name == entry && item.at == at);
        match self.flaw {
            Flaw::RefundsANeighbour => named.map(|_| 0),
            Flaw::RefundsTwice => named.or(log.len().checked_sub(1)),
            Flaw::RefundsByTimeAlone => log.iter().position(|item| item.at == at),
            Flaw::RefundsByIdAlone => log.iter().position(|item| item.name == entry),
            _ => named,
        }
    }

    fn has_expired(&self, settlement: &Settlement<'_>, now: u64) -> bool {
        let (receipt, now) = (settlement.receipt, Timestamp::from_micros_saturating(now));
        match self.flaw {
            Flaw::RefundsWhatHasLeft => false,
            Flaw::RefundsForTheLongerWindow => {
                let window = receipt.window().max(settlement.policy.longest_window());
                !window.counts(receipt.at(), now)
            }
            Flaw::RefundsAtTheEndOfTheWindow => now.micros_since(receipt.at()) > receipt.window().as_micros(),
            Flaw::RefundsInTheSettlementsWindow => !settlement.policy.longest_window().counts(receipt.at(), now),
            _ => receipt.has_expired(now),
        }
    }

    /// Returns whether a settlement would find its entry.
    pub(super) fn find_step(&self, settlement: &Settlement<'_>) -> bool {
        let shared = self.lock();
        let log = shared.logs.get(&self.flaw.key(settlement.log)).cloned().unwrap_or_default();
        let now = self.flaw.now((settlement.at, Mode::Record), &log, settlement.receipt.window(), self.clock());
        self.find(&log, settlement).is_some_and(|_| !self.has_expired(settlement, now))
    }

    pub(super) fn settle_step(&self, settlement: &Settlement<'_>) -> Result<SettlementFacts, Error> {
        let mut shared = self.lock();
        let mut key = self.flaw.key(settlement.log);
        if self.has(Flaw::SettlesUnderTheDefaultName) {
            let default = self.flaw.key(LogKey::new(Name::new("conformance"), settlement.log.key));
            if shared.logs.contains_key(&default) {
                key = default;
            }
        }
        if self.has(Flaw::SettlesOnAnyKey) {
            let named = |item: &Item| item.name == settlement.receipt.entry().as_u128();
            key = shared.logs.iter().find(|(_, log)| log.iter().any(named)).map_or(key, |(key, _)| key.clone());
        }
        let before = shared.logs.get(&key).cloned().unwrap_or_default();
        let mut log = before.clone();
        let window = settlement.receipt.window();
        let mut now = self.flaw.now((settlement.at, Mode::Record), &log, window, self.clock());
        now = now.max(shared.times.get(&key).copied().unwrap_or(0));
        if let (Flaw::SettlesBackInTime, At::Given(given)) = (self.flaw, settlement.at) {
            now = given.as_micros();
        }
        let then = self.unclamped(Flaw::SettlesAtTheGivenTime, settlement.at, now);
        let mut found = self.find(&log, settlement).filter(|_| !self.has_expired(settlement, then));
        if self.has(Flaw::SettlesNothingAtTheStoresClock) && settlement.at == At::StoreClock {
            found = None;
        }
        if self.has(Flaw::DoesNotApplyTheSameCost) {
            found = found.filter(|i| log[*i].cost != settlement.cost);
        }
        let most = settlement.policy.largest_max();
        if self.has(Flaw::RefusesLargeSettlements) && settlement.cost > most {
            return Err(Error::new(ErrorKind::CostExceedsLimit, "too large"));
        }
        if self.has(Flaw::SettlesNothingByError) && found.is_none() {
            return Err(Error::new(ErrorKind::Unavailable, "there is no such entry"));
        }
        if let Some(i) = found {
            let gone = log[i];
            if self.change(&mut log, i, settlement, now) {
                if self.has(Flaw::KeepsRefundedIds) {
                    shared.ghosts.entry(key.clone()).or_default().push(gone);
                }
                if self.has(Flaw::KeepsTheTimeOfRemovedEntries) {
                    let time = shared.times.entry(key.clone()).or_default();
                    *time = gone.at.max(*time);
                }
            }
            match self.flaw {
                Flaw::SettlesWithoutCap | Flaw::CapsAfterAPause => {}
                Flaw::SettlesWithThePolicysCap => self.flaw.cap(&mut log, most),
                _ => self.flaw.cap(&mut log, MAX_COST),
            }
        }
        if self.has(Flaw::TrimsWhenItSettles) {
            let window = settlement.policy.longest_window().as_micros();
            log.retain(|item| now.saturating_sub(item.at) < window);
        }
        if log.is_empty() {
            shared.logs.remove(&key)
        } else {
            shared.logs.insert(key, log.clone())
        };
        let shown = if self.has(Flaw::SettlesWithTheUsageBefore) { &before } else { &log };
        if self.has(Flaw::SettlesAtTheReceiptsTime) {
            now = shown.last().map_or(now, |item| item.at);
        }
        let mut facts = self.log_facts(shown, settlement.policy, 0, now);
        if self.has(Flaw::SettlesWithTheUsageOfOneLimit) {
            facts.usage = PerLimit::from_slice(&vec![facts.usage[0]; facts.usage.len()]).unwrap();
        }
        Ok(SettlementFacts { applied: found.is_some() || self.has(Flaw::AlwaysApplies), log: facts })
    }

    /// Changes an entry. Returns whether it removed it.
    fn change(&self, log: &mut Vec<Item>, i: usize, settlement: &Settlement<'_>, now: u64) -> bool {
        let cost = settlement.cost;
        if cost == 0 {
            if self.has(Flaw::RefundsToZero) {
                log[i].cost = 0;
                return false;
            }
            let gone = log.remove(i);
            if self.has(Flaw::NamesEntriesByTheirIds) {
                log.retain(|item| (item.name, item.at) != (gone.name, gone.at));
            }
            return true;
        }
        let mut item = log[i];
        item.cost = match self.flaw {
            Flaw::IgnoresSettlements => item.cost,
            Flaw::CutsLargeSettlements => cost.min(settlement.policy.largest_max()),
            Flaw::SettlesToTheDifference => item.cost.saturating_add(cost).saturating_sub(1).min(MAX_COST),
            _ => cost,
        };
        match self.flaw {
            Flaw::SettlesWithoutTheId => item.id = None,
            Flaw::SettlesWithoutTheVerdict => (item.admitted, item.refundable) = (false, false),
            _ => {}
        }
        match self.flaw {
            Flaw::SettlesAnew => {
                item.at = now;
                log.remove(i);
                log.push(item);
            }
            Flaw::SettlesAtTheEnd => {
                // Moves it only behind entries of equal time, which keeps the log sorted.
                log.remove(i);
                let end = log.partition_point(|other| other.at <= item.at);
                log.insert(end, item);
            }
            _ => log[i] = item,
        }
        false
    }

    pub(super) fn reset_step(&self, log: LogKey<'_>) -> Result<bool, Error> {
        let mut shared = self.lock();
        let key = self.flaw.key(log);
        shared.times.remove(&key);
        let there_was_one = shared.logs.contains_key(&key);
        match self.flaw {
            Flaw::ResetLeavesAnEntry => {
                if let Some(log) = shared.logs.get_mut(&key).filter(|log| log.len() > 1) {
                    log.truncate(1);
                    return Ok(true);
                }
            }
            Flaw::ResetKeepsIds => {
                let log = shared.logs.get(&key).cloned().unwrap_or_default();
                shared.ghosts.insert(key.clone(), log);
            }
            Flaw::ResetsNothingByError if !there_was_one => {
                return Err(Error::new(ErrorKind::Unavailable, "there is no log"));
            }
            Flaw::ResetsAllKeys => shared.logs.clear(),
            _ => {}
        }
        shared.logs.remove(&key);
        if !self.has(Flaw::ResetKeepsIds) {
            shared.ghosts.remove(&key);
        }
        Ok(match self.flaw {
            Flaw::ResetAlwaysFinds => true,
            Flaw::ResetNeverFinds => false,
            _ => there_was_one,
        })
    }
}
