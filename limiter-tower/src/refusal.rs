//! Requests that are refused.

use std::time::Duration;

use http::StatusCode;
use limiter_core::{Decision, Error, Limiter, ceil_secs};

use crate::headers::Names;

/// Why a request is refused.
#[derive(Debug)]
#[non_exhaustive]
pub enum Cause {
    /// One or more limits deny it.
    Denied,
    /// Its cost is above a limit's maximum, so no wait helps.
    CostExceedsLimit,
    /// It has no key, and its rule [rejects](crate::MissingKey::Reject) such requests with this status.
    MissingKey(StatusCode),
    /// The store failed, and the layer [fails closed](crate::StoreFailure::Closed).
    StoreFailed(Error),
}

/// A request that is refused, as a [`Respond`](crate::Respond) sees it.
#[derive(Debug)]
pub struct Refusal {
    cause: Cause,
    retry_after: Option<Duration>,
    violated: Vec<String>,
}

impl Refusal {
    pub(crate) const fn new(cause: Cause, retry_after: Option<Duration>, violated: Vec<String>) -> Self {
        Self { cause, retry_after, violated }
    }

    /// Returns the refusal of a denied decision, for handlers that limit and answer like the layer.
    ///
    /// The feature `axum` makes it a response: problem details with `Retry-After`.
    ///
    /// ```
    /// # use exact_limiter::{Error, Limiter};
    /// use limiter_tower::Refusal;
    ///
    /// async fn handler(search: &Limiter, customer: u64) -> Result<Result<String, Refusal>, Error> {
    ///     let decision = search.acquire(customer).await?;
    ///     Ok(match decision.into_result() {
    ///         Ok(admitted) => Ok(format!("{} left", admitted.remaining())),
    ///         Err(denied) => Err(Refusal::denied(search, &denied)),
    ///     })
    /// }
    /// # let _ = handler;
    /// ```
    #[must_use]
    pub fn denied<S>(limiter: &Limiter<S>, decision: &Decision) -> Self {
        Self::new(Cause::Denied, decision.retry_after(), Names::of_decision(limiter, decision).denying(decision))
    }

    /// Returns the cause.
    #[must_use]
    pub const fn cause(&self) -> &Cause {
        &self.cause
    }

    /// Returns the status: 429 for a denial, 413 for a cost that exceeds a limit, 503 if the store failed, or that of
    /// [`MissingKey::Reject`](crate::MissingKey::Reject).
    #[must_use]
    pub const fn status(&self) -> StatusCode {
        match self.cause {
            Cause::Denied => StatusCode::TOO_MANY_REQUESTS,
            Cause::CostExceedsLimit => StatusCode::PAYLOAD_TOO_LARGE,
            Cause::MissingKey(status) => status,
            Cause::StoreFailed(_) => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// Returns how long to wait until the same request fits all rules, if nothing else is charged; `None` if no wait helps.
    #[must_use]
    pub const fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// Returns [`retry_after`](Self::retry_after) in whole seconds, rounded up: the value of `Retry-After`. It is at least 1.
    #[must_use]
    pub fn retry_after_secs(&self) -> Option<u64> {
        self.retry_after.map(|wait| ceil_secs(wait).max(1))
    }

    /// Returns the names of all limits that deny, as the field `RateLimit-Policy` has them.
    #[must_use]
    pub fn violated_policies(&self) -> &[String] {
        &self.violated
    }
}
