//! The rules of a layer and how they are applied: what the layers for servers and for clients share.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use limiter_core::Timer;
#[cfg(feature = "client")]
use limiter_core::Timestamp;

use crate::charges::{Charged, Charges};
use crate::decide::{self, Answer, Rulings};
use crate::failure::StoreFailure;
use crate::fields;
use crate::head::{RequestHead, ResponseHead};
use crate::observation::Observation;
use crate::refusal::{Cause, Refusal};
use crate::rule::{ActualCost, Rule};
use crate::time_limit::TimeLimit;

/// Rules, what happens when their store fails, and who is told.
pub(crate) struct Rules {
    rules: Box<[Rule]>,
    failure: StoreFailure,
    pub(crate) timeout: Duration,
    pub(crate) timer: Option<Arc<dyn Timer>>,
    pub(crate) observer: Option<Observer>,
}

type Observer = Box<dyn Fn(&Observation<'_>) + Send + Sync>;

impl Rules {
    pub(crate) fn new(rules: impl IntoIterator<Item = Rule>, failure: StoreFailure) -> Self {
        let mut rules: Vec<Rule> = rules.into_iter().collect();
        // Shadow rules come last, so that they charge nothing that another rule denies.
        rules.sort_by_key(|rule| rule.shadow);
        Self { rules: rules.into(), failure, timeout: Duration::from_secs(1), timer: None, observer: None }
    }

    pub(crate) fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Decides without a future. Returns `false` if something is left to [`finish`](Self::finish).
    ///
    /// The rulings stay where the caller has them: they are some hundred bytes, and moving them would show.
    pub(crate) fn try_decide(&self, head: &RequestHead<'_>, rulings: &mut Rulings) -> bool {
        decide::prepare(&self.rules, head, rulings);
        decide::try_decide(&self.rules, rulings, &self.failure)
    }

    pub(crate) async fn finish(&self, rulings: Rulings) -> Rulings {
        decide::finish(&self.rules, rulings, &self.failure, self.time_limit()).await
    }

    fn time_limit(&self) -> TimeLimit<'_> {
        TimeLimit { timeout: self.timeout, timer: self.timer() }
    }

    pub(crate) fn timer(&self) -> Option<&dyn Timer> {
        self.timer.as_deref().or_else(default_timer)
    }

    pub(crate) fn report(&self, rulings: &Rulings) {
        if let Some(observer) = &self.observer {
            let observations =
                self.rules.iter().zip(rulings).filter_map(|(rule, ruling)| Observation::new(rule, ruling));
            observations.for_each(|observation| observer(&observation));
        }
    }

    pub(crate) fn refuses(&self, rulings: &Rulings) -> bool {
        decide::refused(&self.rules, rulings)
    }

    /// Returns why a request is refused.
    pub(crate) fn refusal(&self, rulings: Rulings) -> Refusal {
        let violated = fields::violated(&self.rules, &rulings);
        let (mut longest_wait, mut never_fits) = (None, false);
        for (_, ruling) in self.rules.iter().zip(rulings).filter(|(rule, _)| !rule.shadow) {
            match ruling.answer {
                Answer::Rejected(status) => return Refusal::new(Cause::MissingKey(status), None, Vec::new()),
                Answer::Failed(error, Some(wait)) => {
                    return Refusal::new(Cause::StoreFailed(error), Some(wait), Vec::new());
                }
                Answer::CostExceedsLimit => never_fits = true,
                Answer::Denied(decision) => longest_wait = longest_wait.max(decision.retry_after()),
                _ => {}
            }
        }
        if never_fits {
            Refusal::new(Cause::CostExceedsLimit, None, violated)
        } else {
            Refusal::new(Cause::Denied, longest_wait, violated)
        }
    }

    /// Returns the charges that the handler settles.
    pub(crate) fn charges(&self, rulings: &Rulings) -> Option<Charges> {
        let charged = |(rule, ruling): (&Rule, &decide::Ruling)| match &ruling.answer {
            Answer::Admitted(decision) if rule.handler_settles => Some(Charged {
                limiter: rule.limiter.clone(),
                key: ruling.key.clone(),
                receipt: decision.receipt()?,
                policy: ruling.charge.policy.clone(),
            }),
            _ => None,
        };
        let any = self.rules.iter().any(|rule| rule.handler_settles);
        any.then(|| Charges::new(self.rules.iter().zip(rulings).filter_map(charged)))
    }

    /// Whether a response or its absence may change a charge.
    pub(crate) fn settles(&self) -> bool {
        self.rules.iter().any(|rule| rule.settle.is_some() || rule.refund_abandoned)
    }

    /// Returns what each admitted rule of a request actually cost; `None` where the charge stays. `None` for all of them too.
    pub(crate) fn actual_costs(&self, rulings: &Rulings, head: &ResponseHead<'_>) -> Option<Vec<Option<u64>>> {
        let actual = |(rule, ruling): (&Rule, &decide::Ruling)| {
            let (Some(settle), Answer::Admitted(_)) = (&rule.settle, &ruling.answer) else { return None };
            match settle(head) {
                ActualCost::AsCharged => None,
                ActualCost::Nothing => Some(0),
                ActualCost::Units(cost) => (cost != ruling.charge.cost).then_some(cost),
            }
        };
        let costs: Vec<_> = self.rules.iter().zip(rulings).map(actual).collect();
        costs.iter().any(Option::is_some).then_some(costs)
    }

    /// Settles the charges of a request. Where the store fails, the charge stays.
    pub(crate) async fn settle(&self, mut rulings: Rulings, costs: Vec<Option<u64>>) -> Rulings {
        let mut limit = self.time_limit().start();
        for ((rule, ruling), cost) in self.rules.iter().zip(rulings.iter_mut()).zip(costs) {
            if let Some(cost) = cost {
                decide::settle(rule, ruling, cost, &mut limit).await;
            }
        }
        rulings
    }

    /// Asks the store for the time, by the first rule that applied.
    #[cfg(feature = "client")]
    pub(crate) fn now<'a>(&'a self, rulings: &Rulings) -> impl Future<Output = Option<Timestamp>> + Send + use<'a> {
        let mut rulings = self.rules.iter().zip(rulings);
        let applied = rulings.find(|(_, ruling)| ruling.status().is_some());
        let applied = applied.map(|(rule, ruling)| (rule, ruling.key.clone()));
        async move {
            let (rule, key) = applied?;
            let status = self.time_limit().start().run(rule.limiter.status(&key)).await;
            status.ok().map(|status| status.at())
        }
    }

    /// Returns the costs with which a request is settled whose client went away.
    #[cfg(feature = "tokio")]
    pub(crate) fn abandoned_costs(&self) -> Option<Vec<Option<u64>>> {
        let any = self.rules.iter().any(|rule| rule.refund_abandoned);
        any.then(|| self.rules.iter().map(|rule| rule.refund_abandoned.then_some(0)).collect())
    }
}

fn default_timer<'a>() -> Option<&'a dyn Timer> {
    #[cfg(feature = "tokio")]
    if tokio::runtime::Handle::try_current().is_ok() {
        return Some(&limiter_core::TokioTimer);
    }
    None
}

impl fmt::Debug for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Rules");
        out.field("rules", &self.rules).field("failure", &self.failure).field("timeout", &self.timeout);
        out.finish_non_exhaustive()
    }
}
