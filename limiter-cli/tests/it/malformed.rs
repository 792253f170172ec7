//! Messages about malformed input name the trace, the line and what was expected.

use crate::common::{REAL_TRACE, failure, limiter, stdout_of, text};

const GZIP: &[u8] = b"\x1f\x8b\x08\x00rest";

/// A trace, the number of the malformed line, and a part of the message.
const TRACES: &[(&[u8], u64, &str)] = &[
    (
        b"",
        1,
        "expected a CSV header row with the columns at and key",
    ),
    (b"\n\n", 1, "found nothing"),
    (
        b"hello\nworld\n",
        1,
        "or the lines of a web server's access log, found \"hello\"",
    ),
    (
        b"at,name\n0,k\n",
        1,
        "expected a CSV header row with the columns at and key",
    ),
    (b"0,k\n1,k\n", 1, "expected a CSV header row"),
    (GZIP, 1, "found gzip: decompress it first"),
    (b"at,at,key\n0,0,k\n", 1, "found at twice"),
    (b"at,key,cost,Cost\n", 1, "found cost twice"),
    (
        b"at,key\n0\n",
        2,
        "expected 2 columns as in the header, found 1",
    ),
    (
        b"at,key\n0,k\n1,k,2\n",
        3,
        "expected 2 columns as in the header, found 3",
    ),
    (
        b"at,key\n\n\r\n\nx,k\n",
        5,
        "column at: expected seconds, as in",
    ),
    (b"at,key\r0,k\r\r1,k\rx,k\r", 5, "found \"x\""),
    (b"at,key\r\n0,k\r\n\r\nx,k\r\n", 4, "found \"x\""),
    (b"at,key\n,k\n", 2, "column at: expected seconds"),
    (b"at,key\n-1,k\n", 2, "found \"-1\""),
    (b"at,key\n+1,k\n", 2, "found \"+1\""),
    (b"at,key\n1e3,k\n", 2, "found \"1e3\""),
    (b"at,key\n1.,k\n", 2, "found \"1.\""),
    (b"at,key\n.5,k\n", 2, "found \".5\""),
    (b"at,key\n.,k\n", 2, "found \".\""),
    (b"at,key\n1.2.3,k\n", 2, "found \"1.2.3\""),
    (b"at,key\n1.2345678.9,k\n", 2, "column at"),
    (b"at,key\n1.000000.,k\n", 2, "expected seconds"),
    (b"at,key\n0.0000001x,k\n", 2, "found \"0.0000001x\""),
    (
        b"at,key\n9007199254.740992,k\n",
        2,
        "expected a time before the year 2255",
    ),
    (
        b"at,key\n99999999999999999999999999,k\n",
        2,
        "expected a time before the year 2255",
    ),
    (b"at,key\nNaN,k\n", 2, "found \"NaN\""),
    (b"at,key\n\xff\xfe,k\n", 2, "column at: expected seconds"),
    (b"at,key\n2015-05-17,k\n", 2, "or RFC 3339"),
    (b"at,key\n2015-05-17T10:05:03,k\n", 2, "or RFC 3339"),
    (b"at,key\n2015-02-30T10:05:03Z,k\n", 2, "or RFC 3339"),
    (
        b"at,key\n2015-05-17T10:05:03.1234567890Z,k\n",
        2,
        "or RFC 3339",
    ),
    (
        b"at,key\n1969-12-31T23:59:59Z,k\n",
        2,
        "expected a time not before 1970",
    ),
    (
        b"at,key\n2300-01-01T00:00:00Z,k\n",
        2,
        "expected a time before the year 2255",
    ),
    (
        b"at,key,cost\n0,k,-1\n",
        2,
        "column cost: expected a whole number below 2^64, found \"-1\"",
    ),
    (b"at,key,cost\n0,k,+1\n", 2, "found \"+1\""),
    (b"at,key,cost\n0,k,1.5\n", 2, "found \"1.5\""),
    (b"at,key,cost\n0,k,18446744073709551616\n", 2, "below 2^64"),
    (b"at,key,cost\n0,k,one\n", 2, "found \"one\""),
    (
        b"at,key,op\n0,k,take\n",
        2,
        "column op: expected acquire, peek, record or reset, found \"take\"",
    ),
    (b"at,key,op\n0,k,Acquire\n", 2, "column op"),
    (b"at,key,op,cost\n0,k,reset,x\n", 2, "column cost"),
    (
        b"at,key\n0,k\n1,\"k\n2,k\n",
        3,
        "expected a closing quote, found the end of the trace",
    ),
    (b"at,key\n0,\"a\nb\"\nx,k\n", 4, "found \"x\""),
    (
        b"1.2.3.4 - - [17/May/2015:10:05:03 +0000] \"GET /\" 200 1\nbroken\n",
        2,
        "expected an access log line",
    ),
    (
        b"1.2.3.4 - - [17/Foo/2015:10:05:03 +0000] \"GET /\" 200 1\n",
        1,
        "expected a time as in 17/May/2015",
    ),
    (
        b"1.2.3.4 - - [31/Feb/2015:10:05:03 +0000] \"GET /\" 200 1\n",
        1,
        "found \"31/Feb/2015:10:05:03 +0000\"",
    ),
    (
        b"1.2.3.4 - - [17/May/1969:10:05:03 +0000] \"GET /\" 200 1\n",
        1,
        "expected a time not before 1970",
    ),
];

/// The part of an access log line before the time. It has no client, or an unknown one.
const HEADS: &[&str] = &[
    "203.0.113.5, 10.0.0.1 - -",
    "203.0.113.5,10.0.0.1 - -",
    "unknown, 203.0.113.5 - -",
    "example.com:443 203.0.113.5, 10.0.0.1 - -",
    "example.com:443 - -",
    "example.com:443 client.example - -",
    "nginx_1  | client.example - 192.0.2.7 -",
    "Jul 17 10:05:03 host nginx: client.example - -",
    "Jul 17 10:05:03 10.0.0.1 nginx: unix: - -",
    "2015-05-17T10:05:03.123456789Z - -",
    "192.0.2.7:51820 - -",
    "[2001:db8::1]:51820 - -",
    "unix: - -",
    "- - -",
    "- 192.0.2.7",
    "192.0.2.7",
    "192.0.2.7 frank",
    "192.0.2.777 ident frank",
    "10.0.0.1 192.0.2.7 frank",
    "-",
    "",
];

#[test]
fn a_line_without_a_client_address_is_malformed() {
    for head in HEADS {
        let log = format!("{head} [17/May/2015:10:05:03 +0000] \"GET /\" 200 1\n");
        let (status, stderr) = failure(&["replay", "--limit", "3/60s"], &log);
        assert_eq!(status, 2, "{head}: {stderr}");
        let expected =
            "limiter: standard input: line 1: expected one client address before the identity, ";
        assert!(stderr.starts_with(expected), "{head}: {stderr}");
        assert!(stderr.ends_with(&format!("found \"{head}\"\n")), "{stderr}");
    }
}

#[test]
fn messages_about_malformed_traces_name_the_line() {
    for (trace, line, message) in TRACES {
        let (status, stderr) = failure(&["replay", "--limit", "3/60s"], trace);
        let shown = String::from_utf8_lossy(trace);
        assert_eq!(status, 2, "{shown}");
        assert!(
            stderr.starts_with(&format!("limiter: standard input: line {line}: ")),
            "{shown}: {stderr}"
        );
        assert!(stderr.contains(message), "{shown}: {stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
    }
}

#[test]
fn messages_name_the_file() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "at,key\n0,k\nx,k\n").unwrap();
    let path = file.path().to_str().unwrap();
    let (status, stderr) = failure(&["replay", "--limit", "3/60s", path], "");
    assert_eq!(status, 2);
    assert!(
        stderr.starts_with(&format!("limiter: {path}: line 3: column at: ")),
        "{stderr}"
    );
}

#[test]
fn an_explicit_format_disables_detection() {
    let csv = failure(
        &["replay", "--limit", "3/60s", "--format", "csv"],
        "1.2.3.4 - - [x]\n",
    );
    assert_eq!(csv.0, 2);
    assert!(
        csv.1
            .contains("line 1: expected a header row with the columns at and key"),
        "{}",
        csv.1
    );
    let combined = failure(
        &["replay", "--limit", "3/60s", "--format", "combined"],
        "at,key\n0,k\n",
    );
    assert_eq!(combined.0, 2);
    assert!(
        combined.1.contains("line 1: expected an access log line"),
        "{}",
        combined.1
    );
    assert!(
        stdout_of(&["replay", "--limit", "3/60s", "--format", "combined"], "")
            .contains("rows                 0")
    );
}

#[test]
fn rows_before_a_malformed_row_are_printed() {
    let output = limiter(
        &["replay", "--limit", "3/60s", "--output", "jsonl"],
        "at,key\n0,k\n1,k\nx,k\n2,k\n",
    );
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(text(&output.stdout).lines().count(), 2);
}

#[test]
fn skipped_rows_are_counted() {
    let trace = "at,key,cost\n0,k,1\nx,k,1\n1,k\n2,k,-3\n3,k,1\n4,\"k,1\n";
    let args = ["replay", "--limit", "3/60s", "--skip-invalid"];
    let output = limiter(&args, trace);
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(1));
    assert!(
        out.contains("\nrows                 2\n") && out.contains("\nskipped              4\n"),
        "{out}"
    );
    assert!(
        err.contains("skipped 4 malformed rows, the first: line 3: column at")
            && err.ends_with("limiter: standard input: more than half of the rows are malformed\n"),
        "{err}"
    );
    // Half is not more than half.
    stdout_of(&args, "at,key\n0,k\nx,k\n");
    assert_eq!(failure(&args, "at,key\n0,k\nx,k\nx,k\n").0, 1);

    let output = limiter(&[&args[..], &["--output", "jsonl"]].concat(), trace);
    assert_eq!(text(&output.stdout).lines().count(), 2);
    assert!(text(&output.stderr).contains("skipped 4 malformed rows"));

    let log =
        "1.2.3.4 - - [17/May/2015:10:05:03 +0000] \"GET /\" 200 1\n-\n1.2.3.4 - - [x] \"GET\"\n";
    let output = limiter(&args, log);
    assert!(text(&output.stdout).contains("\nskipped              2\n"));

    // Without a header, nothing can be read.
    assert_eq!(failure(&args, "a,b\n1,2\n").0, 2);
}

#[test]
fn rows_that_are_too_long_are_malformed() {
    let long = "k".repeat((16 << 20) + 1);
    let trace = format!("at,key\n0,{long}\n1,k\n");
    let (status, stderr) = failure(&["replay", "--limit", "3/60s"], &trace);
    assert_eq!(status, 2);
    assert!(
        stderr.contains("line 2: expected a row of at most 16777216 bytes"),
        "{stderr}"
    );
    let out = stdout_of(&["replay", "--limit", "3/60s", "--skip-invalid"], &trace);
    assert!(
        out.contains("\nrows                 1\n") && out.contains("\nskipped              1\n"),
        "{out}"
    );

    let columns = ",".repeat(5_000);
    let out = stdout_of(
        &["replay", "--limit", "3/60s", "--skip-invalid"],
        format!("at,key\n0,k{columns}\n1,k\n"),
    );
    assert!(out.contains("\nskipped              1\n"), "{out}");

    let log = format!("{long} - - [17/May/2015:10:05:03 +0000] \"GET /\" 200 1\n");
    let log = format!(
        "1.2.3.4 - - [17/May/2015:10:05:03 +0000] \"GET /\" 200 1\n{log}::1 - - [17/May/2015:10:05:03 +0000] \"G\""
    );
    let out = stdout_of(&["replay", "--limit", "3/60s", "--skip-invalid"], log);
    assert!(
        out.contains("\nrows                 2\n") && out.contains("\nskipped              1\n"),
        "{out}"
    );
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_reported() {
    let full = || std::fs::File::create("/dev/full").unwrap();
    for args in [
        &["generate"][..],
        &["replay", "--limit", "3/s", REAL_TRACE],
        &["replay", "--limit", "3/s", "--output", "jsonl", REAL_TRACE],
    ] {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_limiter"));
        let output = command.args(args).stdout(full()).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        assert_eq!(
            text(&output.stderr),
            "limiter: cannot write the output: No space left on device (os error 28)\n"
        );
    }
}
