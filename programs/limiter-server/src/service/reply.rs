//! Answers in Envoy's form.

use std::time::Duration;

use limiter_core::request::{PartDecision, PartOutcome};
use limiter_core::{Decision, Limit, LimitStatus, Window};
use limiter_tower::RateLimitHeaders;
use pbjson_types::Struct;
use pbjson_types::value::Kind as Json;

use super::Acquired;
use super::claim::{Ask, Claim, Class};
use super::verdict::Verdict;
use crate::proto::{Code, DescriptorStatus, HeaderValue, RateLimit, RateLimitResponse, Unit};
use crate::rules::{Effect, Rule, UNITS, metadata};

/// Returns the response to a request.
pub(super) fn new(verdict: &Verdict<'_>, fields: Option<&RateLimitHeaders>) -> RateLimitResponse {
    RateLimitResponse {
        overall_code: code(!verdict.admitted),
        statuses: verdict.places().map(|i| status(verdict, i)).collect(),
        response_headers_to_add: fields.map_or_else(Vec::new, |fields| headers(verdict, fields)),
        dynamic_metadata: dynamic_metadata(verdict),
    }
}

/// Returns the results of acquires, one for each.
pub(super) fn acquired(verdict: &Verdict<'_>) -> Vec<Acquired> {
    let one = |(i, claim): (usize, &Claim<'_>)| {
        let charge = match verdict.part(i).map(PartDecision::outcome) {
            Some(PartOutcome::Charged(decision)) => Some(decision),
            _ => None,
        };
        // The first call on a log holds the charge of all.
        let (charge, cost) = match charge {
            Some(_) if !verdict.is_first(i) => (None, 0),
            charge => (charge, claim.hits),
        };
        let never_fits = verdict.above_maximum(i).is_some();
        Acquired {
            rule: claim.rule.cloned(),
            key: claim.key.clone(),
            cost: charge.and_then(Decision::cost).unwrap_or(cost),
            allowed: !verdict.denies(i),
            never_fits,
            receipt: charge.and_then(Decision::receipt),
            status: verdict.outcomes[i].usage.clone().filter(|_| !never_fits),
        }
    };
    verdict.claims.iter().enumerate().map(one).collect()
}

fn code(over: bool) -> i32 {
    if over { Code::OverLimit } else { Code::Ok }.into()
}

fn status(verdict: &Verdict<'_>, i: usize) -> DescriptorStatus {
    let mut out = DescriptorStatus {
        code: code(verdict.is_over(i)),
        ..Default::default()
    };
    let claim = &verdict.claims[i];
    let Some(rule) = claim.rule else { return out };
    match claim.ask {
        Ask::Free if matches!(rule.effect, Effect::Unlimited) => out.limit_remaining = u32::MAX,
        Ask::Refused => out.current_limit = Some(limit(rule, None)),
        Ask::Free | Ask::Call(_) => {}
    }
    if let Some((seen, duration)) = binding(verdict, i) {
        out.current_limit = Some(limit(rule, Some(seen.limit())));
        out.limit_remaining = saturated(seen.remaining());
        out.duration_until_reset = duration.map(Into::into);
    }
    out
}

/// Returns the limit that matters to the client, and how long until it admits more. `None` if the cost never fits.
fn binding(verdict: &Verdict<'_>, i: usize) -> Option<(LimitStatus, Option<Duration>)> {
    let usage = verdict.outcomes[i].usage.as_ref()?;
    let limits = usage.limits();
    if let Some(cost) = verdict.above_maximum(i) {
        let exceeded = limits.iter().find(|limit| cost > limit.limit().max());
        return Some((*exceeded?, None));
    }
    let limit = limits.get(usage.binding_index())?;
    let wait = limit.retry_after().unwrap_or(limit.refill_after());
    Some((*limit, Some(wait)))
}

/// Returns the merged metadata of the rules that do not deny, in the place where Envoy's service returns it.
fn dynamic_metadata(verdict: &Verdict<'_>) -> Option<Struct> {
    let passed = verdict.places().filter(|&i| !verdict.is_over(i));
    let mut all = passed.filter_map(|i| verdict.claims[i].rule?.metadata.as_ref());
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

/// Returns the header fields of the calls that are not in shadow mode.
fn headers(verdict: &Verdict<'_>, fields: &RateLimitHeaders) -> Vec<HeaderValue> {
    let places = verdict.places().filter(|&i| verdict.is_first(i));
    let places = places.filter(|&i| verdict.claims[i].class != Class::Shadow);
    let calls = places.filter_map(|i| {
        let names = verdict.claims[i].rule?.names()?;
        Some((names, verdict.part(i)?, verdict.outcomes[i].usage.as_ref()?))
    });
    let mut out = Vec::new();
    fields.visit_all(calls, retry_after(verdict), |key, value| {
        out.push(HeaderValue {
            key: key.to_owned(),
            value: value.to_owned(),
        });
    });
    out
}

/// Returns the longest wait of the rules that deny. `None` if no wait helps one of them.
fn retry_after(verdict: &Verdict<'_>) -> Option<Duration> {
    let denying = verdict.places().filter(|&i| verdict.denies(i));
    let waits = denying.map(|i| binding(verdict, i)?.1);
    waits.reduce(|longest, wait| Some(longest?.max(wait?)))?
}
