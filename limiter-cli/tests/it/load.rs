//! `limiter load`, and the recommended stack while a real server hangs, seen from outside by it.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Output};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use limiter_testkit::server::Server;
use serde_json::{Value, json};

use crate::common::{limiter, start, stdout_of, text};

fn figures(output: &Output) -> Value {
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    serde_json::from_str(text(&output.stdout).lines().last().unwrap()).unwrap()
}

fn count(figures: &Value, name: &str) -> u64 {
    figures[name].as_u64().unwrap_or_else(|| panic!("{name} in {figures}"))
}

/// A load of at most a minute, whose output is read while it runs.
struct Running {
    child: Child,
    figures: Receiver<String>,
    messages: Receiver<String>,
}

impl Running {
    fn start(server: &Server, args: &[&str]) -> Self {
        let url = server.url();
        let all = ["load", "--store", &url, "--seconds", "60", "--output", "jsonl"];
        let mut child = start(&[&all[..], args].concat());
        let (figures, messages) = (lines(child.stdout.take().unwrap()), lines(child.stderr.take().unwrap()));
        Self { child, figures, messages }
    }

    /// Waits for the next second's figures.
    fn next(&self) -> Value {
        serde_json::from_str(&self.figures.recv_timeout(Duration::from_secs(60)).unwrap()).unwrap()
    }

    /// Waits for two seconds that begin after this call, and returns their figures.
    fn two_seconds(&self) -> [Value; 2] {
        self.figures.try_iter().for_each(drop);
        // The second under way, and one that ended just now.
        let _ = (self.next(), self.next());
        [self.next(), self.next()]
    }

    fn wait_for(&self, message: &str) {
        let found = self.messages.recv_timeout(Duration::from_secs(60)).unwrap();
        assert!(found.contains(message), "{found}");
    }

    /// Interrupts the load, and returns the figures of all of it and the remaining messages.
    fn stop(mut self) -> (Value, Vec<String>) {
        assert!(Command::new("kill").args(["-INT", &self.child.id().to_string()]).status().unwrap().success());
        assert_eq!(self.child.wait().unwrap().code(), Some(130));
        (serde_json::from_str(&self.figures.iter().last().unwrap()).unwrap(), self.messages.iter().collect())
    }
}

fn lines(stream: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, lines) = channel();
    thread::spawn(move || BufReader::new(stream).lines().try_for_each(|line| sender.send(line.unwrap())));
    lines
}

#[test]
fn in_memory_one_window_admits_exactly_the_limit() {
    let out = stdout_of(&["load", "--limit", "100/1h", "--seconds", "2.5", "--rate", "400", "--output", "jsonl"], "");
    let lines: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let (whole, seconds) = lines.split_last().unwrap();
    assert!(!seconds.is_empty() && seconds.iter().zip(1..).all(|(line, n)| count(line, "second") == n), "{out}");
    assert_eq!((count(whole, "allowed"), count(whole, "worst_window")), (100, 100));
    assert!(count(whole, "denied") <= 900, "the rate is exceeded: {whole}");
    assert!(count(&seconds[0], "denied") < count(whole, "denied"));
    let names = ["p50_us", "p99_us", "p999_us", "max_us"];
    assert!(names.windows(2).all(|pair| count(whole, pair[0]) <= count(whole, pair[1])), "{whole}");
    assert_eq!(whole["errors"], json!({}));
    let text = out.lines().last().unwrap();
    let order =
        ["allowed", "denied", "errors", "decisions_per_s", "p50_us", "p99_us", "p999_us", "max_us", "worst_window"];
    let places: Vec<_> = order.iter().map(|name| text.find(&format!("\"{name}\":")).unwrap()).collect();
    assert!(places.is_sorted(), "{text}");
}

#[test]
fn the_cost_and_every_limit_count() {
    for (args, expected) in [
        (
            "--limit 1000/1s --limit 90/1h --cost 30 --keys 2 --seconds 0.5",
            &["allowed                    6\n", "worst window              90  of 90/1h: within the limit\n"][..],
        ),
        ("--limit 100/1h~1m --seconds 0.5", &["worst window             100  of 100/1h~1m: within the limit\n"]),
        // Units free within the load.
        ("--limit 50/200ms~10ms --seconds 2", &["  of 50/200ms~10ms: within the limit\n"]),
    ] {
        let summary = stdout_of(&[&["load"], &*args.split(' ').collect::<Vec<_>>()].concat(), "");
        assert!(expected.iter().all(|line| summary.contains(line)), "{summary}");
    }
}

#[test]
fn several_processes_share_the_limit_of_one_server() {
    let server = Server::start().unwrap();
    let run = || {
        let url = server.url();
        let shared = ["load", "--store", &url, "--prefix", "shared", "--limit", "100/1h", "--tasks", "20"];
        figures(&limiter(&[&shared[..], &["--seconds", "2", "--output", "jsonl"]].concat(), ""))
    };
    let all: Vec<Value> = thread::scope(|scope| {
        let running: Vec<_> = (0..3).map(|_| scope.spawn(run)).collect();
        running.into_iter().map(|run| run.join().unwrap()).collect()
    });
    assert_eq!(all.iter().map(|figures| count(figures, "allowed")).sum::<u64>(), 100, "{all:?}");
    assert!(all.iter().all(|figures| count(figures, "denied") > 0), "{all:?}");
}

#[test]
fn the_logs_are_removed_at_the_end() {
    let server = Server::start().unwrap();
    let args = ["load", "--store", &server.url(), "--limit", "5/1h", "--keys", "10", "--seconds", "1"];
    let summary = stdout_of(&args, "");
    assert!(summary.contains("allowed                   50\n"), "{summary}");
    assert!(!server.info("keyspace").unwrap().contains("db0"));

    // Also if the reader of the output leaves.
    let args = ["load", "--store", &server.url(), "--limit", "5/1h", "--seconds", "60", "--output", "jsonl"];
    let mut child = start(&args);
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("{\"second\":1,"), "{line}");
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(0));
    assert!(!server.info("keyspace").unwrap().contains("db0"));
}

#[test]
fn calls_to_a_frozen_server_time_out_and_count_as_errors() {
    let server = Server::start().unwrap();
    let load = Running::start(&server, &["--limit", "10/1h", "--rate", "50"]);
    let mut allowed = 0;
    while allowed < 10 {
        allowed += count(&load.next(), "allowed");
    }
    server.pause().unwrap();
    while load.next()["errors"]["timeout"].is_null() {}
    server.resume().unwrap();
    let (whole, _) = load.stop();
    assert!(count(&whole["errors"], "timeout") > 0, "{whole}");
    assert_eq!(count(&whole, "allowed"), 10);
}

/// Lets a server hang under a load of 100 calls per second, and asserts what every recommended stack promises: bounded
/// time, one report, and exact limits afterwards. Returns the figures of two seconds of the outage and of the whole.
fn outage(stack: &str) -> ([Value; 2], Value) {
    // The timeout of the recommended stack, in microseconds.
    const TIMEOUT: u64 = 300_000;
    let server = Server::start().unwrap();
    let stack = ["--stack", "recommended", "--outage", stack];
    let load = Running::start(&server, &[&["--limit", "20/1s", "--rate", "100"], &stack[..]].concat());
    let _ = load.two_seconds();
    server.pause().unwrap();
    load.wait_for("is away");
    let during = load.two_seconds();
    server.resume().unwrap();
    load.wait_for("is back");
    let [after, _] = load.two_seconds();
    let (whole, messages) = load.stop();

    assert!(count(&whole, "max_us") < 2 * TIMEOUT, "{whole}");
    assert!(during.iter().all(|second| count(second, "p50_us") < TIMEOUT), "with the breaker open: {during:?}");
    assert_eq!((&whole["errors"], messages), (&json!({}), vec![]));
    // What timed out may still have counted once.
    assert!((1..=2 * MAX).contains(&count(&after, "allowed")), "{after}");
    (during, whole)
}

/// The limit of the load, in units within a second.
const MAX: u64 = 20;

#[test]
fn fail_closed_never_admits_too_much() {
    let (during, whole) = outage("closed");
    assert_eq!(count(&whole, "worst_window"), MAX, "{whole}");
    assert_eq!(during.each_ref().map(|second| count(second, "allowed")), [0, 0], "{during:?}");
}

#[test]
fn fail_open_admits_everything_until_the_server_is_back() {
    let (during, whole) = outage("open");
    assert!(count(&whole, "worst_window") > 3 * MAX, "{whole}");
    // Denials from before the outage are answered until the window frees a unit.
    let [first, second] = during.each_ref().map(|second| count(second, "denied"));
    assert!(first < MAX && second == 0, "{during:?}");
}

#[test]
fn a_fallback_admits_the_limit_once_more() {
    let (during, whole) = outage("fallback");
    assert!((MAX..=2 * MAX).contains(&count(&whole, "worst_window")), "{whole}");
    let during: u64 = during.iter().map(|second| count(second, "allowed")).sum();
    assert!((MAX..=3 * MAX).contains(&during), "{during} in two seconds of an outage");
}
