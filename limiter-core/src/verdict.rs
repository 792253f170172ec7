//! A denial as an error.

use std::error::Error as StdError;
use std::fmt;
use std::ops::Deref;

use crate::decision::Decision;
use crate::status::Status;

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
///     let usage = search.acquire("customer 7").await?.into_result()?;
///     Ok(usage.remaining())
/// }
/// assert_eq!(handler(&search).await?, 0);
/// let denied = handler(&search).await.unwrap_err().to_string();
/// assert!(denied.starts_with("the limit 1/1h is exceeded; retry after 3"), "{denied}");
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
// Boxed: a large `Err` makes every `Result` of the caller large.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denied(pub(crate) Box<Decision>);

impl Decision {
    /// Returns the usage, or the error [`Denied`], for `?`.
    ///
    /// A record is never denied, even if it did not fit.
    ///
    /// # Errors
    /// [`Denied`] if the operation was denied.
    #[inline]
    pub fn into_result(self) -> Result<Status, Denied> {
        if self.is_denied() {
            Err(Denied(Box::new(self)))
        } else {
            Ok(self.into_status())
        }
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
        write!(
            f,
            "the limit {} is exceeded; retry after {seconds} s",
            self.limit()
        )
    }
}

impl StdError for Denied {}
