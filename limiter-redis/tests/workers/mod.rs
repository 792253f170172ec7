//! Runs one test in several processes at once.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// The environment variable with the number of a worker process and the URL of its server.
const WORKER_VARIABLE: &str = "LIMITER_TEST_WORKER";
/// How long all processes together may take.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Starts every line that a process reports, because the test harness prints lines too.
const REPORT_PREFIX: &str = "worker:";

/// The work of this process.
pub(crate) struct Worker {
    pub(crate) number: u64,
    pub(crate) url: String,
}

impl Worker {
    /// Returns the work of this process, if a test started it as a worker.
    pub(crate) fn of_this_process() -> Option<Self> {
        let text = std::env::var(WORKER_VARIABLE).ok()?;
        let (number, url) = text.split_once(' ').expect("a number and a URL");
        Some(Self { number: number.parse().expect("the worker's number"), url: url.to_owned() })
    }

    /// Reports that this process is ready, and waits until all others are.
    pub(crate) fn wait_for_all(&self) {
        self.report("ready");
        std::io::stdin().lock().read_line(&mut String::new()).expect("the start");
    }

    /// Reports one line to the parent.
    pub(crate) fn report(&self, line: impl std::fmt::Display) {
        // The harness prints the name of the test without a line break after it.
        writeln!(std::io::stdout().lock(), "\n{REPORT_PREFIX}{line}").expect("the parent listens");
    }
}

struct Process {
    child: Child,
    start: ChildStdin,
    lines: Receiver<String>,
}

impl Process {
    fn start(test: &str, number: usize, url: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().expect("the program of the test"))
            .args([test, "--exact", "--nocapture"])
            .env(WORKER_VARIABLE, format!("{number} {url}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("another process");
        let (sender, lines) = channel();
        let stdout = BufReader::new(child.stdout.take().expect("a pipe"));
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                if let Some(line) = line.strip_prefix(REPORT_PREFIX) {
                    let _ = sender.send(line.to_owned());
                }
            }
        });
        Self { start: child.stdin.take().expect("a pipe"), child, lines }
    }

    /// Returns the lines that the process reports until it ends.
    fn finish(&mut self, until: Instant) -> Vec<String> {
        let left = || until.saturating_duration_since(Instant::now());
        let lines = std::iter::from_fn(|| self.lines.recv_timeout(left()).ok()).collect();
        while Instant::now() < until {
            if let Some(status) = self.child.try_wait().expect("the state of the process") {
                assert!(status.success(), "a process failed: {status}");
                return lines;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("a process did not end within {TIMEOUT:?}");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs `test` in `count` processes, which start their work at the same time, and returns what they report.
pub(crate) fn run(test: &str, count: usize, url: &str) -> Vec<String> {
    let until = Instant::now() + TIMEOUT;
    let mut processes: Vec<Process> = (0..count).map(|number| Process::start(test, number, url)).collect();
    for process in &processes {
        let ready = process.lines.recv_timeout(until.saturating_duration_since(Instant::now()));
        assert_eq!(ready.expect("every process gets ready"), "ready");
    }
    for process in &mut processes {
        process.start.write_all(b"\n").expect("the process waits for the start");
    }
    processes.iter_mut().flat_map(|process| process.finish(until)).collect()
}
