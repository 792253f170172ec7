//! What who runs a server meets: signals and large folders.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};

use crate::server::{Server, until};

const CONFIG: &str = "
domain: d
descriptors:
  - key: user
    rate_limit: { unit: hour, requests_per_unit: 1000 }
  - key: soon
    rate_limit: { unit: minute, requests_per_unit: 1 }
";

#[test]
fn a_hangup_before_the_listeners_are_open_is_harmless() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("limits.yaml");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let mut server = Command::new(env!("CARGO_BIN_EXE_limiter-server"));
    server.arg("--config").arg(&pipe).args([
        "--grpc",
        "localhost:0",
        "--http",
        "localhost:0",
        "--admin",
        "localhost:0",
    ]);
    let mut server = server.stderr(Stdio::piped()).spawn().unwrap();
    // Opens as soon as the server reads.
    let mut config = fs::OpenOptions::new().write(true).open(&pipe).unwrap();
    assert!(Command::new("kill").args(["-HUP", &server.id().to_string()]).status().unwrap().success());
    config.write_all(CONFIG.as_bytes()).unwrap();
    drop(config);
    let serves = BufReader::new(server.stderr.take().unwrap())
        .lines()
        .map_while(Result::ok)
        .any(|line| line.starts_with("limiter-server: admin "));
    server.kill().unwrap();
    server.wait().unwrap();
    assert!(serves);
}

#[test]
fn a_request_that_waits_is_answered_at_the_end() {
    let mut server = Server::start(CONFIG, &[]);
    let body = r#"{"domain": "d", "descriptor": [["soon", "x"]], "wait_ms": 60000}"#;
    assert_eq!(server.post("/v1/acquire", body).1["allowed"], true);
    let mut waits = TcpStream::connect(server.http).unwrap();
    let (kind, len) = ("content-type: application/json", body.len());
    write!(waits, "POST /v1/acquire HTTP/1.1\r\nhost: x\r\n{kind}\r\ncontent-length: {len}\r\n\r\n{body}").unwrap();
    until("the request waits", || server.metric("limiter_decisions_total{").filter(|decisions| *decisions > 0.0));
    server.signal("TERM");
    let mut answer = String::new();
    waits.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("\"allowed\":false"), "{answer}");
    assert_eq!(server.wait().code(), Some(0));
}

#[test]
fn only_changed_files_of_the_configuration_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let (path, limits) = (folder.path().to_owned(), folder.path().join("limits.yaml"));
    fs::write(&limits, CONFIG).unwrap();
    fs::File::create(path.join("dump")).unwrap().set_len(1 << 30).unwrap();
    let server = Server::start_with(&path, folder, &[]);
    let reloads = || server.metric("limiter_server_config_reloads_total{result=\"success\"}");
    let before = server.proc("io", "rchar:");
    for reload in 1..4 {
        fs::write(&limits, CONFIG.replace("1000", &reload.to_string())).unwrap();
        until("the change applies", || reloads().filter(|count| *count == f64::from(reload)));
    }
    let read = server.proc("io", "rchar:") - before;
    assert!(read < 1 << 20, "{read} bytes read");
}
