//! Random policies.

use limiter_core::{Limit, MAX_COST, Policy};
use proptest::bool::weighted;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use crate::policies::{coarse, limit, policy};

/// Few and short, so that entries often reach the end of a window. One does not fit in 32 bits.
pub(super) const WINDOWS: [u64; 9] = [10, 1, 2, 3, 5, 12, 25, 60, (1 << 32) + 7];
/// In a case's unit of time.
pub(super) const BUSY_WINDOWS: [u64; 5] = [60, 20, 35, 130, 200];

/// A maximum or a window.
#[derive(Clone, Copy, Debug)]
enum Size {
    Own(u64),
    /// Differs by this much from the previous limit's.
    Near(i64),
}

impl Size {
    fn resolved(self, last: &mut u64, unit: u64) -> u64 {
        *last = match self {
            Self::Own(size) => size.saturating_mul(unit),
            Self::Near(change) => last.saturating_add_signed(change).max(1),
        };
        *last
    }
}

/// A policy, before it is known which limits precede its own.
#[derive(Clone, Debug)]
pub(super) struct PolicyDraft {
    /// Each with a maximum, a window, and whether it has a resolution.
    limits: Vec<(Size, Size, bool)>,
    /// The part of the shortest window that is the resolution. 0 if there is none.
    fraction: u64,
    is_long: bool,
    attempts: bool,
}

/// Returns one to `most` policies with these windows.
pub(super) fn drafts(
    windows: &'static [u64],
    most: usize,
) -> impl Strategy<Value = Vec<PolicyDraft>, Tree: Send> {
    let max = prop_oneof![
        13 => (1..=8_u64).prop_map(Size::Own),
        1 => (-1..=1_i64).prop_map(Size::Near),
        1 => (19..=96_u64).prop_map(Size::Own),
        1 => Just(Size::Own(MAX_COST)),
    ];
    let window = prop_oneof![
        3 => select(windows).prop_map(Size::Own),
        1 => (-1..=1_i64).prop_map(Size::Near),
    ];
    let limit = (max, window, any::<bool>());
    // None, about a sixth of the shortest window, as much of it as possible, and the shortest.
    let fraction = prop_oneof![2 => Just(0), 2 => Just(6), 1 => Just(1), 1 => Just(u64::MAX)];
    let rest = (fraction, weighted(1. / 16.), any::<bool>());
    // A value shrinks to one of the alternatives before it, too.
    let limits = prop_oneof![1 => vec(limit.clone(), 1), 2 => vec(limit, 1..=3)];
    let draft = (limits, rest).prop_map(|(limits, (fraction, is_long, attempts))| PolicyDraft {
        limits,
        fraction,
        is_long,
        attempts,
    });
    prop_oneof![1 => vec(draft.clone(), 1), 3 => vec(draft, 1..=most)]
}

/// Returns the policies, with windows in a unit of time, and without resolutions if they are exact.
pub(super) fn of(drafts: &[PolicyDraft], unit: u64, is_exact: bool) -> Vec<Policy> {
    let (mut last_max, mut last_window) = (1, 10);
    let resolved = |draft: &PolicyDraft| {
        let mut limits: Vec<(Limit, bool)> = Vec::new();
        for (max, window, is_coarse) in &draft.limits {
            let max = max.resolved(&mut last_max, 1).min(MAX_COST);
            let window = window.resolved(&mut last_window, unit);
            limits.push((limit(max, window), *is_coarse));
        }
        for i in 0..if draft.is_long { 8 - limits.len() } else { 0 } {
            let (of, is_coarse) = limits[i];
            let max = of.max().min(MAX_COST - 1) + 1;
            limits.push((limit(max, of.window().as_micros() + 2), is_coarse));
        }
        let fraction = if is_exact { 0 } else { draft.fraction };
        policy(&coarse(&limits, fraction), draft.attempts)
    };
    drafts.iter().map(resolved).collect()
}
