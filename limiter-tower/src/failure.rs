//! What happens when the store fails.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use limiter_core::Error;

/// The choice for requests when a rule's store fails or does not answer in time. Every layer requires it.
#[derive(Clone)]
pub enum StoreFailure {
    /// Fail open: the rule that failed does not apply to the request. All other rules do.
    Open,
    /// Fail closed: 503 with `Retry-After`, and no other rule charges the request.
    Closed {
        /// How long the client is asked to wait, rounded up to whole seconds.
        retry_after: Duration,
    },
    /// Whatever the function returns. Do not return `Choose` from it: it counts as closed with one second.
    Choose(Arc<dyn Fn(&Error) -> StoreFailure + Send + Sync>),
}

impl StoreFailure {
    /// Returns [`Choose`](Self::Choose) with this function. The error always names the limiter of the rule.
    ///
    /// ```
    /// use std::time::Duration;
    /// use limiter_tower::StoreFailure;
    ///
    /// // Searches go on without the limit, logins do not.
    /// let failure = StoreFailure::choose(|error| match error.limiter_name() {
    ///     Some("login") => StoreFailure::Closed { retry_after: Duration::from_secs(2) },
    ///     _ => StoreFailure::Open,
    /// });
    /// # let _ = failure;
    /// ```
    #[must_use]
    pub fn choose(choose: impl Fn(&Error) -> Self + Send + Sync + 'static) -> Self {
        Self::Choose(Arc::new(choose))
    }

    /// Returns how long to ask the client to wait if this error closes the service, `None` if it stays open.
    pub(crate) fn closes(&self, error: &Error) -> Option<Duration> {
        let chosen = match self {
            Self::Choose(choose) => &choose(error),
            other => other,
        };
        match chosen {
            Self::Open => None,
            Self::Closed { retry_after } => Some((*retry_after).max(Duration::from_secs(1))),
            Self::Choose(_) => Some(Duration::from_secs(1)),
        }
    }
}

impl fmt::Debug for StoreFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open => f.write_str("Open"),
            Self::Closed { retry_after } => f.debug_struct("Closed").field("retry_after", retry_after).finish(),
            Self::Choose(_) => f.write_str("Choose(…)"),
        }
    }
}
