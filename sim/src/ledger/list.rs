//! What a log must hold, as a plain list of entries, and what callers must see of it. Only SEMANTICS decides here: no code of a store.

use limiter_core::store::{Change, EntryId, Mode};
use limiter_core::{Counting, Decision, Limit, MAX_COST, Policy, Receipt};

use super::Asked;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) id: EntryId,
    pub(crate) at: u64,
    pub(crate) cost: u64,
    pub(crate) fits: bool,
    /// No receipt and no repetition finds it.
    pub(crate) is_merged: bool,
    /// A renewal has moved it.
    pub(crate) is_renewed: bool,
}

/// What a caller sees: whether it is denied, its wait, and of each limit the usage, the next refill and the reset. In microseconds.
pub(crate) type Seen = (bool, Option<u64>, Vec<[u64; 3]>);

pub(crate) fn seen(decision: &Decision) -> Seen {
    let micros = |duration: std::time::Duration| duration.as_micros() as u64;
    let limits = decision.limits();
    let limits = limits.iter().map(|limit| {
        [
            limit.used(),
            micros(limit.refill_after()),
            micros(limit.reset_after()),
        ]
    });
    (
        decision.is_denied(),
        decision.retry_after().map(micros),
        limits.collect(),
    )
}

/// What an operation does alone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Verdict {
    pub(crate) fits: bool,
    pub(crate) is_refundable: bool,
    pub(crate) appends: bool,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct List {
    /// Oldest first.
    pub(crate) entries: Vec<Entry>,
    /// From when the store may forget all.
    pub(crate) expires_at: u64,
}

fn all_limits(own: &Policy, default: Option<&Policy>) -> Vec<Limit> {
    let policies = [Some(own), default].into_iter().flatten();
    policies.flat_map(Policy::limits).copied().collect()
}

fn window(limit: &Limit) -> u64 {
    limit.window().as_micros()
}

/// Returns for how long repetitions and receipts find an entry: the longest window of exact limits, or 0.
pub(crate) fn exact(own: &Policy, default: Option<&Policy>) -> u64 {
    let limits = all_limits(own, default);
    let exact = limits.iter().filter(|limit| limit.resolution().is_none());
    exact.map(window).max().unwrap_or(0)
}

fn sum<'a>(entries: impl IntoIterator<Item = &'a Entry>) -> u64 {
    entries.into_iter().map(|entry| entry.cost).sum()
}

impl List {
    /// Returns the time of an operation: no earlier than the newest entry.
    pub(crate) fn time(&self, asked: &Asked, clock: u64) -> u64 {
        let at = asked.at.unwrap_or(clock);
        self.entries.last().map_or(at, |newest| newest.at.max(at))
    }

    fn counting(&self, window: u64, t: u64) -> &[Entry] {
        let first = self.entries.partition_point(|entry| t - entry.at >= window);
        &self.entries[first..]
    }

    /// Returns the entry with an id that an operation repeats, if there is one.
    pub(crate) fn find(&self, id: EntryId, asked: &Asked, clock: u64) -> Option<&Entry> {
        let t = self.time(asked, clock);
        let window = exact(&asked.policy, asked.limiter_policy.as_ref());
        let is_it = |entry: &&Entry| entry.id == id && !entry.is_merged && t - entry.at < window;
        self.entries.iter().rev().find(is_it)
    }

    /// Returns what an operation does that repeats none.
    pub(crate) fn judge(&self, asked: &Asked, clock: u64) -> Verdict {
        let t = self.time(asked, clock);
        let has_room =
            |limit: &Limit| sum(self.counting(window(limit), t)) + asked.cost <= limit.max();
        let fits = asked.policy.limits().iter().all(has_room);
        let default = asked.limiter_policy.iter().flat_map(Policy::limits);
        Verdict {
            fits,
            is_refundable: fits && default.into_iter().all(has_room),
            appends: match asked.mode {
                Mode::Peek => false,
                Mode::Record => true,
                Mode::Acquire => fits || asked.policy.counting() == Counting::Attempts,
            },
        }
    }

    /// Returns what the caller of an operation sees afterwards.
    pub(crate) fn seen(&self, asked: &Asked, fits: bool, clock: u64) -> Seen {
        let t = self.time(asked, clock);
        let waits_from = if asked.at.is_some() { t } else { clock };
        let is_denied = !fits && asked.mode != Mode::Record;
        let mut wait = None;
        let mut limits = Vec::new();
        for limit in asked.policy.limits() {
            let counting = self.counting(window(limit), t);
            let used = sum(counting);
            // When the first entry expires with which this many units are gone.
            let until = |units: u64| {
                let mut gone = 0;
                let found = counting.iter().find(|entry| {
                    gone += entry.cost;
                    gone >= units
                });
                found.map_or(0, |entry| entry.at + window(limit) - waits_from)
            };
            if is_denied && used + asked.cost > limit.max() {
                wait = wait.max(Some(until(used + asked.cost - limit.max()).max(1)));
            }
            let reset = counting
                .last()
                .map_or(0, |newest| newest.at + window(limit) - waits_from);
            let refill = if used == 0 {
                0
            } else {
                until(used.saturating_sub(limit.max()) + 1)
            };
            limits.push([used.min(limit.max()), refill, reset]);
        }
        (is_denied, wait, limits)
    }

    /// Appends the entry of an operation, drops what no limit sees, and merges.
    pub(crate) fn append(&mut self, asked: &Asked, entry: Entry, clock: u64) {
        let t = entry.at;
        let newest = self.entries.last().map_or(t, |newest| newest.at);
        self.entries.push(entry);
        let limits = all_limits(&asked.policy, asked.limiter_policy.as_ref());
        let longest = limits.iter().map(window).max().unwrap_or(0);
        let most = limits.iter().map(Limit::max).max().unwrap_or(0);
        self.entries.retain(|entry| t - entry.at < longest);
        while sum(&self.entries[1..]) >= most {
            self.entries.remove(0);
        }
        let grace = if asked.at.is_some() { 60_000_000 } else { 0 };
        self.expires_at = clock + (t - asked.at.unwrap_or(clock)) + longest + grace;
        let exact = exact(&asked.policy, asked.limiter_policy.as_ref());
        self.merge(&limits, exact, newest);
    }

    fn merge(&mut self, limits: &[Limit], exact: u64, newest: u64) {
        let Some(cell) = limits.iter().filter_map(Limit::resolution).min() else {
            return;
        };
        let (cell, last) = (cell.as_micros() as u64, self.entries.len() - 1);
        let t = self.entries[last].at;
        let mut merged: Vec<Entry> = Vec::new();
        for (i, mut new) in std::mem::take(&mut self.entries).into_iter().enumerate() {
            let is_due = match exact {
                0 => i == last,
                _ => newest.saturating_sub(new.at) < exact && t - new.at >= exact,
            };
            let is_alike = |old: &Entry| {
                let counts = |entry: &Entry, limit: &Limit| t - entry.at < window(limit);
                old.at / cell == new.at / cell
                    && limits
                        .iter()
                        .all(|limit| counts(old, limit) == counts(&new, limit))
            };
            if let Some(old) = merged.pop_if(|old| is_due && is_alike(old)) {
                (new.cost, new.is_merged) = ((new.cost + old.cost).min(MAX_COST), true);
            }
            merged.push(new);
        }
        self.entries = merged;
    }

    /// Changes the entry of a receipt. Returns its cost before, if it is there.
    pub(crate) fn settle(
        &mut self,
        asked: &Asked,
        (change, receipt): (Change, Receipt),
        clock: u64,
    ) -> Option<u64> {
        let (named, at) = (receipt.entry(), receipt.at().as_micros());
        let t = self.time(asked, clock);
        let is_it = |entry: &Entry| {
            let is_named = entry.id == named && !entry.is_merged;
            // A renewal may find the entry where an earlier attempt moved it.
            let may_have_moved = matches!(change, Change::Renew { id } if id == Some(named));
            let is_there = entry.at == at || may_have_moved && entry.is_renewed && entry.at > at;
            is_named && is_there && t.saturating_sub(at) < receipt.window().as_micros()
        };
        let i = self.entries.iter().position(is_it)?;
        let entry = self.entries[i];
        match change {
            Change::Cost(0) => _ = self.entries.remove(i),
            Change::Cost(cost) => self.entries[i].cost = cost,
            Change::Renew { .. } => {
                self.entries.remove(i);
                let is_renewed = true;
                self.append(
                    asked,
                    Entry {
                        at: t,
                        is_renewed,
                        ..entry
                    },
                    clock,
                );
            }
        }
        Some(entry.cost)
    }
}
