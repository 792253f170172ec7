//! The answer to a settlement: whether it took effect, and the log afterwards, in every field.

use std::time::Duration;

use limiter_core::store::{LogFacts, LogKey, Op, Settlement, SettlementFacts, Usage};
use limiter_core::{Counting, Limiter, Name, NowStore, Policy, Receipt, Timestamp, Window, WindowStore, policy};
use limiter_redis::RedisStore;
use limiter_testkit::OracleStore;
use limiter_testkit::server::Server;

use common::{connect, run};

mod common;

const START: u64 = 1_700_000_000_000_000;

fn at(micros: u64) -> Timestamp {
    Timestamp::from_micros(START + micros).unwrap()
}

fn key() -> LogKey<'static> {
    LogKey::new(Name::new("chat"), "customer 7")
}

/// A log in Redis, and the same log in the oracle.
struct Pair {
    redis: RedisStore,
    oracle: OracleStore,
}

/// The receipts of one entry.
#[derive(Clone, Copy)]
struct Receipts {
    redis: Receipt,
    oracle: Receipt,
}

impl Pair {
    async fn new(server: &Server) -> Self {
        let redis = connect(&server.url()).await;
        redis.reset(key()).await.unwrap();
        Self { redis, oracle: OracleStore::new() }
    }

    async fn append(&self, mut op: Op<'_>) -> Receipts {
        op.log = key();
        let redis = run(&self.redis, op).await.unwrap().receipt().unwrap();
        let oracle = run(&self.oracle, op).await.unwrap().receipt().unwrap();
        assert_eq!((redis.at(), redis.window()), (oracle.at(), oracle.window()));
        Receipts { redis, oracle }
    }

    /// Settles in both, and compares every field that is specified.
    #[track_caller]
    fn settle(
        &self,
        policy: &Policy,
        receipts: Receipts,
        cost: u64,
        time: Timestamp,
    ) -> impl Future<Output = SettlementFacts> {
        let caller = std::panic::Location::caller();
        async move {
            let settlement = |receipt| Settlement::new(key(), policy, receipt, cost).at(time);
            let redis = self.redis.settle(settlement(receipts.redis)).await.unwrap();
            redis.verify(&settlement(receipts.redis)).unwrap();
            let oracle = self.oracle.settle_now(&settlement(receipts.oracle));
            assert_eq!(specified(&redis), specified(&oracle), "{caller}");
            redis
        }
    }
}

/// Without what is unspecified: the blocker, and the oldest entry if nothing is used.
fn specified(facts: &SettlementFacts) -> SettlementFacts {
    let usage = facts.log.usage.map(|usage| Usage {
        oldest: if usage.used > 0 { usage.oldest } else { Timestamp::EPOCH },
        blocker: Timestamp::EPOCH,
        ..usage
    });
    SettlementFacts { log: LogFacts { usage, ..facts.log }, ..*facts }
}

/// What `facts` say of the first limit: applied, now, newest, used and oldest.
fn summary(facts: &SettlementFacts) -> (bool, u64, Option<u64>, u64, u64) {
    let micros = |at: Timestamp| at.as_micros() - START;
    let (log, usage) = (&facts.log, facts.log.usage[0]);
    (facts.applied, micros(log.now), log.newest.map(micros), usage.used, micros(usage.oldest))
}

#[tokio::test]
async fn a_settlement_answers_with_the_log_afterwards() {
    let server = Server::start().unwrap();
    let log = Pair::new(&server).await;
    let policy = policy!("10/100us, 3/20us");
    let mut receipts = Vec::new();
    for (time, cost) in [(0, 2), (30, 1), (60, 4)] {
        receipts.push(log.append(Op::record("", &policy!("1000/1ms")).with_cost(cost).at(at(time))).await);
    }

    // More, less, the same, and removed.
    let facts = log.settle(&policy, receipts[1], 3, at(70)).await;
    assert_eq!(summary(&facts), (true, 70, Some(60), 9, 0));
    assert_eq!((facts.log.usage[1].used, facts.log.usage[1].oldest), (4, at(60)));
    let facts = log.settle(&policy, receipts[0], 1, at(80)).await;
    assert_eq!(summary(&facts), (true, 80, Some(60), 8, 0));
    assert_eq!(facts.log.usage[1].used, 0);
    let facts = log.settle(&policy, receipts[0], 1, at(80)).await;
    assert_eq!(summary(&facts), (true, 80, Some(60), 8, 0));
    let facts = log.settle(&policy, receipts[0], 0, at(80)).await;
    assert_eq!(summary(&facts), (true, 80, Some(60), 7, 30));

    // Beyond the maximum: the next unit frees when enough has left.
    let facts = log.settle(&policy, receipts[1], 9, at(81)).await;
    assert_eq!(summary(&facts), (true, 81, Some(60), 13, 30));
    let facts = log.settle(&policy, receipts[2], 40, at(81)).await;
    assert_eq!(summary(&facts), (true, 81, Some(60), 49, 60));

    // Each limit by its own window, by another policy too.
    let facts = log.settle(&policy!("1/22us, 5/21us, 100/1s, 49/1s"), receipts[2], 6, at(81)).await;
    let used: Vec<_> = facts.log.usage.iter().map(|usage| usage.used).collect();
    assert_eq!(used, [6, 0, 15, 15]);

    // The newest is removed: the time stays, the newest entry is the one before.
    let facts = log.settle(&policy, receipts[2], 0, at(10)).await;
    assert_eq!(summary(&facts), (true, 60, Some(30), 9, 30));
    // The last is removed.
    let facts = log.settle(&policy, receipts[1], 0, at(90)).await;
    assert_eq!((facts.applied, facts.log.now, facts.log.newest), (true, at(90), None));
    assert!(facts.log.usage.iter().all(|usage| usage.used == 0));
    assert_eq!(server.command(&["DBSIZE"]).unwrap().int(), 0);
}

#[tokio::test]
async fn a_settlement_that_finds_no_entry_answers_with_the_log_as_it_is() {
    let server = Server::start().unwrap();
    let log = Pair::new(&server).await;
    let policy = policy!("10/100us, 3/20us");
    let first = log.append(Op::record("", &policy).with_cost(2).at(at(0))).await;
    let second = log.append(Op::record("", &policy).with_cost(3).at(at(50))).await;

    // Refunded already.
    assert!(log.settle(&policy, first, 0, at(60)).await.applied);
    for cost in [0, 5] {
        let facts = log.settle(&policy, first, cost, at(60)).await;
        assert_eq!(summary(&facts), (false, 60, Some(50), 3, 50));
    }
    // Before the newest entry: clamped.
    let facts = log.settle(&policy, first, 0, at(1)).await;
    assert_eq!(summary(&facts), (false, 50, Some(50), 3, 50));
    // Expired: the entry is there, but has left. It is still the newest.
    let facts = log.settle(&policy, second, 1, at(150)).await;
    assert_eq!((facts.applied, facts.log.now, facts.log.newest), (false, at(150), Some(at(50))));
    assert_eq!(facts.log.usage[0].used, 0);
    assert_eq!(log.redis.inspect(key()).await.unwrap().unwrap().cost, 3);
    // A microsecond earlier it had not.
    let facts = log.settle(&policy, second, 1, at(149)).await;
    assert_eq!(summary(&facts), (true, 149, Some(50), 1, 50));
    // No log at all.
    assert!(log.redis.reset(key()).await.unwrap() && log.oracle.reset_now(key()));
    for cost in [0, 5] {
        let facts = log.settle(&policy, second, cost, at(70)).await;
        assert_eq!((facts.applied, facts.log.now, facts.log.newest), (false, at(70), None));
        assert!(facts.log.usage.iter().all(|usage| usage.used == 0));
    }
}

#[tokio::test]
async fn a_settlement_answers_about_logs_with_ids_and_denied_attempts() {
    let server = Server::start().unwrap();
    let log = Pair::new(&server).await;
    let policy = policy!("3/100us, 9/200us").with_counting(Counting::Attempts);
    let mut receipts = Vec::new();
    for n in 0..12 {
        let mut op = Op::acquire("", &policy).at(at(10 * n));
        if n % 3 == 0 {
            op = op.with_id(u128::from(n) << 70);
        }
        receipts.push(log.append(op).await);
    }
    for (n, cost) in [(11, 2), (9, 0), (10, 0), (9, 1), (6, 7), (3, 3), (0, 1), (11, 0), (8, 0), (7, 5)] {
        log.settle(&policy, receipts[n], cost, at(111)).await;
        log.settle(&policy!("1/1s, 100/1s, 5/40us"), receipts[n], cost, at(111)).await;
    }
}

/// A log of several hundred entries, where the searches of the answer halve.
#[tokio::test]
async fn a_settlement_answers_about_a_long_log() {
    let server = Server::start().unwrap();
    let log = Pair::new(&server).await;
    let meter = policy!("4503599627370496/1s");
    let mut receipts = Vec::new();
    for n in 0..300 {
        receipts.push(log.append(Op::record("", &meter).with_cost(1 + n % 3).at(at(n))).await);
    }
    let policy: Policy = "1/1s, 37/1s, 100/200us, 299/1s, 600/1s, 601/1s, 5/1us, 1000/3us".parse().unwrap();
    for (n, cost) in [(299, 5), (150, 0), (150, 1), (0, 9), (1, 0), (298, 0), (299, 0), (200, 1 << 40), (200, 2)] {
        log.settle(&policy, receipts[n], cost, at(299)).await;
    }
}

#[tokio::test]
async fn a_settlement_through_a_limiter_answers_at_the_servers_time() {
    let server = Server::start().unwrap();
    let chat = Limiter::new("chat", policy!("10000/1h, 50000/1d"), connect(&server.url()).await);
    let decision = chat.acquire("customer 7").cost(4_000).await.unwrap();
    let receipt = decision.receipt().unwrap();
    let settled = chat.settle("customer 7", receipt, 1_250).await.unwrap();
    let status = settled.status();
    assert!(settled.applied() && status.at() >= decision.at());
    assert_eq!((status.used(), status.remaining(), status.binding_index()), (1_250, 8_750, 0));
    assert_eq!(status.limits()[1].used(), 1_250);
    let hour = Window::new(Duration::from_secs(3_600)).unwrap();
    assert_eq!(status.refill_after().as_micros(), u128::from(hour.micros_left(receipt.at(), status.at())));
    // By another policy, and for a log of another name.
    let gold = policy!("2000/1m");
    let settled = chat.settle("customer 7", receipt, 1_500).policy(&gold).await.unwrap();
    assert_eq!((settled.applied(), settled.status().remaining()), (true, 500));
    let search = Limiter::new("search", policy!("5/1h"), connect(&server.url()).await);
    let settled = search.refund("customer 7", receipt).await.unwrap();
    assert_eq!((settled.applied(), settled.status().used()), (false, 0));
    let settled = chat.refund("customer 7", receipt).await.unwrap();
    assert_eq!((settled.applied(), settled.status().used(), settled.status().reset_after()), (true, 0, Duration::ZERO));
    assert!(settled.status().at() >= decision.at());

    // A permit keeps what it needs to settle.
    let permit = chat.acquire("customer 8").cost(10).permit().await.unwrap().unwrap();
    assert_eq!(permit.settle(4).await.unwrap().status().used(), 4);
    assert!(permit.refund().await.unwrap().applied());
    assert!(!permit.refund().await.unwrap().applied());
}
