//! Concurrent mixes of operations.

use std::sync::Arc;

use limiter_core::store::Mode;
use limiter_core::{MAX_COST, WindowStore};

use super::tasks::{Contention, SharedLog, TaskDecision, overlap};
use crate::conformance::generated::strategy::{limit, policy};
use crate::conformance::suite::failure::Findings;

pub(super) async fn run<S: WindowStore + ?Sized>(contention: &mut Contention<'_, S>, findings: &mut Findings) {
    one_at_a_time(contention, findings).await;
    resets(contention, findings).await;
}

/// Every acquire under a limit of one is refunded. No task is admitted while another holds the unit.
async fn one_at_a_time<S: WindowStore + ?Sized>(contention: &mut Contention<'_, S>, findings: &mut Findings) {
    let shared = contention.shared(policy(&[limit(1, 1_000)], false), Some(0));
    let work = |shared: Arc<SharedLog<S>>, task, turn| async move {
        let seen = shared.decide(task, turn, shared.op()).await?;
        let receipt = seen.decision.receipt().filter(|_| seen.decision.allowed());
        let refunded = match receipt {
            Some(receipt) => shared.settle(task, receipt, 0).await?.applied,
            None => true,
        };
        Ok((seen, refunded))
    };
    let tries = contention.tries;
    let result = contention.all(&shared, tries, work).await.and_then(|seen: Vec<(TaskDecision, bool)>| {
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
    contention.end(&shared, "a limit of one, acquired and refunded", result, findings).await;
}

/// Some tasks record, and the first task resets. Between two resets, the records see usages of 1, 2, 3 and so on.
async fn resets<S: WindowStore + ?Sized>(contention: &mut Contention<'_, S>, findings: &mut Findings) {
    let shared = contention.shared(policy(&[limit(MAX_COST, 1_000)], false), Some(0));
    let work = |shared: Arc<SharedLog<S>>, task, turn| async move {
        if task == 0 {
            return Ok((None, shared.reset(task).await?));
        }
        let mut op = shared.op();
        op.mode = Mode::Record;
        Ok((Some(shared.decide(task, turn, op).await?), false))
    };
    let tries = contention.tries;
    let result = async {
        let results: Vec<(Option<TaskDecision>, bool)> = contention.all(&shared, tries, work).await?;
        let there_was_one = shared.reset(0).await.map_err(super::tasks::failed)?;
        let resets = results.iter().filter(|(_, removed)| *removed).count() + usize::from(there_was_one);
        let mut seen: Vec<TaskDecision> = results.into_iter().filter_map(|(seen, _)| seen).collect();
        seen.sort_by_key(|seen| seen.decision.used());
        let saw = |used: u64| seen.iter().filter(|seen| seen.decision.used() == used).collect::<Vec<_>>();
        let most = seen.last().map_or(0, |seen| seen.decision.used());
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
        let wrong = || format!("{resets} resets removed a log, but {first} records found an empty log");
        if resets == first { Ok(()) } else { Err(wrong()) }
    };
    let result = result.await;
    contention.end(&shared, "records and resets", result, findings).await;
}
