//! The rule of one log, with one flaw that changes its policies.

use limiter_core::store::*;
use limiter_core::{Limit, Policy, Receipt, Timestamp, Window};

/// Returns a policy of other limits, or the same one if they do not go together.
fn like(policy: &Policy, limits: impl Iterator<Item = Limit>) -> Policy {
    let changed = Policy::new(limits.collect::<Vec<_>>());
    changed.map_or_else(
        |_| policy.clone(),
        |changed| changed.with_counting(policy.counting()),
    )
}

fn exact(limit: &Limit, window: Window) -> Limit {
    Limit::with_window(limit.max(), window).unwrap()
}

/// Returns the limit without its lease.
fn stated(limit: &Limit) -> Limit {
    let exact = exact(limit, limit.stated_window());
    let resolution = limit.resolution();
    resolution.map_or(exact, |resolution| {
        exact.with_resolution(resolution).unwrap()
    })
}

/// Returns the limits without a resolution, and only the longest of the others.
fn outermost(policy: &Policy) -> Policy {
    let longest = policy.longest_window();
    let is_outer = |limit: &&Limit| limit.resolution().is_none() || limit.window() == longest;
    like(policy, policy.limits().iter().filter(is_outer).copied())
}

/// Applies an operation with a flaw. `None` if the flaw is elsewhere.
pub(super) fn apply(flaw: &str, log: &mut Log, op: &Op<'_>, now: Timestamp) -> Option<Facts> {
    let policies = [Some(op.policy), op.limiter_policy].into_iter().flatten();
    let limits = policies.flat_map(Policy::limits);
    let (coarse, fine): (Vec<&Limit>, Vec<&Limit>) =
        limits.partition(|limit| limit.resolution().is_some());
    let mut other = *op;
    if flaw == "FreesIdsWithoutTheLease" {
        let window = fine.iter().map(|limit| limit.stated_window()).max()?;
        let mut peek = *op;
        peek.mode = Mode::Peek;
        let found = log.clone().apply(&peek, now);
        if let Outcome::Repeated { entry, .. } = found.outcome
            && !window.counts(entry.at, found.log.now)
        {
            other.id = None;
        }
        return Some(log.apply(&other, now));
    }
    let with_resolution = |of: Option<&&Limit>| -> Box<dyn Fn(&Limit) -> Limit> {
        let resolution = of.and_then(|limit| limit.resolution());
        Box::new(move |limit| match (limit.resolution(), resolution) {
            (Some(_), Some(resolution)) => {
                let changed = exact(limit, limit.window()).with_resolution(resolution);
                changed.unwrap_or(*limit)
            }
            _ => *limit,
        })
    };
    let change: Box<dyn Fn(&Limit) -> Limit> = match flaw {
        "CountsWithoutTheLease" => Box::new(stated),
        "MergesWithoutTheLease" => Box::new(|limit| match limit.resolution() {
            None => stated(limit),
            Some(_) => *limit,
        }),
        "MergesByTheShortestWindow" => {
            with_resolution(coarse.iter().min_by_key(|limit| limit.window()))
        }
        "MergesByTheLongestWindow" => {
            with_resolution(coarse.iter().max_by_key(|limit| limit.window()))
        }
        "MergesAcrossItsOwnWindows" | "MergesAcrossTheLimitersWindows" => with_resolution(None),
        _ => return None,
    };
    let seen = |policy: &Policy, is_outermost: bool| match is_outermost {
        true => outermost(policy),
        false => like(policy, policy.limits().iter().map(&*change)),
    };
    let own = seen(op.policy, flaw == "MergesAcrossItsOwnWindows");
    let default = op.limiter_policy;
    let default = default.map(|policy| seen(policy, flaw == "MergesAcrossTheLimitersWindows"));
    (other.policy, other.limiter_policy) = (&own, default.as_ref());
    let mut facts = log.apply(&other, now);
    let clock = facts.log.clock;
    facts.log = log.clone().apply(&op.to_peek(), now).log;
    facts.log.clock = clock;
    Some(facts)
}

/// Changes the receipt that a settlement presents.
pub(super) fn receipt(flaw: &str, settlement: &Settlement<'_>) -> Receipt {
    let receipt = settlement.receipt;
    let window = match flaw {
        "RefundsWhatHasLeft" => Window::MAX,
        "EndsReceiptsWithoutTheLease" => {
            let windows = settlement.policy.limits().iter().map(Limit::stated_window);
            windows
                .max()
                .map_or(receipt.window(), |stated| stated.min(receipt.window()))
        }
        _ => return receipt,
    };
    Receipt::new(receipt.entry(), receipt.at(), window)
}
