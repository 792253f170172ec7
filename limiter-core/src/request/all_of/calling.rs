//! Calls that a store is answering: one, or several as one.

use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use smallvec::{SmallVec, smallvec};

use super::background::{self, Background};
use super::life::{Ask, refund};
use super::part::Part;
use crate::clock::BoxFuture;
use crate::decision::{Decision, decide};
use crate::error::{Error, ErrorKind};
use crate::facts::Facts;
use crate::op::JointOp;
use crate::request::call::Call;
use crate::request::view::Target;
use crate::store::WindowStore;

/// The decisions on several calls. `None` if the store cannot make them as one.
pub(super) type Answer = Result<Option<SmallVec<[Result<Decision, Error>; 2]>>, Error>;

/// The places of the parts, and what each asks.
pub(super) type Asks = SmallVec<[(usize, Ask); 4]>;

/// Calls that the store is answering. The mutex makes it `Sync` and is never locked.
pub(super) struct Calling {
    pub(super) asks: Asks,
    /// Whether it has been polled.
    pub(super) has_waited: bool,
    answer: Mutex<BoxFuture<'static, Answer>>,
}

impl Calling {
    /// Makes a call after the store could not decide immediately. `keep` says whether its charge may have to be refunded or settled.
    pub(super) fn one<S: WindowStore + Clone>(
        part: &Part<'_, S>,
        (place, ask, keep): (usize, Ask, bool),
        timeout: Option<Duration>,
    ) -> Self {
        let target = part.target.to_owned();
        let answer = async move {
            let decision = Call { timeout, ..ask.call(&target, keep) }.apply().await?;
            Ok(Some(smallvec![Ok(decision)]))
        };
        Self { asks: smallvec![(place, ask)], has_waited: false, answer: Mutex::new(Box::pin(answer)) }
    }

    /// Makes several calls as one. If one denied already, `looks`: the others deny nothing.
    pub(super) fn several<S: WindowStore + Clone>(
        parts: &[Part<'_, S>],
        calls: SmallVec<[(usize, Ask, bool); 4]>,
        looks: bool,
        timeout: Option<Duration>,
    ) -> Self {
        let asks = calls.iter().map(|&(place, ask, _)| (place, ask)).collect();
        let owned = |(place, ask, keep): (usize, Ask, bool)| {
            let Part { target, is_advisory, keeps_charge, .. } = &parts[place];
            Joint {
                target: target.to_owned(),
                ask,
                keep,
                is_advisory: looks || *is_advisory,
                keeps_charge: *keeps_charge,
            }
        };
        let joint: Vec<_> = calls.into_iter().map(owned).collect();
        Self { asks, has_waited: false, answer: Mutex::new(Box::pin(apply_all(joint, timeout))) }
    }

    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Answer> {
        self.answer.get_mut().unwrap_or_else(PoisonError::into_inner).as_mut().poll(context)
    }

    /// Refunds in the background what turns out to be charged when the store has answered.
    pub(super) fn abandon<S: WindowStore + Clone>(self, parts: &[Part<'_, S>], background: Option<&Background>) {
        let target = |&(place, ask): &(usize, Ask)| {
            let part = &parts[place];
            (!part.keeps_charge).then(|| (ask, part.target.to_owned()))
        };
        let targets: Vec<_> = self.asks.iter().map(target).collect();
        if targets.iter().all(Option::is_none) {
            return;
        }
        let answer = self.answer.into_inner().unwrap_or_else(PoisonError::into_inner);
        let refund = async move {
            let Ok(Some(decisions)) = answer.await else { return };
            for (target, decision) in targets.into_iter().zip(decisions) {
                if let (Some((ask, target)), Ok(decision)) = (target, decision) {
                    refund(ask, &target, &decision).await;
                }
            }
        };
        background::run(background, Box::pin(refund));
    }
}

/// One of several calls.
struct Joint<S: 'static> {
    target: Target<'static, S>,
    ask: Ask,
    keep: bool,
    is_advisory: bool,
    keeps_charge: bool,
}

async fn apply_all<S: WindowStore + Clone>(joint: Vec<Joint<S>>, timeout: Option<Duration>) -> Answer {
    let calls: Vec<_> = joint.iter().map(|one| Call { timeout, ..one.ask.call(&one.target, one.keep) }).collect();
    let mut ops = Vec::with_capacity(joint.len());
    for (one, call) in joint.iter().zip(&calls) {
        let (is_advisory, keeps_charge) = (one.is_advisory, one.keeps_charge);
        ops.push(JointOp { op: call.op().checked()?, is_advisory, keeps_charge });
    }
    let Some(first) = joint.first() else { return Ok(None) };
    let Some(facts) = first.target.limiter.store.apply_all(&ops).await? else { return Ok(None) };
    if facts.len() != ops.len() {
        let text = format!("the store returned facts for {} of {} operations", facts.len(), ops.len());
        return Err(Error::new(ErrorKind::Inconsistent, text));
    }
    Ok(Some(ops.iter().zip(facts).map(|(joint, facts)| decision(joint, facts?)).collect()))
}

/// Decides on one of several operations.
fn decision(joint: &JointOp<'_>, facts: Facts) -> Result<Decision, Error> {
    let op = joint.answered_by(&facts);
    facts.verify(&op)?;
    Ok(decide(&op, facts))
}
