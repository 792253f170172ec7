//! Real-world variants of the trace formats.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use limiter_cli::escape::unescape;
use serde_json::Value;

use crate::common::{failure, jsonl, stdout_of, text};

/// Returns the time in microseconds and the key of every row.
fn rows(trace: impl AsRef<[u8]>) -> Vec<String> {
    let row = |line: &Value| format!("{} {}", line["at_us"], line["key"].as_str().unwrap());
    jsonl("1000/1s", trace).iter().map(row).collect()
}

/// Each row has the same trace in one or several variants, and its times and keys.
#[test]
fn each_trace_is_read() {
    for row in include_str!("../messages/rows.txt").lines() {
        let (trace, expected) = row.rsplit_once(" => ").unwrap();
        let found = rows(unescape(trace.as_bytes()).unwrap());
        assert_eq!(found.join("; "), expected, "{trace}");
    }
    let long = "x".repeat(1 << 20);
    assert_eq!(
        rows(format!("at,key\n6,{long}\n")),
        [format!("6000000 {long}")]
    );
}

/// They stay distinct, although they print alike.
#[test]
fn keys_need_not_be_utf_8() {
    let lines = jsonl("1/60s", b"at,key\n0,\xff\n0,\xfe\n0,\xff\n");
    assert!(lines.iter().all(|line| line["key"] == "\u{fffd}"));
    let allowed: Vec<_> = lines.iter().map(|line| line["allowed"] == true).collect();
    assert_eq!(allowed, [true, true, false]);
}

/// Programs that collect logs put a prefix before each line. The key is the client all the same. Each row has the part of a line
/// before the time, and the client. Without one, or with several, the line is malformed.
#[test]
fn the_client_may_follow_a_prefix() {
    for row in include_str!("../messages/clients.txt").lines() {
        let (head, client) = row.rsplit_once(" => ").unwrap();
        let head = text(&unescape(head.as_bytes()).unwrap());
        let log = format!("{head} [17/May/2015:10:05:03 +0000] \"GET /\" 200 1\n");
        if client != "none" {
            assert_eq!(rows(&log), [format!("1431857103000000 {client}")], "{row}");
            continue;
        }
        let (status, stderr) = failure(&["replay", "--limit", "3/60s"], &log);
        let expected =
            "limiter: standard input: line 1: expected one client address before the identity, ";
        assert!(
            status == 2 && stderr.starts_with(expected),
            "{row}: {stderr}"
        );
        assert!(
            stderr.ends_with(&format!("found \"{head}\"\n")),
            "{row}: {stderr}"
        );
    }
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

/// Returns the commands of the README that read other formats.
fn commands() -> Vec<String> {
    let readme = include_str!("../../README.md");
    let (_, section) = readme.split_once("### Other formats").unwrap();
    let mut commands: Vec<_> = section
        .split("```sh\n")
        .skip(1)
        .map(|rest| rest.split_once("\n```").unwrap().0)
        .filter(|command| command.contains("| limiter replay"))
        .flat_map(|command| [command.to_owned(), command.replace("cloudfront", "iis")])
        .collect();
    commands.dedup();
    assert_eq!(commands.len(), 5, "{commands:?}");
    commands
}

const FORMATS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/data/formats");

fn run(command: &str, folder: &Path) -> Output {
    let program = concat!("| ", env!("CARGO_BIN_EXE_limiter"), " ");
    let command = command.replace("| limiter ", program);
    let mut shell = Command::new("sh");
    let shell = shell.current_dir(folder).args(["-c", &command]);
    shell.output().unwrap()
}

/// The same logs as other programs write them: with other line ends, empty lines, and ports.
fn rewritten(folder: &Path) {
    for file in fs::read_dir(FORMATS).unwrap() {
        let file = file.unwrap();
        let text = fs::read_to_string(file.path()).unwrap();
        let text = match file.file_name().to_str().unwrap() {
            "iis.log" | "cloudfront.log" => text.replace("203.0.113.7", "203.0.113.7:4711"),
            _ => text,
        };
        let text = format!("{}\r\n", text.replace('\n', "\r\n"));
        fs::write(folder.join(file.file_name()), text).unwrap();
    }
}

#[test]
fn the_commands_of_the_readme_read_other_formats() {
    let folder = tempfile::tempdir().unwrap();
    rewritten(folder.path());
    for folder in [Path::new(FORMATS), folder.path()] {
        commands_read(folder);
    }
}

fn commands_read(folder: &Path) {
    let run = |command: &str| {
        let output = run(command, folder);
        assert!(output.status.success(), "{command}: {output:?}");
        text(&output.stdout)
    };
    let key = |i| match i {
        2 => "2001:db8::a",
        5 => "2001:db8::b",
        8 => "2001:db8::c",
        _ => "203.0.113.7",
    };
    for command in &commands() {
        let rows = |options: &str| {
            let printed = run(&format!("{command} --output jsonl {options}"));
            let row = |line: &str| {
                let row: Value = serde_json::from_str(line).unwrap();
                let second = row["at_us"].as_u64().unwrap() / 1_000_000;
                let key = row["key"].as_str().unwrap().to_owned();
                (second, key, row["allowed"] == true)
            };
            printed.lines().map(row).collect::<Vec<_>>()
        };
        let start = 1_779_012_300; // 17 May 2026, 10:05 UTC
        let row = |i: u64| (start + 4 * i, key(i).to_owned(), i < 7 || i == 8);
        assert_eq!(rows(""), (0..10).map(row).collect::<Vec<_>>(), "{command}");
        let networks = rows("--client-prefix 64");
        let of_network = networks.iter().filter(|(_, key, _)| key == "2001:db8::/64");
        assert_eq!(of_network.count(), 3, "{command}");
    }
}

#[test]
fn a_field_that_is_not_logged_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    for file in fs::read_dir(FORMATS).unwrap() {
        let file = file.unwrap();
        let text = fs::read_to_string(file.path()).unwrap();
        let text = text
            .replace("remote_addr", "client")
            .replace(" c-ip", " x-ip");
        fs::write(folder.path().join(file.file_name()), text).unwrap();
    }
    let without = commands().into_iter().filter(|command| {
        ["access.json", "cloudfront.log", "iis.log"]
            .iter()
            .any(|file| command.contains(file))
    });
    for command in without {
        let output = run(&command, folder.path());
        let errors = text(&output.stderr);
        let expected = "line 2: column key: expected a key of one line, found \"\"";
        assert!(
            output.status.code() == Some(2) && errors.contains(expected),
            "{command}: {errors}"
        );
    }
}

#[test]
fn with_a_prefix_keys_are_addresses() {
    let prefix = ["replay", "--limit", "3/60s", "--client-prefix", "64"];
    for key in [
        "1.2.3.4:80",
        "[2001:db8::1]:80",
        "-",
        "ann",
        "1.2.3.4 5.6.7.8",
    ] {
        let trace = format!("at,key\n0,192.0.2.7\n1,{key}\n");
        let (status, stderr) = failure(&prefix, &trace);
        let expected = "line 3: --client-prefix: expected an IP address without a port, found ";
        assert!(status == 2 && stderr.contains(expected), "{key}: {stderr}");
    }
}
