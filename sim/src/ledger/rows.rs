//! The books of a log in a table: what each swap changed, and what calls return of it.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use limiter_core::Policy;
use limiter_core::store::{self, EntryId, Op};

use super::list::{Entry, List, exact};
use super::{Book, Moment, longest};

impl Book {
    /// Notes how a swap changed a table's row: what has a new id was appended, what is gone early or costs less was settled. Whether
    /// the former was admitted, the call knows that returns it.
    pub(crate) fn save(
        &mut self,
        [policy, own]: [&Policy; 2],
        before: &List,
        after: List,
        loaded: Moment,
        line: u64,
    ) -> Result<()> {
        let by_id = |list: &List| -> BTreeMap<EntryId, Entry> {
            let entries = list.entries.iter();
            entries.map(|entry| (entry.id, *entry)).collect()
        };
        let (old, new) = (by_id(before), by_id(&after));
        // Each new log gives other ids, from 0 on. Some entries are gone in the batch that appended them.
        let ids =
            |entries: &BTreeMap<EntryId, _>| entries.keys().next().map(|id| id.as_u128() >> 64);
        if !old.is_empty() && ids(&old) != ids(&new) && self.resets > 0 {
            self.reset(policy, line);
            self.release(None, line);
        }
        if let Some((last, _)) = new.last_key_value() {
            let last = last.as_u128();
            let before = old.keys().map(|id| id.as_u128());
            let before = before.filter(|id| id >> 64 == last >> 64).max();
            let first = before.map_or(last >> 64 << 64, |before| before + 1);
            for id in (first..=last).map(EntryId::from_u128) {
                if self.known.insert(id) {
                    self.admitted.push((loaded.line, 0, id));
                    self.unnamed.insert(id);
                }
            }
        }
        let newest = before.entries.last();
        let time = newest.map_or(loaded.clock, |newest| newest.at.max(loaded.clock));
        for (id, entry) in &old {
            let left = new.get(id).map_or(0, |entry| entry.cost);
            if left < entry.cost && time - entry.at < exact(policy, None) {
                self.lower(*id, left, *id);
                self.release(None, line);
            }
        }
        let newest = after.entries.last().map_or(0, |newest| newest.at);
        // Operations keep the default policy that was theirs when it changes.
        let kept = longest(policy).min(longest(own));
        let is_kept = after.entries.is_empty() || after.expires_at >= newest + kept;
        self.list = after;
        ensure!(is_kept, "may be swept before its entries have expired");
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

    /// Checks that an operation with a caller's id did not append again what an earlier one had returned when it began.
    pub(crate) fn append_once(
        &mut self,
        op: &Op<'_>,
        id: EntryId,
        new: store::Entry,
        begun: u64,
        line: u64,
    ) -> Result<()> {
        let (at, window) = (new.at.as_micros(), exact(op.policy, op.limiter_policy));
        let counts = |entry: &Entry| at - entry.at < window;
        let earlier = self.callers.insert(id, (new.id, line));
        let earlier = earlier.filter(|(_, line)| *line < begun);
        let earlier = earlier
            .and_then(|(earlier, _)| self.list.entries.iter().find(|entry| entry.id == earlier));
        ensure!(!earlier.is_some_and(counts), "counts twice");
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
