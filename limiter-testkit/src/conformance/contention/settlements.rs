//! Concurrent settlements and refunds.

use std::sync::Arc;

use limiter_core::{Error, Receipt, WindowStore};

use super::tasks::{Contention, Problem, SharedLog, failed};
use crate::conformance::generated::strategy::{limit, policy};
use crate::conformance::suite::failure::Findings;

pub(super) async fn run<S: WindowStore + ?Sized>(contention: &mut Contention<'_, S>, findings: &mut Findings) {
    same_receipt(contention, findings).await;
    different_costs(contention, findings).await;
    own_refunds(contention, findings).await;
}

/// Appends an entry of this cost and returns its receipt.
async fn receipt<S: WindowStore + ?Sized>(shared: &SharedLog<S>, task: usize, cost: u64) -> Result<Receipt, Error> {
    let seen = shared.decide(task, task, shared.op().with_cost(cost)).await?;
    let none = || Error::new(limiter_core::ErrorKind::Inconsistent, "an admitted acquire returned no receipt");
    seen.decision.receipt().ok_or_else(none)
}

async fn used<S: WindowStore + ?Sized>(shared: &SharedLog<S>) -> Result<u64, Problem> {
    let mut op = shared.op();
    op.mode = limiter_core::store::Mode::Peek;
    Ok(shared.decide(0, 1, op).await.map_err(failed)?.decision.used())
}

/// A receipt that all tasks refund is refunded once.
async fn same_receipt<S: WindowStore + ?Sized>(contention: &mut Contention<'_, S>, findings: &mut Findings) {
    let shared = contention.shared(policy(&[limit(99, 1_000)], false), Some(0));
    let result = async {
        _ = receipt(&shared, 0, 2).await.map_err(failed)?;
        let receipt = receipt(&shared, 0, 3).await.map_err(failed)?;
        let work = move |shared: Arc<SharedLog<S>>, task, _| async move {
            Ok((task, shared.settle(task, receipt, 0).await?.applied))
        };
        let refunds: Vec<(usize, bool)> = contention.all(&shared, 2, work).await?;
        let by: Vec<usize> = refunds.iter().filter(|(_, applied)| *applied).map(|(task, _)| *task).collect();
        let used = used(&shared).await?;
        match (&by[..], used) {
            ([_], 2) => Ok(()),
            ([one, other, ..], _) => Err(format!(
                "the tasks {one} and {other} both refunded one entry, and {used} are used, expected 2\ntwo tasks overlapped: \
                 each found the entry before the other had removed it"
            )),
            _ => Err(format!(
                "{} tasks refunded one entry and {used} units are used; expected one task and 2 units",
                by.len()
            )),
        }
    };
    let result = result.await;
    contention.end(&shared, "refunds of one receipt", result, findings).await;
}

/// Every task settles one entry to a different cost and finds that cost in the answer.
async fn different_costs<S: WindowStore + ?Sized>(contention: &mut Contention<'_, S>, findings: &mut Findings) {
    let shared = contention.shared(policy(&[limit(1_000_000, 1_000)], false), Some(0));
    let result = async {
        let receipt = receipt(&shared, 0, 1).await.map_err(failed)?;
        let tries = contention.tries;
        let work = move |shared: Arc<SharedLog<S>>, task, turn| async move {
            let cost = (1 + task * tries + turn) as u64;
            let facts = shared.settle(task, receipt, cost).await?;
            Ok((task, cost, facts.applied, facts.log.usage[0].used))
        };
        let settled: Vec<(usize, u64, bool, u64)> = contention.all(&shared, tries, work).await?;
        match settled.iter().find(|(_, cost, applied, used)| !applied || used != cost) {
            Some((task, cost, applied, used)) => Err(format!(
                "task {task} settled the only entry to {cost}: applied {applied}, used {used}, expected {cost}\ntwo tasks \
                 overlapped: the answer describes a log that another task had changed"
            )),
            None => Ok(()),
        }
    };
    let result = result.await;
    contention.end(&shared, "settlements of one receipt", result, findings).await;
}

/// Each task appends entries and refunds them. At the end, the log is empty.
async fn own_refunds<S: WindowStore + ?Sized>(contention: &mut Contention<'_, S>, findings: &mut Findings) {
    let shared = contention.shared(policy(&[limit(1_000_000, 1_000)], false), Some(0));
    let result = async {
        let work = |shared: Arc<SharedLog<S>>, task, _| async move {
            let receipt = receipt(&shared, task, 1 + task as u64).await?;
            Ok((task, shared.settle(task, receipt, 0).await?.applied))
        };
        let tries = contention.tries.div_ceil(2);
        let refunds: Vec<(usize, bool)> = contention.all(&shared, tries, work).await?;
        contention.calls += refunds.len() as u64;
        if let Some((task, _)) = refunds.iter().find(|(_, applied)| !applied) {
            return Err(format!(
                "task {task} lost its entry\ntwo tasks overlapped: another task wrote the log without that entry"
            ));
        }
        let (used, there_was_one) = (used(&shared).await?, shared.reset(0).await.map_err(failed)?);
        let wrong =
            || format!("after all entries were refunded, {used} units are used and reset returned {there_was_one}");
        if used == 0 && !there_was_one { Ok(()) } else { Err(wrong()) }
    };
    let result = result.await;
    contention.end(&shared, "appends and refunds", result, findings).await;
}
