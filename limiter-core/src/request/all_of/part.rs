//! The calls of a decision over several limiters.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::decision::Decision;
use crate::error::Error;
use crate::policy::Policy;
use crate::request::call::Call;
use crate::request::target::{BorrowedOrShared, Target};
use crate::request::verbs::{Acquire, Peek, ReadStatus, Record};
use crate::status::Status;
use crate::store::WindowStore;
use crate::store::op::{Mode, Op};

/// One call of an [`AllOf`](super::AllOf): a request with options.
///
/// It is made from an acquire, a record, a peek, which denies but is never charged, or a status, which never denies.
#[derive(Debug)]
pub struct Part<'a, S> {
    pub(super) target: Target<'a, S>,
    pub(super) mode: Mode,
    is_status: bool,
    pub(super) cost: u64,
    pub(super) keeps_charge: bool,
    pub(super) is_advisory: bool,
    fails_open: bool,
    has_own_entry: bool,
    /// How many other operations on its log come before it.
    pub(super) wave: usize,
}

/// What came of one call.
#[derive(Debug)]
pub enum PartOutcome {
    /// The call was admitted and charged. While its store is down and admits, the charge has [no entry](Decision::appended).
    Charged(Decision),
    /// The call does not fit.
    Denied(Decision),
    /// The call would fit, or was settled or refunded.
    Uncharged(Status),
    /// The call failed.
    Failed(Error),
}

/// A part is made from a request without its options for waiting.
macro_rules! part_from {
    ($($request:ident),*) => {$(
        impl<'a, S, B: AsRef<[u8]>> From<$request<'a, S, B>> for Part<'a, S> {
            fn from(request: $request<'a, S, B>) -> Self {
                Self::new(&request.call)
            }
        }
    )*};
}
part_from!(Acquire, Record, Peek, ReadStatus);

impl<'a, S> Part<'a, S> {
    fn new(call: &Call<'a, S, impl AsRef<[u8]>>) -> Self {
        let is_status = call.hints.is_status;
        Self {
            target: Target::of(call),
            mode: call.mode,
            cost: call.cost,
            is_status,
            keeps_charge: false,
            is_advisory: is_status,
            fails_open: false,
            has_own_entry: false,
            wave: 0,
        }
    }

    /// Sets the policy for this call, like [`Acquire::policy`], and copies it.
    #[must_use]
    pub fn policy(mut self, policy: &Policy) -> Self {
        self.target.policy = Some(BorrowedOrShared::Shared(Arc::new(policy.clone())));
        self
    }

    /// Charges the call even if another one denies.
    #[must_use]
    pub fn keep_charge(mut self) -> Self {
        self.keeps_charge = true;
        self
    }

    /// Makes the call one that never denies, even if it does not fit or fails. It is then made last, and charged only if all others
    /// admit.
    #[must_use]
    pub fn advisory(mut self) -> Self {
        self.is_advisory = true;
        self
    }

    /// Leaves the call out if its store is down or late: if its [error is retryable](Error::is_retryable). Otherwise the whole fails.
    #[must_use]
    pub fn fail_open(mut self) -> Self {
        self.fails_open = true;
        self
    }

    /// Keeps the call separate from [others on its log](super::AllOf#several-calls-on-one-log), so that its charge is settled and
    /// refunded alone.
    #[must_use]
    pub fn own_entry(mut self) -> Self {
        self.has_own_entry = true;
        self
    }

    /// Returns the operation to make. If another call denied, it only looks, which finds the entry that it repeats. A record never denies,
    /// so it then reads the usage.
    pub(super) fn op(&self, looks: bool) -> Op<'_> {
        let looks = looks && !self.keeps_charge;
        let is_status = self.is_status || (looks && self.mode == Mode::Record);
        let mut op = self.target.op(if looks { Mode::Peek } else { self.mode });
        op.cost = if is_status { 1 } else { self.cost };
        op.hints.is_status = is_status;
        op
    }

    /// Returns what came of the call.
    pub(super) fn outcome(&self, decision: Result<Decision, Error>) -> PartOutcome {
        // A record is only looked up, or never denied.
        let denies = !self.is_status && self.mode != Mode::Record;
        let charges = self.mode != Mode::Peek;
        match decision {
            Ok(decision) if decision.is_denied() && denies => PartOutcome::Denied(decision),
            Ok(decision) if charges && (decision.appended() || decision.is_uncounted()) => {
                PartOutcome::Charged(decision)
            }
            Ok(decision) => PartOutcome::Uncharged(decision.into_status()),
            Err(error) => PartOutcome::Failed(error.with_log(self.op(false).log)),
        }
    }

    /// Returns `true` if the outcome denies the whole.
    pub(super) fn denies(&self, outcome: &PartOutcome) -> bool {
        let denies = match outcome {
            PartOutcome::Denied(_) => true,
            // Any other error remains until somebody corrects the call, the rights or the log.
            PartOutcome::Failed(error) => !self.fails_open || !error.is_retryable(),
            PartOutcome::Charged(_) | PartOutcome::Uncharged(_) => false,
        };
        denies && !self.is_advisory
    }

    /// Returns `true` if a denial by another call refunds the charge. A repetition's charge stays.
    pub(super) fn is_undone(&self, outcome: &PartOutcome) -> bool {
        let is_new = |charge: &Decision| self.target.id.is_none() || !charge.is_repeated();
        let has_receipt = |charge: &Decision| charge.receipt().is_some() && is_new(charge);
        !self.keeps_charge && matches!(outcome, PartOutcome::Charged(charge) if has_receipt(charge))
    }

    pub(super) fn into_owned(self) -> Part<'static, S>
    where
        S: Clone,
    {
        Part {
            target: self.target.into_owned(),
            ..self
        }
    }
}

impl<S: WindowStore> Part<'_, S> {
    pub(super) fn store(&self) -> &S {
        self.target.limiter.store()
    }

    /// Returns when the call is made. A record never denies; it can only fail. One above the maximum cannot be undone.
    pub(super) fn turn(&self) -> impl Ord + use<S> {
        let is_record = self.mode == Mode::Record;
        let is_final = self.mode == Mode::Acquire && self.op(false).receipt_window().is_none();
        let identity = self.store().identity();
        (self.is_advisory, is_record, is_final, identity, self.wave)
    }

    /// Returns `true` if a store may make both calls as one.
    pub(super) fn goes_with(&self, other: &Self) -> bool {
        let identity = self.store().identity();
        identity.is_some()
            && identity == other.store().identity()
            && self.target.at == other.target.at
            && self.wave == other.wave
    }

    /// Orders calls by log, and calls that are one operation next to each other. `place` is the call's.
    pub(super) fn kind(&self, place: usize) -> impl Ord + use<'_, S> {
        let op = self.op(false);
        let alone = (self.has_own_entry || self.cost == 0).then_some(place);
        let store = self.store();
        let limits = |policy: &Policy| -> SmallVec<[_; 2]> {
            let limits = policy.limits().iter();
            limits
                .map(|limit| {
                    (
                        limit.max(),
                        limit.window(),
                        limit.resolution(),
                        limit.lease(),
                    )
                })
                .collect()
        };
        (
            (alone, self.mode as u8, self.is_status, op.at, op.id),
            (self.keeps_charge, self.is_advisory, self.fails_open),
            (
                limits(op.policy),
                op.policy.counting() as u8,
                op.policy.name(),
            ),
            op.limiter_policy.map(limits),
            store.identity().ok_or(store.address()),
        )
    }
}
