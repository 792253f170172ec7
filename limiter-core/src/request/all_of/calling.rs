//! Calls that are pending at a store: one, or several as one.

use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use smallvec::SmallVec;

use super::background::{self, Background};
use super::part::Part;
use crate::clock::BoxFuture;
use crate::decision::{Decision, decide};
use crate::error::{Error, ErrorKind};
use crate::op::JointOp;
use crate::request::call::Call;
use crate::store::WindowStore;

/// Parts with the store's decision on each. `None` if the store cannot make them as one.
pub(super) type Decided<S> =
    Result<Option<SmallVec<[(Part<'static, S>, Result<Decision, Error>); 2]>>, Error>;

/// Calls that the store is answering. The mutex makes it `Sync` and is never locked.
pub(super) struct Calling<S: 'static> {
    pub(super) places: SmallVec<[usize; 4]>,
    /// Whether all charges are kept when the value is dropped.
    is_kept: bool,
    pub(super) has_waited: bool,
    decided: Mutex<BoxFuture<'static, Decided<S>>>,
}

impl<S: WindowStore + Clone> Calling<S> {
    /// Makes the calls of these parts, as one if there are several.
    pub(super) fn new(
        places: SmallVec<[usize; 4]>,
        parts: SmallVec<[Part<'static, S>; 2]>,
        timeout: Option<Duration>,
    ) -> Self {
        let is_kept = parts.iter().all(|part| part.keeps_charge);
        Self {
            places,
            is_kept,
            has_waited: false,
            decided: Mutex::new(Box::pin(decided(parts, timeout))),
        }
    }

    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Decided<S>> {
        let decided = self
            .decided
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner)
            .as_mut()
            .poll(context);
        self.has_waited |= decided.is_pending();
        decided
    }

    /// Refunds in the background the charges of a late response.
    pub(super) fn abandon(self, background: Option<&Background>) {
        if self.is_kept {
            return;
        }
        let decided = self
            .decided
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        let refund = async move {
            for (part, decision) in decided.await.ok().flatten().into_iter().flatten() {
                if let Ok(decision) = decision {
                    part.undo(&decision).await;
                }
            }
        };
        background::run(background, Box::pin(refund));
    }
}

async fn decided<S: WindowStore + Clone>(
    parts: SmallVec<[Part<'static, S>; 2]>,
    timeout: Option<Duration>,
) -> Decided<S> {
    let calls: Vec<_> = parts
        .iter()
        .map(|part| Call {
            timeout,
            ..part.ask.call(&part.target)
        })
        .collect();
    if let [call] = &calls[..] {
        let decision = call.apply().await?;
        return Ok(Some(parts.into_iter().zip([Ok(decision)]).collect()));
    }
    let mut ops = Vec::with_capacity(calls.len());
    for (part, call) in parts.iter().zip(&calls) {
        let Part {
            is_advisory,
            keeps_charge,
            ..
        } = *part;
        ops.push(JointOp {
            op: call.op().checked()?,
            is_advisory,
            keeps_charge,
        });
    }
    let Some(first) = calls.first() else {
        return Ok(None);
    };
    let Some(facts) = first.limiter.store.apply_all(&ops).await? else {
        return Ok(None);
    };
    if facts.len() != ops.len() {
        let text = format!(
            "the store returned facts for {} of {} operations",
            facts.len(),
            ops.len()
        );
        return Err(Error::new(ErrorKind::Inconsistent, text));
    }
    let decisions: Vec<Result<Decision, Error>> = ops
        .iter()
        .zip(facts)
        .map(|(joint, facts)| {
            let facts = facts?;
            let op = joint.answered_by(&facts);
            facts.verify(&op)?;
            Ok(decide(&op, facts))
        })
        .collect();
    Ok(Some(parts.into_iter().zip(decisions).collect()))
}
