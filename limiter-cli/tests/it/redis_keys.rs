//! The commands on live keys, on real servers.

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::time::{Duration, Instant};

use limiter_cli::redis::{connect, runtime};
use limiter_core::{Limit, Limiter};
use limiter_testkit::server::{Cluster, Server};
use serde_json::Value;

use crate::common::{failure, limiter, stdout_of, text};

/// The name of the limiter in tests that need only one.
const NAME: &str = "search";

/// Acquires this many units of every key, through a limiter with 100 units in 10 minutes.
fn fill_as(name: &str, url: &str, prefix: &str, keys: &[(&[u8], u64)]) {
    runtime().unwrap().block_on(async {
        let limit = Limit::new(100, Duration::from_secs(600)).unwrap();
        let limiter = Limiter::new(name, limit, connect(url, prefix).await.unwrap());
        for (key, count) in keys {
            for _ in 0..*count {
                assert!(limiter.acquire(*key).await.unwrap().allowed());
            }
        }
    });
}

fn fill(url: &str, prefix: &str, keys: &[(&[u8], u64)]) {
    fill_as(NAME, url, prefix, keys);
}

/// Adds the name of the limiter to the arguments of a command if it is required.
fn named<'a>(args: &[&'a str]) -> Vec<&'a str> {
    let name = if args[0] == "list" || args.contains(&"--name") { &[][..] } else { &["--name", NAME] };
    [&["key"], &args[..1], name, &args[1..]].concat()
}

fn run(url: &str, args: &[&str]) -> String {
    stdout_of(&[&named(args)[..], &["--store", url]].concat(), "")
}

fn json(url: &str, args: &[&str]) -> Vec<Value> {
    let out = run(url, &[args, &["--output", "jsonl"]].concat());
    out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Returns the keys that `list` prints.
fn listed(url: &str, args: &[&str]) -> BTreeSet<String> {
    let lines = json(url, &[&["list"], args].concat());
    lines.iter().map(|line| line["key"].as_str().unwrap().to_owned()).collect()
}

fn set(keys: &[&str]) -> BTreeSet<String> {
    keys.iter().map(ToString::to_string).collect()
}

#[test]
fn show_and_reset() {
    let server = Server::start().unwrap();
    let url = server.url();
    fill(&url, "limiter", &[(b"customer 7", 100), (b"customer 8", 1)]);
    let offset = server.info_number("replication", "master_repl_offset").unwrap();

    let shown = run(&url, &["show", "customer 7", "--limit", "100/10m", "--limit", "500/1h~1m"]);
    let value = |name: &str| {
        let line = shown.lines().find(|line| line.starts_with(name));
        line.unwrap_or_else(|| panic!("{name}\n{shown}"))[15..].to_owned()
    };
    assert_eq!(
        (value("key").as_str(), value("entries").as_str(), value("cost").as_str()),
        ("customer 7", "100", "100")
    );
    assert!(value("oldest").ends_with(" UTC") && value("newest").ends_with(" UTC"), "{shown}");
    // The window, plus up to an eighth.
    assert!(["9m 5", "10m", "11m"].iter().any(|least| value("expires after").starts_with(least)), "{shown}");
    assert!(value("bytes").replace(',', "").parse::<u64>().unwrap() > 1_000, "{shown}");
    assert!(shown.contains("\nlimit          100/10m: 100 used, 0 remaining\n"), "{shown}");
    assert!(shown.contains("\nlimit          500/1h~1m: 100 used, 400 remaining\n"), "{shown}");
    assert!(value("a request").starts_with("would be denied, retry after 9m 5"), "{shown}");

    let one = &json(&url, &["show", "customer 7", "--limit", "100/10m"])[0];
    assert_eq!((&one["key"], &one["entries"], &one["allowed"]), (&"customer 7".into(), &100.into(), &false.into()));
    assert!(one["retry_after_us"].as_u64().unwrap() <= 600_000_000);
    assert!(one["oldest_us"].as_u64().unwrap() < one["newest_us"].as_u64().unwrap());
    assert_eq!(json(&url, &["show", "customer 7"])[0].get("allowed"), None);
    let none = run(&url, &["show", "customer 9", "--limit", "100/10m"]);
    let expected = "name           search\nkey            customer 9\nlog            none\n\
                    limit          100/10m: 0 used, 100 remaining\na request      would be allowed\n";
    assert_eq!(none, expected);
    assert_eq!(server.info_number("replication", "master_repl_offset").unwrap(), offset, "reading wrote to the server");

    assert_eq!(run(&url, &["reset", "customer 7", "customer 9"]), "reset   customer 7\nno log  customer 9\n");
    assert!(run(&url, &["show", "customer 7", "--limit", "100/10m"]).ends_with("would be allowed\n"));
    assert_eq!(json(&url, &["show", "customer 8"])[0]["entries"], 1);
}

#[test]
fn list_all_keys_and_those_over_the_limit() {
    let server = Server::start().unwrap();
    let url = server.url();
    let keys: &[(&[u8], u64)] = &[(b"api:1", 100), (b"api:2", 99), (b"web:1", 100), (b"web:22", 3)];
    fill(&url, "limiter", keys);
    fill(&url, "other", &[(b"api:3", 100)]);
    server.command(&["SET", "limiter", "1"]).unwrap();
    server.command(&["ZADD", "limiter:", "1", "x"]).unwrap();

    for (args, expected) in [
        ("", &["api:1", "api:2", "web:1", "web:22"][..]),
        ("--match web:*", &["web:1", "web:22"]),
        ("--match web:?", &["web:1"]),
        ("--over --limit 100/10m", &["api:1", "web:1"]),
        ("--over --limit 100/10m --match api*", &["api:1"]),
        ("--over --limit 1000/10m --limit 3/5m", &["api:1", "api:2", "web:1", "web:22"]),
        ("--prefix other", &["api:3"]),
        ("--prefix nobody", &[]),
    ] {
        assert_eq!(listed(&url, &args.split_whitespace().collect::<Vec<_>>()), set(expected), "{args}");
    }
    let lines = json(&url, &["list", "--limit", "100/10m", "--match", "api:2"]);
    assert_eq!(
        (&lines[0]["used"], &lines[0]["remaining"], &lines[0]["allowed"]),
        (&99.into(), &1.into(), &true.into())
    );

    let table = run(&url, &["list", "--limit", "100/10m", "--over", "--match", "web*"]);
    let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0].join(" "), "entries cost bytes expires after remaining retry after name key");
    assert_eq!((rows.len(), rows[1][0], rows[1][1], rows[1].last()), (2, "100", "100", Some(&"web:1")));
    assert_eq!(run(&url, &["list", "--prefix", "nobody"]).lines().count(), 1);

    assert!(!server.info("commandstats").unwrap().contains("cmdstat_keys:"));
}

#[test]
fn two_limiters_with_one_key() {
    let server = Server::start().unwrap();
    let url = server.url();
    fill_as("search", &url, "limiter", &[(b"customer 7", 100), (b"customer 8", 1)]);
    fill_as("login", &url, "limiter", &[(b"customer 7", 3)]);
    let logs = |args: &str| -> BTreeSet<String> {
        let lines = json(&url, &["list"].into_iter().chain(args.split_whitespace()).collect::<Vec<_>>());
        lines.iter().map(|line| format!("{}, {}, {}", line["name"], line["key"], line["entries"])).collect()
    };
    let [search, other] = [r#""search", "customer 7", 100"#, r#""search", "customer 8", 1"#];
    let login = r#""login", "customer 7", 3"#;
    for (args, expected) in [
        ("", &[search, other, login][..]),
        ("--name login", &[login]),
        ("--name nobody", &[]),
        ("--name search --match *7", &[search]),
        // Each log is tried through the limiter that it belongs to.
        ("--over --limit 3/10m", &[search, login]),
        ("--over --limit 4/10m", &[search]),
        ("--over --limit 3/10m --name login", &[login]),
    ] {
        assert_eq!(logs(args), set(expected), "{args}");
    }

    let table = run(&url, &["list", "--name", "login"]);
    let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0].join(" "), "entries cost bytes expires after name key");
    assert_eq!((rows.len(), &rows[1][rows[1].len() - 3..]), (2, &["login", "customer", "7"][..]));
    let shown = run(&url, &["show", "customer 7", "--name", "login"]);
    assert!(shown.starts_with("name           login\nkey            customer 7\nentries        3\n"), "{shown}");
    let shown = &json(&url, &["show", "customer 7", "--name", "search"])[0];
    assert_eq!((&shown["name"], &shown["entries"]), (&"search".into(), &100.into()));

    assert_eq!(run(&url, &["reset", "customer 7", "--name", "search"]), "reset   customer 7\n");
    assert_eq!(run(&url, &["reset", "customer 7", "--name", "search"]), "no log  customer 7\n");
    assert_eq!(logs(""), set(&[other, login]));
}

#[test]
fn printed_names_can_be_used_as_arguments() {
    let server = Server::start().unwrap();
    let url = server.url();
    let long = "a very long name of a limiter";
    let names = ["search", "a:b", "a", "100%", "{x}", "", "tab\t", "Zo\u{eb} 7", " ", "''", r"\", long];
    for name in names {
        fill_as(name, &url, "limiter", &[(b"b:k", 1)]);
    }
    let lines = json(&url, &["list"]);
    assert_eq!(lines.len(), names.len(), "{lines:?}");
    for name in lines.iter().map(|line| line["name"].as_str().unwrap()) {
        assert_eq!(json(&url, &["list", "--name", name]).len(), 1, "{name}");
        assert_eq!(json(&url, &["show", "b:k", "--name", name])[0]["name"], name);
        let table = run(&url, &["list", "--name", name]);
        assert!(table.lines().last().unwrap().ends_with("  b:k") && table.contains(&format!("  {name} ")), "{table}");
        assert_eq!(run(&url, &["reset", "b:k", "--name", name]), "reset   b:k\n");
    }
    assert_eq!(server.command(&["DBSIZE"]).unwrap().int(), 0);
}

#[test]
fn many_keys_on_many_pages() {
    let server = Server::start().unwrap();
    let names: Vec<String> = (0..3_000).map(|i| format!("key-{i}")).collect();
    let keys: Vec<(&[u8], u64)> = names.iter().map(|name| (name.as_bytes(), 1)).collect();
    fill(&server.url(), "limiter", &keys);
    assert_eq!(listed(&server.url(), &[]), names.iter().cloned().collect());
    let over = listed(&server.url(), &["--over", "--limit", "1/10m", "--match", "key-29??"]);
    assert_eq!(over.len(), 100);
    assert!(server.info("commandstats").unwrap().contains("cmdstat_scan:"));
}

#[test]
fn list_covers_all_masters_of_a_cluster() {
    let cluster = Cluster::start().unwrap();
    let names: Vec<String> = (0..300).map(|i| format!("key-{i}")).collect();
    let keys: Vec<(&[u8], u64)> = names.iter().enumerate().map(|(i, key)| (key.as_bytes(), 1 + i as u64 % 2)).collect();
    fill(&cluster.url(), "limiter", &keys);
    for node in cluster.nodes() {
        assert!(node.command(&["DBSIZE"]).unwrap().int() > 50);
    }
    assert_eq!(listed(&cluster.url(), &[]), names.iter().cloned().collect());
    let over: BTreeSet<String> = names.iter().skip(1).step_by(2).cloned().collect();
    assert_eq!(listed(&cluster.url(), &["--over", "--limit", "2/10m"]), over);
    let reset: Vec<&str> = std::iter::once("reset").chain(over.iter().map(String::as_str)).collect();
    assert_eq!(run(&cluster.url(), &reset).matches("reset   key-").count(), 150);
    assert_eq!(listed(&cluster.url(), &["--over", "--limit", "2/10m"]), set(&[]));
    assert_eq!(listed(&cluster.url(), &[]).len(), 150);
}

#[test]
fn printed_keys_can_be_used_as_arguments() {
    let server = Server::start().unwrap();
    let url = server.url();
    let keys: &[&[u8]] = &[b"", b"\xff\0\n", br"a\b", "Zo\u{eb} {7}".as_bytes(), b" % ", b"\x1b[2J", b"''", b"-x"];
    fill(&url, "limiter", &keys.iter().map(|key| (*key, 1)).collect::<Vec<_>>());
    for hex in [&["--hex"][..], &[]] {
        let found = listed(&url, hex);
        assert_eq!(found.len(), keys.len(), "{found:?}");
        for key in &found {
            let args = [&["show", "--output", "jsonl", "--store", &url], hex, &["--", key]].concat();
            let shown: Value = serde_json::from_str(&stdout_of(&named(&args), "")).unwrap();
            assert_eq!((shown["key"].as_str().unwrap(), &shown["entries"]), (key.as_str(), &1.into()));
        }
        assert!(found.contains(if hex.is_empty() { r"\xff\x00\n" } else { "ff000a" }), "{found:?}");
    }
    for key in listed(&url, &[]) {
        let out = stdout_of(&named(&["reset", "--store", &url, "--", &key]), "");
        assert_eq!(out, format!("reset   {key}\n"));
    }
    assert_eq!(server.command(&["DBSIZE"]).unwrap().int(), 0);
}

#[test]
fn digests_and_foreign_redis_keys() {
    let server = Server::start().unwrap();
    let url = server.url();
    let long = "x".repeat(300);
    fill(&url, "limiter", &[(long.as_bytes(), 2), (b"fine", 2)]);
    server.command(&["ZADD", "limiter:{search:broken}", "5", "foreign"]).unwrap();
    server.command(&["SET", "limiter:{search:string}", "1"]).unwrap();

    let table = run(&url, &["list"]);
    assert_eq!(table.lines().count(), 5, "{table}");
    assert!(table.contains("  (SHA-256 ") && table.contains("  broken (not a log)\n"), "{table}");
    assert!(table.contains("  string (not a log)\n") && table.contains("  fine\n"), "{table}");
    let lines = json(&url, &["list"]);
    assert!(lines.iter().any(|line| line["sha256"].as_str().is_some_and(|digest| digest.len() == 64)));
    assert_eq!(lines.iter().filter(|line| line["error"] == "not_a_log").count(), 2);

    let over = limiter(&["key", "list", "--over", "--limit", "2/10m", "--store", &url], "");
    assert!(text(&over.stdout).ends_with("  fine\n") && text(&over.stdout).lines().count() == 2);
    assert!(text(&over.stderr).contains("could not be tried on 1 key, of which"), "{}", text(&over.stderr));
    assert!(text(&over.stderr).contains("2 keys without a log"), "{}", text(&over.stderr));

    // The digest of a known key can be computed.
    assert_eq!(json(&url, &["show", &long])[0]["entries"], 2);
    let (code, message) = failure(&named(&["show", "broken", "--store", &url]), "");
    assert!(code == 1 && message.contains("\"broken\"") && message.contains("reset removes it"), "{message}");
    assert_eq!(run(&url, &["reset", "broken", "string"]), "reset   broken\nreset   string\n");
    assert_eq!(listed(&url, &["--match", "*"]), set(&["fine"]));
}

#[test]
fn an_unreachable_server() {
    // This socket accepts connections but never answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    for scheme in ["redis", "redis+cluster"] {
        for (url, part) in [
            (format!("{scheme}://127.0.0.1:1"), "refused"),
            (format!("{scheme}://user:secret@127.0.0.1:{port}"), "127.0.0.1"),
        ] {
            for command in [&["list"][..], &["show", "k"], &["reset", "k"]] {
                let started = Instant::now();
                let (code, message) = failure(&[&named(command)[..], &["--store", &url]].concat(), "");
                assert_eq!(code, 1, "{message}");
                assert!(started.elapsed() < Duration::from_secs(6), "{url}: {:?}", started.elapsed());
                assert!(message.starts_with("limiter: Redis URL") && message.contains(part), "{message}");
                assert!(message.lines().count() == 1 && !message.contains("secret"), "{message}");
            }
        }
    }
}
