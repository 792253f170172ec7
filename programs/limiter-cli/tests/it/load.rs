//! `limiter load`, and the recommended stack while a real server hangs, seen from outside by it.

use std::io::{BufRead, BufReader};
use std::ops::RangeInclusive;
use std::process::{Child, Command};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use testbed::server::{Postgres, Server};

use crate::common::{command, stdout_of, text};

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap()
}

/// Starts a load on the server that `LIMITER_STORE` names, and waits for its first decision.
fn start_on(server: &Server, args: &str) -> Child {
    let mut child = command(&["load"])
        .args(args.split(' '))
        .env("LIMITER_STORE", server.url())
        .spawn()
        .unwrap();
    while !has_keys(server) {
        let ended = child.try_wait().unwrap();
        assert!(ended.is_none(), "the load ended without a decision");
        thread::sleep(Duration::from_millis(5));
    }
    child
}

fn has_keys(server: &Server) -> bool {
    server.info("keyspace").unwrap().contains("db0")
}

/// Waits for the end, and returns the figures and the messages.
fn end(child: Child, status: i32) -> (Value, String) {
    let output = child.wait_with_output().unwrap();
    let messages = text(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{messages}");
    (serde_json::from_slice(&output.stdout).unwrap(), messages)
}

#[test]
fn in_memory_the_worst_window_admits_the_limit() {
    for (args, allowed, units) in [
        ("--tasks 3 --limit 100/1h", 100..=100, 100),
        ("--keys 2 --limit 1000/1s --limit 90/1h", 180..=180, 90),
        ("--counting attempts --limit 100/1h~1m", 100..=100, 100),
        ("--keys 1000 --rate 100 --limit 7/1h", 1..=100, 1),
        // Units become available within the load.
        ("--limit 50/200ms~10ms", 51..=300, 50),
    ] {
        let load = ["load", "--seconds", "1"]
            .into_iter()
            .chain(args.split(' '));
        let out = stdout_of(&load.collect::<Vec<_>>(), "");
        let figures: Value = serde_json::from_str(&out).unwrap();
        let limit = args.rsplit(' ').next();
        let worst = json!({ "units": units, "limit": limit, "within_limit": true });
        assert_eq!(figures["worst_window"], worst, "{args}");
        assert_eq!(figures["errors"], json!({}), "{args}");
        let admitted = number(&figures["allowed"]);
        assert!(allowed.contains(&admitted), "{args}: {figures}");
        let latency = |name| number(&figures["latency_us"][name]);
        let latencies = ["p50", "p99", "p999", "max"].map(latency);
        assert!(latencies.is_sorted(), "{figures}");
        let rate = figures["decisions_per_s"].as_f64();
        assert!(rate > Some(0.0), "{figures}");
    }
}

#[test]
fn the_logs_are_removed_at_the_end_even_if_the_reader_leaves() {
    let server = Server::start().unwrap();
    for leaves in [false, true] {
        let mut child = start_on(&server, "--limit 5/1h --keys 10 --seconds 1");
        if leaves {
            drop(child.stdout.take());
            assert_eq!(child.wait_with_output().unwrap().status.code(), Some(0));
        } else {
            assert_eq!(number(&end(child, 0).0["allowed"]), 50);
        }
        assert!(!has_keys(&server));
    }
}

#[test]
fn calls_to_a_frozen_server_time_out_and_count_as_errors() {
    let server = Server::start().unwrap();
    let load = start_on(&server, "--limit 10/1h --rate 50 --seconds 5");
    server.pause().unwrap();
    let (figures, messages) = end(load, 0);
    server.resume().unwrap();
    assert!(number(&figures["errors"]["timeout"]) > 0, "{figures}");
    assert!((1..=10).contains(&number(&figures["allowed"])), "{figures}");
    let longest = number(&figures["latency_us"]["max"]);
    assert!(longest >= 2_000_000, "{figures}");
    let remain = "the load's keys remain until they expire";
    assert!(messages.contains(remain), "{messages}");
}

#[test]
fn on_postgres_the_worst_window_admits_the_limit() {
    let postgres = Postgres::start().unwrap();
    let url = postgres.url();
    let load = |args: &str| {
        let args = [
            &["load", "--store", &url][..],
            &args.split(' ').collect::<Vec<_>>(),
        ]
        .concat();
        serde_json::from_str::<Value>(&stdout_of(&args, "")).unwrap()
    };
    let figures = load("--limit 100/1h --keys 3 --seconds 1 --on-outage error");
    assert_eq!(
        (&figures["allowed"], &figures["worst_window"]["units"]),
        (&json!(300), &json!(100)),
        "{figures}"
    );
    // No log is left.
    assert_eq!(
        stdout_of(&["key", "list", "--store", &url], "")
            .lines()
            .count(),
        1
    );
}

#[test]
fn leases_admit_no_more_than_the_limit() {
    let server = Server::start().unwrap();
    let args = "--limit 1000/1s+100ms --rate 2000 --seconds 3 --on-outage error";
    let (figures, _) = end(start_on(&server, args), 0);
    let worst = &figures["worst_window"];
    assert_eq!(worst["within_limit"], json!(true), "{figures}");
    assert_eq!(worst["limit"], json!("1000/1s+100ms"), "{figures}");
    assert!(number(&figures["allowed"]) > 1_000, "{figures}");
}

/// Lets a server hang under a load of 100 calls per second, and asserts what every recommended stack promises: bounded
/// time, one report, no errors, and a worst window in this range.
fn outage(behaviour: &str, worst: &RangeInclusive<u64>) {
    // The timeout of the recommended stack, in microseconds.
    const TIMEOUT: u64 = 300_000;
    const TWO_WINDOWS: Duration = Duration::from_secs(2);
    let server = Server::start().unwrap();
    let args = format!("--limit 20/1s --rate 100 --seconds 60 --on-outage {behaviour}");
    let mut load = start_on(&server, &args);
    let messages = BufReader::new(load.stderr.take().unwrap());
    let mut messages = messages.lines().map(Result::unwrap);
    thread::sleep(TWO_WINDOWS);
    server.pause().unwrap();
    assert!(messages.next().unwrap().contains("store unavailable"));
    thread::sleep(TWO_WINDOWS);
    server.resume().unwrap();
    assert!(messages.next().unwrap().contains("store available after"));
    thread::sleep(TWO_WINDOWS);
    let mut kill = Command::new("kill");
    let interrupted = kill.args(["-INT", &load.id().to_string()]).status();
    assert!(interrupted.unwrap().success());
    let (figures, _) = end(load, 130);
    assert_eq!((&figures["errors"], messages.next()), (&json!({}), None));
    let units = number(&figures["worst_window"]["units"]);
    assert!(worst.contains(&units), "{behaviour}: {figures}");
    let [p50, max] = ["p50", "max"].map(|name| number(&figures["latency_us"][name]));
    assert!(p50 < TIMEOUT && max < 2 * TIMEOUT, "{behaviour}: {figures}");
    assert!(!has_keys(&server));
}

#[test]
fn the_worst_window_of_an_outage() {
    // Fail closed never admits too much, a fallback admits the limit once more, and fail open admits everything.
    thread::scope(|scope| {
        scope.spawn(|| outage("closed", &(20..=20)));
        scope.spawn(|| outage("fallback", &(20..=40)));
        scope.spawn(|| outage("open", &(61..=u64::MAX)));
    });
}
