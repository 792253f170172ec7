//! Concurrent acquires and records.

use limiter_core::store::Mode;
use limiter_core::{Error, MAX_COST, Timestamp, WindowStore};

use super::tasks::{Contention, SharedLog, TaskDecision, overlap};
use crate::conformance::generated::strategy::{limit, policy};
use crate::conformance::suite::failure::Findings;

pub(super) async fn run<S: WindowStore + ?Sized>(contention: &mut Contention<'_, S>, findings: &mut Findings) {
    for (cost, attempts) in [(1, false), (3, false), (1, true)] {
        frozen(contention, findings, cost, attempts).await;
    }
    running(contention, findings, &[(5, 20)], 1).await;
    running(contention, findings, &[(5, 20), (12, 100)], 2).await;
    at_the_stores_clock(contention, findings).await;
    same_id(contention, findings).await;
    keys_apart(contention, findings).await;
}

async fn acquire<S>(shared: &SharedLog<S>, task: usize, turn: usize, cost: u64) -> Result<TaskDecision, Error>
where
    S: WindowStore + ?Sized,
{
    shared.decide(task, turn, shared.op().with_cost(cost)).await
}

/// Finds two operations that saw the same usage after appending an entry.
fn same_usage<'a>(seen: &[&'a TaskDecision]) -> Option<(&'a TaskDecision, &'a TaskDecision)> {
    let mut sorted = seen.to_vec();
    sorted.sort_by_key(|seen| seen.decision.used());
    sorted.windows(2).find(|pair| pair[0].decision.used() == pair[1].decision.used()).map(|pair| (pair[0], pair[1]))
}

/// At a frozen time, exactly the costs that fit are admitted, and each admitted acquire sees a different usage.
async fn frozen<S>(contention: &mut Contention<'_, S>, findings: &mut Findings, cost: u64, attempts: bool)
where
    S: WindowStore + ?Sized,
{
    let total = (contention.tasks * contention.tries) as u64;
    let limit = limit((total / 2).max(cost), 1_000);
    let shared = contention.shared(policy(&[limit], attempts), Some(0));
    let tries = contention.tries;
    let work =
        move |shared: std::sync::Arc<SharedLog<S>>, task, turn| async move { acquire(&shared, task, turn, cost).await };
    let seen = contention.all(&shared, tries, work).await;
    let result = seen.and_then(|seen| {
        let admitted: Vec<&TaskDecision> = seen.iter().filter(|seen| seen.decision.allowed()).collect();
        let fits = (limit.max() / cost).min(total);
        if let Some((one, other)) = same_usage(&admitted) {
            return Err(overlap(one, other, "two admitted acquires saw the same usage after appending"));
        }
        let count = admitted.len() as u64;
        let wrong =
            || format!("{count} acquires of {cost} were admitted at one instant under {limit}, expected {fits}");
        if count == fits { Ok(()) } else { Err(wrong()) }
    });
    let what = if attempts { "attempts at one instant" } else { "acquires at one instant" };
    contention.end(&shared, what, result, findings).await;
}

/// While time advances, no window ever exceeds its maximum. Counts from the outside.
async fn running<S>(contention: &mut Contention<'_, S>, findings: &mut Findings, limits: &[(u64, u64)], cost: u64)
where
    S: WindowStore + ?Sized,
{
    let limits: Vec<_> = limits.iter().map(|(max, window)| limit(*max, *window)).collect();
    let (shared, tries) = (contention.shared(policy(&limits, false), Some(1)), contention.tries);
    let work =
        move |shared: std::sync::Arc<SharedLog<S>>, task, turn| async move { acquire(&shared, task, turn, cost).await };
    let seen = contention.all(&shared, tries, work).await;
    let result = seen.and_then(|seen| {
        let admitted = seen.iter().filter(|seen| seen.decision.allowed());
        let mut times: Vec<u64> = admitted.map(|seen| seen.decision.at().as_micros()).collect();
        times.sort_unstable();
        // The first acquire found an empty log.
        if times.is_empty() && !seen.is_empty() {
            return Err("no acquire was admitted on a new key".to_owned());
        }
        for limit in &limits {
            let window = limit.window().as_micros();
            for (i, end) in times.iter().enumerate() {
                let held = times[..=i].iter().filter(|at| *end - **at < window).count() as u64 * cost;
                if held > limit.max() {
                    return Err(format!("the window of {limit} that ends at {end} holds {held}"));
                }
            }
        }
        Ok(())
    });
    contention.end(&shared, "acquires while time runs", result, findings).await;
}

/// At the store's clock, each record sees a different usage, and times never decrease from one record to the next.
async fn at_the_stores_clock<S: WindowStore + ?Sized>(contention: &mut Contention<'_, S>, findings: &mut Findings) {
    let day = 86_400_000_000;
    let (shared, tries) = (contention.shared(policy(&[limit(MAX_COST, day)], false), None), contention.tries);
    let work = |shared: std::sync::Arc<SharedLog<S>>, task, turn| async move {
        let mut op = shared.op();
        op.mode = Mode::Record;
        shared.decide(task, turn, op).await
    };
    let result = contention.all(&shared, tries, work).await.and_then(|mut seen: Vec<TaskDecision>| {
        seen.sort_by_key(|seen| seen.decision.used());
        if let Some((one, other)) = same_usage(&seen.iter().collect::<Vec<_>>()) {
            return Err(overlap(one, other, "two records saw the same usage after appending"));
        }
        let at = |seen: &TaskDecision| -> Timestamp { seen.decision.at() };
        match seen.windows(2).find(|pair| at(&pair[0]) > at(&pair[1])) {
            Some(pair) => Err(overlap(&pair[0], &pair[1], "the later of two records has the earlier time")),
            None => Ok(()),
        }
    });
    contention.end(&shared, "records at the store's clock", result, findings).await;
}

/// An operation that all tasks repeat under one id counts once.
async fn same_id<S: WindowStore + ?Sized>(contention: &mut Contention<'_, S>, findings: &mut Findings) {
    let limit = limit(contention.tasks as u64 + 1, 1_000);
    let shared = contention.shared(policy(&[limit], false), Some(0));
    let work = |shared: std::sync::Arc<SharedLog<S>>, task, turn| async move {
        shared.decide(task, turn, shared.op().with_id(7_u128)).await
    };
    let result = contention.all(&shared, 2, work).await.and_then(|seen: Vec<TaskDecision>| {
        let Some(first) = seen.first() else { return Ok(()) };
        let entry = |seen: &TaskDecision| seen.decision.receipt().map(|receipt| receipt.entry());
        if let Some(other) = seen.iter().find(|seen| entry(seen) != entry(first)) {
            return Err(overlap(first, other, "an acquire with one id was appended twice"));
        }
        match seen.iter().find(|seen| !seen.decision.allowed() || seen.decision.used() != 1) {
            Some(wrong) => {
                Err(overlap(first, wrong, "an acquire with one id, repeated by all tasks, counted more than once"))
            }
            None => Ok(()),
        }
    });
    contention.end(&shared, "one id", result, findings).await;
}

/// Tasks on different keys do not affect each other.
async fn keys_apart<S: WindowStore + ?Sized>(contention: &mut Contention<'_, S>, findings: &mut Findings) {
    let shared = contention.shared(policy(&[limit(MAX_COST, 1_000)], false), Some(0));
    let (tries, tasks) = (contention.tries, contention.tasks);
    let work = |shared: std::sync::Arc<SharedLog<S>>, task: usize, turn| async move {
        let key = format!("{}/{task}", shared.key);
        let mut op = shared.op();
        op.log.key = key.as_bytes();
        Ok((turn as u64 + 1, shared.decide(task, turn, op).await?))
    };
    let result = contention.all(&shared, tries, work).await.and_then(|seen: Vec<(u64, TaskDecision)>| {
        match seen.iter().find(|(expected, seen)| seen.decision.used() != *expected) {
            Some((expected, seen)) => Err(format!(
                "task {} alone uses its key and acquired {expected} units there, but found {} used",
                seen.task,
                seen.decision.used()
            )),
            None => Ok(()),
        }
    });
    for task in 0..tasks {
        let mut log = shared.log();
        let key = format!("{}/{task}", shared.key);
        log.key = key.as_bytes();
        _ = shared.handle(task).reset(log).await;
    }
    contention.calls += tasks as u64;
    contention.end(&shared, "one key per task", result, findings).await;
}
