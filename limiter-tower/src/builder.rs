//! The options that the layers for servers and for clients share.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use limiter_core::Timer;
use limiter_core::request::Background;

use crate::failure::StoreFailure;
use crate::observation::Observation;
use crate::rule::Rule;
use crate::rules::Rules;

/// A layer with options: [`LimitLayer::builder`](crate::LimitLayer::builder) and `WaitLayer::builder` return it.
///
/// `O` has the options of one of the layers. A layer and its services share a finished builder.
#[must_use = "a builder does nothing until `build` is called"]
pub struct LayerBuilder<O> {
    pub(crate) rules: Rules,
    pub(crate) own: O,
}

impl<O> LayerBuilder<O> {
    pub(crate) fn new(rules: impl IntoIterator<Item = Rule>, failure: StoreFailure, own: O) -> Self {
        Self { rules: Rules::new(rules, failure), own }
    }

    /// Sets the timeout of the store for a try, over all rules and look-ups. Default: 1 s. After it, the store counts as failed.
    /// Refunds after a denial or a failure have the same time once more.
    ///
    /// A store in memory answers at once and needs no timer. Any other one needs the [timer](Self::timer).
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.rules.timeout = timeout;
        self
    }

    /// Sets the timer of the timeout and of waiting. Default: tokio's with the feature `tokio` and in a tokio runtime.
    ///
    /// Without a timer, a store that does not answer at once has failed, a request that does not fit at once is refused, and a client
    /// repeats none.
    pub fn timer(mut self, timer: impl Timer) -> Self {
        self.rules.timer = Some(Arc::new(timer));
        self
    }

    /// Sets what runs the refunds of requests that were dropped before they were decided on. Default: tasks of the tokio runtime
    /// with the feature `tokio`, which end after ten seconds; otherwise nothing, and such a charge stays until it expires.
    pub fn refund_in(mut self, background: Background) -> Self {
        self.rules.background = Some(background);
        self
    }

    /// Calls a function with the outcome of each rule, for each try of a request.
    pub fn observe(mut self, observer: impl Fn(&Observation<'_>) + Send + Sync + 'static) -> Self {
        self.rules.observer = Some(Box::new(observer));
        self
    }
}

impl<O> fmt::Debug for LayerBuilder<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LayerBuilder").field("rules", &self.rules).finish_non_exhaustive()
    }
}
