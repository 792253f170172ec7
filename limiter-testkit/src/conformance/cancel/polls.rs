//! Measures how long one poll takes, alone and while another call is under way.

use std::collections::BTreeMap;
use std::pin::pin;
use std::time::{Duration, Instant};

use limiter_core::store::{Mode, Settlement};
use limiter_core::{Error, Policy, WindowStore as _, policy};

use crate::conformance::caller::by_facts;
use crate::conformance::mismatch::Mismatch;
use crate::conformance::suite::run::{Run, log, op, reset_all};
use crate::conformance::tasks::sleep;
use crate::sentence::Sentence::T5;

/// The number of measured calls per operation. Only the fastest counts, because others may have been preempted.
const CALLS: usize = 10;
/// How long the other call has been under way, in microseconds.
const DELAYS: [u64; 5] = [0, 20, 100, 300, 1_000];
static LIMITS: Policy = policy!("9/1h");

/// Returns the output and the duration of the longest poll.
async fn longest_poll<T>(future: impl Future<Output = T>) -> (T, Duration) {
    let mut future = pin!(future);
    let mut longest = Duration::ZERO;
    let output = std::future::poll_fn(|context| {
        let start = Instant::now();
        let poll = future.as_mut().poll(context);
        longest = longest.max(start.elapsed());
        poll
    })
    .await;
    (output, longest)
}

pub(super) async fn run(run: &mut Run<'_>) {
    let mut quickest = BTreeMap::new();
    for _ in 0..CALLS {
        // Other phases report errors better.
        let Ok(times) = times(run).await else {
            return;
        };
        run.count(times.len() as u64);
        for (call, time) in times {
            let quickest = quickest.entry(call).or_insert(time);
            *quickest = time.min(*quickest);
        }
    }
    let most = run.suite.sizes.blocking;
    for ((what, _), time) in quickest.into_iter().filter(|(_, time)| *time > most) {
        let text = format!(
            "the quickest of {CALLS} calls blocked its thread for {time:?} in one poll, allowed are {most:?}. A store that leaves \
             the runtime's thread before it blocks needs a longer `Sizes::blocking`."
        );
        let title = format!("the time that {what} takes");
        run.fail(Mismatch::new(title, &[T5], text));
    }
}

/// Measures an append, a settlement, a reset, and appends after another call on the key has been under way for some time.
async fn times(run: &Run<'_>) -> Result<Vec<((&'static str, u64), Duration)>, Error> {
    let store = run.store();
    let key = run.new_key();
    let record = op(Mode::Record, &key, &LIMITS);
    let (appended, time) = longest_poll(by_facts(store, record)).await;
    let mut times = vec![(("an append", 0), time)];
    if let Some(receipt) = appended?.0.receipt() {
        let settlement = Settlement::new(log(&key), &LIMITS, receipt, 2);
        let (facts, time) = longest_poll(store.settle(settlement)).await;
        facts?;
        times.push((("a settlement", 0), time));
    }
    let (removed, time) = longest_poll(store.reset(log(&key))).await;
    removed?;
    times.push((("a reset", 0), time));
    for delay in DELAYS {
        let mut first = pin!(by_facts(store, record));
        // Otherwise the first call needs one poll only.
        if futures::poll!(first.as_mut()).is_pending() {
            if delay > 0 {
                sleep(Duration::from_micros(delay)).await;
            }
            // The second call may need the first one to continue.
            let second = longest_poll(by_facts(store, record));
            let time = futures::future::join(first, second).await.1.1;
            times.push((
                (
                    "an append while another call on the key is under way",
                    delay,
                ),
                time,
            ));
        }
        reset_all(store, &[log(&key)]).await;
    }
    Ok(times)
}
