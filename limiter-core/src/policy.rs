//! Policies: one or more limits and a counting mode.

pub(crate) mod bounds;
pub(crate) mod limit;
pub(crate) mod notation;
pub(crate) mod parse;
pub(crate) mod resolution;
pub(crate) mod time;

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use self::bounds::{MAX_LIMITS, OutOfRange, Quantity};
use self::limit::Limit;
use self::time::Window;
use crate::error::{Error, ErrorKind};

/// The counting mode: which acquires append an entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "lowercase")
)]
pub enum Counting {
    /// Only admitted acquires count, so denied requests are free. This is the default.
    #[default]
    Admitted,
    /// Every attempt counts, so denied requests extend the wait and hammering is punished.
    Attempts,
}

/// One to [`MAX_LIMITS`] limits that apply together, and a counting mode.
///
/// An operation fits a policy only if it fits every limit. Each operation carries its policy, so keys may have different
/// policies, and a changed policy keeps the history. An operation with another policy never erases entries that the limiter's
/// default policy still counts; see [`Acquire::policy`](crate::request::Acquire::policy). If calls have their own policies, such as
/// customers' plans, the default policy should admit at least as much: a call has a receipt only if it fits both.
///
/// # Configuration files
/// With the feature `serde`, a policy is the text of its limits, or a table if it needs a counting mode or a name:
///
/// ```toml
/// search = "5/10s, 100/1h"
/// login = { limits = ["5/15m"], counting = "attempts", name = "logins" }
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Policy {
    /// A `const` holds neither a `Vec` nor a box. The elements after the limits are [`Limit::UNUSED`].
    limits: [Limit; MAX_LIMITS],
    /// The number of limits, and the bit [`RESOLUTION`].
    len: u8,
    counting: Counting,
    /// The code of the shortest lease; 0 if a limit has none.
    lease: u8,
    longest_window: Window,
    longest_exact_window: Option<Window>,
    largest_max: u64,
    smallest_max: u64,
    name: Option<Cow<'static, str>>,
}

/// The bit of `len` that is set if a limit has a resolution, so that no array of exact limits has such a length.
const RESOLUTION: u8 = 1 << 7;

impl Policy {
    /// Returns a policy of these limits, with [`Counting::Admitted`].
    ///
    /// The order matters only for ties: if two limits bind equally, a decision reports the earlier one.
    ///
    /// # Errors
    /// [`OutOfRange`] if there are no limits or more than [`MAX_LIMITS`], or if two have different resolutions.
    pub fn new(limits: impl IntoIterator<Item = Limit>) -> Result<Self, OutOfRange> {
        let mut array = [Limit::UNUSED; MAX_LIMITS];
        let mut count = 0;
        // Takes one more than fits, because the iterator may be endless.
        for limit in limits.into_iter().take(MAX_LIMITS + 1) {
            if let Some(place) = array.get_mut(count) {
                *place = limit;
            }
            count += 1;
        }
        if count == 0 || count > MAX_LIMITS {
            return Err(OutOfRange::new(Quantity::Limits, count as u64));
        }
        Limit::check_resolutions(&array)?;
        Ok(Self::from_checked(array, count))
    }

    /// Returns a policy of the first `count` limits of `limits`. `count` is 1 to [`MAX_LIMITS`].
    pub(crate) const fn from_checked(limits: [Limit; MAX_LIMITS], count: usize) -> Self {
        let (mut longest, mut largest, mut smallest) =
            (limits[0].window(), limits[0].max(), limits[0].max());
        let mut len = count as u8;
        let mut lease = limits[0].lease_code();
        let mut i = 0;
        let mut exact = None::<Window>;
        while i < count {
            let limit = limits[i];
            if limit.lease_code() < lease {
                lease = limit.lease_code();
            }
            if limit.resolution_micros() > 0 {
                len |= RESOLUTION;
            } else if match exact {
                None => true,
                Some(window) => limit.window().as_micros() > window.as_micros(),
            } {
                exact = Some(limit.window());
            }
            if limit.window().as_micros() > longest.as_micros() {
                longest = limit.window();
            }
            if limit.max() > largest {
                largest = limit.max();
            }
            if limit.max() < smallest {
                smallest = limit.max();
            }
            i += 1;
        }
        Self {
            limits,
            len,
            counting: Counting::Admitted,
            lease,
            longest_window: longest,
            longest_exact_window: exact,
            largest_max: largest,
            smallest_max: smallest,
            name: None,
        }
    }

    /// Sets the counting mode. Default: [`Counting::Admitted`].
    #[must_use]
    pub const fn with_counting(mut self, counting: Counting) -> Self {
        self.counting = counting;
        self
    }

    /// Sets the name that labels the policy in metrics, such as `"gold"`. Default: no name.
    #[must_use]
    pub fn with_name(mut self, name: impl Into<Cow<'static, str>>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Returns the 1 to [`MAX_LIMITS`] limits, in order.
    #[inline(always)]
    pub fn limits(&self) -> &[Limit] {
        self.limits
            .get(..usize::from(self.len & !RESOLUTION))
            .unwrap_or(&self.limits)
    }

    /// Returns the counting mode.
    #[inline]
    pub const fn counting(&self) -> Counting {
        self.counting
    }

    /// Returns the name, or `None` if the policy has none.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Returns the longest window of all limits. An entry of this age or older counts in no window.
    #[inline]
    pub const fn longest_window(&self) -> Window {
        self.longest_window
    }

    /// Returns the longest window of the limits without a [resolution](Limit::resolution). `None` if every limit has one.
    ///
    /// Receipts and idempotency keys last that long.
    #[inline]
    pub const fn longest_exact_window(&self) -> Option<Window> {
        self.longest_exact_window
    }

    /// Returns an error if no limit is exact. Entries then have no receipts, so charges cannot be settled or refunded.
    ///
    /// # Errors
    /// [`ErrorKind::NeedsExactLimit`], whose text says what to add.
    pub fn check_receipts(&self) -> Result<(), Error> {
        if self.longest_exact_window.is_some() {
            return Ok(());
        }
        let text = "permits and idempotency keys need an exact limit: add one whose window is as long as the call takes, such as \
                    `60000/10m`";
        Err(Error::new(ErrorKind::NeedsExactLimit, text))
    }

    /// Returns the largest maximum of all limits.
    ///
    /// Once the newest entries reach it, no decision depends on older ones.
    #[inline]
    pub const fn largest_max(&self) -> u64 {
        self.largest_max
    }

    /// Returns the smallest maximum of all limits. An operation with a higher cost can never fit.
    #[inline]
    pub const fn smallest_max(&self) -> u64 {
        self.smallest_max
    }

    /// Returns the resolution, which the limits that have one share.
    pub(crate) fn resolution_micros(&self) -> Option<u64> {
        let all = self.limits().iter().map(Limit::resolution_micros);
        all.max().filter(|resolution| *resolution > 0)
    }

    /// Returns the shortest [lease](Limit::lease) of all limits. `None` if a limit has none.
    pub const fn lease(&self) -> Option<Duration> {
        resolution::length(self.lease)
    }

    /// Returns the limits as an array. `None` unless there are exactly `N`, all of them exact.
    #[doc(hidden)]
    #[inline(always)]
    pub fn limits_array<const N: usize>(&self) -> Option<&[Limit; N]> {
        if usize::from(self.len) == N {
            self.limits.first_chunk()
        } else {
            None
        }
    }
}

impl fmt::Debug for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Policy");
        out.field("limits", &self.limits())
            .field("counting", &self.counting)
            .field("name", &self.name)
            .finish()
    }
}

/// A value that [`Limiter::new`](crate::Limiter::new) takes as its policy: a [`Policy`] or a [`Limit`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a policy",
    note = "for a literal, write `policy!(\"5/10s, 100/1h\")`, which the compiler checks",
    note = "for text that is known at run time, write `text.parse::<Policy>()?`"
)]
pub trait IntoPolicy {
    /// Converts the value.
    fn into_policy(self) -> Policy;
}

// Not for everything that converts into a policy: the compiler would then complain about the conversion, in its own words.
impl IntoPolicy for Policy {
    fn into_policy(self) -> Policy {
        self
    }
}

impl IntoPolicy for &Policy {
    fn into_policy(self) -> Policy {
        self.clone()
    }
}

impl IntoPolicy for Limit {
    fn into_policy(self) -> Policy {
        self.into()
    }
}

impl From<Limit> for Policy {
    fn from(limit: Limit) -> Self {
        let mut limits = [Limit::UNUSED; MAX_LIMITS];
        limits[0] = limit;
        Self::from_checked(limits, 1)
    }
}

/// Creates a [`Policy`] from a literal, which the compiler checks.
///
/// The syntax is the same as for `"…".parse::<Policy>()`: limits separated by commas. Malformed text and two resolutions are compile
/// errors.
///
/// ```compile_fail
/// let mistyped = limiter_core::policy!("5/10x");
/// ```
///
/// ```compile_fail
/// let two_resolutions = limiter_core::policy!("5/1m~1s, 9/1h~1m");
/// ```
#[macro_export]
macro_rules! policy {
    ($text:expr) => {{
        {
            // An item, not a const block: `cargo check` evaluates items only.
            const POLICY: $crate::Policy = $crate::internal::policy_from_literal($text);
            POLICY
        }
    }};
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_has_one_to_eight_limits() {
        let [second, longer] = [1, 10].map(Duration::from_secs);
        let limit = |max| Limit::new(max, second).unwrap();
        let coarse = |millis| limit(1).with_resolution(Duration::from_millis(millis));
        let [coarse, finer] = [10, 1].map(|millis| coarse(millis).unwrap());
        for (limits, text) in [
            (vec![], "a policy has 1 to 8 limits, found none"),
            (vec![limit(1); 9], "a policy has 1 to 8 limits, found more"),
            (
                vec![coarse, limit(1), finer],
                "resolutions 10ms and 1ms differ, expected one resolution for the whole policy",
            ),
        ] {
            let error = Policy::new(limits).unwrap_err();
            assert_eq!(error.to_string(), text);
            assert_eq!(Error::from(error).kind(), ErrorKind::InvalidLimit);
        }
        assert!(Policy::new(std::iter::repeat(limit(1))).is_err());
        for count in 1..=8 {
            let policy = Policy::new((1..=count).map(limit)).unwrap();
            assert_eq!(policy.limits().len() as u64, count);
            assert_eq!([policy.smallest_max(), policy.largest_max()], [1, count]);
            assert_eq!(policy.limits_array::<3>().is_some(), count == 3);
            let last = Policy::new((1..count).map(limit).chain([coarse])).unwrap();
            assert_eq!(last.limits().len() as u64, count);
            assert_eq!(last.limits().last(), Some(&coarse));
            assert_eq!(last.limits_array::<3>(), None);
            let exact = Window::from_micros(1_000_000).ok();
            assert_eq!(policy.longest_exact_window(), exact);
            assert_eq!(last.longest_exact_window(), exact.filter(|_| count > 1));
            let wide = Limit::new(1, longer).unwrap();
            let leased = |lease| wide.with_lease(lease).unwrap();
            for (last, lease) in [
                (leased(second), Some(second)),
                (leased(longer), Some(longer)),
                (wide, None),
            ] {
                let others = (1..count).map(|_| leased(longer));
                let policy = Policy::new(others.chain([last])).unwrap();
                assert_eq!(policy.lease(), lease);
            }
        }
    }
}
