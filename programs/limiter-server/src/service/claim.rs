//! One descriptor of a request: the matching rule, and what it asks of it.

use std::collections::HashSet;
use std::hash::Hash;
use std::sync::Arc;

use limiter_core::request::Part;
use limiter_core::store::LogKey;
use limiter_core::{Counting, KeyBuf, Limit, Limiter, Policy, SharedStore};
use smallvec::SmallVec;

use crate::proto::{RateLimitDescriptor, RateLimitOverride, RateLimitRequest, Unit};
use crate::rules::{Effect, Match, Rule, RuleSet, UNITS};

/// The effect of a rule's denial on the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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
    pub(super) ask: Ask<'r>,
}

/// What a descriptor asks of its rule.
#[derive(Debug)]
pub(super) enum Ask<'r> {
    /// Nothing: no rule matches, or it allows everything.
    Free,
    /// Nothing: the rule always denies, or the descriptor is refused.
    Refused,
    /// To count.
    Call(Call<'r>),
}

/// A call on a limiter.
#[derive(Debug)]
pub(super) struct Call<'r> {
    /// The rule's, or the descriptor's own limit's.
    pub(super) limiter: &'r Limiter,
    /// The descriptor's own limit.
    pub(super) own: Option<Box<Policy>>,
    /// Whether the cost counts even if it does not fit, or if another claim denies the request.
    pub(super) keeps_charge: bool,
    pub(super) id: Option<u128>,
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
        let mut found = rules.find(&request.domain, &entries);
        if descriptor.is_negative_hits {
            return Err(
                "is_negative_hits: not supported; POST a receipt to /v1/refund instead".to_owned(),
            );
        }
        let own = descriptor.limit.as_ref().map(own_policy).transpose()?;
        let limiter = found.as_ref().and_then(|found| found.rule.limiter());
        if own.is_some() && limiter.is_none() {
            found = rules.overrides(&request.domain).map(|rule| Match {
                rule,
                key: RuleSet::override_key(&entries),
                detailed: None,
            });
        }
        let hits = descriptor.hits_addend;
        let cost = hits.unwrap_or_else(|| request.hits_addend.max(1).into());
        let mut claim = Self::of(found, cost, None);
        let (Some(rule), Ask::Call(call)) = (claim.rule, &mut claim.ask) else {
            return Ok(claim);
        };
        call.keeps_charge = hits > Some(0) && rule.keeps_charges;
        match own {
            Some((_, None)) => claim.ask = Ask::Refused,
            Some((unit, Some(policy))) => {
                // It counts admitted requests, even if the rule counts attempts.
                let counting = match call.keeps_charge {
                    true => Counting::Attempts,
                    false => Counting::Admitted,
                };
                call.limiter = rule.own_limiter(unit).unwrap_or(call.limiter);
                call.own = Some(Box::new(policy.with_counting(counting)));
            }
            None if call.keeps_charge => {
                call.limiter = rule.charging_limiter().unwrap_or(call.limiter);
            }
            None => {}
        }
        Ok(claim)
    }

    /// Returns a claim that only counts if all others admit.
    pub(super) fn of(found: Option<Match<'r>>, cost: u64, id: Option<u128>) -> Self {
        let (rule, key, detailed) = match found {
            Some(found) => (Some(found.rule), found.key, found.detailed),
            None => (None, KeyBuf::default(), None),
        };
        let ask = match rule.map(|rule| &rule.effect) {
            None | Some(Effect::Unlimited | Effect::Exempt) => Ask::Free,
            Some(Effect::Deny) => Ask::Refused,
            Some(Effect::Limit(limiter)) => Ask::Call(Call {
                limiter,
                own: None,
                keeps_charge: false,
                id,
            }),
        };
        let class = match rule {
            Some(rule) if rule.shadow => Class::Shadow,
            Some(rule) if rule.quota && !matches!(ask, Ask::Free) => Class::Quota,
            _ => Class::Enforced,
        };
        Self {
            rule,
            class,
            key,
            detailed,
            hits: cost,
            ask,
        }
    }

    /// Returns the call and its log.
    pub(super) fn call(&self) -> Option<(&Call<'r>, LogKey<'_>)> {
        match &self.ask {
            Ask::Call(call) => Some((call, LogKey::new(call.limiter.name(), &self.key))),
            Ask::Free | Ask::Refused => None,
        }
    }

    /// Returns what claims have in common that are one operation of the summed cost. `None` if the claim is no such operation.
    pub(super) fn operation(&self) -> Option<impl Hash + Eq + use<'_>> {
        let (call, log) = self.call()?;
        let own = call.own.as_deref();
        let own = own.map(|own| (own.limits(), own.counting()));
        let limiter = std::ptr::from_ref(call.limiter);
        let kind = (self.class, call.keeps_charge, call.id);
        (self.hits > 0).then_some((log, kind, own, limiter))
    }

    /// Returns `true` if no wait helps with this cost of the claims that are one operation.
    pub(super) fn is_hopeless(&self, cost: u64) -> bool {
        match &self.ask {
            Ask::Free => false,
            Ask::Refused => true,
            Ask::Call(call) => call.is_above(cost),
        }
    }

    /// Returns `true` if other quotas deny only if this rule is also over its limit. In shadow mode, it never is. A rule that admits
    /// everything is no quota that others could need spent.
    pub(super) fn is_quota(&self) -> bool {
        !matches!(self.ask, Ask::Free) && self.rule.is_some_and(|rule| rule.quota)
    }

    /// Returns the part of a decision. If the request is already refused, it does not charge, unless its charge is kept.
    pub(super) fn part(&self, cost: u64, is_refused: bool) -> Option<Part<'r, SharedStore>> {
        let Ask::Call(call) = &self.ask else {
            return None;
        };
        let (limiter, key) = (call.limiter, &self.key);
        let mut part: Part<'_, _> = if cost == 0 {
            limiter.peek(key).into()
        } else if call.keeps_charge && call.is_above(cost) {
            limiter.record(key).cost(cost).into()
        } else if call.is_above(cost) {
            limiter.status(key).into()
        } else if is_refused && !call.keeps_charge {
            // Peeks of one log merge: a check of one unit must not become a check of this cost.
            Part::from(limiter.peek(key).cost(cost)).own_entry()
        } else {
            let acquire = limiter.acquire(key).cost(cost);
            match call.id {
                Some(id) => acquire.idempotency_key(id).into(),
                None => acquire.into(),
            }
        };
        if let Some(own) = &call.own {
            part = part.policy(own);
        }
        if self.class != Class::Enforced {
            part = part.advisory();
        }
        if call.keeps_charge {
            part = part.keep_charge();
        }
        Some(part)
    }

    /// Returns a reading of the log. The counting mode is the same for all, so that readings of one log are one call.
    pub(super) fn look(&self) -> Option<Part<'r, SharedStore>> {
        let (call, _) = self.call()?;
        let Some(own) = &call.own else {
            return Some(self.rule?.limiter()?.status(&self.key).into());
        };
        let status = Part::from(call.limiter.status(&self.key));
        Some(status.policy(&Policy::clone(own).with_counting(Counting::Admitted)))
    }
}

impl Call<'_> {
    /// Returns `true` if the policy never allows this cost.
    pub(super) fn is_above(&self, cost: u64) -> bool {
        let policy = self.own.as_deref();
        cost > policy.unwrap_or(self.limiter.policy()).smallest_max()
    }
}

/// Drops the rules that other rules of the request replace. A dropped rule still replaces others.
pub(super) fn drop_replaced(claims: &mut [Claim<'_>]) {
    let rules = claims.iter().filter_map(|claim| claim.rule);
    let replaced = rules.flat_map(|rule| &rule.replaces).map(|name| &**name);
    let replaced: HashSet<&str> = replaced.collect();
    if replaced.is_empty() {
        return;
    }
    let is_replaced = |rule: &Arc<Rule>| {
        let name = rule.name.as_deref();
        name.is_some_and(|name| replaced.contains(name))
    };
    for claim in claims {
        if claim.rule.is_some_and(is_replaced) {
            *claim = Claim::of(None, 0, None);
        }
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
