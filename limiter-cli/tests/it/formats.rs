//! Real-world variants of the trace formats.

use std::process::Command;

use serde_json::Value;

use crate::common::{jsonl, stdout_of, text};

/// Returns the time and the key of every row.
fn rows(trace: impl AsRef<[u8]>) -> Vec<(u64, String)> {
    jsonl("1000/1s", trace)
        .iter()
        .map(|line| {
            (
                line["at_us"].as_u64().unwrap(),
                line["key"].as_str().unwrap().to_owned(),
            )
        })
        .collect()
}

fn row(at: u64, key: &str) -> (u64, String) {
    (at, key.to_owned())
}

#[test]
fn csv_variants() {
    let two = [row(0, "a"), row(1_500_000, "b")];
    for trace in [
        &b"at,key\n0,a\n1.5,b\n"[..],
        b"at,key\n0,a\n1.5,b",
        b"at,key\r\n0,a\r\n1.5,b\r\n",
        b"\xef\xbb\xbfat,key\n0,a\n1.5,b\n",
        b"\n\r\nat,key\n\n0,a\n\n\n1.5,b\n\n",
        b"key,at\na,0\nb,1.5\n",
        b"At, KEY\n 0 ,a\n1.500000 ,b\n",
        b"\"at\",\"key\"\n\"0\",\"a\"\n\"1.5\",\"b\"\n",
        b"method,at,status,key,path\nGET,0,200,a,/\nPUT,1.5,403,b,\"/x,\"\"y\"\"\"\n",
        b"at,key,cost,op\n0,a,,\n1.5,b,1,acquire\n",
        b"at,key\n0.0,a\n1.50000000000,b\n",
        b"\"two\nlines\",at,key\n,0,a\n,1.5,b\n",
        b"at,key\n1970-01-01T00:00:00Z,a\n1970-01-01T01:00:01.5+01:00,b\n",
    ] {
        assert_eq!(rows(trace), two, "{}", String::from_utf8_lossy(trace));
    }
}

#[test]
fn times_are_rounded_down_to_microseconds() {
    let trace = "at,key\n0.000001,k\n1431857103.25,k\n1431857103.999999,k\n9007199254.740991,k\n\
                 2015-05-17T10:05:03.000001Z,k\n2015-05-17t12:05:03+02:00,k\n2016-12-31T23:59:60.5Z,k\n\
                 0.0000019,k\n1431857103.9999999999999999999999999,k\n2015-05-17T10:05:03.000001999Z,k\n";
    let times: Vec<u64> = rows(trace).into_iter().map(|(at, _)| at).collect();
    let second = 1_431_857_103_000_000;
    // Unix time has no leap seconds: they count as the second before.
    let leap = 1_483_228_799_500_000;
    let expected = [
        1,
        second + 250_000,
        second + 999_999,
        (1 << 53) - 1,
        second + 1,
        second,
        leap,
        1,
        second + 999_999,
        second + 1,
    ];
    assert_eq!(times, expected);
}

#[test]
fn keys_are_any_bytes() {
    let long = "x".repeat(1 << 20);
    let trace = format!(
        "at,key\n0,\n1,\"a,b\"\n2,\"say \"\"hi\"\"\"\n3,\"two\nlines\"\n4, k \n5,ключ\n6,{long}\n"
    );
    let keys: Vec<String> = rows(trace).into_iter().map(|(_, key)| key).collect();
    assert_eq!(
        keys,
        ["", "a,b", "say \"hi\"", "two\nlines", " k ", "ключ", &long]
    );

    // Keys that are not UTF-8 stay distinct, although they print alike.
    let lines = jsonl("1/60s", b"at,key\n0,\xff\n0,\xfe\n0,\xff\n");
    let answers: Vec<(&Value, &Value)> = lines
        .iter()
        .map(|line| (&line["key"], &line["allowed"]))
        .collect();
    let shown = Value::from("\u{fffd}");
    let (yes, no) = (Value::Bool(true), Value::Bool(false));
    assert_eq!(answers, [(&shown, &yes), (&shown, &yes), (&shown, &no)]);
}

#[test]
fn access_log_variants() {
    let log = "1.2.3.4 - - [17/May/2015:10:05:03 +0000] \"GET / HTTP/1.1\" 200 12 \"-\" \"curl\"\r\n\
               \n\
               2001:db8::1 - frank [17/May/2015:12:05:04 +0200] \"GET / HTTP/1.1\" 200 12\n\
               host.example - two [words] [17/May/2015:05:05:05 -0500] \"-\" 408 0\n\
               1.2.3.4 - - [17/May/2015:10:05:03 +0000] \"GET /[17/May/2016:10:05:03 +0000] \"x\n\
               1.2.3.4 - - [17/May/2015:10:05:06 +0000] \"cut off";
    let second = 1_431_857_103_000_000;
    assert_eq!(
        rows(log),
        [
            row(second, "1.2.3.4"),
            row(second + 1_000_000, "2001:db8::1"),
            row(second + 2_000_000, "host.example"),
            row(second, "1.2.3.4"),
            row(second + 3_000_000, "1.2.3.4"),
        ]
    );
}

/// Programs that collect logs put a prefix before each line. The key is the client all the same.
#[test]
fn the_client_may_follow_a_prefix() {
    for (head, client) in [
        ("192.0.2.7 ident frank", "192.0.2.7"),
        ("192.0.2.7 ident -", "192.0.2.7"),
        ("192.0.2.7 - 10.0.0.1 - x", "192.0.2.7"),
        ("client.example - 192.0.2.7 - x", "client.example"),
        ("::ffff:192.0.2.7 - -", "::ffff:192.0.2.7"),
        ("example.com:443 192.0.2.7 - -", "192.0.2.7"),
        ("example.com 2001:db8::1 - two words", "2001:db8::1"),
        ("10.0.0.1 192.0.2.7 - -", "192.0.2.7"),
        ("10.0.0.1:80 192.0.2.7 - -", "192.0.2.7"),
        ("10.0.0.1 192.0.2.7 -", "192.0.2.7"),
        ("_ 192.0.2.7 - -", "192.0.2.7"),
        ("- 192.0.2.7 - -", "192.0.2.7"),
        ("nginx_1  | 192.0.2.7 - -", "192.0.2.7"),
        ("\u{1b}[36mweb-1  |\u{1b}[0m 192.0.2.7 - -", "192.0.2.7"),
        ("Jul  7 10:05:03 host nginx: 192.0.2.7 - -", "192.0.2.7"),
        (
            "<190>Jul 17 10:05:03 10.0.0.1 nginx[7]: 192.0.2.7 - -",
            "192.0.2.7",
        ),
        (
            "2015-05-17T10:05:03.123456+00:00 10.0.0.1 nginx: 192.0.2.7 - -",
            "192.0.2.7",
        ),
        ("2015-05-17T10:05:03.123456789Z 192.0.2.7 - -", "192.0.2.7"),
        (
            "2015-05-17T10:05:03.123456789Z stdout F 192.0.2.7 - -",
            "192.0.2.7",
        ),
    ] {
        let log = format!("{head} [17/May/2015:10:05:03 +0000] \"GET /\" 200 1\n");
        assert_eq!(rows(&log), [row(1_431_857_103_000_000, client)], "{head}");
    }
}

#[test]
fn a_log_may_start_with_a_malformed_line() {
    let log = "# Software: nginx\n1.2.3.4 - - [17/May/2015:10:05:03 +0000] \"GET /\" 200 1\n";
    let out = stdout_of(&["replay", "--limit", "3/60s", "--skip-invalid"], log);
    assert!(
        out.contains("\nskipped              1\n") && out.contains("\nrows                 1\n"),
        "{out}"
    );
}

#[test]
fn standard_input_is_the_default() {
    let trace = "at,key\n0,k\n";
    let args = ["replay", "--limit", "3/60s", "--output", "jsonl"];
    assert_eq!(
        stdout_of(&args, trace),
        stdout_of(&[&args[..], &["-"]].concat(), trace)
    );
}

#[test]
fn a_generated_trace_can_be_replayed() {
    let args = [
        "generate", "--rows", "5000", "--keys", "50", "--rate", "1000", "--seed", "7",
    ];
    let trace = stdout_of(&args, "");
    assert_eq!(trace, stdout_of(&args, ""));
    assert_ne!(trace, stdout_of(&[&args[..8], &["8"]].concat(), ""));
    let rows = rows(&trace);
    assert_eq!(rows.len(), 5000);
    assert!(rows.is_sorted_by_key(|(at, _)| *at));
    let seconds = (rows[4999].0 - rows[0].0) as f64 / 1e6;
    assert!((4.0..6.0).contains(&seconds), "{seconds}");
    let of = |name: &str| rows.iter().filter(|(_, key)| key == name).count();
    assert!(of("client-1") > 4 * of("client-10") && of("client-10") > 0);
}

#[test]
fn the_commands_of_the_readme_read_other_formats() {
    let readme = include_str!("../../README.md");
    let (_, section) = readme.split_once("### Other formats").unwrap();
    let commands: Vec<_> = section
        .split("```sh\n")
        .skip(1)
        .map(|rest| rest.split_once("\n```").unwrap().0)
        .filter(|command| command.contains("| limiter replay"))
        .collect();
    assert_eq!(commands.len(), 5, "{commands:?}");
    let run = |command: &str| {
        let command = command.replace(
            "| limiter ",
            concat!("| ", env!("CARGO_BIN_EXE_limiter"), " "),
        );
        let output = Command::new("sh")
            .args(["-c", &command])
            .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/data/formats"))
            .output()
            .unwrap();
        assert!(output.status.success(), "{command}: {output:?}");
        text(&output.stdout)
    };
    for command in commands {
        let rows = |options: &str| {
            let printed = run(&format!("{command} --output jsonl {options}"));
            let rows = printed.lines().map(|line| {
                let row: Value = serde_json::from_str(line).unwrap();
                let second = row["at_us"].as_u64().unwrap() / 1_000_000;
                (
                    second,
                    row["key"].as_str().unwrap().to_owned(),
                    row["allowed"] == true,
                )
            });
            rows.collect::<Vec<_>>()
        };
        let found = rows("");
        let start = 1_779_012_300; // 17 May 2026, 10:05 UTC
        let expected: Vec<_> = (0..10)
            .map(|i| {
                let key = match i {
                    2 => "2001:db8::a",
                    5 => "2001:db8::b",
                    8 => "2001:db8::c",
                    _ => "203.0.113.7",
                };
                (start + 4 * i, key.to_owned(), i < 7 || i == 8)
            })
            .collect();
        assert_eq!(found, expected, "{command}");
        let networks = rows("--client-prefix 64");
        let of_network = networks.iter().filter(|(_, key, _)| key == "2001:db8::/64");
        assert_eq!(of_network.count(), 3, "{command}");
    }
}
