//! A middleware for actix-web, which limits each address and adds the field `RateLimit`. limiter-tower does not fit, because actix-web's
//! middleware is no tower layer, and its header fields are those of `http` 0.2.
//!
//! In any framework, the middleware finds the client, acquires, and responds to a denial with 429 and `Retry-After`. In pingora, that is
//! `request_filter`: it writes a `ResponseHeader` of 429 and returns `Ok(true)`. Behind a proxy, `realip_remote_addr` of actix-web believes
//! every client: read the proxy's field only if `peer_addr` is the proxy's.

use actix_web::body::{BoxBody, MessageBody};
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::error::{ErrorBadRequest, ErrorServiceUnavailable};
use actix_web::http::header::{HeaderName, HeaderValue, RETRY_AFTER};
use actix_web::middleware::{Next, from_fn};
use actix_web::test::{TestRequest, call_service, init_service};
use actix_web::{App, HttpResponse, web};
use exact_limiter::time::ceil_secs;
use exact_limiter::{IpBlock, Limiter, MemoryStore, policy};

async fn limit(
    limiter: web::Data<Limiter>,
    request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<BoxBody>, actix_web::Error> {
    let client = request
        .peer_addr()
        .ok_or_else(|| ErrorBadRequest("no address"))?;
    let decision = limiter
        .acquire(IpBlock::new(client.ip()))
        .await
        .map_err(ErrorServiceUnavailable)?;
    let mut response = match decision.retry_after_secs() {
        None => next.call(request).await?.map_into_boxed_body(),
        Some(seconds) => {
            let denied = HttpResponse::TooManyRequests()
                .insert_header((RETRY_AFTER, seconds))
                .finish();
            request.into_response(denied)
        }
    };
    let left = format!(
        "\"search\";r={};t={}",
        decision.remaining(),
        ceil_secs(decision.refill_after())
    );
    let left = HeaderValue::try_from(left).map_err(ErrorServiceUnavailable)?;
    response
        .headers_mut()
        .insert(HeaderName::from_static("ratelimit"), left);
    Ok(response)
}

#[actix_web::test]
async fn each_address_is_limited() {
    let search = Limiter::new("search", policy!("2/1m"), MemoryStore::new()).into_shared();
    let app = App::new()
        .app_data(web::Data::new(search)) // One limiter for all workers: make it outside `HttpServer::new`.
        .wrap(from_fn(limit))
        .route("/", web::get().to(HttpResponse::Ok));
    let app = init_service(app).await;
    for (client, status, left) in [
        ("203.0.113.7:1", 200, "\"search\";r=1;t=60"),
        ("203.0.113.7:2", 200, "\"search\";r=0;t=60"),
        ("203.0.113.7:3", 429, "\"search\";r=0;t=60"),
        ("[2001:db8::1]:1", 200, "\"search\";r=1;t=60"),
        ("[2001:db8::2]:1", 200, "\"search\";r=0;t=60"),
        ("[2001:db8::3]:1", 429, "\"search\";r=0;t=60"),
    ] {
        let request = TestRequest::default()
            .peer_addr(client.parse().unwrap())
            .to_request();
        let response = call_service(&app, request).await;
        assert_eq!(response.status(), status, "{client}");
        assert_eq!(response.headers().get("ratelimit").unwrap(), left);
        assert_eq!(
            response.headers().contains_key("retry-after"),
            status == 429
        );
    }
}
