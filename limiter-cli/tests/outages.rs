//! The recommended stack while a real server hangs, seen from outside by `limiter load`.
//!
//! These tests assert times, so they run one after the other, in a test program that runs nothing else.

mod common;

use std::thread;
use std::time::Duration;

use common::{limiter, text};
use limiter_testkit::server::Server;
use serde_json::Value;
use testbed::alone;

/// The limit, in units within the window.
const MAX: u64 = 20;
/// The timeout and the pause of the recommended stack, in microseconds.
const TIMEOUT: u64 = 300_000;

/// What a load of nine seconds saw of a server that hangs from its third second to its sixth.
struct Seen {
    seconds: Vec<Value>,
    whole: Value,
    messages: String,
}

fn load(outage: &str) -> Seen {
    let _alone = alone();
    let server = Server::start().unwrap();
    let url = server.url();
    let args = ["load", "--store", &url, "--limit", "20/1s", "--rate", "100", "--seconds", "9", "--output", "jsonl"];
    let stack = ["--stack", "recommended", "--outage", outage];
    let output = thread::scope(|scope| {
        let load = scope.spawn(|| limiter(&[&args[..], &stack].concat(), ""));
        thread::sleep(Duration::from_millis(2500));
        server.pause().unwrap();
        thread::sleep(Duration::from_secs(3));
        server.resume().unwrap();
        load.join().unwrap()
    });
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let mut seconds: Vec<Value> =
        text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let whole = seconds.pop().unwrap();
    Seen { seconds, whole, messages: text(&output.stderr) }
}

impl Seen {
    fn count(&self, second: usize, name: &str) -> u64 {
        self.seconds[second - 1][name].as_u64().unwrap()
    }

    fn total(&self, name: &str) -> u64 {
        self.whole[name].as_u64().unwrap()
    }

    /// Asserts what every policy promises: bounded time, one report, and exact limits afterwards.
    fn assert_bounded(&self) {
        assert!(self.total("p99_us") < TIMEOUT + 20_000, "{}", self.whole);
        assert!(self.total("max_us") < 2 * TIMEOUT, "{}", self.whole);
        let mut open: Vec<u64> = (4..=5).map(|second| self.count(second, "p99_us")).collect();
        open.sort_unstable();
        assert!(open[0] < 1000, "with the breaker open: {open:?}");
        assert_eq!(self.whole["errors"], serde_json::json!({}));
        assert_eq!(self.messages.lines().count(), 2, "{}", self.messages);
        assert!(self.messages.contains("is away") && self.messages.contains("is back"), "{}", self.messages);
        // The breaker tries once a second, and what timed out may still have counted once.
        assert!((1..=2 * MAX).contains(&self.count(8, "allowed")), "{:?}", self.seconds);
    }
}

#[test]
fn fail_closed_never_admits_too_much() {
    let seen = load("closed");
    seen.assert_bounded();
    assert_eq!(seen.total("worst_window"), MAX, "{}", seen.whole);
    assert_eq!((seen.count(4, "allowed"), seen.count(5, "allowed")), (0, 0), "{:?}", seen.seconds);
}

#[test]
fn fail_open_admits_everything_until_the_server_is_back() {
    let seen = load("open");
    seen.assert_bounded();
    assert!(seen.total("worst_window") > 3 * MAX, "{}", seen.whole);
    // Denials from before the outage are answered until the window frees a unit.
    assert!(seen.count(4, "denied") < MAX && seen.count(5, "denied") == 0, "{:?}", seen.seconds);
}

#[test]
fn a_fallback_admits_the_limit_once_more() {
    let seen = load("fallback");
    seen.assert_bounded();
    assert!((MAX..=2 * MAX).contains(&seen.total("worst_window")), "{}", seen.whole);
    let during = seen.count(4, "allowed") + seen.count(5, "allowed");
    assert!((MAX..=3 * MAX).contains(&during), "{during} in two seconds of an outage");
}
