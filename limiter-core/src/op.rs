//! What is asked of a store.

use crate::{Counting, Error, ErrorKind, MAX_COST, Policy, Timestamp, Window};

/// What an operation appends to the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Take: appends if it fits, or in any case where the policy counts attempts.
    Acquire,
    /// Look: appends never.
    Peek,
    /// Meter: appends always.
    Record,
}

/// Who tells the time of an operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum At {
    /// The store's own clock.
    #[default]
    StoreClock,
    /// The caller.
    Given(Timestamp),
}

/// Names one entry of a key's log: 128 bits that the caller chooses (a UUID, say) to make a repeated operation count
/// once.
///
/// Ids are compared within one key. Choose them at random, or unguessable where a stranger could send them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryId {
    // Two numbers rather than an array of them: they travel in registers.
    high: u64,
    low: u64,
}

impl EntryId {
    /// The id with this value.
    #[inline]
    #[must_use]
    pub const fn from_u128(id: u128) -> Self {
        Self { high: (id >> 64) as u64, low: id as u64 }
    }

    /// The id's value.
    #[inline]
    #[must_use]
    pub const fn as_u128(self) -> u128 {
        (self.high as u128) << 64 | self.low as u128
    }
}

impl From<u128> for EntryId {
    fn from(id: u128) -> Self {
        Self::from_u128(id)
    }
}

impl From<[u8; 16]> for EntryId {
    fn from(id: [u8; 16]) -> Self {
        Self::from_u128(u128::from_be_bytes(id))
    }
}

/// One operation on one key.
///
/// ```
/// use limiter_core::{Limit, Op, Policy};
/// let gold = Policy::from(Limit::per_minute(1000)?);
/// let op = Op::acquire(b"customer 7", &gold).cost(5).id(0x0123_4567_u128);
/// # let _ = op;
/// # Ok::<(), limiter_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Op<'a> {
    /// Whose log: arbitrary bytes of any length, also none.
    pub key: &'a [u8],
    /// The limits to fit and what they count.
    pub policy: &'a Policy,
    /// The units to take, 1 unless said.
    pub cost: u64,
    /// What is appended.
    pub mode: Mode,
    /// Who tells the time, the store unless said.
    pub at: At,
    /// The caller's id of the entry, if repeating the operation shall count once. A peek ignores it.
    pub id: Option<EntryId>,
}

impl<'a> Op<'a> {
    /// An operation of cost 1 at the store's time.
    #[inline]
    #[must_use]
    pub fn new(mode: Mode, key: &'a (impl AsRef<[u8]> + ?Sized), policy: &'a Policy) -> Self {
        Self { key: key.as_ref(), policy, cost: 1, mode, at: At::StoreClock, id: None }
    }

    /// Takes one unit if it fits.
    #[inline]
    #[must_use]
    pub fn acquire(key: &'a (impl AsRef<[u8]> + ?Sized), policy: &'a Policy) -> Self {
        Self::new(Mode::Acquire, key, policy)
    }

    /// Looks whether one unit would fit.
    #[inline]
    #[must_use]
    pub fn peek(key: &'a (impl AsRef<[u8]> + ?Sized), policy: &'a Policy) -> Self {
        Self::new(Mode::Peek, key, policy)
    }

    /// Counts one unit, whether it fits or not.
    #[inline]
    #[must_use]
    pub fn record(key: &'a (impl AsRef<[u8]> + ?Sized), policy: &'a Policy) -> Self {
        Self::new(Mode::Record, key, policy)
    }

    /// The same operation, of this cost.
    #[inline]
    #[must_use]
    pub fn cost(mut self, cost: u64) -> Self {
        self.cost = cost;
        self
    }

    /// The same operation, at this time.
    #[inline]
    #[must_use]
    pub fn at(mut self, at: Timestamp) -> Self {
        self.at = At::Given(at);
        self
    }

    /// The same operation, under this id: while the log holds an entry with the id that still counts in the policy's
    /// longest window, repeating the operation appends nothing and returns the original verdict with the usage of now.
    #[inline]
    #[must_use]
    pub fn id(mut self, id: impl Into<EntryId>) -> Self {
        self.id = Some(id.into());
        self
    }

    /// The operation as a store may rely on it: a cost from 1 to [`MAX_COST`], no higher than the smallest maximum
    /// unless it is a record, and no id on a peek. A record's cost above [`MAX_COST`] becomes [`MAX_COST`].
    ///
    /// # Errors
    /// [`ErrorKind::InvalidCost`] for a cost of 0, [`ErrorKind::CostExceedsLimit`] for an acquire or peek that could
    /// never fit.
    #[inline]
    pub fn checked(mut self) -> Result<Self, Error> {
        self.check()?;
        Ok(self)
    }

    /// As [`checked`](Self::checked), in place: an operation is too large to be moved for nothing.
    #[doc(hidden)]
    #[inline(always)]
    pub fn check(&mut self) -> Result<(), Error> {
        if self.cost == 0 {
            return Err((*self).invalid_cost());
        }
        if self.mode == Mode::Record {
            self.cost = self.cost.min(MAX_COST);
        } else if self.cost > self.policy.smallest_max() {
            return Err((*self).cost_exceeds_limit());
        }
        if self.mode == Mode::Peek {
            self.id = None;
        }
        Ok(())
    }

    /// Whether the operation appends its entry, given whether it fits.
    #[inline]
    #[must_use]
    pub fn appends(&self, fits: bool) -> bool {
        match self.mode {
            Mode::Peek => false,
            Mode::Record => true,
            Mode::Acquire => fits || self.policy.counts() == Counting::Attempts,
        }
    }

    #[cold]
    fn invalid_cost(self) -> Error {
        let text = format!("a cost of 0 is not an operation ({:?}); to look without consuming, peek", self.mode);
        Error::new(ErrorKind::InvalidCost, text)
    }

    #[cold]
    fn cost_exceeds_limit(self) -> Error {
        let cost = self.cost;
        let limit = self.policy.limits().iter().find(|limit| cost > limit.max());
        let limit = limit.map(ToString::to_string).unwrap_or_default();
        Error::new(ErrorKind::CostExceedsLimit, format!("a cost of {cost} can never fit the limit {limit}"))
    }
}

/// Names one entry that an operation appended, to refund it or settle its cost.
///
/// It is valid for the key, in the store, that issued it, until the entry leaves the longest window of its policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Receipt {
    pub(crate) entry: EntryId,
    pub(crate) at: Timestamp,
    pub(crate) window: Window,
}

impl Receipt {
    /// The entry that `entry` names, appended at `at`, which counts for as long as `window`.
    #[must_use]
    pub const fn new(entry: EntryId, at: Timestamp, window: Window) -> Self {
        Self { entry, at, window }
    }

    /// The store's name of the entry.
    #[must_use]
    pub const fn entry(&self) -> EntryId {
        self.entry
    }

    /// The time at which the entry counts.
    #[must_use]
    pub const fn at(&self) -> Timestamp {
        self.at
    }

    /// Whether the entry has left the longest window of the policy that it was appended under.
    #[must_use]
    pub const fn has_left(&self, now: Timestamp) -> bool {
        !self.window.counts(self.at, now)
    }

    /// The longest window of the policy that the entry was appended under.
    #[must_use]
    pub const fn window(&self) -> Window {
        self.window
    }
}

/// Changes the cost of one entry, or removes it.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Settlement<'a> {
    /// Whose log.
    pub key: &'a [u8],
    /// Which entry.
    pub receipt: Receipt,
    /// What the entry costs from now on, at most [`MAX_COST`]; 0 removes it.
    pub cost: u64,
    /// Who tells the time.
    pub at: At,
}

impl<'a> Settlement<'a> {
    /// Sets the cost of the entry to `cost` (above [`MAX_COST`]: to that), at the store's time. A cost of 0 refunds it.
    #[must_use]
    pub fn new(key: &'a (impl AsRef<[u8]> + ?Sized), receipt: Receipt, cost: u64) -> Self {
        Self { key: key.as_ref(), receipt, cost: cost.min(MAX_COST), at: At::StoreClock }
    }

    /// The same settlement, at this time.
    #[must_use]
    pub fn at(mut self, at: Timestamp) -> Self {
        self.at = At::Given(at);
        self
    }
}
