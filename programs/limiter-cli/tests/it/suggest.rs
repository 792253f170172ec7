//! The smallest limits that deny nobody, or only a share of the clients.

use std::collections::HashSet;

use proptest::prelude::*;

use crate::common::{REAL_TRACE, failure, jsonl, stdout_of};

const WINDOWS: [&str; 3] = ["1s", "1m", "1h"];

/// Returns the suggested limits.
fn limits(trace: &str, deny: &str) -> Vec<(u64, &'static str)> {
    let windows = WINDOWS.join(",");
    let printed = stdout_of(&["suggest", "--window", &windows, "--deny", deny], trace);
    let lines = printed
        .lines()
        .filter_map(|line| line.strip_prefix("limit    "));
    let limit = |(line, window): (&str, &'static str)| {
        let (max, rest) = line.split_once('/').unwrap();
        assert!(rest.starts_with(&format!("{window}, denies ")), "{printed}");
        (max.parse().unwrap(), window)
    };
    lines.zip(WINDOWS).map(limit).collect()
}

/// Returns the keys that a limit denies, or whose cost it can never fit.
fn denied(trace: &str, max: u64, window: &str) -> usize {
    let rows = jsonl(&format!("{max}/{window}"), trace);
    let denies = |row: &&serde_json::Value| {
        row["op"] != "record" && (row["allowed"] == false || row["error"] == "cost_exceeds_limit")
    };
    let keys: HashSet<_> = rows
        .iter()
        .filter(denies)
        .map(|row| row["key"].to_string())
        .collect();
    keys.len()
}

fn assert_smallest(trace: &str) {
    for (deny, clients) in [("0%", 0), ("40%", 2)] {
        for (max, window) in limits(trace, deny) {
            assert!(
                denied(trace, max, window) <= clients,
                "{max}/{window}:\n{trace}"
            );
            if max > 1 {
                assert!(
                    denied(trace, max - 1, window) > clients,
                    "{max}/{window}:\n{trace}"
                );
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Of five clients, 40 % are two.
    #[test]
    fn a_smaller_limit_denies_more(rows in prop::collection::vec((0..90_u64, 0..5_u8, 1..4_u64, 0..12_u8), 1..60)) {
        let rows = rows.into_iter().map(|(seconds, key, cost, op)| {
            let op = ["peek", "record", "reset"].get(usize::from(op)).unwrap_or(&"acquire");
            format!("{seconds}.5,{key},{cost},{op}\n")
        });
        let clients = (0..5).map(|key| format!("0,{key},1,acquire\n"));
        assert_smallest(&format!("at,key,cost,op\n{}", clients.chain(rows).collect::<String>()));
    }
}

#[test]
fn the_limits_of_a_real_trace() {
    let trace = std::fs::read_to_string(REAL_TRACE).unwrap();
    for (max, window) in limits(&trace, "0%") {
        assert_eq!(denied(&trace, max, window), 0, "{max}/{window}");
        assert!(denied(&trace, max - 1, window) > 0, "{max}/{window}");
    }
    let printed = stdout_of(
        &["suggest", "--window", "1m", "--deny", "1%", REAL_TRACE],
        "",
    );
    let expected = include_str!("../summaries/suggest-1m.txt");
    assert_eq!(printed, expected);
}

#[test]
fn a_share_is_a_percentage() {
    for share in ["1", "-1%", "101%", "x%", "%"] {
        let (status, message) =
            failure(&["suggest", "--window=1m", &format!("--deny={share}")], "");
        let expected = "expected a share from 0% to 100%";
        assert!(
            status == 2 && message.contains(expected),
            "{share}: {message}"
        );
    }
}
