//! gRPC: decisions, health and reflection.

use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::middleware::map_response;
use metrics::Counter;
use tonic::metadata::MetadataMap;
use tonic::service::Routes;
use tonic::{Code, Request, Response, Status};
use tonic_health::pb::health_server::{Health, HealthServer};
use tonic_reflection::server::Builder;

use crate::http::MAX_MESSAGE;
use crate::interface::Interface;
use crate::proto::{DESCRIPTORS, RateLimitRequest, RateLimitResponse, RateLimitService, RateLimitServiceServer};
use crate::service::{Failure, Service};

/// The service over gRPC.
#[derive(Debug)]
pub struct Grpc {
    service: Arc<Service>,
    interface: Interface,
}

impl Grpc {
    /// Returns a service that answers Envoy.
    #[must_use]
    pub fn new(service: Arc<Service>) -> Self {
        Self { service, interface: Interface::new("grpc") }
    }
}

#[tonic::async_trait]
impl RateLimitService for Grpc {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let decision = self.service.decide_within(request.get_ref(), timeout(request.metadata()));
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

/// Returns the routes of the gRPC listener.
///
/// # Errors
/// If the descriptors are damaged.
pub(crate) fn routes(service: Arc<Service>, health: HealthServer<impl Health>) -> anyhow::Result<Router> {
    let reflection = || {
        let own = Builder::configure().register_encoded_file_descriptor_set(DESCRIPTORS);
        own.register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    // Older clients ask by the alpha version.
    let decisions = RateLimitServiceServer::new(Grpc::new(service)).max_decoding_message_size(MAX_MESSAGE);
    let routes = Routes::new(decisions).add_service(health);
    let routes = routes.add_service(reflection().build_v1()?).add_service(reflection().build_v1alpha()?);
    let undecodable = Interface::undecodable();
    Ok(routes
        .prepare()
        .into_axum_router()
        .layer(map_response(move |response| ready(note_undecodable(response, &undecodable)))))
}

/// Counts and logs messages that cannot be decoded, which no handler sees. Envoy may let their requests pass.
fn note_undecodable(response: http::Response<Body>, undecodable: &Counter) -> http::Response<Body> {
    if let Some(status) = Status::from_header_map(response.headers())
        && matches!(status.code(), Code::Internal | Code::OutOfRange)
    {
        tracing::warn!("cannot decode a message: {}", status.message());
        undecodable.increment(1);
    }
    response
}
