//! Requests that are refused.

use std::time::Duration;

use http::StatusCode;
use limiter_core::request::PartDecision;
use limiter_core::{Error, ErrorKind, JointDecision, WindowStore};

use crate::headers::{FieldNames, RateLimitHeaders, Values, retry_after_secs};

/// How long a client is asked to wait at least after a failure of the store.
pub(crate) const PAUSE: Duration = Duration::from_secs(1);

/// The choice for requests when a rule's store is down or does not respond in time. Every layer requires it. For two choices, use
/// two layers. Errors that no retry mends, such as a wrong password, a missing permission or a damaged log, always fail closed.
#[derive(Clone, Copy, Debug)]
pub enum StoreFailure {
    /// Fail open: the rule that failed does not apply to the request. All other rules do.
    Open,
    /// Fail closed: 503 with `Retry-After`, unless no retry mends the error, and no other rule charges the request.
    Closed {
        /// How long the client is asked to wait, rounded up to whole seconds, at least 1 s.
        retry_after: Duration,
    },
}

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
    /// The store failed, and the layer [fails closed](crate::StoreFailure).
    StoreFailed(Error),
}

/// A request that is refused, as a [`Respond`](crate::Respond) sees it.
#[derive(Debug)]
pub struct Rejection {
    cause: Cause,
    retry_after: Option<Duration>,
    violated: Vec<String>,
    /// A layer's additions to the response itself.
    pub(crate) fields: Values,
}

/// Fails closed: 503, with `Retry-After: 1` if a [retry](Error::is_retryable) may succeed, or 413 for a cost that exceeds a limit.
impl From<Error> for Rejection {
    fn from(error: Error) -> Self {
        Self::of_error(Vec::new(), error, PAUSE)
    }
}

impl Rejection {
    pub(crate) fn new(cause: Cause, retry_after: Option<Duration>, violated: Vec<String>) -> Self {
        Self {
            cause,
            retry_after,
            violated,
            fields: Values::default(),
        }
    }

    /// Returns the rejection of calls if one denies or failed. `pause` is the wait after a store's error.
    pub(crate) fn of_calls<S: WindowStore>(
        violated: Vec<String>,
        calls: &JointDecision<'_, S>,
        pause: Duration,
    ) -> Self {
        let denying = calls.parts().iter().filter(|part| part.denies());
        let errors = denying.filter_map(PartDecision::error);
        // Nothing else matters to a request that can never fit, and least of all an error that a retry mends.
        let rank = |error: &&Error| match error.kind() {
            ErrorKind::CostExceedsLimit => 0,
            _ => 1 + u8::from(error.is_retryable()),
        };
        match errors.min_by_key(rank) {
            Some(error) => Self::of_error(violated, error.clone(), pause),
            None => Self::new(Cause::Denied, calls.retry_after(), violated),
        }
    }

    fn of_error(violated: Vec<String>, error: Error, pause: Duration) -> Self {
        match error.kind() {
            ErrorKind::CostExceedsLimit => Self::new(Cause::CostExceedsLimit, None, violated),
            _ => {
                let pause = error.is_retryable().then_some(pause);
                Self::new(Cause::StoreFailed(error), pause, Vec::new())
            }
        }
    }

    /// Returns the rejection of a decision, for handlers and extractors that send the layer's responses. Its `Retry-After` is the longest
    /// wait.
    ///
    /// [`response`](Self::response) makes it a response, and the feature `axum` does so with problem details and the default
    /// [rate limit fields](crate::RateLimitHeaders). An [`Error`] also converts to a rejection, so `?` returns either from a handler, or
    /// from an extractor of axum:
    ///
    /// ```
    /// use axum::extract::{FromRef, FromRequestParts};
    /// use axum::http::request::Parts;
    /// use exact_limiter::{AllOf, Limiter};
    /// use limiter_tower::Rejection;
    ///
    /// struct Search;
    ///
    /// impl<S: Send + Sync> FromRequestParts<S> for Search
    /// where
    ///     Limiter: FromRef<S>,
    /// {
    ///     type Rejection = Rejection;
    ///
    ///     async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Rejection> {
    ///         let limiter = Limiter::from_ref(state);
    ///         // Requests without an API key share a log.
    ///         let key = parts.headers.get("x-api-key").map_or(&b""[..], |key| key.as_bytes());
    ///         let decision = AllOf::new().with(limiter.acquire(key)).await?;
    ///         if decision.is_denied() { Err(Rejection::of(&decision)) } else { Ok(Self) }
    ///     }
    /// }
    /// # async fn search(_: Search) {}
    /// # let limiter = Limiter::new("search", exact_limiter::policy!("1/10s"), exact_limiter::MemoryStore::new()).into_shared();
    /// # let app = axum::Router::new().route("/", axum::routing::get(search)).with_state(limiter);
    /// # for status in [200, 429] {
    /// #     let request = axum::http::Request::new(axum::body::Body::empty());
    /// #     let response = futures::executor::block_on(tower::ServiceExt::oneshot(app.clone(), request)).unwrap();
    /// #     assert_eq!(response.status(), status);
    /// # }
    /// ```
    #[must_use]
    pub fn of<S: WindowStore>(all: &JointDecision<'_, S>) -> Self {
        let calls = FieldNames::of_calls(all);
        let denying = calls.iter().filter(|(_, part)| part.denies());
        let violated = denying.flat_map(|(names, part)| names.violated_by(part));
        let rejection = Self::of_calls(violated.collect(), all, PAUSE);
        let fields = RateLimitHeaders::default().of_calls(&calls);
        Self {
            fields,
            ..rejection
        }
    }

    /// Returns the cause.
    #[must_use]
    pub const fn cause(&self) -> &Cause {
        &self.cause
    }

    /// Returns the status: 429 for a denial, 413 for a cost that exceeds a limit, 503 if the store failed, or the one in
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

    /// Returns how long to wait until the same request fits all rules, if nothing else is charged. `None` if no wait helps.
    #[must_use]
    pub const fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// Returns [`retry_after`](Self::retry_after) in whole seconds, rounded up: the value of `Retry-After`. It is at least 1.
    #[must_use]
    pub fn retry_after_secs(&self) -> Option<u64> {
        self.retry_after.map(retry_after_secs)
    }

    /// Returns the names of all limits that deny, as the field `RateLimit-Policy` has them.
    #[must_use]
    pub fn violated_policies(&self) -> &[String] {
        &self.violated
    }
}
