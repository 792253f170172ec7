//! The server's time for a decision does not grow with the log, nor with the cost of the operation.

use futures::future::join_all;
use limiter_core::store::{LogKey, Op};
use limiter_core::{Counting, Limit, MAX_COST, Name, Policy, Timestamp, Window};
use limiter_redis::RedisStore;
use limiter_testkit::server::Server;

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
fn window(entries: u64) -> Window {
    Window::from_micros(entries * STEP).unwrap()
}

/// A log of one size, and the operations on it.
struct Side {
    key: String,
    policy: Policy,
    /// The policy of the limiter, if the operations come through one.
    default: Option<Policy>,
    cost: u64,
    /// The number of the next entry.
    next: u64,
}

fn acquire(side: &Side) -> Op<'_> {
    let op = Op::acquire(&side.key, &side.policy).with_cost(side.cost);
    side.default.as_ref().map_or(op, |default| op.with_limiter_policy(default))
}

fn peek(side: &Side) -> Op<'_> {
    Op::peek(&side.key, &side.policy)
}

fn sides(what: &str, policy: impl Fn(u64) -> Policy) -> [Side; 2] {
    [SMALL, large()].map(|entries| {
        let key = format!("{what} {entries}");
        Side { key, policy: policy(entries), default: None, cost: 1, next: entries }
    })
}

/// The server, and a store that it holds logs of both sizes for.
struct Bench(Server, RedisStore);

impl Bench {
    async fn start() -> Self {
        let server = Server::start().unwrap();
        let store = connect(&server.url()).await;
        let meter = Policy::from(Limit::with_window(MAX_COST, window(large())).unwrap());
        for side in sides("log", |_| meter.clone()) {
            // In batches that fit the connection's buffer. It keeps their order, which must be that of their times.
            for first in (0..side.next).step_by(BATCH) {
                let op = |n| run(&store, Op::record(&side.key, &side.policy).at(at(n)));
                let numbers = first..side.next.min(first + BATCH as u64);
                for (n, decision) in numbers.clone().zip(join_all(numbers.map(op)).await) {
                    let decision = decision.unwrap();
                    assert_eq!((decision.allowed(), decision.at()), (true, at(n)));
                }
            }
        }
        Self(server, store)
    }

    fn copy(&self, to: &str) {
        for entries in [SMALL, large()] {
            let stored = |what| self.1.redis_key(LogKey::new(Name::default(), &format!("{what} {entries}")));
            let [from, to] = ["log", to].map(stored);
            assert_eq!(self.0.command(&[b"COPY".as_slice(), &from, &to]).unwrap().int(), 1);
            assert_eq!(self.0.command(&[b"ZCARD".as_slice(), &to]).unwrap().int(), i64::try_from(entries).unwrap());
        }
    }

    /// The server's time per call since the last reset, in microseconds.
    fn spent(&self) -> f64 {
        let stats = self.0.info("commandstats").unwrap();
        let line = stats.lines().find(|line| line.starts_with("cmdstat_evalsha:")).unwrap();
        let field = |name: &str| line.split([':', ',']).find_map(|field| field.strip_prefix(name)).unwrap();
        assert_eq!(field("calls=").parse::<u64>().unwrap(), CALLS);
        reset_calls(&self.0);
        field("usec_per_call=").parse().unwrap()
    }

    /// Runs both sides in turn and compares their best rounds, which a busy machine disturbs least. The operations are all
    /// allowed, or all denied.
    async fn compare(&self, name: &str, mut sides: [Side; 2], op: fn(&Side) -> Op<'_>, allowed: bool) {
        reset_calls(&self.0);
        let mut best = [f64::MAX; 2];
        for turn in 0..2 * ROUNDS {
            let (side, best) = (&mut sides[turn % 2], &mut best[turn % 2]);
            for _ in 0..CALLS {
                let decision = run(&self.1, op(side).at(at(side.next))).await.unwrap();
                assert_eq!(decision.allowed(), allowed, "{name}: {decision:?}");
                side.next += u64::from(decision.receipt().is_some());
            }
            *best = best.min(self.spent());
        }
        let [small, large] = best;
        println!("{name}: {small:.1} and {large:.1} us");
        assert!(large <= MAX_RATIO * small, "{name}: {small:.1} us on the smaller side, {large:.1} us on the larger");
    }
}

#[tokio::test]
async fn the_servers_time_does_not_grow_with_the_log_or_the_cost() {
    let bench = Bench::start().await;
    ["pair", "gold", "attempts"].iter().for_each(|to| bench.copy(to));
    let full = |entries| Policy::from(Limit::with_window(entries, window(2 * large())).unwrap());
    let attempts = |entries| full(entries).with_counting(Counting::Attempts);
    let roomy = |entries| Limit::with_window(2 * large(), window(entries)).unwrap().into();
    bench.compare("denied", sides("log", full), acquire, false).await;
    bench.compare("denied attempts", sides("attempts", attempts), acquire, false).await;
    bench.compare("peek", sides("log", full), peek, false).await;
    bench.compare("peek of what fits", sides("log", roomy), peek, true).await;
    bench.compare("allowed, one expires", sides("log", roomy), acquire, true).await;

    let two = |entries: u64| {
        let limits = [entries, entries / 2].map(|entries| Limit::with_window(2 * large(), window(entries)).unwrap());
        Policy::new(limits).unwrap()
    };
    bench.compare("two limits, one expires", sides("pair", two), acquire, true).await;

    // A short window, through a limiter that sees further back: by time, and by what the log may hold.
    let short = |_| Limit::with_window(SMALL, window(SMALL / 2)).unwrap().into();
    let limits = |entries: u64| [(large(), window(entries)), (entries, window(2 * large()))];
    for (i, name) in
        ["another policy, one expires", "another policy, one is beyond the maximum"].into_iter().enumerate()
    {
        let mut sides = sides("gold", short);
        for (side, entries) in sides.iter_mut().zip([SMALL, large()]) {
            let (max, window) = limits(entries)[i];
            side.default = Some(Limit::with_window(max, window).unwrap().into());
            side.next += (i * ROUNDS) as u64 * CALLS;
        }
        bench.compare(name, sides, acquire, true).await;
    }

    let costs = [1, 1_000].map(|cost| {
        let policy = Limit::with_window(1 << 40, window(SMALL)).unwrap().into();
        Side { key: format!("cost {cost}"), policy, default: None, cost, next: 0 }
    });
    bench.compare("cost 1 and cost 1,000", costs, acquire, true).await;
}
