//! A layer's rules and their application.

use std::time::Duration;

use limiter_core::request::{AllOf, PartOutcome, Undecided};
use limiter_core::{BoxFuture, WindowStore as _};

use crate::charges::{Charges, detach};
use crate::head::{RequestHead, ResponseHead};
use crate::headers::Policies;
use crate::observation::Observation;
use crate::rejection::{Cause, PAUSE, Rejection, StoreFailure};
use crate::rule::{ActualCost, Rule};
use crate::rulings::{Applied, Decided, Rulings};

/// Rules, the choice when their store fails, and the observer.
pub(crate) struct Rules {
    pub(crate) list: Box<[Rule]>,
    pub(crate) policies: Policies,
    pub(crate) failure: StoreFailure,
    pub(crate) timeout: Duration,
    pub(crate) observer: Option<Observer>,
    /// Whether something may settle or refund a charge after all rules have admitted.
    pub(crate) is_refundable: bool,
}

type Observer = Box<dyn Fn(&Observation<'_>) + Send + Sync>;

impl Rules {
    pub(crate) fn new(rules: impl IntoIterator<Item = Rule>, failure: StoreFailure) -> Self {
        let list: Box<[Rule]> = rules.into_iter().collect();
        Self {
            policies: Policies::new(&list),
            is_refundable: list
                .iter()
                .any(|rule| rule.settles() || rule.handler_settles),
            list,
            failure,
            timeout: Duration::from_millis(700),
            observer: None,
        }
    }

    /// Finds a request's keys and charges.
    pub(crate) fn calls(&self, head: &RequestHead<'_>) -> Rulings<Undecided<'_>> {
        let mut calls = AllOf::new().timeout(self.timeout);
        if self.is_refundable {
            calls = calls.refundable();
        }
        let fails_open = matches!(self.failure, StoreFailure::Open);
        Rulings::new(calls, &self.list, fails_open, head)
    }

    /// Decides and reports. After a denial, waits and tries again if the wait is within `left`.
    pub(crate) async fn decide(
        &self,
        mut calls: Rulings<Undecided<'static>>,
        mut left: Duration,
    ) -> Decided<'static> {
        loop {
            let rulings = calls.decide().await;
            self.report(&rulings);
            let wait = rulings.calls.retry_after();
            let Some((wait, rest)) = wait.and_then(|wait| Some((wait, left.checked_sub(wait)?)))
            else {
                return rulings;
            };
            let Some(sleep) = self.sleep(wait) else {
                return rulings;
            };
            left = rest;
            sleep.await;
            calls = rulings.again();
        }
    }

    /// Returns a sleep by the store's clock if it has one in front, otherwise on tokio's timers. `None` without either.
    fn sleep(&self, wait: Duration) -> Option<BoxFuture<'_, ()>> {
        let clock = self
            .list
            .iter()
            .find_map(|rule| rule.limiter.store().clock());
        #[cfg(feature = "tokio")]
        if clock.is_none() && tokio::runtime::Handle::try_current().is_ok() {
            return Some(Box::pin(tokio::time::sleep(wait)));
        }
        Some(clock?.sleep(wait))
    }

    pub(crate) fn report(&self, rulings: &Decided<'_>) {
        if let Some(observer) = &self.observer {
            let seen = self.list.iter().zip(rulings.iter());
            seen.filter_map(|(rule, (applied, part))| Observation::new(rule, applied, part))
                .for_each(|observation| observer(&observation));
        }
    }

    /// Returns why a request is refused.
    pub(crate) fn rejection(&self, rulings: &Decided<'_>) -> Rejection {
        let rejected = |(rule, (applied, _)): (&Rule, (&Applied, _))| match applied {
            Applied::Rejected(status) if !rule.shadow => Some(*status),
            _ => None,
        };
        if let Some(status) = self.list.iter().zip(rulings.iter()).find_map(rejected) {
            return Rejection::new(Cause::MissingKey(status), None, Vec::new());
        }
        let pause = match self.failure {
            StoreFailure::Closed { retry_after } => retry_after.max(PAUSE),
            StoreFailure::Open => PAUSE,
        };
        let violated = self.policies.violated(&self.list, rulings);
        Rejection::of_calls(violated, &rulings.calls, pause)
    }

    /// Returns the charges that the handler settles.
    pub(crate) fn charges(&self, rulings: &Decided<'_>) -> Option<Charges> {
        let settles = |rule: &Rule| rule.handler_settles;
        let permits = || rulings.permits(&self.list, settles);
        self.list
            .iter()
            .any(settles)
            .then(|| permits().into_iter().collect())
    }

    /// Whether a response or its absence may change a charge.
    pub(crate) fn settles(&self) -> bool {
        self.list.iter().any(Rule::settles)
    }

    /// Refunds the charges of an abandoned request if its rules have [`Rule::refund_abandoned`](crate::Rule::refund_abandoned).
    pub(crate) fn abandon(&self, rulings: &Decided<'_>) {
        for permit in rulings.permits(&self.list, |rule| rule.refund_abandoned) {
            detach(async move { drop(permit.refund().await) });
        }
    }

    /// Returns the actual cost of each of a request's calls. `None` if all charges stay, as they do without a response.
    pub(crate) fn actual_costs(
        &self,
        rulings: &Decided<'_>,
        head: Option<&ResponseHead<'_>>,
    ) -> Option<Vec<ActualCost>> {
        let costs: Vec<_> = rulings
            .parts(&self.list)
            .map(|(rule, part)| match (&rule.settle, part.outcome(), head) {
                (Some(settle), PartOutcome::Charged(_), Some(head)) => match settle(head) {
                    ActualCost::Units(cost) if cost == part.cost() => ActualCost::AsCharged,
                    cost => cost,
                },
                _ => ActualCost::AsCharged,
            })
            .collect();
        let changes = costs.iter().any(|cost| *cost != ActualCost::AsCharged);
        changes.then_some(costs)
    }

    /// Settles a request's charges. If the store fails, the charge stays.
    pub(crate) async fn settle(rulings: &mut Decided<'static>, costs: Vec<ActualCost>) {
        for (call, cost) in costs.into_iter().enumerate() {
            let Some(part) = rulings.calls.part_mut(call) else {
                continue;
            };
            let _ = match cost {
                ActualCost::AsCharged => continue,
                ActualCost::Nothing => part.settle(0).await,
                ActualCost::Units(cost) => part.settle(cost).await,
                ActualCost::Reset => part.reset().await,
            };
        }
    }
}
