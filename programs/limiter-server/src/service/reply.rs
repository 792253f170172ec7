//! Answers in Envoy's form.

use std::time::Duration;

use limiter_core::request::{PartDecision, PartOutcome};
use limiter_core::{Decision, Limit, LimitStatus, SharedStore, Status, Window};
use limiter_tower::{FieldNames, RateLimitHeaders};
use pbjson_types::Struct;
use pbjson_types::value::Kind as Json;
use smallvec::SmallVec;

use super::claim::{Claim, Class, Demand};
use super::{Acquired, Verdict};
use crate::proto::{Code, DescriptorStatus, HeaderValue, RateLimit, RateLimitResponse, Unit};
use crate::rules::{Effect, Rule, UNITS, metadata};

/// Returns the response to a request.
pub(super) fn new(
    claims: &[Claim<'_>],
    verdict: &Verdict<'_>,
    fields: Option<&RateLimitHeaders>,
) -> RateLimitResponse {
    let usages = usages(claims, verdict);
    let seen = || claims.iter().zip(&usages);
    RateLimitResponse {
        overall_code: code(!verdict.admitted),
        statuses: seen()
            .map(|(claim, usage)| status(claim, usage.as_ref()))
            .collect(),
        response_headers_to_add: fields.map_or_else(Vec::new, |fields| {
            let calls =
                seen().filter(|(claim, _)| claim.class != Class::Shadow && claim.within.is_none());
            let calls = calls.filter_map(|(claim, usage)| {
                let part = claim.part(&verdict.calls);
                Some((claim.rule?.names()?, part?, usage.as_ref()?))
            });
            headers(calls, retry_after(seen(), verdict.spent), fields)
        }),
        dynamic_metadata: dynamic_metadata(claims),
    }
}

/// Returns the results of acquires, one for each.
pub(super) fn acquired(claims: &[Claim<'_>], verdict: &Verdict<'_>) -> Vec<Acquired> {
    let one = |(claim, status): (&Claim<'_>, Option<Status>)| {
        let outcome = claim.part(&verdict.calls).map(PartDecision::outcome);
        let charge = match outcome {
            Some(PartOutcome::Charged(decision)) => Some(decision),
            _ => None,
        };
        // The first call on a log holds the charge of all.
        let (charge, cost) = match (charge, claim.within) {
            (Some(_), Some(_)) => (None, 0),
            _ => (charge, claim.hits),
        };
        let never_fits = matches!(claim.demand(), Demand::AboveMaximum(_));
        Acquired {
            rule: claim.rule.cloned(),
            key: claim.key.clone(),
            cost: charge.and_then(Decision::cost).unwrap_or(cost),
            allowed: !claim.denies(verdict.spent),
            never_fits,
            receipt: charge.and_then(Decision::receipt),
            status: status.filter(|_| !never_fits),
        }
    };
    claims
        .iter()
        .zip(usages(claims, verdict))
        .map(one)
        .collect()
}

fn code(over: bool) -> i32 {
    if over { Code::OverLimit } else { Code::Ok }.into()
}

/// The usage that clients see of each claim's call.
type Usages = SmallVec<[Option<Status>; 4]>;

/// Returns the usages once the charges of a denied request are refunded.
fn usages(claims: &[Claim<'_>], verdict: &Verdict<'_>) -> Usages {
    let usage = |claim: &Claim<'_>| {
        let part = claim.part(&verdict.calls)?;
        match (&claim.left, part.outcome()) {
            (None, _) => part.status().cloned(),
            // It waits for the whole request.
            (Some(left), PartOutcome::Denied(denial)) => {
                let left = left.limits();
                let used = |limit| left.iter().find(|left| left.limit() == limit);
                Some(
                    denial
                        .status()
                        .with_used(|limit| used(limit).map_or(0, LimitStatus::used)),
                )
            }
            (Some(left), _) => Some(Status::clone(left)),
        }
    };
    claims.iter().map(usage).collect()
}

fn status(claim: &Claim<'_>, usage: Option<&Status>) -> DescriptorStatus {
    let mut out = DescriptorStatus {
        code: code(claim.is_over()),
        ..Default::default()
    };
    let Some(rule) = claim.rule else { return out };
    match rule.effect {
        Effect::Unlimited => out.limit_remaining = u32::MAX,
        Effect::Deny => out.current_limit = Some(limit(rule, None)),
        Effect::Exempt | Effect::Limit(_) => {}
    }
    if let Some((seen, duration)) = usage.and_then(|usage| binding(claim, usage)) {
        out.current_limit = Some(limit(rule, Some(seen.limit())));
        out.limit_remaining = saturated(seen.remaining());
        out.duration_until_reset = duration.map(Into::into);
    } else if claim.demand() == Demand::Refused {
        out.current_limit = Some(limit(rule, None));
    }
    out
}

/// Returns the limit that matters to the client, and how long until it admits more. `None` if the cost never fits.
fn binding(claim: &Claim<'_>, usage: &Status) -> Option<(LimitStatus, Option<Duration>)> {
    let limits = usage.limits();
    if let Demand::AboveMaximum(cost) = claim.demand() {
        let exceeded = limits.iter().find(|limit| cost > limit.limit().max());
        return Some((*exceeded?, None));
    }
    let limit = limits.get(usage.binding_index())?;
    let wait = limit.retry_after().unwrap_or(limit.refill_after());
    Some((*limit, Some(wait)))
}

/// Returns the merged metadata of the rules that do not deny, in the place where Envoy's service returns it.
fn dynamic_metadata(claims: &[Claim<'_>]) -> Option<Struct> {
    let passed = claims.iter().filter(|claim| !claim.is_over());
    let mut all = passed.filter_map(|claim| claim.rule?.metadata.as_ref());
    let mut merged = all.next()?.clone();
    all.for_each(|more| metadata::merge(&mut merged, more));
    let fields = [("metadata".to_owned(), Json::StructValue(merged).into())];
    Some(Struct {
        fields: fields.into(),
    })
}

/// Returns a limit in Envoy's form. `None` is a limit of 0.
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

/// Returns the header fields of these calls.
fn headers<'a, 'l: 'a>(
    calls: impl Iterator<
        Item = (
            &'a FieldNames,
            &'a PartDecision<'l, SharedStore>,
            &'a Status,
        ),
    > + Clone,
    retry_after: Option<Duration>,
    fields: &RateLimitHeaders,
) -> Vec<HeaderValue> {
    let mut out = Vec::new();
    fields.visit_all(calls, retry_after, |key, value| {
        out.push(HeaderValue {
            key: key.to_owned(),
            value: value.to_owned(),
        });
    });
    out
}

/// Returns the longest wait of the rules that deny. `None` if no wait helps one of them.
fn retry_after<'a>(
    seen: impl Iterator<Item = (&'a Claim<'a>, &'a Option<Status>)>,
    spent: bool,
) -> Option<Duration> {
    let denying = seen.filter(|(claim, _)| claim.denies(spent));
    let wait = |(claim, usage): (&Claim<'_>, &Option<Status>)| binding(claim, usage.as_ref()?)?.1;
    denying.map(wait).try_fold(None, |longest, wait| {
        wait.map(|wait| longest.max(Some(wait)))
    })?
}
