//! Output for well-formed rows.

use std::collections::BTreeMap;
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
    let trace: String = std::iter::once("at,key\n".to_owned())
        .chain((0..200_000).map(|i| format!("{i},k\n")))
        .collect();
    let mut child = crate::common::start(&JSONL);
    let mut stdin = child.stdin.take().unwrap();
    let feeder = std::thread::spawn(move || drop(stdin.write_all(trace.as_bytes())));
    let mut stdout = child.stdout.take().unwrap();
    let mut first = [0; 10];
    stdout.read_exact(&mut first).unwrap();
    drop(stdout);
    let output = child.wait_with_output().unwrap();
    feeder.join().unwrap();
    assert_eq!(&first, b"{\"at_us\":0");
    assert_eq!(
        (output.status.code(), text(&output.stderr).as_str()),
        (Some(0), "")
    );
}

/// The totals of one key, counted in the simplest way.
#[derive(Default)]
struct Naive {
    log: Vec<u64>,
    rows: u64,
    denied: u64,
}

#[test]
fn the_summary_of_a_real_trace() {
    for (max, window) in [(30, 60), (5, 5), (20, 3600)] {
        let mut keys = BTreeMap::<String, Naive>::new();
        for line in std::fs::read_to_string(REAL_TRACE).unwrap().lines().skip(1) {
            let (at, key) = line.split_once(',').unwrap();
            let naive = keys.entry(key.to_owned()).or_default();
            let at = naive
                .log
                .last()
                .copied()
                .unwrap_or(0)
                .max(at.parse().unwrap());
            naive.rows += 1;
            if naive.log.iter().filter(|past| at - **past < window).count() < max {
                naive.log.push(at);
            } else {
                naive.denied += 1;
            }
        }
        let (rows, denied): (u64, u64) = keys
            .values()
            .fold((0, 0), |sum, key| (sum.0 + key.rows, sum.1 + key.denied));
        assert!(rows == 10_000 && denied > 0);

        let limit = format!("{max}/{window}s");
        let summary = stdout_of(&["replay", "--limit", &limit, REAL_TRACE], "");
        let words: Vec<Vec<&str>> = summary
            .lines()
            .map(|line| line.split_whitespace().collect())
            .collect();
        let number = |name: &str| {
            words
                .iter()
                .find(|line| line.first() == Some(&name))
                .unwrap()[1]
                .to_owned()
        };
        assert_eq!(number("rows"), rows.to_string());
        assert_eq!(number("keys"), keys.len().to_string());
        assert_eq!(number("allowed"), (rows - denied).to_string());
        assert_eq!(number("denied"), denied.to_string());
        assert_eq!(number("errors"), "0");
        assert!(
            summary.contains("17 May 2015 10:05:00 UTC to 20 May 2015 21:05:59 UTC (3d 11h)"),
            "{summary}"
        );

        let top = |rank: fn(&Naive) -> (u64, u64)| {
            let mut all: Vec<_> = keys.iter().collect();
            all.sort_by_key(|(key, naive)| (std::cmp::Reverse(rank(naive)), (*key).clone()));
            all.truncate(5);
            let line = |(key, naive): (&String, &Naive)| {
                [
                    key.clone(),
                    naive.rows.to_string(),
                    naive.denied.to_string(),
                ]
            };
            all.into_iter().map(line).collect::<Vec<_>>()
        };
        let table = |title: &str| {
            let start = summary
                .lines()
                .position(|line| line.starts_with(title))
                .unwrap();
            let line = |words: &Vec<&str>| [0, 1, 2].map(|i| words[i].to_owned());
            words[start + 1..start + 6]
                .iter()
                .map(line)
                .collect::<Vec<_>>()
        };
        assert_eq!(
            table("busiest keys"),
            top(|naive| (naive.rows, naive.denied))
        );
        assert_eq!(
            table("most denied keys"),
            top(|naive| (naive.denied, naive.rows))
        );
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
