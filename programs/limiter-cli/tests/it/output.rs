//! Output for well-formed rows.

use std::io::{Read, Write};

use crate::common::{REAL_TRACE, stdout_of, text};

const JSONL: [&str; 5] = ["replay", "--limit", "3/60s", "--output", "jsonl"];

#[test]
fn refused_rows_and_resets() {
    let trace = "at,key,cost,op\n\
                 0,k,0,\n\
                 0,k,0,peek\n\
                 0,k,0,record\n\
                 0,k,4,\n\
                 0,k,18446744073709551615,peek\n\
                 0,k,3,\n\
                 1,k,99,reset\n\
                 2,k,18446744073709551615,record\n\
                 3,other,0,reset\n";
    let printed = stdout_of(&JSONL, trace);
    let expected = r#"
{"at_us":0,"key":"k","op":"acquire","cost":0,"error":"invalid_cost"}
{"at_us":0,"key":"k","op":"peek","cost":0,"error":"invalid_cost"}
{"at_us":0,"key":"k","op":"record","cost":0,"error":"invalid_cost"}
{"at_us":0,"key":"k","op":"acquire","cost":4,"error":"cost_exceeds_limit"}
{"at_us":0,"key":"k","op":"peek","cost":18446744073709551615,"error":"cost_exceeds_limit"}
{"at_us":0,"key":"k","op":"acquire","cost":3,"allowed":true,"limit":3,"used":3,"remaining":0,"retry_after_us":null,"refill_after_us":60000000,"reset_after_us":60000000}
{"at_us":1000000,"key":"k","op":"reset"}
{"at_us":2000000,"key":"k","op":"record","cost":18446744073709551615,"allowed":false,"limit":3,"used":3,"remaining":0,"retry_after_us":null,"refill_after_us":60000000,"reset_after_us":60000000}
{"at_us":3000000,"key":"other","op":"reset"}
"#;
    assert_eq!(printed, expected.trim_start());
    let summary = stdout_of(&JSONL[..3], trace);
    let totals = "
rows                 9
keys                 2
allowed              1  100.0 %
denied               0    0.0 %
errors               5
recorded             1
resets               2
";
    assert!(summary.contains(totals), "{summary}");
}

#[test]
fn a_closed_output_is_not_an_error() {
    let rows = (0..200_000).map(|i| format!("{i},k\n"));
    let trace = format!("at,key\n{}", rows.collect::<String>());
    let mut child = crate::common::start(&JSONL);
    let mut stdin = child.stdin.take().unwrap();
    let feeder = std::thread::spawn(move || drop(stdin.write_all(trace.as_bytes())));
    let mut first = [0; 10];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap();
    let output = child.wait_with_output().unwrap();
    feeder.join().unwrap();
    assert_eq!(&first, b"{\"at_us\":0");
    assert_eq!(
        (output.status.code(), text(&output.stderr).as_str()),
        (Some(0), "")
    );
}

/// The text is committed with the plot of the same trace, without the time that the replay took.
#[test]
fn the_summary_of_a_real_trace() {
    for (limit, expected) in [
        ("30/60s", include_str!("../summaries/30-per-minute.txt")),
        ("20/1h", include_str!("../summaries/20-per-hour.txt")),
    ] {
        let summary = stdout_of(&["replay", "--limit", limit, REAL_TRACE], "");
        let is_stable = |line: &&str| !line.contains("operations/s");
        let stable: Vec<&str> = summary.lines().filter(is_stable).collect();
        assert_eq!(stable, expected.lines().collect::<Vec<_>>(), "{limit}");
    }
}

#[test]
fn a_trace_with_only_a_header() {
    let out = stdout_of(&["replay", "--limit", "3/60s"], "at,key\n");
    assert!(
        out.contains("\nrows                 0\n") && !out.contains("busiest"),
        "{out}"
    );
    assert_eq!(stdout_of(&JSONL, "at,key\n"), "");
}

#[test]
fn a_closed_standard_error_does_not_change_the_exit_status() {
    let plot = tempfile::NamedTempFile::new().unwrap();
    let plot = plot.path().to_str().unwrap();
    for (args, status) in [
        (&["--skip-invalid"][..], 0),
        (&["--skip-invalid", "--plot", plot], 0),
        (&[], 2),
        (&["--limit", "0/60s"], 2),
        (&["/no/such/file"], 1),
    ] {
        let mut child = crate::common::start(&[&["replay", "--limit", "3/60s"], args].concat());
        drop(child.stderr.take());
        // The program may end before it reads the trace.
        let _ = child.stdin.take().unwrap().write_all(b"at,key\n0,k\nx,k\n");
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(status), "{args:?}");
        assert_eq!(output.stdout.is_empty(), status != 0, "{args:?}");
    }
}

#[test]
fn the_example_in_the_documentation() {
    let trace = "at,key\n0,k\n20,k\n35,k\n70,k\n75,k\n";
    let args = ["replay", "--limit", "3/60s", "--output", "jsonl", "-"];
    let printed = stdout_of(&args, trace);
    let expected = r#"{"at_us":75000000,"key":"k","op":"acquire","cost":1,"allowed":false,"limit":3,"used":3,"remaining":0,"retry_after_us":5000000,"refill_after_us":5000000,"reset_after_us":55000000}"#;
    assert_eq!(printed.lines().last(), Some(expected));
}

/// With two limits, of which the second denies, the decision is about the second. Denied attempts count if that is chosen.
#[test]
fn each_limit_and_the_counting_apply() {
    let trace = "at,key\n0,k\n1,k\n2.5,k\n";
    for (counting, expected) in [
        ("admitted", [true, false, true]),
        ("attempts", [true, false, false]),
    ] {
        let args = [
            "--limit",
            "3/61s",
            "--limit",
            "1/2s",
            "--counting",
            counting,
        ];
        let args = [&["replay", "--output", "jsonl"][..], &args].concat();
        let printed = stdout_of(&args, trace);
        for (line, allowed) in printed.lines().zip(expected) {
            assert!(
                line.contains(&format!("\"allowed\":{allowed},")),
                "{counting}: {printed}"
            );
        }
    }
}
