//! One or more limits and what they count.

use crate::{Error, ErrorKind, Limit, MAX_LIMITS, PerLimit, Window};

/// What an acquire appends to the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Counting {
    /// Only what was allowed: denied requests are free. The default.
    #[default]
    Admitted,
    /// Every attempt: denied requests push the window forward too, which punishes hammering.
    Attempts,
}

/// One to [`MAX_LIMITS`] limits that an operation must fit all at once, and what they count.
///
/// The policy travels with each operation, so different keys may have different policies, and changing one keeps the
/// history. The log is shared by all policies used on a key; see the
/// [store contract](crate::WindowStore#the-log) for what a policy with shorter windows makes it forget.
///
/// ```
/// use limiter_core::{Counting, Limit, Policy};
/// let policy = Policy::new([Limit::per_second(3)?, Limit::per_hour(100)?])?.counting(Counting::Attempts);
/// assert_eq!(policy.to_string(), "3/1s, 100/1h");
/// # Ok::<(), limiter_core::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    limits: PerLimit<Limit>,
    counting: Counting,
    longest_window: Window,
    longest_window_zeros: u8,
    largest_max: u64,
    smallest_max: u64,
    name: Option<Box<str>>,
}

impl Policy {
    /// A policy of these limits, counting what is admitted. Where two limits bind equally, the earlier one is named.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidLimit`] for no limit or more than [`MAX_LIMITS`].
    pub fn new(limits: impl IntoIterator<Item = Limit>) -> Result<Self, Error> {
        let limits: Vec<Limit> = limits.into_iter().take(MAX_LIMITS + 1).collect();
        let limits = PerLimit::from_slice(&limits).ok_or_else(|| {
            let found = if limits.is_empty() { "none".to_owned() } else { format!("more than {MAX_LIMITS}") };
            Error::new(ErrorKind::InvalidLimit, format!("a policy has 1 to {MAX_LIMITS} limits, found {found}"))
        })?;
        Ok(Self::build(limits))
    }

    fn build(limits: PerLimit<Limit>) -> Self {
        let first = limits[0];
        let longest_window = limits.iter().fold(first.window(), |longest, l| longest.max(l.window()));
        Self {
            counting: Counting::default(),
            longest_window,
            longest_window_zeros: longest_window.as_micros().leading_zeros() as u8,
            largest_max: limits.iter().fold(first.max(), |largest, l| largest.max(l.max())),
            smallest_max: limits.iter().fold(first.max(), |smallest, l| smallest.min(l.max())),
            limits,
            name: None,
        }
    }

    /// The same policy, counting this.
    #[must_use]
    pub fn counting(mut self, counting: Counting) -> Self {
        self.counting = counting;
        self
    }

    /// The same policy under a name, which headers and metrics show: 1 to 64 letters, digits, `-`, `_` or `.`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidLimit`] for any other name.
    pub fn named(mut self, name: &str) -> Result<Self, Error> {
        let allowed = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
        if !(1..=64).contains(&name.len()) || !name.bytes().all(allowed) {
            return Err(Error::new(
                ErrorKind::InvalidLimit,
                "a policy's name has 1 to 64 letters, digits, '-', '_' or '.'",
            ));
        }
        self.name = Some(name.into());
        Ok(self)
    }

    /// The limits, in order: at least one, at most [`MAX_LIMITS`].
    #[inline]
    #[must_use]
    pub fn limits(&self) -> &PerLimit<Limit> {
        &self.limits
    }

    /// What an acquire appends.
    #[inline]
    #[must_use]
    pub fn counts(&self) -> Counting {
        self.counting
    }

    /// The name, if it has one.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// The longest window of all limits: an entry as old as this counts nowhere.
    #[inline]
    #[must_use]
    pub fn longest_window(&self) -> Window {
        self.longest_window
    }

    /// The leading zeros of the longest window's microseconds. Known beforehand, because some processors take long to find
    /// them.
    #[doc(hidden)]
    #[inline]
    #[must_use]
    pub fn longest_window_zeros(&self) -> u8 {
        self.longest_window_zeros
    }

    /// The largest maximum of all limits: no decision depends on what is older than the newest entries that reach it.
    #[inline]
    #[must_use]
    pub fn largest_max(&self) -> u64 {
        self.largest_max
    }

    /// The smallest maximum of all limits: a higher cost can never fit.
    #[inline]
    #[must_use]
    pub fn smallest_max(&self) -> u64 {
        self.smallest_max
    }
}

impl From<Limit> for Policy {
    fn from(limit: Limit) -> Self {
        Self::build(PerLimit::one(limit))
    }
}
