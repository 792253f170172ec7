//! What a decision costs the server does not grow with the log, nor with the cost of the operation.

use std::time::Duration;

use futures::future::join_all;
use limiter_core::{Limit, Limiter, Op, Policy, Timestamp, Window};
use limiter_redis::RedisStore;
use limiter_testkit::server::Server;

const SMALL: u64 = 10;
const LARGE: u64 = 100_000;
const ROUNDS: usize = 15;
const CALLS: u64 = 30;
/// How much dearer a decision on the larger log may be: it is logarithmic in it. Reading it whole would be 10,000 times.
const MOST: f64 = 3.0;
/// The time of the first entry; there is one a millisecond.
const START: u64 = 1_700_000_000_000_000;
const STEP: u64 = 1_000;

fn at(entry: u64) -> Timestamp {
    Timestamp::from_micros(START + entry * STEP).unwrap()
}

/// As many milliseconds as there are entries, so that with each new one the oldest expires.
fn window(entries: u64) -> Window {
    Window::from_micros(entries * STEP).unwrap()
}

/// The server's time per call since it was asked last, in microseconds.
fn spent(server: &Server) -> f64 {
    let stats = server.info("commandstats").unwrap();
    let line = stats.lines().find(|line| line.starts_with("cmdstat_evalsha:")).unwrap();
    let field = |name: &str| line.split([':', ',']).find_map(|field| field.strip_prefix(name)).unwrap();
    assert_eq!(field("calls=").parse::<u64>().unwrap(), CALLS);
    assert_eq!(server.command(&["CONFIG", "RESETSTAT"]).unwrap().text(), "OK");
    field("usec_per_call=").parse().unwrap()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// A log of so many entries, and what is done to it.
struct Side {
    key: String,
    policy: Policy,
    cost: u64,
    /// The entry that the next operation would be.
    next: u64,
    spent: Vec<f64>,
}

/// Runs both sides in turn and compares their medians: of operations that are all allowed, or all denied.
async fn compare(
    name: &str,
    server: &Server,
    limiter: &Limiter<RedisStore>,
    sides: &mut [Side; 2],
    (op, allowed): (fn(&Side) -> Op<'_>, bool),
) {
    server.command(&["CONFIG", "RESETSTAT"]).unwrap();
    for _ in 0..ROUNDS {
        for side in sides.iter_mut() {
            for _ in 0..CALLS {
                let decision = limiter.run(op(side).at(at(side.next))).await.unwrap();
                assert_eq!(decision.allowed(), allowed, "{name}: {decision:?}");
                side.next += u64::from(decision.receipt().is_some());
            }
            side.spent.push(spent(server));
        }
    }
    let [small, large] = [0, 1].map(|side| median(std::mem::take(&mut sides[side].spent)));
    println!("{name}: {small:.1} and {large:.1} us");
    assert!(large <= MOST * small, "{name}: {small:.1} us on the smaller side, {large:.1} us on the larger");
}

fn acquire(side: &Side) -> Op<'_> {
    Op::acquire(&side.key, &side.policy).cost(side.cost)
}

fn peek(side: &Side) -> Op<'_> {
    Op::peek(&side.key, &side.policy)
}

fn sides(what: &str, policy: impl Fn(u64) -> Policy) -> [Side; 2] {
    [SMALL, LARGE].map(|entries| {
        let key = format!("{what} {entries}");
        Side { key, policy: policy(entries), cost: 1, next: entries, spent: Vec::new() }
    })
}

/// Logs of both sizes, by this name.
async fn fill(limiter: &Limiter<RedisStore>, what: &str) {
    for mut side in sides(what, |entries| Limit::meter(window(entries)).into()) {
        side.policy = Limit::meter(window(LARGE)).into();
        // In flights, each in the order of its times: the connection keeps it.
        for first in (0..side.next).step_by(500) {
            let op = |n| limiter.run(Op::record(&side.key, &side.policy).at(at(n)));
            let ops = (first..side.next.min(first + 500)).map(op);
            for decision in join_all(ops).await {
                assert!(decision.unwrap().allowed());
            }
        }
    }
}

fn copy(server: &Server, limiter: &Limiter<RedisStore>, from: &str, to: &str) {
    for entries in [SMALL, LARGE] {
        let [from, to] = [from, to].map(|what| limiter.store().redis_key(format!("{what} {entries}")));
        assert_eq!(server.command(&[b"COPY".as_slice(), &from, &to]).unwrap().int(), 1);
        assert_eq!(server.command(&[b"ZCARD".as_slice(), &to]).unwrap().int(), i64::try_from(entries).unwrap());
    }
}

#[tokio::test]
async fn the_servers_time_does_not_grow_with_the_log_or_the_cost() {
    let server = Server::start().unwrap();
    let store = RedisStore::builder().response_timeout(Duration::from_secs(10)).connect(&server.url()).await.unwrap();
    let limiter = Limiter::new(store, Limit::meter(Window::MIN));
    fill(&limiter, "log").await;
    copy(&server, &limiter, "log", "pair");

    let full = |entries| Limit::over(entries, window(2 * LARGE)).unwrap().into();
    let roomy = |entries| Limit::over(2 * LARGE, window(entries)).unwrap().into();

    compare("denied", &server, &limiter, &mut sides("log", full), (acquire, false)).await;
    compare("peek", &server, &limiter, &mut sides("log", full), (peek, false)).await;
    compare("peek of what fits", &server, &limiter, &mut sides("log", roomy), (peek, true)).await;
    compare("allowed, one expires", &server, &limiter, &mut sides("log", roomy), (acquire, true)).await;

    let two = |entries: u64| {
        let limits = [entries, entries / 2].map(|entries| Limit::over(2 * LARGE, window(entries)).unwrap());
        Policy::new(limits).unwrap()
    };
    compare("two limits, one expires", &server, &limiter, &mut sides("pair", two), (acquire, true)).await;

    let mut costs = [1, 1_000].map(|cost| {
        let policy = Limit::over(1 << 40, window(SMALL)).unwrap().into();
        Side { key: format!("cost {cost}"), policy, cost, next: 0, spent: Vec::new() }
    });
    compare("cost 1 and cost 1,000", &server, &limiter, &mut costs, (acquire, true)).await;
}
