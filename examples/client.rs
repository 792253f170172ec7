//! A client that keeps to a server's limit, together with all other processes on the same store:
//! `cargo run --example client --all-features`.
//!
//! After a 429 or 503, a record in the store makes all processes wait. So a server whose limit is unknown, or shared with others,
//! refuses only the calls that were in flight.

use std::error::Error;
use std::time::{Duration, SystemTime};

use exact_limiter::time::Timestamp;
use exact_limiter::{AllOf, Limiter, Policy, SharedStore, policy};
use http::{Response, StatusCode};
use tokio::time::{Instant, sleep};

type Failure = Box<dyn Error + Send + Sync>;

/// The longest pause. After it, one call finds out if the server still refuses.
const LONGEST: Duration = Duration::from_secs(3600);

/// The calls of a fleet to servers, by host.
#[derive(Clone)]
struct Outgoing {
    calls: Limiter,
    pauses: Limiter,
}

impl Outgoing {
    /// `limit` is the server's, with a window that is longer by the most that two calls may differ in their way to it: `100/61s`
    /// for a server with `100/1m` and calls that arrive within a second.
    fn new(limit: Policy, store: SharedStore) -> Self {
        let pauses = Limiter::new("outgoing-pause", policy!("1/1h"), store.clone());
        let calls = Limiter::new("outgoing", limit, store);
        Self { calls, pauses }
    }

    /// Sends a request once the limit admits it, and again after each pause, for at most `within`.
    ///
    /// `send` returns hyper's response, or reqwest's: `|| async { Ok(client.get(url).send().await?.into()) }`. The last response may be
    /// a 429. A call that cannot be sent in time fails immediately.
    async fn call<T, F: Future<Output = Result<Response<T>, Failure>>>(
        &self,
        host: &str,
        within: Duration,
        send: impl Fn() -> F,
    ) -> Result<Response<T>, Failure> {
        let end = Instant::now() + within;
        loop {
            // One decision: a pause charges no call.
            let both = AllOf::new().with(self.pauses.peek(host));
            let decision = both.with(self.calls.acquire(host)).await?;
            if let Some(wait) = decision.retry_after() {
                if Instant::now() + wait > end {
                    decision.into_result()?;
                }
                sleep(wait).await;
                continue;
            }
            let response = send().await?;
            let Some(pause) = pause_of(&response) else {
                return Ok(response);
            };
            self.pause(host, pause).await?;
            if Instant::now() + pause > end {
                return Ok(response);
            }
        }
    }

    /// Makes all processes wait, with an entry in the past that leaves its window when the pause ends. A longer pause stays.
    async fn pause(&self, host: &str, pause: Duration) -> Result<(), exact_limiter::Error> {
        let now = self.pauses.status(host).await?.at(); // by the store's clock
        let before = LONGEST.saturating_sub(pause).as_micros() as u64;
        let at = Timestamp::from_micros_saturating(now.as_micros().saturating_sub(before));
        self.pauses.record(host).at(at).await.map(drop)
    }
}

/// Returns how long a response asks to wait, at least a second.
fn pause_of<T>(response: &Response<T>) -> Option<Duration> {
    let refuses = [
        StatusCode::TOO_MANY_REQUESTS,
        StatusCode::SERVICE_UNAVAILABLE,
    ];
    let field = |name| response.headers().get(name)?.to_str().ok();
    let date = |text| httpdate::parse_http_date(text).ok();
    let seconds = |text: &str| Some(Duration::from_secs(text.parse().ok()?));
    // The server's clock may differ.
    let now = || field("date").and_then(date).unwrap_or_else(SystemTime::now);
    let until = |text| Some(date(text)?.duration_since(now()).unwrap_or_default());
    let asked = || {
        field("retry-after")
            .and_then(|text| seconds(text).or_else(|| until(text)))
            .or_else(|| used_up(field("ratelimit")?))
    };
    let pause = refuses.contains(&response.status()).then(asked)?;
    pause.map(|pause| pause.max(Duration::from_secs(1)))
}

/// Returns the longest wait among the limits of `RateLimit` that have nothing left.
fn used_up(field: &str) -> Option<Duration> {
    let list: sfv::List = sfv::Parser::new(field).parse().ok()?;
    let waits = list.iter().filter_map(|entry| {
        let sfv::ListEntry::Item(item) = entry else {
            return None;
        };
        let number = |name| {
            i64::from(item.params.get(name)?.as_integer()?)
                .try_into()
                .ok()
        };
        let (left, wait): (u64, u64) = (number("r")?, number("t")?);
        (left == 0).then(|| Duration::from_secs(wait))
    });
    waits.max()
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let store = exact_limiter::open_store(&std::env::var("STORE").unwrap_or("memory".to_owned()))?;
    let outgoing = Outgoing::new(policy!("5/2s"), store);
    let start = Instant::now();
    for n in 0..12 {
        let send = || async { Ok(Response::new(())) }; // A real program sends a request here.
        let response = outgoing
            .call("api.example.com", Duration::from_secs(30), send)
            .await?;
        println!(
            "call {n}: {} after {:?}",
            response.status(),
            start.elapsed()
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use axum::{Router, routing::get};
    use exact_limiter::time::{Clock, WithClock};
    use exact_limiter::{Denied, MemoryStore, RedisStore};
    use futures::future::join_all;
    use limiter_testkit::MockClock;
    use limiter_tower::key::Constant;
    use limiter_tower::{LimitLayer, MissingKey, Rule, StoreFailure};

    use super::*;

    /// Five processes call a server that enforces `100/1m` until it has served 300 calls. Each has `in_flight` calls at a time.
    /// Returns how long that takes, how many calls the server refused, and how many pauses there were.
    async fn play(limit: Policy, in_flight: usize) -> (u64, usize, usize) {
        let clock = MockClock::new();
        let api = WithClock::new(MemoryStore::new(), clock.clone());
        let api = Limiter::new("api", policy!("100/1m"), api);
        let rule = Rule::new(
            api,
            Constant::new("all"),
            MissingKey::Reject(StatusCode::BAD_REQUEST),
        );
        let layer = LimitLayer::new([rule], StoreFailure::Open);
        let app = Router::new().route("/", get(|| async {})).layer(layer);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        tokio::spawn(async { axum::serve(listener, app).await });

        let redis = testbed::server::Server::start().unwrap();
        let mut processes = Vec::new();
        for _ in 0..5 {
            let store = RedisStore::connect(&redis.url()).await.unwrap();
            let store = Arc::new(WithClock::new(store, clock.clone()));
            processes.push(Outgoing::new(limit.clone(), store));
        }
        let http = reqwest::Client::new();
        let [served, refused] = [AtomicUsize::new(0), AtomicUsize::new(0)];
        let client = async |outgoing: &Outgoing| {
            let send = || async { Ok(http.get(&url).send().await?.into()) };
            match outgoing.call("api", Duration::ZERO, send).await {
                Ok(response) if response.status() == StatusCode::OK => {
                    served.fetch_add(1, Relaxed);
                    None
                }
                Ok(response) => {
                    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
                    refused.fetch_add(1, Relaxed);
                    None
                }
                Err(denied) => Some(denied.downcast::<Denied>().unwrap().retry_after()),
            }
        };
        let start = clock.now();
        let mut pauses = 0;
        while served.load(Relaxed) < 300 {
            let calls = processes
                .iter()
                .flat_map(|outgoing| vec![outgoing; in_flight]);
            let waits = join_all(calls.map(&client)).await;
            // Time passes only while nobody may call.
            if waits.iter().all(Option::is_some) {
                clock.advance(waits.into_iter().flatten().min().unwrap());
                pauses += 1;
            }
        }
        let seconds = clock.now().micros_since(start) / 1_000_000;
        (seconds, refused.into_inner(), pauses)
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_server_whose_limit_is_known_refuses_no_call() {
        let (seconds, refused, pauses) = play(policy!("100/61s"), 10).await;
        assert_eq!((seconds, refused, pauses), (122, 0, 2));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_server_whose_limit_is_unknown_refuses_a_call_per_process_and_pause() {
        let (seconds, refused, pauses) = play(policy!("1000000/1m"), 1).await;
        assert_eq!((seconds, pauses), (120, 2));
        assert!((pauses..=5 * pauses).contains(&refused), "{refused}");
    }

    #[test]
    fn a_pause_is_what_the_response_asks_for() {
        const DATE: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
        let later = "Sun, 06 Nov 1994 08:50:07 GMT";
        for (status, fields, seconds) in [
            (429, vec![("retry-after", "7")], Some(7)),
            (503, vec![("retry-after", "7")], Some(7)),
            (500, vec![("retry-after", "7")], None),
            (429, vec![], None),
            (429, vec![("retry-after", "0")], Some(1)),
            (429, vec![("retry-after", later), ("date", DATE)], Some(30)),
            (429, vec![("retry-after", DATE)], Some(1)),
            (429, vec![("retry-after", "soon")], None),
            (
                429,
                vec![("ratelimit", r#""a";r=0;t=9, "b,c";r=0;t=3, "d";r=2;t=99"#)],
                Some(9),
            ),
            (429, vec![("ratelimit", r#""a";r=1;t=9"#)], None),
            (429, vec![("ratelimit", "9"), ("retry-after", "8")], Some(8)),
        ] {
            let mut response = Response::builder().status(status);
            for (name, value) in &fields {
                response = response.header(*name, *value);
            }
            let pause = pause_of(&response.body(()).unwrap());
            assert_eq!(
                pause,
                seconds.map(Duration::from_secs),
                "{status} {fields:?}"
            );
        }
    }

    #[tokio::test]
    async fn the_longest_pause_counts_by_the_clock_of_the_store() {
        let clock = MockClock::new();
        let store = WithClock::new(MemoryStore::new(), clock.clone());
        let outgoing = Outgoing::new(policy!("5/1s"), Arc::new(store));
        let wait = async || outgoing.pauses.peek("api").await.unwrap().retry_after();
        for (advance, pause, expected) in
            [(0, 30, 30), (10, 5, 20), (0, 40, 40), (40, 9_999, 3_600)]
        {
            clock.advance(Duration::from_secs(advance));
            outgoing
                .pause("api", Duration::from_secs(pause))
                .await
                .unwrap();
            assert_eq!(wait().await, Some(Duration::from_secs(expected)));
        }
    }
}
