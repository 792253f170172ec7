//! A gateway to language models, with a policy for each customer, in memory or on Redis. It loads its limits again when their file
//! changes. Run it with
//!
//! ```text
//! cargo run --example gateway --all-features -- [limits.json] [memory | redis://…] [127.0.0.1:8080]
//! curl -N -H 'x-api-key: k7' -d 'one two three' localhost:8080/chat
//! ```
//!
//! - `POST /chat` streams the answer. It reserves tokens for the longest one and charges the streamed tokens, even if the
//!   client disconnects.
//! - `POST /embed/{model}` charges the customer and the model, or neither.
//! - `GET /image/{subject}` waits for up to two seconds until it fits, and is refunded if it fails.
//! - `GET /usage` is the customer's usage as JSON.
//! - `POST /login` counts the failures of an account and all attempts from an address.
//! - `GET /metrics` is Prometheus text.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use exact_limiter::wrappers::Guarded;
use exact_limiter::wrappers::observe::{ObservedStore, report, report_keys};
use exact_limiter::{AllOf, Error, Limiter, MemoryStore, Policy, RedisStore, SharedStore, Status};
use futures::{Stream, StreamExt, stream};
use limiter_tower::key::{self, ClientAddress, Header};
use limiter_tower::{
    ActualCost, Charge, Charges, HeaderName, LimitLayer, MissingKey, Rejection, Rule, StatusCode,
    StoreFailure,
};
use metrics_exporter_prometheus::PrometheusBuilder;
use serde::Deserialize;
use tokio::sync::watch;
use tower::ServiceExt;

type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

/// The tokens of the longest answer.
const LONGEST: u64 = 400;

/// The limits of a file, such as [`DEFAULT`].
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Limits {
    customers: HashMap<String, Policy>, // by API key
    models: Policy,
    images: Policy,
    account: Policy,
    address: Policy,
}

const DEFAULT: &str = r#"{
    "customers": {"k7": "1000/1m, 50000/1d", "k9": "4000/1m"},
    "models": "10000/1m", "images": "5/10s", "account": "5/15m", "address": "50/15m"
}"#;

struct Gateway {
    customers: HashMap<String, Arc<Policy>>,
    tokens: Limiter,
    models: Limiter,
    images: Limiter,
}

/// The customer of a request.
#[derive(Clone)]
struct Customer {
    key: String,
    policy: Arc<Policy>,
}

/// Returns the routes with these limits. The store has the logs, so new routes over it continue them.
fn routes(limits: Limits, store: &SharedStore) -> Result<Router> {
    let limiter = |name, policy| Limiter::new(name, policy, store.clone());
    let failure = || StoreFailure::Closed {
        retry_after: Duration::from_secs(1),
    };
    let unknown = || MissingKey::Reject(StatusCode::UNAUTHORIZED);

    let account = Header::new(HeaderName::from_static("x-account"));
    let account =
        Rule::new(limiter("account", limits.account), account, unknown()).settle(|response| {
            if response.status().is_success() {
                ActualCost::Reset
            } else {
                ActualCost::AsCharged
            }
        })?;
    let address = Rule::new(
        limiter("address", limits.address),
        ClientAddress::peer(),
        unknown(),
    )
    .keep_charge();
    let login_layer = LimitLayer::new([account, address], failure());

    // Each customer brings a policy. The limiter's own policy keeps the entries that any of them counts.
    let tokens = limiter("tokens", Policy::covering(limits.customers.values())?);
    let chat = Rule::new(
        tokens.clone(),
        key::Extension::new(|customer: &Customer| customer.key.clone()),
        unknown(),
    )
    .charge(|head| match head.extensions().get::<Customer>() {
        // A reservation above the smallest limit could never fit.
        Some(Customer { policy, .. }) => {
            Charge::units(LONGEST.min(policy.smallest_max())).policy(policy)
        }
        None => Charge::units(1),
    })
    .settle_in_handler()?;
    let chat_layer = LimitLayer::new([chat], failure());

    let gateway = Arc::new(Gateway {
        customers: limits
            .customers
            .into_iter()
            .map(|(key, policy)| (key, Arc::new(policy)))
            .collect(),
        tokens,
        models: limiter("models", limits.models),
        images: limiter("images", limits.images),
    });
    let for_customers = Router::new()
        .route("/chat", post(chat_handler).layer(chat_layer))
        .route("/embed/{model}", post(embed))
        .route("/image/{subject}", get(image))
        .route("/usage", get(usage))
        .route_layer(from_fn_with_state(gateway.clone(), authenticate))
        .with_state(gateway);
    Ok(for_customers.route("/login", post(login).layer(login_layer)))
}

/// Finds the customer of an API key. Without it, a client could escape its limit with another key for each request.
async fn authenticate(
    State(gateway): State<Arc<Gateway>>,
    mut request: Request,
    next: Next,
) -> Response {
    let key = request
        .headers()
        .get("x-api-key")
        .and_then(|key| key.to_str().ok());
    let Some((key, policy)) = key.and_then(|key| gateway.customers.get_key_value(key)) else {
        return StatusCode::UNAUTHORIZED.into_response();
    };
    request.extensions_mut().insert(Customer {
        key: key.clone(),
        policy: policy.clone(),
    });
    next.run(request).await
}

async fn chat_handler(Extension(charges): Extension<Charges>, prompt: String) -> Body {
    let streamed = Arc::new(AtomicU64::new(0));
    let counted = streamed.clone();
    // The body owns the charge. It is dropped after the last token, or when the client hangs up.
    let charge = charges.iter().next().cloned().map(|charge| {
        charge.on_drop(move |charge| {
            let cost = counted.load(Ordering::Relaxed);
            tokio::spawn(async move { charge.settle_or_record(cost).await });
        })
    });
    let tokens = model(&prompt).map(move |token| {
        let _owned = &charge;
        streamed.fetch_add(1, Ordering::Relaxed);
        Ok::<_, Infallible>(token)
    });
    Body::from_stream(tokens)
}

/// Stands in for a language model: it repeats the prompt, a word each 50 ms.
fn model(prompt: &str) -> impl Stream<Item = String> + use<> {
    let words: Vec<String> = prompt
        .split_whitespace()
        .map(|word| format!("{word} "))
        .collect();
    stream::iter(words)
        .take(LONGEST as usize)
        .then(async |word| {
            tokio::time::sleep(Duration::from_millis(50)).await;
            word
        })
}

async fn embed(
    State(gateway): State<Arc<Gateway>>,
    Extension(customer): Extension<Customer>,
    Path(model): Path<String>,
    text: String,
) -> Result<String, Rejection> {
    let tokens = text.split_whitespace().count().max(1) as u64;
    // The model comes last: a customer without tokens never charges it.
    let both = AllOf::new()
        .with(
            gateway
                .tokens
                .acquire(&customer.key)
                .policy(&customer.policy)
                .cost(tokens),
        )
        .with(gateway.models.acquire(&model).cost(tokens))
        .await?;
    if both.is_denied() {
        Err(Rejection::of(&both))
    } else {
        Ok(format!("{tokens} vectors\n"))
    }
}

async fn image(
    State(gateway): State<Arc<Gateway>>,
    Extension(customer): Extension<Customer>,
    Path(subject): Path<String>,
) -> Result<(StatusCode, &'static str), Rejection> {
    let acquire = gateway.images.acquire(&customer.key).permit();
    let permit = acquire
        .within(Duration::from_secs(2))
        .await?
        .into_result()
        .map_err(|denied| Rejection::denied(&gateway.images, &denied))?;
    if subject != "nothing" {
        return Ok((StatusCode::OK, "an image\n"));
    }
    let _ = permit.refund().await?;
    Ok((StatusCode::BAD_GATEWAY, "the model has drawn nothing\n"))
}

async fn usage(
    State(gateway): State<Arc<Gateway>>,
    Extension(customer): Extension<Customer>,
) -> Result<Json<Status>, Rejection> {
    Ok(Json(
        gateway
            .tokens
            .status(&customer.key)
            .policy(&customer.policy)
            .await?,
    ))
}

async fn login(password: String) -> (StatusCode, &'static str) {
    if password == "open sesame" {
        (StatusCode::OK, "welcome\n")
    } else {
        (StatusCode::UNAUTHORIZED, "wrong password\n")
    }
}

/// Opens a store, and returns how to update its metrics.
async fn open(url: &str) -> Result<(SharedStore, Arc<dyn Fn() + Send + Sync>), Error> {
    if url == "memory" {
        let store = Arc::new(ObservedStore::new(MemoryStore::new(), "memory"));
        return Ok((
            store.clone(),
            Arc::new(move || report_keys("memory", store.store().len())),
        ));
    }
    let stack = Guarded::builder(RedisStore::connect(url).await?).fallback(MemoryStore::new());
    let store = Arc::new(ObservedStore::new(stack, "redis"));
    Ok((
        store.clone(),
        Arc::new(move || report("redis", store.store())),
    ))
}

fn parsed(text: &str, store: &SharedStore) -> Result<Router> {
    routes(serde_json::from_str(text)?, store)
}

/// Loads the limits again whenever their file has changed. A file with an error leaves the limits unchanged.
async fn reload(file: String, store: SharedStore, current: watch::Sender<Router>) {
    let mut seen = None;
    loop {
        let text = std::fs::read_to_string(&file).map_err(|error| error.to_string());
        if seen.as_ref() != Some(&text) {
            match text
                .clone()
                .map_err(Into::into)
                .and_then(|text| parsed(&text, &store))
            {
                Ok(routes) => drop(current.send(routes)),
                Err(error) => eprintln!("{file}: {error}. The limits stay as they are"),
            }
            seen = Some(text);
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// Returns the service: each request goes to the current routes.
fn service(current: watch::Receiver<Router>) -> Router {
    Router::new().fallback(move |request: Request| current.borrow().clone().oneshot(request))
}

#[tokio::main]
async fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let (file, url, address) = (args.next(), args.next(), args.next());
    let recorder = PrometheusBuilder::new()
        .set_buckets(&[0.0001, 0.001, 0.01, 0.1])?
        .install_recorder()?;
    let (store, report) = open(url.as_deref().unwrap_or("memory")).await?;
    let (sender, current) = watch::channel(parsed(DEFAULT, &store)?);
    if let Some(file) = file {
        tokio::spawn(reload(file, store, sender));
    }
    let metrics = get(move || async move {
        report();
        recorder.render()
    });
    let app = service(current).route("/metrics", metrics);
    let listener =
        tokio::net::TcpListener::bind(address.as_deref().unwrap_or("127.0.0.1:8080")).await?;
    println!("listening on http://{}", listener.local_addr()?);
    Ok(axum::serve(
        listener,
        app.into_make_service_with_connect_info::<SocketAddr>(),
    )
    .await?)
}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;

    use axum::extract::ConnectInfo;
    use exact_limiter::time::WithClock;
    use limiter_testkit::MockClock;
    use testbed::server::Server;

    use super::*;

    /// Returns the routes over a store with these limits in place of some.
    fn gateway(store: &SharedStore, replaced: &str, limits: &str) -> Router {
        parsed(&DEFAULT.replace(replaced, limits), store).unwrap()
    }

    fn memory() -> SharedStore {
        Arc::new(MemoryStore::new())
    }

    async fn send(
        gateway: &Router,
        request: &str,
        header: (&'static str, &str),
        body: &'static str,
    ) -> Response {
        let (method, path) = request.split_once(' ').unwrap();
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header.0, header.1);
        let mut request = request.body(Body::from(body)).unwrap();
        request
            .extensions_mut()
            .insert(ConnectInfo(SocketAddr::from(([203, 0, 113, 7], 4711))));
        gateway.clone().oneshot(request).await.unwrap()
    }

    async fn ask(gateway: &Router, request: &str, key: &str, body: &'static str) -> Response {
        send(gateway, request, ("x-api-key", key), body).await
    }

    async fn login(gateway: &Router, account: &str, password: &'static str) -> Response {
        send(gateway, "POST /login", ("x-account", account), password).await
    }

    async fn image(gateway: &Router) -> StatusCode {
        ask(gateway, "GET /image/cat", "k7", "").await.status()
    }

    async fn text(response: Response) -> String {
        let body = axum::body::to_bytes(response.into_body(), usize::MAX)
            .await
            .unwrap();
        String::from_utf8(body.into()).unwrap()
    }

    /// Returns the customer's usage of its first limit.
    async fn used(gateway: &Router, key: &str) -> u64 {
        let usage: serde_json::Value =
            serde_json::from_str(&text(ask(gateway, "GET /usage", key, "").await).await).unwrap();
        usage["limits"][0]["used"].as_u64().unwrap()
    }

    /// Waits until a condition holds.
    async fn until<T: Debug, F: Future<Output = T>>(
        mut probe: impl FnMut() -> F,
        holds: impl Fn(&T) -> bool,
    ) {
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
        let gateway = gateway(&memory(), "1000/1m", "1000/1h");
        let answer = ask(&gateway, "POST /chat", "k7", "one two three").await;
        assert_eq!(
            answer.headers()["ratelimit"],
            r#""tokens-1h";r=600;t=3600, "tokens-1d";r=49600;t=86400"#
        );
        assert_eq!(text(answer).await, "one two three ");
        until(|| used(&gateway, "k7"), |used| *used == 3).await;

        let mut tokens = ask(&gateway, "POST /chat", "k7", "a b c d e")
            .await
            .into_body()
            .into_data_stream();
        assert_eq!(tokens.next().await.unwrap().unwrap(), "a ");
        assert_eq!(used(&gateway, "k7").await, 403);
        drop(tokens);
        until(|| used(&gateway, "k7"), |used| *used == 4).await;

        let answers = [
            ask(&gateway, "POST /chat", "k7", "a").await,
            ask(&gateway, "POST /chat", "k7", "a").await,
        ];
        let denied = ask(&gateway, "POST /chat", "k7", "a").await;
        assert_eq!(
            (denied.status(), answers[1].status()),
            (StatusCode::TOO_MANY_REQUESTS, StatusCode::OK)
        );
        assert!(
            denied.headers().contains_key("retry-after"),
            "{:?}",
            denied.headers()
        );
        assert!(
            text(denied)
                .await
                .contains(r#""violated-policies":["tokens-1h"]"#)
        );
        assert_eq!(
            ask(&gateway, "POST /chat", "k9", "a").await.status(),
            StatusCode::OK,
            "with another policy"
        );
        assert_eq!(
            ask(&gateway, "POST /chat", "k8", "a").await.status(),
            StatusCode::UNAUTHORIZED
        );
    }

    #[tokio::test]
    async fn an_embedding_charges_the_customer_and_the_model_or_neither() {
        let gateway = gateway(&memory(), "10000/1m", "7/1h");
        for (key, status) in [("k7", 200), ("k9", 200), ("k9", 429)] {
            let answer = ask(&gateway, "POST /embed/large", key, "one two three").await;
            assert_eq!(answer.status(), status);
            if status == 429 {
                assert_eq!(answer.headers()["retry-after"], "3600");
                assert!(
                    text(answer)
                        .await
                        .contains(r#""violated-policies":["models"]"#)
                );
            }
        }
        assert_eq!(
            [used(&gateway, "k7").await, used(&gateway, "k9").await],
            [3, 3]
        );
        let too_long = ask(&gateway, "POST /embed/small", "k7", "1 2 3 4 5 6 7 8").await;
        assert_eq!(
            (too_long.status(), used(&gateway, "k7").await),
            (StatusCode::PAYLOAD_TOO_LARGE, 3)
        );
    }

    #[tokio::test]
    async fn a_good_login_forgets_the_failures_of_its_account_but_not_of_its_address() {
        let clock = MockClock::new();
        let store: SharedStore = Arc::new(WithClock::new(MemoryStore::new(), clock.clone()));
        let gateway = gateway(&store, "", "");
        for _ in 0..4 {
            assert_eq!(
                login(&gateway, "ann", "guess").await.status(),
                StatusCode::UNAUTHORIZED
            );
        }
        let welcome = login(&gateway, "ann", "open sesame").await;
        assert_eq!(
            welcome.headers()["ratelimit"],
            r#""account";r=5, "address";r=45;t=900"#
        );
        for _ in 0..5 {
            assert_eq!(
                login(&gateway, "ann", "guess").await.status(),
                StatusCode::UNAUTHORIZED
            );
        }
        for _ in 0..40 {
            assert_eq!(
                login(&gateway, "ann", "open sesame").await.status(),
                StatusCode::TOO_MANY_REQUESTS
            );
        }
        let other = login(&gateway, "ben", "open sesame").await;
        let expected = (StatusCode::TOO_MANY_REQUESTS, "900");
        assert_eq!(
            (
                other.status(),
                other.headers()["retry-after"].to_str().unwrap()
            ),
            expected
        );
        clock.advance(Duration::from_secs(900));
        assert_eq!(
            login(&gateway, "ann", "open sesame").await.status(),
            StatusCode::OK
        );
    }

    #[tokio::test]
    async fn an_image_waits_until_it_fits_and_new_limits_apply_without_a_restart() {
        let store = memory();
        let file = tempfile::NamedTempFile::new().unwrap();
        let write =
            |images: &str| std::fs::write(file.path(), DEFAULT.replace("5/10s", images)).unwrap();
        let (sender, current) = watch::channel(gateway(&store, "", ""));
        let gateway = service(current.clone());
        write("1/300ms");
        tokio::spawn(reload(
            file.path().to_str().unwrap().to_owned(),
            store.clone(),
            sender,
        ));
        until(
            || async { current.has_changed().unwrap() },
            |changed| *changed,
        )
        .await;
        for _ in 0..3 {
            assert_eq!(
                image(&gateway).await,
                StatusCode::OK,
                "the second and the third wait"
            );
        }
        write("3/1h");
        until(
            || image(&gateway),
            |status| *status == StatusCode::TOO_MANY_REQUESTS,
        )
        .await;
        write("4/1h");
        let failed = || async { ask(&gateway, "GET /image/nothing", "k7", "").await.status() };
        until(failed, |status| *status == StatusCode::BAD_GATEWAY).await;
        assert_eq!(
            image(&gateway).await,
            StatusCode::OK,
            "the failed one was refunded"
        );
        assert_eq!(image(&gateway).await, StatusCode::TOO_MANY_REQUESTS);
        for bad in [
            "{}",
            &DEFAULT.replace(r#""k7": "1000/1m, 50000/1d", "k9": "4000/1m""#, ""),
        ] {
            assert!(parsed(bad, &store).is_err());
        }
    }

    #[tokio::test]
    async fn two_gateways_share_their_limits_and_report_metrics() {
        let server = Server::start().unwrap();
        let recorder = PrometheusBuilder::new().install_recorder().unwrap();
        let (first, report) = open(&server.url()).await.unwrap();
        let (second, _) = open(&server.url()).await.unwrap();
        let gateways = [
            gateway(&first, "5/10s", "5/1h"),
            gateway(&second, "5/10s", "5/1h"),
        ];
        for (i, expected) in [200, 200, 200, 200, 200, 429, 429].into_iter().enumerate() {
            assert_eq!(image(&gateways[i % 2]).await, expected);
        }
        report();
        let metrics = recorder.render();
        for (labels, value) in [
            ("limiter_outage", 0),
            (r#"outcome="allowed""#, 5),
            (r#"outcome="denied""#, 2),
        ] {
            let found = metrics.lines().any(|line| {
                line.contains(labels)
                    && line.contains(r#"store="redis""#)
                    && line.ends_with(&format!(" {value}"))
            });
            assert!(found, "{labels} {value}: {metrics}");
        }
    }
}
