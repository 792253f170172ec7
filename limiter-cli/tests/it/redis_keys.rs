//! The commands on live keys, on real servers.

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::time::{Duration, Instant};

use limiter_cli::redis::{connect, runtime};
use limiter_core::{Limit, Limiter};
use serde_json::{Value, json};
use testbed::server::{Cluster, Server};

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
                assert!(limiter.acquire(*key).await.unwrap().is_allowed());
            }
        }
    });
}

fn fill(url: &str, prefix: &str, keys: &[(&[u8], u64)]) {
    fill_as(NAME, url, prefix, keys);
}

/// Adds the name of the limiter to the arguments of a command if it is required.
fn named<'a>(args: &[&'a str]) -> Vec<&'a str> {
    let name = if args[0] == "list" || args.contains(&"--name") {
        &[][..]
    } else {
        &["--name", NAME]
    };
    [&["key"], &args[..1], name, &args[1..]].concat()
}

fn run(url: &str, args: &[&str]) -> String {
    stdout_of(&[&named(args)[..], &["--store", url]].concat(), "")
}

fn json_lines(url: &str, args: &[&str]) -> Vec<Value> {
    let out = run(url, &[args, &["--output", "jsonl"]].concat());
    out.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// Returns the keys that `list` prints.
fn listed(url: &str, args: &[&str]) -> BTreeSet<String> {
    let lines = json_lines(url, &[&["list"], args].concat());
    lines
        .iter()
        .map(|line| line["key"].as_str().unwrap().to_owned())
        .collect()
}

fn set(keys: &[&str]) -> BTreeSet<String> {
    keys.iter().map(ToString::to_string).collect()
}

#[test]
fn show_and_reset() {
    let server = Server::start().unwrap();
    let url = server.url();
    fill(&url, "limiter", &[(b"customer 7", 100), (b"customer 8", 1)]);
    let offset = server
        .info_number("replication", "master_repl_offset")
        .unwrap();

    let shown = run(
        &url,
        &[
            "show",
            "customer 7",
            "--limit",
            "100/10m",
            "--limit",
            "500/1h~1m",
        ],
    );
    let value = |name: &str| {
        let line = shown.lines().find(|line| line.starts_with(name));
        line.unwrap_or_else(|| panic!("{name}\n{shown}"))[15..].to_owned()
    };
    assert_eq!(
        (
            value("key").as_str(),
            value("entries").as_str(),
            value("cost").as_str()
        ),
        ("customer 7", "100", "100")
    );
    assert!(
        value("oldest").ends_with(" UTC") && value("newest").ends_with(" UTC"),
        "{shown}"
    );
    // The window, plus up to an eighth.
    assert!(
        ["9m 5", "10m", "11m"]
            .iter()
            .any(|least| value("expires after").starts_with(least)),
        "{shown}"
    );
    assert!(
        value("bytes").replace(',', "").parse::<u64>().unwrap() > 1_000,
        "{shown}"
    );
    assert!(
        shown.contains("\nlimit          100/10m: 100 used, 0 remaining\n"),
        "{shown}"
    );
    assert!(
        shown.contains("\nlimit          500/1h~1m: 100 used, 400 remaining\n"),
        "{shown}"
    );
    assert!(
        value("a request").starts_with("would be denied, retry after 9m 5"),
        "{shown}"
    );

    let one = &json_lines(&url, &["show", "customer 7", "--limit", "100/10m"])[0];
    assert_eq!(
        (&one["key"], &one["entries"], &one["allowed"]),
        (&"customer 7".into(), &100.into(), &false.into())
    );
    assert!(one["retry_after_us"].as_u64().unwrap() <= 600_000_000);
    assert!(one["oldest_us"].as_u64().unwrap() < one["newest_us"].as_u64().unwrap());
    assert_eq!(
        json_lines(&url, &["show", "customer 7"])[0].get("allowed"),
        None
    );
    let none = run(&url, &["show", "customer 9", "--limit", "100/10m"]);
    let expected = "name           search\nkey            customer 9\nlog            none\n\
                    limit          100/10m: 0 used, 100 remaining\na request      would be allowed\n";
    assert_eq!(none, expected);
    assert_eq!(
        server
            .info_number("replication", "master_repl_offset")
            .unwrap(),
        offset,
        "reading wrote to the server"
    );

    assert_eq!(
        run(&url, &["reset", "customer 7", "customer 9"]),
        "reset   customer 7\nno log  customer 9\n"
    );
    assert!(
        run(&url, &["show", "customer 7", "--limit", "100/10m"]).ends_with("would be allowed\n")
    );
    assert_eq!(json_lines(&url, &["show", "customer 8"])[0]["entries"], 1);

    // The server's clock was ahead by an hour, and is correct again.
    runtime().unwrap().block_on(async {
        let limit = Limit::new(100, Duration::from_secs(600)).unwrap();
        let limiter = Limiter::new(NAME, limit, connect(&url, "limiter").await.unwrap());
        let ahead = limiter.status("k").await.unwrap().at();
        let ahead = ahead.saturating_add(Duration::from_secs(3_600));
        assert!(limiter.record("k").cost(100).at(ahead).await.is_ok());
    });
    let shown = run(&url, &["show", "k", "--limit", "100/10m"]);
    let clock = "\nclock          the server's is 59m 5";
    assert!(shown.contains(clock), "{shown}");
    let wait = "\na request      would be denied, retry after 1h ";
    assert!(shown.contains(wait), "{shown}");
}

#[test]
fn list_selects_logs() {
    let server = Server::start().unwrap();
    let url = server.url();
    let keys: &[(&[u8], u64)] = &[
        (b"api:1", 100),
        (b"api:2", 99),
        (b"web:1", 100),
        (b"web:22", 3),
    ];
    fill(&url, "limiter", keys);
    fill(&url, "other", &[(b"api:3", 100)]);
    fill_as("login", &url, "limiter", &[(b"api:1", 3)]);
    server.command::<()>(&["SET", "limiter", "1"]).unwrap();
    server
        .command::<()>(&["ZADD", "limiter:", "1", "x"])
        .unwrap();
    let logs = |args: &str| -> BTreeSet<String> {
        let lines = json_lines(
            &url,
            &["list"]
                .into_iter()
                .chain(args.split_whitespace())
                .collect::<Vec<_>>(),
        );
        let text = |line: &Value, field: &str| line[field].as_str().unwrap().to_owned();
        lines
            .iter()
            .map(|line| {
                format!(
                    "{} {} {}",
                    text(line, "name"),
                    text(line, "key"),
                    line["entries"]
                )
            })
            .collect()
    };
    let [one, two, web] = ["search api:1 100", "search api:2 99", "search web:1 100"];
    let [rare, login] = ["search web:22 3", "login api:1 3"];
    for (args, expected) in [
        ("", &[one, two, web, rare, login][..]),
        ("--match web:*", &[web, rare]),
        ("--match web:?", &[web]),
        ("--name login", &[login]),
        ("--name nobody", &[]),
        ("--name search --match *2", &[two, rare]),
        // Each log is tried through the limiter that it belongs to.
        ("--over --limit 100/10m", &[one, web]),
        ("--over --limit 100/10m --match api*", &[one]),
        (
            "--over --limit 1000/10m --limit 3/5m",
            &[one, two, web, rare, login],
        ),
        ("--over --limit 3/10m --name login", &[login]),
        ("--over --limit 4/10m --name login", &[]),
        ("--prefix other", &["search api:3 100"]),
        ("--prefix nobody", &[]),
    ] {
        assert_eq!(logs(args), set(expected), "{args}");
    }
    let lines = json_lines(&url, &["list", "--limit", "100/10m", "--match", "api:2"]);
    assert_eq!(
        [
            &lines[0]["used"],
            &lines[0]["remaining"],
            &lines[0]["allowed"]
        ],
        [&json!(99), &json!(1), &json!(true)]
    );

    for (args, head, row) in [
        (
            "--limit 100/10m --over --match web*",
            "entries cost bytes expires after remaining retry after name key",
            &["search", "web:1"],
        ),
        (
            "--name login",
            "entries cost bytes expires after name key",
            &["login", "api:1"],
        ),
    ] {
        let table = run(
            &url,
            &["list"]
                .into_iter()
                .chain(args.split(' '))
                .collect::<Vec<_>>(),
        );
        let rows: Vec<Vec<&str>> = table
            .lines()
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!((rows.len(), rows[0].join(" ").as_str()), (2, head));
        assert!(
            rows[1].ends_with(row) && rows[1][0] == rows[1][1],
            "{table}"
        );
    }
    assert_eq!(
        run(&url, &["list", "--prefix", "nobody"]).lines().count(),
        1
    );

    let shown = run(&url, &["show", "api:1", "--name", "login"]);
    assert!(
        shown.starts_with("name           login\nkey            api:1\nentries        3\n"),
        "{shown}"
    );
    for answer in ["reset   api:1\n", "no log  api:1\n"] {
        assert_eq!(run(&url, &["reset", "api:1", "--name", "login"]), answer);
    }
    assert_eq!(logs(""), set(&[one, two, web, rare]));
    assert!(
        !server
            .info("commandstats")
            .unwrap()
            .contains("cmdstat_keys:")
    );
}

#[test]
fn list_covers_all_masters_of_a_cluster_and_many_pages() {
    let cluster = Cluster::start().unwrap();
    let names: Vec<String> = (0..4_000).map(|i| format!("key-{i}")).collect();
    let keys: Vec<(&[u8], u64)> = names
        .iter()
        .enumerate()
        .map(|(i, key)| (key.as_bytes(), 1 + i as u64 % 2))
        .collect();
    fill(&cluster.url(), "limiter", &keys);
    for node in cluster.nodes() {
        assert!(node.command::<i64>(&["DBSIZE"]).unwrap() > 1_000);
    }
    assert_eq!(listed(&cluster.url(), &[]), names.iter().cloned().collect());
    let over = listed(
        &cluster.url(),
        &["--over", "--limit", "2/10m", "--match", "key-29??"],
    );
    assert_eq!(
        over,
        names[2_900..3_000]
            .iter()
            .skip(1)
            .step_by(2)
            .cloned()
            .collect()
    );
    let reset: Vec<&str> = std::iter::once("reset")
        .chain(over.iter().map(String::as_str))
        .collect();
    assert_eq!(
        run(&cluster.url(), &reset).matches("reset   key-").count(),
        50
    );
    assert_eq!(listed(&cluster.url(), &["--match", "key-29??"]).len(), 50);
}

#[test]
fn printed_names_and_keys_can_be_used_as_arguments() {
    let server = Server::start().unwrap();
    let url = server.url();
    let long = "a very long name of a limiter";
    let names = [
        "a:b",
        "a",
        "100%",
        "{x}",
        "",
        "tab\t",
        "Zo\u{eb} 7",
        " ",
        "''",
        r"\",
        long,
    ];
    let keys: &[&[u8]] = &[
        b"",
        b"\xff\0\n",
        br"a\b",
        "Zo\u{eb} {7}".as_bytes(),
        b" % ",
        b"\x1b[2J",
        b"''",
        b"-x",
    ];
    names
        .iter()
        .for_each(|name| fill_as(name, &url, "limiter", &[(b"b:k", 1)]));
    fill(
        &url,
        "limiter",
        &keys.iter().map(|key| (*key, 1)).collect::<Vec<_>>(),
    );
    let lines = json_lines(&url, &["list"]);
    assert_eq!(lines.len(), names.len() + keys.len(), "{lines:?}");
    assert!(
        lines.iter().any(|line| line["key"] == r"\xff\x00\n"),
        "{lines:?}"
    );
    for line in &lines {
        let [name, key] = [&line["name"], &line["key"]].map(|text| text.as_str().unwrap());
        let table = run(&url, &["list", "--name", name]);
        assert!(
            table.lines().any(
                |row| row.contains(&format!("  {name} ")) && row.ends_with(&format!("  {key}"))
            )
        );
        let of = ["--name", name, "--store", &url, "--", key];
        let out = stdout_of(
            &[&["key", "show", "--output", "jsonl"], &of[..]].concat(),
            "",
        );
        let shown: Value = serde_json::from_str(&out).unwrap();
        assert_eq!(
            (&shown["name"], &shown["key"], &shown["entries"]),
            (&line["name"], &line["key"], &json!(1))
        );
        assert_eq!(
            stdout_of(&[&["key", "reset"], &of[..]].concat(), ""),
            format!("reset   {key}\n")
        );
    }
    assert_eq!(server.command::<i64>(&["DBSIZE"]).unwrap(), 0);
}

#[test]
fn digests_and_foreign_redis_keys() {
    let server = Server::start().unwrap();
    let url = server.url();
    let long = "x".repeat(300);
    fill(&url, "limiter", &[(long.as_bytes(), 2), (b"fine", 2)]);
    server
        .command::<()>(&["ZADD", "limiter:1:{search:broken}", "5", "foreign"])
        .unwrap();
    server
        .command::<()>(&["SET", "limiter:1:{search:string}", "1"])
        .unwrap();

    let table = run(&url, &["list"]);
    assert_eq!(table.lines().count(), 5, "{table}");
    assert!(
        table.contains("  (SHA-256 ") && table.contains("  broken (not a log)\n"),
        "{table}"
    );
    assert!(
        table.contains("  string (not a log)\n") && table.contains("  fine\n"),
        "{table}"
    );
    let lines = json_lines(&url, &["list"]);
    assert!(lines.iter().any(|line| {
        line["sha256"]
            .as_str()
            .is_some_and(|digest| digest.len() == 64)
    }));
    assert_eq!(
        lines
            .iter()
            .filter(|line| line["error"] == "not_a_log")
            .count(),
        2
    );

    let over = limiter(
        &["key", "list", "--over", "--limit", "2/10m", "--store", &url],
        "",
    );
    assert!(text(&over.stdout).ends_with("  fine\n") && text(&over.stdout).lines().count() == 2);
    assert!(
        text(&over.stderr).contains("could not be applied to 1 key, because"),
        "{}",
        text(&over.stderr)
    );
    assert!(
        text(&over.stderr).contains("2 keys without a log"),
        "{}",
        text(&over.stderr)
    );

    // The digest of a known key can be computed.
    assert_eq!(json_lines(&url, &["show", &long])[0]["entries"], 2);
    let (code, message) = failure(&named(&["show", "broken", "--store", &url]), "");
    assert!(
        code == 1 && message.contains("\"broken\"") && message.contains("reset removes it"),
        "{message}"
    );
    assert_eq!(
        run(&url, &["reset", "broken", "string"]),
        "reset   broken\nreset   string\n"
    );
    assert_eq!(listed(&url, &["--match", "*"]), set(&["fine"]));
}

#[test]
fn an_unreachable_server() {
    // This socket accepts connections but never replies.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    for scheme in ["redis", "redis+cluster"] {
        for (url, part) in [
            (format!("{scheme}://127.0.0.1:1"), "refused"),
            (
                format!("{scheme}://user:secret@127.0.0.1:{port}"),
                "127.0.0.1",
            ),
        ] {
            for command in [&["list"][..], &["show", "k"], &["reset", "k"]] {
                let started = Instant::now();
                let (code, message) =
                    failure(&[&named(command)[..], &["--store", &url]].concat(), "");
                assert_eq!(code, 1, "{message}");
                assert!(
                    started.elapsed() < Duration::from_secs(6),
                    "{url}: {:?}",
                    started.elapsed()
                );
                assert!(
                    message.starts_with("limiter: Redis URL") && message.contains(part),
                    "{message}"
                );
                assert!(
                    message.lines().count() == 1 && !message.contains("secret"),
                    "{message}"
                );
            }
        }
    }
}
