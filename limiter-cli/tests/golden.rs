//! The golden traces hold through the program, every field of every row, byte by byte.

mod common;

use std::fmt::Write;

use limiter_core::{Counting, Mode};
use limiter_testkit::golden::{Row, Trace, traces};

fn csv(trace: &Trace) -> String {
    let mut csv = "op,cost,key,at\n".to_owned();
    for row in trace.rows {
        writeln!(csv, "{},{},k,{}.{:06}", op(row), row.cost, row.at / 1_000_000, row.at % 1_000_000).unwrap();
    }
    csv
}

fn op(row: &Row) -> &'static str {
    match row.mode {
        Mode::Acquire => "acquire",
        Mode::Peek => "peek",
        Mode::Record => "record",
    }
}

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
        let limits: Vec<String> = trace.limits.iter().map(|(max, window)| format!("{max}/{window}us")).collect();
        let count = if trace.counting == Counting::Attempts { "attempts" } else { "admitted" };
        let mut args = vec!["replay", "--output", "jsonl", "--count", count];
        for limit in &limits {
            args.extend(["--limit", limit]);
        }
        let printed = common::stdout_of(&args, csv(trace));
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
