//! The program reproduces the golden traces byte by byte.

use crate::common::plain_traces;

#[test]
fn golden_traces() {
    let mut rows = 0;
    for trace in plain_traces() {
        let args = crate::common::golden_args(trace);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let (printed, expected) = (crate::common::stdout_of(&args, trace.csv("k")), trace.jsonl("k"));
        assert_eq!(printed.lines().collect::<Vec<_>>(), expected.lines().collect::<Vec<_>>(), "{}", trace.name);
        rows += trace.rows.len();
    }
    assert!(rows > 80, "only {rows} rows: golden traces are missing");
}

#[test]
fn the_example_in_the_documentation() {
    let trace = "at,key\n0,k\n20,k\n35,k\n70,k\n75,k\n";
    let printed = crate::common::stdout_of(&["replay", "--limit", "3/60s", "--output", "jsonl", "-"], trace);
    assert_eq!(
        printed.lines().last().unwrap(),
        r#"{"at_us":75000000,"key":"k","op":"acquire","cost":1,"allowed":false,"limit":3,"used":3,"remaining":0,"retry_after_us":5000000,"refill_after_us":5000000,"reset_after_us":55000000}"#
    );
}
