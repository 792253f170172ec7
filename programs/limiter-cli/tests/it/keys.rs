//! The commands on live keys, on real servers.

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::process::Command;
use std::time::{Duration, Instant};

use limiter_cli::store::{Logs, runtime};
use limiter_core::{Limiter, SharedStore, policy};
use serde_json::{Value, json};
use testbed::server::{Cluster, Postgres, Server};

use crate::common::{command, failure, limiter, stdout_of, text};

/// The name of the limiter in tests that need only one.
const NAME: &str = "search";

/// Returns a limiter with 100 units in 10 minutes.
async fn open(name: &str, url: &str, prefix: &str) -> Limiter<SharedStore> {
    let logs = Logs::open(&url.parse().unwrap(), prefix).await.unwrap();
    if let Logs::Postgres(store) = &logs {
        store.table().create().await.unwrap();
    }
    Limiter::new(name, policy!("100/10m"), logs.shared())
}

/// Acquires this many units of every key.
fn fill_as(name: &str, url: &str, prefix: &str, keys: &[(&[u8], u64)]) {
    runtime().unwrap().block_on(async {
        let limiter = open(name, url, prefix).await;
        for (key, count) in keys {
            for _ in 0..*count {
                assert!(limiter.acquire(*key).await.unwrap().is_allowed());
            }
        }
    });
}

fn fill(url: &str, keys: &[(&[u8], u64)]) {
    fill_as(NAME, url, "limiter", keys);
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
    let parse = |line| serde_json::from_str(line).unwrap();
    out.lines().map(parse).collect()
}

/// Returns the rows of `list`, with arguments between spaces.
fn list(url: &str, args: &str) -> Vec<Value> {
    let args = ["list"].into_iter().chain(args.split_whitespace());
    json_lines(url, &args.collect::<Vec<_>>())
}

fn field<'a>(line: &'a Value, name: &str) -> &'a str {
    line[name].as_str().unwrap()
}

/// Returns the keys that `list` prints.
fn listed(url: &str, args: &str) -> BTreeSet<String> {
    let key = |line: &Value| field(line, "key").to_owned();
    list(url, args).iter().map(key).collect()
}

fn writes(server: &Server) -> u64 {
    server
        .info_number("replication", "master_repl_offset")
        .unwrap()
}

/// Runs a test on Redis, with the server, and on Postgres.
fn on_each(test: impl Fn(&str, Option<&Server>)) {
    let server = Server::start().unwrap();
    let postgres = Postgres::start().unwrap();
    test(&server.url(), Some(&server));
    test(&postgres.url(), None);
}

#[test]
fn show_and_reset() {
    on_each(assert_show_and_reset);
}

fn assert_show_and_reset(url: &str, server: Option<&Server>) {
    fill(url, &[(b"customer 7", 100), (b"customer 8", 1)]);
    let before = server.map(writes);

    let limits = ["--limit", "100/10m", "--limit", "500/1h~1m"];
    let shown = run(url, &[&["show", "customer 7"], &limits[..]].concat());
    let value = |name: &str| {
        let line = shown.lines().find(|line| line.starts_with(name));
        line.unwrap_or_else(|| panic!("{name}\n{shown}"))[15..].to_owned()
    };
    let found = ["key", "entries", "cost"].map(value);
    assert_eq!(found, ["customer 7", "100", "100"]);
    assert!(
        ["oldest", "newest"]
            .map(value)
            .iter()
            .all(|time| time.ends_with(" UTC")),
        "{shown}"
    );
    // The window, plus up to an eighth.
    let left = value("expires after");
    assert!(
        ["9m 5", "10m", "11m"]
            .iter()
            .any(|least| left.starts_with(least)),
        "{left}"
    );
    assert!(
        value("bytes").replace(',', "").parse::<u64>().unwrap() > 300,
        "{shown}"
    );
    for line in [
        "limit          100/10m: 100 used, 0 remaining\n",
        "limit          500/1h~1m: 100 used, 400 remaining\n",
        "a request      would be denied, retry after 9m 5",
    ] {
        assert!(shown.contains(&format!("\n{line}")), "{shown}");
    }

    let one = &json_lines(url, &["show", "customer 7", "--limit", "100/10m"])[0];
    let found = [&one["key"], &one["entries"], &one["allowed"]];
    assert_eq!(found, [&json!("customer 7"), &json!(100), &json!(false)]);
    let number = |name: &str| one[name].as_u64().unwrap();
    assert!(number("retry_after_us") <= 600_000_000);
    assert!(number("oldest_us") < number("newest_us"));
    assert_eq!(
        json_lines(url, &["show", "customer 7"])[0].get("allowed"),
        None
    );
    let none = run(url, &["show", "customer 9", "--limit", "100/10m"]);
    let expected = "name           search\nkey            customer 9\nlog            none\n\
                    limit          100/10m: 0 used, 100 remaining\na request      would be allowed\n";
    assert_eq!(none, expected);
    assert_eq!(server.map(writes), before, "reading wrote to the server");

    let reset = named(&["reset", "customer 7", "customer 9"]);
    let mut reset = command(&[&reset[..], &["--store", url]].concat());
    let reset = reset
        .env_remove("SUDO_USER")
        .env("USER", "eve\n")
        .output()
        .unwrap();
    assert_eq!(
        text(&reset.stdout),
        "reset   customer 7\nno log  customer 9\n"
    );
    let note = r#"limiter: reset name="search" key="customer 7" user="eve\n" entries=100 cost=100"#;
    assert_eq!(text(&reset.stderr), format!("{note}\n"));
    let shown = run(url, &["show", "customer 7", "--limit", "100/10m"]);
    assert!(shown.ends_with("would be allowed\n"), "{shown}");
    assert_eq!(json_lines(url, &["show", "customer 8"])[0]["entries"], 1);

    // The server's clock was ahead by an hour, and is correct again.
    runtime().unwrap().block_on(async {
        let limiter = open(NAME, url, "limiter").await;
        let ahead = limiter.status("k").await.unwrap().at();
        let ahead = ahead.saturating_add(Duration::from_secs(3_600));
        assert!(limiter.record("k").cost(100).at(ahead).await.is_ok());
    });
    let shown = run(url, &["show", "k", "--limit", "100/10m"]);
    let clock = "\nclock          the server's is 59m 5";
    assert!(shown.contains(clock), "{shown}");
    let wait = "\na request      would be denied, retry after 1h ";
    assert!(shown.contains(wait), "{shown}");
}

#[test]
fn list_selects_logs() {
    on_each(assert_list);
}

fn assert_list(url: &str, server: Option<&Server>) {
    let keys: [(&[u8], u64); 4] = [
        (b"api:1", 100),
        (b"api:2", 99),
        (b"web:1", 100),
        (b"web:22", 3),
    ];
    fill(url, &keys);
    fill_as("login", url, "limiter", &[(b"api:1", 3)]);
    if let Some(server) = server {
        fill_as(NAME, url, "other", &[(b"api:3", 100)]);
        for foreign in [
            ["SET", "limiter", "1"].as_slice(),
            &["ZADD", "limiter:", "1", "x"],
        ] {
            server.command::<()>(foreign).unwrap();
        }
    }
    let logs = |args: &str| -> BTreeSet<String> {
        let log = |line: &Value| {
            let entries = &line["entries"];
            format!("{} {} {entries}", field(line, "name"), field(line, "key"))
        };
        list(url, args).iter().map(log).collect()
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
        let expected = expected.iter().map(ToString::to_string).collect();
        // Only Redis has prefixes.
        if server.is_some() || !args.contains("--prefix") {
            assert_eq!(logs(args), expected, "{args}");
        }
    }
    if server.is_some() {
        let mut list = command(&["key", "list", "--store", url]);
        let output = list.env("LIMITER_PREFIX", "other").output().unwrap();
        assert!(String::from_utf8_lossy(&output.stdout).contains("api:3"));
    }
    let line = &list(url, "--limit 100/10m --match api:2")[0];
    let found = [&line["used"], &line["remaining"], &line["allowed"]];
    assert_eq!(found, [&json!(99), &json!(1), &json!(true)]);

    for (args, head, row) in [
        (
            "--limit 100/10m --over --match web*",
            "entries cost bytes expires after remaining retry after name key",
            ["search", "web:1"],
        ),
        (
            "--name login",
            "entries cost bytes expires after name key",
            ["login", "api:1"],
        ),
    ] {
        let args: Vec<&str> = ["list"].into_iter().chain(args.split(' ')).collect();
        let table = run(url, &args);
        let words = |line: &'_ str| {
            line.split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        let rows: Vec<_> = table.lines().map(words).collect();
        assert_eq!((rows.len(), rows[0].join(" ").as_str()), (2, head));
        assert!(rows[1].ends_with(&row.map(str::to_owned)), "{table}");
        assert_eq!(rows[1][0], rows[1][1], "{table}");
    }
    assert_eq!(run(url, &["list", "--name", "nobody"]).lines().count(), 1);

    let shown = run(url, &["show", "api:1", "--name", "login"]);
    let expected = "name           login\nkey            api:1\nentries        3\n";
    assert!(shown.starts_with(expected), "{shown}");
    for answer in ["reset   api:1\n", "no log  api:1\n"] {
        assert_eq!(run(url, &["reset", "api:1", "--name", "login"]), answer);
    }
    assert!(!logs("").contains(login));
    let stats = server.map(|server| server.info("commandstats").unwrap());
    assert!(
        stats.is_none_or(|stats| !stats.contains("cmdstat_keys:")),
        "KEYS blocks the server"
    );
}

#[test]
fn list_covers_all_masters_of_a_cluster_and_many_pages() {
    let cluster = Cluster::start().unwrap();
    let names: Vec<String> = (0..4_000).map(|i| format!("key-{i}")).collect();
    let keys = names.iter().zip([1, 2].into_iter().cycle());
    let keys: Vec<_> = keys.map(|(key, units)| (key.as_bytes(), units)).collect();
    fill(&cluster.url(), &keys);
    for node in cluster.nodes() {
        assert!(node.command::<i64>(&["DBSIZE"]).unwrap() > 1_000);
    }
    assert_eq!(listed(&cluster.url(), ""), names.iter().cloned().collect());
    let over = listed(&cluster.url(), "--over --limit 2/10m --match key-29??");
    let odd = names[2_900..3_000].iter().skip(1).step_by(2);
    assert_eq!(over, odd.cloned().collect());
    let reset: Vec<&str> = ["reset"]
        .into_iter()
        .chain(over.iter().map(String::as_str))
        .collect();
    let answers = run(&cluster.url(), &reset);
    assert_eq!(answers.matches("reset   key-").count(), 50);
    assert_eq!(listed(&cluster.url(), "--match key-29??").len(), 50);
}

#[test]
fn printed_names_and_keys_can_be_used_as_arguments() {
    on_each(assert_printed);
}

fn assert_printed(url: &str, server: Option<&Server>) {
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
    for name in names {
        fill_as(name, url, "limiter", &[(b"b:k", 1)]);
    }
    let bytes: [&[u8]; 8] = [
        b"",
        b"\xff\0\n",
        br"a\b",
        "Zo\u{eb} {7}".as_bytes(),
        b" % ",
        b"\x1b[2J",
        b"''",
        b"-x",
    ];
    fill(url, &bytes.map(|key| (key, 1)));
    let lines = list(url, "");
    assert_eq!(lines.len(), names.len() + bytes.len(), "{lines:?}");
    assert!(
        lines.iter().any(|line| line["key"] == r"\xff\x00\n"),
        "{lines:?}"
    );
    for line in &lines {
        let name = field(line, "name");
        let key = field(line, "key");
        let table = run(url, &["list", "--name", name]);
        let name_cell = format!("  {name} ");
        let key_cell = format!("  {key}");
        let is_row = |row: &str| row.contains(&name_cell) && row.ends_with(&key_cell);
        assert!(table.lines().any(is_row), "{table}");
        let key_command = |verb: &[&str]| {
            let of = ["--name", name, "--store", url, "--", key];
            stdout_of(&[&["key"], verb, &of].concat(), "")
        };
        let shown = key_command(&["show", "--output", "jsonl"]);
        let shown: Value = serde_json::from_str(&shown).unwrap();
        assert_eq!((field(&shown, "name"), field(&shown, "key")), (name, key));
        assert_eq!(shown["entries"], 1);
        assert_eq!(key_command(&["reset"]), format!("reset   {key}\n"));
    }
    assert!(list(url, "").is_empty());
    let keys = server.map(|server| server.command::<i64>(&["DBSIZE"]).unwrap());
    assert_eq!(keys.unwrap_or_default(), 0);
}

#[test]
fn digests_and_foreign_data() {
    on_each(assert_digests);
}

fn assert_digests(url: &str, server: Option<&Server>) {
    let long = "x".repeat(300);
    fill(url, &[(long.as_bytes(), 2), (b"fine", 2)]);
    if let Some(server) = server {
        for foreign in [
            ["ZADD", "limiter:1:{search:broken}", "5", "foreign"].as_slice(),
            &["SET", "limiter:1:{search:string}", "1"],
        ] {
            server.command::<()>(foreign).unwrap();
        }
    } else {
        let rows = "INSERT INTO limiter_logs SELECT key::bytea, 'foreign', now() \
                    FROM unnest('{search:broken,search:string,other}'::text[]) AS key";
        let psql = Command::new("psql").args(["-qd", url, "-c", rows]).status();
        assert!(psql.unwrap().success());
    }
    let table = run(url, &["list"]);
    assert_eq!(table.lines().count(), 5, "{table}");
    for cell in [
        "(SHA-256 ",
        "broken (not a log)\n",
        "string (not a log)\n",
        "fine\n",
    ] {
        assert!(table.contains(&format!("  {cell}")), "{table}");
    }
    let lines = list(url, "");
    let is_digest = |line: &Value| line["sha256"].as_str().is_some_and(|hex| hex.len() == 64);
    assert!(lines.iter().any(is_digest));
    assert_eq!(
        lines
            .iter()
            .filter(|line| line["error"] == "not_a_log")
            .count(),
        2
    );

    let over = ["key", "list", "--over", "--limit", "2/10m", "--store", url];
    let over = limiter(&over, "");
    let out = text(&over.stdout);
    let messages = text(&over.stderr);
    assert!(
        out.ends_with("  fine\n") && out.lines().count() == 2,
        "{out}"
    );
    assert!(
        messages.contains("could not be applied to 1 key, because"),
        "{messages}"
    );
    assert!(messages.contains("2 keys without a log"), "{messages}");

    // The digest of a known key can be computed.
    assert_eq!(json_lines(url, &["show", &long])[0]["entries"], 2);
    let (code, message) = failure(&named(&["show", "broken", "--store", url]), "");
    let explains = message.contains("\"broken\"") && message.contains("reset removes it");
    assert!(code == 1 && explains, "{message}");
    let reset = run(url, &["reset", "broken", "string"]);
    assert_eq!(reset, "reset   broken\nreset   string\n");
    assert_eq!(listed(url, "--match *"), ["fine".to_owned()].into());
}

#[test]
fn an_unreachable_server() {
    // This socket accepts connections but never replies.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    let fails = |url: &str, command: &str, start: &str, part: &str| {
        // How long a program takes to start on this machine.
        let started = Instant::now();
        stdout_of(&["--help"], "");
        let empty = started.elapsed();
        let started = Instant::now();
        let args: Vec<_> = command.split(' ').chain(["--store", url]).collect();
        let (code, message) = failure(&named(&args), "");
        let most = Duration::from_secs(6) + 8 * empty;
        assert!(started.elapsed() < most, "{url}: more than {most:?}");
        let names = message.starts_with(start) && message.contains(part);
        assert!(code == 1 && names, "{message}");
        let is_line = message.lines().count() == 1;
        assert!(is_line && !message.contains("secret"), "{message}");
    };
    // Each waits for seconds.
    std::thread::scope(|scope| {
        for (scheme, start, late) in [
            ("redis", "limiter: Redis URL", "127.0.0.1"),
            ("redis+cluster", "limiter: Redis URL", "127.0.0.1"),
            ("postgres", "limiter: ", "Postgres: no response within 2s"),
        ] {
            let nobody = format!("{scheme}://127.0.0.1:1");
            let silent = format!("{scheme}://user:secret@127.0.0.1:{port}");
            for (url, part) in [(nobody, "refused"), (silent, late)] {
                for command in ["list", "show k", "reset k"] {
                    let url = url.clone();
                    scope.spawn(move || fails(&url, command, start, part));
                }
            }
        }
    });
}
