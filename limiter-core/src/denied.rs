//! A denial as an error.

use std::error::Error as StdError;
use std::fmt;
use std::ops::Deref;
use std::time::Duration;

use crate::decision::Decision;
use crate::name::Name;

/// A denied operation, as an error.
///
/// A whole handler's limiting is one line, if its error type is made from [`Error`](crate::Error) and `Denied`:
///
/// ```
/// # #![deny(unused_must_use)]
/// # use limiter_core::Limiter;
/// # async fn handler(search: Limiter) -> Result<(), Box<dyn std::error::Error>> {
/// search.acquire("customer 7").await?.into_result()?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Denied {
    /// The limiter, if it is one of several.
    limiter: Option<Name>,
    /// Boxed, because a large `Err` makes every `Result` of the caller large.
    decision: Box<Decision>,
}

/// A [`Decision`] that is no denial. Unlike one that may be, it can be dropped without a warning.
#[derive(Clone, Debug)]
pub struct Admitted(Decision);

impl Deref for Admitted {
    type Target = Decision;

    fn deref(&self) -> &Decision {
        &self.0
    }
}

impl Decision {
    /// Returns the decision, or the error [`Denied`] if the operation was denied, for `?`. A record is never denied.
    #[inline]
    pub fn into_result(self) -> Result<Admitted, Denied> {
        if self.is_denied() {
            Err(Denied::new(None, self))
        } else {
            Ok(Admitted(self))
        }
    }
}

impl Denied {
    pub(crate) fn new(limiter: Option<Name>, denial: Decision) -> Self {
        let decision = Box::new(denial);
        Self { limiter, decision }
    }

    /// Returns the name of the limiter that denied, if it is one of [several](crate::AllOf).
    #[must_use]
    pub fn limiter_name(&self) -> Option<&str> {
        self.limiter.as_ref().map(Name::as_str)
    }

    /// Returns the decision.
    pub const fn decision(&self) -> &Decision {
        &self.decision
    }

    /// Returns how long to wait until the operation fits, if nothing else is recorded in the meantime. Never zero.
    #[must_use]
    pub fn retry_after(&self) -> Duration {
        self.decision.retry_after().unwrap_or_default()
    }
}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(limiter) = self.limiter {
            write!(f, "{}: ", limiter.as_str().escape_debug())?;
        }
        let limit = self.decision.limit();
        let wait = self.retry_after();
        write!(f, "the limit {limit} is exceeded; retry after {wait:?}")
    }
}

impl StdError for Denied {}
