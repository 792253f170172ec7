//! The calls of a request's claims, made together, and what came of each.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use limiter_core::request::{AllOf, PartDecision, PartOutcome, Undecided};
use limiter_core::{Error, JointDecision, LimitStatus, SharedStore, Status};
use smallvec::SmallVec;

use super::claim::{Claim, Class};

/// The claims of a request.
pub(super) type Claims<'r> = SmallVec<[Claim<'r>; 4]>;

/// The decision on a request.
#[derive(Debug)]
pub(super) struct Verdict<'r> {
    pub(super) claims: Claims<'r>,
    pub(super) outcomes: SmallVec<[Outcome; 4]>,
    calls: JointDecision<'r>,
    pub(super) admitted: bool,
    /// Whether it has quotas and all are exceeded.
    spent: bool,
}

/// What came of a claim.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// The claim whose call this one shares: an earlier one on the same log, or itself.
    first: usize,
    /// The cost of the claims that share the call.
    cost: u64,
    /// The call's position.
    call: Option<usize>,
    /// Whether the rule is over its limit, even in shadow mode.
    pub(super) over: bool,
    /// The usage that the client sees, once the charges of a denied request are refunded. `None` if nothing counts.
    pub(super) usage: Option<Status>,
}

/// Finds which claims share a call.
fn outcomes(claims: &[Claim<'_>]) -> SmallVec<[Outcome; 4]> {
    let mut outcomes = SmallVec::<[Outcome; 4]>::new();
    let mut firsts = HashMap::new();
    for (i, claim) in claims.iter().enumerate() {
        let operation = claim.operation();
        let first = operation.map_or(i, |operation| *firsts.entry(operation).or_insert(i));
        outcomes.push(Outcome {
            first,
            ..Outcome::default()
        });
        let cost = &mut outcomes[first].cost;
        *cost = cost.saturating_add(claim.hits);
    }
    for i in 0..claims.len() {
        outcomes[i].cost = outcomes[outcomes[i].first].cost;
    }
    outcomes
}

impl<'r> Verdict<'r> {
    /// Decides on claims. All charges have receipts if they are `refundable`. The outage choice decides after `timeout`.
    ///
    /// # Errors
    /// If the store failed for a claim on which the decision depends.
    pub(super) async fn reach(
        claims: Claims<'r>,
        refundable: bool,
        timeout: Option<Duration>,
    ) -> Result<Self, Error> {
        let mut outcomes = outcomes(&claims);
        let refused = claims.iter().zip(&outcomes).any(|(claim, outcome)| {
            claim.class == Class::Enforced && claim.is_hopeless(outcome.cost)
        });
        let mut all = AllOf::new();
        // Quotas deny together, after the last call, and refund other rules' charges.
        let is_quota = |claim: &Claim<'_>| claim.class == Class::Quota;
        if refundable || claims.iter().any(is_quota) && !claims.iter().all(is_quota) {
            all = all.refundable();
        }
        let mut calls = 0..;
        for (i, claim) in claims.iter().enumerate() {
            let Outcome { first, cost, .. } = outcomes[i];
            if first != i {
                outcomes[i].call = outcomes[first].call;
            } else if let Some(part) = claim.part(cost, refused) {
                outcomes[i].call = calls.next();
                all = all.with(part);
            }
        }
        all = timeout.into_iter().fold(all, AllOf::timeout);
        let start = Instant::now();
        let calls = match Undecided::from(all).try_decide() {
            Ok(calls) => calls,
            // It takes kilobytes.
            Err(calls) => Box::pin(calls.decide()).await,
        };
        let mut verdict = Self {
            claims,
            outcomes,
            calls,
            admitted: false,
            spent: false,
        };
        let error = verdict.rule().cloned();
        let is_denied = refused || verdict.spent || verdict.calls.is_denied();
        verdict.admitted = error.is_none() && !is_denied;
        if !verdict.admitted {
            verdict.calls.refund().await;
        }
        verdict.note_usages();
        if !verdict.admitted {
            let left = timeout.map(|timeout| timeout.saturating_sub(start.elapsed()));
            verdict.look_again(left).await;
        }
        error.map_or(Ok(verdict), Err)
    }

    /// Notes which rules are over their limits, and whether all quotas are. Returns an error on which the decision depends.
    fn rule(&mut self) -> Option<&Error> {
        for (i, claim) in self.claims.iter().enumerate() {
            let outcome = self.part(i).map(PartDecision::outcome);
            let is_denied = matches!(outcome, Some(PartOutcome::Denied(_)));
            self.outcomes[i].over = claim.is_hopeless(self.outcomes[i].cost) || is_denied;
        }
        let quotas = || (0..self.claims.len()).filter(|&i| self.claims[i].is_quota());
        self.spent = quotas().next().is_some() && quotas().all(|i| self.is_over(i));
        let error = |i: usize| {
            let (claim, part) = (&self.claims[i], self.part(i)?);
            // A quota's call alone denies nothing, but nobody knows whether all quotas are exceeded.
            let is_quota = claim.class == Class::Quota && !self.is_hopeless(i);
            part.error().filter(|_| part.denies() || is_quota)
        };
        (0..self.claims.len()).find_map(error)
    }

    fn note_usages(&mut self) {
        for i in 0..self.claims.len() {
            let status = self.part(i).and_then(PartDecision::status);
            self.outcomes[i].usage = status.cloned();
        }
    }

    /// Reads the logs again, together, on which a denied request has several calls: each of them saw the log between the others.
    async fn look_again(&mut self, timeout: Option<Duration>) {
        let mut calls = HashMap::<_, HashSet<usize>>::new();
        for (claim, outcome) in self.claims.iter().zip(&self.outcomes) {
            if let (Some((_, log)), Some(call)) = (claim.call(), outcome.call) {
                calls.entry(log).or_default().insert(call);
            }
        }
        let is_shared = |claim: &Claim<'_>| {
            let log = claim.call().map(|(_, log)| log);
            log.is_some_and(|log| calls.get(&log).is_some_and(|calls| calls.len() > 1))
        };
        let looks = self.claims.iter().enumerate();
        let looks = looks.filter(|(_, claim)| is_shared(claim));
        let looks = looks.filter_map(|(i, claim)| Some((i, claim.look()?)));
        let (looking, looks): (Vec<_>, Vec<_>) = looks.unzip();
        drop(calls);
        if looks.is_empty() || timeout.is_some_and(|timeout| timeout.is_zero()) {
            return;
        }
        let all = timeout.into_iter().fold(AllOf::new(), AllOf::timeout);
        let seen = Undecided::from(looks.into_iter().fold(all, AllOf::with));
        let seen = Box::pin(seen.decide()).await;
        for (call, i) in looking.into_iter().enumerate() {
            let Some(left) = seen.part(call).and_then(PartDecision::status) else {
                continue;
            };
            let limits = left.limits();
            let used = |limit| {
                let found = limits.iter().find(|left| left.limit() == limit);
                found.map_or(0, LimitStatus::used)
            };
            let usage = match self.part(i).map(PartDecision::outcome) {
                // It waits for the whole request.
                Some(PartOutcome::Denied(denial)) => denial.status().with_used(used),
                _ => left.clone(),
            };
            self.outcomes[i].usage = Some(usage);
        }
    }

    /// Returns the claims' places.
    pub(super) fn places(&self) -> std::ops::Range<usize> {
        0..self.claims.len()
    }

    /// Returns the outcome of a claim's call, if there is one.
    pub(super) fn part(&self, i: usize) -> Option<&PartDecision<'r, SharedStore>> {
        self.calls.part(self.outcomes[i].call?)
    }

    /// Returns `true` if a claim's call is its own, which others may share.
    pub(super) fn is_first(&self, i: usize) -> bool {
        self.outcomes[i].first == i
    }

    /// Returns `true` if no wait helps a claim.
    pub(super) fn is_hopeless(&self, i: usize) -> bool {
        self.claims[i].is_hopeless(self.outcomes[i].cost)
    }

    /// Returns the cost of a claim and those that share its call, if it is above a maximum.
    pub(super) fn above_maximum(&self, i: usize) -> Option<u64> {
        let has_call = self.claims[i].call().is_some();
        (has_call && self.is_hopeless(i)).then_some(self.outcomes[i].cost)
    }

    /// Returns `true` if a claim is over its limit for the client.
    pub(super) fn is_over(&self, i: usize) -> bool {
        self.outcomes[i].over && self.claims[i].class != Class::Shadow
    }

    /// Returns `true` if a claim denies the request.
    pub(super) fn denies(&self, i: usize) -> bool {
        self.is_over(i) && (self.spent || self.claims[i].class != Class::Quota)
    }
}
