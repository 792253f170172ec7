//! The golden traces hold through the program, every field of every row, byte by byte.

mod common;

use common::{golden_csv, op};
use limiter_testkit::golden::{Row, traces};

fn line(row: &Row) -> String {
    let start = format!(r#"{{"at_us":{},"key":"k","op":"{}","cost":{}"#, row.at, op(row), row.cost);
    let Some(answer) = row.answer else {
        let error = if row.cost == 0 { "invalid_cost" } else { "cost_exceeds_limit" };
        return format!(r#"{start},"error":"{error}"}}"#);
    };
    let retry_after = answer.retry_after.map_or("null".to_owned(), |micros| micros.to_string());
    format!(
        r#"{start},"allowed":{},"limit":{},"used":{},"remaining":{},"retry_after_us":{retry_after},"refill_after_us":{},"reset_after_us":{}}}"#,
        answer.allowed, answer.limit, answer.used, answer.remaining, answer.refill_after, answer.reset_after,
    )
}

#[test]
fn golden_traces() {
    let mut rows = 0;
    for trace in traces() {
        let args = common::golden_args(trace);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let printed = common::stdout_of(&args, golden_csv(trace));
        let expected: Vec<String> = trace.rows.iter().map(line).collect();
        assert_eq!(printed.lines().collect::<Vec<_>>(), expected, "{}", trace.name);
        rows += expected.len();
    }
    assert!(rows > 80, "only {rows} rows: the golden traces are gone");
}

#[test]
fn the_example_of_the_manual() {
    let trace = "at,key\n0,k\n20,k\n35,k\n70,k\n75,k\n";
    let printed = common::stdout_of(&["replay", "--limit", "3/60s", "--output", "jsonl", "-"], trace);
    assert_eq!(
        printed.lines().last().unwrap(),
        r#"{"at_us":75000000,"key":"k","op":"acquire","cost":1,"allowed":false,"limit":3,"used":3,"remaining":0,"retry_after_us":5000000,"refill_after_us":5000000,"reset_after_us":55000000}"#
    );
}
