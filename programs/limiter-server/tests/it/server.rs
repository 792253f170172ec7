//! Starts the program, and talks to it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

/// How long anything may take that a test waits for.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// The variables that let a server choose free ports.
pub(crate) const PORTS: [(&str, &str); 3] = [
    ("LIMITER_GRPC", "127.0.0.1:0"),
    ("LIMITER_HTTP", "127.0.0.1:0"),
    ("LIMITER_ADMIN", "127.0.0.1:0"),
];

/// A running server, which is killed at the end of the test.
pub(crate) struct Server {
    pub(crate) grpc: SocketAddr,
    pub(crate) http: SocketAddr,
    pub(crate) admin: SocketAddr,
    process: Child,
    folder: TempDir,
    /// What it has logged.
    log: Arc<Mutex<Vec<String>>>,
}

impl Server {
    /// Starts a server with this configuration on free ports.
    pub(crate) fn start(config: &str, args: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("limits.yaml");
        std::fs::write(&path, config).unwrap();
        Self::start_with(&path, folder, args)
    }

    /// Starts a server with the configuration at `path`, which is in `folder`.
    pub(crate) fn start_with(path: &Path, folder: TempDir, args: &[&str]) -> Self {
        let mut command = Command::new(program());
        command.arg("--config").arg(path).args(args);
        Self::run(command, folder)
    }

    /// Runs a command that starts a server on free ports, whose configuration is in `folder`.
    pub(crate) fn run(mut command: Command, folder: TempDir) -> Self {
        let has_port = |name: &str| command.get_envs().any(|(known, _)| known == name);
        let free = PORTS.into_iter().filter(|(name, _)| !has_port(name));
        let free: Vec<_> = free.collect();
        let mut process = command.envs(free).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(process.stderr.take().unwrap()).lines();
        let log = Arc::new(Mutex::new(Vec::new()));
        let written = Arc::clone(&log);
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
                // A Unix socket has none.
                return address.parse().unwrap_or(([0; 4], 0).into());
            }
            note(line);
        };
        let grpc = next("grpc");
        let http = next("http");
        let admin = next("admin");
        // Unread output would eventually block the server.
        thread::spawn(move || lines.map_while(Result::ok).for_each(note));
        Self {
            grpc,
            http,
            admin,
            process,
            folder,
            log,
        }
    }

    /// Returns a server that runs already.
    pub(crate) fn adopt(
        process: Child,
        folder: TempDir,
        [grpc, http, admin]: [SocketAddr; 3],
    ) -> Self {
        Self {
            grpc,
            http,
            admin,
            process,
            folder,
            log: Arc::default(),
        }
    }

    /// Returns the path of the configuration.
    pub(crate) fn config(&self) -> PathBuf {
        self.folder.path().join("limits.yaml")
    }

    /// Returns how many logged lines contain `text`.
    pub(crate) fn logged(&self, text: &str) -> usize {
        self.log
            .lock()
            .unwrap()
            .iter()
            .filter(|line| line.contains(text))
            .count()
    }

    /// Returns what it has logged.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.log.lock().unwrap().clone()
    }

    /// Returns a number that the system knows of the process, from a file of `/proc`.
    pub(crate) fn proc(&self, file: &str, name: &str) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/{file}", self.process.id())).unwrap();
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .unwrap();
        line.split_whitespace().next().unwrap().parse().unwrap()
    }

    /// Posts JSON to the HTTP listener.
    pub(crate) fn post(&self, path: &str, body: &str) -> (u16, Value) {
        post(
            self.http,
            path,
            &[("content-type", "application/json; charset=utf-8")],
            body,
        )
    }

    /// Asks as Envoy does, in JSON, about one entry. Returns the status.
    pub(crate) fn ask(&self, key: &str, value: &str) -> u16 {
        let entries = json!([{ "key": key, "value": value }]);
        let body = json!({ "domain": "d", "descriptors": [{ "entries": entries }] });
        self.post("/json", &body.to_string()).0
    }

    /// Gets a text from the admin listener.
    pub(crate) fn admin(&self, path: &str) -> String {
        http(
            self.admin,
            &format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"),
        )
        .1
    }

    /// Returns the status and the text of a health check.
    pub(crate) fn health(&self) -> (u16, String) {
        let request = "GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
        http(self.http, request)
    }

    /// Returns how many requests a rule of the domain `d` has decided on like this.
    pub(crate) fn decisions(&self, rule: &str, outcome: &str) -> Option<f64> {
        let labels = format!(r#"{{domain="d",rule="{rule}",outcome="{outcome}"}}"#);
        self.metric(&format!("limiter_server_decisions_total{labels}"))
    }

    /// Returns how many reloads had this result.
    pub(crate) fn reloads(&self, result: &str) -> Option<f64> {
        let name = "limiter_server_config_reloads_total";
        self.metric(&format!("{name}{{result=\"{result}\"}}"))
    }

    /// Waits until a logged line contains `text`.
    pub(crate) fn until_logged(&self, text: &str) {
        until(text, || (self.logged(text) > 0).then_some(()));
    }

    /// Returns the value of the first metric whose line begins like this.
    pub(crate) fn metric(&self, start: &str) -> Option<f64> {
        let text = self.admin("/metrics");
        let line = text.lines().find(|line| line.starts_with(start))?;
        line.rsplit_once(' ')?.1.parse().ok()
    }

    /// Sends a signal, such as `TERM`.
    pub(crate) fn signal(&self, name: &str) {
        let kill = Command::new("kill")
            .args(["-s", name, &self.process.id().to_string()])
            .status()
            .unwrap();
        assert!(kill.success());
    }

    /// Waits for the end of the process.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        until("the server ends", || self.process.try_wait().unwrap())
    }
}

/// Returns the path of the program. Cargo passes it only to limiter-server's own tests; other crates build into the same folder.
pub(crate) fn program() -> PathBuf {
    if let Some(path) = option_env!("CARGO_BIN_EXE_limiter-server") {
        return path.into();
    }
    let test = std::env::current_exe().unwrap();
    test.ancestors().nth(2).unwrap().join("limiter-server")
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Posts JSON, and returns the status and the answer.
pub(crate) fn post(
    to: SocketAddr,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> (u16, Value) {
    let headers: String = headers
        .iter()
        .map(|(name, value)| format!("{name}: {value}\r\n"))
        .collect();
    let len = body.len();
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{headers}content-length: {len}"
    );
    let (status, body) = http(to, &format!("{head}\r\n\r\n{body}"));
    (status, serde_json::from_str(&body).unwrap_or(Value::Null))
}

/// Sends these bytes, and returns the status and the body of the answer. The status is 0 if there is no answer.
pub(crate) fn http(to: SocketAddr, request: &str) -> (u16, String) {
    let (status, _, body) = exchange(to, request);
    (status, body)
}

/// Like [`http`], and returns the head of the answer between the two.
pub(crate) fn exchange(to: SocketAddr, request: &str) -> (u16, String, String) {
    let mut stream = TcpStream::connect(to).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    // The server may refuse before it has read everything.
    let _ = stream.write_all(request.as_bytes());
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let status = head
        .split(' ')
        .nth(1)
        .map_or(0, |status| status.parse().unwrap());
    (status, head.to_owned(), body.to_owned())
}

/// Waits until there is a value.
pub(crate) fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(began.elapsed() < PATIENCE, "waited too long until {what}");
        thread::sleep(Duration::from_millis(10));
    }
}
