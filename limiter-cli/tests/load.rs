//! `limiter load`.

mod common;

use std::process::{Command, Output};
use std::thread;
use std::time::Duration;

use common::{failure, limiter, stdout_of, text};
use limiter_testkit::server::Server;
use serde_json::Value;

fn figures(output: &Output) -> Value {
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    serde_json::from_str(text(&output.stdout).lines().last().unwrap()).unwrap()
}

fn count(figures: &Value, name: &str) -> u64 {
    figures[name].as_u64().unwrap_or_else(|| panic!("{name} in {figures}"))
}

fn signal(server: &Server, signal: &str) {
    let sent = Command::new("kill").args([format!("-{signal}"), server.pid().to_string()]).status().unwrap();
    assert!(sent.success());
}

#[test]
fn in_memory_one_window_admits_exactly_the_limit() {
    let out = stdout_of(&["load", "--limit", "100/1h", "--seconds", "1.5", "--rate", "1000", "--output", "jsonl"], "");
    let lines: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let (second, whole) = (&lines[0], &lines[1]);
    assert_eq!((lines.len(), count(second, "second")), (2, 1));
    assert_eq!((count(whole, "allowed"), count(whole, "worst_window")), (100, 100));
    let decisions = count(whole, "allowed") + count(whole, "denied");
    assert!((1400..=1501).contains(&decisions), "{decisions}");
    assert!(count(second, "denied") < count(whole, "denied"));
    let names = ["p50_us", "p99_us", "p999_us", "max_us"];
    assert!(names.windows(2).all(|pair| count(whole, pair[0]) <= count(whole, pair[1])), "{whole}");
    assert_eq!(whole["errors"], serde_json::json!({}));
    let text = out.lines().last().unwrap();
    let order =
        ["allowed", "denied", "errors", "decisions_per_s", "p50_us", "p99_us", "p999_us", "max_us", "worst_window"];
    let places: Vec<_> = order.iter().map(|name| text.find(&format!("\"{name}\":")).unwrap()).collect();
    assert!(places.is_sorted(), "{text}");
}

#[test]
fn the_cost_and_every_limit_count() {
    let args = ["load", "--limit", "1000/1s", "--limit", "90/1h", "--cost", "30", "--keys", "2", "--seconds", "0.5"];
    let summary = stdout_of(&args, "");
    assert!(summary.contains("allowed                    6\n"), "{summary}");
    assert!(summary.contains("worst window              90  of 90/1h: within the limit\n"), "{summary}");
}

#[test]
fn several_processes_share_the_limit_of_one_server() {
    let server = Server::start().unwrap();
    let run = || {
        let url = server.url();
        let shared = ["load", "--store", &url, "--prefix", "shared", "--limit", "500/1h", "--tasks", "20"];
        figures(&limiter(&[&shared[..], &["--seconds", "2", "--output", "jsonl"]].concat(), ""))
    };
    let all: Vec<Value> = thread::scope(|scope| {
        let running: Vec<_> = (0..3).map(|_| scope.spawn(run)).collect();
        running.into_iter().map(|run| run.join().unwrap()).collect()
    });
    assert_eq!(all.iter().map(|figures| count(figures, "allowed")).sum::<u64>(), 500, "{all:?}");
    assert!(all.iter().all(|figures| count(figures, "denied") > 0), "{all:?}");
}

#[test]
fn the_logs_are_removed_at_the_end() {
    let server = Server::start().unwrap();
    let args = ["load", "--store", &server.url(), "--limit", "5/1h", "--keys", "50", "--seconds", "1"];
    let summary = stdout_of(&args, "");
    assert!(summary.contains("allowed                  250\n"), "{summary}");
    assert!(!server.info("keyspace").unwrap().contains("db0"));
}

#[test]
fn calls_to_a_frozen_server_time_out_and_count_as_errors() {
    let server = Server::start().unwrap();
    let url = server.url();
    let args = ["load", "--store", &url, "--limit", "10/1h", "--rate", "50", "--seconds", "3", "--output", "jsonl"];
    let figures = thread::scope(|scope| {
        let load = scope.spawn(|| figures(&limiter(&args, "")));
        thread::sleep(Duration::from_secs(1));
        signal(&server, "STOP");
        let figures = load.join().unwrap();
        signal(&server, "CONT");
        figures
    });
    assert!(count(&figures["errors"], "timeout") > 0, "{figures}");
    assert_eq!(count(&figures, "allowed"), 10);
}

#[test]
fn wrong_usage_is_reported() {
    for (args, expected) in [
        (&["load"][..], "--limit <MAX/WINDOW>"),
        (&["load", "--limit", "10/1s", "--cost", "11"], "expected a cost of at most 10, found 11"),
        (&["load", "--limit", "10/1s", "--rate", "0"], "expected a rate above 0, found 0"),
        (&["load", "--limit", "10/1s", "--seconds", "nan"], "expected seconds above 0, found NaN"),
        (&["load", "--limit", "10/1s", "--skew=-1"], "expected a skew of at least 0, found -1"),
        (&["load", "--limit", "10/1s", "--store", "http://x"], "expected memory, or a URL"),
    ] {
        let (status, error) = failure(args, "");
        assert!(status == 2 && error.contains(expected), "{args:?}: {status}: {error}");
    }
}
