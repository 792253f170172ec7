//! Who may use the admin listener.

use axum::Router;
use axum::body::Body;
use axum::routing::any;
use http::{Method, Request};
use limiter_server::guard::{Guard, HEADER, guarded};
use tower::ServiceExt;

/// Whether the listener is local, and its token.
type Listener = (bool, Option<&'static str>);

async fn status((local, token): Listener, method: &Method, headers: &[(&str, &str)]) -> u16 {
    let guard = Guard::new(token, local, &["limits.example".to_owned()]);
    let routes = guarded(Router::new().route("/reset", any(async || "done")), guard);
    let request = headers
        .iter()
        .fold(Request::builder(), |request, (name, value)| {
            request.header(*name, *value)
        });
    let request = request
        .method(method)
        .uri("/reset")
        .body(Body::empty())
        .unwrap();
    routes.oneshot(request).await.unwrap().status().as_u16()
}

#[tokio::test]
async fn only_names_of_this_machine_reach_a_listener() {
    let cases = [
        (200, "localhost"),
        (200, "LocalHost:6070"),
        (200, "127.0.0.1:6070"),
        (200, "[::1]:6070"),
        (200, "[::1]"),
        (200, "limits.example:6070"),
        (421, "x.limits.example"),
        (421, "evil.example"),
        (421, "evil.example:6070"),
        (421, "127.0.0.1.evil.example:6070"),
        (421, "localhost.evil.example"),
        (421, "evil.example@localhost"),
        (421, ""),
        (421, ":6070"),
        (421, "évil.example"),
        (421, "localhost evil.example"),
        (421, "evil.example localhost"),
    ];
    for (expected, hosts) in cases {
        let lines = hosts.split(' ');
        let headers: Vec<_> = lines.map(|host| ("host", host)).collect();
        assert_eq!(
            status((true, None), &Method::GET, &headers).await,
            expected,
            "{hosts:?}"
        );
        assert_eq!(
            status((false, None), &Method::GET, &headers).await,
            expected,
            "{hosts:?}"
        );
    }
}

#[tokio::test]
async fn changes_need_the_header_and_the_token() {
    let name = (HEADER, "1");
    let bearer = |token| ("authorization", token);
    let open = (true, None);
    let secret = (true, Some("secret"));
    let cases = [
        (403, open, vec![]),
        (200, open, vec![name]),
        (403, (false, None), vec![name]),
        (401, secret, vec![name]),
        (401, secret, vec![name, bearer("Bearer other")]),
        (401, secret, vec![name, bearer("Basic secret")]),
        (401, secret, vec![name, bearer("secret")]),
        (403, secret, vec![bearer("Bearer secret")]),
        (200, secret, vec![name, bearer("Bearer secret")]),
        (200, secret, vec![name, bearer("bearer secret")]),
        (
            200,
            (false, Some("secret")),
            vec![name, bearer("Bearer secret")],
        ),
    ];
    for (expected, guard, headers) in cases {
        for method in [Method::POST, Method::PUT, Method::DELETE] {
            assert_eq!(
                status(guard, &method, &headers).await,
                expected,
                "{guard:?} {headers:?}"
            );
        }
        let reads = if guard == (false, Some("secret")) {
            expected
        } else {
            200
        };
        assert_eq!(status(guard, &Method::GET, &headers).await, reads);
    }
    // Except on loopback, the token also protects reads. A browser asks for it as a password.
    let beyond = (false, Some("secret"));
    for (expected, headers) in [
        (401, vec![]),
        (401, vec![bearer("Bearer other")]),
        (401, vec![bearer("Basic b3BlcmF0b3I6b3RoZXI=")]),
        (401, vec![bearer("Basic !")]),
        (200, vec![bearer("Bearer secret")]),
        (200, vec![bearer("Basic b3BlcmF0b3I6c2VjcmV0")]),
    ] {
        assert_eq!(
            status(beyond, &Method::GET, &headers).await,
            expected,
            "{headers:?}"
        );
    }
}
