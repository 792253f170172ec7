//! The start, reloads and the end of a server.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};

use crate::client::{Client, get, until};
use crate::program::{Program, command, limited, signal};
use crate::server::Server;

const CONFIG: &str = "
domain: d
descriptors:
  - key: user
    rate_limit: { unit: minute, requests_per_unit: 3 }
";

/// Waits until a metric has this value.
fn until_metric(server: &Client, start: &str, value: f64) {
    until(start, || {
        server.metric(start).filter(|found| *found == value)
    });
}

const SUCCESS: &str = r#"limiter_server_config_reloads_total{result="success"}"#;
const VALID: &str = "limiter_server_config_valid";

#[test]
fn a_changed_configuration_applies_and_a_wrong_one_does_not() {
    let (mut command, folder) = command(CONFIG);
    // Only files of the configuration are read.
    let dump = fs::File::create(folder.path().join("dump")).unwrap();
    dump.set_len(1 << 30).unwrap();
    command.env("LIMITER_CONFIG", folder.path());
    let server = Program::run(command, folder);
    let read = || server.proc("io", "rchar:");
    let before = read();
    // How the configuration changes, the number of reloads then, and the statuses of requests.
    for (from, to, reloads, valid, expected) in [
        ("", "", None, 1.0, &[200, 200, 200, 429][..]),
        ("unit: 3", "unit: 5", Some(1.0), 1.0, &[200, 200, 429]),
        ("minute", "fortnight", Some(1.0), 0.0, &[429]),
        ("unit: 3", "unit: 6", Some(2.0), 1.0, &[200, 429]),
    ] {
        if !from.is_empty() {
            server.configure(&CONFIG.replace(from, to));
        }
        until("it is read", || {
            (server.reloads("success") == reloads).then_some(())
        });
        until_metric(&server, VALID, valid);
        let statuses: Vec<_> = expected.iter().map(|_| server.ask("user", "ann")).collect();
        assert_eq!(statuses, expected, "{to}");
    }
    assert!(server.reloads("failure").is_some());
    // The counts of a rule survive its changes, as its log does.
    assert_eq!(server.decisions("user", "denied"), Some(4.0));
    server.signal("HUP");
    until_metric(&server, SUCCESS, 3.0);
    assert_eq!(server.ask("user", "ann"), 429);
    assert!(read() - before < 1 << 20, "{} bytes read", read() - before);
}

#[test]
fn the_counts_of_a_rule_end_with_it_and_those_of_overrides_have_a_label() {
    let config = CONFIG.replace("key: user", "key: user\n    detailed_metric: true");
    let server = Server::start(&config, &[]);
    let own = r#"{"domain": "d", "descriptors": [{"entries": [{"key": "none"}], "limit": {"requestsPerUnit": 1, "unit": "DAY"}}]}"#;
    assert_eq!(
        [own; 2].map(|body| server.post("/json", body).0),
        [200, 429]
    );
    let asked = [(); 4].map(|()| server.ask("user", "ann"));
    assert_eq!(asked, [200, 200, 200, 429]);
    assert!(server.admin("/page/state").contains(r#""key":"ann""#));
    let change = |config: &str, number: f64| {
        server.configure(config);
        until_metric(&server, SUCCESS, number);
    };
    let allowed = |rule| server.decisions(rule, "allowed");
    let shown = || {
        let detailed = r#"limiter_server_detailed_decisions_total{domain="d",key="user=ann",outcome="allowed""#;
        [
            allowed("user"),
            allowed("=override"),
            server.metric(detailed),
        ]
    };
    assert_eq!(shown(), [Some(3.0), Some(1.0), Some(3.0)]);
    change(&CONFIG.replace("user", "customer"), 1.0);
    assert_eq!(shown(), [None, Some(1.0), None]);
    for path in ["/metrics", "/page/state"] {
        let text = server.admin(path);
        assert!(!text.contains("user") && !text.contains("ann"), "{text}");
    }
    change(CONFIG, 2.0);
    assert_eq!(server.ask("user", "bob"), 200);
    assert_eq!(allowed("user"), Some(1.0));
}

#[tokio::test]
async fn connections_without_requests_do_not_hold_the_end() {
    let server = Server::start(CONFIG, &[]);
    let mut silent = Vec::new();
    for to in [server.grpc, server.http, server.admin] {
        for text in [
            "",
            "POST",
            "PRI * HTTP/2.0\r\n",
            "GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n",
        ] {
            let mut stream = TcpStream::connect(to).unwrap();
            stream.write_all(text.as_bytes()).unwrap();
            silent.push(stream);
        }
    }
    // A client over HTTP/2 that answers nothing more.
    let stream = tokio::net::TcpStream::connect(server.grpc).await.unwrap();
    let _client = h2::client::handshake(stream).await.unwrap();
    assert_eq!(server.ask("user", "x"), 200);
    let began = std::time::Instant::now();
    server.stop();
    // Requests in progress may take eight seconds.
    assert!(began.elapsed().as_secs() < 6, "{:?}", began.elapsed());
}

#[test]
fn a_full_disk_costs_log_lines_only() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap();
    let admin = port.local_addr().unwrap();
    drop(port);
    let (mut server, folder) = command(CONFIG);
    let full = fs::OpenOptions::new().write(true).open("/dev/full");
    server.env("LIMITER_ADMIN", admin.to_string());
    let mut server = server.stderr(full.unwrap()).spawn().unwrap();
    until("the server serves", || TcpStream::connect(admin).ok());
    for (text, valid) in [("domain: [", "0"), (CONFIG, "1")] {
        fs::write(folder.path().join("limits.yaml"), text).unwrap();
        let line = format!("{VALID} {valid}");
        until(&line, || {
            get(admin, "/metrics").1.contains(&line).then_some(())
        });
    }
    server.kill().unwrap();
    server.wait().unwrap();
}

#[test]
fn a_server_without_free_descriptors_says_so_and_recovers() {
    let (limited, folder) = limited("ulimit -n 64", CONFIG);
    let server = Program::run(limited, folder);
    let held = [(); 100].map(|()| TcpStream::connect(server.http).unwrap());
    server.until_logged("cannot accept a connection");
    drop(held);
    until("it accepts again", || {
        (server.health().0 == 200).then_some(())
    });
    let refused = server.metric(r#"limiter_server_refused_total{listener="http",reason="accept"}"#);
    assert!(refused >= Some(1.0), "{refused:?}");
}

#[test]
fn signals_before_the_listeners_are_open_do_what_they_do_later() {
    for (name, serves) in [("HUP", true), ("TERM", false)] {
        let (mut server, folder) = command(CONFIG);
        let pipe = folder.path().join("limits.yaml");
        make_pipe(&pipe);
        let mut server = server.stderr(Stdio::piped()).spawn().unwrap();
        // Opens as soon as the server reads.
        let mut config = fs::OpenOptions::new().write(true).open(&pipe).unwrap();
        signal(&server, name);
        if serves {
            config.write_all(CONFIG.as_bytes()).unwrap();
            config = fs::File::open("/dev/null").unwrap();
        }
        let lines = BufReader::new(server.stderr.take().unwrap()).lines();
        let is_open = |line: String| line.starts_with("limiter-server: admin ");
        let opens = lines.map_while(Result::ok).any(is_open);
        assert_eq!(opens, serves, "{name}");
        if serves {
            server.kill().unwrap();
        }
        assert_eq!(server.wait().unwrap().success(), !serves, "{name}");
        drop(config);
    }
}

#[test]
fn a_reading_that_hangs_is_logged_and_the_server_serves() {
    let server = Server::start(CONFIG, &[]);
    make_pipe(&server.config());
    server.until_logged("reading files hangs");
    assert_eq!(server.ask("user", "ann"), 200);
    server.configure(&CONFIG.replace("3 }", "1 }"));
    until("the change applies", || server.reloads("success"));
    assert_eq!(server.ask("user", "ann"), 429);
}

/// Puts a pipe in place of a file.
fn make_pipe(file: &std::path::Path) {
    fs::remove_file(file).unwrap();
    assert!(Command::new("mkfifo").arg(file).status().unwrap().success());
}
