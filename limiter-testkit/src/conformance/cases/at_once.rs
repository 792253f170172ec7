//! E2: decisions without a future.

use limiter_core::store::{Mode, Op};
use limiter_core::{ErrorKind, Name, Timestamp, WindowStore as _, policy};

use crate::conformance::generated::strategy::START;
use crate::conformance::sentence::Sentence::E2;
use crate::conformance::sequence::caller::by_facts;
use crate::conformance::suite::failure::{Finding, Findings};
use crate::conformance::suite::run::{Run, reset_all};

pub(super) async fn run(run: &mut Run<'_>, findings: &mut Findings) {
    let (keys, limits) = ([run.new_key(), run.new_key()], policy!("2/10us"));
    let at = Timestamp::from_micros_saturating(START);
    let op =
        |key: usize, cost| Op::acquire(&keys[key], &limits).with_name(Name::new("conformance")).with_cost(cost).at(at);
    let store = run.store().clone();
    let mut wrong = Vec::new();
    for (cost, kind) in [(0, ErrorKind::InvalidCost), (3, ErrorKind::CostExceedsLimit)] {
        match limiter_core::store::attempt(&store, op(0, cost)) {
            None => {}
            Some(Err(error)) if error.kind() == kind => {}
            Some(answer) => {
                wrong.push((1, format!("an acquire of {cost} under {limits}: expected {kind:?}, got {answer:?}")));
            }
        }
    }
    let mut appended = [false; 2];
    for (key, appended) in appended.iter_mut().enumerate() {
        *appended = match limiter_core::store::attempt(&store, op(key, 1)) {
            None => false,
            Some(Ok(decision)) if decision.allowed() && decision.used() == 1 => true,
            Some(answer) => {
                wrong.push((1, format!("an acquire of 1 under {limits} on a new key: got {answer:?}")));
                true
            }
        };
    }
    let mut peek = op(0, 1);
    peek.mode = Mode::Peek;
    let used = by_facts(&store, peek).await.map(|(decision, _)| decision.used());
    let removed = store.reset(op(1, 1).log).await;
    // Skip a single wrong result: it may be the fault of the peek or of the reset.
    let peek_differs = used.as_ref().is_ok_and(|used| *used != u64::from(appended[0]));
    let reset_differs = removed.as_ref().is_ok_and(|removed| *removed != appended[1]);
    if peek_differs && reset_differs {
        let (number, returned) = if appended[0] { (1, "decided") } else { (2, "returned `None`") };
        wrong
            .push((number, format!("try_decide {returned}; then a peek found {used:?} used, and a reset {removed:?}")));
    }
    reset_all(&store, &[op(0, 1).log]).await;
    run.count(7);
    for (number, text) in wrong {
        findings.push(Finding::new("deciding at once", &[E2.nth(number)], text));
    }
}
