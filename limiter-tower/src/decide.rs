//! One decision over all rules of a layer.

use std::time::Duration;

use http::StatusCode;
use limiter_core::store::LogKey;
use limiter_core::{Decision, Error, ErrorKind, KeyBuf, Status};
use smallvec::SmallVec;

use crate::failure::StoreFailure;
use crate::head::RequestHead;
use crate::rule::{Charge, Charging, LookUp, MissingKey, Rule};
use crate::time_limit::{Running, TimeLimit};

/// What each rule says about one request, in the order of the rules. Up to two are held in place.
pub(crate) type Rulings = SmallVec<[Ruling; 2]>;

/// What one rule says about one request.
pub(crate) struct Ruling {
    pub(crate) key: KeyBuf,
    pub(crate) charge: Charge,
    pub(crate) answer: Answer,
}

pub(crate) enum Answer {
    /// The rule does not apply.
    Skipped,
    /// The charge is being looked up.
    LookingUp(LookUp),
    /// The store has not been asked yet.
    Asking,
    /// The acquire was admitted.
    Admitted(Decision),
    /// The acquire, or a peek after another rule's denial, was denied.
    Denied(Decision),
    /// Nothing is charged: the cost is 0, the charge was refunded, or another rule denied first.
    Uncharged(Status),
    CostExceedsLimit,
    /// The request has no key.
    Rejected(StatusCode),
    /// The store failed. With a duration, the layer fails closed.
    Failed(Error, Option<Duration>),
}

impl Ruling {
    const fn without_key(answer: Answer) -> Self {
        Self { key: KeyBuf::new(), charge: Charge::units(0), answer }
    }

    /// Returns the usage of the request's limits, if the store reported it.
    pub(crate) fn status(&self) -> Option<&Status> {
        match &self.answer {
            Answer::Admitted(decision) | Answer::Denied(decision) => Some(decision.status()),
            Answer::Uncharged(status) => Some(status),
            _ => None,
        }
    }

    fn refuses(&self) -> bool {
        matches!(
            self.answer,
            Answer::Denied(_) | Answer::CostExceedsLimit | Answer::Rejected(_) | Answer::Failed(_, Some(_))
        )
    }
}

/// Whether an enforced rule refuses the request.
pub(crate) fn refused(rules: &[Rule], rulings: &[Ruling]) -> bool {
    rules.iter().zip(rulings).any(|(rule, ruling)| !rule.shadow && ruling.refuses())
}

/// Finds the keys and charges of a request.
pub(crate) fn prepare(rules: &[Rule], head: &RequestHead<'_>, rulings: &mut Rulings) {
    rulings.extend(rules.iter().map(|rule| prepare_one(rule, head)));
}

#[inline]
fn prepare_one(rule: &Rule, head: &RequestHead<'_>) -> Ruling {
    if rule.exempt.as_ref().is_some_and(|exempt| exempt(head)) {
        return Ruling::without_key(Answer::Skipped);
    }
    let key = match (rule.key.key(head), &rule.missing_key) {
        (Some(key), _) => key,
        (None, MissingKey::Share(key)) => key.clone(),
        (None, MissingKey::Reject(status)) => return Ruling::without_key(Answer::Rejected(*status)),
        (None, MissingKey::Skip) => return Ruling::without_key(Answer::Skipped),
    };
    match &rule.charging {
        Charging::Unit => Ruling { key, charge: Charge::units(1), answer: Answer::Asking },
        Charging::AtOnce(charge) => Ruling { key, charge: charge(head), answer: Answer::Asking },
        Charging::LookUp(look_up) => Ruling { key, charge: Charge::units(1), answer: Answer::LookingUp(look_up(head)) },
    }
}

/// Decides without a future. Returns `false` if something is left to [`finish`].
pub(crate) fn try_decide(rules: &[Rule], rulings: &mut Rulings, failure: &StoreFailure) -> bool {
    // A request without a key must charge nothing.
    let mut refused = refused(rules, rulings);
    let mut charged = false;
    for (rule, ruling) in rules.iter().zip(rulings.iter_mut()) {
        match ruling.answer {
            Answer::Asking => {
                let Some(answer) = ask_at_once(rule, &ruling.key, &ruling.charge, refused) else { return false };
                ruling.answer = read(rule, &ruling.key, ruling.charge.cost, answer, refused, failure);
            }
            Answer::LookingUp(_) => return false,
            _ => {}
        }
        charged |= !rule.shadow && matches!(ruling.answer, Answer::Admitted(_));
        refused |= !rule.shadow && ruling.refuses();
    }
    !(refused && charged)
}

/// Asks whoever has not been asked, then takes back the charges if a rule refuses. Ends at the deadline.
pub(crate) async fn finish(
    rules: &[Rule],
    mut rulings: Rulings,
    failure: &StoreFailure,
    limit: TimeLimit<'_>,
) -> Rulings {
    let mut limit = limit.start();
    let mut refused = refused(rules, &rulings);
    for (rule, ruling) in rules.iter().zip(rulings.iter_mut()) {
        if let Answer::LookingUp(look_up) = &mut ruling.answer {
            ruling.answer = match limit.run(look_up).await {
                Ok(charge) => {
                    ruling.charge = charge;
                    Answer::Asking
                }
                Err(error) => failed(rule, &ruling.key, error, failure),
            };
        }
        if matches!(ruling.answer, Answer::Asking) {
            let answer = limit.run(ask(rule, &ruling.key, &ruling.charge, refused)).await;
            ruling.answer = read(rule, &ruling.key, ruling.charge.cost, answer, refused, failure);
        }
        refused |= !rule.shadow && ruling.refuses();
    }
    if refused {
        for (rule, ruling) in rules.iter().zip(rulings.iter_mut()) {
            settle(rule, ruling, 0, &mut limit).await;
        }
    }
    rulings
}

/// Replaces the cost of an admitted request. If the store fails, the charge stays.
pub(crate) async fn settle(rule: &Rule, ruling: &mut Ruling, cost: u64, limit: &mut Running<'_>) {
    let Answer::Admitted(decision) = &ruling.answer else { return };
    let Some(receipt) = decision.receipt() else { return };
    let mut settle = rule.limiter.settle(&ruling.key, receipt, cost);
    if let Some(policy) = &ruling.charge.policy {
        settle = settle.policy(policy);
    }
    if let Ok(settled) = limit.run(settle).await {
        ruling.answer = Answer::Uncharged(settled.status().clone());
    }
}

/// Acquires, or only looks if another rule refuses already or if the request costs nothing.
#[inline]
fn ask_at_once(rule: &Rule, key: &KeyBuf, charge: &Charge, refused: bool) -> Option<Result<Decision, Error>> {
    let (cost, policy) = (charge.cost.max(1), charge.policy.as_deref().unwrap_or(rule.limiter.policy()));
    if refused || charge.cost == 0 {
        rule.limiter.peek(key).cost(cost).policy(policy).try_now()
    } else if charge.policy.is_some() {
        rule.limiter.acquire(key).cost(cost).policy(policy).try_now()
    } else {
        rule.limiter.acquire(key).cost(cost).try_now()
    }
}

async fn ask(rule: &Rule, key: &KeyBuf, charge: &Charge, refused: bool) -> Result<Decision, Error> {
    let (cost, policy) = (charge.cost.max(1), charge.policy.as_deref().unwrap_or(rule.limiter.policy()));
    if refused || charge.cost == 0 {
        rule.limiter.peek(key).cost(cost).policy(policy).await
    } else if charge.policy.is_some() {
        rule.limiter.acquire(key).cost(cost).policy(policy).await
    } else {
        rule.limiter.acquire(key).cost(cost).await
    }
}

/// Reads the store's answer to an acquire, or to a peek if the request was refused already or costs nothing.
#[inline]
fn read(
    rule: &Rule,
    key: &KeyBuf,
    cost: u64,
    answer: Result<Decision, Error>,
    refused: bool,
    failure: &StoreFailure,
) -> Answer {
    match answer {
        Ok(decision) if cost == 0 => Answer::Uncharged(decision.into_status()),
        Ok(decision) if !decision.allowed() => Answer::Denied(decision),
        Ok(decision) if refused => Answer::Uncharged(decision.into_status()),
        Ok(decision) => Answer::Admitted(decision),
        Err(error) if error.kind() == ErrorKind::CostExceedsLimit => Answer::CostExceedsLimit,
        Err(error) => failed(rule, key, error, failure),
    }
}

fn failed(rule: &Rule, key: &KeyBuf, error: Error, failure: &StoreFailure) -> Answer {
    // A timeout of the layer and the error of a look-up name no limiter, and the choice may depend on it.
    let error = error.with_log(LogKey::new(rule.limiter.name(), key));
    let closes = if rule.shadow { None } else { failure.closes(&error) };
    Answer::Failed(error, closes)
}
