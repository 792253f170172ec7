//! A gateway to a language model, limited in memory or over Redis, with limits that are loaded again when their file changes:
//! `cargo run --example gateway --all-features -- [limits.json] [memory | redis://…] [127.0.0.1:8080]`
//!
//! - `POST /chat` streams the answer. It reserves tokens for the longest one and charges what was streamed, also if the client
//!   hangs up.
//! - `POST /login` counts the failures of an account and all attempts from an address.
//! - `GET /search` waits for up to two seconds until it fits.
//! - `GET /metrics` is Prometheus text.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use exact_limiter::request::PermitDecision;
use exact_limiter::wrappers::Stack;
use exact_limiter::wrappers::observe::{Metrics, ObservedStore, Report};
use exact_limiter::{Error, Limiter, MemoryStore, Policy, RedisStore, SharedStore};
use futures::{Stream, StreamExt, stream};
use limiter_tower::key::{Header, PeerAddress, RequestKey};
use limiter_tower::{ActualCost, LimitLayer, MissingKey, RateLimitHeaders, Refusal, Rule, StoreFailure};
use metrics_exporter_prometheus::PrometheusBuilder;
use serde::Deserialize;
use tokio::sync::watch;
use tower::ServiceExt;

type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

const CUSTOMER: HeaderName = HeaderName::from_static("x-api-key");
const ACCOUNT: HeaderName = HeaderName::from_static("x-account");

/// The longest answer. Each chat reserves that many tokens.
const LONGEST: u32 = 400;

/// The limits of a file, such as [`DEFAULT`].
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Limits {
    chat: Policy,
    account: Policy,
    address: Policy,
    search: Policy,
}

const DEFAULT: &str = r#"{"chat": "1000/1m, 50000/24h", "account": "5/15m", "address": "50/15m", "search": "5/10s"}"#;

impl Limits {
    fn parse(text: &str) -> Result<Self> {
        let limits: Self = serde_json::from_str(text)?;
        let fits = limits.chat.limits().iter().all(|limit| limit.max() >= u64::from(LONGEST));
        if fits {
            Ok(limits)
        } else {
            Err(format!("the limits of chat must admit an answer of {LONGEST} tokens").into())
        }
    }
}

/// Returns the routes under these limits. The store has the logs, so new routes over it continue them.
fn routes(limits: Limits, store: &SharedStore) -> Router {
    let limiter = |name, policy| Limiter::new(name, policy, store.clone());
    let failure = || StoreFailure::Closed { retry_after: Duration::from_secs(1) };
    let anonymous = || MissingKey::Reject(StatusCode::UNAUTHORIZED);

    let account = Rule::new(limiter("account", limits.account), Header::new(ACCOUNT), anonymous())
        .settle(|response| if response.status().is_success() { ActualCost::Reset } else { ActualCost::AsCharged });
    let address = Rule::new(limiter("address", limits.address), PeerAddress::new(), anonymous()).keep_charge();
    let login_layer = LimitLayer::new([account, address], failure());

    let customer = Header::new(CUSTOMER).or(PeerAddress::new());
    let search_rule = Rule::new(limiter("search", limits.search), customer, anonymous());
    let search_layer = LimitLayer::builder([search_rule], failure()).within(Duration::from_secs(2)).build();

    Router::new()
        .route("/chat", post(chat).with_state(limiter("chat", limits.chat)))
        .route("/login", post(login).layer(login_layer))
        .route("/search", get(|| async { "nothing found\n" }).layer(search_layer))
}

async fn login(password: String) -> (StatusCode, &'static str) {
    if password == "open sesame" {
        (StatusCode::OK, "welcome\n")
    } else {
        (StatusCode::UNAUTHORIZED, "wrong password\n")
    }
}

async fn chat(State(limiter): State<Limiter>, headers: HeaderMap, prompt: String) -> Response {
    let Some(customer) = headers.get(CUSTOMER) else { return StatusCode::UNAUTHORIZED.into_response() };
    let permit = match limiter
        .acquire(customer.as_bytes())
        .cost(u64::from(LONGEST))
        .permit()
        .await
        .map(PermitDecision::into_result)
    {
        Ok(Ok(permit)) => permit.into_owned(),
        Ok(Err(denied)) => {
            let mut response = Refusal::denied(&limiter, &denied).into_response();
            RateLimitHeaders::default().write(response.headers_mut(), &limiter, &denied);
            return response;
        }
        Err(error) => return unavailable(&error),
    };
    let mut fields = HeaderMap::new();
    RateLimitHeaders::default().write(&mut fields, &limiter, permit.decision());
    let streamed = Arc::new(AtomicU64::new(0));
    // The body owns the charge. It is dropped after the last token, or when the client hangs up.
    let charge = permit.settle_on_drop(streamed.clone(), |settling| {
        tokio::spawn(async { settling.await.inspect_err(|error| eprintln!("a chat stays charged in full: {error}")) });
    });
    let tokens = model(&prompt).inspect(move |_| {
        let _owned = &charge;
        streamed.fetch_add(1, Ordering::Relaxed);
    });
    (fields, Body::from_stream(tokens.map(Ok::<_, Infallible>))).into_response()
}

/// Fails closed. The error does not print the key.
fn unavailable(error: &Error) -> Response {
    eprintln!("{error}");
    (StatusCode::SERVICE_UNAVAILABLE, [("retry-after", "1")], "try again\n").into_response()
}

/// Stands in for a language model: it repeats the prompt, a word each 50 ms.
fn model(prompt: &str) -> impl Stream<Item = String> + use<> {
    let words: Vec<String> = prompt.split_whitespace().map(|word| format!("{word} ")).collect();
    stream::iter(words).take(LONGEST as usize).then(async |word| {
        tokio::time::sleep(Duration::from_millis(50)).await;
        word
    })
}

/// Opens a store, and returns how to update its metrics.
async fn open(url: &str) -> Result<(SharedStore, Arc<dyn Fn() + Send + Sync>), Error> {
    if url == "memory" {
        let metrics = Metrics::named("memory");
        let store = Arc::new(ObservedStore::new(MemoryStore::new(), metrics));
        return Ok((store.clone(), Arc::new(move || metrics.report_keys(store.store().len()))));
    }
    let metrics = Metrics::named("redis");
    let stack = Stack::new(RedisStore::connect(url).await?).fallback(MemoryStore::new());
    let store = Arc::new(ObservedStore::new(stack, metrics));
    Ok((store.clone(), Arc::new(move || store.report(&metrics))))
}

/// Loads the limits again whenever their file has changed. A file with an error changes nothing.
async fn reload(file: String, store: SharedStore, current: watch::Sender<Router>) {
    let mut seen = None;
    loop {
        let text = std::fs::read_to_string(&file).map_err(|error| error.to_string());
        if seen.as_ref() != Some(&text) {
            match text.clone().map_err(Into::into).and_then(|text| Limits::parse(&text)) {
                Ok(limits) => drop(current.send(routes(limits, &store))),
                Err(error) => eprintln!("{file}: {error}. The limits stay as they are"),
            }
            seen = Some(text);
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// Returns the service: each request goes to the current routes.
fn service(current: watch::Receiver<Router>) -> Router {
    Router::new().fallback(move |request: Request| {
        let routes = current.borrow().clone();
        routes.oneshot(request)
    })
}

#[tokio::main]
async fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let (file, url, address) = (args.next(), args.next(), args.next());
    let recorder = PrometheusBuilder::new().set_buckets(&[0.0001, 0.001, 0.01, 0.1])?.install_recorder()?;
    let (store, report) = open(url.as_deref().unwrap_or("memory")).await?;
    let (sender, current) = watch::channel(routes(Limits::parse(DEFAULT)?, &store));
    if let Some(file) = file {
        tokio::spawn(reload(file, store, sender));
    }
    let metrics = get(move || async move {
        report();
        recorder.render()
    });
    let app = service(current).route("/metrics", metrics);
    let listener = tokio::net::TcpListener::bind(address.as_deref().unwrap_or("127.0.0.1:8080")).await?;
    println!("listening on http://{}", listener.local_addr()?);
    Ok(axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?)
}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;

    use axum::extract::ConnectInfo;
    use exact_limiter::time::WithClock;
    use limiter_testkit::MockClock;
    use limiter_testkit::server::Server;

    use super::*;

    /// Returns the routes over a store in memory, and its clock.
    fn gateway() -> (Router, MockClock) {
        let clock = MockClock::new();
        let store: SharedStore = Arc::new(WithClock::new(MemoryStore::new(), clock.clone()));
        (routes(Limits::parse(DEFAULT).unwrap(), &store), clock)
    }

    async fn send(gateway: &Router, request: &str, header: (&'static str, &str), body: &'static str) -> Response {
        let (method, path) = request.split_once(' ').unwrap();
        let request = Request::builder().method(method).uri(path).header(header.0, header.1);
        let mut request = request.body(Body::from(body)).unwrap();
        request.extensions_mut().insert(ConnectInfo(SocketAddr::from(([203, 0, 113, 7], 4711))));
        gateway.clone().oneshot(request).await.unwrap()
    }

    async fn chat(gateway: &Router, prompt: &'static str) -> Response {
        send(gateway, "POST /chat", ("x-api-key", "k7"), prompt).await
    }

    async fn login(gateway: &Router, account: &str, password: &'static str) -> Response {
        send(gateway, "POST /login", ("x-account", account), password).await
    }

    async fn search(gateway: &Router) -> StatusCode {
        send(gateway, "GET /search", ("x-api-key", "k7"), "").await.status()
    }

    async fn text(body: Body) -> String {
        String::from_utf8(axum::body::to_bytes(body, usize::MAX).await.unwrap().into()).unwrap()
    }

    /// Waits until a condition holds.
    async fn until<T: Debug, F: Future<Output = T>>(mut probe: impl FnMut() -> F, holds: impl Fn(&T) -> bool) {
        let mut last = probe().await;
        for _ in 0..1000 {
            if holds(&last) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
            last = probe().await;
        }
        panic!("after 20 s: {last:?}");
    }

    #[tokio::test]
    async fn a_chat_is_charged_what_was_streamed_even_if_the_client_hangs_up() {
        let store: SharedStore = Arc::new(MemoryStore::new());
        let gateway = routes(Limits::parse(DEFAULT).unwrap(), &store);
        let usage = Limiter::new("chat", exact_limiter::policy!("1000/1h"), store);
        let used = || async { usage.status("k7").await.unwrap().used() };

        let answer = chat(&gateway, "one two three").await;
        assert_eq!(answer.headers()["ratelimit"], r#""chat-1m";r=600;t=60, "chat-1d";r=49600;t=86400"#);
        assert_eq!(text(answer.into_body()).await, "one two three ");
        until(used, |used| *used == 3).await;

        let mut tokens = chat(&gateway, "a b c d e f g").await.into_body().into_data_stream();
        assert_eq!(tokens.next().await.unwrap().unwrap(), "a ");
        assert_eq!(used().await, 403);
        drop(tokens);
        until(used, |used| *used == 4).await;

        let answers = [chat(&gateway, "a").await, chat(&gateway, "a").await];
        let denied = chat(&gateway, "a").await;
        assert_eq!((denied.status(), answers[1].status()), (StatusCode::TOO_MANY_REQUESTS, StatusCode::OK));
        assert!(denied.headers().contains_key("retry-after"), "{:?}", denied.headers());
        assert!(text(denied.into_body()).await.contains(r#""violated-policies":["chat-1m"]"#));
    }

    #[tokio::test]
    async fn a_good_login_forgets_the_failures_of_its_account_but_not_of_its_address() {
        let (gateway, clock) = gateway();
        for _ in 0..4 {
            assert_eq!(login(&gateway, "ann", "guess").await.status(), StatusCode::UNAUTHORIZED);
        }
        let welcome = login(&gateway, "ann", "open sesame").await;
        assert_eq!(welcome.headers()["ratelimit"], r#""account";r=5, "address";r=45;t=900"#);
        for _ in 0..5 {
            assert_eq!(login(&gateway, "ann", "guess").await.status(), StatusCode::UNAUTHORIZED);
        }
        for _ in 0..40 {
            assert_eq!(login(&gateway, "ann", "open sesame").await.status(), StatusCode::TOO_MANY_REQUESTS);
        }
        let other = login(&gateway, "ben", "open sesame").await;
        assert_eq!(
            (other.status(), &other.headers()["retry-after"]),
            (StatusCode::TOO_MANY_REQUESTS, &"900".parse().unwrap())
        );
        clock.advance(Duration::from_secs(900));
        assert_eq!(login(&gateway, "ann", "open sesame").await.status(), StatusCode::OK);
    }

    #[tokio::test]
    async fn a_search_waits_until_it_fits_and_new_limits_apply_without_a_restart() {
        let store: SharedStore = Arc::new(MemoryStore::new());
        let file = tempfile::NamedTempFile::new().unwrap();
        let write = |search: &str| std::fs::write(file.path(), DEFAULT.replace("5/10s", search)).unwrap();
        let (sender, current) = watch::channel(routes(Limits::parse(DEFAULT).unwrap(), &store));
        let gateway = service(current.clone());
        write("1/300ms");
        tokio::spawn(reload(file.path().to_str().unwrap().to_owned(), store, sender));
        until(|| async { current.has_changed().unwrap() }, |changed| *changed).await;
        for _ in 0..3 {
            assert_eq!(search(&gateway).await, StatusCode::OK, "the second and the third wait");
        }
        write("3/1h");
        until(|| search(&gateway), |status| *status == StatusCode::TOO_MANY_REQUESTS).await;
        for (bad, expected) in [("{}", "missing field"), (&DEFAULT.replace("1000/1m", "399/1m"), "400 tokens")] {
            let error = Limits::parse(bad).err().unwrap().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[tokio::test]
    async fn two_gateways_share_their_limits_and_report_metrics() {
        let server = Server::start().unwrap();
        let recorder = PrometheusBuilder::new().install_recorder().unwrap();
        let (first, report) = open(&server.url()).await.unwrap();
        let (second, _) = open(&server.url()).await.unwrap();
        let limits = || Limits::parse(&DEFAULT.replace("5/10s", "5/1h")).unwrap();
        let gateways = [routes(limits(), &first), routes(limits(), &second)];
        for (i, expected) in [200, 200, 200, 200, 200, 429, 429].into_iter().enumerate() {
            assert_eq!(search(&gateways[i % 2]).await, expected);
        }
        report();
        let metrics = recorder.render();
        for (labels, value) in [("limiter_outage", 0), (r#"outcome="allowed""#, 5), (r#"outcome="denied""#, 2)] {
            let found = metrics.lines().any(|line| {
                line.contains(labels) && line.contains(r#"store="redis""#) && line.ends_with(&format!(" {value}"))
            });
            assert!(found, "{labels} {value}: {metrics}");
        }
    }
}
