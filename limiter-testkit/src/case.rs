//! A sequence of operations as data.

use std::ops::Range;

use limiter_core::store::Mode;
use limiter_core::{Policy, Timestamp};

/// A sequence of operations on a few keys through a few limiters on one store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Case {
    /// The policies that the steps choose from. Without any, a policy that covers every entry.
    pub policies: Vec<Policy>,
    /// The limiters that the steps come through. Without any, the steps have no limiter.
    pub limiters: Vec<CaseLimiter>,
    /// The time before the first step, in microseconds.
    pub start: u64,
    /// The steps, in order.
    pub steps: Vec<Step>,
}

/// A limiter of a [`Case`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CaseLimiter {
    /// The number of its name. Limiters with the same number share their logs.
    pub name: u8,
    /// The default policy, modulo the number of the case's policies. `None` means operations without a limiter.
    pub policy: Option<u8>,
}

/// A step of a [`Case`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// How far time advances before the step, in microseconds. Negative values step the clock back.
    pub after: i64,
    /// What the step does.
    pub verb: Verb,
    /// The limiter and the key. `None` means the first of each, and for a settlement the log that issued the receipt.
    pub on: Option<Place>,
    /// The policy, modulo the number of policies.
    pub policy: u8,
    /// The cost, which may be refused. A settlement to 0 is a refund.
    pub cost: u64,
    /// The idempotency key. For a renewal, the entry's.
    pub id: Option<CaseId>,
    /// How it takes part in a call of several operations.
    pub joint: Joint,
}

/// How a [`Step`] takes part in a call of several operations as one.
///
/// A call needs different logs, and acquires, peeks and records that [`Op::checked`](limiter_core::store::Op::checked) accepts. A step
/// that does not suit the call is left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Joint {
    /// Whether it is part of the same call as the step before.
    pub with_previous: bool,
    /// Whether it never denies the others.
    pub is_advisory: bool,
    /// Whether it appends even if another one denies.
    pub keeps_charge: bool,
}

/// What a [`Step`] does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Acquires, peeks or records.
    Run(Mode),
    /// Settles the receipt of the step with this number, counted from 0. Skipped if that step returned no receipt.
    Settle(usize),
    /// Renews the receipt of the step with this number. Skipped if that step returned no receipt.
    Renew(usize),
    /// Removes a log.
    Reset,
}

/// The log of a [`Step`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The limiter, modulo the number of limiters.
    pub limiter: u8,
    /// The key.
    pub key: u8,
}

/// An idempotency key in a [`Case`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaseId {
    /// An id that no other run uses. Each number below 128 differs in one bit from the larger numbers, and in two bits from the
    /// others below 128.
    Fresh(u8),
    /// Exactly this id.
    Exactly(u128),
    /// The store's id of the entry that a step returned. The step is skipped if that step returned no receipt.
    EntryOf(usize),
}

impl Step {
    /// Returns a step with the first policy, without an id, at the time of the step before it.
    #[must_use]
    pub fn new(verb: Verb, cost: u64) -> Self {
        Self {
            after: 0,
            verb,
            on: None,
            policy: 0,
            cost,
            id: None,
            joint: Joint::default(),
        }
    }

    /// Returns the step that this one refers to.
    pub(crate) fn refers_to(&mut self) -> Option<&mut usize> {
        match (&mut self.verb, &mut self.id) {
            (Verb::Settle(step) | Verb::Renew(step), _) | (_, Some(CaseId::EntryOf(step))) => {
                Some(step)
            }
            _ => None,
        }
    }
}

impl Case {
    /// Returns the steps that are one call with a step and follow it, and that step.
    pub(crate) fn call_at(&self, step: usize) -> Range<usize> {
        let others = self.steps.iter().skip(step + 1);
        step..step + 1 + others.take_while(|step| step.joint.with_previous).count()
    }

    /// Returns the case with the steps from `first` on twice.
    pub(crate) fn repeated(&self, first: usize) -> Self {
        let mut case = self.clone();
        let count = self.steps.len() - first;
        for mut step in self.steps[first..].iter().copied() {
            if let Some(other) = step.refers_to().filter(|other| **other >= first) {
                *other += count;
            }
            case.steps.push(step);
        }
        case
    }

    /// Returns the time of each step.
    pub(crate) fn times(&self) -> Vec<Timestamp> {
        let mut now = Timestamp::from_micros_saturating(self.start);
        let time = |step: &Step| {
            let micros = now.as_micros().saturating_add_signed(step.after);
            now = Timestamp::from_micros_saturating(micros);
            now
        };
        self.steps.iter().map(time).collect()
    }

    /// Returns a step that renews an entry with an id that is not the entry's. The contract leaves its result open.
    pub(crate) fn wrong_renewal(&self) -> Option<usize> {
        let id_of = |step: &Step| {
            let mut step = *step;
            while let Verb::Renew(issuer) = step.verb {
                step = *self.steps.get(issuer)?;
            }
            step.id
        };
        let is_wrong = |step: &Step| step.id.is_some() && id_of(step) != step.id;
        let renews = |step: &Step| matches!(step.verb, Verb::Renew(_));
        self.steps
            .iter()
            .position(|step| renews(step) && is_wrong(step))
    }
}
