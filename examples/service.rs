//! An axum service with three limited routes, in memory or in Redis:
//! `cargo run --example service --features redis -- [memory | redis://…] [127.0.0.1:8080]`
//!
//! - `GET /search` is limited by client address. Requests with the header `x-gold` get a larger policy.
//! - `POST /login` counts only failed logins.
//! - `POST /chat` reserves tokens before the response and then charges the actual number.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::Router;
use axum::extract::{ConnectInfo, Form, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use limiter::{Denied, Error, IpBlock, Limiter, MemoryStore, Policy, RedisStore, SharedStore, Status, policy};
use serde::Deserialize;

const SEARCH: Policy = policy!("5/10s, 100/1h");
const GOLD: Policy = policy!("50/10s, 10000/1h");
const LOGIN: Policy = policy!("3/1m");
const CHAT: Policy = policy!("1000/1m");

/// One limiter per route, all on one store. Their names keep their logs separate.
struct Limiters {
    search: Limiter,
    login: Limiter,
    chat: Limiter,
}

impl Limiters {
    fn new(store: SharedStore) -> Self {
        Self {
            search: Limiter::new("search", SEARCH, store.clone()),
            login: Limiter::new("login", LOGIN, store.clone()),
            chat: Limiter::new("chat", CHAT, store),
        }
    }
}

async fn open(store: &str) -> Result<SharedStore, Error> {
    if store == "memory" { Ok(Arc::new(MemoryStore::new())) } else { Ok(Arc::new(RedisStore::connect(store).await?)) }
}

/// The reason why a request is refused.
enum Refused {
    Denied(Denied),
    Password,
    Store(Error),
}

impl From<Denied> for Refused {
    fn from(denied: Denied) -> Self {
        Self::Denied(denied)
    }
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        Self::Store(error)
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        match self {
            Self::Denied(denied) => {
                let retry = [("retry-after", denied.retry_after_secs().unwrap_or(1).to_string())];
                (StatusCode::TOO_MANY_REQUESTS, retry, remaining(denied.status()), "too many requests").into_response()
            }
            Self::Password => (StatusCode::UNAUTHORIZED, "wrong password").into_response(),
            // Fails closed: without the limiter, the resource is unprotected. `error` does not print the key.
            Self::Store(error) => {
                eprintln!("{error}");
                (StatusCode::SERVICE_UNAVAILABLE, [("retry-after", "1")], "try again").into_response()
            }
        }
    }
}

fn remaining(status: &Status) -> [(&'static str, String); 1] {
    [("x-ratelimit-remaining", status.remaining().to_string())]
}

#[derive(Deserialize)]
struct Search {
    q: String,
}

async fn search(
    State(limiters): State<Arc<Limiters>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    headers: HeaderMap,
    Query(search): Query<Search>,
) -> Result<Response, Refused> {
    let policy = if headers.contains_key("x-gold") { &GOLD } else { &SEARCH };
    let admitted = limiters.search.acquire(IpBlock::new(peer.ip())).policy(policy).await?.into_result()?;
    Ok((remaining(admitted.status()), format!("no results for {:?}", search.q)).into_response())
}

#[derive(Deserialize)]
struct Login {
    user: String,
    password: String,
}

async fn login(
    State(limiters): State<Arc<Limiters>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    Form(login): Form<Login>,
) -> Result<&'static str, Refused> {
    // Acquire first, refund on success: even of many concurrent guesses, at most three are tried.
    let address: IpAddr = peer.ip();
    let permit = limiters.login.acquire((&login.user, address)).permit().await??;
    if login.password != "open sesame" {
        return Err(Refused::Password);
    }
    let _ = permit.refund().await?;
    Ok("welcome")
}

#[derive(Deserialize)]
struct Chat {
    customer: u64,
    text: String,
}

async fn chat(State(limiters): State<Arc<Limiters>>, Form(chat): Form<Chat>) -> Result<Response, Refused> {
    let permit = limiters.chat.acquire(chat.customer).cost(400).permit().await??;
    // Stands in for a language model whose response has as many tokens as the text has words.
    let tokens = chat.text.split_whitespace().count() as u64;
    let settled = permit.settle(tokens).await?;
    Ok((remaining(settled.status()), format!("{tokens} tokens")).into_response())
}

fn app(store: SharedStore) -> Router {
    let routes = Router::new().route("/search", get(search)).route("/login", post(login)).route("/chat", post(chat));
    routes.with_state(Arc::new(Limiters::new(store)))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (store, address) = (args.next(), args.next());
    let app = app(open(store.as_deref().unwrap_or("memory")).await?);
    let listener = tokio::net::TcpListener::bind(address.as_deref().unwrap_or("127.0.0.1:8080")).await?;
    println!("listening on http://{}", listener.local_addr()?);
    Ok(axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use axum::body::Body;
    use axum::http::Request;
    use limiter::time::WithClock;
    use limiter_testkit::MockClock;
    use limiter_testkit::server::Server;
    use tower::ServiceExt;

    use super::*;

    /// Returns the service on an in-memory store, and the mock clock of all its limiters.
    fn service() -> (Router, MockClock) {
        let clock = MockClock::new();
        (app(Arc::new(WithClock::new(MemoryStore::new(), clock.clone()))), clock)
    }

    /// Returns the response's status, and its headers `retry-after` and `x-ratelimit-remaining`.
    async fn send(service: &Router, request: Request<Body>) -> (u16, Option<u64>, Option<u64>) {
        let mut request = request;
        request.extensions_mut().insert(ConnectInfo(SocketAddr::from(([203, 0, 113, 7], 4711))));
        let response = service.clone().oneshot(request).await.unwrap();
        let header = |name| response.headers().get(name).map(|value| value.to_str().unwrap().parse().unwrap());
        (response.status().as_u16(), header("retry-after"), header("x-ratelimit-remaining"))
    }

    fn get(path: &str) -> Request<Body> {
        Request::get(path).body(Body::empty()).unwrap()
    }

    fn form(path: &str, body: &'static str) -> Request<Body> {
        Request::post(path).header("content-type", "application/x-www-form-urlencoded").body(body.into()).unwrap()
    }

    #[tokio::test]
    async fn a_search_is_denied_until_it_fits_again() {
        let (service, clock) = service();
        for left in (0..5).rev() {
            assert_eq!(send(&service, get("/search?q=x")).await, (200, None, Some(left)));
        }
        clock.advance(Duration::from_millis(9_800));
        assert_eq!(send(&service, get("/search?q=x")).await, (429, Some(1), Some(0)), "0.2 s rounds up to 1 s");
        clock.advance(Duration::from_millis(200));
        assert_eq!(send(&service, get("/search?q=x")).await, (200, None, Some(4)));
    }

    #[tokio::test]
    async fn gold_customers_and_other_routes_keep_the_history_of_a_search() {
        let (service, clock) = service();
        for _ in 0..5 {
            send(&service, get("/search?q=x")).await;
        }
        let gold = Request::get("/search?q=x").header("x-gold", "yes").body(Body::empty()).unwrap();
        assert_eq!(send(&service, gold).await, (200, None, Some(44)));
        clock.advance(Duration::from_secs(60));
        assert_eq!(send(&service, form("/login", "user=ann&password=guess")).await.0, 401);
        for left in (0..5).rev() {
            assert_eq!(send(&service, get("/search?q=x")).await, (200, None, Some(left)));
        }
        // So far 11 of 100 per hour: the first five, one gold request, and the last five.
        clock.advance(Duration::from_secs(10));
        for _ in 0..18 {
            for _ in 0..5 {
                send(&service, get("/search?q=x")).await;
            }
            clock.advance(Duration::from_secs(10));
        }
        let (status, retry, _) = send(&service, get("/search?q=x")).await;
        assert_eq!((status, retry), (429, Some(3600 - 250)), "until the first request is an hour old");
    }

    #[tokio::test]
    async fn only_failed_logins_count() {
        let (service, clock) = service();
        for _ in 0..10 {
            assert_eq!(send(&service, form("/login", "user=ann&password=open+sesame")).await.0, 200);
        }
        for _ in 0..3 {
            assert_eq!(send(&service, form("/login", "user=ann&password=guess")).await.0, 401);
        }
        assert_eq!(send(&service, form("/login", "user=ann&password=open+sesame")).await, (429, Some(60), Some(0)));
        assert_eq!(send(&service, form("/login", "user=ben&password=open+sesame")).await.0, 200);
        clock.advance(Duration::from_secs(60));
        assert_eq!(send(&service, form("/login", "user=ann&password=open+sesame")).await.0, 200);
    }

    #[tokio::test]
    async fn a_chat_is_charged_what_it_took() {
        let (service, _) = service();
        assert_eq!(send(&service, form("/chat", "customer=7&text=one+two+three")).await, (200, None, Some(997)));
        for _ in 0..200 {
            assert_eq!(send(&service, form("/chat", "customer=7&text=a+b+c")).await.0, 200);
        }
        assert_eq!(send(&service, form("/chat", "customer=7&text=")).await, (429, Some(60), Some(397)));
    }

    #[tokio::test]
    async fn two_services_share_the_limits_through_redis() {
        let server = Server::start().unwrap();
        let services = [app(open(&server.url()).await.unwrap()), app(open(&server.url()).await.unwrap())];
        for (i, expected) in [200, 200, 200, 200, 200, 429, 429, 429].into_iter().enumerate() {
            assert_eq!(send(&services[i % 2], get("/search?q=x")).await.0, expected);
        }
    }
}
