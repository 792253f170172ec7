//! The golden traces.

use std::time::Duration;

use limiter_core::LimitStatus;

use super::mismatch::{Mismatch, columns};
use super::model::Planned;
use super::result::CallResult;
use super::session::Session;
use super::suite::run::Run;
use crate::golden::{self, Row, RowResult};

pub(crate) async fn run(run: &mut Run<'_>) {
    for (number, trace) in golden::traces().iter().enumerate() {
        let case = &trace.script.case;
        let mut session = Session::new(run, case, number);
        let replayed = session.replay(case).await;
        let title = format!("golden trace \"{}\"", trace.name);
        run.check(replayed.map_err(|mismatch| trace.script.cited(mismatch).titled(&title)));
        for (row, planned) in trace.rows.iter().zip(&session.model.calls) {
            if let Err(text) = compare(row, planned) {
                run.fail(Mismatch::new(format!("{title}, row {row:?}"), &[], text));
            }
        }
    }
}

/// Compares the result that was computed by hand with the reference store's.
fn compare(row: &Row, planned: &Planned) -> Result<(), String> {
    let micros = |duration: Duration| duration.as_micros() as u64;
    let (succeeds, retry_after) = match &planned.expected {
        CallResult::Decided(decided) => (decided.values.fits, decided.values.retry_after),
        CallResult::Settled(settled) => (settled.applied, None),
        _ => (false, None),
    };
    let status = planned.expected.status();
    let result = status.map(|status| RowResult {
        succeeds,
        limit: status.limit().max(),
        used: status.used(),
        remaining: status.remaining(),
        retry_after: retry_after.map(micros),
        refill_after: micros(status.refill_after()),
        reset_after: micros(status.reset_after()),
    });
    let is_stated = !row.used_each.is_empty();
    let used_each = status.filter(|_| is_stated).map_or(Vec::new(), |status| {
        status.limits().iter().map(LimitStatus::used).collect()
    });
    let reference = Row {
        result,
        used_each,
        ..row.clone()
    };
    if reference == *row {
        return Ok(());
    }
    let columns = columns(row, &reference);
    Err(format!("the reference store differs\n{columns}"))
}
