//! The service of the layer.

use std::fmt;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::{Request, Response};
use http_body::Body;
use limiter_core::BoxFuture;
use limiter_core::internal::within;
use pin_project_lite::pin_project;
use tower_service::Service;

use crate::builder::LayerBuilder;
use crate::charges::run;
use crate::head::{RequestHead, ResponseHead};
use crate::headers::Values;
use crate::respond::{Problem, Respond};
use crate::rules::Rules;
use crate::rulings::Decided;

/// The service of a [`LimitLayer`](crate::LimitLayer).
pub struct LimitService<S, R = Problem> {
    service: S,
    config: Arc<Config<R>>,
}

/// The state that a layer's services share.
type Config<R> = LayerBuilder<R>;

impl<R> Config<R> {
    fn values(&self, rulings: &Decided<'_>) -> Values {
        self.fields
            .values(&self.rules.policies, &self.rules.list, rulings)
    }

    /// Passes the request on, or responds to it if it is refused.
    fn serve<S, B, T>(
        self: &Arc<Self>,
        rulings: Decided<'_>,
        mut request: Request<B>,
        service: &mut S,
    ) -> State<S, B, R, S::Future, S::Response>
    where
        S: Service<Request<B>, Response = Response<T>>,
        R: Respond<T>,
    {
        let values = self.values(&rulings);
        if rulings.refuses() {
            let mut rejection = self.rules.rejection(&rulings);
            rejection.fields = values;
            return State::Refused {
                response: Some(rejection.response(&self.respond)),
            };
        }
        if let Some(charges) = self.rules.charges(&rulings) {
            request.extensions_mut().insert(charges);
        }
        let unsettled = self.rules.settles().then(|| Unsettled {
            config: Arc::clone(self),
            rulings: Some(Box::new(rulings.into_owned())),
        });
        State::Serving {
            serving: service.call(request),
            values,
            unsettled,
        }
    }
}

impl<S, R> LimitService<S, R> {
    pub(crate) const fn new(service: S, config: Arc<Config<R>>) -> Self {
        Self { service, config }
    }
}

impl<S, R, B, T> Service<Request<B>> for LimitService<S, R>
where
    S: Service<Request<B>, Response = Response<T>> + Clone,
    T: Body,
    R: Respond<T>,
{
    type Response = Response<T>;
    type Error = S::Error;
    type Future = LimitFuture<S, B, R>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let config = &self.config;
        let calls = config.rules.calls(&RequestHead::from(&request));
        // A request that may wait goes where it can.
        let decided = match config.within.is_zero() {
            true => calls.try_decide(),
            false => Err(calls),
        };
        let state = match decided {
            Ok(rulings) => {
                config.rules.report(&rulings);
                config.serve(rulings, request, &mut self.service)
            }
            Err(calls) => {
                let calls = calls.into_owned();
                let config = Arc::clone(config);
                let deciding = Arc::clone(&config);
                let deciding =
                    Box::pin(async move { deciding.rules.decide(calls, deciding.within).await });
                // A clone need not be ready, so the service that is goes with the request.
                let clone = self.service.clone();
                let service = mem::replace(&mut self.service, clone);
                State::Deciding {
                    deciding,
                    asked: Some(Box::new(Asked {
                        request,
                        service,
                        config,
                    })),
                }
            }
        };
        LimitFuture { state }
    }
}

impl<S: Clone, R> Clone for LimitService<S, R> {
    fn clone(&self) -> Self {
        Self {
            service: self.service.clone(),
            config: Arc::clone(&self.config),
        }
    }
}

impl<S: fmt::Debug, R> fmt::Debug for LimitService<S, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimitService")
            .field("service", &self.service)
            .field("config", &self.config)
            .finish()
    }
}

pin_project! {
    /// The future of a [`LimitService`]: decides, serves and settles.
    pub struct LimitFuture<S, B, R>
    where
        S: Service<Request<B>>,
    {
        #[pin]
        state: State<S, B, R, S::Future, S::Response>,
    }
}

pin_project! {
    #[project = Projected]
    enum State<S, B, R, F, T> {
        // Boxed, so that the future stays small if the store decides immediately.
        Deciding { deciding: BoxFuture<'static, Decided<'static>>, asked: Option<Box<Asked<S, B, R>>> },
        Serving { #[pin] serving: F, values: Values, unsettled: Option<Unsettled<R>> },
        Settling { settling: BoxFuture<'static, Values>, response: Option<T> },
        Refused { response: Option<T> },
    }
}

impl<S, B, R, T> Future for LimitFuture<S, B, R>
where
    S: Service<Request<B>, Response = Response<T>>,
    T: Body,
    R: Respond<T>,
{
    type Output = Result<Response<T>, S::Error>;

    #[allow(
        clippy::expect_used,
        reason = "polling a completed future again is a bug in the caller"
    )]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        const ENDED: &str = "the future was polled after completion";
        let mut this = self.project();
        loop {
            let next = match this.state.as_mut().project() {
                Projected::Deciding { deciding, asked } => {
                    let rulings = ready!(deciding.as_mut().poll(context));
                    let Asked {
                        request,
                        mut service,
                        config,
                    } = *asked.take().expect(ENDED);
                    config.serve(rulings, request, &mut service)
                }
                Projected::Serving {
                    serving,
                    values,
                    unsettled,
                } => {
                    let served = ready!(serving.poll(context));
                    let settling = unsettled
                        .take()
                        .and_then(|mut unsettled| unsettled.settle(served.as_ref().ok()));
                    let mut response = served?;
                    let Some(settling) = settling else {
                        mem::take(values).add(response.status(), response.headers_mut());
                        return Poll::Ready(Ok(response));
                    };
                    State::Settling {
                        settling,
                        response: Some(response),
                    }
                }
                Projected::Settling { settling, response } => {
                    let values = ready!(settling.as_mut().poll(context));
                    let mut response = response.take().expect(ENDED);
                    values.add(response.status(), response.headers_mut());
                    return Poll::Ready(Ok(response));
                }
                Projected::Refused { response } => {
                    return Poll::Ready(Ok(response.take().expect(ENDED)));
                }
            };
            this.state.set(next);
        }
    }
}

impl<S: Service<Request<B>>, B, R> fmt::Debug for LimitFuture<S, B, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimitFuture").finish_non_exhaustive()
    }
}

/// A request whose rules are being decided on.
struct Asked<S, B, R> {
    request: Request<B>,
    service: S,
    config: Arc<Config<R>>,
}

/// Charges that the response may change. On drop, refunds the charges of rules with [`Rule::refund_abandoned`](crate::Rule::refund_abandoned).
struct Unsettled<R> {
    config: Arc<Config<R>>,
    /// `None` once there is a response.
    rulings: Option<Box<Decided<'static>>>,
}

impl<R: Send + Sync + 'static> Unsettled<R> {
    /// Returns a future that settles and makes the fields anew, `None` if all charges stay. The settlement goes on if the client
    /// disconnects.
    fn settle(
        &mut self,
        response: Option<&Response<impl Body>>,
    ) -> Option<BoxFuture<'static, Values>> {
        let head = response.map(ResponseHead::from);
        let config = Arc::clone(&self.config);
        let mut rulings = self.rulings.take()?;
        let costs = config.rules.actual_costs(&rulings, head.as_ref())?;
        let settling = run(async move {
            let settle = async {
                Rules::settle(&mut rulings, costs).await;
                Ok(())
            };
            // A store that is late keeps the charge.
            _ = within(Some(config.rules.timeout), settle).await;
            config.values(&rulings)
        });
        Some(Box::pin(async { settling.await.unwrap_or_default() }))
    }
}

impl<R> Drop for Unsettled<R> {
    fn drop(&mut self) {
        if let Some(rulings) = &self.rulings {
            self.config.rules.abandon(rulings);
        }
    }
}
