//! Processes with an earlier version of the script share keys with this one.

use limiter_core::store::{LogKey, Op};
use limiter_core::{Counting, Limit, Name, Policy, Timestamp, Window};
use limiter_memory::MemoryStore;
use limiter_redis::RedisStore;
use limiter_testkit::server::{Reply, Server};

use common::{connect, run};

mod common;

/// The script whose requests carry no deadline, and which writes a denied entry in the long form.
const WITHOUT_DEADLINE: &str = include_str!("scripts/without_deadline.lua");
const START: u64 = 1_700_000_000_000_000;

fn u56(number: u64) -> [u8; 7] {
    number.to_be_bytes()[1..].try_into().unwrap()
}

/// A process with the earlier script.
struct Earlier<'a> {
    server: &'a Server,
    store: &'a RedisStore,
    ids: u32,
}

impl Earlier<'_> {
    /// Acquires at a given time. Returns whether it was admitted.
    fn acquire(&mut self, policy: &Policy, cost: u64, at: u64) -> bool {
        // Its ids have 32 bits.
        self.ids = self.ids.wrapping_add(0x9e37_79b9);
        let mut request = vec![if policy.counting() == Counting::Attempts { 2 } else { 1 }];
        request.extend(u56(cost));
        request.extend([0, 0]);
        request.extend(self.ids.to_be_bytes());
        for limit in policy.limits() {
            request.extend(u56(limit.window().as_micros()));
            request.extend(u56(limit.max()));
        }
        let stored = self.store.redis_key(LogKey::new(Name::default(), "k"));
        let at = at.to_string();
        let call = [b"EVAL".as_slice(), WITHOUT_DEADLINE.as_bytes(), b"1", &stored, &request, at.as_bytes()];
        let Reply::Bytes(Some(reply)) = self.server.command(&call).unwrap() else { panic!("an unexpected reply") };
        reply[0] & 1 == 1
    }
}

#[tokio::test]
async fn an_earlier_script_and_this_one_decide_alike_on_one_key() {
    let server = Server::start().unwrap();
    let (store, memory) = (connect(&server.url()).await, MemoryStore::new());
    let mut earlier = Earlier { server: &server, store: &store, ids: 1 };
    let limit = |max| Limit::with_window(max, Window::from_micros(100).unwrap()).unwrap();
    let mut random = 7_u64;
    let (mut at, mut verdicts) = (START, [0; 2]);
    for n in 0..20_000_u64 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let bits = random >> 33;
        // The log empties now and then, and both scripts have stretches on it.
        at += if bits.is_multiple_of(512) { 150 } else { bits % 30 };
        let policy = Policy::from(limit(7));
        let policy = if (bits / 512).is_multiple_of(8) { policy } else { policy.with_counting(Counting::Attempts) };
        let cost = if (bits / 4096).is_multiple_of(8) { 2 } else { 1 };
        let op = Op::acquire("k", &policy).with_cost(cost).at(Timestamp::from_micros(at).unwrap());
        let expected = run(&memory, op).await.unwrap();
        if (bits / 65_536 + n / 16).is_multiple_of(3) {
            assert_eq!(earlier.acquire(&policy, cost, at), expected.allowed(), "{n}");
        } else {
            let decision = run(&store, op).await.unwrap();
            assert_eq!((decision.allowed(), decision.used()), (expected.allowed(), expected.used()), "{n}");
            assert_eq!(decision.retry_after(), expected.retry_after(), "{n}");
        }
        verdicts[usize::from(expected.allowed())] += 1;
    }
    assert!(verdicts.into_iter().all(|count| count > 2_000), "{verdicts:?}");
}
