//! Answers in Envoy's form.

use std::collections::HashMap;
use std::time::Duration;

use limiter_core::request::{Part, PartOutcome};
use limiter_core::{Limit, LimitStatus, Name, SharedStore, Window};
use limiter_tower::RateLimitHeaders;

use super::claim::{Claim, Class, Wants};
use crate::proto::{Code, DescriptorStatus, HeaderValue, RateLimit, RateLimitResponse, Unit};
use crate::rules::{Effect, Rule, UNITS};

/// Returns the response to a request, which is `admitted`, or not because its quotas are `spent`.
pub(super) fn new(
    claims: &[Claim<'_>],
    parts: &[Part<'_, SharedStore>],
    (admitted, spent): (bool, bool),
    fields: Option<&RateLimitHeaders>,
) -> RateLimitResponse {
    // Only a denial refunds, and one part alone has nothing to refund.
    let latest = if admitted || parts.len() < 2 {
        Refunded::new()
    } else {
        refunded(claims, parts)
    };
    RateLimitResponse {
        overall_code: code(!admitted),
        statuses: claims
            .iter()
            .map(|claim| status(claim, parts, &latest, spent))
            .collect(),
        response_headers_to_add: fields
            .map_or_else(Vec::new, |fields| headers(claims, parts, spent, fields)),
    }
}

fn code(over: bool) -> i32 {
    if over { Code::OverLimit } else { Code::Ok }.into()
}

/// By limiter, key and window: the units in use once the charges of a denied request are refunded, and when one is released.
type Refunded<'p> = HashMap<(Name, &'p [u8], Window), (u64, Duration)>;

/// Returns each log's usage without this request's charges. Parts of one log see it between these charges.
fn refunded<'p>(claims: &'p [Claim<'_>], parts: &[Part<'_, SharedStore>]) -> Refunded<'p> {
    let seen = || {
        claims
            .iter()
            .filter_map(|claim| Some((claim.key.as_ref(), claim.part(parts)?)))
    };
    let (mut usage, mut charges) = (Refunded::new(), HashMap::<_, u64>::new());
    for (key, part) in seen() {
        let Some(status) = part.status() else {
            continue;
        };
        for limit in status.limits().iter() {
            let latest = usage
                .entry((part.limiter().name(), key, limit.limit().window()))
                .or_default();
            *latest = (*latest).max((limit.used(), limit.refill_after()));
        }
        if matches!(part.outcome(), Some(PartOutcome::Charged(_))) {
            *charges.entry((part.limiter().name(), key)).or_default() += part.cost();
        }
    }
    for ((name, key, _), (used, refill_after)) in &mut usage {
        *used = used.saturating_sub(charges.get(&(*name, *key)).copied().unwrap_or(0));
        // The newest entries are refunded, so the oldest is another one unless none is left.
        *refill_after = if *used == 0 {
            Duration::ZERO
        } else {
            *refill_after
        };
    }
    usage
}

fn status(
    claim: &Claim<'_>,
    parts: &[Part<'_, SharedStore>],
    latest: &Refunded<'_>,
    spent: bool,
) -> DescriptorStatus {
    let mut out = DescriptorStatus {
        code: code(claim.denies(spent)),
        ..Default::default()
    };
    let Some(rule) = claim.rule else { return out };
    match rule.effect {
        Effect::Unlimited => out.limit_remaining = u32::MAX,
        Effect::Deny => out.current_limit = Some(limit(rule, None)),
        Effect::Exempt | Effect::Limit(_) => {}
    }
    if let Some(seen) = claim.part(parts).and_then(|part| see(claim, part, latest)) {
        out.current_limit = Some(limit(rule, Some(seen.limit)));
        out.limit_remaining = saturated(seen.remaining);
        out.duration_until_reset = seen.duration.map(Into::into);
    } else if claim.wants() == Wants::Anything {
        out.current_limit = Some(limit(rule, None));
    }
    out
}

/// The part of a call that clients see.
struct Seen {
    limit: Limit,
    remaining: u64,
    duration: Option<Duration>,
}

fn see(claim: &Claim<'_>, part: &Part<'_, SharedStore>, latest: &Refunded<'_>) -> Option<Seen> {
    let latest = |limit: Limit| {
        let (used, refill) =
            latest.get(&(part.limiter().name(), claim.key.as_ref(), limit.window()))?;
        Some((limit.max().saturating_sub(*used), *refill))
    };
    let remaining = |limit, remaining| latest(limit).map_or(remaining, |(remaining, _)| remaining);
    let seen = |limit: &LimitStatus, duration| Seen {
        limit: limit.limit(),
        remaining: remaining(limit.limit(), limit.remaining()),
        duration,
    };
    if let Wants::TooMuch(cost) = claim.wants() {
        return part
            .status()?
            .limits()
            .iter()
            .find(|limit| cost > limit.limit().max())
            .map(|limit| seen(limit, None));
    }
    match part.outcome()? {
        PartOutcome::Denied(denial) if claim.class != Class::Shadow => {
            let (limit, duration) = (denial.limit(), denial.retry_after());
            Some(Seen {
                limit,
                remaining: remaining(limit, denial.remaining()),
                duration,
            })
        }
        _ => {
            let status = part.status()?;
            let limit = status.limit();
            let (remaining, refill) =
                latest(limit).unwrap_or((status.remaining(), status.refill_after()));
            Some(Seen {
                limit,
                remaining,
                duration: Some(refill),
            })
        }
    }
}

/// Returns a limit in Envoy's form; `None` is one that allows nothing.
fn limit(rule: &Rule, limit: Option<Limit>) -> RateLimit {
    let name = rule.shown().to_owned();
    let Some(limit) = limit else {
        return RateLimit {
            name,
            ..Default::default()
        };
    };
    RateLimit {
        name,
        requests_per_unit: saturated(limit.max()),
        unit: unit(limit.stated_window()).into(),
    }
}

fn unit(window: Window) -> Unit {
    let known = UNITS
        .iter()
        .find(|(_, policy)| policy.longest_window() == window);
    known.map_or(Unit::Unknown, |(unit, _)| *unit)
}

fn saturated(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// Returns the header fields: those of all rules that are not in shadow mode.
fn headers(
    claims: &[Claim<'_>],
    parts: &[Part<'_, SharedStore>],
    spent: bool,
    fields: &RateLimitHeaders,
) -> Vec<HeaderValue> {
    let calls = claims.iter().filter(|claim| claim.class != Class::Shadow);
    let calls = calls.filter_map(|claim| Some((claim.rule?.names()?, claim.part(parts)?)));
    let mut out = Vec::new();
    fields.visit_all(calls, retry_after(claims, parts, spent), |key, value| {
        out.push(HeaderValue {
            key: key.to_owned(),
            value: value.to_owned(),
        });
    });
    out
}

/// Returns the longest wait of the rules that deny; `None` if no wait helps one of them.
fn retry_after(
    claims: &[Claim<'_>],
    parts: &[Part<'_, SharedStore>],
    spent: bool,
) -> Option<Duration> {
    let denying = claims.iter().filter(|claim| claim.denies(spent));
    let wait = |claim: &Claim<'_>| see(claim, claim.part(parts)?, &Refunded::new())?.duration;
    denying.map(wait).try_fold(None, |longest, wait| {
        wait.map(|wait| longest.max(Some(wait)))
    })?
}
