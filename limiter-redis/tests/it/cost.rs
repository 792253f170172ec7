//! What a decision makes the server read does not grow with the log, nor with the cost of the operation.

use futures::StreamExt;
use futures::future::join_all;
use limiter_core::store::{At, LogKey, Op};
use limiter_core::{Counting, MAX_COST, Name, Policy, policy};
use testbed::server::Server;

use crate::support::{at, connect, limit, run, send};

const SMALL: u64 = 10;
const LARGE: u64 = 10_000;
/// The most entries that the commands of a decision return. Reading a large log whole would return thousands.
const MOST_ENTRIES: u64 = 40;

/// A command of a script as MONITOR shows it: its name, and the most entries that it returns.
fn parse(line: &str) -> Option<(String, u64)> {
    let (_, command) = line.split_once("lua] ")?;
    let words: Vec<&str> = command
        .split("\" \"")
        .map(|word| word.trim_matches('"'))
        .collect();
    let number = |place: usize| words[place].parse::<u64>().unwrap();
    let most = match words[0].to_lowercase().as_str() {
        "zrange" => number(3) - number(2) + 1,
        "zrangebylex" | "zrevrangebylex" => {
            assert_eq!(words[4..6], ["LIMIT", "0"], "{line}");
            number(6)
        }
        _ => 0,
    };
    Some((words[0].to_owned(), most))
}

#[tokio::test]
async fn what_the_server_reads_does_not_grow_with_the_log_or_the_cost() {
    let server = Server::start().unwrap();
    let store = connect(&server.url()).await;
    let client = redis::Client::open(server.url()).unwrap();
    for entries in [SMALL, LARGE] {
        // One a microsecond. In batches that fit the connection's buffer, which keeps their order.
        let source = format!("log of {entries}");
        let meter = limit(MAX_COST, LARGE).into();
        for first in (0..entries).step_by(32) {
            let record = |n| run(&store, Op::record(&source, &meter).at(at(n)));
            let batch = first..entries.min(first + 32);
            for (n, decision) in batch.clone().zip(join_all(batch.map(record)).await) {
                assert_eq!(decision.unwrap().at(), at(n));
            }
        }
        let full = Policy::from(limit(entries, 2 * LARGE));
        let attempts = full.clone().with_counting(Counting::Attempts);
        let roomy = limit(2 * LARGE, entries).into();
        let growing = limit(2 * LARGE, 2 * LARGE).into();
        let two = Policy::new([entries, entries / 2].map(|window| limit(2 * LARGE, window)));
        let two = two.unwrap();
        let narrow = limit(SMALL, SMALL / 2).into();
        let wide = limit(LARGE, entries).into();
        let hour = policy!("4503599627370496/1h");
        let coarse = policy!("1000000/1s, 1000000/1h~1m");
        let narrow = |default| Op::acquire("k", &narrow).with_limiter_policy(default);
        let cells = policy!("1000000/1h~1h");
        // With the most commands.
        for (name, op, allowed, most) in [
            ("denied", Op::acquire("k", &full), false, 1),
            ("a denied attempt", Op::acquire("k", &attempts), false, 5),
            ("a peek", Op::peek("k", &full), false, 1),
            ("a peek of what fits", Op::peek("k", &roomy), true, 2),
            ("nothing expires", Op::acquire("k", &growing), true, 3),
            ("one expires", Op::acquire("k", &roomy), true, 5),
            ("two limits, one expires", Op::acquire("k", &two), true, 6),
            ("another policy, by time", narrow(&wide), true, 6),
            ("another policy, by cost", narrow(&full), true, 6),
            (
                "a great cost",
                Op::acquire("k", &hour).with_cost(1_000),
                true,
                3,
            ),
            (
                "a great cost, denied",
                Op::acquire("k", &full).with_cost(entries / 2),
                false,
                // A search: one more for each time that the log doubles.
                24,
            ),
            ("an entry merges", Op::acquire("k", &cells), true, 4),
            // After a pause, thousands of entries merge.
            (
                "merging",
                Op::acquire("k", &coarse).at(at(5_000_000)),
                true,
                11,
            ),
        ] {
            let [from, to] = [&*source, "k"].map(|key| LogKey::new(Name::default(), key));
            let [from, to] = [from, to].map(|log| store.redis_key(log));
            let copied = server.command(&[&b"COPY"[..], &from, &to, b"REPLACE"]);
            assert_eq!(copied.ok(), Some(1));
            let op = if op.at == At::StoreClock {
                op.at(at(entries))
            } else {
                op
            };
            let mut monitor = client.get_async_monitor().await.unwrap();
            let decision = run(&store, op).await.unwrap();
            assert_eq!(decision.is_allowed(), allowed, "{name}: {decision:?}");
            send(&server, "ECHO end");
            let mut lines = monitor.on_message::<String>();
            let mut seen = Vec::new();
            while let Some(line) = lines.next().await.filter(|line| !line.contains("ECHO")) {
                seen.extend(parse(&line));
            }
            let returned: u64 = seen.iter().map(|(_, most)| most).sum();
            println!(
                "{entries}, {name}: {} commands, {returned} entries",
                seen.len()
            );
            let few = (1..=most).contains(&seen.len()) && returned <= MOST_ENTRIES;
            assert!(few, "{entries}, {name}: {seen:?}");
        }
    }
}
