//! Messages about wrong usage and other failures, with the exit status.

use crate::common::failure;

/// Arguments, the exit status, and a part of the message.
const CASES: &[(&str, i32, &str)] = &[
    ("unknown", 2, "unrecognized subcommand"),
    ("replay", 2, "--limit"),
    (
        "replay --limit 3/s --frmat csv",
        2,
        "a similar argument exists: '--format'",
    ),
    ("replay --limit 0/60s", 2, "limit of 0 is out of range"),
    ("replay --limit 3/0s", 2, "window of 0"),
    ("replay --limit 3/1ns", 2, "a unit of us, ms, s, m, h or d"),
    (
        "replay --limit 3/1m~7s",
        2,
        "resolution of 7s is not supported; the nearest are 1s and 10s",
    ),
    ("replay --limit=-1/s", 2, "expected a whole number"),
    ("replay --limit 3", 2, "expected MAX/WINDOW"),
    ("replay --limit 99999999999999999999/s", 2, "out of range"),
    (
        "replay --limit 1/s --limit 2/s --limit 3/s --limit 4/s --limit 5/s --limit 6/s --limit 7/s --limit 8/s --limit 9/s",
        2,
        "a policy has 1 to 8 limits, found more",
    ),
    ("replay --limit 3/s,4", 2, "expected MAX/WINDOW"),
    (
        "replay --limit 1/s,2/s,3/s,4/s,5/s,6/s,7/s,8/s,9/s",
        2,
        "a policy has 1 to 8 limits, found more",
    ),
    ("replay --limit 3/s --client-prefix 129", 2, "1..=128"),
    (
        "replay --limit 3/s --counting some",
        2,
        "admitted, attempts",
    ),
    ("replay --limit 3/s --format xml", 2, "csv, combined"),
    ("replay --limit 3/s --output xml", 2, "summary, jsonl"),
    ("replay --limit 3/s --key k", 2, "--plot"),
    (
        "replay --limit 3/s --plot /tmp/never.svg --format combined /dev/null",
        2,
        "nothing to plot: the trace has no rows",
    ),
    (
        "replay --limit 3/s --plot /tmp/never.svg --key x",
        2,
        "the trace has no key x",
    ),
    (
        "replay --limit 3/s --plot /tmp/never.svg --key a\\q",
        2,
        "after a backslash expected",
    ),
    (
        "replay --limit 3/s --plot /no/such/dir/x.svg",
        1,
        "cannot write /no/such/dir/x.svg",
    ),
    (
        "replay --limit 3/s /no/such/file",
        1,
        "cannot open /no/such/file",
    ),
    (
        "replay --limit 3/s /",
        1,
        "cannot read /: it is a directory",
    ),
    ("generate --keys 0", 2, "--keys"),
    ("generate --rate 0", 2, "expected a rate above 0, found 0"),
    (
        "generate --rate 1e-12",
        2,
        "expected fewer rows or a higher rate: ",
    ),
    ("generate --skew=-1", 2, "a skew of at least 0"),
];

#[cfg(feature = "redis")]
const REDIS_CASES: &[(&str, i32, &str)] = &[
    ("load --limit 3/s --store redis", 2, "expected redis://"),
    (
        "load --limit 3/s --store redis-cluster://localhost",
        2,
        "expected redis://",
    ),
    (
        "key list --store \"redis://u:secret@h\"",
        2,
        "without quotes",
    ),
    ("key list --store REDIS://u:secret@h", 2, "found REDIS://"),
    (
        "load --limit 3/s --store redis://u:secret/@h",
        2,
        "percent-encode",
    ),
    (
        "load --limit 3/s --store redis://u:secret",
        2,
        "with a host and port",
    ),
    (
        "load --limit 3/s --store redis://127.0.0.1:port",
        2,
        "with a host and port",
    ),
    (
        "load --limit 3/s --store redis://127.0.0.1:1",
        1,
        "Redis URL \"redis://127.0.0.1:1\": cannot connect: Connection refused",
    ),
    (
        "load --limit 3/s --store redis+cluster://127.0.0.1:1",
        1,
        "Connection refused",
    ),
    (
        "load --limit 3/s --store redis+unix:///nowhere/redis.sock",
        1,
        "No such file",
    ),
    ("load", 2, "--limit <MAX/WINDOW>"),
    (
        "load --limit 10/1s --rate 0",
        2,
        "0 is not in 1..=4294967295",
    ),
    (
        "load --limit 10/1s --seconds nan",
        2,
        "invalid digit found in string",
    ),
    (
        "load --limit 10/1s --seconds 4294967296",
        2,
        "4294967296 is not in 1..=4294967295",
    ),
    (
        "load --limit 10/1s --on-outage sometimes",
        2,
        "open, closed, fallback, error",
    ),
    ("load --limit 10/1s --on-outage open", 2, "--store <URL>"),
    ("key list --store http://127.0.0.1", 2, "expected redis://"),
    (
        "key list --store redis://127.0.0.1:1 --prefix a{b",
        2,
        "key prefix \"a{b\"",
    ),
    ("key list --store redis://127.0.0.1:1 --over", 2, "--limit"),
    (
        "key list --store redis://127.0.0.1:1 --name a\\q",
        2,
        "--name",
    ),
    (
        "key list --store redis://127.0.0.1:1 --name \\xff",
        2,
        "the name of a limiter is UTF-8",
    ),
    ("key show k --store redis://127.0.0.1:1", 2, "--name <NAME>"),
    (
        "key reset k --store redis://127.0.0.1:1",
        2,
        "--name <NAME>",
    ),
    (
        "key show a\\q --name n --store redis://127.0.0.1:1",
        2,
        "after a backslash expected",
    ),
];

fn assert_each(cases: &[(&str, i32, &str)]) {
    for (args, status, message) in cases {
        let found = failure(&args.split(' ').collect::<Vec<_>>(), "at,key\n0,k\n");
        assert!(
            found.0 == *status && found.1.contains(message),
            "{args}: {found:?}"
        );
    }
}

#[test]
fn wrong_usage_and_failures_are_explained() {
    assert_each(CASES);
}

#[cfg(feature = "redis")]
#[test]
fn wrong_usage_of_redis_is_explained() {
    assert_each(REDIS_CASES);
}
