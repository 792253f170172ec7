//! The server's time for a decision does not grow with the log, nor with the cost of the operation.

use futures::future::join_all;
use limiter_core::store::{LogKey, Mode, Op};
use limiter_core::{Counting, Limit, MAX_COST, Name, Policy, Timestamp, Window};
use limiter_redis::RedisStore;
use testbed::server::Server;

use crate::support::{START, connect, reset_calls, run, size};

const SMALL: u64 = 10;
const ROUNDS: usize = 15;
const CALLS: u64 = 30;
/// How many commands the client sends without waiting.
const BATCH: usize = 32;
/// How many times more a decision on the larger log may cost. It is logarithmic; reading the whole log would cost a thousand
/// times more.
const MAX_RATIO: f64 = 3.0;
/// The time between two entries.
const STEP: u64 = 1_000;

fn large() -> u64 {
    size(10_000, 100_000)
}

fn at(entry: u64) -> Timestamp {
    Timestamp::from_micros(START + entry * STEP).unwrap()
}

/// One millisecond for each entry, so that the oldest expires with each new one.
fn limit(max: u64, entries: u64) -> Limit {
    Limit::with_window(max, Window::from_micros(entries * STEP).unwrap()).unwrap()
}

/// A log of so many entries, and the operation on it: its policy, that of the limiter it comes through, and its cost.
struct Side {
    entries: u64,
    policy: Policy,
    default: Option<Policy>,
    cost: u64,
}

/// A small and a large log under policies for their numbers of entries.
fn sides(policy: impl Fn(u64) -> Policy) -> [Side; 2] {
    [SMALL, large()].map(|entries| Side {
        entries,
        policy: policy(entries),
        default: None,
        cost: 1,
    })
}

/// The same, through a limiter with another policy.
fn through(default: impl Fn(u64) -> Limit) -> [Side; 2] {
    sides(|_| limit(SMALL, SMALL / 2).into()).map(|side| Side {
        default: Some(default(side.entries).into()),
        ..side
    })
}

fn redis_key(store: &RedisStore, key: &str) -> Vec<u8> {
    store.redis_key(LogKey::new(Name::default(), key))
}

/// Fills a log.
async fn fill(store: &RedisStore, entries: u64) {
    let (key, meter) = (entries.to_string(), Policy::from(limit(MAX_COST, large())));
    // In batches that fit the connection's buffer. It keeps their order, which must be that of their times.
    for first in (0..entries).step_by(BATCH) {
        let numbers = first..entries.min(first + BATCH as u64);
        let records = numbers
            .clone()
            .map(|n| run(store, Op::record(&key, &meter).at(at(n))));
        for (n, decision) in numbers.zip(join_all(records).await) {
            assert_eq!(decision.unwrap().at(), at(n));
        }
    }
}

/// Returns the server's time per call since the last reset, in microseconds.
fn spent(server: &Server) -> f64 {
    let stats = server.info("commandstats").unwrap();
    let line = stats
        .lines()
        .find(|line| line.starts_with("cmdstat_evalsha:"))
        .unwrap();
    let field = |name: &str| {
        line.split([':', ','])
            .find_map(|field| field.strip_prefix(name))
            .unwrap()
    };
    assert_eq!(field("calls=").parse::<u64>().unwrap(), CALLS);
    field("usec_per_call=").parse().unwrap()
}

/// Runs both sides in turn, on copies of the logs, and compares their best rounds, which a busy machine disturbs least. The
/// operations are all allowed, or all denied.
async fn compare(
    server: &Server,
    store: &RedisStore,
    name: &str,
    mode: Mode,
    allowed: bool,
    sides: [Side; 2],
) {
    let mut logs = sides.each_ref().map(|side| {
        (
            format!("{name}, {}, {}", side.entries, side.cost),
            side.entries,
            f64::MAX,
        )
    });
    for (side, (key, ..)) in sides.iter().zip(&logs) {
        let [from, to] = [&side.entries.to_string(), key].map(|key| redis_key(store, key));
        assert_eq!(
            server
                .command::<i64>(&[b"COPY".as_slice(), &from, &to])
                .unwrap(),
            1
        );
    }
    for turn in 0..2 * ROUNDS {
        let (side, (key, next, best)) = (&sides[turn % 2], &mut logs[turn % 2]);
        reset_calls(server);
        for _ in 0..CALLS {
            let mut op = Op::new(mode, key, &side.policy)
                .with_cost(side.cost)
                .at(at(*next));
            op.limiter_policy = side.default.as_ref();
            let decision = run(store, op).await.unwrap();
            assert_eq!(decision.is_allowed(), allowed, "{name}: {decision:?}");
            *next += u64::from(decision.appended());
        }
        *best = best.min(spent(server));
    }
    let [small, large] = logs.map(|(.., best)| best);
    println!("{name}: {small:.1} and {large:.1} us");
    assert!(
        large <= MAX_RATIO * small,
        "{name}: {small:.1} us on the smaller side, {large:.1} us on the larger"
    );
}

#[tokio::test]
async fn the_servers_time_does_not_grow_with_the_log_or_the_cost() {
    let server = Server::start().unwrap();
    let store = connect(&server.url()).await;
    for entries in [SMALL, large()] {
        fill(&store, entries).await;
    }
    let full = |entries| Policy::from(limit(entries, 2 * large()));
    let attempts = |entries| full(entries).with_counting(Counting::Attempts);
    let roomy = |entries| limit(2 * large(), entries).into();
    let two = |entries| {
        Policy::new([entries, entries / 2].map(|entries| limit(2 * large(), entries))).unwrap()
    };
    let cost = |cost| Side {
        entries: SMALL,
        policy: limit(1 << 40, SMALL).into(),
        default: None,
        cost,
    };
    for (name, mode, allowed, sides) in [
        ("denied", Mode::Acquire, false, sides(full)),
        ("denied attempts", Mode::Acquire, false, sides(attempts)),
        ("peek", Mode::Peek, false, sides(full)),
        ("peek of what fits", Mode::Peek, true, sides(roomy)),
        ("allowed, one expires", Mode::Acquire, true, sides(roomy)),
        ("two limits, one expires", Mode::Acquire, true, sides(two)),
        (
            "another policy, one expires",
            Mode::Acquire,
            true,
            through(|entries| limit(large(), entries)),
        ),
        (
            "another policy, one is above the maximum",
            Mode::Acquire,
            true,
            through(|entries| limit(entries, 2 * large())),
        ),
        (
            "cost 1 and cost 1,000",
            Mode::Acquire,
            true,
            [cost(1), cost(1_000)],
        ),
    ] {
        compare(&server, &store, name, mode, allowed, sides).await;
    }
}
