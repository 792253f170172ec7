//! gRPC: decisions, health and reflection.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::Either;
use http::HeaderMap;
use http_body::Body;
use hyper::body::Bytes;
use metrics::Counter;
use tonic::metadata::MetadataMap;
use tonic::service::Routes;
use tonic::{Code, Request, Response, Status};
use tonic_health::pb::health_server::{Health, HealthServer};
use tonic_reflection::server::Builder;
use tower::{BoxError, Service as _, service_fn};

use crate::http::TOO_MANY;
use crate::interface::Interface;
use crate::occasional::Occasional;
use crate::proto::{
    DESCRIPTORS, RateLimitRequest, RateLimitResponse, RateLimitServer, RateLimitService,
    SHOULD_RATE_LIMIT,
};
use crate::service::{Failure, Service};

/// How long a call may take until its response begins. HTTP bodies have [their own](crate::http) limit.
const CALL: Duration = Duration::from_secs(10);

/// The service over gRPC.
#[derive(Debug)]
pub struct Grpc {
    service: Arc<Service>,
    interface: Interface,
}

impl Grpc {
    /// Returns the service that Envoy calls.
    #[must_use]
    pub fn new(service: Arc<Service>) -> Self {
        Self {
            service,
            interface: Interface::new("grpc"),
        }
    }
}

#[tonic::async_trait]
impl RateLimitService for Grpc {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let decision = self
            .service
            .decide(request.get_ref(), timeout(request.metadata()));
        let answer = self.interface.observe(decision).await;
        answer.map(Response::new).map_err(|failure| match failure {
            Failure::Invalid(text) => Status::invalid_argument(text),
            Failure::Store(error) => Status::unavailable(error.to_string()),
        })
    }
}

/// Returns how long the caller waits, by the header `grpc-timeout`: up to eight digits and a unit. Envoy sends it.
fn timeout(metadata: &MetadataMap) -> Option<Duration> {
    let text = metadata.get("grpc-timeout")?.to_str().ok()?;
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let number = number.parse::<u64>().ok().filter(|_| number.len() <= 8)?;
    Some(match unit {
        "H" => Duration::from_secs(number * 3_600),
        "M" => Duration::from_secs(number * 60),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => return None,
    })
}

/// Returns the service of the gRPC listener.
///
/// # Errors
/// If the descriptors are damaged.
pub(crate) fn routes<B>(
    service: Arc<Service>,
    health: HealthServer<impl Health>,
) -> anyhow::Result<
    impl tower::Service<
        http::Request<B>,
        Response = http::Response<tonic::body::Body>,
        Error = Infallible,
        Future: Send,
    > + Clone,
>
where
    B: Body<Data = Bytes, Error = BoxError> + Send + 'static,
{
    let reflection = || {
        let own = Builder::configure().register_encoded_file_descriptor_set(DESCRIPTORS);
        own.register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let mut decisions = RateLimitServer::new(Grpc::new(service));
    // Older clients ask by the alpha version.
    let mut others = Routes::new(health)
        .add_service(reflection().build_v1()?)
        .add_service(reflection().build_v1alpha()?)
        .prepare();
    let undecodable = Interface::undecodable();
    Ok(service_fn(move |request: http::Request<B>| {
        // The router takes a twelfth of a decision's time.
        let answer = match request.uri().path() == SHOULD_RATE_LIMIT {
            true => Either::Left(decisions.call(request)),
            false => Either::Right(others.call(request)),
        };
        let undecodable = undecodable.clone();
        async move {
            let Ok(answer) = tokio::time::timeout(CALL, answer).await else {
                let text = format!("expected the message and its response within {CALL:?}");
                return Ok(Status::deadline_exceeded(text).into_http());
            };
            answer.inspect(|answer| note_undecodable(answer.headers(), &undecodable))
        }
    }))
}

/// Answers a call for which there is too little memory. The reason is a header field.
pub(crate) fn refuse(_: bool) -> http::Response<tonic::body::Body> {
    Status::resource_exhausted(TOO_MANY).into_http()
}

/// Counts messages that cannot be decoded, which no handler sees, and logs one in ten seconds. Envoy may let their requests pass.
fn note_undecodable(fields: &HeaderMap, undecodable: &Counter) {
    if let Some(status) = Status::from_header_map(fields)
        && matches!(status.code(), Code::Internal | Code::OutOfRange)
    {
        undecodable.increment(1);
        static UNDECODABLE: Occasional = Occasional::new();
        if UNDECODABLE.is_due() {
            tracing::warn!("cannot decode a message: {}", status.message());
        }
    }
}
