//! Concurrent acquires and records.

use std::sync::Arc;

use limiter_core::store::{LogKey, Mode};
use limiter_core::{Policy, policy};

use super::tasks::{Contention, Problem, Seen, SharedLog, distinct_usage, ensure, meter, overlap};
use crate::conformance::generated::strategy::{self, limit, resolved};

pub(super) async fn run(contention: &mut Contention<'_>) {
    for (cost, attempts, resolution) in [(1, false, 0), (3, false, 0), (1, true, 0), (1, false, 10)] {
        frozen(contention, cost, attempts, resolution).await;
    }
    running(contention, &policy!("5/20us"), 1).await;
    running(contention, &policy!("5/20us, 12/100us"), 2).await;
    running(contention, &policy!("5/20us~10us"), 1).await;
    at_the_stores_clock(contention).await;
    same_ids(contention).await;
    keys_apart(contention).await;
}

/// At a frozen time, exactly the costs that fit are admitted, and each admitted acquire sees a different usage.
async fn frozen(contention: &mut Contention<'_>, cost: u64, attempts: bool, resolution: u64) {
    let (total, tries) = ((contention.tasks * contention.tries) as u64, contention.tries);
    let max = (total / 2).max(cost);
    let policy = strategy::policy(&[resolved(limit(max, 1_000), resolution)], attempts);
    let shared = contention.shared(policy, Some(0));
    let work =
        move |log: Arc<SharedLog>, task, turn| async move { log.decide(task, turn, log.op().with_cost(cost)).await };
    let result = contention.all(&shared, (tries, false), work).await.and_then(|seen: Vec<Seen>| {
        let admitted: Vec<&Seen> = seen.iter().filter(|seen| seen.decision.allowed()).collect();
        distinct_usage(admitted.iter().copied())?;
        let (count, fits) = (admitted.len() as u64, (max / cost).min(total));
        ensure(count == fits, || format!("{count} acquires of {cost} were admitted under {max}, expected {fits}"))
    });
    let what = if attempts { "attempts at one instant" } else { "acquires at one instant" };
    contention.end(&shared, what, result).await;
}

/// While time advances, no window ever exceeds its maximum. Counts from the outside.
async fn running(contention: &mut Contention<'_>, policy: &Policy, cost: u64) {
    let (shared, tries) = (contention.shared(policy.clone(), Some(1)), contention.tries);
    let work =
        move |log: Arc<SharedLog>, task, turn| async move { log.decide(task, turn, log.op().with_cost(cost)).await };
    let result = contention.all(&shared, (tries, false), work).await.and_then(|seen: Vec<Seen>| {
        let admitted = seen.iter().filter(|seen| seen.decision.allowed());
        let mut times: Vec<u64> = admitted.map(|seen| seen.decision.at().as_micros()).collect();
        times.sort_unstable();
        ensure(!times.is_empty() || seen.is_empty(), || "no acquire was admitted on a new key".to_owned())?;
        for limit in policy.limits() {
            let (max, window) = (limit.max(), limit.window().as_micros());
            for (i, end) in times.iter().enumerate() {
                let held = times[..=i].iter().filter(|at| *end - **at < window).count() as u64 * cost;
                ensure(held <= max, || format!("the window of {window} us that ends at {end} holds {held} of {max}"))?;
            }
        }
        Ok(())
    });
    contention.end(&shared, "acquires while time runs", result).await;
}

/// At the store's clock, each record sees a different usage, and times never decrease from one record to the next.
async fn at_the_stores_clock(contention: &mut Contention<'_>) {
    let (shared, tries) = (contention.shared(meter(86_400_000_000), None), contention.tries);
    let work =
        |log: Arc<SharedLog>, task, turn| async move { log.decide(task, turn, log.with_mode(Mode::Record)).await };
    let result = contention.all(&shared, (tries, false), work).await.and_then(|mut seen: Vec<Seen>| {
        seen.sort_by_key(Seen::used);
        distinct_usage(&seen)?;
        match seen.windows(2).find(|pair| pair[0].decision.at() > pair[1].decision.at()) {
            Some(pair) => Err(overlap(&pair[0], &pair[1], "the later of two records has the earlier time")),
            None => Ok(()),
        }
    });
    contention.end(&shared, "records at the store's clock", result).await;
}

/// An operation that all tasks repeat under one id counts once. Each try has another id.
async fn same_ids(contention: &mut Contention<'_>) {
    let (shared, tries) = (contention.shared(meter(1_000), Some(0)), contention.tries);
    let work = |log: Arc<SharedLog>, task, turn| async move {
        Ok((turn, log.decide(task, turn, log.op().with_id(7 + turn as u128)).await?))
    };
    let result = contention.all(&shared, (tries, true), work).await;
    let result = async {
        let seen: Vec<(usize, Seen)> = result?;
        for turn in 0..tries {
            let same: Vec<&Seen> = seen.iter().filter(|(other, _)| *other == turn).map(|(_, seen)| seen).collect();
            if let Some(other) = same.iter().find(|seen| seen.entry() != same[0].entry()) {
                return Err(overlap(same[0], other, "an acquire with one id was appended twice"));
            }
        }
        let used = shared.used().await?;
        ensure(used == tries as u64, || format!("acquires with {tries} ids, repeated by all tasks, count {used} times"))
    };
    let result: Result<(), Problem> = result.await;
    contention.end(&shared, "one id for all tasks", result).await;
}

/// Tasks on different keys do not affect each other.
async fn keys_apart(contention: &mut Contention<'_>) {
    let (shared, tries) = (contention.shared(meter(1_000), Some(0)), contention.tries);
    let work = |log: Arc<SharedLog>, task: usize, turn| async move {
        let key = format!("{}/{task}", log.key);
        let mut op = log.op();
        op.log.key = key.as_bytes();
        Ok((turn as u64 + 1, log.decide(task, turn, op).await?))
    };
    let result = contention.all(&shared, (tries, false), work).await.and_then(|seen: Vec<(u64, Seen)>| {
        match seen.iter().find(|(expected, seen)| seen.used() != *expected) {
            Some((expected, seen)) => Err(format!(
                "task {} alone uses its key and acquired {expected} units there, but found {} used",
                seen.task,
                seen.used()
            )),
            None => Ok(()),
        }
    });
    for task in 0..contention.tasks {
        let key = format!("{}/{task}", shared.key);
        _ = shared.reset(task, LogKey { key: key.as_bytes(), ..shared.op().log }).await;
    }
    contention.calls += contention.tasks as u64;
    contention.end(&shared, "one key per task", result).await;
}
