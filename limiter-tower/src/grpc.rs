//! gRPC responses to refused requests.

use http::{Response, StatusCode};
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, QuotaViolation, StatusExt};

use crate::rejection::{Cause, Rejection};
use crate::respond::Respond;

/// A trailers-only gRPC response with `google.rpc.RetryInfo` and `google.rpc.QuotaFailure` in its details.
///
/// | cause | code |
/// |---|---|
/// | a denial, a cost that exceeds a limit | `RESOURCE_EXHAUSTED` |
/// | the store failed | `UNAVAILABLE`, or `INTERNAL` if no retry mends it |
/// | no key | `UNAUTHENTICATED` for 401, `PERMISSION_DENIED` for 403, otherwise `INVALID_ARGUMENT` |
///
/// `RetryInfo` has the exact wait in whole microseconds. `Retry-After` and the rate limit fields are sent as metadata.
#[derive(Clone, Copy, Debug, Default)]
pub struct GrpcStatus;

impl<B: Default> Respond<B> for GrpcStatus {
    fn respond(&self, rejection: &Rejection) -> Response<B> {
        status(rejection).into_http()
    }
}

fn status(rejection: &Rejection) -> Status {
    let (code, message) = match rejection.cause() {
        Cause::Denied => (Code::ResourceExhausted, "quota exceeded"),
        Cause::CostExceedsLimit => (
            Code::ResourceExhausted,
            "the request costs more than the quota",
        ),
        Cause::StoreFailed(error) if error.is_retryable() => {
            (Code::Unavailable, "temporarily reduced capacity")
        }
        Cause::StoreFailed(_) => (Code::Internal, "the limit cannot be checked"),
        Cause::MissingKey(StatusCode::UNAUTHORIZED) => (Code::Unauthenticated, "no rate limit key"),
        Cause::MissingKey(StatusCode::FORBIDDEN) => (Code::PermissionDenied, "no rate limit key"),
        Cause::MissingKey(_) => (Code::InvalidArgument, "no rate limit key"),
    };
    let mut details = ErrorDetails::new();
    if let Some(wait) = rejection.retry_after() {
        details.set_retry_info(Some(wait));
    }
    if !rejection.violated_policies().is_empty() {
        let violation = |name: &String| QuotaViolation::new(name, "limit reached");
        details.set_quota_failure(
            rejection
                .violated_policies()
                .iter()
                .map(violation)
                .collect::<Vec<_>>(),
        );
    }
    Status::with_error_details(code, message, details)
}
