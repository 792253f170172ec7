//! Concurrent settlements, refunds and resets.

use std::sync::Arc;

use limiter_core::store::Mode;
use limiter_core::{Policy, policy};

use super::tasks::{Contention, Seen, SharedLog, ensure, failed, meter, overlap};

pub(super) async fn run(contention: &mut Contention<'_>) {
    same_receipts(contention).await;
    different_costs(contention).await;
    own_refunds(contention, policy!("1000000/1ms")).await;
    own_refunds(contention, policy!("1000000/1ms~1ms")).await;
    one_at_a_time(contention).await;
    resets(contention).await;
}

/// A receipt that all tasks refund is refunded once. Each try has another receipt.
async fn same_receipts(contention: &mut Contention<'_>) {
    let (shared, tries) = (contention.shared(meter(1_000), Some(0)), contention.tries);
    let result = async {
        let mut receipts = Vec::new();
        for turn in 0..=tries {
            receipts.push(shared.receipt(0, turn, 3).await.map_err(failed)?);
        }
        let work = move |log: Arc<SharedLog>, task, turn| {
            let receipt = receipts[turn];
            async move { Ok((turn, log.settle(task, receipt, 0).await?.applied)) }
        };
        let refunds: Vec<(usize, bool)> = contention.all(&shared, (tries, true), work).await?;
        for turn in 0..tries {
            let applied = refunds.iter().filter(|refund| **refund == (turn, true)).count();
            ensure(applied == 1, || {
                format!(
                    "{applied} tasks refunded one entry, expected one\ntwo tasks overlapped: each found the entry before the \
                     other had removed it"
                )
            })?;
        }
        // One receipt was not refunded.
        let used = shared.used().await?;
        ensure(used == 3, || {
            format!("after all but one of the entries were refunded, {used} units are used, expected 3")
        })
    };
    let result = result.await;
    contention.end(&shared, "refunds of one receipt", result).await;
}

/// Every task settles one entry to a different cost and finds that cost in the answer.
async fn different_costs(contention: &mut Contention<'_>) {
    let (shared, tries) = (contention.shared(policy!("1000000/1ms"), Some(0)), contention.tries);
    let result = async {
        let receipt = shared.receipt(0, 0, 1).await.map_err(failed)?;
        let work = move |log: Arc<SharedLog>, task, turn| async move {
            let cost = (1 + task * tries + turn) as u64;
            let facts = log.settle(task, receipt, cost).await?;
            Ok((task, cost, facts.applied, facts.log.usage[0].used))
        };
        let settled: Vec<(usize, u64, bool, u64)> = contention.all(&shared, (tries, false), work).await?;
        match settled.iter().find(|(_, cost, applied, used)| !applied || used != cost) {
            Some((task, cost, applied, used)) => Err(format!(
                "task {task} settled the only entry to {cost}: applied {applied}, used {used}, expected {cost}\ntwo tasks \
                 overlapped: the answer describes a log that another task had changed"
            )),
            None => Ok(()),
        }
    };
    let result = result.await;
    contention.end(&shared, "settlements of one receipt", result).await;
}

/// Each task appends entries and refunds them. At the end, the log is empty.
async fn own_refunds(contention: &mut Contention<'_>, policy: Policy) {
    let shared = contention.shared(policy, Some(0));
    let result = async {
        let work = |log: Arc<SharedLog>, task, turn| async move {
            let receipt = log.receipt(task, turn, 1 + task as u64).await?;
            Ok((task, log.settle(task, receipt, 0).await?.applied))
        };
        let tries = contention.tries.div_ceil(2);
        let refunds: Vec<(usize, bool)> = contention.all(&shared, (tries, false), work).await?;
        contention.calls += refunds.len() as u64;
        if let Some((task, _)) = refunds.iter().find(|(_, applied)| !applied) {
            return Err(format!(
                "task {task} lost its entry\ntwo tasks overlapped: another task wrote the log without that entry"
            ));
        }
        let used = shared.used().await?;
        let there_was_one = shared.reset(0, shared.op().log).await.map_err(failed)?;
        ensure(used == 0 && !there_was_one, || {
            format!("after all entries were refunded, {used} units are used and reset returned {there_was_one}")
        })
    };
    let result = result.await;
    contention.end(&shared, "appends and refunds", result).await;
}

/// Every acquire under a limit of one is refunded. No task is admitted while another holds the unit.
async fn one_at_a_time(contention: &mut Contention<'_>) {
    let (shared, tries) = (contention.shared(policy!("1/1ms"), Some(0)), contention.tries);
    let work = |log: Arc<SharedLog>, task, turn| async move {
        let seen = log.decide(task, turn, log.op()).await?;
        let refunded = match seen.decision.receipt().filter(|_| seen.decision.allowed()) {
            Some(receipt) => log.settle(task, receipt, 0).await?.applied,
            None => true,
        };
        Ok((seen, refunded))
    };
    let result = contention.all(&shared, (tries, false), work).await.and_then(|seen: Vec<(Seen, bool)>| {
        contention.calls += seen.iter().filter(|(seen, _)| seen.decision.allowed()).count() as u64;
        match seen.iter().find(|(_, refunded)| !refunded) {
            Some((seen, _)) => Err(format!(
                "task {} acquired the only unit, and found its entry gone when it refunded it\ntwo tasks overlapped: another one \
                 wrote the log without that entry",
                seen.task
            )),
            None => Ok(()),
        }
    });
    contention.end(&shared, "a limit of one, acquired and refunded", result).await;
}

/// Some tasks record, and the first task resets. Between two resets, the records see usages of 1, 2, 3 and so on.
async fn resets(contention: &mut Contention<'_>) {
    let (shared, tries) = (contention.shared(meter(1_000), Some(0)), contention.tries);
    let work = |log: Arc<SharedLog>, task, turn| async move {
        if task == 0 {
            return Ok((None, log.reset(task, log.op().log).await?));
        }
        Ok((Some(log.decide(task, turn, log.with_mode(Mode::Record)).await?), false))
    };
    let result = async {
        let results: Vec<(Option<Seen>, bool)> = contention.all(&shared, (tries, false), work).await?;
        let there_was_one = shared.reset(0, shared.op().log).await.map_err(failed)?;
        let resets = results.iter().filter(|(_, removed)| *removed).count() + usize::from(there_was_one);
        let seen: Vec<Seen> = results.into_iter().filter_map(|(seen, _)| seen).collect();
        let saw = |used: u64| seen.iter().filter(|seen| seen.used() == used).collect::<Vec<_>>();
        let most = seen.iter().map(Seen::used).max().unwrap_or(0);
        for used in 1..most {
            // Each record that sees usage n follows one that saw n - 1.
            let (fewer, more) = (saw(used), saw(used + 1));
            if more.len() > fewer.len() {
                return Err(match more[..] {
                    [one, other, ..] => {
                        overlap(one, other, "more records saw the same usage than there were resets to explain it")
                    }
                    _ => format!("a record saw {} used, but none saw {used}", used + 1),
                });
            }
        }
        let first = saw(1).len();
        ensure(resets == first, || format!("{resets} resets removed a log, but {first} records found an empty log"))
    };
    let result = result.await;
    contention.end(&shared, "records and resets", result).await;
}
