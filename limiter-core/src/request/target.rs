//! The target of calls, which is borrowed until it has to move into a task.

use std::ops::Deref;
use std::sync::Arc;

use super::call::Call;
use super::settle::Settle;
use crate::key::KeyBuf;
use crate::limiter::Limiter;
use crate::policy::Policy;
use crate::store::op::{At, EntryId, Mode, Op};
use crate::store::settlement::Receipt;

#[derive(Clone, Debug)]
pub(super) enum BorrowedOrShared<'a, T> {
    Borrowed(&'a T),
    Shared(Arc<T>),
}

impl<T: Clone> BorrowedOrShared<'_, T> {
    fn into_shared(self) -> BorrowedOrShared<'static, T> {
        BorrowedOrShared::Shared(match self {
            Self::Borrowed(value) => Arc::new(T::clone(value)),
            Self::Shared(value) => value,
        })
    }
}

impl<T> Deref for BorrowedOrShared<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        match self {
            Self::Borrowed(value) => value,
            Self::Shared(value) => value,
        }
    }
}

/// A limiter, a key, the policy of a call if it is not the limiter's, and the call's time and idempotency key.
#[derive(Clone, Debug)]
pub(super) struct Target<'a, S> {
    pub(super) limiter: BorrowedOrShared<'a, Limiter<S>>,
    pub(super) key: KeyBuf,
    pub(super) policy: Option<BorrowedOrShared<'a, Policy>>,
    pub(super) at: At,
    pub(super) id: Option<EntryId>,
}

impl<'a, S> Target<'a, S> {
    pub(super) fn of(call: &Call<'a, S, impl AsRef<[u8]>>) -> Self {
        let limiter = BorrowedOrShared::Borrowed(call.limiter);
        let policy = call.policy.map(BorrowedOrShared::Borrowed);
        Self {
            limiter,
            key: call.key.as_ref().into(),
            policy,
            at: call.at,
            id: call.id,
        }
    }

    pub(super) fn op(&self, mode: Mode) -> Op<'_> {
        let (default, own) = (self.limiter.policy(), self.policy.as_deref());
        Op {
            limiter_policy: own.map(|_| default),
            at: self.at,
            id: self.id,
            ..Op::new(mode, &self.key, own.unwrap_or(default)).with_name(self.limiter.name())
        }
    }

    pub(super) fn call(&self, mode: Mode) -> Call<'_, S, &[u8]> {
        Call {
            policy: self.policy.as_deref(),
            at: self.at,
            id: self.id,
            ..Call::new(&*self.limiter, self.key.as_ref(), mode)
        }
    }

    pub(super) fn settle(&self, receipt: Receipt, cost: u64) -> Settle<'_, S, &[u8]> {
        let record = Call {
            id: None,
            ..self.call(Mode::Record)
        };
        Settle::new(record, receipt, cost)
    }

    /// Returns the same without its borrows.
    pub(super) fn into_owned(self) -> Target<'static, S>
    where
        S: Clone,
    {
        Target {
            limiter: self.limiter.into_shared(),
            policy: self.policy.map(BorrowedOrShared::into_shared),
            ..self
        }
    }
}
