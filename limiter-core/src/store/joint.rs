//! Several operations that a store applies as one.

use crate::store::facts::{Facts, Outcome};
use crate::store::op::{Mode, Op};

/// One of several operations that a store applies as one. See [`WindowStore::apply_all`](crate::WindowStore::apply_all).
#[derive(Clone, Copy, Debug)]
pub struct JointOp<'a> {
    /// The operation.
    pub op: Op<'a>,
    /// Whether it never denies, even if it does not fit or fails.
    pub is_advisory: bool,
    /// Whether it appends even if another operation denies, as it would alone.
    pub keeps_charge: bool,
}

impl<'a> JointOp<'a> {
    /// Returns `true` if the operation denies the whole, given [`Facts::admitted`](crate::store::Facts::admitted).
    #[must_use]
    pub fn denies(&self, admitted: bool) -> bool {
        !admitted && !self.is_advisory && self.op.mode != Mode::Record
    }

    /// Returns for each operation `true` if another one denies it, given the facts that each would have alone. It then appends nothing
    /// and has the facts of its [peek](Op::to_peek).
    ///
    /// The others are denied by the first that repeats a denial, because it denied them the first time. If there is none, by the first
    /// that denies.
    pub fn held(ops: &[Self], alone: &[Facts]) -> impl Iterator<Item = bool> {
        let pairs = ops.iter().zip(alone);
        let repeats = |facts: &Facts| matches!(facts.outcome, Outcome::Repeated { .. });
        let denies = |joint: &Self, facts: &Facts| joint.denies(facts.admitted);
        let first = pairs
            .clone()
            .position(|(joint, facts)| denies(joint, facts));
        let repeated = pairs
            .clone()
            .position(|(joint, facts)| denies(joint, facts) && repeats(facts));
        let denier = repeated.or(first);
        pairs.enumerate().map(move |(i, (joint, facts))| {
            denier.is_some_and(|denier| denier != i) && !joint.keeps_charge && !repeats(facts)
        })
    }

    /// Returns the operation that these facts describe: the operation itself, or its peek if another one denied.
    #[must_use]
    pub fn described_by(&self, facts: &Facts) -> Op<'a> {
        let is_held = facts.outcome == Outcome::Nothing && self.op.appends(facts.admitted);
        if is_held { self.op.to_peek() } else { self.op }
    }
}

/// An operation that denies the others and that others deny.
impl<'a> From<Op<'a>> for JointOp<'a> {
    fn from(op: Op<'a>) -> Self {
        Self {
            op,
            is_advisory: false,
            keeps_charge: false,
        }
    }
}
