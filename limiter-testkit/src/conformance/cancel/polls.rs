//! Measures how long one poll takes, alone and while another call is under way.

use std::pin::pin;
use std::time::{Duration, Instant};

use limiter_core::store::{Mode, Settlement};
use limiter_core::{Error, Policy, WindowStore as _, policy};

use crate::conformance::caller::by_facts;
use crate::conformance::mismatch::Mismatch;
use crate::conformance::sentence::Sentence::T5;
use crate::conformance::suite::run::{Run, log, op, reset_all};
use crate::conformance::tasks::sleep;

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
    let beside = "an append while another call on the key is under way";
    let mut quickest = vec![("an append", Duration::MAX); 3 + DELAYS.len()];
    (quickest[1].0, quickest[2].0) = ("a settlement", "a reset");
    quickest[3..]
        .iter_mut()
        .for_each(|(what, _)| *what = beside);
    for _ in 0..CALLS {
        // Other phases report errors better.
        let Ok(mut times) = alone(run).await else {
            return;
        };
        for delay in DELAYS {
            times.push(beside_another(run, delay).await);
        }
        run.count(3 * times.len() as u64);
        for ((_, quickest), time) in quickest.iter_mut().zip(times) {
            *quickest = time.min(*quickest);
        }
    }
    let most = run.suite.sizes.blocking;
    for (what, time) in quickest {
        if time <= most || time == Duration::MAX {
            continue;
        }
        let text = format!(
            "the quickest of {CALLS} calls blocked its thread for {time:?} in one poll, allowed are {most:?}. A store that leaves \
             the runtime's thread before it blocks needs a longer `Sizes::blocking`."
        );
        let title = format!("the time that {what} takes");
        run.fail(Mismatch::new(title, &[T5], text));
    }
}

/// Measures an append, a settlement and a reset.
async fn alone(run: &Run<'_>) -> Result<Vec<Duration>, Error> {
    let store = run.store();
    let key = run.new_key();
    let append = longest_poll(by_facts(store, op(Mode::Record, &key, &LIMITS))).await;
    let mut times = vec![append.1, Duration::ZERO];
    if let Some(receipt) = append.0?.0.receipt() {
        let settlement = Settlement::new(log(&key), &LIMITS, receipt, 2);
        let (facts, time) = longest_poll(store.settle(settlement)).await;
        facts?;
        times[1] = time;
    }
    let (removed, time) = longest_poll(store.reset(log(&key))).await;
    times.push(time);
    removed.map(|_| times)
}

/// Polls one call once, and measures a second call some time later. Returns the longest duration if the first call needs one poll only.
async fn beside_another(run: &Run<'_>, delay: u64) -> Duration {
    let store = run.store();
    let key = run.new_key();
    let op = op(Mode::Record, &key, &LIMITS);
    let mut first = pin!(by_facts(store, op));
    let mut longest = Duration::MAX;
    if futures::poll!(first.as_mut()).is_pending() {
        if delay > 0 {
            sleep(Duration::from_micros(delay)).await;
        }
        // The second call may need the first one to continue.
        let second = longest_poll(by_facts(store, op));
        longest = futures::future::join(first, second).await.1.1;
    }
    reset_all(store, &[op.log]).await;
    longest
}
