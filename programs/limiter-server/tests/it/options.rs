//! The options: a row each of what Envoy's service lets its operators set.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use limiter_server::options::Options;
use serde_json::json;
use testbed::server::{Postgres, Server as Redis};
use testbed::write_certificates;
use tokio::time::timeout;
use tonic::transport::Endpoint;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::ask::{Answers, parsed};
use crate::client::{Client, PATIENCE, exchange, until};
use crate::program::{Program, command, failed};
use crate::server::Server;

const CONFIG: &str = "
domain: d
descriptors:
  - { key: user, rate_limit: { unit: hour, requests_per_unit: 1 } }
  - { key: blocked, rate_limit: { unit: hour, requests_per_unit: 0 }, shadow_mode: true }
";

fn acquire(server: &Client) -> u16 {
    server.ask("user", "ann")
}

/// Starts the program with variables in place of options.
fn start(variables: &[(&str, &str)]) -> Program {
    let (mut command, folder) = command(CONFIG);
    command.envs(variables.iter().copied());
    Program::run(command, folder)
}

/// Starts the program with a variable with which it fails. Returns its errors.
fn fails(name: &str, value: &str) -> String {
    let (mut command, _folder) = command(CONFIG);
    let (code, errors) = failed(command.env(name, value));
    assert_eq!(code, Some(1), "{errors}");
    errors
}

#[tokio::test]
async fn each_option_is_a_variable_and_those_of_envoys_service_are_named() {
    for argument in Options::with_variables().get_arguments() {
        if let Some(name) = argument
            .get_long()
            .filter(|name| !["help", "version"].contains(name))
        {
            let variable = format!("LIMITER_{}", name.replace('-', "_").to_uppercase());
            assert_eq!(argument.get_env().unwrap(), &*variable);
        }
    }
    assert!(fails("RUST_LOG", "a=b=c").contains("RUST_LOG"));
    let elsewhere = "limiter-server: BACKEND_TYPE=memcache is not supported: servers share";
    assert!(fails("BACKEND_TYPE", "memcache").contains(elsewhere));
    let server = start(&[
        ("LIMITER_UNHEALTHY_WHEN", "store-down,no-rules"),
        ("LIMITER_STATE", ""),
        ("LIMITER_TLS_CLIENT_NAME", ""),
        ("LIMITER_ADMIN_PLAIN", ""),
        ("REDIS_URL", "redis:6379"),
        ("REDIS_PERSECOND_URL", "redis:6379"),
        ("GRPC_PORT", "8081"),
        ("XDG_HOME", "/"),
        ("BACKEND_TYPE", "redis"),
        ("CONFIG_TYPE", "FILE"),
        ("TRACING_ENABLED", "true"),
    ]);
    for (line, times) in [
        ("REDIS_URL has no effect; instead use --store", 1),
        ("REDIS_PERSECOND_URL has no effect", 1),
        ("GRPC_PORT has no effect; instead use --grpc", 1),
        ("TRACING_ENABLED has no effect; instead", 1),
        (" has no effect", 4),
        (&format!("limiter-server {}", env!("CARGO_PKG_VERSION")), 1),
        ("store memory", 1),
        ("limits.yaml: 2 rules in 1 domains", 1),
        ("outage choice fallback", 1),
    ] {
        assert_eq!(server.logged(line), times, "{line}");
    }
    let channel = Endpoint::try_from(format!("http://{}", server.grpc))
        .unwrap()
        .connect_lazy();
    let mut checks = HealthClient::new(channel);
    let mut serving = async || {
        let request = HealthCheckRequest {
            service: String::new(),
        };
        let answer = checks.check(request).await.unwrap().into_inner();
        answer.status() == ServingStatus::Serving
    };
    assert_eq!(
        (server.health(), serving().await),
        ((200, "OK\n".to_owned()), true)
    );
    server.configure("domain: d");
    until("there are no rules", || {
        (server.health() == (503, "no rules\n".to_owned())).then_some(())
    });
    let not_serving = async { while serving().await {} };
    timeout(PATIENCE, not_serving).await.unwrap();
}

#[test]
fn a_prefix_separates_servers_and_the_timeout_of_the_store_is_a_choice() {
    let redis = Redis::start().unwrap();
    let url = redis.url();
    let start = |more: &[&str]| Server::start(CONFIG, &[&["--store", &*url], more].concat());
    let [a, b] = ["a", "b"].map(|prefix| start(&["--prefix", prefix]));
    assert_eq!([acquire(&a), acquire(&a), acquire(&b)], [200, 429, 200]);
    let keys: Vec<String> = redis.command(&["KEYS", "[ab]:*"]).unwrap();
    assert_eq!(keys.len(), 2, "{keys:?}");

    let patient = start(&[
        "--store-timeout",
        "20s",
        "--on-outage",
        "closed",
        "--prefix",
        "patient",
    ]);
    // It connects, which takes a paused server longer than a client waits.
    let ann = json!({ "domain": "d", "descriptor": [["user", "ann"]] });
    until("the store is up", || {
        (patient.post("/v1/status", &ann.to_string()).0 == 200).then_some(())
    });
    redis.pause().unwrap();
    thread::scope(|scope| {
        let asked = scope.spawn(|| acquire(&patient));
        // Longer than the default.
        thread::sleep(Duration::from_secs(1));
        redis.resume().unwrap();
        assert_eq!(asked.join().unwrap(), 200);
    });
    let away = [
        "--store",
        "redis://ann:secret@127.0.0.1:1/0",
        "--unhealthy-when",
        "store-down",
    ];
    let away = Program::start(CONFIG, &away);
    until("it is unhealthy", || {
        (away.health() == (503, "store down\n".to_owned())).then_some(())
    });
    let logged = ["store redis://127.0.0.1:1/0", "secret"].map(|text| away.logged(text));
    assert_eq!(logged, [1, 0]);
}

#[test]
fn each_line_of_a_log_in_json_is_an_object() {
    let server = start(&[("LIMITER_LOG_FORMAT", "json"), ("HOST", "x")]);
    server.ask("user", "ann");
    server.reset("user", "ann");
    server.until_logged("\"message\":\"reset\"");
    let log = server.log.lock().unwrap();
    for (i, line) in log.iter().enumerate() {
        let line = parsed(line);
        let has = |name: &str| line[name].is_string();
        assert!(
            has("timestamp") && has("target") && has("message"),
            "{line}"
        );
        assert_eq!(
            line["level"],
            if i == 0 { "WARN" } else { "INFO" },
            "{line}"
        );
    }
    let first = parsed(&log[0])["message"].clone();
    assert_eq!(first, "HOST has no effect; instead use --http");
    let mut change = parsed(log.last().unwrap());
    change.as_object_mut().unwrap().remove("timestamp");
    let expected = json!({
        "level": "INFO", "target": "limiter_server::changes", "message": "reset", "domain": "d", "rule": "user", "key": "ann",
        "client": "127.0.0.1", "removed": "1 in 1h",
    });
    assert_eq!(change, expected);
}

#[tokio::test]
async fn an_old_connection_ends() {
    let age = [
        "--max-connection-age",
        "1s",
        "--max-connection-age-grace",
        "1s",
    ];
    let server = Server::start(CONFIG, &age);
    for to in [server.grpc, server.http] {
        let stream = tokio::net::TcpStream::connect(to).await.unwrap();
        let (client, connection) = h2::client::handshake(stream).await.unwrap();
        timeout(PATIENCE, connection).await.unwrap().unwrap();
        drop(client);
    }
}

#[tokio::test]
async fn the_headers_are_a_choice() {
    let server = Server::start(CONFIG, &["--headers", "none"]);
    let line = "user=ann => {\"responseHeadersToAdd\": null}";
    server.check(line).await;
}

#[tokio::test]
async fn a_listener_may_be_a_unix_socket() {
    let sockets = tempfile::tempdir().unwrap();
    let path = |name: &str| format!("unix:{}/{name}", sockets.path().display());
    let grpc = path("grpc");
    let http = path("http");
    let both = [("LIMITER_GRPC", &*grpc), ("LIMITER_HTTP", &*http)];
    // A server that is killed leaves its sockets behind.
    drop(start(&both));
    let _server = start(&both);
    let mut stream = UnixStream::connect(http.trim_start_matches("unix:")).unwrap();
    stream
        .write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let channel = Endpoint::try_from(grpc.clone())
        .unwrap()
        .connect()
        .await
        .unwrap();
    let request = HealthCheckRequest {
        service: String::new(),
    };
    let health = HealthClient::new(channel).check(request).await.unwrap();
    assert_eq!(health.into_inner().status(), ServingStatus::Serving);
    let fails = |grpc: &str| {
        let expected = format!("--grpc: cannot listen on {grpc}");
        assert!(fails("LIMITER_GRPC", grpc).contains(&expected));
    };
    fails(&grpc);
    // Only a socket is removed: anything else that stands there may be of value.
    let file = sockets.path().join("file");
    let link = sockets.path().join("link");
    std::fs::write(&file, "domain: d").unwrap();
    std::os::unix::fs::symlink(&file, &link).unwrap();
    for name in ["file", "link"] {
        fails(&path(name));
    }
    assert_eq!(std::fs::read(&link).unwrap(), b"domain: d");
}

#[test]
fn certificates_protect_the_way_to_the_store() {
    let folder = tempfile::tempdir().unwrap();
    write_certificates(folder.path());
    let files = ["ca.pem", "client.pem", "client.key"];
    let [ca, cert, key] = files.map(|name| folder.path().join(name).display().to_string());
    let [server, private, authority] = ["server.pem", "server.key", "ca.pem"]
        .map(|name| std::fs::read_to_string(folder.path().join(name)).unwrap());
    let postgres = Postgres::start_with_tls(&server, &private, Some(&authority)).unwrap();
    let url = postgres.url() + "?sslmode=require";
    let start = |more: &[&str]| {
        let store = ["--store", &*url, "--on-outage", "closed"];
        Server::start(CONFIG, &[&store, more].concat())
    };
    let trusted = ["--store-tls-ca", &*ca];
    let known = ["--store-tls-cert", &*cert, "--store-tls-key", &*key];
    let with_both = start(&[&trusted[..], &known].concat());
    // A call whose response is late may count, so each has its own key.
    let mut calls = 0..;
    until("the store is up", || {
        let user = calls.next().map(|call| call.to_string())?;
        (with_both.ask("user", &user) == 200).then_some(())
    });
    for without in [&trusted[..], &known] {
        let server = start(without);
        server.until_logged("the store is down");
        assert_eq!(acquire(&server), 429);
    }
}

#[test]
fn a_changed_admin_token_applies_without_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    std::fs::write(&token, "first").unwrap();
    let options = [
        "--admin-token-file",
        token.to_str().unwrap(),
        "--admin",
        "0.0.0.0:0",
        "--admin-plain",
    ];
    let server = Server::start(CONFIG, &options);
    let to = ([127, 0, 0, 1], server.admin.port()).into();
    let get = |path: &str, token: &str| {
        let request = format!(
            "GET {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\nconnection: close\r\n\r\n"
        );
        exchange(to, &request)
    };
    assert_eq!(
        [get("/rules", "first").0, get("/rules", "second").0],
        [200, 401]
    );
    // Every response has the same header fields.
    for path in ["/", "/metrics", "/rules", "/page/state", "/none"] {
        for token in ["first", "other"] {
            let head = get(path, token).1.to_ascii_lowercase();
            for field in [
                "cache-control: no-store",
                "x-content-type-options: nosniff",
                "x-frame-options: deny",
            ] {
                assert!(head.contains(field), "{path}: {head}");
            }
        }
    }
    std::fs::write(&token, " ").unwrap();
    server.until_logged("cannot reload the admin token");
    assert_eq!(get("/rules", "first").0, 200);
    std::fs::write(&token, "second").unwrap();
    until("the new token applies", || {
        (get("/rules", "second").0 == 200).then_some(())
    });
    assert_eq!(get("/rules", "first").0, 401);
}
