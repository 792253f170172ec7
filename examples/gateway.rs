//! A gateway to language models, with a policy for each customer, in memory or on Redis. It loads its limits again when their file
//! changes. Run it with
//!
//! ```text
//! cargo run --example gateway --all-features -- [limits.json] [memory | redis://…] [127.0.0.1:8080]
//! curl -N -H 'x-api-key: k7' -d 'one two three' localhost:8080/chat
//! ```
//!
//! - `POST /chat` streams the answer. It reserves tokens for the longest chat, and charges the prompt and the streamed tokens, even
//!   if the client disconnects.
//! - `POST /embed/{model}` charges the customer and the model, or neither.
//! - `GET /image/{subject}` waits for up to two seconds until it fits, and is refunded if it fails.
//! - `GET /usage` is the customer's usage as JSON.
//! - `POST /login` counts the failures of an account and all attempts from an address.

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
use exact_limiter::{AllOf, Error, Limiter, MemoryStore, Policy, RedisStore, SharedStore, Status};
use futures::{Stream, StreamExt, stream};
use limiter_tower::key::{self, ClientAddress, Header};
use limiter_tower::{
    ActualCost, Charge, Charges, HeaderName, LimitLayer, MissingKey, Rejection, Rule, StatusCode,
    StoreFailure,
};
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
    tokens: Policy,
    models: Policy,
    images: Policy,
    account: Policy,
    address: Policy,
}

const DEFAULT: &str = r#"{
    "customers": {"k7": "1000/1m, 50000/1d", "k9": "4000/1m"}, "tokens": "6000000/1d",
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

    // Each customer brings a policy. The file's "tokens" must admit at least as much: a charge above it has no receipt, so it is
    // never settled.
    let tokens = limiter("tokens", limits.tokens);
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

    let customers = limits.customers.into_iter();
    let gateway = Arc::new(Gateway {
        customers: customers
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
    let key = request.headers().get("x-api-key");
    let key = key.and_then(|key| key.to_str().ok());
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
    // The model reads the prompt before the first token, so the count begins with it.
    let used = Arc::new(AtomicU64::new(prompt.split_whitespace().count() as u64));
    let counted = used.clone();
    // The body owns the charge. It is dropped after the last token, or when the client hangs up.
    let charge = charges.iter().next().cloned().map(|charge| {
        scopeguard::guard(charge, move |charge| {
            let cost = counted.load(Ordering::Relaxed);
            tokio::spawn(async move { charge.settle_or_record(cost).await });
        })
    });
    let tokens = model(&prompt).map(move |token| {
        let _owned = &charge;
        used.fetch_add(1, Ordering::Relaxed);
        Ok::<_, Infallible>(token)
    });
    Body::from_stream(tokens)
}

/// Stands in for a language model: it repeats the prompt, a word each 50 ms.
fn model(prompt: &str) -> impl Stream<Item = String> + use<> {
    let longest = LONGEST as usize - prompt.split_whitespace().count().min(LONGEST as usize);
    let words = prompt.split_whitespace().take(longest);
    let words: Vec<String> = words.map(|word| format!("{word} ")).collect();
    stream::iter(words).then(async |word| {
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
    let own = gateway.tokens.acquire(&customer.key);
    let both = AllOf::new()
        .with(own.policy(&customer.policy).cost(tokens))
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
    let decision = acquire.within(Duration::from_secs(2)).await?;
    let denied = |denied| Rejection::denied(&gateway.images, &denied);
    let permit = decision.into_result().map_err(denied)?;
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
    let status = gateway.tokens.status(&customer.key);
    Ok(Json(status.policy(&customer.policy).await?))
}

async fn login(password: String) -> (StatusCode, &'static str) {
    if password == "open sesame" {
        (StatusCode::OK, "welcome\n")
    } else {
        (StatusCode::UNAUTHORIZED, "wrong password\n")
    }
}

/// Opens a store.
async fn open(url: &str) -> Result<SharedStore, Error> {
    if url == "memory" {
        return Ok(Arc::new(MemoryStore::new()));
    }
    let redis = RedisStore::connect(url).await?;
    let guarded = Guarded::builder(redis).fallback(MemoryStore::new());
    Ok(Arc::new(guarded))
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
            let routes = text.clone().map_err(Into::into);
            match routes.and_then(|text| parsed(&text, &store)) {
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
    let file = args.next();
    let url = args.next();
    let address = args.next();
    let store = open(url.as_deref().unwrap_or("memory")).await?;
    let (sender, current) = watch::channel(parsed(DEFAULT, &store)?);
    if let Some(file) = file {
        tokio::spawn(reload(file, store, sender));
    }
    let app = service(current);
    let address = address.as_deref().unwrap_or("127.0.0.1:8080");
    let listener = tokio::net::TcpListener::bind(address).await?;
    println!("listening on http://{}", listener.local_addr()?);
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    Ok(axum::serve(listener, app).await?)
}

#[cfg(test)]
mod tests {
    use std::ops::RangeInclusive;

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

    /// Sends a request with the customer's key, or with the name of an account.
    async fn ask(gateway: &Router, request: &str, key: &str, body: &'static str) -> Response {
        let (method, path) = request.split_once(' ').unwrap();
        let client = SocketAddr::from(([203, 0, 113, 7], 4711));
        let name = match path {
            "/login" => "x-account",
            _ => "x-api-key",
        };
        let request = Request::builder().method(method).uri(path);
        let request = request.header(name, key).extension(ConnectInfo(client));
        let request = request.body(Body::from(body)).unwrap();
        gateway.clone().oneshot(request).await.unwrap()
    }

    async fn status(gateway: &Router, request: &str, key: &str, body: &'static str) -> u16 {
        ask(gateway, request, key, body).await.status().as_u16()
    }

    async fn image(gateway: &Router) -> u16 {
        status(gateway, "GET /image/cat", "k7", "").await
    }

    fn field<'a>(response: &'a Response, name: &str) -> &'a str {
        response.headers()[name].to_str().unwrap()
    }

    async fn text(response: Response) -> String {
        let body = axum::body::to_bytes(response.into_body(), usize::MAX).await;
        String::from_utf8(body.unwrap().into()).unwrap()
    }

    /// Returns the customer's usage of its first limit.
    async fn used(gateway: &Router, key: &str) -> u64 {
        let usage = text(ask(gateway, "GET /usage", key, "").await).await;
        let usage: serde_json::Value = serde_json::from_str(&usage).unwrap();
        usage["limits"][0]["used"].as_u64().unwrap()
    }

    /// Waits until a condition holds.
    async fn until(mut holds: impl AsyncFnMut() -> bool) {
        for _ in 0..1000 {
            if holds().await {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("the condition did not hold within 20 s");
    }

    #[tokio::test]
    async fn a_chat_is_charged_what_was_streamed_even_if_the_client_hangs_up() {
        let gateway = gateway(&memory(), "1000/1m", "1000/1h");
        let answer = ask(&gateway, "POST /chat", "k7", "one two three").await;
        let limits = r#""tokens-1h";r=600;t=3600, "tokens-1d";r=49600;t=86400"#;
        assert_eq!(field(&answer, "ratelimit"), limits);
        assert_eq!(text(answer).await, "one two three ");
        until(async || used(&gateway, "k7").await == 6).await;

        let answer = ask(&gateway, "POST /chat", "k7", "a b c d e").await;
        let mut tokens = answer.into_body().into_data_stream();
        assert_eq!(tokens.next().await.unwrap().unwrap(), "a ");
        assert_eq!(used(&gateway, "k7").await, 406);
        drop(tokens);
        until(async || used(&gateway, "k7").await == 12).await;

        let chat = async |key| ask(&gateway, "POST /chat", key, "a").await;
        let running = [chat("k7").await, chat("k7").await];
        let denied = chat("k7").await;
        assert_eq!(running.map(|answer| answer.status().as_u16()), [200; 2]);
        assert!(denied.status() == 429 && denied.headers().contains_key("retry-after"));
        let violated = r#""violated-policies":["tokens-1h"]"#;
        assert!(text(denied).await.contains(violated));
        // Another policy, and nobody's key.
        assert_eq!(chat("k9").await.status(), 200);
        assert_eq!(chat("k8").await.status(), 401);
    }

    #[tokio::test]
    async fn an_embedding_charges_the_customer_and_the_model_or_neither() {
        let gateway = gateway(&memory(), "10000/1m", "7/1h");
        let embed = async |key| ask(&gateway, "POST /embed/large", key, "one two three").await;
        for key in ["k7", "k9"] {
            assert_eq!(embed(key).await.status(), 200);
        }
        let denied = embed("k9").await;
        assert!(denied.status() == 429 && field(&denied, "retry-after") == "3600");
        let violated = r#""violated-policies":["models"]"#;
        assert!(text(denied).await.contains(violated));
        let too_long = "1 2 3 4 5 6 7 8";
        let refused = status(&gateway, "POST /embed/small", "k7", too_long).await;
        assert_eq!(refused, 413);
        for key in ["k7", "k9"] {
            assert_eq!(used(&gateway, key).await, 3);
        }
    }

    #[tokio::test]
    async fn a_good_login_forgets_the_failures_of_its_account_but_not_of_its_address() {
        let clock = MockClock::new();
        let store: SharedStore = Arc::new(WithClock::new(MemoryStore::new(), clock.clone()));
        let gateway = gateway(&store, "", "");
        let login = async |account, password| ask(&gateway, "POST /login", account, password).await;
        let fail = async |times: RangeInclusive<u64>, password, expected: u16| {
            for n in times {
                assert_eq!(login("ann", password).await.status(), expected, "login {n}");
            }
        };
        fail(1..=4, "guess", 401).await;
        let welcome = login("ann", "open sesame").await;
        let limits = r#""account";r=5, "address";r=45;t=900"#;
        assert_eq!(field(&welcome, "ratelimit"), limits);
        fail(6..=10, "guess", 401).await;
        fail(11..=50, "open sesame", 429).await;
        let other = login("ben", "open sesame").await;
        assert!(other.status() == 429 && field(&other, "retry-after") == "900");
        clock.advance(Duration::from_secs(900));
        assert_eq!(login("ann", "open sesame").await.status(), 200);
    }

    #[tokio::test]
    async fn an_image_waits_until_it_fits_and_new_limits_apply_without_a_restart() {
        let store = memory();
        let file = tempfile::NamedTempFile::new().unwrap();
        let write = |images| std::fs::write(file.path(), DEFAULT.replace("5/10s", images)).unwrap();
        let (sender, current) = watch::channel(gateway(&store, "", ""));
        let gateway = service(current.clone());
        write("1/300ms");
        let path = file.path().to_str().unwrap().to_owned();
        tokio::spawn(reload(path, store.clone(), sender));
        until(async || current.has_changed().unwrap()).await;
        // The second and the third wait.
        for _ in 0..3 {
            assert_eq!(image(&gateway).await, 200);
        }
        write("3/1h");
        until(async || image(&gateway).await == 429).await;
        write("4/1h");
        until(async || status(&gateway, "GET /image/nothing", "k7", "").await == 502).await;
        // The failed one was refunded.
        assert_eq!([image(&gateway).await, image(&gateway).await], [200, 429]);
        assert!(parsed("{}", &store).is_err());
    }

    #[tokio::test]
    async fn two_gateways_share_their_limits() {
        let server = Server::start().unwrap();
        let mut gateways = Vec::new();
        for _ in 0..2 {
            let store = open(&server.url()).await.unwrap();
            gateways.push(gateway(&store, "5/10s", "5/1h"));
        }
        for (i, expected) in [200, 200, 200, 200, 200, 429, 429].into_iter().enumerate() {
            assert_eq!(image(&gateways[i % 2]).await, expected);
        }
    }
}
