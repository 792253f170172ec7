//! A client that keeps to a server's limit, together with all other processes on the same store:
//! `cargo run --example client --all-features`.
//!
//! After a 429 or 503, a record in the store makes all processes wait. So a server whose limit is unknown, or shared with others,
//! refuses only the calls that were in flight.

use std::time::Duration;

use exact_limiter::time::Timestamp;
use exact_limiter::{AllOf, Limiter, Policy, SharedStore, policy};
use http::Response;
use limiter_tower::ReportedLimits;
use tokio::time::{Instant, sleep};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// The longest pause. After it, one call finds out if the server still refuses.
const LONGEST: Duration = Duration::from_secs(3600);

/// The calls of a fleet to servers, by host.
///
/// For outages of the store, choose `fail_closed`: calls then wait for the store. With `fallback`, each process would send the server
/// the whole limit, and with `fail_open` there would be none.
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
    async fn call<T, F: Future<Output = Result<Response<T>>>>(
        &self,
        host: &str,
        within: Duration,
        send: impl Fn() -> F,
    ) -> Result<Response<T>> {
        let start = Instant::now();
        let left = || within.saturating_sub(start.elapsed());
        loop {
            // One decision: a pause charges no call.
            let both = AllOf::new().with(self.pauses.peek(host));
            let decision = both.with(self.calls.acquire(host)).await?;
            match decision.retry_after() {
                Some(wait) if wait <= left() => sleep(wait).await,
                Some(_) => drop(decision.into_result()?),
                None => {
                    let response = send().await?;
                    // The caller needs the response even if the store is down.
                    match self.pause(host, &response).await {
                        Ok(Some(pause)) if pause <= left() => {}
                        _ => return Ok(response),
                    }
                }
            }
        }
    }

    /// After a 429, or a 503 that asks for it, makes all processes wait: with an entry in the past that leaves its window when the pause
    /// ends. A longer pause stays. Returns the pause.
    async fn pause<T>(&self, host: &str, response: &Response<T>) -> Result<Option<Duration>> {
        let asked = ReportedLimits::read(response.headers()).wait();
        let pause = match (response.status().as_u16(), asked) {
            (429, _) | (503, Some(_)) => asked.unwrap_or_default(),
            _ => return Ok(None),
        };
        let pause = pause.clamp(Duration::from_secs(1), LONGEST);
        let now = self.pauses.status(host).await?.at(); // by the store's clock
        let before = (LONGEST - pause).as_micros() as u64;
        let at = Timestamp::from_micros_saturating(now.as_micros().saturating_sub(before));
        _ = self.pauses.record(host).at(at).await?;
        Ok(Some(pause))
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let store = exact_limiter::open_store(&std::env::var("STORE").unwrap_or("memory".to_owned()))?;
    let outgoing = Outgoing::new(policy!("5/2s"), store);
    let start = Instant::now();
    for n in 0..12 {
        let send = || async { Ok(Response::new(())) }; // A real program sends a request here.
        outgoing.call("api", Duration::MAX, send).await?;
        println!("call {n} after {:?}", start.elapsed());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    use exact_limiter::MemoryStore;
    use exact_limiter::time::{BoxFuture, Clock, WithClock};
    use futures::{StreamExt, stream};
    use limiter_testkit::MockClock;
    use testbed::{Does, Faulty};

    use super::*;

    /// The runtime's clock, which is paused: it moves on while all calls wait.
    #[derive(Debug)]
    struct Paused(Instant);

    impl Clock for Paused {
        fn now(&self) -> Timestamp {
            Timestamp::from_micros_saturating(1 << 50).saturating_add(self.0.elapsed())
        }

        fn sleep(&self, wait: Duration) -> BoxFuture<'_, ()> {
            Box::pin(sleep(wait))
        }
    }

    /// Five processes send 300 calls to a server that enforces `100/1m`. Each has `in_flight` calls at a time.
    /// Returns how many seconds that takes, and how many calls the server refused.
    async fn play(limit: Policy, in_flight: usize) -> (u64, u64) {
        let start = Instant::now();
        let store = || Arc::new(WithClock::new(MemoryStore::new(), Paused(start))) as SharedStore;
        let api = Limiter::new("api", policy!("100/1m"), store());
        let outgoing = Outgoing::new(limit, store());
        let refused = AtomicU64::new(0);
        let send = || async {
            tokio::task::yield_now().await; // The call is in flight.
            let wait = api.acquire("").await?.retry_after_secs();
            refused.fetch_add(u64::from(wait.is_some()), Relaxed);
            let response = Response::builder().status(wait.map_or(200, |_| 429));
            Ok(response.header("retry-after", wait.unwrap_or(0)).body(())?)
        };
        let calls = (0..300).map(|_| outgoing.call("api", Duration::MAX, send));
        let mut responses = stream::iter(calls).buffer_unordered(5 * in_flight);
        while let Some(response) = responses.next().await {
            assert_eq!(response.unwrap().status(), 200);
        }
        (start.elapsed().as_secs(), refused.load(Relaxed))
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_refuses_no_call_if_its_limit_is_known_otherwise_one_per_process_and_pause() {
        assert_eq!(play(policy!("100/61s"), 10).await, (122, 0));
        assert_eq!(play(policy!("1000000/1m"), 1).await, (120, 10));
    }

    #[tokio::test]
    async fn the_longest_pause_counts_and_a_response_is_returned_even_if_none_can_be_recorded() {
        let store = Faulty::new(WithClock::new(MemoryStore::new(), MockClock::new()));
        let outgoing = Outgoing::new(policy!("5/1s"), Arc::new(store.clone()));
        let response = |status, retry_after| {
            let response = Response::builder().status(status);
            response.header("retry-after", retry_after).body(())
        };
        let rows = "200 9 0, 503 soon 0, 429 soon 1, 503 30 30, 429 5 30, 429 99999 3600";
        for row in rows.split(", ") {
            let (asked, expected) = row.rsplit_once(' ').unwrap();
            let (status, retry_after) = asked.split_once(' ').unwrap();
            let response = response(status, retry_after).unwrap();
            outgoing.pause("api", &response).await.unwrap();
            let wait = outgoing
                .pauses
                .peek("api")
                .await
                .unwrap()
                .retry_after_secs();
            assert_eq!(wait.unwrap_or(0).to_string(), expected, "{row}");
        }
        store.rule(|verb, _| [Does::Answer, Does::Refuse][usize::from(verb == "record")]);
        outgoing.pauses.reset("api").await.unwrap();
        let busy = || async { Ok(response("503", "30")?) };
        let response = outgoing.call("api", Duration::MAX, busy).await;
        assert_eq!(response.unwrap().status(), 503);
    }
}
