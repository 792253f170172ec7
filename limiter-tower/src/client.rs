//! The layer for clients: waits until a request may be sent.

mod error;
mod holds;

use std::future::poll_fn;
use std::mem;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use http::StatusCode;
use http::header::RETRY_AFTER;
use limiter_core::{BoxFuture, Timestamp};
use tower_layer::Layer;
use tower_service::Service;

pub use self::error::WaitError;
use self::holds::Holds;
use crate::builder::LayerBuilder;
use crate::failure::StoreFailure;
use crate::head::{RequestHead, ResponseHead};
use crate::refusal::{Cause, Refusal};
use crate::rule::Rule;
use crate::rulings::Rulings;

/// Sends requests no faster than their rules allow, and no sooner than the server asks: a [`tower_layer::Layer`] for clients.
///
/// A request that does not fit waits, up to the deadline. If it cannot fit in time, it fails immediately. After a 429 or 503
/// with `Retry-After`, all requests with the same keys wait for as long as the server asked, but at least a second and at most
/// an hour. The request itself is then [repeated](Repeat) if its body allows it and the wait fits the deadline. Otherwise the caller gets the
/// server's response. A repeated request is charged again.
///
/// The deadline bounds the time that a request waits. Waiting requests are sent in no particular order. Under a policy that counts
/// attempts, each try counts.
///
/// ```
/// # #[cfg(feature = "reqwest")] {
/// use std::time::Duration;
/// use limiter::{Limiter, MemoryStore, policy};
/// use limiter_tower::key::Host;
/// use limiter_tower::{MissingKey, Rule, StoreFailure, WaitLayer};
/// use tower_layer::Layer;
///
/// let polite = Limiter::new("outgoing", policy!("10/1s"), MemoryStore::new());
/// let rule = Rule::new(polite, Host, MissingKey::Skip);
/// let layer = WaitLayer::builder([rule], StoreFailure::Open, Duration::from_secs(30)).build();
/// let client = layer.layer(reqwest::Client::new());
/// # let _ = client;
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct WaitLayer(Arc<Config>);

/// The options of a [`WaitLayer`] alone.
#[derive(Debug)]
pub struct WaitOptions {
    deadline: Duration,
    holds: Holds,
}

type Config = LayerBuilder<WaitOptions>;

impl WaitLayer {
    /// Returns a builder of a layer with these rules, whose requests wait for at most `deadline`.
    pub fn builder(
        rules: impl IntoIterator<Item = Rule>,
        failure: StoreFailure,
        deadline: Duration,
    ) -> LayerBuilder<WaitOptions> {
        LayerBuilder::new(rules, failure, WaitOptions { deadline, holds: Holds::default() })
    }
}

impl LayerBuilder<WaitOptions> {
    /// Returns the layer.
    #[must_use]
    pub fn build(self) -> WaitLayer {
        WaitLayer(Arc::new(self))
    }
}

impl<S> Layer<S> for WaitLayer {
    type Service = Wait<S>;

    fn layer(&self, service: S) -> Wait<S> {
        Wait { service, config: Arc::clone(&self.0) }
    }
}

/// A server that always answers 0 would be asked forever, and one that asks for years would stop the client.
const ASKED_WAITS: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(3_600)];

/// The service of a [`WaitLayer`].
#[derive(Clone, Debug)]
pub struct Wait<S> {
    service: S,
    config: Arc<Config>,
}

/// A request that can be sent again, after a 429.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be sent again, so no `WaitLayer` takes it",
    note = "`WaitLayer` is for clients, whose requests have a body that is `Clone`, or are `reqwest::Request`",
    note = "a server waits with `LayerBuilder::within`"
)]
pub trait Repeat: Sized {
    /// Returns the same request, `None` if its body is gone.
    fn repeat(&self) -> Option<Self>;
}

#[diagnostic::do_not_recommend]
impl<B: Clone> Repeat for http::Request<B> {
    fn repeat(&self) -> Option<Self> {
        Some(self.clone())
    }
}

#[cfg(feature = "reqwest")]
impl Repeat for reqwest::Request {
    fn repeat(&self) -> Option<Self> {
        self.try_clone()
    }
}

impl<S, Q> Service<Q> for Wait<S>
where
    S: Service<Q> + Clone + Send + 'static,
    S::Future: Send,
    S::Response: Send,
    S::Error: Send,
    Q: Repeat + Send + 'static,
    for<'a> RequestHead<'a>: From<&'a Q>,
    for<'a> ResponseHead<'a>: From<&'a S::Response>,
{
    type Response = S::Response;
    type Error = WaitError<S::Error>;
    type Future = BoxFuture<'static, Result<S::Response, WaitError<S::Error>>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.service.poll_ready(context).map_err(WaitError::Service)
    }

    fn call(&mut self, request: Q) -> Self::Future {
        // A clone need not be ready, so the service that is goes with the request.
        let clone = self.service.clone();
        let mut service = mem::replace(&mut self.service, clone);
        let config = Arc::clone(&self.config);
        Box::pin(async move {
            let (mut request, mut left) = (request, config.own.deadline);
            loop {
                let rulings = Rulings::new(config.rules.list(), &RequestHead::from(&request));
                let mut rulings = config.admit(rulings.into_owned(), &mut left).await.map_err(WaitError::Refused)?;
                config.rules.keep_unless_abandoned(&mut rulings);
                let next = request.repeat();
                let served = service.call(request).await;
                let head = served.as_ref().ok().map(ResponseHead::from);
                let costs = config.rules.actual_costs(&mut rulings, head.as_ref());
                let asked = head.as_ref().and_then(asked_wait);
                let response = served.map_err(WaitError::Service)?;
                if let Some(wait) = asked
                    && let Some(now) = config.rules.now(&rulings.together).await
                {
                    config.own.holds.add(hold_key(&rulings), now, now.saturating_add(wait));
                }
                if let Some(costs) = costs {
                    config.rules.settle(rulings, costs).await;
                }
                let (Some(next), Some(wait)) = (next, asked) else { return Ok(response) };
                if !config.rules.sleep(wait, &mut left).await {
                    return Ok(response);
                }
                request = next;
                poll_fn(|context| service.poll_ready(context)).await.map_err(WaitError::Service)?;
            }
        })
    }
}

impl Config {
    /// Waits until the rules admit the request and no server asked it to wait.
    async fn admit(&self, mut rulings: Rulings<'static>, left: &mut Duration) -> Result<Rulings<'static>, Refusal> {
        loop {
            rulings = self.rules.decide(rulings, left).await;
            if rulings.refuses() {
                return Err(self.rules.refusal(&mut rulings));
            }
            let Some(wait) = self.own.holds.left(&hold_key(&rulings), now(&rulings)) else { return Ok(rulings) };
            self.rules.refund(&mut rulings).await;
            if !self.rules.sleep(wait, left).await {
                return Err(Refusal::new(Cause::AskedToWait, Some(wait), Vec::new()));
            }
            rulings.together.forget();
        }
    }
}

/// All keys of a request.
fn hold_key(rulings: &Rulings<'_>) -> Vec<u8> {
    let mut key = Vec::new();
    for (_, part) in rulings.iter() {
        let part = part.map_or(&[][..], |part| part.key().as_ref());
        key.extend_from_slice(&part.len().to_le_bytes());
        key.extend_from_slice(part);
    }
    key
}

/// The time at which the rules decided.
fn now(rulings: &Rulings<'_>) -> Option<Timestamp> {
    rulings.together.parts().iter().filter_map(|part| part.status()).map(limiter_core::Status::at).max()
}

/// Returns the wait that a 429 or 503 asks for, in seconds or as a date.
fn asked_wait(response: &ResponseHead<'_>) -> Option<Duration> {
    if !matches!(response.status(), StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
        return None;
    }
    let value = response.headers().get(RETRY_AFTER)?.to_str().ok()?;
    let wait = match value.parse() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => httpdate::parse_http_date(value).ok()?.duration_since(SystemTime::now()).ok()?,
    };
    let [least, most] = ASKED_WAITS;
    Some(wait.clamp(least, most))
}
