//! The options of a layer.

use std::fmt;
use std::time::Duration;

use crate::headers::RateLimitHeaders;
use crate::observation::Observation;
use crate::respond::Problem;
use crate::rules::Rules;

/// A layer with options. [`LimitLayer::builder`](crate::LimitLayer::builder) returns it.
#[must_use = "a builder does nothing until `build` is called"]
pub struct LayerBuilder<R = Problem> {
    pub(crate) rules: Rules,
    /// The longest wait until all rules admit a request.
    pub(crate) within: Duration,
    pub(crate) fields: RateLimitHeaders,
    pub(crate) respond: R,
}

impl LayerBuilder {
    pub(crate) fn new(rules: Rules) -> Self {
        Self {
            rules,
            within: Duration::ZERO,
            fields: RateLimitHeaders::default(),
            respond: Problem,
        }
    }
}

impl<R> LayerBuilder<R> {
    /// Sets how long the stores of all rules may take together for a try. Default: 700 ms. Refunds after a denial or a failure have
    /// the same time once more.
    ///
    /// Each rule has an equal share, and rules that one store decides in one call have theirs together. A stack with a fallback
    /// decides locally when its share is over, so a request gets a response in time, regardless of the number of rules. A store that
    /// ignores its share counts as failed after it.
    ///
    /// A store in memory decides immediately and needs no timer. Any other one needs tokio's timers: without the feature
    /// `tokio` and a tokio runtime it has failed.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.rules.timeout = timeout;
        self
    }

    /// Calls a function with each rule's outcome, for each try of a request.
    pub fn observe(mut self, observer: impl Fn(&Observation<'_>) + Send + Sync + 'static) -> Self {
        self.rules.observer = Some(Box::new(observer));
        self
    }

    /// Sets the rate limit fields.
    pub fn headers(mut self, fields: RateLimitHeaders) -> Self {
        self.fields = fields;
        self
    }

    /// Waits until all rules admit the request, for at most this long. Default: no waiting.
    ///
    /// After a denial, the charges are refunded and the request sleeps for the longest wait of all rules, then tries again. If
    /// it cannot fit in time, it is refused immediately. Waiting requests are served in no particular order. With a policy that
    /// counts attempts, each try counts. The store has its [timeout](Self::timeout) for each try in addition to this time.
    pub fn within(mut self, wait: Duration) -> Self {
        self.within = wait;
        self
    }

    /// Sets the response to refused requests. Default: [`Problem`].
    pub fn respond_with<T>(self, respond: T) -> LayerBuilder<T> {
        let Self {
            rules,
            within,
            fields,
            ..
        } = self;
        LayerBuilder {
            rules,
            within,
            fields,
            respond,
        }
    }
}

impl<R> fmt::Debug for LayerBuilder<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LayerBuilder")
            .field("rules", &self.rules.list)
            .finish_non_exhaustive()
    }
}
