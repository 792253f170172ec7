//! A layer's rules and their application.

use std::fmt;
use std::future::pending;
use std::pin::pin;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{Either, MaybeDone, maybe_done, select};
use limiter_core::request::{Background, Part, PartOutcome};
use limiter_core::{Error, ErrorKind};

use crate::charges::Charges;
use crate::head::{RequestHead, ResponseHead};
use crate::headers::Policies;
use crate::observation::Observation;
use crate::refusal::{Cause, PAUSE, Refusal, StoreFailure};
use crate::rule::{ActualCost, Rule};
use crate::rulings::{Applied, Rulings};

/// Rules, the choice when their store fails, and the observer.
pub(crate) struct Rules {
    list: Box<[Rule]>,
    policies: Policies,
    failure: StoreFailure,
    pub(crate) timeout: Duration,
    pub(crate) background: Option<Background>,
    pub(crate) observer: Option<Observer>,
    /// Whether something may settle or refund a charge after all rules have admitted.
    is_refundable: bool,
}

type Observer = Box<dyn Fn(&Observation<'_>) + Send + Sync>;

impl Rules {
    pub(crate) fn new(rules: impl IntoIterator<Item = Rule>, failure: StoreFailure) -> Self {
        let list: Box<[Rule]> = rules.into_iter().collect();
        let timeout = Duration::from_millis(700);
        let (policies, background) = (Policies::new(&list), default_background());
        let is_refundable = list
            .iter()
            .any(|rule| rule.settles() || rule.handler_settles);
        Self {
            list,
            policies,
            failure,
            timeout,
            background,
            observer: None,
            is_refundable,
        }
    }

    pub(crate) fn list(&self) -> &[Rule] {
        &self.list
    }

    pub(crate) fn policies(&self) -> &Policies {
        &self.policies
    }

    /// Returns a future that completes when the timeout has passed since the first poll, and then at each poll; without a timer
    /// at once.
    fn late(&self) -> MaybeDone<impl Future<Output = ()>> {
        maybe_done(async {
            if has_timer() {
                sleep(self.timeout).await;
            }
        })
    }

    fn late_error(&self) -> Error {
        if !has_timer() {
            let text = "a store that does not answer at once needs a timer for its timeout: enable the feature `tokio` and run \
                        in a tokio runtime";
            return Error::new(ErrorKind::Configuration, text);
        }
        Error::new(
            ErrorKind::Timeout,
            format!("the store did not respond within {:?}", self.timeout),
        )
    }

    /// Runs a future until it is late.
    async fn limit<T>(
        &self,
        future: impl Future<Output = T>,
        late: impl Future<Output = ()>,
    ) -> Result<T, Error> {
        match select(pin!(future), pin!(late)).await {
            Either::Left((output, _)) => Ok(output),
            Either::Right(_) => Err(self.late_error()),
        }
    }

    /// Whether the layer fails open after this store error.
    fn tolerates(&self, error: &Error) -> bool {
        error.kind() != ErrorKind::CostExceedsLimit && matches!(self.failure, StoreFailure::Open)
    }

    /// Finds a request's keys and charges.
    pub(crate) fn rulings(&self, head: &RequestHead<'_>) -> Rulings<'_> {
        Rulings::new(&self.list, head, self.is_refundable, self.timeout)
    }

    /// Decides if no store has to wait. Returns `false` if something is left to [`decide`](Self::decide).
    ///
    /// Writes the rulings in place: they take some hundred bytes, and moving them is measurable.
    pub(crate) fn decide_at_once(&self, rulings: &mut Rulings<'_>) -> bool {
        let decided = self.try_once(rulings, pending()).now_or_never().is_some();
        if !decided {
            rulings.together.refund_in(self.background.clone());
        }
        decided
    }

    /// Makes the calls, and refunds all charges if a rule refuses. Goes on where it was dropped.
    async fn try_once(&self, rulings: &mut Rulings<'_>, late: impl Future<Output = Error>) {
        if rulings.is_refused() {
            return;
        }
        if !rulings
            .together
            .decide_with(|error| self.tolerates(error), late)
            .await
        {
            // Refunds that were too late have the same time once more. The background makes those that are left.
            let _ = self.limit(rulings.together.refund(), self.late()).await;
        }
    }

    /// Decides and reports, and refunds all charges if a rule refuses. After a denial, waits and tries again if the wait is within
    /// `left`.
    pub(crate) async fn decide(
        &self,
        mut rulings: Rulings<'static>,
        left: &mut Duration,
    ) -> Rulings<'static> {
        let mut late = pin!(self.late());
        loop {
            let error = late.as_mut().map(|()| self.late_error());
            self.try_once(&mut rulings, error).await;
            self.report(&rulings);
            let Some(wait) = rulings.together.retry_after() else {
                return rulings;
            };
            if !self.sleep(wait, left).await {
                return rulings;
            }
            rulings.together.forget();
            late.set(self.late());
        }
    }

    /// Sleeps if the wait is within `left` and somebody can sleep: a store's clock comes first.
    async fn sleep(&self, wait: Duration, left: &mut Duration) -> bool {
        let clock = self
            .list
            .iter()
            .find_map(|rule| rule.limiter.store().clock());
        let Some(rest) = left.checked_sub(wait) else {
            return false;
        };
        *left = rest;
        match clock {
            Some(clock) => clock.sleep(wait).await,
            None if has_timer() => sleep(wait).await,
            None => return false,
        }
        true
    }

    pub(crate) fn report(&self, rulings: &Rulings<'_>) {
        if let Some(observer) = &self.observer {
            let seen = self.list.iter().zip(rulings.iter());
            let seen =
                seen.filter_map(|(rule, (applied, part))| Observation::new(rule, applied, part));
            seen.for_each(|observation| observer(&observation));
        }
    }

    /// Returns why a request is refused.
    pub(crate) fn refusal(&self, rulings: &mut Rulings<'_>) -> Refusal {
        let rejected = |(rule, (applied, _)): (&Rule, (&Applied, _))| match applied {
            Applied::Rejected(status) if !rule.shadow => Some(*status),
            _ => None,
        };
        if let Some(status) = self.list.iter().zip(rulings.iter()).find_map(rejected) {
            return Refusal::new(Cause::MissingKey(status), None, Vec::new());
        }
        let violated = self.policies.violated(&self.list, rulings);
        let retry_after = rulings.together.retry_after();
        let errors: Vec<Error> = std::iter::from_fn(|| rulings.together.take_error()).collect();
        let pause = match self.failure {
            StoreFailure::Closed { retry_after } => retry_after.max(PAUSE),
            StoreFailure::Open => PAUSE,
        };
        Refusal::of_calls(violated, retry_after, errors, pause)
    }

    /// Returns the charges that the handler settles.
    pub(crate) fn charges(&self, rulings: &Rulings<'_>) -> Option<Charges> {
        let any = self.list.iter().any(|rule| rule.handler_settles);
        let settled = |(rule, part): (&Rule, &_)| {
            if rule.handler_settles {
                Part::permit(part)
            } else {
                None
            }
        };
        any.then(|| {
            Charges::new(
                rulings.parts(&self.list).filter_map(settled),
                self.background.clone(),
            )
        })
    }

    /// Whether a response or its absence may change a charge.
    pub(crate) fn settles(&self) -> bool {
        self.list.iter().any(Rule::settles)
    }

    /// Keeps all charges when the rulings are dropped, except those of rules that refund abandoned requests.
    pub(crate) fn keep_unless_abandoned(&self, rulings: &mut Rulings<'_>) {
        rulings.together.refund_in(self.background.clone());
        rulings
            .parts_mut(&self.list)
            .for_each(|(rule, part)| part.set_keep_charge(!rule.refund_abandoned));
    }

    /// Returns the actual cost of each of a request's calls; `None` if all charges stay, as they do without a response.
    pub(crate) fn actual_costs(
        &self,
        rulings: &mut Rulings<'_>,
        head: Option<&ResponseHead<'_>>,
    ) -> Option<Vec<ActualCost>> {
        let actual = |(rule, part): (&Rule, &mut Part<'_, _>)| {
            let cost = match (&rule.settle, part.outcome(), head) {
                (Some(settle), Some(PartOutcome::Charged(_)), Some(head)) => settle(head),
                _ => ActualCost::AsCharged,
            };
            // A refund is made even if the client disconnects while it is under way.
            part.set_keep_charge(cost != ActualCost::Nothing);
            if cost == ActualCost::Units(part.cost()) {
                ActualCost::AsCharged
            } else {
                cost
            }
        };
        let costs: Vec<_> = rulings.parts_mut(&self.list).map(actual).collect();
        costs
            .iter()
            .any(|cost| *cost != ActualCost::AsCharged)
            .then_some(costs)
    }

    /// Settles a request's charges. If the store fails, the charge stays.
    pub(crate) async fn settle(
        &self,
        mut rulings: Rulings<'static>,
        costs: Vec<ActualCost>,
    ) -> Rulings<'static> {
        let mut late = pin!(self.late());
        for (part, cost) in rulings.together.parts_mut().iter_mut().zip(costs) {
            let _ = match cost {
                ActualCost::AsCharged => continue,
                ActualCost::Nothing => self.limit(part.settle(0), late.as_mut()).await,
                ActualCost::Units(cost) => self.limit(part.settle(cost), late.as_mut()).await,
                ActualCost::Reset => self.limit(part.reset(), late.as_mut()).await,
            };
        }
        rulings
    }
}

/// Returns whether tokio's timers are there.
fn has_timer() -> bool {
    #[cfg(feature = "tokio")]
    return tokio::runtime::Handle::try_current().is_ok();
    #[cfg(not(feature = "tokio"))]
    false
}

async fn sleep(duration: Duration) {
    #[cfg(feature = "tokio")]
    tokio::time::sleep(duration).await;
    #[cfg(not(feature = "tokio"))]
    let _ = duration;
}

fn default_background() -> Option<Background> {
    #[cfg(feature = "tokio")]
    return Some(Background::new(|refund| {
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(tokio::time::timeout(BACKGROUND_TIMEOUT, refund));
        }
    }));
    #[cfg(not(feature = "tokio"))]
    None
}

/// The timeout of a refund without a waiting caller. If a store never responds, they would pile up.
#[cfg(feature = "tokio")]
const BACKGROUND_TIMEOUT: Duration = Duration::from_secs(10);

impl fmt::Debug for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Rules");
        out.field("list", &self.list)
            .field("failure", &self.failure)
            .field("timeout", &self.timeout);
        out.finish_non_exhaustive()
    }
}
