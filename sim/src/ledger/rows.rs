//! The books of a log in a table: what each swap changed, and what calls return of it.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use limiter_core::Policy;
use limiter_core::store::{Entry, EntryId, Log, Op};

use super::{Book, Moment};

impl Book {
    /// Notes how a swap changed a table's row: what has a new id was appended, what is gone early or costs less was settled. Whether
    /// the former was admitted, the call knows that returns it.
    pub(crate) fn save(
        &mut self,
        policy: &Policy,
        before: &Log,
        after: Log,
        loaded: Moment,
        line: u64,
    ) -> Result<()> {
        let by_id = |(entry, cost): (Entry, _)| (entry.id, (entry, cost));
        let old: BTreeMap<EntryId, (Entry, u64)> = before.entries().map(by_id).collect();
        let new: BTreeMap<EntryId, (Entry, u64)> = after.entries().map(by_id).collect();
        // Each new log gives other ids, from 0 on. Some entries are gone in the batch that appended them.
        let ids =
            |entries: &BTreeMap<EntryId, _>| entries.keys().next().map(|id| id.as_u128() >> 64);
        if !old.is_empty() && ids(&old) != ids(&new) && self.resets > 0 {
            self.reset(policy, line);
            self.release(None, line);
        }
        if let Some((last, _)) = new.last_key_value() {
            let last = last.as_u128();
            let before = old
                .keys()
                .map(|id| id.as_u128())
                .filter(|id| id >> 64 == last >> 64);
            let first = before.max().map_or(last >> 64 << 64, |before| before + 1);
            let ids = (first..=last).map(EntryId::from_u128);
            let unknown: Vec<_> = ids.filter(|id| !self.entries.contains_key(id)).collect();
            for id in unknown {
                let gone = Entry {
                    id,
                    at: loaded.time(),
                };
                let entry = new.get(&id).map_or(gone, |(entry, _)| *entry);
                self.entries.insert(id, entry);
                self.admitted.push((loaded.line, 0, id));
                self.unnamed.insert(id);
            }
        }
        let time = before
            .newest()
            .map_or(loaded.time(), |newest| newest.max(loaded.time()));
        let window = Op::peek("", policy).receipt_window();
        for (id, (entry, cost)) in &old {
            let left = new.get(id).map_or(0, |(_, cost)| *cost);
            if left < *cost && window.is_some_and(|window| window.counts(entry.at, time)) {
                self.lower(*id, left, *id);
                self.release(None, line);
            }
        }
        self.log = after;
        self.balance()
    }

    /// Checks that each entry was asked for by a call of its own.
    pub(crate) fn balance(&self) -> Result<()> {
        let (unnamed, open) = (self.unnamed.len() as u64, self.open);
        ensure!(
            unnamed <= open,
            "{unnamed} entries are saved for {open} calls"
        );
        Ok(())
    }

    /// Notes that a call that began at a moment returns an entry, which must have been saved. A reset may have come before that.
    pub(crate) fn name(&mut self, id: EntryId, begun: u64) -> Result<()> {
        let may_be_gone = self.was_reset_since(begun);
        let is_own = self.unnamed.remove(&id);
        ensure!(
            is_own || may_be_gone,
            "returns an entry that was not saved for it"
        );
        Ok(())
    }

    /// Notes what an entry counts that a call returned as admitted, and checks each window with it.
    pub(crate) fn confirm(&mut self, policy: &Policy, id: EntryId, cost: u64) -> Result<()> {
        let admission = self.admitted.iter_mut().find(|(.., of)| *of == id);
        let Some((first, counted, _)) = admission else {
            return Ok(());
        };
        *counted = cost;
        let first = *first;
        let lines = self.admitted.iter().map(|(line, ..)| *line);
        let lines: Vec<u64> = lines.filter(|line| *line >= first).collect();
        lines
            .into_iter()
            .try_for_each(|line| self.check(policy, line))
    }

    /// Checks that a log that was loaded denies an operation, or the log that was saved after that.
    pub(crate) fn deny(&self, loaded: &Log, peek: &Op<'_>, now: Moment) -> Result<()> {
        let fits = |log: &Log| log.clone().apply(peek, now.time()).admitted;
        let is_released = self.released.iter().any(|line| *line >= now.line);
        let may_fit = is_released || self.was_reset_since(now.line);
        let is_right = may_fit || !fits(loaded) || !fits(&self.log);
        ensure!(is_right, "denies {} although it fits", peek.cost);
        Ok(())
    }

    /// Checks that a settlement was saved.
    pub(crate) fn settled(&self, id: EntryId, cost: u64) -> Result<()> {
        let held = self.log.entries().find(|(entry, _)| entry.id == id);
        let is_saved = held.is_none_or(|(_, held)| held == cost);
        ensure!(is_saved, "returns a settlement that was not saved");
        Ok(())
    }

    /// Notes that a reset of a table's store begins or ends.
    pub(crate) fn ask_reset(&mut self, is_begin: bool, line: u64) {
        match is_begin {
            true => self.resets += 1,
            false => (self.resets, self.reset_at) = (self.resets - 1, line),
        }
    }

    fn was_reset_since(&self, line: u64) -> bool {
        self.resets > 0 || self.reset_at >= line
    }
}
