//! Talks to a server.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

/// How long anything may take that a test waits for.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// The lines that a server has logged.
pub(crate) type Log = Arc<Mutex<Vec<String>>>;

/// A server's client.
pub(crate) struct Client {
    pub(crate) grpc: SocketAddr,
    pub(crate) http: SocketAddr,
    pub(crate) admin: SocketAddr,
    pub(crate) folder: TempDir,
    pub(crate) log: Log,
    /// Metrics that are not on the admin listener.
    pub(crate) metrics: Box<dyn Fn() -> String + Send + Sync>,
}

impl Client {
    /// Returns the client of a server with these addresses for gRPC, HTTP and its admin listener. That of a Unix socket is 0.0.0.0:0.
    pub(crate) fn new(addresses: [&str; 3], folder: TempDir, log: Log) -> Self {
        let [grpc, http, admin] =
            addresses.map(|address| address.parse().unwrap_or(([0; 4], 0).into()));
        Self {
            grpc,
            http,
            admin,
            folder,
            log,
            metrics: Box::new(String::new),
        }
    }

    /// Returns the path of the configuration.
    pub(crate) fn config(&self) -> PathBuf {
        self.folder.path().join("limits.yaml")
    }

    /// Changes the configuration.
    pub(crate) fn configure(&self, config: &str) {
        std::fs::write(self.config(), config).unwrap();
    }

    /// Returns how many logged lines contain `text`.
    pub(crate) fn logged(&self, text: &str) -> usize {
        let log = self.log.lock().unwrap();
        log.iter().filter(|line| line.contains(text)).count()
    }

    /// Waits until a logged line contains `text`.
    pub(crate) fn until_logged(&self, text: &str) {
        until(text, || (self.logged(text) > 0).then_some(()));
    }

    /// Posts JSON to the HTTP listener.
    pub(crate) fn post(&self, path: &str, body: &str) -> (u16, Value) {
        let json = ("content-type", "application/json; charset=utf-8");
        post(self.http, path, &[json], body)
    }

    /// Asks as Envoy does, in JSON, about one entry. Returns the status.
    pub(crate) fn ask(&self, key: &str, value: &str) -> u16 {
        let entries = json!([{ "key": key, "value": value }]);
        let body = json!({ "domain": "d", "descriptors": [{ "entries": entries }] });
        self.post("/json", &body.to_string()).0
    }

    /// Gets a text from the admin listener.
    pub(crate) fn admin(&self, path: &str) -> String {
        get(self.admin, path).1
    }

    /// Removes the logs of a key. Returns the status and the answer.
    pub(crate) fn reset(&self, path: &str, key: &str) -> (u16, Value) {
        let body = json!({ "domain": "d", "path": path, "key": key }).to_string();
        post(self.admin, "/reset", &[("x-limiter-admin", "1")], &body)
    }

    /// Returns the status and the text of a health check.
    pub(crate) fn health(&self) -> (u16, String) {
        get(self.http, "/healthz")
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

    /// Returns the value of the first metric whose line begins like this.
    pub(crate) fn metric(&self, start: &str) -> Option<f64> {
        // The listener also updates the other metrics.
        let shown = self.admin("/metrics");
        let text = (self.metrics)() + &*shown;
        let line = text.lines().find(|line| line.starts_with(start))?;
        line.rsplit_once(' ')?.1.parse().ok()
    }
}

/// Writes a configuration into a new folder, which is returned with its path.
pub(crate) fn folder(config: &str) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("limits.yaml");
    std::fs::write(&path, config).unwrap();
    (folder, path)
}

/// Returns the path of a file as text.
pub(crate) fn shown(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Gets a path, and returns the status and the text.
pub(crate) fn get(from: SocketAddr, path: &str) -> (u16, String) {
    let head = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close");
    http(from, &format!("{head}\r\n\r\n"))
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
    let status = head.split(' ').nth(1);
    let status = status.map_or(0, |status| status.parse().unwrap());
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
