//! The layer for servers.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use limiter_core::Timer;
use limiter_core::request::Background;
use tower_layer::Layer;

use crate::failure::StoreFailure;
use crate::fields::Fields;
use crate::observation::Observation;
use crate::respond::Problem;
use crate::rule::Rule;
use crate::rules::Rules;
use crate::service::{Config, Limit};

/// Limits the requests of a service: a [`tower_layer::Layer`].
///
/// All clones of the service and all connections share the limit. A request that is denied by one rule is charged by none,
/// except by a denying rule whose policy counts attempts, and its handler does not run. Responses have the
/// [rate limit fields](Fields), those to denied requests a `Retry-After` as well.
///
/// Several rules are several logs. They are charged one after the other, and if one of them denies, the others are refunded
/// before the response is sent. In between, a concurrent request may see the charge and be denied; it can never be admitted
/// above a limit. So one rule admits exactly its maximum, and several admit at most theirs. Put the rules that many clients share
/// last: a client that its own rule denies then never charges them. Several limits of one policy are one log and need no refund.
///
/// ```
/// use std::time::Duration;
/// use axum::{Router, routing::get};
/// use http::StatusCode;
/// use limiter::{Limiter, MemoryStore, policy};
/// use limiter_tower::key::PeerAddress;
/// use limiter_tower::{LimitLayer, MissingKey, Rule, StoreFailure};
///
/// let search = Limiter::new("search", policy!("5/10s, 100/1h"), MemoryStore::new());
/// let rule = Rule::new(search, PeerAddress::new(), MissingKey::Reject(StatusCode::BAD_REQUEST));
/// let closed = StoreFailure::Closed { retry_after: Duration::from_secs(1) };
/// let app: Router = Router::new().route("/", get(|| async { "hello" })).layer(LimitLayer::new([rule], closed));
/// ```
///
/// # When the client goes away
/// A request that is dropped while its handler runs stays charged, because the work may have been done; see
/// [`Rule::refund_abandoned`]. One that is dropped while the store is asked is [refunded](LimitLayerBuilder::refund_in).
pub struct LimitLayer<R = Problem>(Arc<Config<R>>);

/// A [`LimitLayer`] with options.
#[derive(Debug)]
#[must_use = "a builder does nothing until `build` is called"]
pub struct LimitLayerBuilder<R = Problem> {
    rules: Rules,
    within: Duration,
    fields: Fields,
    respond: R,
}

impl LimitLayer {
    /// Returns a layer with these rules. See [`builder`](Self::builder) for options.
    #[must_use]
    pub fn new(rules: impl IntoIterator<Item = Rule>, failure: StoreFailure) -> Self {
        Self::builder(rules, failure).build()
    }

    /// Returns a builder of a layer with these rules, in this order.
    pub fn builder(rules: impl IntoIterator<Item = Rule>, failure: StoreFailure) -> LimitLayerBuilder {
        let rules = Rules::new(rules, failure);
        LimitLayerBuilder { rules, within: Duration::ZERO, fields: Fields::default(), respond: Problem }
    }
}

impl<R> LimitLayerBuilder<R> {
    /// Sets the rate limit fields.
    pub fn fields(mut self, fields: Fields) -> Self {
        self.fields = fields;
        self
    }

    /// Sets how long the store may take for one request, all rules and look-ups together. Default: 1 s. After that it has failed.
    /// Refunds after a denial or a failure have the same time once more.
    ///
    /// A store in memory answers at once and needs no timer. Any other one needs the [timer](Self::timer).
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.rules.timeout = timeout;
        self
    }

    /// Waits until all rules admit the request, for at most this long. Default: no waiting.
    ///
    /// After a denial, the charges are refunded and the request sleeps for the longest wait of all rules, then tries again. If it
    /// cannot fit in time, it is refused at once. Waiting requests are served in no particular order. Under a policy that counts
    /// attempts, each try counts. The store has its [timeout](Self::timeout) for each try, beside this time.
    pub fn within(mut self, wait: Duration) -> Self {
        self.within = wait;
        self
    }

    /// Sets what runs the refunds of requests that were dropped before they were decided on. Default: tasks of the tokio runtime
    /// with the feature `tokio`, which end after ten seconds; otherwise nothing, and such a charge stays until it expires.
    pub fn refund_in(mut self, background: Background) -> Self {
        self.rules.background = Some(background);
        self
    }

    /// Sets the timer of the timeout and of waiting. Default: tokio's with the feature `tokio` and in a tokio runtime. Without a timer, a store
    /// that does not answer at once has failed.
    pub fn timer(mut self, timer: impl Timer) -> Self {
        self.rules.timer = Some(Arc::new(timer));
        self
    }

    /// Sets how refused requests are answered. Default: [`Problem`].
    pub fn respond_with<T>(self, respond: T) -> LimitLayerBuilder<T> {
        LimitLayerBuilder { rules: self.rules, within: self.within, fields: self.fields, respond }
    }

    /// Calls a function with what each rule said about each request.
    pub fn observe(mut self, observer: impl Fn(&Observation<'_>) + Send + Sync + 'static) -> Self {
        self.rules.observer = Some(Box::new(observer));
        self
    }

    /// Returns the layer.
    #[must_use]
    pub fn build(self) -> LimitLayer<R> {
        let Self { rules, within, fields, respond } = self;
        LimitLayer(Arc::new(Config::new(rules, within, fields, respond)))
    }
}

impl<R> Clone for LimitLayer<R> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<R> fmt::Debug for LimitLayer<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LimitLayer").field(&self.0).finish()
    }
}

impl<S, R> Layer<S> for LimitLayer<R> {
    type Service = Limit<S, R>;

    fn layer(&self, service: S) -> Limit<S, R> {
        Limit::new(service, Arc::clone(&self.0))
    }
}
