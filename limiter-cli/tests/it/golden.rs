//! The program reproduces the golden traces byte by byte.

use limiter_core::Counting;
use limiter_testkit::golden::{Trace, traces};

use crate::common::stdout_of;

#[test]
fn golden_traces() {
    // The others need a second policy or a second limiter, which a CSV file cannot express.
    let is_plain = |trace: &&Trace| {
        trace
            .rows
            .iter()
            .all(|row| row.own_limits.is_empty() && row.limiter == 0)
    };
    let (plain, other): (Vec<&Trace>, Vec<&Trace>) = traces().iter().partition(is_plain);
    let skipped: Vec<_> = other.iter().map(|trace| trace.name).collect();
    assert_eq!(
        (plain.len(), &*skipped),
        (15, &["another policy and another limiter"][..])
    );
    let mut rows = 0;
    for trace in plain {
        let count = if trace.counting == Counting::Attempts {
            "attempts"
        } else {
            "admitted"
        };
        let limits = trace
            .limits
            .split(", ")
            .flat_map(|limit| ["--limit", limit]);
        let args: Vec<&str> = ["replay", "--output", "jsonl", "--counting", count]
            .into_iter()
            .chain(limits)
            .collect();
        let (printed, expected) = (stdout_of(&args, trace.csv("k")), trace.jsonl("k"));
        assert_eq!(
            printed.lines().collect::<Vec<_>>(),
            expected.lines().collect::<Vec<_>>(),
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
    let printed = stdout_of(
        &["replay", "--limit", "3/60s", "--output", "jsonl", "-"],
        trace,
    );
    assert_eq!(
        printed.lines().last().unwrap(),
        r#"{"at_us":75000000,"key":"k","op":"acquire","cost":1,"allowed":false,"limit":3,"used":3,"remaining":0,"retry_after_us":5000000,"refill_after_us":5000000,"reset_after_us":55000000}"#
    );
}
