//! A request through axum: without a limit, with this library's layer and with `tower_governor`'s, header fields on.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::routing::get;
use futures::executor::block_on;
use http::{Request, StatusCode};
use limiter_core::{Limit, Limiter};
use limiter_memory::MemoryStore;
use limiter_tower::key::PeerAddress;
use limiter_tower::{LimitLayer, MissingKey, Rule, StoreFailure};
use serde::Deserialize;
use tower::{Service, ServiceExt};
use tower_governor::GovernorLayer;
use tower_governor::governor::GovernorConfigBuilder;

use super::scenarios::{Timed, in_turns};
use crate::declared::HTTP;
use crate::record::{Measured, Results};
use crate::turns::Effort;

/// Requests of a number of addresses in turns, as declared.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Scenario {
    pub(crate) name: String,
    pub(crate) about: String,
    limit: Limit,
    addresses: u32,
    #[serde(default)]
    denied: bool,
}

pub(crate) const BARE: &str = "bare app";
pub(crate) const OURS: &str = "limiter-tower";
pub(crate) const GOVERNOR: &str = "tower_governor";

/// Measures the scenarios whose names contain `only`. The overhead is the time beyond the bare app's.
pub(crate) fn measure(effort: &Effort, only: Option<&str>) -> Measured {
    // Short turns: a change of the machine's other load then falls into few of them.
    let effort = Effort { rounds: 16 * effort.rounds, turn: Duration::from_millis(1), ..*effort };
    let mut results = Results::new();
    for Scenario { name, about, limit, addresses, denied } in &HTTP.scenarios {
        if only.is_none_or(|only| name.contains(only)) {
            eprintln!("{name}: {about}");
            let expected = if *denied { StatusCode::TOO_MANY_REQUESTS } else { StatusCode::OK };
            let mut all = [
                timed(BARE, app(), *addresses, StatusCode::OK),
                timed(OURS, app().layer(limiter(*limit)), *addresses, expected),
                timed(GOVERNOR, governed(*limit), *addresses, expected),
            ];
            let mut figures = in_turns(&mut all, &effort)?;
            let bare = figures[BARE]["ns"];
            for figures in figures.values_mut() {
                figures.insert("overhead".to_owned(), figures["ns"] - bare);
            }
            results.insert(name.clone(), figures);
        }
    }
    Ok((results, None))
}

fn app() -> Router {
    Router::new().route("/", get(|| async { "hello" }))
}

fn limiter(limit: Limit) -> LimitLayer {
    let limiter = Limiter::new("http", limit, MemoryStore::new());
    let missing = MissingKey::Reject(StatusCode::INTERNAL_SERVER_ERROR);
    LimitLayer::new([Rule::new(limiter, PeerAddress::new(), missing)], StoreFailure::Open)
}

fn governed(limit: Limit) -> Router {
    let (max, mut config) = (limit.max() as u32, GovernorConfigBuilder::default());
    config.period(limit.window().as_duration() / max).burst_size(max);
    let config = config.use_headers().finish().expect("neither the period nor the burst is 0");
    app().layer(GovernorLayer::new(config))
}

/// Sends requests from these addresses in turns.
fn timed(who: &'static str, app: Router, addresses: u32, expected: StatusCode) -> Timed {
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
    Timed { who, run: Box::new(run), operations: None }
}
