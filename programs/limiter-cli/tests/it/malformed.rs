//! Messages about malformed input name the trace, the line and what was expected.

use limiter_cli::escape::unescape;

use crate::common::{REAL_TRACE, command, limiter, text};

/// Replays a trace, and returns the exit status, the output and the messages.
fn replay(options: &str, trace: impl AsRef<[u8]>) -> (i32, String, String) {
    let args = ["replay", "--limit", "3/60s"]
        .into_iter()
        .chain(options.split_whitespace());
    let output = limiter(&args.collect::<Vec<_>>(), trace);
    let [out, messages] = [&output.stdout, &output.stderr].map(|bytes| text(bytes));
    (output.status.code().unwrap(), out, messages)
}

/// Each row has a trace, the number of the malformed line, and a part of the message.
#[test]
fn messages_about_malformed_traces_name_the_line() {
    for row in include_str!("../messages/traces.txt").lines() {
        let [message, line, trace] = row.rsplitn(3, " | ").collect::<Vec<_>>()[..] else {
            panic!("{row}")
        };
        let (status, _, found) = replay("", unescape(trace.as_bytes()).unwrap());
        let expected = format!("limiter: standard input: line {line}: ");
        assert!(
            status == 2 && found.starts_with(&expected),
            "{row}: {found}"
        );
        assert!(
            found.contains(message) && found.lines().count() == 1,
            "{row}: {found}"
        );
    }
}

#[test]
fn messages_name_the_file() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "at,key\n0,k\nx,k\n").unwrap();
    let path = file.path().to_str().unwrap();
    let (status, _, found) = replay(path, "");
    let expected = format!("limiter: {path}: line 3: column at: ");
    assert!(status == 2 && found.starts_with(&expected), "{found}");
}

#[test]
fn an_explicit_format_disables_detection() {
    let header = "line 1: expected a header row with the columns at and key";
    for (format, trace, expected) in [
        ("csv", "1.2.3.4 - - [x]\n", header),
        (
            "combined",
            "at,key\n0,k\n",
            "line 1: expected an access log line",
        ),
    ] {
        let (status, _, found) = replay(&format!("--format {format}"), trace);
        assert!(status == 2 && found.contains(expected), "{found}");
    }
    let (_, summary, _) = replay("--format combined", "");
    assert!(summary.contains("rows                 0"));
}

#[test]
fn rows_before_a_malformed_row_are_printed() {
    let (status, out, _) = replay("--output jsonl", "at,key\n0,k\n1,k\nx,k\n2,k\n");
    assert_eq!((status, out.lines().count()), (2, 2));
}

#[test]
fn skipped_rows_are_counted() {
    let trace = "at,key,cost\n0,k,1\nx,k,1\n1,k\n2,k,-3\n3,k,1\n4,\"k,1\n";
    let (status, out, err) = replay("--skip-invalid", trace);
    assert_eq!(status, 1);
    assert!(out.contains("\nrows                 2\n"), "{out}");
    assert!(out.contains("\nskipped              4\n"), "{out}");
    let first = "skipped 4 malformed rows, the first: line 3: column at";
    let last = "limiter: standard input: more than half of the rows are malformed\n";
    assert!(err.contains(first) && err.ends_with(last), "{err}");
    let (_, out, err) = replay("--skip-invalid --output jsonl", trace);
    assert!(out.lines().count() == 2 && err.contains("skipped 4 malformed rows"));

    // Half is not more than half, and without a header nothing can be read.
    let line = "1.2.3.4 - - [17/May/2015:10:05:03 +0000] \"GET /\" 200 1\n";
    for (trace, status) in [
        ("at,key\n0,k\nx,k\n", 0),
        ("at,key\n0,k\nx,k\nx,k\n", 1),
        (&format!("{line}-\n1.2.3.4 - - [x] \"GET\"\n"), 1),
        (&format!("# Software: nginx\n{line}"), 0),
        ("a,b\n1,2\n", 2),
    ] {
        assert_eq!(replay("--skip-invalid", trace).0, status, "{trace}");
    }
}

#[test]
fn rows_that_are_too_long_are_malformed() {
    let long = "k".repeat((16 << 20) + 1);
    let trace = format!("at,key\n0,{long}\n1,k\n");
    let (status, _, messages) = replay("", &trace);
    let expected = "line 2: expected a row of at most 16777216 bytes";
    assert!(status == 2 && messages.contains(expected), "{messages}");
    let columns = format!("at,key\n0,k{}\n1,k\n", ",".repeat(5_000));
    let log = [("1.2.3.4", "\n"), (&long, "\n"), ("::1", "")]
        .map(|(client, end)| format!("{client} - - [17/May/2015:10:05:03 +0000] \"G\"{end}"));
    for (trace, rows) in [(trace, 1), (columns, 1), (log.concat(), 2)] {
        let (_, summary, _) = replay("--skip-invalid", trace);
        let expected = format!("\nrows                 {rows}\n");
        assert!(summary.contains(&expected), "{summary}");
        assert!(summary.contains("\nskipped              1\n"), "{summary}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_reported() {
    let full = || std::fs::File::create("/dev/full").unwrap();
    let replay = format!("replay --limit 3/s {REAL_TRACE}");
    for args in [&replay, &format!("{replay} --output jsonl")] {
        let args: Vec<&str> = args.split(' ').collect();
        let output = command(&args).stdout(full()).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        let expected = "limiter: cannot write the output: No space left on device (os error 28)\n";
        assert_eq!(text(&output.stderr), expected);
    }
}

/// Two files of a day, the newer one first, as `cat access.log*` prints them.
#[test]
fn files_in_the_wrong_order_are_an_error() {
    let file = |hours: std::ops::Range<u64>| {
        let rows = (hours.start * 3_600..hours.end * 3_600).step_by(30);
        rows.map(|at| format!("{at},k\n")).collect::<String>()
    };
    let [older, newer] = [file(0..12), file(12..24)];
    let shuffled = |from: &str, late: u64| {
        let rows = from.lines().map(|row| format!("{row}\n"));
        let row = |row: String| {
            format!(
                "{row}{},k\n",
                row.split(',')
                    .next()
                    .unwrap()
                    .parse::<u64>()
                    .unwrap()
                    .saturating_sub(late)
            )
        };
        rows.map(row).collect::<String>()
    };
    // Each row has the trace, the exit status, and the number and the longest delay of its late rows.
    for (trace, status, late, delay) in [
        (format!("{older}{newer}"), 0, 0, ""),
        (format!("{newer}{older}"), 1, 1_440, "86370s"),
        (format!("{newer}0,k\n86309,k\n86310,k\n"), 0, 2, "86370s"),
        (shuffled(&newer, 60), 0, 0, ""),
        (shuffled(&newer, 61), 0, 1_440, "61s"),
    ] {
        let (found, _, messages) = replay("", format!("at,key\n{trace}"));
        assert_eq!(found, status, "{messages}");
        let expected = format!(
            "limiter: standard input: {late} rows come more than the shortest window after a newer row of their key, up to {delay}, "
        );
        let expected = if late == 0 { "" } else { &expected };
        assert!(
            messages.starts_with(expected) && messages.is_empty() == (late == 0),
            "{messages}"
        );
    }
}
