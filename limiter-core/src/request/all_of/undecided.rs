//! A decision over several limiters that is being made.

use std::time::Duration;

use futures_util::FutureExt;
use smallvec::SmallVec;

use super::decision::{JointDecision, PartDecision};
use super::merge::merged;
use super::part::{Part, PartOutcome};
use super::{AllOf, Options};
use crate::decision::{Decision, decide};
use crate::error::{Error, ErrorKind};
use crate::limiter::SharedStore;
use crate::request::wait::within;
use crate::store::WindowStore;
use crate::store::facts::Facts;
use crate::store::joint::JointOp;
use crate::store::op::{Mode, Op};

/// The operations of an [`AllOf`], some of them made, for middleware: it leaves errors in the parts, and moves into a task. Dropping
/// it may leave charges.
#[derive(Debug)]
pub struct Undecided<'a, S: WindowStore = SharedStore> {
    pub(super) parts: SmallVec<[Part<'a, S>; 2]>,
    /// What came of each part that was made.
    pub(super) outcomes: SmallVec<[Option<PartOutcome>; 2]>,
    /// Whether a part that was made denies.
    pub(super) has_denial: bool,
    /// The place of each call's part.
    pub(super) places: SmallVec<[usize; 4]>,
    pub(super) options: Options,
}

impl<'a, S: WindowStore> From<AllOf<'a, S>> for Undecided<'a, S> {
    fn from(all: AllOf<'a, S>) -> Self {
        let (parts, places) = merged(all.parts);
        Self {
            outcomes: parts.iter().map(|_| None).collect(),
            has_denial: false,
            parts,
            places,
            options: all.options,
        }
    }
}

impl<'a, S: WindowStore> JointDecision<'a, S> {
    /// Returns the same calls, to be made again after a denial. Those whose charge is kept are not made again.
    pub fn again(self) -> Undecided<'a, S> {
        let kept = |outcome| matches!(outcome, PartOutcome::Charged(_)).then_some(outcome);
        let made = self.parts.into_iter();
        let (parts, outcomes) = made.map(|made| (made.part, kept(made.outcome))).unzip();
        Undecided {
            parts,
            outcomes,
            // A charge denies nothing.
            has_denial: false,
            places: self.places,
            options: self.options,
        }
    }
}

impl<'a, S: WindowStore> Undecided<'a, S> {
    /// Makes the calls, and leaves errors in the [parts](JointDecision::parts). Awaiting an [`AllOf`] returns the first.
    pub async fn decide(mut self) -> JointDecision<'a, S> {
        self.make(true).await;
        let mut decision = self.finish();
        if decision.is_denied() {
            decision.refund().await;
        }
        decision
    }

    /// Decides if no store has to wait. Otherwise the calls are the error, some of them made, to be [decided](Self::decide).
    #[allow(clippy::result_large_err, reason = "the caller continues with either")]
    pub fn try_decide(mut self) -> Result<JointDecision<'a, S>, Self> {
        let is_made = self.make(false).now_or_never().unwrap_or(false);
        let mut made = self.parts.iter().zip(&self.outcomes);
        let is_undone = |(part, outcome): (&Part<'_, S>, &Option<_>)| {
            outcome
                .as_ref()
                .is_some_and(|outcome| part.is_undone(outcome))
        };
        if !is_made || self.has_denial && made.any(is_undone) {
            return Err(self);
        }
        Ok(self.finish())
    }

    /// Returns the same calls without their borrows, so that they can move into a task.
    pub fn into_owned(self) -> Undecided<'static, S>
    where
        S: Clone,
    {
        Undecided {
            parts: self.parts.into_iter().map(Part::into_owned).collect(),
            outcomes: self.outcomes,
            has_denial: self.has_denial,
            places: self.places,
            options: self.options,
        }
    }

    /// Makes the calls that have not been made. Returns `false` if a store would have to wait and may not.
    async fn make(&mut self, may_wait: bool) -> bool {
        let order = self.order();
        let share = self
            .options
            .timeout
            .map(|all| all / order.len().max(1) as u32);
        let mut left = &order[..];
        while !left.is_empty() {
            let goes_on = |pair: &&[usize]| self.parts[pair[0]].goes_with(&self.parts[pair[1]]);
            let together = 1 + left.windows(2).take_while(goes_on).count();
            let (group, later) = left.split_at(together);
            let mut made = match together {
                1 => Vec::new(),
                _ if !may_wait => return false,
                _ => self
                    .ask_together(group, later, share)
                    .await
                    .unwrap_or_default(),
            }
            .into_iter();
            for &place in group {
                left = &left[1..];
                let decision = match made.next() {
                    Some(decision) => decision,
                    None => {
                        let limiter = &*self.parts[place].target.limiter;
                        let op = self.op(place, share, left);
                        match limiter.store.try_decide(op) {
                            Some(decision) => decision,
                            None if !may_wait => return false,
                            None => within(share, limiter.apply(op)).await,
                        }
                    }
                };
                self.note(place, decision);
            }
        }
        true
    }

    /// Notes the errors of invalid calls. Returns the places of the others that have not been made, in the order in which they are made.
    fn order(&mut self) -> SmallVec<[usize; 4]> {
        let mut order = SmallVec::<[usize; 4]>::new();
        for place in 0..self.parts.len() {
            match self.parts[place].op(false).checked() {
                _ if self.outcomes[place].is_some() => {}
                Ok(_) => order.push(place),
                Err(error) => self.note(place, Err(error)),
            }
        }
        order.sort_by_key(|place| self.parts[*place].turn());
        order
    }

    fn note(&mut self, place: usize, decision: Result<Decision, Error>) {
        let outcome = self.parts[place].outcome(decision);
        self.has_denial |= self.parts[place].denies(&outcome);
        self.outcomes[place] = Some(outcome);
    }

    /// Returns an operation that may take this long and is made before the `later` ones. Its charge needs a receipt if it may be settled,
    /// or refunded because of a later one.
    fn op(&self, place: usize, time: Option<Duration>, later: &[usize]) -> Op<'_> {
        // Advisory calls come last, and never deny.
        let next = later.first().map(|next| &self.parts[*next]);
        let may_deny = next.is_some_and(|next| !next.is_advisory);
        let mut op = self.parts[place].op(self.has_denial);
        op.hints.wants_receipt = op.mode != Mode::Peek && (self.options.is_refundable || may_deny);
        op.hints.timeout = time.map(|time| time / 10 * 9);
        op
    }

    /// Makes several calls as one. Returns `None` if they have to be made one by one.
    async fn ask_together(
        &self,
        group: &[usize],
        later: &[usize],
        share: Option<Duration>,
    ) -> Option<Vec<Result<Decision, Error>>> {
        let time = share.map(|share| share * group.len() as u32);
        let joint = |place: &usize| {
            let part = &self.parts[*place];
            Some(JointOp {
                // `order` has noted what fails this.
                op: self.op(*place, time, later).checked().ok()?,
                is_advisory: part.is_advisory || self.has_denial,
                keeps_charge: part.keeps_charge,
            })
        };
        let ops = group.iter().map(joint).collect::<Option<Vec<_>>>()?;
        let decide = |(joint, facts): (&JointOp<'_>, Result<Facts, Error>)| {
            let facts = facts?;
            let op = joint.described_by(&facts);
            facts.verify(&op)?;
            Ok(decide(&op, facts))
        };
        let store = self.parts[*group.first()?].store();
        match within(time, store.apply_all(&ops)).await {
            Ok(Some(facts)) if facts.len() == ops.len() => {
                Some(ops.iter().zip(facts).map(decide).collect())
            }
            Err(error) if error.is_retryable() => {
                Some(ops.iter().map(|_| Err(error.without_log())).collect())
            }
            // An error about one of the logs belongs to its call alone.
            Ok(_) | Err(_) => None,
        }
    }

    fn finish(self) -> JointDecision<'a, S> {
        let not_made = || {
            let error = Error::new(ErrorKind::Inconsistent, "the call was not made");
            PartOutcome::Failed(error)
        };
        let parts = self.parts.into_iter().zip(self.outcomes);
        let parts = parts.map(|(part, outcome)| PartDecision {
            part,
            outcome: outcome.unwrap_or_else(not_made),
        });
        JointDecision {
            parts: parts.collect(),
            places: self.places,
            options: self.options,
        }
    }
}
