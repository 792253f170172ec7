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
use limiter_core::{BoxFuture, Timer, Timestamp};
use tower_layer::Layer;
use tower_service::Service;

pub use self::error::WaitError;
use self::holds::Holds;
use crate::decide::Rulings;
use crate::failure::StoreFailure;
use crate::head::{RequestHead, ResponseHead};
use crate::observation::Observation;
use crate::refusal::{Cause, Refusal};
use crate::rule::Rule;
use crate::rules::Rules;

/// Sends requests no faster than their rules allow, and no sooner than the server asks: a [`tower_layer::Layer`] for clients.
///
/// A request that does not fit waits, up to the deadline. If it cannot fit in time, it fails at once. After a 429 or 503 with
/// `Retry-After`, all requests with the same keys wait as long as the server asked, at least a second where it says 0. The
/// request itself is [repeated](Repeat) after that wait if it can be and if the wait fits the deadline; otherwise the caller gets
/// the server's response. A repetition is charged again.
///
/// The deadline bounds the time that a request waits. Waiting requests are sent in no particular order. Under a policy that counts
/// attempts, each try counts.
///
/// ```
/// # #[cfg(feature = "reqwest")] {
/// use std::time::Duration;
/// use limiter_core::{Limiter, policy};
/// # use limiter_testkit::OracleStore as MemoryStore;
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

/// A [`WaitLayer`] with options.
#[derive(Debug)]
#[must_use = "a builder does nothing until `build` is called"]
pub struct WaitLayerBuilder {
    rules: Rules,
    deadline: Duration,
}

#[derive(Debug)]
struct Config {
    rules: Rules,
    deadline: Duration,
    holds: Holds,
}

impl WaitLayer {
    /// Returns a builder of a layer with these rules, whose requests wait for at most `deadline`.
    pub fn builder(
        rules: impl IntoIterator<Item = Rule>,
        failure: StoreFailure,
        deadline: Duration,
    ) -> WaitLayerBuilder {
        WaitLayerBuilder { rules: Rules::new(rules, failure), deadline }
    }
}

impl WaitLayerBuilder {
    /// Sets how long the store may take for one try. Default: 1 s. After that it has failed.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.rules.timeout = timeout;
        self
    }

    /// Sets the timer that waits. Default: tokio's with the feature `tokio` and in a tokio runtime. Without a timer, a request that
    /// does not fit at once fails, and none is repeated.
    pub fn timer(mut self, timer: impl Timer) -> Self {
        self.rules.timer = Some(Arc::new(timer));
        self
    }

    /// Calls a function with what each rule said about each try.
    pub fn observe(mut self, observer: impl Fn(&Observation<'_>) + Send + Sync + 'static) -> Self {
        self.rules.observer = Some(Box::new(observer));
        self
    }

    /// Returns the layer.
    #[must_use]
    pub fn build(self) -> WaitLayer {
        WaitLayer(Arc::new(Config { rules: self.rules, deadline: self.deadline, holds: Holds::default() }))
    }
}

impl<S> Layer<S> for WaitLayer {
    type Service = Wait<S>;

    fn layer(&self, service: S) -> Wait<S> {
        Wait { service, config: Arc::clone(&self.0) }
    }
}

/// The service of a [`WaitLayer`].
#[derive(Clone, Debug)]
pub struct Wait<S> {
    service: S,
    config: Arc<Config>,
}

/// A request that can be sent again, after a 429.
pub trait Repeat: Sized {
    /// Returns the same request, `None` if its body is gone.
    fn repeat(&self) -> Option<Self>;
}

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
            let (mut request, mut left) = (request, config.deadline);
            loop {
                let mut rulings = Rulings::new();
                let done = config.rules.try_decide(&RequestHead::from(&request), &mut rulings);
                let Some(rulings) = config.admit(rulings, done, &mut left).await.map_err(WaitError::Refused)? else {
                    continue;
                };
                let next = request.repeat();
                let response = service.call(request).await.map_err(WaitError::Service)?;
                let costs = config.rules.actual_costs(&rulings, &ResponseHead::from(&response));
                let asked = asked_wait(&ResponseHead::from(&response));
                if let Some(wait) = asked {
                    config.hold(&rulings, wait).await;
                }
                if let Some(costs) = costs {
                    config.rules.settle(rulings, costs).await;
                }
                match (next, asked, config.rules.timer()) {
                    (Some(next), Some(wait), Some(timer)) if wait <= left => {
                        drop(response);
                        left -= wait;
                        timer.sleep(wait).await;
                        request = next;
                    }
                    _ => return Ok(response),
                }
                poll_fn(|context| service.poll_ready(context)).await.map_err(WaitError::Service)?;
            }
        })
    }
}

impl Config {
    /// Finishes a try. Returns its rulings if the request may be sent, and `None` after a wait.
    async fn admit(&self, rulings: Rulings, done: bool, left: &mut Duration) -> Result<Option<Rulings>, Refusal> {
        let rulings = if done { rulings } else { self.rules.finish(rulings).await };
        self.rules.report(&rulings);
        let refusal = if self.rules.refuses(&rulings) {
            self.rules.refusal(rulings)
        } else if let Some(wait) = self.holds.left(&hold_key(&rulings), now(&rulings)) {
            let refund = vec![Some(0); rulings.len()];
            self.rules.settle(rulings, refund).await;
            Refusal::new(Cause::AskedToWait, Some(wait), Vec::new())
        } else {
            return Ok(Some(rulings));
        };
        match (refusal.cause(), refusal.retry_after(), self.rules.timer()) {
            (Cause::Denied | Cause::AskedToWait, Some(wait), Some(timer)) if wait <= *left => {
                *left -= wait;
                timer.sleep(wait).await;
                Ok(None)
            }
            _ => Err(refusal),
        }
    }

    /// Holds requests with the same keys back for as long as the server asked.
    fn hold<'a>(&'a self, rulings: &Rulings, wait: Duration) -> impl Future<Output = ()> + Send + use<'a> {
        let (key, now) = (hold_key(rulings), self.rules.now(rulings));
        async move {
            if let Some(now) = now.await {
                self.holds.add(key, now, now.saturating_add(wait));
            }
        }
    }
}

/// All keys of a request.
fn hold_key(rulings: &Rulings) -> Vec<u8> {
    let mut key = Vec::new();
    for ruling in rulings {
        let part = ruling.key.as_ref();
        key.extend_from_slice(&part.len().to_le_bytes());
        key.extend_from_slice(part);
    }
    key
}

/// The time at which the rules decided.
fn now(rulings: &Rulings) -> Option<Timestamp> {
    rulings.iter().filter_map(|ruling| ruling.status()).map(limiter_core::Status::at).max()
}

/// Returns the wait that a 429 or 503 asks for, in seconds or as a date.
fn asked_wait(response: &ResponseHead<'_>) -> Option<Duration> {
    if !matches!(response.status(), StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
        return None;
    }
    let value = response.headers().get(RETRY_AFTER)?.to_str().ok()?;
    if let Ok(seconds) = value.parse::<u64>() {
        // A server that always answers 0 would be asked forever.
        return Some(Duration::from_secs(seconds.max(1)));
    }
    let date = httpdate::parse_http_date(value).ok()?;
    date.duration_since(SystemTime::now()).ok()
}
