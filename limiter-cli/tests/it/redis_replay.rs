//! Replays through real servers.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use limiter_testkit::server::{Cluster, Server};

use crate::common::{REAL_TRACE, golden_args, limiter, plain_traces, stdout_of, text};

/// Asserts that replays in memory and in Redis have the same output, messages and exit status.
fn compare(url: &str, args: &[&str], trace: &str) -> String {
    let memory = limiter(args, trace);
    let redis = limiter(&[args, &["--store", url]].concat(), trace);
    assert!(memory.stdout == redis.stdout, "{args:?}: the output differs");
    assert_eq!((memory.status.code(), text(&memory.stderr)), (redis.status.code(), text(&redis.stderr)), "{args:?}");
    text(&redis.stdout)
}

fn compare_all(url: &str) {
    let mut rows = 0;
    for trace in plain_traces() {
        let args = golden_args(trace);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        rows += compare(url, &args, &trace.csv("k")).lines().count();
    }
    assert!(rows > 80, "only {rows} rows: golden traces are missing");

    let jsonl = ["replay", "--output", "jsonl", "--limit", "30/60s"];
    for more in [
        &[][..],
        &["--limit", "5/5s", "--limit", "100/1h"],
        &["--count", "attempts", "--limit", "20/1h"],
        &["--limit", "60/1h~1m", "--limit", "100/1d~1h"],
    ] {
        let out = compare(url, &[&jsonl, more, &[REAL_TRACE]].concat(), "");
        assert_eq!(out.lines().count(), 10_000);
        assert!(out.contains(r#""allowed":false"#) && out.contains(r#""allowed":true"#));
    }

    let out = compare(url, &jsonl, &mixed());
    for part in [r#""op":"reset""#, r#""op":"peek""#, r#""op":"record""#, "invalid_cost", "cost_exceeds_limit"] {
        assert!(out.contains(part), "{part}");
    }
    // A malformed row in the third batch: all rows before it are printed.
    let broken = format!("{}5,k,one,acquire\n6,k,1,acquire\n", mixed());
    let out = compare(url, &jsonl, &broken);
    assert_eq!(out.lines().count(), 3_000);
    let out = compare(url, &[&jsonl[..], &["--skip-invalid"]].concat(), &broken);
    assert_eq!(out.lines().count(), 3_001);
}

/// Returns rows with every operation on unusual keys. Some rows are late.
fn mixed() -> String {
    let mut trace = "at,key,cost,op\n".to_owned();
    for i in 0..3_000_u64 {
        let op = ["acquire", "record", "peek", "acquire", "acquire", "acquire", "reset"][(i * 7 % 61 % 7) as usize];
        let key = ["a", "b}", "%c", "", "\u{1F980}"][(i * i % 7 % 5) as usize];
        writeln!(trace, "{}.5,{key},{},{op}", i / 7 + i % 5, [1, 1, 2, 9, 0, 31][(i % 6) as usize]).unwrap();
    }
    trace
}

fn keys(server: &Server) -> i64 {
    server.command(&["DBSIZE"]).unwrap().int()
}

#[test]
fn the_output_equals_that_of_memory_and_no_key_remains() {
    let server = Server::start().unwrap();
    server.command(&["SET", "limiter-replay:other", "1"]).unwrap();
    server.command(&["ZADD", "limiter:{replay:k}", "1", "member"]).unwrap();
    compare_all(&server.url());
    assert_eq!(keys(&server), 2);
    let socket = format!("redis+unix://{}", server.socket().display());
    compare(&socket, &["replay", "--output", "jsonl", "--limit", "30/60s", REAL_TRACE], "");
    assert_eq!(keys(&server), 2);
    assert_eq!(server.info_number("stats", "expired_keys").unwrap(), 0);
}

#[test]
fn the_output_of_a_cluster_equals_that_of_memory_and_no_key_remains() {
    let cluster = Cluster::start().unwrap();
    compare_all(&cluster.url());
    for node in cluster.nodes() {
        assert_eq!(keys(node), 0);
        assert!(node.info("commandstats").unwrap().contains("cmdstat_evalsha"), "a master ran no script");
    }
}

fn start(url: &str, output: &str) -> Child {
    crate::common::start(&["replay", "--limit", "3/60s", "--output", output, "--store", url])
}

/// Returns a few batches of rows, more than format detection reads.
fn rows() -> String {
    "at,key\n".to_owned() + &(0..10_000).map(|i| format!("{i},key-{}\n", i % 50)).collect::<String>()
}

fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(20);
    while !done() {
        assert!(Instant::now() < until, "timed out waiting for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn no_key_remains_if_a_replay_ends_early() {
    let server = Server::start().unwrap();
    server.command(&["SET", "other", "1"]).unwrap();

    // With JSON, the program waits for a reader of its output.
    for (signal, output) in [("INT", "summary"), ("TERM", "summary"), ("INT", "jsonl")] {
        let mut child = start(&server.url(), output);
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(rows().as_bytes()).unwrap();
        stdin.flush().unwrap();
        // The program is now waiting for more input, or for its reader.
        wait_for("keys", || keys(&server) > 50);
        let killed = Command::new("kill").args([format!("-{signal}"), child.id().to_string()]).status().unwrap();
        assert!(killed.success());
        wait_for("the end", || child.try_wait().unwrap().is_some());
        drop(stdin);
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(if signal == "INT" { 130 } else { 143 }));
        assert_eq!(text(&output.stderr), "limiter: interrupted\n");
        assert_eq!(keys(&server), 1);
    }

    // The reader of the output closes it.
    let mut child = start(&server.url(), "jsonl");
    let mut stdin = child.stdin.take().unwrap();
    let feeder = std::thread::spawn(move || {
        drop(stdin.write_all((rows() + &rows()[7..].repeat(50)).as_bytes()));
    });
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("{\"at_us\":0"), "{line}");
    assert_eq!(child.wait().unwrap().code(), Some(0));
    feeder.join().unwrap();
    assert_eq!(keys(&server), 1);
}

#[test]
fn a_server_that_dies_or_forgets_ends_the_replay() {
    type Fault = fn(&mut Server);
    let faults: [(Fault, &str, &str); 2] = [
        (Server::kill, "limiter: keys that start with limiter-replay:", ""),
        // The expired log of a slow replay looks the same, as do an evicted one and a restarted server.
        (
            |server| server.expect_ok(&["FLUSHALL"]).unwrap(),
            "limiter: standard input",
            "Redis has lost entries of the key key-",
        ),
    ];
    for (fault, first, last) in faults {
        let mut server = Server::start().unwrap();
        let mut child = start(&server.url(), "jsonl");
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(rows().as_bytes()).unwrap();
        let mut stdout = child.stdout.take().unwrap();
        let reader = std::thread::spawn(move || {
            let mut out = String::new();
            stdout.read_to_string(&mut out).map(|_| out)
        });
        wait_for("keys", || keys(&server) >= 50);
        fault(&mut server);
        let began = Instant::now();
        // The program may exit before it has read all input.
        let more = rows()[7..].to_owned();
        drop(stdin.write_all(more.as_bytes()));
        drop(stdin);
        let mut message = String::new();
        child.stderr.take().unwrap().read_to_string(&mut message).unwrap();
        let code = child.wait().unwrap().code();
        assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
        assert_eq!(code, Some(1), "{message}");
        assert!(message.starts_with(first), "{message}");
        let row = message.lines().last().unwrap();
        assert!(row.starts_with("limiter: standard input: deciding on row ") && row.contains(last), "{message}");
        let row: usize = row.split(' ').nth(6).unwrap().parse().unwrap();
        // What was printed is what memory prints.
        let memory = stdout_of(&["replay", "--limit", "3/60s", "--output", "jsonl"], rows() + &more);
        assert!(reader.join().unwrap().unwrap().lines().eq(memory.lines().take(row - 1)));
    }
}
