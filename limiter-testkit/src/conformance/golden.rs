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
    use crate::golden::{RowAnswer, traces};

    #[test]
    fn the_reference_store_agrees_with_every_field() {
        let micros = |duration: Duration| duration.as_micros() as u64;
        let mut rows = 0;
        for trace in traces() {
            let calls = planned(&trace.script.case).calls;
            for (row, planned) in trace.rows.iter().zip(&calls) {
                let mut expected = (None, row.used_each.clone());
                if let CallResult::Decided(decided) = &planned.expected {
                    let status = &decided.answer.status;
                    let answer = RowAnswer {
                        allowed: decided.answer.allowed,
                        limit: status.limit().max(),
                        used: status.used(),
                        remaining: status.remaining(),
                        retry_after: decided.answer.retry_after.map(micros),
                        refill_after: micros(status.refill_after()),
                        reset_after: micros(status.reset_after()),
                    };
                    let limits = status.limits();
                    let used = limits.iter().map(LimitStatus::used);
                    let is_stated = !row.used_each.is_empty();
                    expected = (Some(answer), used.filter(|_| is_stated).collect());
                }
                let stated = (row.answer, row.used_each.clone());
                assert_eq!(stated, expected, "{}: {row:?}", trace.name);
                rows += 1;
            }
        }
        assert_eq!((traces().len(), rows), (31, 272));
    }
}
