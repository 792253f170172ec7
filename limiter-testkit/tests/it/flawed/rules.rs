//! The rule of one log, with one flaw that changes its policies.

use limiter_core::store::*;
use limiter_core::{Limit, Policy, Receipt, Timestamp, Window};

/// Changes each limit of a policy.
fn changed(policy: &Policy, change: impl Fn(&Limit) -> Limit) -> Policy {
    let limits = policy.limits().iter().map(change);
    // The limits of one policy have the same resolution.
    let changed = Policy::new(limits.collect::<Vec<_>>());
    changed.map_or_else(
        |_| policy.clone(),
        |changed| changed.with_counting(policy.counting()),
    )
}

fn stated(limit: &Limit) -> Limit {
    let exact = Limit::with_window(limit.max(), limit.stated_window()).unwrap();
    match limit.resolution() {
        Some(resolution) => exact.with_resolution(resolution).unwrap(),
        None => exact,
    }
}

fn exact(limit: &Limit) -> Limit {
    Limit::with_window(limit.max(), limit.window()).unwrap()
}

fn limits_of(op: &Op<'_>) -> Vec<Limit> {
    let policies = [Some(op.policy), op.limiter_policy].into_iter().flatten();
    policies.flat_map(Policy::limits).copied().collect()
}

/// Returns a policy with only the longest of the windows and the largest of the maxima, for limits with a resolution.
fn outermost(policy: &Policy) -> Policy {
    let longest = policy.longest_window();
    let is_outer = |limit: &&Limit| limit.resolution().is_none() || limit.window() == longest;
    let limits: Vec<Limit> = policy.limits().iter().filter(is_outer).copied().collect();
    Policy::new(limits)
        .unwrap()
        .with_counting(policy.counting())
}

/// Applies an operation that merges as with other policies.
fn merging_otherwise(
    log: &mut Log,
    op: &Op<'_>,
    own: &Policy,
    default: Option<&Policy>,
    now: Timestamp,
) -> Facts {
    let mut other = *op;
    other.policy = own;
    other.limiter_policy = default;
    let mut facts = log.apply(&other, now);
    let after = log.clone().apply(&op.to_peek(), now);
    facts.log = LogFacts {
        clock: facts.log.clock,
        ..after.log
    };
    facts
}

/// Applies an operation with a flaw. `None` if the flaw is elsewhere.
pub(super) fn apply(flaw: &str, log: &mut Log, op: &Op<'_>, now: Timestamp) -> Option<Facts> {
    let default = op.limiter_policy;
    Some(match flaw {
        "CountsWithoutTheLease" => {
            let own = changed(op.policy, stated);
            let of_limiter = default.map(|policy| changed(policy, stated));
            let mut other = *op;
            (other.policy, other.limiter_policy) = (&own, of_limiter.as_ref());
            let mut facts = log.apply(&other, now);
            let used = log.clone().apply(&op.to_peek(), now);
            facts.log.usage = used.log.usage;
            facts
        }
        "FreesIdsWithoutTheLease" => {
            let mut peek = *op;
            peek.mode = Mode::Peek;
            let found = log.clone().apply(&peek, now);
            let windows = limits_of(op);
            let windows = windows.iter().filter(|limit| limit.resolution().is_none());
            let window = windows.map(Limit::stated_window).max()?;
            let mut other = *op;
            if let Outcome::Repeated { entry, .. } = found.outcome
                && !window.counts(entry.at, found.log.now)
            {
                other.id = None;
            }
            log.apply(&other, now)
        }
        "MergesWithoutTheLease" => {
            let bare = |policy: &Policy| {
                changed(policy, |limit| {
                    if limit.resolution().is_none() {
                        stated(limit)
                    } else {
                        *limit
                    }
                })
            };
            let own = bare(op.policy);
            let of_limiter = default.map(bare);
            merging_otherwise(log, op, &own, of_limiter.as_ref(), now)
        }
        "MergesByTheShortestWindow" | "MergesByTheLongestWindow" => {
            let limits = limits_of(op);
            let coarse = limits.iter().filter(|limit| limit.resolution().is_some());
            let resolution = if flaw == "MergesByTheShortestWindow" {
                coarse.min_by_key(|limit| limit.window())
            } else {
                coarse.max_by_key(|limit| limit.window())
            };
            let resolution = resolution.and_then(Limit::resolution)?;
            let same = |policy: &Policy| {
                changed(policy, |limit| match limit.resolution() {
                    Some(_) => exact(limit).with_resolution(resolution).unwrap_or(*limit),
                    None => *limit,
                })
            };
            let own = same(op.policy);
            let of_limiter = default.map(same);
            merging_otherwise(log, op, &own, of_limiter.as_ref(), now)
        }
        "MergesAcrossItsOwnWindows" => {
            let own = outermost(op.policy);
            merging_otherwise(log, op, &own, default, now)
        }
        "MergesAcrossTheLimitersWindows" => {
            let of_limiter = default.map(outermost);
            merging_otherwise(log, op, op.policy, of_limiter.as_ref(), now)
        }
        _ => return None,
    })
}

/// Changes the receipt that a settlement presents.
pub(super) fn receipt(flaw: &str, settlement: &Settlement<'_>) -> Receipt {
    let receipt = settlement.receipt;
    let window = match flaw {
        "RefundsWhatHasLeft" => Window::MAX,
        "EndsReceiptsWithoutTheLease" => {
            let stated = changed(settlement.policy, stated).longest_window();
            receipt.window().min(stated)
        }
        _ => return receipt,
    };
    Receipt::new(receipt.entry(), receipt.at(), window)
}
