//! A decision over several limiters that is being made.

use std::time::Duration;

use smallvec::SmallVec;

use super::decision::{JointDecision, PartDecision, refund};
use super::part::{Part, PartOutcome};
use super::{AllOf, Options};
use crate::decision::{Decision, decide};
use crate::error::{Error, ErrorKind};
use crate::limiter::SharedStore;
use crate::request::call::Call;
use crate::request::wait::within;
use crate::store::WindowStore;
use crate::store::facts::Facts;
use crate::store::joint::JointOp;

/// The calls of an [`AllOf`] as operations, some of them made. Dropping it may leave charges.
#[derive(Debug)]
pub struct Undecided<'a, S: WindowStore = SharedStore> {
    pub(super) parts: SmallVec<[Part<'a, S>; 2]>,
    /// What came of each part that was made.
    pub(super) outcomes: SmallVec<[Option<PartOutcome>; 2]>,
    /// Whether a part that was made denies.
    has_denial: bool,
    /// The place of each call's part.
    pub(super) places: SmallVec<[usize; 4]>,
    pub(super) options: Options,
}

impl<'a, S: WindowStore> From<AllOf<'a, S>> for Undecided<'a, S> {
    fn from(all: AllOf<'a, S>) -> Self {
        let (parts, places) = Part::merged(all.parts);
        Self {
            outcomes: parts.iter().map(|_| None).collect(),
            has_denial: false,
            parts,
            places,
            options: all.options,
        }
    }
}

impl<'a, S: WindowStore> Undecided<'a, S> {
    /// Makes the calls, and leaves errors in the [parts](JointDecision::parts). Awaiting an [`AllOf`] returns the first.
    pub async fn decide(mut self) -> JointDecision<'a, S> {
        let order = self.order();
        let mut left = &order[..];
        while !left.is_empty() {
            let (group, later) = left.split_at(self.together(left));
            if let Some(made) = self.ask_together(group, later).await {
                for (place, decision) in group.iter().zip(made) {
                    self.note(*place, decision);
                }
                left = later;
                continue;
            }
            for place in group {
                left = &left[1..];
                let call = self.call(*place, 1, left);
                let decision = within(self.share(1), call.decide()).await;
                self.note(*place, decision);
            }
        }
        let mut decision = self.finish();
        if decision.is_denied() {
            refund(&mut decision).await;
        }
        decision
    }

    /// Decides if no store has to wait. Otherwise the calls are the error, some of them made, to be [decided](Self::decide).
    #[allow(clippy::result_large_err, reason = "the caller continues with either")]
    pub fn try_decide(mut self) -> Result<JointDecision<'a, S>, Self> {
        let order = self.order();
        let mut left = &order[..];
        while let [place, later @ ..] = left {
            if self.together(left) > 1 {
                return Err(self);
            }
            let call = self.call(*place, 1, later);
            let Some(decision) = call.limiter.store.try_decide(call.op()) else {
                return Err(self);
            };
            self.note(*place, decision);
            left = later;
        }
        let mut made = self.parts.iter().zip(&self.outcomes);
        let is_undone = |(part, outcome): (&Part<'_, S>, &Option<_>)| {
            outcome
                .as_ref()
                .is_some_and(|outcome| part.is_undone(outcome))
        };
        match self.has_denial && made.any(is_undone) {
            true => Err(self),
            false => Ok(self.finish()),
        }
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

    fn note(&mut self, place: usize, decision: Result<Decision, Error>) {
        let outcome = self.parts[place].outcome(decision);
        self.has_denial |= self.parts[place].denies(&outcome);
        self.outcomes[place] = Some(outcome);
    }

    /// Returns how long this many of the calls may take.
    fn share(&self, calls: usize) -> Option<Duration> {
        let all = self.parts.len().max(1) as u32;
        Some(self.options.timeout? / all * calls as u32)
    }

    /// Notes the errors of invalid calls. Returns the places of the others that have not been made, in the order in which they are made.
    fn order(&mut self) -> SmallVec<[usize; 4]> {
        let mut order = SmallVec::<[usize; 4]>::new();
        for place in 0..self.parts.len() {
            match self.parts[place].check() {
                _ if self.outcomes[place].is_some() => {}
                Ok(()) => order.push(place),
                Err(error) => self.note(place, Err(error)),
            }
        }
        order.sort_by_key(|place| self.parts[*place].turn());
        order
    }

    /// Returns how many of the first calls a store may make as one.
    fn together(&self, left: &[usize]) -> usize {
        let goes_on = |pair: &&[usize]| self.parts[pair[0]].goes_with(&self.parts[pair[1]]);
        1 + left.windows(2).take_while(goes_on).count()
    }

    /// Returns a call that is made together with others, `group` in all, and before the `later` ones. Its charge needs a receipt if it may
    /// be settled, or refunded because of a later call.
    fn call(&self, place: usize, group: usize, later: &[usize]) -> Call<'_, S, &[u8]> {
        // Advisory calls come last, and never deny.
        let may_deny = later
            .first()
            .is_some_and(|place| !self.parts[*place].is_advisory);
        let wants_receipt = self.options.is_refundable || may_deny;
        let mut call = self.parts[place].call(self.has_denial, wants_receipt);
        call.hints.timeout = self.share(group).map(|share| share / 10 * 9);
        call
    }

    /// Makes several calls as one. Returns `None` if they have to be made one by one.
    async fn ask_together(
        &self,
        group: &[usize],
        later: &[usize],
    ) -> Option<Vec<Result<Decision, Error>>> {
        if group.len() < 2 {
            return None;
        }
        let all = group.iter().map(|place| &self.parts[*place]);
        let calls = group
            .iter()
            .map(|place| self.call(*place, group.len(), later));
        let calls: Vec<_> = calls.collect();
        let mut ops = Vec::with_capacity(calls.len());
        for (part, call) in all.clone().zip(&calls) {
            ops.push(JointOp {
                // `order` has noted what fails this.
                op: call.op().checked().ok()?,
                is_advisory: part.is_advisory || self.has_denial,
                keeps_charge: part.keeps_charge,
            });
        }
        let decide = |(joint, facts): (&JointOp<'_>, Result<Facts, Error>)| {
            let facts = facts?;
            let op = joint.described_by(&facts);
            facts.verify(&op)?;
            Ok(decide(&op, facts))
        };
        let store = all.clone().next()?.store();
        match within(self.share(group.len()), store.apply_all(&ops)).await {
            Ok(Some(facts)) if facts.len() == ops.len() => {
                Some(ops.iter().zip(facts).map(decide).collect())
            }
            Err(error) if error.is_retryable() => {
                Some(all.map(|_| Err(error.without_log())).collect())
            }
            // An error about one of the logs belongs to its call alone.
            Ok(_) | Err(_) => None,
        }
    }
}

/// Returns the same calls, to be made again after a denial. Those whose charge is kept are not made again.
pub fn again<'a, S: WindowStore>(decision: JointDecision<'a, S>) -> Undecided<'a, S> {
    let kept = |outcome| matches!(outcome, PartOutcome::Charged(_)).then_some(outcome);
    let made = decision.parts.into_iter();
    let (parts, outcomes): (SmallVec<_>, SmallVec<_>) =
        made.map(|made| (made.part, kept(made.outcome))).unzip();
    Undecided {
        parts,
        outcomes,
        // A charge denies nothing.
        has_denial: false,
        places: decision.places,
        options: decision.options,
    }
}
