//! Merging, with its flaws.

use limiter_core::store::Op;
use limiter_core::{Counting, Limit, MAX_COST, Policy};

use super::Flaw;
use super::rules::Item;

/// How long entries are kept, in microseconds.
pub(super) const KEPT_FOR: u64 = 600_000_000;

fn resolution(limit: &Limit) -> u64 {
    limit.resolution().map_or(0, |resolution| resolution.as_micros() as u64)
}

fn counts(limit: &Limit, item: &Item, now: u64) -> bool {
    now.saturating_sub(item.at) < limit.window().as_micros()
}

impl Flaw {
    fn keeps(self, item: &Item, now: u64) -> bool {
        let is_kept = match self {
            Self::MergesKeptEntries => false,
            Self::MergesPermits => item.id.is_some(),
            Self::MergesIds => item.keep,
            _ => item.keep || item.id.is_some(),
        };
        let kept_for = match self {
            Self::KeepsForEver => u64::MAX,
            Self::KeepsAMicrosecondTooLong => KEPT_FOR + 1,
            Self::KeepsAMicrosecondTooShort => KEPT_FOR - 1,
            _ => KEPT_FOR,
        };
        is_kept && now.saturating_sub(item.at) < kept_for
    }

    fn resolution(self, limits: &[Limit], age: u64) -> u64 {
        let ignores_age = self == Self::NeverTakesALongerResolution;
        let mut longer: Vec<u64> =
            limits.iter().filter(|limit| ignores_age || limit.window().as_micros() > age).map(resolution).collect();
        match self {
            Self::MergesWhatAnExactLimitCounts => longer.retain(|resolution| *resolution > 0),
            Self::TakesTheLargestResolution => longer = longer.into_iter().max().into_iter().collect(),
            _ => {}
        }
        longer.into_iter().min().unwrap_or(0)
    }

    /// Merges entries. The newest entry before was at `before`, and `new` is the appended one.
    pub(super) fn merge(self, log: &mut Vec<Item>, op: &Op<'_>, (before, now): (u64, u64), new: u128) {
        let default = op.limiter_policy.filter(|_| self != Self::MergesByTheOwnPolicy);
        let limits: Vec<Limit> =
            [Some(op.policy), default].into_iter().flatten().flat_map(Policy::limits).copied().collect();
        let is_attempt = op.policy.counting() == Counting::Attempts;
        if limits.iter().all(|limit| resolution(limit) == 0) || is_attempt && self == Self::MergesNoAttempts {
            return;
        }
        let of_cells = match self {
            Self::TakesTheResolutionOfTheOwnPolicy => op.policy.limits(),
            Self::TakesTheResolutionOfTheDefaultPolicy => op.limiter_policy.unwrap_or(op.policy).limits(),
            _ => &limits,
        };
        let of_ends = if self == Self::MissesTheEndsOfTheDefaultPolicy { op.policy.limits() } else { &limits };
        let of_counts = if self == Self::MergesAcrossEndsOfTheDefaultPolicy { op.policy.limits() } else { &limits };
        let ceases = |item: &Item| item.at <= before && self.keeps(item, before) && !self.keeps(item, now);
        let mut ceased: Vec<bool> = log.iter().map(ceases).collect();
        let mut i = 0;
        while i < log.len() {
            let is_free = |item: &Item| !self.keeps(item, now);
            let older = match self {
                Self::StopsAtKeptEntries => i.checked_sub(1).filter(|older| is_free(&log[*older])),
                _ => log[..i].iter().rposition(is_free),
            };
            let older = older.filter(|older| {
                let (v, u) = (&log[*older], &log[i]);
                let p = self.resolution(of_cells, now.saturating_sub(u.at));
                let crosses = |limit: &Limit| u.at <= before && counts(limit, u, before) && !counts(limit, u, now);
                let is_due = match self {
                    Self::MergesWheneverItCan => true,
                    _ if u.name == new => true,
                    Self::MergesOnlyTheNewEntry => false,
                    Self::MissesTheEndsOfWindows => ceased[i] || ceased[*older],
                    Self::MissesTheEndOfKeeping => of_ends.iter().any(crosses),
                    Self::MissesTheOlderEndOfKeeping => of_ends.iter().any(crosses) || ceased[i],
                    _ => of_ends.iter().any(crosses) || ceased[i] || ceased[*older],
                };
                let is_near = p > 0
                    && match self {
                        Self::TakesCellsFromTheEntry => u.at - v.at < p,
                        Self::EndsCellsAMicrosecondEarly => (u.at + 1) / p == (v.at + 1) / p,
                        Self::EndsCellsAMicrosecondLate => u.at.saturating_sub(1) / p == v.at.saturating_sub(1) / p,
                        Self::TakesCellsFromNow => (now - u.at) / p == (now - v.at) / p,
                        _ => u.at / p == v.at / p,
                    };
                let same = |limit: &Limit| counts(limit, u, now) == counts(limit, v, now);
                let may_merge = self != Self::MergesOnlyWhatItAdmitted || u.admitted && v.admitted;
                may_merge
                    && is_free(u)
                    && is_due
                    && is_near
                    && (self == Self::MergesAcrossEnds || of_counts.iter().all(same))
            });
            let Some(older) = older else {
                i += 1;
                continue;
            };
            log[i] = self.merged(&log[older], &log[i]);
            ceased[i] = (ceased[i] || ceased[older]) && self != Self::ForgetsThatAPartWasKept;
            log.remove(older);
            ceased.remove(older);
        }
    }

    fn merged(self, v: &Item, u: &Item) -> Item {
        let mut merged = Item { name: u.name + 1, id: None, keep: false, cost: (u.cost + v.cost).min(MAX_COST), ..*u };
        match self {
            Self::TakesTheOlderTime => merged.at = v.at,
            Self::TakesTheNewerCost => merged.cost = u.cost,
            Self::LosesCostsBeyondTheLargest if u.cost + v.cost > MAX_COST => merged.cost = u.cost,
            Self::WrapsMergedCosts => merged.cost = (u.cost + v.cost - 1) % MAX_COST + 1,
            Self::KeepsTheIdsOfMergedEntries => merged.id = u.id.or(v.id),
            Self::KeepsTheReceiptsOfMergedEntries | Self::MergesKeptEntries => merged.name = u.name,
            Self::KeepsMergedEntries => merged.keep = u.keep || v.keep,
            _ => {}
        }
        merged
    }
}
