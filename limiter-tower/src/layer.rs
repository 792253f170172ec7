//! The layer.

use std::fmt;
use std::sync::Arc;

use tower_layer::Layer;

use crate::builder::LayerBuilder;
use crate::rejection::StoreFailure;
use crate::respond::Problem;
use crate::rule::Rule;
use crate::rules::Rules;
use crate::service::LimitService;

/// Limits a service's requests: a [`tower_layer::Layer`].
///
/// All clones of the service and all connections share the limit. If any rule denies a request, its handler does not run and no
/// rule charges it, except a denying rule whose policy counts attempts and rules with [`Rule::keep_charge`]. Responses have the
/// [rate limit fields](crate::RateLimitHeaders), and those to denied requests also `Retry-After`.
///
/// Rules charge separate logs: in one atomic call if one store can [change them together](limiter_core::AllOf), otherwise in
/// order. Then, if any rule denies, the others are refunded before the response is sent. Until then, a concurrent request may
/// be denied because of the charge; it is never admitted above a limit. So several rules then admit at most their maxima. Put
/// the rules that many clients share last: a client that its own rule denies then never charges them. A policy's limits share a
/// log.
///
/// ```
/// use std::time::Duration;
/// use axum::{Router, routing::get};
/// use http::StatusCode;
/// use exact_limiter::{Limiter, MemoryStore, policy};
/// use limiter_tower::key::ClientAddress;
/// use limiter_tower::{LimitLayer, MissingKey, Rule, StoreFailure};
///
/// let search = Limiter::new("search", policy!("5/10s, 100/1h"), MemoryStore::new());
/// let rule = Rule::new(search, ClientAddress::peer(), MissingKey::Reject(StatusCode::BAD_REQUEST));
/// let closed = StoreFailure::Closed { retry_after: Duration::from_secs(1) };
/// let app: Router = Router::new().route("/", get(|| async { "hello" })).layer(LimitLayer::new([rule], closed));
/// ```
///
/// # When the client disconnects
/// A request that is dropped while its handler runs stays charged, because the work may have been done; see
/// [`Rule::refund_abandoned`]. So does any charge of a request that is dropped while
/// the stores are asked, even if another rule would have denied it: limits may then admit less, never more.
pub struct LimitLayer<R = Problem>(Arc<LayerBuilder<R>>);

impl LimitLayer {
    /// Returns a layer with these rules. See [`builder`](Self::builder) for options.
    #[must_use]
    pub fn new(rules: impl IntoIterator<Item = Rule>, failure: StoreFailure) -> Self {
        Self::builder(rules, failure).build()
    }

    /// Returns a builder of a layer with these rules, in this order.
    pub fn builder(rules: impl IntoIterator<Item = Rule>, failure: StoreFailure) -> LayerBuilder {
        LayerBuilder::new(Rules::new(rules, failure))
    }
}

impl<R> LayerBuilder<R> {
    /// Returns the layer.
    #[must_use]
    pub fn build(self) -> LimitLayer<R> {
        LimitLayer(Arc::new(self))
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
    type Service = LimitService<S, R>;

    fn layer(&self, service: S) -> LimitService<S, R> {
        LimitService::new(service, Arc::clone(&self.0))
    }
}
