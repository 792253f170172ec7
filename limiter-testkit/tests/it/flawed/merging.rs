//! Merging, with its flaws.

use limiter_core::store::Op;
use limiter_core::{Counting, Limit, MAX_COST, Policy};

use super::Flaw;
use super::rules::Item;

/// How long named entries keep others apart, in microseconds.
pub(super) const TEN_MINUTES: u64 = 600_000_000;

fn resolution(limit: &Limit) -> u64 {
    limit.resolution().map_or(0, |resolution| resolution.as_micros() as u64)
}

fn counts(limit: &Limit, item: &Item, now: u64) -> bool {
    now.saturating_sub(item.at) < limit.window().as_micros()
}

impl Flaw {
    /// Returns the marks that an append at `now` takes from the newest entry that is left.
    pub(super) fn marks_after(self, newest: Option<&Item>, op: &Op<'_>, now: u64) -> [bool; 2] {
        let Some(Item { at, marks: [own, before], .. }) = newest.copied() else { return [false; 2] };
        if self == Self::ClearsMarksUnderExactLimits && !op.has_resolution() {
            return [false; 2];
        }
        match (now / TEN_MINUTES).saturating_sub(at / TEN_MINUTES) {
            0 if self == Self::CopiesNoMarks => [false; 2],
            0 => [own, before],
            1 if self == Self::MarksOneCell => [false; 2],
            1 if self == Self::MarksThreeCells => [false, own || before],
            1 if self == Self::CopiesMarksToTheNextCell => [own, before],
            1 => [false, own],
            2 if self == Self::SkipsACellWithoutEntries => [false, own],
            _ if self == Self::ClearsNoMarks => [own, before],
            _ => [false; 2],
        }
    }

    /// Returns whether the entry is named.
    pub(super) fn names(self, op: &Op<'_>) -> bool {
        let is_named = match self {
            Self::MarksNothing => false,
            Self::MarksNoPermits => op.id.is_some(),
            Self::MarksNoIds => op.keep,
            _ => op.keep || op.id.is_some(),
        };
        let has_resolution = match self {
            Self::MarksUnderExactLimits => true,
            Self::MarksByTheOwnPolicy => op.policy.has_resolution(),
            Self::MarksByTheDefaultPolicy => op.limiter_policy.unwrap_or(op.policy).has_resolution(),
            _ => op.has_resolution(),
        };
        is_named && has_resolution
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
        let is_marked = log.last().is_some_and(|newest| newest.marks != [false; 2]);
        let apart = match self {
            Self::KeepsMarkedLogsApart => u64::MAX,
            Self::KeepsApartAMicrosecondTooLong => TEN_MINUTES + 1,
            Self::KeepsApartAMicrosecondTooShort => TEN_MINUTES - 1,
            _ => TEN_MINUTES,
        };
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
        let ten_minutes = (self != Self::MissesTenMinutes).then_some(TEN_MINUTES);
        let mut i = 1;
        while i < log.len() {
            let merges = {
                let (v, u) = (&log[i - 1], &log[i]);
                let age = now.saturating_sub(u.at);
                let p = if is_marked && age < apart { 0 } else { self.resolution(of_cells, age) };
                let mut boundaries = of_ends.iter().map(|limit| limit.window().as_micros()).chain(ten_minutes);
                let crosses = |b: u64| u.at <= before && before - u.at < b && age >= b;
                let is_due = match self {
                    Self::MergesWheneverItCan => true,
                    _ if u.name == new => true,
                    Self::MergesOnlyTheNewEntry => false,
                    Self::MissesTheEndsOfWindows => crosses(TEN_MINUTES),
                    _ => boundaries.any(crosses),
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
                may_merge && is_due && is_near && (self == Self::MergesAcrossEnds || of_counts.iter().all(same))
            };
            if merges {
                log[i] = self.merged(&log[i - 1], &log[i]);
                log.remove(i - 1);
            }
            i += usize::from(!merges);
        }
    }

    fn merged(self, v: &Item, u: &Item) -> Item {
        let mut merged = Item { name: u.name + 1, id: None, cost: (u.cost + v.cost).min(MAX_COST), ..*u };
        match self {
            Self::TakesTheOlderTime => merged.at = v.at,
            Self::TakesTheNewerCost => merged.cost = u.cost,
            Self::LosesCostsBeyondTheLargest if u.cost + v.cost > MAX_COST => merged.cost = u.cost,
            Self::WrapsMergedCosts => merged.cost = (u.cost + v.cost - 1) % MAX_COST + 1,
            Self::KeepsTheIdsOfMergedEntries => merged.id = u.id.or(v.id),
            Self::KeepsTheReceiptsOfMergedEntries => merged.name = u.name,
            Self::TakesTheOlderMarks => merged.marks = v.marks,
            _ => {}
        }
        merged
    }
}
