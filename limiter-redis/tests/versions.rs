//! Processes with an earlier version of the scripts share keys with this one.

use futures::future::join_all;
use limiter_core::store::{Facts, LogKey, Op, Outcome, Settlement};
use limiter_core::{Counting, EntryId, Limit, Name, NowStore, Policy, Receipt, Timestamp, Window, WindowStore};
use limiter_redis::RedisStore;
use limiter_testkit::OracleStore;
use limiter_testkit::server::{Reply, Server};

use common::{connect, connect_with_group_commit, random_below};

mod common;

/// The scripts whose requests carry no deadline, and which write a denied entry in the long form.
const APPLY: [&str; 3] = [
    include_str!("scripts/earlier/apply_fast.lua"),
    include_str!("scripts/earlier/prelude.lua"),
    include_str!("scripts/earlier/apply.lua"),
];
const SETTLE: [&str; 2] = [APPLY[1], include_str!("scripts/earlier/settle.lua")];
const INSPECT: [&str; 2] = [APPLY[1], include_str!("scripts/earlier/inspect.lua")];
const START: u64 = 1_700_000_000_000_000;
const KEY: &str = "k";

fn u56(number: u64) -> [u8; 7] {
    number.to_be_bytes()[1..].try_into().unwrap()
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

fn limits(policy: &Policy) -> impl Iterator<Item = u8> {
    policy.limits().iter().flat_map(|limit| [u56(limit.window().as_micros()), u56(limit.max())].concat())
}

/// A process with the earlier scripts.
struct Earlier<'a> {
    server: &'a Server,
    stored: Vec<u8>,
    ids: u32,
}

impl Earlier<'_> {
    fn eval(&self, script: &[&str], args: &[&[u8]]) -> Reply {
        let text = script.concat();
        let call: Vec<&[u8]> = [b"EVAL", text.as_bytes(), b"1", &self.stored].iter().chain(args).copied().collect();
        self.server.command(&call).unwrap()
    }

    /// Acquires at a given time. Returns whether it was admitted, what is used of the first limit, and the entry's id.
    fn acquire(&mut self, policy: &Policy, cost: u64, at: u64) -> (bool, u64, Option<EntryId>) {
        // Its ids have 32 bits.
        self.ids = self.ids.wrapping_add(0x9e37_79b9);
        let attempts = policy.counting() == Counting::Attempts;
        let mut request = vec![if attempts { 2 } else { 1 }];
        request.extend(u56(cost));
        request.extend([0, 0]);
        request.extend(self.ids.to_be_bytes());
        request.extend(limits(policy));
        let Reply::Bytes(Some(reply)) = self.eval(&APPLY, &[&request, at.to_string().as_bytes()]) else {
            panic!("an unexpected reply")
        };
        let (short, appended) = (reply[0] & 32 != 0, reply[0] & 2 != 0);
        let used =
            number(if short { &reply[15..22] } else { &reply[22..29] }) + if short && appended { cost } else { 0 };
        (reply[0] & 1 == 1, used, appended.then(|| EntryId::from_u128(self.ids.into())))
    }

    /// Settles an entry. Returns whether it took effect, and what is used of the first limit.
    fn settle(&self, settlement: &Settlement<'_>, at: u64) -> (bool, u64) {
        let receipt = settlement.receipt;
        let mut request = receipt.entry().as_u128().to_be_bytes().to_vec();
        for number in [receipt.at().as_micros(), receipt.window().as_micros(), settlement.cost] {
            request.extend(u56(number));
        }
        request.extend(limits(settlement.policy));
        let Reply::Bytes(Some(reply)) = self.eval(&SETTLE, &[&request, at.to_string().as_bytes()]) else {
            panic!("an unexpected reply")
        };
        (reply[0] & 1 == 1, number(&reply[15..22]))
    }

    /// The number of entries, their cost, and the times of the oldest and the newest.
    fn inspect(&self) -> Option<[u64; 4]> {
        let Reply::List(reply) = self.eval(&INSPECT, &[]) else { panic!("an unexpected reply") };
        let numbers: Vec<u64> = reply.into_iter().take(4).map(|item| item.int() as u64).collect();
        numbers.try_into().ok()
    }
}

async fn inspect(store: &RedisStore) -> Option<[u64; 4]> {
    let info = store.inspect(LogKey::new(Name::default(), KEY)).await.unwrap()?;
    Some([info.entries, info.cost, info.oldest.as_micros(), info.newest.as_micros()])
}

/// An entry, by its receipt in Redis and in the oracle.
#[derive(Clone, Copy)]
struct Appended {
    redis: Receipt,
    oracle: Receipt,
    by_earlier: bool,
    admitted: bool,
}

fn entry(facts: &Facts) -> Option<EntryId> {
    match facts.outcome {
        Outcome::Appended(entry) => Some(entry.id),
        _ => None,
    }
}

/// The usage of the first limit, as a decision reports it.
fn used(facts: &Facts, policy: &Policy) -> u64 {
    facts.log.usage[0].used.min(policy.limits()[0].max())
}

#[tokio::test]
async fn earlier_scripts_and_these_agree_on_one_key() {
    let server = Server::start().unwrap();
    let alone = connect(&server.url()).await;
    let grouping = connect_with_group_commit(&server.url()).await;
    let oracle = OracleStore::new();
    let log = LogKey::new(Name::default(), KEY);
    let mut earlier = Earlier { server: &server, stored: alone.redis_key(log), ids: 1 };
    let window = Window::from_micros(100).unwrap();
    let plain = Policy::from(Limit::with_window(7, window).unwrap());
    let attempts = plain.clone().with_counting(Counting::Attempts);
    let mut below = random_below(7);
    let (mut at, mut who, mut policy, mut cost) = (START, 0, &plain, 1);
    let mut entries: Vec<Appended> = Vec::new();
    // Verdicts, and settlements that took effect or not, by earlier scripts and these.
    let (mut verdicts, mut settlements) = ([0; 2], [[0; 2]; 2]);
    for n in 0..20_000 {
        // The log empties now and then, and each process has stretches on it.
        at += if below(512) == 0 { 150 } else { below(30) };
        // Long stretches and short ones.
        if below(if n % 512 < 256 { 16 } else { 2 }) == 0 {
            who = below(3);
        }
        if below(64) == 0 {
            policy = if below(3) == 0 { &attempts } else { &plain };
        }
        if below(64) == 0 {
            cost = 1 + below(4) / 3;
        }
        let now = Timestamp::from_micros(at).unwrap();
        let settles = below(if n % 512 < 256 { 8 } else { 3 }) == 0;
        if settles && let Some(appended) = entries.iter().rev().nth(below(6) as usize).copied() {
            let cost = below(4);
            let settlement = |receipt| Settlement::new(log, &plain, receipt, cost).at(now);
            let expected = oracle.settle_now(&settlement(appended.oracle));
            let expected_used = expected.log.usage[0].used.min(7);
            // Earlier scripts do not find the denied entries of these.
            let by_earlier = who == 0 && (appended.by_earlier || appended.admitted);
            let (applied, used) = if by_earlier {
                earlier.settle(&settlement(appended.redis), at)
            } else {
                let facts = alone.settle(settlement(appended.redis)).await.unwrap();
                (facts.applied, facts.log.usage[0].used)
            };
            assert_eq!((applied, used.min(7)), (expected.applied, expected_used), "{n}");
            settlements[usize::from(by_earlier)][usize::from(applied)] += 1;
        } else if who == 2 {
            let count = 1 + below(9) as usize;
            let op = Op::acquire(KEY, policy).with_cost(cost).at(now);
            for (place, facts) in join_all((0..count).map(|_| grouping.apply(op))).await.into_iter().enumerate() {
                let (facts, expected) = (facts.unwrap(), oracle.apply_now(&op));
                let shown = |facts: &Facts| (facts.admitted, used(facts, policy));
                assert_eq!(shown(&facts), shown(&expected), "{n}, {place}");
                assert_eq!(facts.log.newest, expected.log.newest, "{n}, {place}");
                verdicts[usize::from(facts.admitted)] += 1;
                let (time, admitted) = (facts.log.now, facts.admitted);
                entries.extend(entry(&facts).zip(entry(&expected)).map(|(redis, oracle)| Appended {
                    redis: Receipt::new(redis, time, window),
                    oracle: Receipt::new(oracle, time, window),
                    by_earlier: false,
                    admitted,
                }));
            }
        } else {
            let op = Op::acquire(KEY, policy).with_cost(cost).at(now);
            let expected = oracle.apply_now(&op);
            let (admitted, now_used, id) = if who == 0 {
                earlier.acquire(policy, cost, at)
            } else {
                let facts = alone.apply(op).await.unwrap();
                (facts.admitted, facts.log.usage[0].used, entry(&facts))
            };
            assert_eq!((admitted, now_used.min(7)), (expected.admitted, used(&expected, policy)), "{n}: {who}");
            verdicts[usize::from(admitted)] += 1;
            let time = expected.log.now;
            entries.extend(id.zip(entry(&expected)).map(|(redis, oracle)| Appended {
                redis: Receipt::new(redis, time, window),
                oracle: Receipt::new(oracle, time, window),
                by_earlier: who == 0,
                admitted,
            }));
        }
        assert_eq!(inspect(&alone).await, earlier.inspect(), "{n}");
    }
    assert!(verdicts.into_iter().all(|count| count > 2_000), "{verdicts:?}");
    assert!(settlements.into_iter().flatten().all(|count| count > 100), "{settlements:?}");
}
