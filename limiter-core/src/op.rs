//! What is asked of a store.

use crate::error::{Error, ErrorKind};
use crate::log_key::LogKey;
use crate::name::Name;
use crate::policy::{Counting, Policy};
use crate::range::MAX_COST;
use crate::time::{Timestamp, Window};

/// What an operation appends to the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Acquire: appends if the operation fits, or always where the policy counts attempts.
    Acquire,
    /// Peek: never appends.
    Peek,
    /// Record: always appends.
    Record,
}

/// Who provides the time of an operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum At {
    /// The store's clock. This is the default.
    #[default]
    StoreClock,
    /// The caller.
    Given(Timestamp),
}

/// The id of an entry, 128 bits. A caller's id makes a repeated operation count once (an idempotency key).
///
/// Ids are compared within one log. Choose them at random, or unguessable where a stranger could send them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryId {
    // Two numbers instead of an array: they travel in registers.
    high: u64,
    low: u64,
}

impl EntryId {
    /// Returns the id with this value.
    #[inline]
    #[must_use]
    pub const fn from_u128(id: u128) -> Self {
        Self { high: (id >> 64) as u64, low: id as u64 }
    }

    /// Returns the id's value.
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

#[cfg(feature = "uuid")]
impl From<uuid::Uuid> for EntryId {
    fn from(id: uuid::Uuid) -> Self {
        Self::from_u128(id.as_u128())
    }
}

/// One operation on one log. A [`Limiter`](crate::Limiter) builds them; stores apply them.
///
/// ```
/// use limiter_core::policy;
/// use limiter_core::store::Op;
/// let gold = policy!("1000/1m");
/// let op = Op::acquire(b"customer 7", &gold).with_cost(5).with_id(0x0123_4567_u128);
/// # let _ = op;
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Op<'a> {
    /// Whose log. Default: the name `default`.
    pub log: LogKey<'a>,
    /// The limits to fit, and what they count.
    pub policy: &'a Policy,
    /// The default policy of the limiter that the operation came through, if `policy` is another one. An append retains
    /// what either can see; see [`retention`](Self::retention).
    pub limiter_policy: Option<&'a Policy>,
    /// The units to take. Default: 1.
    pub cost: u64,
    /// What is appended.
    pub mode: Mode,
    /// Who provides the time. Default: the store's clock.
    pub at: At,
    /// The idempotency key. A peek ignores it. Default: none.
    pub id: Option<EntryId>,
}

impl<'a> Op<'a> {
    /// Returns an operation of cost 1 at the store's time, on the log of `key` under the name `default`.
    #[inline]
    #[must_use]
    pub fn new(mode: Mode, key: &'a (impl AsRef<[u8]> + ?Sized), policy: &'a Policy) -> Self {
        let log = LogKey::new(Name::default(), key);
        Self { log, policy, limiter_policy: None, cost: 1, mode, at: At::StoreClock, id: None }
    }

    /// Returns an acquire of one unit. Otherwise as [`new`](Self::new).
    #[inline]
    #[must_use]
    pub fn acquire(key: &'a (impl AsRef<[u8]> + ?Sized), policy: &'a Policy) -> Self {
        Self::new(Mode::Acquire, key, policy)
    }

    /// Returns a peek for one unit. Otherwise as [`new`](Self::new).
    #[inline]
    #[must_use]
    pub fn peek(key: &'a (impl AsRef<[u8]> + ?Sized), policy: &'a Policy) -> Self {
        Self::new(Mode::Peek, key, policy)
    }

    /// Returns a record of one unit. Otherwise as [`new`](Self::new).
    #[inline]
    #[must_use]
    pub fn record(key: &'a (impl AsRef<[u8]> + ?Sized), policy: &'a Policy) -> Self {
        Self::new(Mode::Record, key, policy)
    }

    /// Returns the same operation under the name of another limiter.
    #[inline]
    #[must_use]
    pub fn with_name(mut self, name: Name) -> Self {
        self.log.name = name;
        self
    }

    /// Returns the same operation as it comes through a limiter with this default policy.
    #[inline]
    #[must_use]
    pub fn with_limiter_policy(mut self, policy: &'a Policy) -> Self {
        self.limiter_policy = Some(policy);
        self
    }

    /// Returns the same operation with this cost.
    #[inline]
    #[must_use]
    pub fn with_cost(mut self, cost: u64) -> Self {
        self.cost = cost;
        self
    }

    /// Returns the same operation at this time.
    #[inline]
    #[must_use]
    pub fn at(mut self, at: Timestamp) -> Self {
        self.at = At::Given(at);
        self
    }

    /// Returns the same operation with this idempotency key: while the log holds an entry with the id that is younger than
    /// the operation's [retention window](Self::retention), repeating the operation appends nothing. It returns the original
    /// verdict with the current usage.
    #[inline]
    #[must_use]
    pub fn with_id(mut self, id: impl Into<EntryId>) -> Self {
        self.id = Some(id.into());
        self
    }

    /// Returns the operation in the form that stores rely on: its cost is from 1 to [`MAX_COST`] and, unless it is a record,
    /// at most the smallest maximum; a peek has no id. A record's cost above [`MAX_COST`] becomes [`MAX_COST`].
    ///
    /// # Errors
    /// [`ErrorKind::InvalidCost`] for a cost of 0, [`ErrorKind::CostExceedsLimit`] for an acquire or peek that could
    /// never fit.
    pub fn checked(mut self) -> Result<Self, Error> {
        let (cost, log) = (self.cost, self.log);
        if cost == 0 {
            let text = format!("a cost of 0 is not an operation ({:?}); to look without consuming, peek", self.mode);
            return Err(Error::new(ErrorKind::InvalidCost, text).with_log(log));
        }
        if self.mode == Mode::Record {
            self.cost = cost.min(MAX_COST);
        } else if let Some(limit) = self.policy.limits().iter().find(|limit| cost > limit.max()) {
            let text = format!("a cost of {cost} can never fit the limit {limit}");
            return Err(Error::new(ErrorKind::CostExceedsLimit, text).with_log(log));
        }
        if self.mode == Mode::Peek {
            self.id = None;
        }
        Ok(self)
    }

    /// Whether [`checked`](Self::checked) would return the operation as it is.
    ///
    /// For hot paths: a compiler that sees how the operation was built decides this beforehand.
    #[inline(always)]
    #[must_use]
    pub fn is_checked(&self) -> bool {
        match self.mode {
            Mode::Record => 0 < self.cost && self.cost <= MAX_COST,
            Mode::Peek if self.id.is_some() => false,
            // Every limit has room for one unit.
            _ => self.cost == 1 || (0 < self.cost && self.cost <= self.policy.smallest_max()),
        }
    }

    /// Whether the operation appends its entry, given whether it fits.
    #[inline]
    #[must_use]
    pub fn appends(&self, fits: bool) -> bool {
        match self.mode {
            Mode::Peek => false,
            Mode::Record => true,
            Mode::Acquire => fits || self.policy.counting() == Counting::Attempts,
        }
    }

    /// Returns what an append keeps: whatever `policy` or `limiter_policy` can see.
    #[inline(always)]
    #[must_use]
    pub fn retention(&self) -> Retention {
        let own = Retention::of(self.policy);
        match self.limiter_policy {
            None => own,
            Some(policy) => {
                let other = Retention::of(policy);
                Retention { window: own.window.max(other.window), max: own.max.max(other.max) }
            }
        }
    }
}

/// What an append keeps of a log.
///
/// It drops the entries aged `window` or more, and the entries older than the newest ones that together reach `max`. Nobody
/// can see those any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// The longest window that anybody reads the log by.
    pub window: Window,
    /// The largest maximum that anybody reads the log by.
    pub max: u64,
}

impl Retention {
    /// Returns what `policy` can see.
    #[inline(always)]
    #[must_use]
    pub fn of(policy: &Policy) -> Self {
        Self { window: policy.longest_window(), max: policy.largest_max() }
    }
}
