//! Measures how long one poll takes, alone and while another call is under way.

use std::pin::pin;
use std::time::{Duration, Instant};

use limiter_core::store::{Mode, Settlement};
use limiter_core::{Error, WindowStore as _, policy};

use crate::conformance::caller::by_facts;
use crate::conformance::mismatch::Mismatch;
use crate::conformance::sentence::Sentence::T5;
use crate::conformance::sleep::sleep;
use crate::conformance::suite::run::{Run, log, op, reset_all};

/// The number of measured calls per operation. Only the fastest counts, because others may have been preempted.
const CALLS: usize = 10;
/// How long the other call has been under way, in microseconds.
const DELAYS: [u64; 5] = [0, 20, 100, 300, 1_000];

/// Returns the output and the duration of the longest poll.
async fn longest_poll<T>(future: impl Future<Output = T>) -> (T, Duration) {
    let (mut future, mut longest) = (pin!(future), Duration::ZERO);
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
    let mut quickest = [
        ("an append", Duration::MAX),
        ("a settlement", Duration::MAX),
        ("a reset", Duration::MAX),
    ];
    for _ in 0..CALLS {
        let Ok(times) = alone(run).await else {
            // Other phases report errors better.
            return;
        };
        run.count(times.len() as u64);
        for (quickest, time) in quickest.iter_mut().zip(times) {
            quickest.1 = quickest.1.min(time);
        }
    }
    let mut measured = quickest.to_vec();
    for delay in DELAYS {
        let mut quickest = Duration::MAX;
        for _ in 0..CALLS {
            let Some(time) = beside_another(run, delay).await else {
                break;
            };
            quickest = quickest.min(time);
            run.count(3);
        }
        if quickest < Duration::MAX {
            measured.push((
                "an append while another call on the key is under way",
                quickest,
            ));
        }
    }
    let most = run.suite.sizes.blocking;
    for (what, time) in measured.into_iter().filter(|(_, time)| *time > most) {
        let text = format!(
            "the quickest of {CALLS} calls blocked its thread for {time:?} in one poll, allowed are {most:?}. A store that leaves \
             the runtime's thread before it blocks needs a longer `Sizes::blocking`."
        );
        run.fail(Mismatch::new(
            format!("the time that {what} takes"),
            &[T5],
            text,
        ));
    }
}

async fn alone(run: &Run<'_>) -> Result<[Duration; 3], Error> {
    let (store, key, limits) = (run.store(), run.new_key(), policy!("9/1h"));
    let log = log(&key);
    let op = op(Mode::Record, &key, &limits);
    let (decision, append) = longest_poll(by_facts(store, op)).await;
    let receipt = decision?.0.receipt();
    let mut settle = Duration::ZERO;
    if let Some(receipt) = receipt {
        let (facts, time) =
            longest_poll(store.settle(Settlement::new(log, &limits, receipt, 2))).await;
        facts?;
        settle = time;
    }
    let (removed, reset) = longest_poll(store.reset(log)).await;
    removed.map(|_| [append, settle, reset])
}

/// Polls one call once, and measures a second call some time later. Returns `None` if the first call needs one poll only.
async fn beside_another(run: &Run<'_>, delay: u64) -> Option<Duration> {
    let (store, key, limits) = (run.store(), run.new_key(), policy!("9/1h"));
    let op = op(Mode::Record, &key, &limits);
    let mut first = pin!(by_facts(store, op));
    let is_ready = futures::poll!(first.as_mut()).is_ready();
    let mut longest = None;
    if !is_ready {
        if delay > 0 {
            sleep(Duration::from_micros(delay)).await;
        }
        // The second call may need the first one to continue.
        let (_, (_, time)) = futures::future::join(first, longest_poll(by_facts(store, op))).await;
        longest = Some(time);
    }
    reset_all(store, &[op.log]).await;
    longest
}
