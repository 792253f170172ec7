//! A request through axum: without a limit, with this library's layer and with `tower_governor`'s, header fields on.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use anyhow::Result;
use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::routing::get;
use futures::executor::block_on;
use http::{Request, StatusCode};
use limiter_benches::declared::{Declared, parse};
use limiter_benches::record::Figures;
use limiter_benches::turns::{self, Contestant, Run};
use limiter_core::{Limit, Limiter};
use limiter_memory::MemoryStore;
use limiter_tower::key::ClientAddress;
use limiter_tower::{LimitLayer, MissingKey, Rule, StoreFailure};
use serde::Deserialize;
use tower::{Service, ServiceExt};
use tower_governor::GovernorLayer;
use tower_governor::governor::GovernorConfigBuilder;

pub(crate) const BARE: &str = "bare app";
pub(crate) const OURS: &str = "limiter-tower";
pub(crate) const GOVERNOR: &str = "tower_governor";

pub(crate) static HTTP: LazyLock<Declared<Scenario>> =
    LazyLock::new(|| parse(include_str!("../scenarios/http.json")));

/// Requests of a number of addresses in turns.
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

/// Measures all scenarios.
pub(crate) fn measure(run: &mut Run<'_>) -> Result<()> {
    HTTP.scenarios.iter().try_for_each(|scenario| {
        run.scenario(&scenario.name, || {
            eprintln!("{}", scenario.about);
            compare(scenario)
        })
    })
}

/// Measures all apps in turns. The overhead is the time above the bare app's.
fn compare(
    &Scenario {
        limit,
        addresses,
        denied,
        ..
    }: &Scenario,
) -> Result<Figures> {
    // Short turns: a change of the machine's other load then falls into few of them.
    let rounds = 3000;
    let turn = Duration::from_millis(1);
    let expected = if denied {
        StatusCode::TOO_MANY_REQUESTS
    } else {
        StatusCode::OK
    };
    let mut all = [
        (BARE, app(), StatusCode::OK),
        (OURS, app().layer(limiter(limit)), expected),
        (GOVERNOR, governed(limit), expected),
    ]
    .map(|(name, app, expected)| Contestant::timed(name, turn, requests(app, addresses, expected)));
    let mut figures = turns::measure(&mut all, |round| round >= rounds)?;
    let bare = figures[BARE]["ns"];
    for figures in figures.values_mut() {
        figures.insert("overhead".to_owned(), figures["ns"] - bare);
    }
    Ok(figures)
}

fn app() -> Router {
    Router::new().route("/", get(|| async { "hello" }))
}

fn limiter(limit: Limit) -> LimitLayer {
    let limiter = Limiter::new("http", limit, MemoryStore::new());
    let missing = MissingKey::Reject(StatusCode::INTERNAL_SERVER_ERROR);
    LimitLayer::new(
        [Rule::new(limiter, ClientAddress::peer(), missing)],
        StoreFailure::Open,
    )
}

fn governed(limit: Limit) -> Router {
    let max = limit.max() as u32;
    let mut config = GovernorConfigBuilder::default();
    config
        .period(limit.window().as_duration() / max)
        .burst_size(max);
    let config = config
        .use_headers()
        .finish()
        .expect("neither the period nor the burst is 0");
    app().layer(GovernorLayer::new(config))
}

/// Returns a function that sends the given number of requests from these addresses in turns.
fn requests(mut app: Router, addresses: u32, expected: StatusCode) -> impl FnMut(u64) -> Duration {
    let mut next = 0;
    let mut send = move || {
        next = (next + 1) % addresses;
        let mut request = Request::new(Body::empty());
        let address = SocketAddr::from((Ipv4Addr::from_bits(0x0a00_0000 + next), 4711));
        request.extensions_mut().insert(ConnectInfo(address));
        block_on(async {
            ServiceExt::<Request<Body>>::ready(&mut app)
                .await?
                .call(request)
                .await
        })
    };
    if expected != StatusCode::OK {
        (0..10).for_each(|_| drop(send()));
    }
    move |count| {
        let start = Instant::now();
        for _ in 0..count {
            let response = send();
            assert!(response.is_ok_and(|response| response.status() == expected));
        }
        start.elapsed()
    }
}
