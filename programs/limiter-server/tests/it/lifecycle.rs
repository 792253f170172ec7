//! The start, reloads and the end of a server.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};

use crate::server::{PORTS, Server, program, until};

const CONFIG: &str = "
domain: d
descriptors:
  - key: user
    rate_limit: { unit: minute, requests_per_unit: 3 }
";

#[test]
fn a_changed_configuration_applies_and_a_wrong_one_does_not() {
    let server = Server::start(CONFIG, &[]);
    let statuses = |count: u32| {
        let asked = (0..count).map(|_| server.ask("user", "ann"));
        asked.collect::<Vec<u16>>()
    };
    let reloads = |result| server.reloads(result);
    let valid = || server.metric("limiter_server_config_valid");
    assert_eq!(
        (statuses(4), valid()),
        (vec![200, 200, 200, 429], Some(1.0))
    );

    fs::write(
        server.config(),
        CONFIG.replace("requests_per_unit: 3", "requests_per_unit: 5"),
    )
    .unwrap();
    until("the change applies", || reloads("success"));
    assert_eq!(statuses(3), [200, 200, 429]);

    fs::write(server.config(), CONFIG.replace("minute", "fortnight")).unwrap();
    until("the error is seen", || {
        valid().filter(|valid| *valid == 0.0)
    });
    assert_eq!((statuses(1), reloads("success")), (vec![429], Some(1.0)));
    assert!(reloads("failure").is_some());

    fs::write(
        server.config(),
        CONFIG.replace("requests_per_unit: 3", "requests_per_unit: 6"),
    )
    .unwrap();
    until("the correction applies", || {
        valid().filter(|valid| *valid == 1.0)
    });
    assert_eq!(
        (statuses(2), reloads("success")),
        (vec![200, 429], Some(2.0))
    );
    // The counts of a rule survive its changes, as its log does.
    assert_eq!(server.decisions("user", "denied"), Some(4.0));

    server.signal("HUP");
    until("SIGHUP reloads", || {
        reloads("success").filter(|count| *count == 3.0)
    });
    assert_eq!(statuses(1), [429]);
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
        fs::write(server.config(), config).unwrap();
        until("the change applies", || {
            server.reloads("success").filter(|count| *count == number)
        });
    };
    let allowed = |rule| server.decisions(rule, "allowed");
    assert_eq!(
        (allowed("user"), allowed("=override")),
        (Some(3.0), Some(1.0))
    );
    let detailed = || {
        server.metric("limiter_server_detailed_decisions_total{domain=\"d\",key=\"user=ann\",outcome=\"allowed\"")
    };
    assert_eq!(detailed(), Some(3.0));
    change(&CONFIG.replace("user", "customer"), 1.0);
    assert_eq!(
        (allowed("user"), allowed("=override"), detailed()),
        (None, Some(1.0), None)
    );
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
    let mut server = Server::start(CONFIG, &[]);
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
    assert_eq!(
        server
            .post(
                "/v1/status",
                r#"{"domain": "d", "descriptor": [["user", "x"]]}"#
            )
            .0,
        200
    );
    let began = std::time::Instant::now();
    server.signal("TERM");
    assert_eq!(server.wait().code(), Some(0));
    // Requests in progress may take eight seconds.
    assert!(began.elapsed().as_secs() < 6, "{:?}", began.elapsed());
}

#[test]
fn a_full_disk_costs_log_lines_only() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("limits.yaml");
    fs::write(&config, CONFIG).unwrap();
    let ports = [(); 3].map(|()| std::net::TcpListener::bind("127.0.0.1:0").unwrap());
    let [grpc, http, admin] = ports.each_ref().map(|port| port.local_addr().unwrap());
    drop(ports);
    let mut command = Command::new(env!("CARGO_BIN_EXE_limiter-server"));
    command.arg("--config").arg(&config);
    for (listener, address) in [("--grpc", grpc), ("--http", http), ("--admin", admin)] {
        command.args([listener, &address.to_string()]);
    }
    let full = fs::OpenOptions::new()
        .write(true)
        .open("/dev/full")
        .unwrap();
    let server = Server::adopt(
        command.stderr(full).spawn().unwrap(),
        folder,
        [grpc, http, admin],
    );
    until("the server serves", || TcpStream::connect(admin).ok());
    for (text, valid) in [("domain: [", 0.0), (CONFIG, 1.0)] {
        fs::write(&config, text).unwrap();
        until("the file is read", || {
            server
                .metric("limiter_server_config_valid")
                .filter(|found| *found == valid)
        });
    }
    assert_eq!(server.reloads("success"), Some(1.0));
}

#[test]
fn a_server_without_free_descriptors_says_so_and_recovers() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("limits.yaml");
    fs::write(&config, CONFIG).unwrap();
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n 64; exec \"$0\" \"$@\""]);
    command.arg(program()).arg("--config").arg(&config);
    let server = Server::run(command, folder);
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
    for (signal, serves) in [("-HUP", true), ("-TERM", false)] {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("limits.yaml");
        let mkfifo = Command::new("mkfifo").arg(&pipe).status();
        assert!(mkfifo.unwrap().success());
        let mut server = Command::new(program());
        server.arg("--config").arg(&pipe).envs(PORTS);
        let mut server = server.stderr(Stdio::piped()).spawn().unwrap();
        // Opens as soon as the server reads.
        let mut config = fs::OpenOptions::new().write(true).open(&pipe).unwrap();
        let id = server.id().to_string();
        let kill = Command::new("kill").args([signal, &id]).status();
        assert!(kill.unwrap().success());
        if serves {
            config.write_all(CONFIG.as_bytes()).unwrap();
            config = fs::File::open("/dev/null").unwrap();
        }
        let mut lines = BufReader::new(server.stderr.take().unwrap())
            .lines()
            .map_while(Result::ok);
        let is_open = |line: String| line.starts_with("limiter-server: admin ");
        assert_eq!(lines.any(is_open), serves, "{signal}");
        if serves {
            server.kill().unwrap();
        }
        assert_eq!(server.wait().unwrap().success(), !serves, "{signal}");
        drop(config);
    }
}

#[test]
fn a_reading_that_hangs_is_logged_and_the_server_serves() {
    let server = Server::start(CONFIG, &[]);
    fs::remove_file(server.config()).unwrap();
    let mkfifo = Command::new("mkfifo").arg(server.config()).status();
    assert!(mkfifo.unwrap().success());
    server.until_logged("reading files hangs");
    assert_eq!(server.ask("user", "ann"), 200);
    fs::write(server.config(), CONFIG.replace("3 }", "1 }")).unwrap();
    until("the change applies", || server.reloads("success"));
    assert_eq!(server.ask("user", "ann"), 429);
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
    let before = server.proc("io", "rchar:");
    for reload in 1..4 {
        fs::write(&limits, CONFIG.replace("3 }", &format!("{reload} }}"))).unwrap();
        until("the change applies", || {
            server
                .reloads("success")
                .filter(|count| *count == f64::from(reload))
        });
    }
    let read = server.proc("io", "rchar:") - before;
    assert!(read < 1 << 20, "{read} bytes read");
}
