//! A client that keeps to a server's limit, together with all other processes on the same store:
//! `cargo run --example client --all-features`.
//!
//! After a 429 or 503, a record in the store makes all processes wait. So a server whose limit is unknown, or shared with others,
//! refuses only the calls that were in flight.

use std::error::Error;
use std::time::{Duration, SystemTime};

use exact_limiter::time::Timestamp;
use exact_limiter::{AllOf, Limiter, Policy, SharedStore, policy};
use http::{HeaderValue, Response};
use tokio::time::{Instant, sleep};

type Failure = Box<dyn Error + Send + Sync>;

/// The longest pause. After it, one call finds out if the server still refuses.
const LONGEST: Duration = Duration::from_secs(3600);

/// The pause if the server asks for one in a way that cannot be read.
const UNREADABLE: Duration = Duration::from_secs(60);

/// The calls of a fleet to servers, by host.
///
/// For outages of the store, choose `fail_closed`: calls then wait for the store. With `fallback`, each process would send the server
/// the whole limit, and with `fail_open` there would be none.
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
        let end = Instant::now().checked_add(within);
        let left = || end.map_or(Duration::MAX, |end| end - Instant::now());
        loop {
            // One decision: a pause charges no call.
            let both = AllOf::new().with(self.pauses.peek(host));
            let decision = both.with(self.calls.acquire(host)).await?;
            if let Some(wait) = decision.retry_after() {
                if wait > left() {
                    decision.into_result()?;
                }
                sleep(wait).await;
                continue;
            }
            let response = send().await?;
            let Some(pause) = pause_of(&response) else {
                return Ok(response);
            };
            // The caller needs the response even if the store is down.
            if self.pause(host, pause).await.is_err() || pause > left() {
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

/// Returns how long a 429 or 503 asks to wait. Of several fields, the longest wait counts.
fn pause_of<T>(response: &Response<T>) -> Option<Duration> {
    if !matches!(response.status().as_u16(), 429 | 503) {
        return None;
    }
    let all = |name| response.headers().get_all(name).iter();
    let text = |field: &HeaderValue| field.to_str().unwrap_or("?").to_owned();
    let date = |text: &str| httpdate::parse_http_date(text).ok();
    // The server's clock may differ.
    let now = all("date").find_map(|field| date(&text(field)));
    let now = now.unwrap_or_else(SystemTime::now);
    let until = |text: &str| Some(date(text)?.duration_since(now).unwrap_or_default());
    // Some servers send fractions, and some proxies join two fields with a comma.
    let number = |text: &str| text.trim().parse::<f64>().ok().filter(|it| *it >= 0.0);
    let seconds = |text: &str| {
        text.split(',')
            .map(number)
            .reduce(|a, b| Some(a?.max(b?)))?
    };
    let wait = |text: &str| Some(Duration::from_secs_f64(seconds(text)?.min(3600.0)));
    let read = |field| until(&text(field)).or_else(|| wait(&text(field)));
    let asked = all("retry-after")
        .map(|field| read(field).unwrap_or(UNREADABLE))
        .max();
    let used_up = || used_up(&all("ratelimit").map(text).collect::<Vec<_>>().join(","));
    let pause = asked.or_else(used_up)?;
    Some(pause.clamp(Duration::from_secs(1), LONGEST))
}

/// Returns the longest wait among the limits of `RateLimit` that have nothing left.
fn used_up(fields: &str) -> Option<Duration> {
    let Ok(list) = sfv::Parser::new(fields).parse::<sfv::List>() else {
        return Some(UNREADABLE);
    };
    let waits = list.iter().filter_map(|entry| {
        let sfv::ListEntry::Item(item) = entry else {
            return None;
        };
        let number = |name| Some(i64::from(item.params.get(name)?.as_integer()?));
        let wait = number("t").and_then(|seconds| seconds.try_into().ok());
        (number("r")? == 0).then(|| wait.map_or(UNREADABLE, Duration::from_secs))
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
            .call("api.example.com", Duration::MAX, send)
            .await?;
        let status = response.status();
        println!("call {n}: {status} after {:?}", start.elapsed());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use exact_limiter::time::{Clock, WithClock};
    use exact_limiter::{Denied, MemoryStore};
    use futures::future::join_all;
    use limiter_testkit::MockClock;
    use testbed::{Does, Faulty};

    use super::*;

    /// Five processes call a server that enforces `100/1m` until it has served 300 calls. Each has `in_flight` calls at a time.
    /// Returns how long that takes, how many calls the server refused, and how many pauses there were.
    async fn play(limit: Policy, in_flight: usize) -> (u64, usize, usize) {
        let clock = MockClock::new();
        let store = || Arc::new(WithClock::new(MemoryStore::new(), clock.clone())) as SharedStore;
        let api = Limiter::new("api", policy!("100/1m"), store());
        let outgoing = Outgoing::new(limit, store());
        let send = || async {
            tokio::task::yield_now().await; // The call is in flight.
            let wait = api.acquire("").await?.retry_after_secs();
            let response = Response::builder().status(if wait.is_some() { 429 } else { 200 });
            Ok(response.header("retry-after", wait.unwrap_or(0)).body(())?)
        };
        let start = clock.now();
        let (mut served, mut refused, mut pauses) = (0, 0, 0);
        while served < 300 {
            let calls = (0..5 * in_flight).map(|_| outgoing.call("api", Duration::ZERO, send));
            let mut waits = Vec::new();
            for result in join_all(calls).await {
                match result {
                    Ok(response) if response.status() == 200 => served += 1,
                    Ok(_) => refused += 1,
                    Err(error) => waits.push(error.downcast::<Denied>().unwrap().retry_after()),
                }
            }
            // Time passes only while nobody may call.
            if waits.len() == 5 * in_flight {
                clock.advance(waits.into_iter().min().unwrap());
                pauses += 1;
            }
        }
        let seconds = clock.now().micros_since(start) / 1_000_000;
        (seconds, refused, pauses)
    }

    #[tokio::test]
    async fn a_server_refuses_no_call_if_its_limit_is_known_otherwise_one_per_process_and_pause() {
        assert_eq!(play(policy!("100/61s"), 10).await, (122, 0, 2));
        let (seconds, refused, pauses) = play(policy!("1000000/1m"), 1).await;
        assert_eq!((seconds, pauses), (120, 2));
        assert!((2..=10).contains(&refused), "{refused}");
    }

    const RESPONSES: &str = r#"
        500; retry-after: 7 => 0
        429 => 0
        503; retry-after: 7 => 7
        429; retry-after: 0 => 1
        429; retry-after: 2.5 => 2.5
        429; retry-after: 3, 30 => 30
        429; retry-after: 3; retry-after: 30 => 30
        429; retry-after: 18446744073709551615 => 3600
        429; retry-after: soon => 60
        429; retry-after: -5, 2 => 60
        429; retry-after: Sun, 06 Nov 1994 08:50:07 GMT; date: Sun, 06 Nov 1994 08:49:37 GMT => 30
        429; retry-after: Sun, 06 Nov 1994 08:49:37 GMT => 1
        429; ratelimit: "a";r=0;t=9, "b,c";r=0;t=3, "d";r=2;t=99 => 9
        429; ratelimit: "a";r=0;t=3; ratelimit: "b";r=0;t=9 => 9
        429; ratelimit: "a";r=1;t=9 => 0
        429; ratelimit: "a";r=0 => 60
        429; ratelimit: "a => 60
        429; ratelimit: 9; retry-after: 8 => 8
    "#;

    #[test]
    fn a_pause_is_what_the_response_asks_for() {
        for line in RESPONSES.trim().lines() {
            let (head, expected) = line.trim().split_once(" => ").unwrap();
            let mut response = Response::builder().status(&head[..3]);
            for field in head.split("; ").skip(1) {
                let (name, value) = field.split_once(": ").unwrap();
                response = response.header(name, value);
            }
            let pause = pause_of(&response.body(()).unwrap()).unwrap_or_default();
            assert_eq!(pause.as_secs_f64().to_string(), expected, "{head}");
        }
    }

    #[tokio::test]
    async fn the_longest_pause_counts_and_a_response_is_returned_even_if_none_can_be_recorded() {
        let store = Faulty::new(WithClock::new(MemoryStore::new(), MockClock::new()));
        let outgoing = Outgoing::new(policy!("5/1s"), Arc::new(store.clone()));
        for (pause, expected) in [(30, 30), (5, 30), (40, 40), (u64::MAX, 3600)] {
            let paused = outgoing.pause("api", Duration::from_secs(pause)).await;
            let decision = outgoing.pauses.peek("api").await.unwrap();
            assert!(paused.is_ok() && decision.retry_after_secs() == Some(expected));
        }
        store.rule(|verb, _| [Does::Answer, Does::Refuse][usize::from(verb == "record")]);
        outgoing.pauses.reset("api").await.unwrap();
        let busy = || async {
            Ok(Response::builder()
                .status(503)
                .header("retry-after", u64::MAX)
                .body(())?)
        };
        let response = outgoing.call("api", Duration::MAX, busy).await;
        assert_eq!(response.unwrap().status(), 503);
    }
}
