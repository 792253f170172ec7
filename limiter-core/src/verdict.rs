//! A decision as a `Result`.

use std::error::Error as StdError;
use std::fmt;
use std::ops::Deref;

use crate::decision::Decision;

/// The decision on an operation that was not denied. Dereferences to the [`Decision`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admitted(Decision);

/// The decision on a denied operation, as an error. Dereferences to the [`Decision`].
///
/// A whole handler's limiting is one line, if its error type is made from [`Error`](crate::Error) and `Denied`:
///
/// ```
/// # use limiter_core::{Limiter, policy};
/// # use limiter_testkit::ReferenceStore as MemoryStore;
/// # let search = Limiter::new("search", policy!("1/1h"), MemoryStore::new());
/// # futures::executor::block_on(async {
/// async fn handler(search: &Limiter<MemoryStore>) -> Result<u64, Box<dyn std::error::Error>> {
///     let admitted = search.acquire("customer 7").await?.into_result()?;
///     Ok(admitted.remaining())
/// }
/// assert_eq!(handler(&search).await?, 0);
/// let denied = handler(&search).await.unwrap_err().to_string();
/// assert!(denied.starts_with("the limit 1/1h is used up; retry after 3"), "{denied}");
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
// Boxed: a large `Err` makes every `Result` of the caller large.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denied(Box<Decision>);

impl Decision {
    /// Returns the decision as a `Result`, for `?`: [`Admitted`], or the error [`Denied`].
    ///
    /// A record is always [`Admitted`], even if it did not fit.
    ///
    /// # Errors
    /// [`Denied`] if the operation was denied.
    #[inline]
    pub fn into_result(self) -> Result<Admitted, Denied> {
        if self.is_denied() { Err(Denied(Box::new(self))) } else { Ok(Admitted(self)) }
    }
}

impl Admitted {
    /// Returns the decision.
    #[inline]
    pub fn into_decision(self) -> Decision {
        self.0
    }
}

impl Deref for Admitted {
    type Target = Decision;

    #[inline]
    fn deref(&self) -> &Decision {
        &self.0
    }
}

impl Deref for Denied {
    type Target = Decision;

    fn deref(&self) -> &Decision {
        &self.0
    }
}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.retry_after().unwrap_or_default().as_secs_f64();
        write!(f, "the limit {} is used up; retry after {seconds} s", self.limit())
    }
}

impl StdError for Denied {}
