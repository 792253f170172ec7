//! Flaws of stores that apply several operations as one.

use std::time::Duration;

use futures::FutureExt;
use limiter_core::store::{Facts, JointFacts, JointOp, Outcome};
use limiter_core::{SyncStore, WindowStore};
use limiter_testkit::ReferenceStore;

/// Several operations on a store.
pub(crate) struct Joint<'a> {
    pub(super) store: &'a ReferenceStore,
    pub(super) ops: &'a [JointOp<'a>],
}

impl Joint<'_> {
    /// Applies the operations rightly, after a change to each.
    pub(super) fn change(&self, change: fn(&mut JointOp<'_>)) -> Option<JointFacts> {
        let mut ops = self.ops.to_vec();
        ops.iter_mut().for_each(change);
        self.store.apply_all(&ops).now_or_never().unwrap().unwrap()
    }

    fn peek(&self, joint: &JointOp<'_>) -> Facts {
        self.store.apply_now(&joint.op.to_peek())
    }

    fn is_denied(&self) -> bool {
        self.ops
            .iter()
            .any(|joint| joint.denies(self.peek(joint).admitted))
    }
}

pub(super) fn first_alone(joint: &Joint<'_>) -> Option<JointFacts> {
    joint.store.apply_now(&joint.ops[0].op);
    None
}

pub(super) fn one_by_one(joint: &Joint<'_>) -> Option<JointFacts> {
    let apply = |of: &JointOp<'_>| {
        // On a busy machine, the others run only if this thread sleeps.
        std::thread::sleep(Duration::from_micros(50));
        Ok(joint.store.apply_now(&of.op))
    };
    Some(joint.ops.iter().map(apply).collect())
}

pub(super) fn one_by_one_if_admitted(joint: &Joint<'_>) -> Option<JointFacts> {
    let is_plain = !joint.is_denied() && joint.ops.iter().all(|of| of.op.id.is_none());
    if is_plain {
        one_by_one(joint)
    } else {
        joint.change(|_| ())
    }
}

pub(super) fn nothing_if_denied(joint: &Joint<'_>) -> Option<JointFacts> {
    let peeks = || joint.ops.iter().map(|of| Ok(joint.peek(of))).collect();
    if joint.is_denied() {
        Some(peeks())
    } else {
        joint.change(|_| ())
    }
}

pub(super) fn repeats_nothing_if_denied(joint: &Joint<'_>) -> Option<JointFacts> {
    let denied = joint.is_denied();
    let mut results = joint.change(|_| ())?;
    for (of, result) in joint.ops.iter().zip(&mut results).filter(|_| denied) {
        if result
            .as_ref()
            .is_ok_and(|facts| matches!(facts.outcome, Outcome::Repeated(_)))
        {
            *result = Ok(joint.peek(of));
        }
    }
    Some(results)
}
