//! Redis and Postgres behind the rules: late, lost, restarted.

use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use limiter_server::options::Options;
use limiter_server::run;
use serde_json::{Value, json};
use testbed::server::{Cluster, Postgres, Server as Redis};
use testbed::{Network, Proxy, write_certificates};

use crate::ask::{Answers, rows};
use crate::client::{Client, folder, post, shown, until};
use crate::program::{command, failed};
use crate::server::Server;

const CONFIG: &str = "
domain: d
descriptors:
  - key: user
    rate_limit: { unit: hour, requests_per_unit: 3 }
";

/// A server that keeps the counts.
enum Backend {
    Redis(Redis),
    Postgres(Postgres),
}

impl Backend {
    /// Returns one of each kind, with its name in metrics.
    fn each() -> [(&'static str, Self); 2] {
        [
            ("redis", Self::Redis(Redis::start().unwrap())),
            ("postgres", Self::Postgres(Postgres::start().unwrap())),
        ]
    }

    fn url(&self) -> String {
        match self {
            Self::Redis(server) => server.url(),
            Self::Postgres(server) => server.url(),
        }
    }

    fn kill(&mut self) {
        match self {
            Self::Redis(server) => server.kill(),
            Self::Postgres(server) => server.kill(),
        }
    }

    fn restart(&mut self) {
        match self {
            Self::Redis(server) => server.restart().unwrap(),
            Self::Postgres(server) => server.restart().unwrap(),
        }
    }
}

fn ask(server: &Client, user: &str) -> u16 {
    server.ask("user", user)
}

fn asked<const N: usize>(server: &Client, user: &str) -> [u16; N] {
    [(); N].map(|()| ask(server, user))
}

/// Changes a user of Redis.
fn acl(redis: &Redis, user: &str, rules: &str) {
    let rules: Vec<_> = rules.split(' ').collect();
    redis
        .command::<()>(&[&["ACL", "SETUSER", user], &rules[..]].concat())
        .unwrap();
}

fn keys(redis: &Redis) -> i64 {
    redis.command(&["DBSIZE"]).unwrap()
}

/// Waits until every place reports that the store is down, or back.
fn until_away(server: &Client, away: bool) {
    let (text, number) = if away {
        ("OK, store down\n", 0.0)
    } else {
        ("OK\n", 1.0)
    };
    until("the store is down, or back", || {
        let is_said = server.health() == (200, text.to_owned())
            && server.metric("limiter_server_store_up ") == Some(number);
        is_said.then_some(())
    });
}

#[test]
fn a_rule_with_a_lease_decides_without_the_store() {
    const LEASED: &str = "domain: d\ndescriptors:\n- key: user\n  rate_limit: { unit: hour, requests_per_unit: 1000, lease: 10m }\n";
    let redis = Redis::start().unwrap();
    let server = Server::start(LEASED, &["--store", &redis.url()]);
    until_away(&server, false);
    for _ in 0..12 {
        assert_eq!(ask(&server, "ann"), 200);
    }
    let decided = |from: &str| {
        server.metric(&format!(
            r#"limiter_lease_decisions_total{{store="stack",from="{from}"}}"#
        ))
    };
    assert_eq!((decided("store"), decided("block")), (Some(8.0), Some(4.0)));
    let rules: Value = serde_json::from_str(&server.admin("/rules")).unwrap();
    assert_eq!(rules["rules"][0]["held_in_blocks"], 4);
    assert_eq!(rules["rules"][0]["limits"][0], "1000/1h+10m");
}

#[test]
fn the_store_may_come_late_go_and_come_back() {
    for (name, mut store) in Backend::each() {
        store.kill();
        let server = Server::start(CONFIG, &["--store", &store.url()]);
        until_away(&server, true);
        assert_eq!(asked(&server, "early"), [200, 200], "{name}");

        store.restart();
        until_away(&server, false);
        // Earlier charges are carried over.
        until("no log is carried", || {
            server
                .metric("limiter_carried_logs{")
                .filter(|logs| *logs == 0.0)
        });
        assert_eq!(asked(&server, "early"), [200, 429], "{name}");
        let decided = format!(
            r#"limiter_store_duration_seconds_count{{store="{name}",operation="acquire"}}"#
        );
        assert!(server.metric(&decided) > Some(0.0), "{name}");

        store.kill();
        until_away(&server, true);
        let began = Instant::now();
        for i in 0..100 {
            assert_eq!(ask(&server, &format!("during {i}")), 200);
        }
        // Most requests do not wait for the timeout of 300 ms.
        assert!(
            began.elapsed() < Duration::from_secs(20),
            "{:?}",
            began.elapsed()
        );
        store.restart();
        until_away(&server, false);
        assert_eq!(asked(&server, "after"), [200, 200, 200, 429], "{name}");
        if let Backend::Postgres(_) = store {
            // Redis keeps nothing in this test.
            assert_eq!(ask(&server, "early"), 429);
        }

        // A Redis that hangs: the failures have one text, so the log has one line.
        if let Backend::Redis(redis) = store {
            redis.pause().unwrap();
            for i in 0..30 {
                assert_eq!(ask(&server, &format!("hangs {i}")), 200);
            }
            until_away(&server, true);
            redis.resume().unwrap();
            until_away(&server, false);
            assert_eq!(
                server.logged("a store call failed: Redis failed: timed out"),
                1
            );
        }
    }
}

#[test]
fn a_restart_keeps_the_history_and_servers_share_it() {
    for (name, store) in Backend::each() {
        let first = Server::start(CONFIG, &["--store", &store.url()]);
        until_away(&first, false);
        assert_eq!(asked(&first, "ann"), [200, 200], "{name}");
        first.stop();
        let servers = [(); 3].map(|()| Server::start(CONFIG, &["--store", &store.url()]));
        servers.iter().for_each(|server| until_away(server, false));
        let admitted = thread::scope(|scope| {
            let ask = |i: usize| {
                scope.spawn({
                    let server = &servers[i % 3];
                    move || ask(server, "bob")
                })
            };
            let tasks: Vec<_> = (0..30).map(ask).collect();
            let statuses = tasks.into_iter().map(|task| task.join().unwrap());
            statuses.filter(|status| *status == 200).count()
        });
        assert_eq!(admitted, 3, "{name}");
        assert_eq!(
            [ask(&servers[0], "ann"), ask(&servers[1], "ann")],
            [200, 429],
            "{name}"
        );
    }
}

#[test]
fn a_call_that_the_store_decides_at_the_end_counts_once() {
    let redis = Redis::start().unwrap();
    let proxy = Proxy::start(([127, 0, 0, 1], redis.port()).into()).unwrap();
    let url = format!("redis://{}", proxy.address());
    let server = Server::start(CONFIG, &["--store", &url, "--store-timeout", "20s"]);
    let http = server.http;
    let acquire = |user: &str| {
        let call = json!({ "domain": "d", "descriptor": [["user", user]], "wait_ms": 60_000 });
        let json = ("content-type", "application/json");
        post(http, "/v1/acquire", &[json], &call.to_string())
    };
    // The server connects, and sends its script.
    assert_eq!((acquire("bob").0, keys(&redis)), (200, 1));
    proxy.set(Network::HoldReplies);
    thread::scope(|scope| {
        let asked = scope.spawn(|| acquire("ann"));
        until("Redis has counted", || (keys(&redis) > 1).then_some(()));
        scope.spawn(|| server.stop());
        until("the listener is closed", || {
            TcpStream::connect(http).is_err().then_some(())
        });
        // A second call would reach Redis meanwhile.
        thread::sleep(Duration::from_millis(200));
        proxy.set(Network::Healthy);
        let (status, answer) = asked.join().unwrap();
        let found = (status, &answer["allowed"], &answer["used"]);
        assert_eq!(found, (200, &json!(true), &json!(1)));
    });
}

#[tokio::test]
async fn a_redis_that_refuses_the_server_is_down() {
    let redis = Redis::start().unwrap();
    for (outage, expected) in [
        ("fallback", [200, 200, 200, 429]),
        // It would admit everything until somebody notices.
        ("open", [500, 500, 500, 500]),
        ("closed", [429, 429, 429, 429]),
        ("error", [500, 500, 500, 500]),
    ] {
        let server = Server::start(CONFIG, &["--store", &redis.url(), "--on-outage", outage]);
        until_away(&server, false);
        // A refused refund is no outage.
        let acquire = r#"{"domain": "d", "descriptor": [["user", "before"]]}"#;
        let answer = server.post("/v1/acquire", acquire).1;
        acl(&redis, "default", "-zrem");
        let receipt = &answer["receipt"];
        let line = format!("refund user=before {{\"receipt\": {receipt}}} => 503 ");
        server.check(&line).await;
        // The log is written after the response.
        server.until_logged("refused by the store, not an outage: ");
        assert_eq!(server.metric("limiter_server_store_up "), Some(1.0));
        assert_eq!(server.logged("the store is down"), 0);
        acl(&redis, "default", "-evalsha -eval");
        until_away(&server, true);
        assert_eq!(asked(&server, outage), expected, "{outage}");
        assert!(
            server.metric("limiter_store_errors_total{").is_some(),
            "{outage}"
        );
        acl(&redis, "default", "+evalsha +eval +zrem");
        until_away(&server, false);
        redis.command::<()>(&["FLUSHALL"]).unwrap();
        assert_eq!(asked(&server, outage), [200, 200, 200, 429], "{outage}");
    }
}

#[test]
fn a_node_that_refuses_is_down_while_the_others_decide() {
    let cluster = Cluster::start().unwrap();
    let url = cluster.url();
    // A slow call on a busy machine would be an outage.
    let patience = ["--store-timeout", "20s"];
    let args = ["--store", &url, "--on-outage", "open"];
    let server = Server::start(CONFIG, &[&args[..], &patience].concat());
    until_away(&server, false);
    let node = &cluster.nodes()[0];
    acl(node, "default", "-evalsha -eval");
    let users = || (0..30).map(|user| (user, ask(&server, &user.to_string())));
    let (refused, _) = users().find(|(_, status)| *status == 500).unwrap();
    assert!(users().any(|(user, status)| user != refused && status == 200));
    let (last, _) = users().filter(|(_, status)| *status == 200).last().unwrap();
    // The latest decision is of a node that decides.
    ask(&server, &last.to_string());
    assert_eq!(server.metric("limiter_server_store_up "), Some(0.0));
    acl(node, "default", "+evalsha +eval");
    until("the node decides, and the store is back", || {
        ask(&server, &refused.to_string());
        (server.metric("limiter_server_store_up ") == Some(1.0)).then_some(())
    });
}

#[test]
fn a_refused_login_is_an_outage_and_its_cause_is_logged_once() {
    let redis = Redis::start().unwrap();
    acl(&redis, "app", "on >right ~* +@all");
    let url = |login: &str, database: u8| {
        redis.url().replace("//", &format!("//{login}@")) + &format!("/{database}")
    };
    for (store, cause) in [
        (url("app:wrong", 0), "Password authentication failed"),
        (url("nobody:x", 0), "Password authentication failed"),
        (url("app:right", 99), "DB index is out of range"),
    ] {
        let server = Server::start(CONFIG, &["--store", &store]);
        until_away(&server, true);
        assert_eq!(asked(&server, "ann"), [200, 200, 200, 429], "{cause}");
        assert_eq!(server.logged("refused by the store, not an outage: "), 1);
        assert!(server.logged(cause) > 0, "{cause}");
    }
    // The password is changed while the server runs, and later the server's again.
    let server = Server::start(CONFIG, &["--store", &url("app:right", 0)]);
    until_away(&server, false);
    acl(&redis, "app", "resetpass >other");
    redis
        .command::<()>(&["CLIENT", "KILL", "USER", "app"])
        .unwrap();
    until_away(&server, true);
    assert_eq!(asked(&server, "bob"), [200, 200, 200, 429]);
    acl(&redis, "app", ">right");
    until_away(&server, false);
}

#[test]
fn a_redis_that_evicts_logs_is_reported_everywhere() {
    let warning = "Redis deletes logs when its memory runs short";
    for (policy, evicts) in [("allkeys-lru", true), ("noeviction", false)] {
        let redis = Redis::start_with(&["--maxmemory-policy", policy]).unwrap();
        let server = Server::start(CONFIG, &["--store", &redis.url()]);
        let text = if evicts {
            "OK, store evicts logs\n"
        } else {
            "OK\n"
        };
        until("the policy is read", || {
            (server.health() == (200, text.to_owned())).then_some(())
        });
        let number = f64::from(u8::from(evicts));
        assert_eq!(server.metric("limiter_server_store_evicts "), Some(number));
        let state: Value = serde_json::from_str(&server.admin("/page/state")).unwrap();
        let expected = format!("127.0.0.1:{}: {policy}", redis.port());
        let expected = if evicts { json!([expected]) } else { json!([]) };
        assert_eq!(state["store"]["evicting"], expected);
        assert_eq!(server.logged(warning), usize::from(evicts));
    }
}

#[test]
fn a_cluster_is_a_store_too() {
    let cluster = Cluster::start().unwrap();
    let server = Server::start(CONFIG, &["--store", &cluster.url()]);
    for user in ["a", "b", "c", "d", "e"] {
        assert_eq!(asked(&server, user), [200, 200, 200, 429]);
    }
    until("the cluster has the logs", || {
        (cluster.nodes().iter().map(keys).sum::<i64>() == 5).then_some(())
    });
}

#[tokio::test]
async fn wrong_options_end_the_program() {
    let (folder, config) = folder(CONFIG);
    let [empty, key] = ["empty", "server.key"].map(|name| folder.path().join(name));
    std::fs::write(&empty, "\n").unwrap();
    write_certificates(folder.path());
    let [config, empty, key] = [&config, &empty, &key].map(|path| shown(path));
    const TLS: &str = "--tls-cert CONFIG --tls-key CONFIG --tls-client-ca CONFIG --tls-client-name";
    let any = "127.0.0.1:0";
    let listener = TcpListener::bind(any).unwrap();
    let taken = listener.local_addr().unwrap().to_string();
    // The exit status and the options, besides `--config`. A `+` stands for a space.
    let lines = r#"
        2 => --config
        2 --store http://x => expected memory or the URL of Postgres or Redis: expected redis://
        2 --store "redis://u:secret@h" => without quotes
        2 --store REDIS://u:secret@h => found REDIS://
        2 --store redis://u:secret#@h => percent-encode
        1 --store redis://u:secret => --store: 
        1 --store redis://x --prefix a+b => prefix
        1 --store redis://[x => --store: 
        2 --store postgres://u:secret/@h => percent-encode
        2 --store postgresql://h?sslmode=prefer => expected one sslmode: disable, require or verify-full
        2 --store postgres://u:secret@h?schema=s => unknown option `schema`: write options=
        2 --store POSTGRES://u:secret@h => found POSTGRES://
        2 --store jdbc:postgresql://h/d?password=secret => found jdbc:postgresql://
        1 --store postgres://h --prefix a => --prefix: it is for Redis; for Postgres, choose a schema
        1 --store postgres://h --store-tls-ca EMPTY => need a URL with sslmode=require
        2 --grpc nowhere => expected HOST:PORT
        2 --grpc :8081 => expected HOST:PORT
        1 --grpc 192.0.2.1:1 => --grpc: cannot listen on 192.0.2.1:1
        1 --grpc 127.0.0.1:0 --http TAKEN => --http: cannot listen on
        2 --tls-cert CONFIG => --tls-key
        1 --tls-cert CONFIG --tls-key CONFIG => expected a private key
        1 --tls-cert EMPTY --tls-key KEY => empty: expected certificates in PEM, found none
        2 TLS *.example.com => expected a host name without wildcards, or an IP address
        2 TLS spiffe://d/x => expected a host name without wildcards, or an IP address
        2 TLS a+b => expected a host name without wildcards, or an IP address
        2 TLS CN=x => expected a host name without wildcards, or an IP address
        1 --admin-token-file EMPTY => expected a token of visible ASCII
        1 --admin-token-file /nowhere => /nowhere: No such file
        1 --config /nowhere => /nowhere: No such file
        1 --admin 0.0.0.0:0 --grpc 127.0.0.1:0 --http 127.0.0.1:0 => except on loopback, it needs --tls-cert, or --admin-plain
        1 --state /nowhere/counts => --state: /nowhere/counts: No such file
        1 --state EMPTY --store redis://a => --state: it needs --store memory
        1 --store rediss://a --store-tls-ca /nowhere => /nowhere: No such file
        1 --store redis://a --store-tls-ca EMPTY => requires a URL with the `rediss://` scheme
    "#;
    for (given, text) in rows(lines) {
        let (code, args) = given.split_once(' ').unwrap_or((given, ""));
        let config_too = !args.is_empty() && !args.contains("--config");
        let args = if config_too { "--config CONFIG " } else { "" }.to_owned() + args;
        let args = args.replace("TLS", TLS).replace("CONFIG", config);
        let args = args.replace("EMPTY", empty).replace("KEY", key);
        let args = args.replace("TAKEN", &taken);
        let args = args.split_whitespace().map(|arg| arg.replace('+', " "));
        let args: Vec<_> = ["limiter-server".to_owned()]
            .into_iter()
            .chain(args)
            .collect();
        // The command line exits with status 2.
        let (found, errors) = match Options::try_parse_from(&args) {
            Err(error) => ("2", error.to_string()),
            Ok(options) => {
                let started = run::Server::start(&options.serve.unwrap()).await;
                ("1", format!("{:#}", started.unwrap_err()))
            }
        };
        assert_eq!(found, code, "{args:?}: {errors}");
        assert!(errors.contains(text), "{args:?}: {errors}");
        assert!(!errors.contains("secret"), "{args:?}: {errors}");
    }
    for (url, code, text) in [
        ("http://x", 2, "expected memory or the URL"),
        ("redis://u:secret", 1, "limiter-server: --store: "),
    ] {
        let (mut command, _folder) = command(CONFIG);
        command.env("RUST_BACKTRACE", "1").args(["--store", url]);
        let (found, errors) = failed(&mut command);
        assert_eq!(found, Some(code), "{errors}");
        assert!(
            errors.contains(text) && !errors.contains("backtrace"),
            "{errors}"
        );
    }
}

#[test]
fn descriptors_of_one_key_are_one_operation() {
    let redis = Redis::start().unwrap();
    let url = redis.url();
    let patient = ["--store", &*url, "--store-timeout", "20s"];
    let server = Server::start(&CONFIG.replace(": 3", ": 1000"), &patient);
    let scripts = || {
        let stats = redis.info("commandstats").unwrap();
        let calls = stats.split_once("cmdstat_evalsha:calls=");
        let calls = calls.map_or("0", |(_, rest)| rest);
        calls.split(',').next().unwrap().parse::<u32>().unwrap()
    };
    let asked = |count| {
        let entry = json!({ "entries": [{ "key": "user", "value": "ann" }] });
        let body = json!({ "domain": "d", "descriptors": vec![entry; count] });
        server.post("/json", &body.to_string()).0
    };
    let before = scripts();
    assert_eq!([1_000, 1, 1_000].map(asked), [200, 429, 429]);
    // The server also asks once a second whether the store is down.
    let made = scripts() - before;
    assert!(made < 100, "{made} scripts for 3 requests");
}

#[test]
fn every_kind_of_url_is_a_store() {
    for url in [
        "memory",
        "redis://a",
        "rediss://a",
        "redis+unix:///a",
        "redis+cluster://a",
        "rediss+sentinel://a/m",
        "postgres://a",
        "postgresql://u:p@a:1,b/d?target_session_attrs=read-write&sslmode=verify-full",
    ] {
        assert_eq!(Server::start(CONFIG, &["--store", url]).health().0, 200);
    }
}
