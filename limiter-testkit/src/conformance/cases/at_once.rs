//! E2: deciding without a future.

use limiter_core::store::Op;
use limiter_core::{ErrorKind, Name, WindowStore, policy};

use crate::conformance::generated::strategy::START;
use crate::conformance::sentence::Cite;
use crate::conformance::sentence::Sentence::E2;
use crate::conformance::sequence::caller::by_facts;
use crate::conformance::suite::failure::{Finding, Findings};
use crate::conformance::suite::run::{Run, reset_all};

pub(super) async fn run<S: WindowStore + ?Sized>(run: &mut Run<'_, S>, findings: &mut Findings) {
    let (key, limits) = (run.new_key(), policy!("2/10us"));
    let at = limiter_core::Timestamp::from_micros_saturating(START);
    let op = |cost| Op::acquire(&key, &limits).with_name(Name::new("conformance")).with_cost(cost).at(at);
    let store = run.store().clone();
    let mut wrong = Vec::new();
    for (cost, kind) in [(0, ErrorKind::InvalidCost), (3, ErrorKind::CostExceedsLimit)] {
        match store.decide_at_once(op(cost)) {
            None => {}
            Some(Err(error)) if error.kind() == kind => {}
            Some(answer) => wrong
                .push((E2.nth(1), format!("an acquire of {cost} under {limits}: expected {kind:?}, got {answer:?}"))),
        }
    }
    let expected = match store.decide_at_once(op(1)) {
        None => 0,
        Some(Ok(decision)) if decision.allowed() && decision.used() == 1 => 1,
        Some(answer) => {
            wrong.push((E2.nth(1), format!("an acquire of 1 under {limits} on a new key: got {answer:?}")));
            1
        }
    };
    let mut peek = op(1);
    peek.mode = limiter_core::store::Mode::Peek;
    let used = by_facts(&*store, peek).await.map(|(decision, _)| decision.used());
    if !matches!(used, Ok(used) if used == expected) {
        let (cite, returned) = if expected == 0 { (E2.nth(2), "returned `None`") } else { (E2.nth(1), "decided") };
        wrong.push((cite, format!("decide_at_once {returned}, so {expected} must be used; a peek found {used:?}")));
    }
    reset_all(&*store, &[op(1).log]).await;
    run.count(5);
    for (cite, text) in wrong {
        let cite: Cite = cite;
        findings.push(Finding::new("deciding at once", &[cite], text));
    }
}
