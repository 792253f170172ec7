//! Properties that hold for any input. The fuzz targets share them with the test of the inputs next to this file.

#![allow(dead_code, reason = "each user needs only some of it")]

use std::collections::HashSet;
use std::sync::Arc;

use axum::body::{Body, to_bytes};
use http::{Request, StatusCode};
use limiter_core::SharedStore;
use limiter_memory::MemoryStore;
use limiter_server::config::Errors;
use limiter_server::grpc::Grpc;
use limiter_server::http::routes;
use limiter_server::proto::{RateLimitRequest, RateLimitServer, SHOULD_RATE_LIMIT};
use limiter_server::rules::RuleSet;
use limiter_server::service::{Headers, Service};
use limiter_server::store::Store;
use prost::Message;
use tower::ServiceExt;

/// A text is a configuration, or its errors say where they are. Every rule of a configuration has its own name, and a descriptor
/// that is made from its path finds it.
pub(crate) fn configs(input: &[u8]) {
    let store: SharedStore = Arc::new(MemoryStore::with_max_keys(16));
    let rules = match RuleSet::parse("f", input, &store, None) {
        Ok(rules) => rules,
        Err(Errors(errors)) => {
            assert!(!errors.is_empty());
            return errors.iter().for_each(|error| assert_place(error, input));
        }
    };
    let mut names = HashSet::new();
    for rule in rules.iter() {
        assert!(
            rule.limiter()
                .is_none_or(|limiter| names.insert(limiter.name())),
            "{}",
            rule.path
        );
        assert!(rules.overrides(&rule.domain).is_some());
        let entries = entries(&rule.path);
        let entries: Vec<_> = entries
            .iter()
            .map(|(key, value)| (&**key, &**value))
            .collect();
        let found = rules.find(&rule.domain, &entries);
        assert!(
            found
                .as_ref()
                .is_none_or(|found| found.key.as_ref().len() <= 1024)
        );
        // A wildcard may match what is made for another rule.
        let is_exact = entries.iter().all(|(_, value)| !value.contains(['*', ',']));
        assert!(
            !is_exact || found.is_some_and(|found| found.rule.path == rule.path),
            "{entries:?}"
        );
    }
}

/// Returns entries that fit a path.
fn entries(path: &str) -> Vec<(String, String)> {
    let mut entries = vec![(String::new(), None)];
    let mut chars = path.chars();
    while let Some(char) = chars.next() {
        let (key, value): &mut (String, Option<String>) = entries.last_mut().unwrap();
        match char {
            ',' => entries.push((String::new(), None)),
            '=' if value.is_none() => *value = Some(String::new()),
            '\\' => value.as_mut().unwrap_or(key).push(chars.next().unwrap()),
            char => value.as_mut().unwrap_or(key).push(char),
        }
    }
    let any = || "any value, \\".to_owned();
    entries
        .into_iter()
        .map(|(key, value)| {
            (
                key,
                value.map_or_else(any, |value| value.replace('*', "-*-")),
            )
        })
        .collect()
}

fn assert_place(error: &str, input: &[u8]) {
    let mut parts = error.splitn(4, ':');
    let file = parts.next();
    let line = parts.next();
    let column = parts.next();
    let number = |text: Option<&str>| {
        text.and_then(|text| text.parse::<usize>().ok())
            .unwrap_or(0)
    };
    let line = number(line);
    let column = number(column);
    assert!(file == Some("f") && line > 0 && column > 0, "{error}");
    assert!(
        line <= input.len() + 1 && column <= input.len() + 1,
        "{error}"
    );
    assert!(
        parts.next().is_some_and(|text| text.len() > 3) && error.len() < 10_000,
        "{error}"
    );
}

const CONFIG: &str = "
domain: d
descriptors:
- key: k
  rate_limit: { policy: '5/1s, 9/1h' }
  detailed_metric: true
- { key: k, value: v, descriptors: [{ key: l, rate_limit: { unit: day, requests_per_unit: 0 } }] }
- { key: m, shadow_mode: true, rate_limit: { unit: day, requests_per_unit: 3, name: n } }
- { key: o, quota_mode: true, rate_limit: { unlimited: true, replaces: [{ name: n }] } }
";

fn service() -> Arc<Service> {
    let store = Store::over(Arc::new(MemoryStore::with_max_keys(16)));
    let rules = RuleSet::parse("f", CONFIG.as_bytes(), store.shared(), None).unwrap();
    Arc::new(Service::new(rules, store, Headers::default()))
}

fn block_on(future: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap()
        .block_on(future);
}

/// gRPC answers any message with a status: 0 or 3 (invalid argument) if it is a request, otherwise another one.
pub(crate) fn messages(input: &[u8]) {
    let framed = [
        &[0],
        &u32::try_from(input.len()).unwrap().to_be_bytes()[..],
        input,
    ]
    .concat();
    let service = service();
    block_on(async {
        for (body, is_request) in [
            (framed, Some(RateLimitRequest::decode(input).is_ok())),
            (input.to_vec(), None),
        ] {
            let request = Request::post(SHOULD_RATE_LIMIT)
                .header("content-type", "application/grpc")
                .body(Body::from(body))
                .unwrap();
            let server = RateLimitServer::new(Grpc::new(Arc::clone(&service)));
            let answer = server.oneshot(request).await.unwrap();
            // The status of a response with a message is in its trailers.
            let status = answer
                .headers()
                .get("grpc-status")
                .map_or("0", |status| status.to_str().unwrap());
            assert!(["0", "3", "11", "12", "13"].contains(&status), "{status}");
            assert!(
                is_request.is_none_or(|is_request| is_request == ["0", "3"].contains(&status)),
                "{status}"
            );
        }
    });
}

/// Every operation answers any body with a status, and with JSON.
pub(crate) fn requests(input: &[u8]) {
    let service = service();
    block_on(async {
        if let Ok(request) = RateLimitRequest::decode(input)
            && let Ok(answer) = service.decide(&request, None).await
        {
            assert_eq!(answer.statuses.len(), request.descriptors.len());
        }
        let routes = routes(service, &[]);
        for path in [
            "/json",
            "/v1/acquire",
            "/v1/record",
            "/v1/peek",
            "/v1/status",
            "/v1/settle",
            "/v1/refund",
        ] {
            let request = Request::post(path)
                .header("content-type", "application/json")
                .body(Body::from(input.to_vec()))
                .unwrap();
            let (head, body) = routes.clone().oneshot(request).await.unwrap().into_parts();
            let bad = [StatusCode::BAD_REQUEST, StatusCode::TOO_MANY_REQUESTS];
            assert!(
                head.status == StatusCode::OK || bad.contains(&head.status),
                "{path}: {}",
                head.status
            );
            let body = to_bytes(body, usize::MAX).await.unwrap();
            serde_json::from_slice::<serde_json::Value>(&body).unwrap();
        }
    });
}
