//! The program reproduces the golden traces byte by byte.

use limiter_core::{Counting, Limit};
use limiter_testkit::conformance::{Step, Verb};
use limiter_testkit::golden::{Row, RowResult, Trace, traces};

use crate::common::stdout_of;

fn op(row: &Row) -> String {
    match row.step.verb {
        Verb::Run(mode) => format!("{mode:?}").to_lowercase(),
        verb => panic!("{verb:?} is in no trace"),
    }
}

fn csv(row: &Row) -> String {
    let seconds = row.at / 1_000_000;
    let micros = row.at % 1_000_000;
    format!("{seconds}.{micros:06},k,{},{}\n", row.step.cost, op(row))
}

fn json(row: &Row) -> String {
    let at = row.at;
    let cost = row.step.cost;
    let start = format!(
        r#"{{"at_us":{at},"key":"k","op":"{}","cost":{cost}"#,
        op(row)
    );
    let Some(RowResult {
        succeeds,
        limit,
        used,
        remaining,
        retry_after,
        refill_after,
        reset_after,
    }) = row.result
    else {
        return start + r#","error":"cost_exceeds_limit"}"#;
    };
    let retry = retry_after.map_or_else(|| "null".to_owned(), |retry| retry.to_string());
    format!(
        r#"{start},"allowed":{succeeds},"limit":{limit},"used":{used},"remaining":{remaining},"retry_after_us":{retry},"refill_after_us":{refill_after},"reset_after_us":{reset_after}}}"#
    )
}

#[test]
fn golden_traces() {
    // The others need a second policy, a second limiter, ids or renewals, which a CSV file cannot express.
    let is_plain = |row: &Row| {
        let Step {
            verb,
            on,
            policy,
            id,
            ..
        } = row.step;
        matches!(verb, Verb::Run(_)) && policy == 0 && (on, id) == (None, None)
    };
    let (plain, other): (Vec<&Trace>, Vec<&Trace>) = traces()
        .iter()
        .partition(|trace| trace.rows.iter().all(is_plain));
    let skipped: Vec<_> = other.iter().map(|trace| &*trace.name).collect();
    assert_eq!(plain.len(), 27);
    let expected = [
        "another policy and another limiter",
        "a repeated denial",
        "slots",
        "a changed quota",
    ];
    assert_eq!(skipped, expected);
    let mut rows = 0;
    for trace in plain {
        let policy = &trace.policies[0];
        let count = if policy.counting() == Counting::Attempts {
            "attempts"
        } else {
            "admitted"
        };
        let args = ["replay", "--output", "jsonl", "--counting", count];
        let mut args = args.to_vec();
        let limits: Vec<String> = policy.limits().iter().map(Limit::to_string).collect();
        args.extend(limits.iter().flat_map(|limit| ["--limit", limit]));
        let csv = "at,key,cost,op\n".to_owned() + &trace.rows.iter().map(csv).collect::<String>();
        let printed = stdout_of(&args, csv);
        let expected: Vec<String> = trace.rows.iter().map(json).collect();
        assert_eq!(
            printed.lines().collect::<Vec<_>>(),
            expected,
            "{}",
            trace.name
        );
        rows += trace.rows.len();
    }
    assert!(rows > 80, "only {rows} rows: golden traces are missing");
}

#[test]
fn the_example_in_the_documentation() {
    let trace = "at,key\n0,k\n20,k\n35,k\n70,k\n75,k\n";
    let args = ["replay", "--limit", "3/60s", "--output", "jsonl", "-"];
    let printed = stdout_of(&args, trace);
    let expected = r#"{"at_us":75000000,"key":"k","op":"acquire","cost":1,"allowed":false,"limit":3,"used":3,"remaining":0,"retry_after_us":5000000,"refill_after_us":5000000,"reset_after_us":55000000}"#;
    assert_eq!(printed.lines().last(), Some(expected));
}
