//! One descriptor of a request: the matching rule, and the call on its limiter.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use limiter_core::internal::firsts;
use limiter_core::request::joint::Undecided;
use limiter_core::request::{AllOf, Part, PartDecision, PartOutcome};
use limiter_core::store::LogKey;
use limiter_core::{
    Counting, Error, JointDecision, KeyBuf, Limit, Limiter, Policy, SharedStore, Status,
};
use smallvec::SmallVec;

use crate::proto::{RateLimitDescriptor, RateLimitOverride, RateLimitRequest, Unit};
use crate::rules::{Effect, Match, Rule, RuleSet, UNITS};

/// The effect of a rule's denial on the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// It denies the request.
    Enforced,
    /// It denies the request together with all others of this class.
    Quota,
    /// It is only counted.
    Shadow,
}

/// One descriptor of a request.
#[derive(Debug)]
pub(super) struct Claim<'r> {
    /// The rule. `None` if no rule limits the descriptor.
    pub(super) rule: Option<&'r Arc<Rule>>,
    pub(super) class: Class,
    pub(super) key: KeyBuf,
    pub(super) detailed: Option<String>,
    /// The cost.
    pub(super) hits: u64,
    /// Whether the cost counts even if it does not fit, or if another claim denies the request.
    pub(super) keeps_charge: bool,
    /// Whether the rule is over its limit, even in shadow mode.
    pub(super) over: bool,
    id: Option<u128>,
    demand: Demand,
    /// The rule's, or the descriptor's own limit's.
    limiter: Option<&'r Limiter>,
    /// The descriptor's own limit.
    policy: Option<Policy>,
    /// The claim that includes this one's cost: an earlier one on the same log.
    pub(super) within: Option<usize>,
    /// The call's position among the request's calls.
    part: Option<usize>,
    /// The usage after the refunds of a denied request, if it has several calls on the log.
    pub(super) left: Option<Box<Status>>,
}

/// What a descriptor asks of its limiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Demand {
    /// No rule matches, or it allows everything.
    Unlimited,
    /// The rule always denies, or the descriptor is refused.
    Refused,
    /// More units than the policy ever allows.
    AboveMaximum(u64),
    /// A check whether one more unit fits.
    Check,
    /// The cost.
    Units(u64),
}

impl<'r> Claim<'r> {
    /// Finds the rule of a descriptor.
    ///
    /// # Errors
    /// The error in the descriptor's own limit.
    pub(super) fn new(
        rules: &'r RuleSet,
        request: &RateLimitRequest,
        descriptor: &RateLimitDescriptor,
    ) -> Result<Self, String> {
        let entries: SmallVec<[(&[u8], &[u8]); 4]> = descriptor
            .entries
            .iter()
            .map(|entry| (&*entry.key, &*entry.value))
            .collect();
        let (mut rule, mut key, mut detailed) = match rules.find(&request.domain, &entries) {
            Some(found) => (Some(found.rule), found.key, found.detailed),
            None => (None, KeyBuf::default(), None),
        };
        if descriptor.is_negative_hits {
            return Err(
                "is_negative_hits: not supported; POST a receipt to /v1/refund instead".to_owned(),
            );
        }
        let own = descriptor.limit.as_ref().map(own_policy).transpose()?;
        if own.is_some() && rule.is_none_or(|rule| rule.limiter().is_none()) {
            (rule, key, detailed) = (
                rules.overrides(&request.domain),
                RuleSet::override_key(&entries),
                None,
            );
        }
        let mut claim = Self::of(rule, key);
        claim.detailed = detailed;
        claim.hits = match descriptor.hits_addend {
            Some(hits) => {
                claim.keeps_charge = hits > 0 && rule.is_some_and(|rule| rule.keeps_charges);
                hits
            }
            None => request.hits_addend.max(1).into(),
        };
        if let (Some((unit, policy)), Some(rule)) = (own, rule) {
            // It counts admitted requests, even if the rule counts attempts.
            let counting = match claim.keeps_charge {
                true => Counting::Attempts,
                false => Counting::Admitted,
            };
            claim.limiter = rule.own_limiter(unit);
            claim.policy = policy.map(|policy| policy.with_counting(counting));
            if claim.policy.is_none() {
                claim.demand = Demand::Refused;
            }
        } else if claim.keeps_charge {
            claim.limiter = rule.and_then(|rule| rule.charging_limiter());
        }
        claim.set_cost(claim.hits);
        Ok(claim)
    }

    /// Returns a claim that only counts if all others admit.
    pub(super) fn acquire(found: Option<Match<'r>>, cost: u64, id: Option<u128>) -> Self {
        let (rule, key, detailed) = match found {
            Some(found) => (Some(found.rule), found.key, found.detailed),
            None => (None, KeyBuf::default(), None),
        };
        let mut claim = Self {
            detailed,
            hits: cost,
            id,
            ..Self::of(rule, key)
        };
        claim.set_cost(cost);
        claim
    }

    /// Returns a claim on one unit.
    fn of(rule: Option<&'r Arc<Rule>>, key: KeyBuf) -> Self {
        let demand = match rule.map(|rule| &rule.effect) {
            None | Some(Effect::Unlimited | Effect::Exempt) => Demand::Unlimited,
            Some(Effect::Deny) => Demand::Refused,
            Some(Effect::Limit(_)) => Demand::Units(1),
        };
        let class = match rule {
            Some(rule) if rule.shadow => Class::Shadow,
            Some(rule) if rule.quota && demand != Demand::Unlimited => Class::Quota,
            _ => Class::Enforced,
        };
        let limiter = rule.and_then(|rule| rule.limiter());
        Self {
            rule,
            class,
            key,
            detailed: None,
            hits: 0,
            keeps_charge: false,
            over: false,
            id: None,
            demand,
            limiter,
            policy: None,
            within: None,
            part: None,
            left: None,
        }
    }

    /// Denies the descriptor, regardless of its cost.
    pub(super) const fn refuse(&mut self) {
        self.demand = Demand::Refused;
    }

    fn set_cost(&mut self, cost: u64) {
        let is_limited = self.units().is_some();
        if let (true, Some(policy)) = (is_limited, self.policy()) {
            self.demand = match cost {
                0 => Demand::Check,
                cost if cost > policy.smallest_max() => Demand::AboveMaximum(cost),
                cost => Demand::Units(cost),
            };
        }
    }

    /// Returns the cost of a call that asks for units.
    const fn units(&self) -> Option<u64> {
        match self.demand {
            Demand::Units(cost) | Demand::AboveMaximum(cost) => Some(cost),
            Demand::Unlimited | Demand::Refused | Demand::Check => None,
        }
    }

    /// Returns `true` if both claims, on one log, are one operation of the summed cost.
    fn is_one_with(&self, other: &Self) -> bool {
        let kind = |claim: &Self| (claim.class, claim.keeps_charge, claim.id);
        let limiters = self.limiter.zip(other.limiter);
        self.units().is_some()
            && other.units().is_some()
            && kind(self) == kind(other)
            && self.policy == other.policy
            && limiters.is_some_and(|(one, two)| std::ptr::eq(one, two))
    }

    /// Returns the policy that applies: the descriptor's own, or the rule's.
    fn policy(&self) -> Option<&Policy> {
        self.policy
            .as_ref()
            .or_else(|| Some(self.limiter?.policy()))
    }

    /// Returns `true` if no wait helps.
    pub(super) const fn is_hopeless(&self) -> bool {
        matches!(self.demand, Demand::Refused | Demand::AboveMaximum(_))
    }

    pub(super) const fn demand(&self) -> Demand {
        self.demand
    }

    /// Returns the call. If the request is already refused, it does not charge, unless its charge is kept.
    fn call(&self, refused: bool) -> Option<Part<'r, SharedStore>> {
        let limiter = self.limiter?;
        let mut part: Part<'_, _> = match self.demand {
            Demand::Unlimited | Demand::Refused => return None,
            Demand::AboveMaximum(cost) if self.keeps_charge => {
                limiter.record(&self.key).cost(cost).into()
            }
            Demand::AboveMaximum(_) => limiter.status(&self.key).into(),
            Demand::Check => limiter.peek(&self.key).into(),
            Demand::Units(cost) if refused && !self.keeps_charge => {
                limiter.peek(&self.key).cost(cost).into()
            }
            Demand::Units(cost) => {
                let acquire = limiter.acquire(&self.key).cost(cost);
                match self.id {
                    Some(id) => acquire.idempotency_key(id).into(),
                    None => acquire.into(),
                }
            }
        };
        if let Some(policy) = &self.policy {
            part = part.policy(policy);
        }
        if self.class != Class::Enforced {
            part = part.advisory();
        }
        if self.keeps_charge {
            part = part.keep_charge();
        }
        Some(part)
    }

    /// Returns the outcome of the call, if there is one.
    pub(super) fn part<'t, 'c>(
        &self,
        calls: &'t JointDecision<'c>,
    ) -> Option<&'t PartDecision<'c, SharedStore>> {
        calls.part(self.part?)
    }

    /// Returns the error of the call, if the decision depends on it.
    pub(super) fn error<'t>(&self, calls: &'t JointDecision<'_>) -> Option<&'t Error> {
        let part = self.part(calls)?;
        // A quota's call alone denies nothing, but nobody knows whether all quotas are exceeded.
        let matters = part.denies() || self.class == Class::Quota && !self.is_hopeless();
        part.error().filter(|_| matters)
    }

    /// Returns the log that limits the descriptor.
    fn log(&self) -> Option<LogKey<'_>> {
        Some(LogKey::new(self.limiter?.name(), &self.key))
    }

    /// Returns a reading of the log. The counting mode is the same for all, so that readings of one log are one call.
    fn look(&self) -> Option<Part<'r, SharedStore>> {
        let Some(policy) = &self.policy else {
            return Some(self.rule?.limiter()?.status(&self.key).into());
        };
        let status = Part::from(self.limiter?.status(&self.key));
        let policy = policy.clone().with_counting(Counting::Admitted);
        Some(status.policy(&policy))
    }

    /// Notes whether the rule is over its limit.
    pub(super) fn rule_on(&mut self, calls: &JointDecision<'_>) {
        let outcome = self.part(calls).map(PartDecision::outcome);
        self.over = self.is_hopeless() || matches!(outcome, Some(PartOutcome::Denied(_)));
    }

    /// Returns `true` if the descriptor is over its limit for the client.
    pub(super) const fn is_over(&self) -> bool {
        self.over && !matches!(self.class, Class::Shadow)
    }

    /// Returns `true` if other quotas deny only if this rule is also over its limit. In shadow mode, it never is.
    fn is_quota(&self) -> bool {
        // A rule that admits everything is no quota that others could need spent.
        self.demand != Demand::Unlimited && self.rule.is_some_and(|rule| rule.quota)
    }

    /// Returns `true` if the descriptor denies the request. `spent` is `true` if all quotas are exceeded.
    pub(super) const fn denies(&self, spent: bool) -> bool {
        self.over
            && match self.class {
                Class::Enforced => true,
                Class::Quota => spent,
                Class::Shadow => false,
            }
    }
}

/// Returns `true` if a request is refused without the store, because something can never fit. The rest is then only looked up.
pub(super) fn refuse(claims: &[Claim<'_>]) -> bool {
    let mut enforced = claims.iter().filter(|claim| claim.class == Class::Enforced);
    enforced.any(Claim::is_hopeless)
}

/// Makes claims on one log one operation of the summed cost, in the first's place.
fn merge(claims: &mut [Claim<'_>]) {
    if claims.len() < 2 {
        return;
    }
    let log = |i: usize| {
        let log = claims[i].log();
        log.map(|log| (log.name.id(), log.key))
    };
    let firsts = firsts(
        claims.len(),
        |i, j| log(i).cmp(&log(j)),
        |i, j| claims[i].is_one_with(&claims[j]),
    );
    for (i, first) in firsts.into_iter().map(|first| first.call).enumerate() {
        let [one, more] = [first, i].map(|i| claims[i].units().unwrap_or(0));
        if first != i {
            claims[i].within = Some(first);
            claims[first].set_cost(one.saturating_add(more));
        }
    }
    for i in 0..claims.len() {
        if let Some(first) = claims[i].within {
            claims[i].demand = claims[first].demand;
        }
    }
}

/// Returns the calls of a request.
pub(super) fn calls<'r>(claims: &mut [Claim<'r>]) -> AllOf<'r> {
    merge(claims);
    let refused = refuse(claims);
    let has = |quota| {
        let mut classes = claims.iter().map(|claim| claim.class);
        classes.any(|class| (class == Class::Quota) == quota)
    };
    let mut all = AllOf::new();
    // Quotas deny together, after the last call, and refund other rules' charges.
    if has(true) && has(false) {
        all = all.refundable();
    }
    let mut parts = 0..;
    for i in 0..claims.len() {
        if let Some(first) = claims[i].within {
            claims[i].part = claims[first].part;
        } else if let Some(part) = claims[i].call(refused) {
            claims[i].part = parts.next();
            all = all.with(part);
        }
    }
    all
}

/// Notes which rules are over their limits. Returns `true` if there are quotas and all are.
pub(super) fn rule(claims: &mut [Claim<'_>], calls: &JointDecision<'_>) -> bool {
    claims.iter_mut().for_each(|claim| claim.rule_on(calls));
    let mut quotas = claims.iter().filter(|claim| claim.is_quota()).peekable();
    quotas.peek().is_some() && quotas.all(Claim::is_over)
}

/// Reads the logs again, together, on which a denied request has several calls: each of them saw the log between the others.
pub(super) async fn look_again(claims: &mut [Claim<'_>], timeout: Option<Duration>) {
    let mut calls = HashMap::<_, HashSet<usize>>::new();
    for claim in claims.iter() {
        if let (Some(log), Some(part)) = (claim.log(), claim.part) {
            calls.entry(log).or_default().insert(part);
        }
    }
    let is_shared = |claim: &Claim<'_>| {
        let log = claim.part.and_then(|_| claim.log());
        log.is_some_and(|log| calls[&log].len() > 1)
    };
    let looks: Vec<_> = claims
        .iter()
        .map(|claim| is_shared(claim).then(|| claim.look()).flatten())
        .collect();
    drop(calls);
    if looks.iter().all(Option::is_none) || timeout.is_some_and(|timeout| timeout.is_zero()) {
        return;
    }
    let all = AllOf::new();
    let all = timeout.into_iter().fold(all, AllOf::timeout);
    let (looking, looks): (Vec<_>, Vec<_>) = claims
        .iter_mut()
        .zip(looks)
        .filter_map(|(claim, look)| Some((claim, look?)))
        .unzip();
    let seen = Undecided::from(looks.into_iter().fold(all, AllOf::with));
    let seen = Box::pin(seen.decide()).await;
    for (call, claim) in looking.into_iter().enumerate() {
        let status = seen.part(call).and_then(PartDecision::status);
        claim.left = status.cloned().map(Box::new);
    }
}

/// Drops the rules that other rules of the request replace. A dropped rule still replaces others.
pub(super) fn drop_replaced(claims: &mut [Claim<'_>]) {
    let replaced: HashSet<&str> = claims
        .iter()
        .filter_map(|claim| claim.rule)
        .flat_map(|rule| &rule.replaces)
        .map(|name| &**name)
        .collect();
    if replaced.is_empty() {
        return;
    }
    let is_replaced = |rule: &Rule| {
        rule.name
            .as_ref()
            .is_some_and(|name| replaced.contains(&**name))
    };
    for claim in claims
        .iter_mut()
        .filter(|claim| claim.rule.is_some_and(|rule| is_replaced(rule)))
    {
        *claim = Claim::of(None, KeyBuf::default());
    }
}

/// Returns the unit of a request's own limit, and its policy. `None` if its maximum is 0.
fn own_policy(limit: &RateLimitOverride) -> Result<(Unit, Option<Policy>), String> {
    let Some((unit, largest)) = UNITS.iter().find(|(unit, _)| *unit as i32 == limit.unit) else {
        return Err(format!(
            "limit.unit is {}, expected SECOND, MINUTE, HOUR, DAY, WEEK, MONTH or YEAR",
            limit.unit
        ));
    };
    if limit.requests_per_unit == 0 {
        return Ok((*unit, None));
    }
    let limit = Limit::with_window(limit.requests_per_unit.into(), largest.longest_window());
    Ok((
        *unit,
        Some(limit.map_err(|error| format!("limit: {error}"))?.into()),
    ))
}
