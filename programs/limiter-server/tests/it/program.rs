//! Starts the program.

use std::io::{BufRead, BufReader};
use std::ops::Deref;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::thread;

use serde_json::Value;
use tempfile::TempDir;

use crate::client::{Client, Log, folder, until};

/// The variables that let a server choose free ports.
const PORTS: [(&str, &str); 3] = [
    ("LIMITER_GRPC", "127.0.0.1:0"),
    ("LIMITER_HTTP", "127.0.0.1:0"),
    ("LIMITER_ADMIN", "127.0.0.1:0"),
];

/// A running program, which is killed at the end of the test.
pub(crate) struct Program {
    client: Client,
    process: Child,
}

impl Deref for Program {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl Program {
    /// Starts a server with this configuration on free ports.
    pub(crate) fn start(config: &str, args: &[&str]) -> Self {
        let (mut command, folder) = command(config);
        command.args(args);
        Self::run(command, folder)
    }

    /// Runs a command that starts a server, whose configuration is in `folder`.
    pub(crate) fn run(mut command: Command, folder: TempDir) -> Self {
        let mut process = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(process.stderr.take().unwrap()).lines();
        let log = Log::default();
        let written = Log::clone(&log);
        let note = move |line: String| {
            eprintln!("{line}");
            written.lock().unwrap().push(line);
        };
        let mut next = |name: &str| loop {
            let line = lines.next().expect("the server ended").unwrap();
            let json = serde_json::from_str::<Value>(&line).unwrap_or_default();
            let message = json["message"].as_str();
            let message = message.or(line.strip_prefix("limiter-server: "));
            let address = message.and_then(|message| message.strip_prefix(name)?.strip_prefix(' '));
            if let Some(address) = address {
                return address.to_owned();
            }
            note(line);
        };
        let addresses = ["grpc", "http", "admin"].map(&mut next);
        // Unread output would eventually block the server.
        thread::spawn(move || lines.map_while(Result::ok).for_each(note));
        let client = Client::new(addresses.each_ref().map(|it| &**it), folder, log);
        Self { client, process }
    }

    /// Returns a number that the system knows of the process, from a file of `/proc`.
    pub(crate) fn proc(&self, file: &str, name: &str) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/{file}", self.process.id())).unwrap();
        let mut lines = text.lines();
        let line = lines.find_map(|line| line.strip_prefix(name)).unwrap();
        line.split_whitespace().next().unwrap().parse().unwrap()
    }

    /// Sends a signal, such as `TERM`.
    pub(crate) fn signal(&self, name: &str) {
        signal(&self.process, name);
    }

    /// Ends the program by SIGTERM, and waits.
    pub(crate) fn end(&mut self) -> ExitStatus {
        self.signal("TERM");
        until("the server ends", || self.process.try_wait().unwrap())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Sends a signal, such as `TERM`.
pub(crate) fn signal(process: &Child, name: &str) {
    let id = process.id().to_string();
    let kill = Command::new("kill").args(["-s", name, &id]).status();
    assert!(kill.unwrap().success());
}

/// Returns a command that starts the program on free ports with this configuration, and the configuration's folder.
pub(crate) fn command(config: &str) -> (Command, TempDir) {
    let (folder, path) = folder(config);
    let mut command = Command::new(program());
    command.envs(PORTS).env("LIMITER_CONFIG", path);
    (command, folder)
}

/// Like [`command`], after a command of the shell.
pub(crate) fn limited(limit: &str, config: &str) -> (Command, TempDir) {
    let (server, folder) = command(config);
    let mut limited = Command::new("sh");
    limited.args(["-c", &format!("{limit}; exec \"$0\" \"$@\"")]);
    limited.arg(server.get_program());
    let variables = server.get_envs();
    limited.envs(variables.filter_map(|(name, value)| Some((name, value?))));
    (limited, folder)
}

/// Runs a command that fails. Returns its exit status and its errors.
pub(crate) fn failed(command: &mut Command) -> (Option<i32>, String) {
    let Output { status, stderr, .. } = command.output().unwrap();
    (status.code(), String::from_utf8_lossy(&stderr).into_owned())
}

/// Returns the path of the program. Cargo passes it only to limiter-server's own tests; other crates build into the same folder.
pub(crate) fn program() -> PathBuf {
    if let Some(path) = option_env!("CARGO_BIN_EXE_limiter-server") {
        return path.into();
    }
    let test = std::env::current_exe().unwrap();
    test.ancestors().nth(2).unwrap().join("limiter-server")
}
