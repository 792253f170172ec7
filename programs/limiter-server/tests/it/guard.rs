//! Who may use the admin listener.

use axum::Router;
use axum::body::Body;
use axum::routing::any;
use http::{Method, Request};
use limiter_server::guard::{Guard, HEADER, guarded};
use tower::ServiceExt;

use crate::ask::rows;

/// Asks a listener that is `local` or `far`, with a token if a word follows it. `+` stands for a space within a header.
async fn status(listener: &str, method: &Method, headers: &str) -> u16 {
    let (place, token) = listener
        .split_once(':')
        .map_or((listener, None), |(place, token)| (place, Some(token)));
    let guard = Guard::new(token, place == "local", &["limits.example".to_owned()]);
    let routes = guarded(Router::new().route("/reset", any(async || "done")), guard);
    let mut request = Request::builder().method(method).uri("/reset");
    for (name, value) in headers
        .split(' ')
        .filter_map(|header| header.split_once('='))
    {
        let name = if name == "x" { HEADER } else { name };
        request = request.header(name, value.replacen('+', " ", 1));
    }
    let request = request.body(Body::empty()).unwrap();
    routes.oneshot(request).await.unwrap().status().as_u16()
}

#[tokio::test]
async fn only_names_of_this_machine_reach_a_listener() {
    let lines = "
        localhost, LocalHost:6070, 127.0.0.1:6070, [::1]:6070, [::1], limits.example:6070 => 200
        x.limits.example, evil.example, evil.example:6070, 127.0.0.1.evil.example:6070 => 421
        localhost.evil.example, evil.example@localhost, , :6070, évil.example => 421
        localhost host=evil.example, evil.example host=localhost => 421
    ";
    for (hosts, expected) in rows(lines) {
        for host in hosts.split(',').map(str::trim) {
            for listener in ["local", "far"] {
                let found = status(listener, &Method::GET, &format!("host={host}")).await;
                assert_eq!(found.to_string(), expected, "{listener} {host:?}");
            }
        }
    }
}

#[tokio::test]
async fn changes_need_the_header_and_the_token() {
    // The header is `x`. Except on loopback, the token also protects reads. A browser asks for it as a password.
    let lines = "
        local => GET 200, changes 403
        local x=1 => GET 200, changes 200
        far x=1 => GET 200, changes 403
        local:secret x=1 => GET 200, changes 401
        local:secret x=1 authorization=Bearer+other => GET 200, changes 401
        local:secret x=1 authorization=Basic+secret => GET 200, changes 401
        local:secret x=1 authorization=secret => GET 200, changes 401
        local:secret authorization=Bearer+secret => GET 200, changes 403
        local:secret x=1 authorization=Bearer+secret => GET 200, changes 200
        local:secret x=1 authorization=bearer+secret => GET 200, changes 200
        far:secret x=1 authorization=Bearer+secret => GET 200, changes 200
        far:secret => GET 401, changes 403
        far:secret authorization=Bearer+other => GET 401, changes 403
        far:secret authorization=Basic+b3BlcmF0b3I6b3RoZXI= => GET 401, changes 403
        far:secret authorization=Basic+! => GET 401, changes 403
        far:secret authorization=Basic+b3BlcmF0b3I6c2VjcmV0 => GET 200, changes 403
    ";
    for (asked, expected) in rows(lines) {
        let (listener, headers) = asked.split_once(' ').unwrap_or((asked, ""));
        let read = status(listener, &Method::GET, headers).await;
        for method in [Method::POST, Method::PUT, Method::DELETE] {
            let changes = status(listener, &method, headers).await;
            assert_eq!(
                format!("GET {read}, changes {changes}"),
                expected,
                "{asked}"
            );
        }
    }
}
