//! Operations: a limiter's requests to a store.

use std::time::Duration;

use crate::error::{Error, ErrorKind};
use crate::name::Name;
use crate::policy::bounds::MAX_COST;
use crate::policy::limit::Limit;
use crate::policy::time::{Timestamp, Window};
use crate::policy::{Counting, Policy};
use crate::store::log_key::LogKey;

/// The kind of an operation, which determines whether it appends an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Appends if the operation fits, or always if the policy counts attempts.
    Acquire,
    /// Never appends.
    Peek,
    /// Always appends.
    Record,
}

/// The source of an operation's time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum At {
    /// The store's clock. This is the default.
    #[default]
    StoreClock,
    /// A caller-supplied time.
    Given(Timestamp),
}

impl At {
    /// The caller-supplied time, otherwise `clock`.
    pub(crate) fn or_clock(self, clock: Timestamp) -> Timestamp {
        match self {
            Self::StoreClock => clock,
            Self::Given(given) => given,
        }
    }

    /// Returns [`LogFacts::clock`](crate::store::LogFacts::clock) of an operation at `now`, given the store's clock.
    #[inline]
    pub fn waits_from(self, now: Timestamp, clock: Timestamp) -> Timestamp {
        match self {
            Self::StoreClock => clock,
            Self::Given(_) => now,
        }
    }
}

/// A 128-bit id of an entry: a caller's idempotency key, such as a UUID, or chosen by the store.
///
/// Idempotency keys are compared within one log only. Choose random ones; they must be unguessable if untrusted clients can send
/// them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryId {
    // Two integers, not an array, so that an id is passed in registers.
    high: u64,
    low: u64,
}

impl EntryId {
    /// Returns the id with the value `id`.
    #[inline]
    #[must_use]
    pub const fn from_u128(id: u128) -> Self {
        Self {
            high: (id >> 64) as u64,
            low: id as u64,
        }
    }

    /// Returns the id's value.
    #[inline]
    pub const fn as_u128(self) -> u128 {
        (self.high as u128) << 64 | self.low as u128
    }
}

impl From<u128> for EntryId {
    fn from(id: u128) -> Self {
        Self::from_u128(id)
    }
}

#[cfg(feature = "uuid")]
impl From<uuid::Uuid> for EntryId {
    fn from(id: uuid::Uuid) -> Self {
        Self::from_u128(id.as_u128())
    }
}

/// What a caller expects of its store. No log depends on it.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Hints {
    /// Whether the caller may settle or refund the entry. A wrapper that decides without its store leaves such operations to the store.
    pub wants_receipt: bool,
    /// Whether the caller of a peek reads the usage only, as in [`Limiter::status`](crate::Limiter::status), so that observers can tell
    /// a status from a peek.
    pub is_status: bool,
    /// How long the caller waits for the store's response. `None` if as long as the store takes.
    ///
    /// A store that can measure this appends nothing after that time, because the caller has decided otherwise by then.
    pub timeout: Option<Duration>,
}

/// One operation on one log. A [`Limiter`](crate::Limiter) builds operations, and a store applies them.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Op<'a> {
    /// The log to operate on. Default: the key's log with the name `default`.
    pub log: LogKey<'a>,
    /// The limits that the operation must fit, and the counting mode.
    pub policy: &'a Policy,
    /// The default policy of the operation's limiter, if `policy` is a different one. Default: `None`.
    ///
    /// An append keeps every entry that counts under either policy; see [`retention`](Self::retention). An entry has a receipt only
    /// if it fits both.
    pub limiter_policy: Option<&'a Policy>,
    /// The cost in units. Default: 1.
    pub cost: u64,
    /// The kind of operation: acquire, peek or record.
    pub mode: Mode,
    /// The source of the operation's time. Default: the store's clock.
    pub at: At,
    /// The idempotency key. A peek only looks for its entry. Default: `None`.
    pub id: Option<EntryId>,
    /// What stores may ignore. Default: nothing.
    pub hints: Hints,
}

impl<'a> Op<'a> {
    /// Returns an operation of cost 1 at the store's time on the log of `key` with the name `default`.
    #[inline]
    #[must_use]
    pub fn new(mode: Mode, key: &'a (impl AsRef<[u8]> + ?Sized), policy: &'a Policy) -> Self {
        Self {
            log: LogKey::new(Name::default(), key),
            policy,
            limiter_policy: None,
            cost: 1,
            mode,
            at: At::StoreClock,
            id: None,
            hints: Hints::default(),
        }
    }

    /// Returns an acquire of one unit. See [`new`](Self::new) for the other defaults.
    #[inline]
    #[must_use]
    pub fn acquire(key: &'a (impl AsRef<[u8]> + ?Sized), policy: &'a Policy) -> Self {
        Self::new(Mode::Acquire, key, policy)
    }

    /// Returns a peek of one unit. See [`new`](Self::new) for the other defaults.
    #[inline]
    #[must_use]
    pub fn peek(key: &'a (impl AsRef<[u8]> + ?Sized), policy: &'a Policy) -> Self {
        Self::new(Mode::Peek, key, policy)
    }

    /// Returns a record of one unit. See [`new`](Self::new) for the other defaults.
    #[inline]
    #[must_use]
    pub fn record(key: &'a (impl AsRef<[u8]> + ?Sized), policy: &'a Policy) -> Self {
        Self::new(Mode::Record, key, policy)
    }

    /// Sets the name of the limiter. Default: `default`.
    #[inline]
    #[must_use]
    pub fn with_name(mut self, name: Name) -> Self {
        self.log.name = name;
        self
    }

    /// Sets the default policy of the operation's limiter. Default: none, so the operation's own policy.
    #[inline]
    #[must_use]
    pub fn with_limiter_policy(mut self, policy: &'a Policy) -> Self {
        self.limiter_policy = Some(policy);
        self
    }

    /// Sets the cost in units. Default: 1.
    #[inline]
    #[must_use]
    pub fn with_cost(mut self, cost: u64) -> Self {
        self.cost = cost;
        self
    }

    /// Sets a caller-supplied time. Default: the store's clock.
    #[inline]
    #[must_use]
    pub fn at(mut self, at: Timestamp) -> Self {
        self.at = At::Given(at);
        self
    }

    /// Sets the idempotency key. Default: none.
    #[inline]
    #[must_use]
    pub fn with_id(mut self, id: impl Into<EntryId>) -> Self {
        self.id = Some(id.into());
        self
    }

    /// Bounds how long the caller waits by `timeout`, unless it waits shorter already. Default: no bound.
    #[inline]
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        let shorter = self.hints.timeout.unwrap_or(timeout);
        self.hints.timeout = Some(shorter.min(timeout));
        self
    }

    /// Returns the peek of the same cost, which does not append. A record's cost may be above a maximum: then no wait helps,
    /// and [`Usage::blocker`](crate::store::Usage::blocker) is unspecified.
    #[must_use]
    pub fn to_peek(self) -> Self {
        Self {
            mode: Mode::Peek,
            id: None,
            ..self
        }
    }

    /// Validates the operation and returns it in the form that stores rely on.
    ///
    /// The cost of an acquire or a peek is then 1 to the policy's smallest maximum. The cost of a record is 1 to
    /// [`MAX_COST`]; a higher one is reduced to [`MAX_COST`]. A peek has no id if no limit is exact.
    ///
    /// # Errors
    /// - [`ErrorKind::InvalidCost`] if the cost is 0.
    /// - [`ErrorKind::CostExceedsLimit`] if an acquire or a peek can never fit.
    /// - [`ErrorKind::NeedsExactLimit`] if an acquire or a record has an id, but no limit is exact.
    pub fn checked(mut self) -> Result<Self, Error> {
        let cost = self.cost;
        let log = self.log;
        if cost == 0 {
            let text = format!(
                "{:?}: the cost is 0, expected at least 1 (use peek to look without consuming)",
                self.mode
            );
            return Err(Error::new(ErrorKind::InvalidCost, text).with_log(log));
        }
        if self.mode == Mode::Record {
            self.cost = cost.min(MAX_COST);
        } else if let Some(limit) = self.policy.limits().iter().find(|limit| cost > limit.max()) {
            let text = format!(
                "a cost of {cost} can never fit the limit {limit}, expected at most {}",
                limit.max()
            );
            return Err(Error::new(ErrorKind::CostExceedsLimit, text).with_log(log));
        }
        if self.id.is_some() && self.receipt_window().is_none() {
            match self.mode {
                Mode::Peek => self.id = None,
                Mode::Acquire | Mode::Record => self.check_receipts()?,
            }
        }
        Ok(self)
    }

    /// Returns an error if entries have no receipts, because no limit is exact.
    pub(crate) fn check_receipts(&self) -> Result<(), Error> {
        if self.receipt_window().is_some() {
            return Ok(());
        }
        let checked = self.policy.check_receipts();
        checked.map_err(|error| error.with_log(self.log))
    }

    /// Returns `true` if [`checked`](Self::checked) would return the operation unchanged.
    ///
    /// For hot paths: once inlined, the compiler can often evaluate this at compile time.
    #[inline(always)]
    pub fn is_checked(&self) -> bool {
        match self.mode {
            _ if self.id.is_some() && self.receipt_window().is_none() => false,
            Mode::Record => 0 < self.cost && self.cost <= MAX_COST,
            // Every maximum is at least 1.
            _ => self.cost == 1 || (0 < self.cost && self.cost <= self.policy.smallest_max()),
        }
    }

    /// Returns `true` if the operation appends an entry, given whether it fits.
    #[inline]
    pub fn appends(&self, fits: bool) -> bool {
        match self.mode {
            Mode::Peek => false,
            Mode::Record => true,
            Mode::Acquire => fits || self.policy.counting() == Counting::Attempts,
        }
    }

    /// Returns the retention of an append: the longer window and the larger maximum of `policy` and `limiter_policy`.
    #[inline(always)]
    pub fn retention(&self) -> Retention {
        let default = self.limiter_policy.unwrap_or(self.policy);
        let own = self.policy;
        Retention {
            window: own.longest_window().max(default.longest_window()),
            max: own.largest_max().max(default.largest_max()),
        }
    }

    /// Returns `true` if an append may merge entries: no exact limit of `policy` or `limiter_policy` has the longest window.
    #[inline]
    pub fn merges(&self) -> bool {
        self.receipt_window() != Some(self.retention().window)
    }

    /// Returns the rule by which an append merges entries. `None` unless it [may](Self::merges).
    pub fn merging(&self) -> Option<Merging> {
        if !self.merges() {
            return None;
        }
        let own = self.policy.resolution_micros();
        let default = self.limiter_policy.and_then(Policy::resolution_micros);
        let finer = own.zip(default).map(|(own, default)| own.min(default));
        Some(Merging {
            resolution: finer.or(own).or(default)?,
            exact: self.receipt_window(),
        })
    }

    /// Returns how long an entry's receipt and idempotency key are valid: the longest window of the exact limits of `policy` and
    /// `limiter_policy`. `None` if no limit is exact: entries then have neither.
    #[inline]
    pub fn receipt_window(&self) -> Option<Window> {
        let longest = Policy::longest_exact_window;
        longest(self.policy).max(self.limiter_policy.and_then(longest))
    }

    /// Returns the longest silence of a slot's holder: the shortest window of the exact limits of `policy` and `limiter_policy`. `None` if
    /// no limit is exact.
    pub fn slot_window(&self) -> Option<Window> {
        let limits = |policy: &'a Policy| policy.limits().iter();
        let all = limits(self.policy).chain(self.limiter_policy.into_iter().flat_map(limits));
        let exact = all.filter(|limit| limit.resolution().is_none());
        exact.map(Limit::window).min()
    }
}

/// The rule for the entries that an append keeps: L6 and L7 of the contract of [`WindowStore`](crate::WindowStore). No later decision
/// depends on the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// The longest window of the policies that the log is kept for.
    pub window: Window,
    /// The largest maximum of the policies that the log is kept for.
    pub max: u64,
}

/// The rule by which an append merges entries. See *Merging* in the contract of [`WindowStore`](crate::WindowStore).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Merging {
    /// The smallest resolution, in microseconds.
    pub resolution: u64,
    /// The longest window of the exact limits. `None` if no limit is exact.
    pub exact: Option<Window>,
}
