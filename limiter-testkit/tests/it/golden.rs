//! The golden traces are complete, agree with the definitions, and convert to text.

use limiter_core::store::{Op, decide};
use limiter_core::{Limiter, Name, NowStore, Policy, Timestamp};
use limiter_testkit::golden::{Row, RowAnswer, traces};
use limiter_testkit::{Answer, OracleStore};

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
        let (oracle, policy) = (OracleStore::new(), trace.policy().unwrap());
        for row in trace.rows {
            let own = row.own_policy().unwrap();
            let Ok(op) = op(row, &policy, &own).checked() else {
                assert_eq!(row.answer, None, "{}: {row:?}", trace.name);
                continue;
            };
            let facts = oracle.apply_now(&op);
            let log = oracle.entries(op.log);
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
        let limiter = Limiter::new("one", trace.policy().unwrap(), OracleStore::new());
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

#[test]
fn a_trace_converts_to_csv_and_json() {
    let trace = traces().iter().find(|trace| trace.name == "weights").unwrap();
    let csv: Vec<String> = trace.csv("k").lines().take(4).map(str::to_owned).collect();
    assert_eq!(csv, ["at,key,cost,op", "0.000000,k,11,acquire", "0.000000,k,5,acquire", "1.900000,k,1,acquire"]);
    let jsonl: Vec<String> = trace.jsonl("k").lines().map(str::to_owned).collect();
    assert_eq!(jsonl.len(), trace.rows.len());
    assert_eq!(jsonl[0], r#"{"at_us":0,"key":"k","op":"acquire","cost":11,"error":"cost_exceeds_limit"}"#);
    assert_eq!(
        jsonl[6],
        r#"{"at_us":1900000,"key":"k","op":"acquire","cost":2,"allowed":false,"limit":10,"used":9,"remaining":1,"retry_after_us":100000,"refill_after_us":100000,"reset_after_us":2000000}"#
    );
    let steady = traces().iter().find(|trace| trace.name == "in-process log").unwrap().jsonl("k");
    assert!(steady.contains(
        r#"{"at_us":75000000,"key":"k","op":"acquire","cost":1,"allowed":false,"limit":3,"used":3,"remaining":0,"retry_after_us":5000000,"refill_after_us":5000000,"reset_after_us":55000000}"#
    ));
}
