//! The golden traces.

use super::session::Session;
use super::suite::run::Run;
use crate::golden;

pub(crate) async fn run(run: &mut Run<'_>) {
    for (number, trace) in golden::traces().iter().enumerate() {
        let case = &trace.script.case;
        let result = Session::new(run, case, number).replay(case).await;
        run.check(result.map_err(|mismatch| {
            let title = format!("golden trace \"{}\"", trace.name);
            trace.script.cited(mismatch).titled(title)
        }));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use limiter_core::LimitStatus;

    use crate::conformance::result::CallResult;
    use crate::conformance::session::planned;
    use crate::golden::{RowResult, traces};

    #[test]
    fn the_reference_store_agrees_with_every_field() {
        let micros = |duration: Duration| duration.as_micros() as u64;
        let mut rows = 0;
        for trace in traces() {
            let calls = planned(&trace.script.case).calls;
            for (row, planned) in trace.rows.iter().zip(&calls) {
                let (succeeds, retry_after) = match &planned.expected {
                    CallResult::Decided(decided) => {
                        (decided.values.fits, decided.values.retry_after)
                    }
                    CallResult::Settled(settled) => (settled.applied, None),
                    _ => (false, None),
                };
                let result = planned.expected.status().map(|status| RowResult {
                    succeeds,
                    limit: status.limit().max(),
                    used: status.used(),
                    remaining: status.remaining(),
                    retry_after: retry_after.map(micros),
                    refill_after: micros(status.refill_after()),
                    reset_after: micros(status.reset_after()),
                });
                let status = planned
                    .expected
                    .status()
                    .filter(|_| !row.used_each.is_empty());
                let used = status.map_or(Vec::new(), |status| {
                    status.limits().iter().map(LimitStatus::used).collect()
                });
                let expected = (result, used);
                let stated = (row.result, row.used_each.clone());
                assert_eq!(stated, expected, "{}: {row:?}", trace.name);
                rows += 1;
            }
        }
        assert_eq!((traces().len(), rows), (31, 272));
    }
}
