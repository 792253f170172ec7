//! The golden traces are complete and agree with the definitions.

use limiter_core::store::{Op, decide};
use limiter_core::{Limiter, Name, Policy, SyncStore, Timestamp};
use limiter_testkit::golden::{Row, RowAnswer, traces};
use limiter_testkit::{Answer, ReferenceStore};

fn op<'a>(row: &Row, default: &'a Policy, own: &'a Option<Policy>) -> Op<'a> {
    let at = Timestamp::from_micros(row.at).unwrap();
    let name = Name::new(["one", "another"][row.limiter]);
    let mut op = Op::new(row.mode, "key", own.as_ref().unwrap_or(default)).with_name(name).with_cost(row.cost).at(at);
    op.limiter_policy = own.as_ref().map(|_| default);
    op
}

#[test]
fn the_definitions_agree_with_every_field() {
    let mut rows = 0;
    for trace in traces() {
        let (reference, policy) = (ReferenceStore::new(), trace.policy().unwrap());
        for row in trace.rows {
            let own = row.own_policy().unwrap();
            let Ok(op) = op(row, &policy, &own).checked() else {
                assert_eq!(row.answer, None, "{}: {row:?}", trace.name);
                continue;
            };
            let facts = reference.apply_now(&op);
            let log = reference.entries(op.log);
            let entry = log.last().map(|entry| (entry.at, facts.refundable));
            let answer = Answer::by_definition(&op, &log, facts.log.now, facts.admitted, entry);
            let used: Vec<u64> = answer.status.limits.iter().map(|limit| limit.used).collect();
            assert!(row.used_each.is_empty() || *used == *row.used_each, "{}: {row:?}", trace.name);
            assert_eq!(row.answer, Some(RowAnswer::from(&answer)), "{}: {row:?}", trace.name);
            assert_eq!(row.answer, Some(RowAnswer::from(&decide(&op, facts))), "{}: {row:?}", trace.name);
            rows += 1;
        }
    }
    assert_eq!((traces().len(), rows), (15, 135));
}

#[test]
fn the_stated_retry_time_is_exact_to_the_microsecond() {
    let mut denials = 0;
    for trace in traces() {
        if !trace.is_plain() {
            continue;
        }
        let limiter = Limiter::new("one", trace.policy().unwrap(), ReferenceStore::new());
        for row in trace.rows {
            let Ok(decision) = limiter.store().decide_now(op(row, limiter.policy(), &None)) else { continue };
            let Some(retry) = decision.retry_after() else { continue };
            let at = |late| decision.at().saturating_add(retry).as_micros() - late;
            let peek = |late| {
                let at = Timestamp::from_micros(at(late)).unwrap();
                limiter.peek("key").cost(row.cost).at(at).now().unwrap().allowed()
            };
            assert_eq!((peek(0), peek(1)), (true, false), "{}: {row:?}", trace.name);
            denials += 1;
        }
    }
    assert_eq!(denials, 28);
}
