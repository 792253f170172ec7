//! Operating a server: signals and large folders.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use crate::server::{Server, until};

const CONFIG: &str = "
domain: d
descriptors:
  - key: user
    rate_limit: { unit: hour, requests_per_unit: 1000 }
";

#[test]
fn a_hangup_before_the_listeners_are_open_is_harmless() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("limits.yaml");
    assert!(
        Command::new("mkfifo")
            .arg(&pipe)
            .status()
            .unwrap()
            .success()
    );
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
    assert!(
        Command::new("kill")
            .args(["-HUP", &server.id().to_string()])
            .status()
            .unwrap()
            .success()
    );
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
fn only_changed_files_of_the_configuration_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let (path, limits) = (folder.path().to_owned(), folder.path().join("limits.yaml"));
    fs::write(&limits, CONFIG).unwrap();
    fs::File::create(path.join("dump"))
        .unwrap()
        .set_len(1 << 30)
        .unwrap();
    let server = Server::start_with(&path, folder, &[]);
    let reloads = || server.metric("limiter_server_config_reloads_total{result=\"success\"}");
    let before = server.proc("io", "rchar:");
    for reload in 1..4 {
        fs::write(&limits, CONFIG.replace("1000", &reload.to_string())).unwrap();
        until("the change applies", || {
            reloads().filter(|count| *count == f64::from(reload))
        });
    }
    let read = server.proc("io", "rchar:") - before;
    assert!(read < 1 << 20, "{read} bytes read");
}
