//! Helpers that run the compiled program.

use std::io::Write;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

const TIMEOUT: Duration = Duration::from_secs(60);

/// Returns `limiter` with these arguments. All its streams are pipes, and no store comes from the environment.
pub(crate) fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_limiter"));
    command
        .args(args)
        .env_remove("LIMITER_STORE")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Starts `limiter` with these arguments.
pub(crate) fn start(args: &[&str]) -> Child {
    command(args).spawn().unwrap()
}

/// Runs `limiter` with these arguments and this standard input.
pub(crate) fn limiter(args: &[&str], input: impl AsRef<[u8]>) -> Output {
    let mut child = start(args);
    let mut stdin = child.stdin.take().unwrap();
    let input = input.as_ref().to_vec();
    // A program that rejects its arguments closes its input early, so this write may fail.
    let feeder = thread::spawn(move || drop(stdin.write_all(&input)));
    let id = child.id();
    let output = output_in_time(child, args);
    feeder.join().unwrap();
    assert_ne!(
        output.status.code(),
        None,
        "process {id} was killed by a signal: {args:?}"
    );
    output
}

fn output_in_time(child: Child, args: &[&str]) -> Output {
    let started = Instant::now();
    let id = child.id();
    let waiter = thread::spawn(move || child.wait_with_output().unwrap());
    while !waiter.is_finished() {
        assert!(
            started.elapsed() < TIMEOUT,
            "limiter {args:?} (process {id}) hangs"
        );
        thread::sleep(Duration::from_millis(1));
    }
    waiter.join().unwrap()
}

/// Runs `limiter`, asserts that it succeeds, and returns its standard output.
pub(crate) fn stdout_of(args: &[&str], input: impl AsRef<[u8]>) -> String {
    let output = limiter(args, input);
    assert_eq!(
        output.status.code(),
        Some(0),
        "{args:?}: {}",
        text(&output.stderr)
    );
    text(&output.stdout)
}

/// Replays a trace and returns the parsed lines of JSON.
pub(crate) fn jsonl(limit: &str, trace: impl AsRef<[u8]>) -> Vec<serde_json::Value> {
    let out = stdout_of(&["replay", "--limit", limit, "--output", "jsonl"], trace);
    out.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// Runs `limiter` and returns its exit status and its standard error.
pub(crate) fn failure(args: &[&str], input: impl AsRef<[u8]>) -> (i32, String) {
    let output = limiter(args, input);
    (output.status.code().unwrap(), text(&output.stderr))
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

pub(crate) const REAL_TRACE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/data/access.csv");
