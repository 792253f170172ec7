//! The calls of a decision over several limiters.

use std::cmp::Ordering;
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
use crate::store::log_key::LogKey;
use crate::store::op::Mode;

/// One call of an [`AllOf`](super::AllOf): a request with options.
///
/// It is made from an acquire, a record, a peek, which denies but is never charged, or a status, which never denies.
#[derive(Debug)]
pub struct Part<'a, S> {
    pub(super) target: Target<'a, S>,
    mode: Mode,
    is_status: bool,
    pub(super) cost: u64,
    pub(super) keeps_charge: bool,
    pub(super) is_advisory: bool,
    fails_open: bool,
    has_own_entry: bool,
    /// How many other parts on its log come before it.
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

    pub(super) fn log(&self) -> LogKey<'_> {
        self.target.limiter.log(&self.target.key)
    }

    /// Returns the call to make. If another call denied, it only looks, which finds the entry that it repeats. A record never denies, so
    /// it then reads the usage.
    pub(super) fn call(&self, looks: bool, wants_receipt: bool) -> Call<'_, S, &[u8]> {
        let looks = looks && !self.keeps_charge;
        let is_status = self.is_status || (looks && self.mode == Mode::Record);
        let mode = if looks { Mode::Peek } else { self.mode };
        let mut call = Call {
            cost: if is_status { 1 } else { self.cost },
            ..self.target.call(mode)
        };
        call.hints.is_status = is_status;
        call.hints.wants_receipt = wants_receipt && mode != Mode::Peek;
        call
    }

    /// Returns the error of an invalid call, for which its store need not be asked.
    pub(super) fn check(&self) -> Result<(), Error> {
        self.call(false, false).op().checked().map(drop)
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
            Err(error) => PartOutcome::Failed(error.with_log(self.log())),
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

impl<'a, S: WindowStore> Part<'a, S> {
    pub(super) fn store(&self) -> &S {
        self.target.limiter.store()
    }

    /// Returns when the call is made. A record never denies; it can only fail. One above the maximum cannot be undone.
    pub(super) fn turn(&self) -> impl Ord + use<S> {
        let is_record = self.mode == Mode::Record;
        let call = self.call(false, false);
        let is_final = self.mode == Mode::Acquire && call.op().receipt_window().is_none();
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

    fn is_on_store_of(&self, other: &Self) -> bool {
        let [one, two] = [self.store(), other.store()];
        one.address() == two.address()
            || one.identity().is_some() && one.identity() == two.identity()
    }

    /// Orders calls by their logs, ids and limits.
    fn order(&self, other: &Self) -> Ordering {
        let [a, b] = [self, other].map(|part| {
            let (log, target) = (part.log(), &part.target);
            let policy = target.policy.as_deref();
            let limits = policy.unwrap_or(target.limiter.policy()).limits().iter();
            let limits = limits.map(|limit| (limit.max(), limit.window()));
            ((log.name.id(), log.key, target.id), limits)
        });
        a.0.cmp(&b.0).then_with(|| a.1.cmp(b.1))
    }

    /// Returns `true` if both calls, on logs with the same name and key, are one operation.
    fn is_one_with(&self, other: &Self) -> bool {
        let kind = |part: &Self| (part.mode, part.is_status, part.target.at, part.target.id);
        let options = |part: &Self| (part.keeps_charge, part.is_advisory, part.fails_open);
        let [one, two] = [self, other].map(|part| part.call(false, false));
        let [one, two] = [one.op(), two.op()];
        kind(self) == kind(other)
            && options(self) == options(other)
            && (one.policy, one.limiter_policy) == (two.policy, two.limiter_policy)
            && self.is_on_store_of(other)
    }

    /// Merges calls that are one operation. Returns the parts, and the place of each call's.
    pub(super) fn merged(
        calls: SmallVec<[Self; 2]>,
    ) -> (SmallVec<[Self; 2]>, SmallVec<[usize; 4]>) {
        let log = |i: usize| (calls[i].log().name, calls[i].log().key);
        let alone = |i: usize| (calls[i].has_own_entry || calls[i].cost == 0).then_some(i);
        let firsts = firsts(
            calls.len(),
            |i, j| calls[i].order(&calls[j]).then(alone(i).cmp(&alone(j))),
            |i, j| log(i) == log(j),
            |i, j| calls[i].is_one_with(&calls[j]),
        );
        let mut parts = SmallVec::<[Self; 2]>::with_capacity(calls.len());
        let mut places = SmallVec::<[usize; 4]>::new();
        for (i, (mut part, first)) in calls.into_iter().zip(firsts).enumerate() {
            if first.call == i {
                part.wave = first.wave;
                places.push(parts.len());
                parts.push(part);
                continue;
            }
            let place = places[first.call];
            let cost = &mut parts[place].cost;
            *cost = match part.mode {
                Mode::Peek => part.cost.max(*cost),
                Mode::Acquire | Mode::Record => part.cost.saturating_add(*cost),
            };
            places.push(place);
        }
        (parts, places)
    }
}

/// The first of the calls that are one operation.
#[derive(Clone, Copy, Debug)]
pub struct First {
    /// Its place.
    pub call: usize,
    /// How many other operations on its log begin before it. 0 unless the call is the first.
    pub wave: usize,
}

/// Finds for each of `len` calls the first with which it is one operation. `order` puts calls on one log next to each other, and those
/// that may be one operation equal. `on_one_log` and `is_one` compare two calls.
pub fn firsts(
    len: usize,
    order: impl Fn(usize, usize) -> Ordering,
    on_one_log: impl Fn(usize, usize) -> bool,
    is_one: impl Fn(usize, usize) -> bool,
) -> SmallVec<[First; 4]> {
    let mut firsts: SmallVec<[First; 4]> = (0..len).map(|call| First { call, wave: 0 }).collect();
    let mut by_log: SmallVec<[usize; 4]> = (0..len).collect();
    by_log.sort_by(|&i, &j| order(i, j));
    for calls in by_log.chunk_by(|&i, &j| on_one_log(i, j)) {
        let mut operations = SmallVec::<[usize; 4]>::new();
        for alike in calls.chunk_by(|&i, &j| order(i, j).is_eq()) {
            let before = operations.len();
            for &call in alike {
                let earlier = operations[before..]
                    .iter()
                    .find(|&&first| is_one(first, call));
                match earlier {
                    Some(first) => firsts[call].call = *first,
                    None => operations.push(call),
                }
            }
        }
        operations.sort_unstable();
        for (wave, first) in operations.into_iter().enumerate() {
            firsts[first].wave = wave;
        }
    }
    firsts
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn calls_that_differ_in_order_are_not_compared() {
        let compared = Cell::new(0);
        // Call `i` is on log `i % 2`, and one operation with the calls that have its kind there.
        let kinds: Vec<usize> = (0..2_000).map(|i| i % 1_500 / 2).collect();
        let key = |i: usize| (i % 2, kinds[i]);
        let firsts = firsts(
            kinds.len(),
            |i, j| key(i).cmp(&key(j)),
            |i, j| i % 2 == j % 2,
            |i, j| {
                compared.set(compared.get() + 1);
                key(i) == key(j)
            },
        );
        for (i, first) in firsts.iter().enumerate() {
            let (call, wave) = if i < 1_500 {
                (i, i / 2)
            } else {
                (i - 1_500, 0)
            };
            assert_eq!((first.call, first.wave), (call, wave), "{i}");
        }
        assert_eq!(compared.get(), 500);
    }
}
