//! A request through axum: without a limit, with this library's layer and with `tower_governor`'s, header fields on.

use std::fmt::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Instant;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::routing::get;
use futures::executor::block_on;
use http::{Request, StatusCode};
use limiter_core::{Limiter, Policy, policy};
use limiter_memory::MemoryStore;
use limiter_tower::key::PeerAddress;
use limiter_tower::{LimitLayer, MissingKey, Rule, StoreFailure};
use serde::{Deserialize, Serialize};
use tower::{Service, ServiceExt};
use tower_governor::GovernorLayer;
use tower_governor::governor::GovernorConfigBuilder;

use crate::measure::Row;
use crate::report::{GOALS, heading, nanos, table, verdict};
use crate::scenario::{Case, Scenario};

/// All scenarios.
pub const SCENARIOS: &[Scenario] = &[
    Scenario { name: "http/allowed", about: "one address, 100,000 per ms", cases: || cases(1, StatusCode::OK) },
    Scenario {
        name: "http/addresses",
        about: "1,024 addresses in turns, 100,000 per 10 ms each",
        cases: || cases(1_024, StatusCode::OK),
    },
    Scenario {
        name: "http/denied",
        about: "one address, 10 per hour, used up",
        cases: || cases(1, StatusCode::TOO_MANY_REQUESTS),
    },
];

const BARE: &str = "bare app";
const OURS: &str = "limiter-tower";
const GOVERNOR: &str = "tower_governor";
/// At most this many times `tower_governor`'s overhead.
const GOAL: f64 = 1.0;

fn cases(addresses: u32, expected: StatusCode) -> Vec<Case> {
    let allowed = expected == StatusCode::OK;
    vec![
        case(BARE, app(), addresses, StatusCode::OK),
        case(OURS, app().layer(limiter(allowed, addresses)), addresses, expected),
        case(GOVERNOR, governed(allowed, addresses), addresses, expected),
    ]
}

fn app() -> Router {
    Router::new().route("/", get(|| async { "hello" }))
}

fn limiter(allowed: bool, addresses: u32) -> LimitLayer {
    let limits: Policy = match (allowed, addresses) {
        (true, 1) => policy!("100000/1ms"),
        (true, _) => policy!("100000/10ms"),
        (false, _) => policy!("10/1h"),
    };
    let limiter = Limiter::new("http", limits, MemoryStore::new());
    let missing = MissingKey::Reject(StatusCode::INTERNAL_SERVER_ERROR);
    LimitLayer::new([Rule::new(limiter, PeerAddress::new(), missing)], StoreFailure::Open)
}

fn governed(allowed: bool, addresses: u32) -> Router {
    let mut config = GovernorConfigBuilder::default();
    if allowed {
        config.per_nanosecond(if addresses > 1 { 100 } else { 10 }).burst_size(100_000);
    } else {
        config.per_second(360).burst_size(10);
    }
    let config = config.use_headers().finish().expect("neither the period nor the burst is 0");
    app().layer(GovernorLayer::new(config))
}

/// Sends requests from these addresses in turns.
fn case(library: &'static str, app: Router, addresses: u32, expected: StatusCode) -> Case {
    let (mut app, mut next) = (app, 0_u32);
    let mut send = move || {
        next = (next + 1) % addresses;
        let mut request = Request::new(Body::empty());
        let address = SocketAddr::from((Ipv4Addr::from_bits(0x0a00_0000 + next), 4711));
        request.extensions_mut().insert(ConnectInfo(address));
        block_on(async { ServiceExt::<Request<Body>>::ready(&mut app).await?.call(request).await })
    };
    if expected != StatusCode::OK {
        (0..10).for_each(|_| drop(send()));
    }
    let run = move |count| {
        let began = Instant::now();
        for _ in 0..count {
            let response = send();
            assert!(response.is_ok_and(|response| response.status() == expected));
        }
        began.elapsed()
    };
    Case { library, run: Box::new(run), operations: None }
}

/// All that was measured in one run.
#[derive(Debug, Deserialize, Serialize)]
pub struct Results {
    /// Times.
    pub rows: Vec<Row>,
}

impl Results {
    /// All tables.
    #[must_use]
    pub fn markdown(&self) -> String {
        let mut out = String::new();
        let text = "Medians. *Overhead* is the time beyond the bare app's. Keys are addresses; both send their header fields: \
                `RateLimit-Policy` and `RateLimit`, or `x-ratelimit-limit` and `x-ratelimit-remaining`.";
        heading(&mut out, "Nanoseconds a request", text);
        table(&mut out, &["scenario", BARE], &[OURS, GOVERNOR, "overhead, limiter", "overhead, governor", "ratio"]);
        let mut goals = Vec::new();
        for row in &self.rows {
            let (Some(bare), Some(ours), Some(governor)) = (row.of(BARE), row.of(OURS), row.of(GOVERNOR)) else {
                continue;
            };
            let (own, other) = (ours - bare, governor - bare);
            let _ = writeln!(
                out,
                "| `{}`: {} | {} | **{}** | {} | {} | {} | {:.2} |",
                row.name,
                row.about,
                nanos(bare),
                nanos(ours),
                nanos(governor),
                nanos(own),
                nanos(other),
                own / other
            );
            goals.push((row.name.clone(), own / other));
        }
        heading(&mut out, "Goals", GOALS);
        table(&mut out, &["overhead to tower_governor's"], &["at most", "measured", ""]);
        for (name, ratio) in goals {
            let _ = writeln!(out, "| `{name}` | {GOAL} | {ratio:.2} | {} |", verdict(ratio, GOAL));
        }
        out
    }
}
