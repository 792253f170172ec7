//! What a fallback promises: it decides locally only during an outage, and the primary store hears of everything afterwards.

mod each_entry;

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use limiter_core::store::{Facts, LogKey, Op, Settlement, SettlementFacts};
use limiter_core::{Clock, Decision, Error, ErrorKind, Limiter, NowStore, Timestamp, WindowStore, WithClock, policy};
use limiter_memory::MemoryStore;
use limiter_testkit::MockClock;
use limiter_wrappers::{DenialCache, Fallback, Outage};
use tokio::runtime::Handle;
use tokio::time::{sleep, timeout};

use crate::faulty::{Does, Faulty, used};

const LONG: Duration = Duration::from_secs(10);

/// A server, and a fallback on it, under 5 per hour.
struct Scene {
    server: Faulty,
    store: Fallback<Faulty, MemoryStore>,
    limiter: Limiter<Fallback<Faulty, MemoryStore>>,
    /// What another process sees.
    other: Limiter<Faulty>,
}

impl Scene {
    fn new() -> Self {
        Self::with(|store| store)
    }

    fn with(options: impl FnOnce(Fallback<Faulty, MemoryStore>) -> Fallback<Faulty, MemoryStore>) -> Self {
        let server = Faulty::default();
        // So that the two stores number their entries differently.
        let other = Limiter::new("t", policy!("5/1h"), server.clone());
        for key in 0..3 {
            let _ = server.store().apply_now(&Op::record(&[key], &policy!("5/1h")));
        }
        let store = options(Fallback::new(server.clone(), MemoryStore::new()));
        let limiter = Limiter::new("t", policy!("5/1h"), store.clone());
        Self { server, store, limiter, other }
    }

    async fn acquire(&self, key: &str) -> Decision {
        self.limiter.acquire(key).await.unwrap()
    }

    /// Returns the usage that the primary store knows of, beyond the maximum too.
    fn used(&self, key: &str) -> u64 {
        used(&self.server, key, &policy!("5/1h"))
    }

    /// Waits until nothing is left to replay.
    async fn drained(&self) {
        let empty = async {
            while self.store.journal_len() > 0 {
                sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(LONG, empty).await.expect("the journal is replayed");
    }
}

/// Waits until `done`.
async fn until(what: &str, mut done: impl FnMut() -> bool) {
    let wait = async {
        while !done() {
            sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(LONG, wait).await.unwrap_or_else(|_| panic!("not in time: {what}"));
}

/// (a)
#[tokio::test]
async fn the_primary_store_decides_from_its_first_answer_on() {
    let scene = Scene::new();
    scene.server.set(Does::Refuse);
    for used in 1..=3 {
        assert_eq!(scene.acquire("hot").await.used(), used);
    }
    // The replay of the hot log hangs, which is nobody's business.
    scene.server.rule(|verb, _| if verb == "record" { Does::Hold } else { Does::Answer });
    for used in 1..=5 {
        let decision = timeout(LONG, scene.acquire("hot")).await.expect("nobody waits for a replay");
        assert_eq!((decision.used(), scene.used("hot")), (used, used));
    }
    assert!(!scene.acquire("hot").await.allowed());
    scene.server.set(Does::Answer);
    scene.drained().await;
    assert_eq!(scene.server.replayed(), ["record 1"; 3]);
}

/// (b)
#[tokio::test(start_paused = true)]
async fn a_partial_outage_is_one_outage_and_one_task() {
    let events = Arc::new(Mutex::new(Vec::new()));
    let listen = |events: &Arc<Mutex<Vec<String>>>| {
        let events = Arc::clone(events);
        move |outage: Outage<'_>| events.lock().unwrap().push(format!("{outage:?}"))
    };
    let scene = Scene::with(|store| store.on_outage(listen(&events)).on_outage(listen(&events)));
    scene.server.rule(|_, log| if log.key.starts_with(b"dead") { Does::Refuse } else { Does::Answer });
    for pair in 0..600 {
        assert!(scene.acquire(&format!("dead {pair}")).await.allowed());
        assert!(scene.acquire(&format!("live {pair}")).await.allowed());
    }
    assert!(Handle::current().metrics().num_alive_tasks() <= 1);
    assert_eq!(events.lock().unwrap().len(), 2, "{:?}", events.lock().unwrap());
    scene.server.set(Does::Answer);
    scene.drained().await;
    // Without a call, too.
    sleep(Duration::from_secs(3)).await;
    let events = events.lock().unwrap();
    assert!(events.len() == 4 && events[2].starts_with("Ended { node: None, calls: 600"), "{events:?}");
    assert_eq!(Handle::current().metrics().num_alive_tasks(), 0);
}

/// (c)
#[tokio::test]
async fn a_replay_that_hangs_or_fails_delays_no_other_log() {
    let scene = Scene::new();
    scene.server.set(Does::Refuse);
    assert!(scene.acquire("stuck").await.allowed());
    let stuck = Arc::new(AtomicBool::new(false));
    let is_stuck = Arc::clone(&stuck);
    let mut refusals = 3;
    scene.server.rule(move |verb, log| {
        if log.key == b"stuck" {
            is_stuck.store(true, Ordering::SeqCst);
            return Does::Hold;
        }
        refusals -= u32::from(verb == "acquire");
        if verb == "acquire" || refusals > 0 { Does::Refuse } else { Does::Answer }
    });
    until("the replay hangs", || stuck.load(Ordering::SeqCst)).await;
    for key in ["a", "b", "z"] {
        assert!(scene.acquire(key).await.allowed());
    }
    until("the other logs are replayed", || scene.store.journal_len() == 1).await;
    assert_eq!(["a", "b", "z"].map(|key| scene.used(key)), [1; 3]);
}

/// (e)
#[tokio::test]
async fn a_repeated_id_repeats_its_verdict() {
    let scene = Scene::new();
    let acquire = async || scene.limiter.acquire("key").id(7_u128).cost(2).await.unwrap();
    scene.server.set(Does::Refuse);
    let first = acquire().await;
    assert!(first.allowed() && acquire().await.allowed());
    scene.server.rule(|verb, _| if verb == "record" { Does::Hold } else { Does::Answer });
    assert!(scene.other.acquire("key").cost(5).await.unwrap().allowed());
    let before = timeout(LONG, acquire()).await.expect("nobody waits for a replay");
    assert!(before.allowed(), "before the merge");
    scene.server.set(Does::Answer);
    scene.drained().await;
    let after = acquire().await;
    assert!(after.allowed(), "after the merge");
    assert_eq!((scene.used("key"), after.remaining()), (7, 0));
    // A refund frees the id, as in every store.
    assert!(scene.limiter.refund("key", first.receipt().unwrap()).await.unwrap().applied());
    assert!(!acquire().await.allowed());
}

/// (f)
#[tokio::test]
async fn expired_entries_are_dropped() {
    let scene = Scene::with(|store| store.max_entries(3));
    let short = Limiter::new("short", policy!("5/50ms"), scene.store.clone());
    scene.server.set(Does::Refuse);
    for _ in 0..3 {
        assert!(short.acquire("key").await.unwrap().allowed());
    }
    sleep(Duration::from_millis(60)).await;
    for _ in 0..3 {
        assert!(scene.acquire("key").await.allowed());
    }
    assert_eq!(scene.store.journal_len(), 3);
    scene.server.set(Does::Answer);
    assert!(scene.acquire("other").await.allowed());
    scene.drained().await;
    assert_eq!(scene.server.replayed(), ["record 1"; 3]);
    assert_eq!(scene.used("key"), 3);
}

/// (g)
#[tokio::test]
async fn what_appends_nothing_costs_nothing() {
    let resident = || {
        let statm = fs::read_to_string("/proc/self/statm").unwrap();
        statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
    };
    let scene = Scene::new();
    scene.server.set(Does::Refuse);
    assert!(scene.limiter.acquire("full").cost(5).await.unwrap().allowed());
    let before = resident();
    for key in 0..1_000_000_u64 {
        assert!(scene.limiter.peek(key).await.unwrap().allowed());
    }
    assert!(!scene.acquire("full").await.allowed());
    let grown = resident().saturating_sub(before) >> 20;
    assert!(grown < 64, "a million peeks cost {grown} MiB");
    assert_eq!(scene.store.journal_len(), 1);
}

/// (h)
#[tokio::test]
async fn a_reset_during_a_merge_leaves_nothing() {
    let scene = Scene::new();
    scene.server.set(Does::Refuse);
    for _ in 0..3 {
        assert!(scene.acquire("key").await.allowed());
    }
    // The first record is under way and arrives after the reset.
    let held = Arc::new(AtomicBool::new(false));
    let is_held = Arc::clone(&held);
    scene.server.rule(move |verb, _| {
        is_held.fetch_or(verb == "record", Ordering::SeqCst);
        if verb == "record" { Does::Hold } else { Does::Answer }
    });
    assert!(scene.acquire("key").await.allowed());
    until("a record is under way", || held.load(Ordering::SeqCst)).await;
    assert!(scene.limiter.reset("key").await.unwrap());
    scene.server.set(Does::Answer);
    scene.drained().await;
    assert_eq!(scene.used("key"), 0);
}

/// (j)
#[tokio::test]
async fn a_flush_at_shutdown_says_what_is_left() {
    let scene = Scene::new();
    scene.server.set(Does::Refuse);
    for key in ["a", "b"] {
        assert!(scene.acquire(key).await.allowed());
    }
    assert_eq!(scene.store.flush(Duration::from_millis(20)).await, 2);
    scene.server.set(Does::Answer);
    assert_eq!(scene.store.flush(Duration::MAX).await, 0);
    assert_eq!((scene.used("a"), scene.used("b")), (1, 1));
}

/// A resolution ends them after ten minutes, although the entry counts for longer and is still replayed.
#[tokio::test]
async fn receipts_and_ids_of_an_outage_end_with_the_receipt_window() {
    let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
    for (policy, age, valid) in
        [(policy!("9/1h"), 59, true), (policy!("9/1h~1m"), 9, true), (policy!("9/1h~1m"), 10, false)]
    {
        let clock = MockClock::new();
        let memory = || WithClock::new(MemoryStore::new(), clock.clone());
        let server = testbed::Faulty::new(memory());
        let store = Fallback::new(server.clone(), memory());
        let (limiter, other) =
            (Limiter::new("t", policy.clone(), store.clone()), Limiter::new("t", policy, server.clone()));
        server.set(Does::Refuse);
        let permit = limiter.acquire("key").cost(2).permit().await.unwrap().unwrap();
        let by_id = limiter.acquire("key").cost(3).id(7).await.unwrap();
        assert!(by_id.allowed() && limiter.acquire("key").await.unwrap().allowed());
        clock.advance(minutes(age));
        assert_eq!(permit.settle(1).await.unwrap().applied(), valid, "{age}");
        let repeated = limiter.acquire("key").cost(3).id(7).await.unwrap();
        assert_eq!(
            (repeated.used(), repeated.receipt() == by_id.receipt()),
            (if valid { 5 } else { 9 }, valid),
            "{age}"
        );
        server.set(Does::Answer);
        assert_eq!(store.flush(LONG).await, 0);
        assert_eq!(other.status("key").await.unwrap().used(), if valid { 5 } else { 9 }, "{age}");
        // After the replay, too.
        let settled = limiter.settle("key", by_id.receipt().unwrap(), 2).await.unwrap();
        assert_eq!((settled.applied(), other.status("key").await.unwrap().used()), (valid, if valid { 4 } else { 9 }));
    }
}

/// A window admits at most its maximum, and once more the local maximum of each process, however many outages it contains.
#[tokio::test]
async fn many_outages_in_a_window_admit_the_maximum_once_more_per_process() {
    let scene = Scene::new();
    let second = Limiter::new("t", policy!("5/1h"), Fallback::new(scene.server.clone(), MemoryStore::new()));
    let mut admitted = 0;
    for outage in 0..20 {
        scene.server.set(if outage % 2 == 0 { Does::Answer } else { Does::Refuse });
        for limiter in [&scene.limiter, &second].into_iter().cycle().take(8) {
            admitted += u64::from(limiter.acquire("key").await.unwrap().allowed());
        }
        // An id counts once, whoever uses it.
        assert!(scene.limiter.acquire("other").id(1).await.unwrap().allowed());
        assert!(second.acquire("other").id(1).await.unwrap().allowed());
        if outage % 4 == 0 {
            scene.drained().await;
        }
    }
    assert_eq!(admitted, 3 * 5);
    scene.server.set(Does::Answer);
    assert_eq!((second.store().flush(LONG).await, scene.store.flush(LONG).await), (0, 0));
    // The entries beyond the maximum are dropped.
    assert_eq!((scene.used("key"), scene.used("other")), (5, 1));
}

#[tokio::test]
async fn local_receipts_work_before_during_and_after_the_replay() {
    let scene = Scene::new();
    let limiter = Limiter::new("t", policy!("100/1h"), scene.store.clone());
    let settle = async |receipt, cost| limiter.settle("key", receipt, cost).await.unwrap();
    scene.server.set(Does::Refuse);
    let mut receipts = Vec::new();
    for _ in 0..5 {
        receipts.push(limiter.acquire("key").await.unwrap().receipt().unwrap());
    }
    // Before: the last word counts, and what is refunded is never sent.
    for (receipt, cost, used) in [(0, 7, 11), (0, 2, 6), (1, 0, 5), (2, 3, 7)] {
        let settled = settle(receipts[receipt], cost).await;
        assert!(settled.applied() && settled.status().used() == used, "{settled:?}");
    }
    assert!(!settle(receipts[1], 0).await.applied() && !settle(receipts[1], 2).await.applied());
    // During: the answer to the first record is under way.
    scene.server.rule(|verb, _| if verb == "record" { Does::LoseAnswer } else { Does::Answer });
    until("the first record is applied", || scene.used("key") == 2).await;
    assert!(settle(receipts[0], 4).await.applied());
    scene.server.set(Does::Answer);
    scene.drained().await;
    assert_eq!(scene.server.replayed(), ["record 2", "record 2", "settle 4", "record 3", "record 1", "record 1"]);
    // After: the primary store settles, also if it fails once more meanwhile.
    assert!(settle(receipts[3], 2).await.applied());
    scene.server.set(Does::Refuse);
    assert!(settle(receipts[3], 3).await.applied());
    assert!(settle(receipts[4], 0).await.applied() && !settle(receipts[4], 0).await.applied());
    scene.server.set(Does::Answer);
    // The last word, although an earlier one is still to be replayed.
    assert!(settle(receipts[3], 1).await.applied());
    scene.drained().await;
    let replayed = scene.server.replayed();
    assert!(replayed.ends_with(&["settle 0".to_owned()]), "{replayed:?}");
    assert_eq!(scene.used("key"), 8);
}

#[tokio::test]
async fn a_reset_during_an_outage_discards_what_precedes_it() {
    let scene = Scene::new();
    assert!(scene.limiter.acquire("key").cost(5).await.unwrap().allowed());
    scene.server.set(Does::Refuse);
    let before = scene.acquire("key").await.receipt().unwrap();
    assert!(scene.limiter.reset("key").await.unwrap());
    assert!(scene.acquire("key").await.used() == 1 && scene.limiter.acquire("key").cost(2).await.unwrap().used() == 3);
    assert_eq!(scene.store.journal_len(), 3);
    scene.server.replayed();
    scene.server.set(Does::Answer);
    assert_eq!(scene.store.flush(LONG).await, 0);
    assert_eq!(scene.server.replayed(), ["reset 0", "record 1", "record 2"]);
    assert!(!scene.limiter.refund("key", before).await.unwrap().applied());
    assert_eq!(scene.used("key"), 3);
}

/// An answer of the denial cache is no answer of the primary store.
#[tokio::test(start_paused = true)]
async fn cached_denials_do_not_end_an_outage() {
    let server = Faulty::default();
    let cache = DenialCache::new(server.clone(), 10).max_age(Duration::MAX);
    let store = Fallback::new(cache, MemoryStore::new());
    let limiter = Limiter::new("t", policy!("1/1h"), store.clone());
    for allowed in [true, false] {
        assert_eq!(limiter.acquire("key").await.unwrap().allowed(), allowed);
    }
    server.set(Does::Refuse);
    assert!(limiter.peek("other").await.unwrap().allowed() && store.is_out());
    let calls = server.calls();
    for _ in 0..5 {
        sleep(Duration::from_secs(1)).await;
        // Without an id, or it would not be cached.
        assert!(!limiter.acquire("key").await.unwrap().allowed());
    }
    assert_eq!((store.is_out(), server.calls()), (true, calls));
    server.set(Does::Answer);
    for is_out in [true, false] {
        assert!(limiter.peek("other").await.unwrap().allowed());
        assert_eq!(store.is_out(), is_out);
        sleep(Duration::from_secs(1)).await;
    }
}

/// A clock that is ahead of another one by some µs.
#[derive(Debug)]
struct Ahead(i64, MockClock);

impl Clock for Ahead {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros_saturating(self.1.now().as_micros().saturating_add_signed(self.0))
    }
}

#[tokio::test]
async fn a_wrong_clock_neither_freezes_nor_empties_a_log() {
    for seconds in [5, -5] {
        let (clock, millis) = (MockClock::new(), Duration::from_millis);
        let server = testbed::Faulty::new(WithClock::new(MemoryStore::new(), clock.clone()));
        let local = WithClock::new(MemoryStore::new(), Ahead(seconds * 1_000_000, clock.clone()));
        let store = Fallback::new(server.clone(), local);
        let limiter = Limiter::new("t", policy!("5/2s"), store.clone());
        let other = Limiter::new("t", policy!("5/2s"), server.clone());
        let expired = limiter.acquire("key").await.unwrap().receipt().unwrap();
        clock.advance(millis(1200));
        let receipt = limiter.acquire("key").cost(2).await.unwrap().receipt().unwrap();
        server.set(Does::Refuse);
        assert!(limiter.acquire("key").await.unwrap().allowed());
        assert!(limiter.acquire("late").await.unwrap().allowed());
        clock.advance(millis(900));
        // By the primary store's clock one receipt has expired and the other has not.
        assert!(!limiter.settle("key", expired, 3).await.unwrap().applied());
        assert!(limiter.settle("key", receipt, 3).await.unwrap().applied());
        server.set(Does::Answer);
        assert_eq!(store.flush(LONG).await, 0);
        assert_eq!(other.status("key").await.unwrap().used(), 4, "{seconds} s");
        let late = other.status("late").await.unwrap();
        assert_eq!(late.reset_after(), millis(1100), "{seconds} s");
    }
}

#[tokio::test]
async fn times_given_by_the_caller_are_kept_and_expire() {
    let scene = Scene::new();
    let at = |seconds: u64| Timestamp::from_micros_saturating(1_000_000 * seconds);
    scene.server.set(Does::Refuse);
    for (key, seconds) in [("expired", 10), ("expired", 3800), ("counts", 10)] {
        assert!(scene.limiter.acquire(key).at(at(seconds)).await.unwrap().allowed());
    }
    assert_eq!(scene.store.journal_len(), 3);
    scene.server.set(Does::Answer);
    assert!(scene.other.acquire("expired").at(at(3700)).await.unwrap().allowed());
    assert_eq!(scene.store.flush(LONG).await, 0);
    let used = async |key, seconds| scene.other.status(key).at(at(seconds)).await.unwrap().used();
    assert_eq!((used("expired", 3800).await, used("counts", 3609).await, used("counts", 3610).await), (2, 1, 0));
}

#[tokio::test]
async fn the_journal_keeps_the_newest_and_counts_the_rest() {
    let scene = Scene::with(|store| store.max_entries(100));
    scene.server.set(Does::Refuse);
    for key in 0..250 {
        assert!(scene.acquire(&key.to_string()).await.allowed());
    }
    assert_eq!((scene.store.journal_len(), scene.store.dropped(), scene.store.local_decisions()), (100, 150, 250));
    assert!(scene.store.is_out());
    scene.server.set(Does::Answer);
    assert_eq!(scene.store.flush(LONG).await, 0);
    assert_eq!(["0", "149", "150", "249"].map(|key| scene.used(key)), [0, 0, 1, 1]);
}

/// The policy of an operation never erases what the limiter's own limits count.
#[tokio::test]
async fn a_replay_keeps_what_the_limiters_policy_counts() {
    let scene = Scene::new();
    let burst = policy!("1/1s");
    assert!(scene.limiter.acquire("key").cost(4).await.unwrap().allowed());
    scene.server.set(Does::Refuse);
    assert!(scene.limiter.acquire("key").policy(&burst).await.unwrap().allowed());
    scene.server.set(Does::Answer);
    assert_eq!(scene.store.flush(LONG).await, 0);
    assert_eq!(scene.used("key"), 5);
}

/// An error that lasts stops neither other logs nor the end of the process.
#[tokio::test]
async fn a_log_that_is_damaged_waits_for_its_reset() {
    let scene = Scene::new();
    scene.server.set(Does::Refuse);
    for key in ["damaged", "sound"] {
        assert!(scene.acquire(key).await.allowed());
    }
    let damaged = |verb: &str, log: LogKey<'_>| log.key == b"damaged" && verb != "reset";
    scene.server.rule(move |verb, log| if damaged(verb, log) { Does::Corrupt } else { Does::Answer });
    until("the sound log is replayed", || scene.used("sound") == 1).await;
    assert_eq!(scene.store.flush(Duration::from_millis(50)).await, 1);
    assert_eq!(scene.limiter.acquire("damaged").await.unwrap_err().kind(), ErrorKind::Corrupt);
    assert!(scene.limiter.reset("damaged").await.unwrap());
    assert_eq!(scene.store.flush(LONG).await, 0);
}

/// A dropped fallback leaves no task behind, and another runtime can go on.
#[test]
fn a_replay_outlives_its_runtime_but_not_its_store() {
    let scene = Scene::new();
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime().block_on(async {
        scene.server.set(Does::Refuse);
        assert!(scene.acquire("key").await.allowed());
        // The replay is under way when the runtime ends.
        scene.server.set(Does::Hold);
        sleep(Duration::from_millis(5)).await;
    });
    runtime().block_on(async {
        scene.server.set(Does::Answer);
        assert_eq!(scene.store.flush(LONG).await, 0);
        assert_eq!(scene.used("key"), 1);
        scene.server.set(Does::Refuse);
        assert!(scene.acquire("key").await.allowed());
        drop(scene);
        until("the task has ended", || Handle::current().metrics().num_alive_tasks() == 0).await;
    });
}

/// The whole effect of a reset follows if its answer was under way when it was dropped.
#[tokio::test]
async fn a_dropped_reset_has_its_whole_effect() {
    let scene = Scene::new();
    scene.server.set(Does::Refuse);
    assert!(scene.acquire("key").await.allowed());
    scene.server.rule(|verb, _| if verb == "reset" { Does::ApplyAndHang } else { Does::Hold });
    assert!(timeout(Duration::from_millis(20), scene.limiter.reset("key")).await.is_err());
    scene.server.set(Does::Answer);
    scene.drained().await;
    assert_eq!(scene.used("key"), 0);
}

/// A store whose answers take a second of the clock.
#[derive(Debug)]
struct Slow(WithClock<MemoryStore, MockClock>, MockClock);

#[async_trait]
impl WindowStore for Slow {
    async fn apply(&self, op: Op<'_>) -> Result<Facts, Error> {
        let facts = self.0.apply_now(&op);
        self.1.advance(Duration::from_secs(1));
        Ok(facts)
    }

    async fn settle(&self, settlement: Settlement<'_>) -> Result<SettlementFacts, Error> {
        Ok(self.0.settle_now(&settlement))
    }

    async fn reset(&self, log: LogKey<'_>) -> Result<bool, Error> {
        Ok(self.0.reset_now(log))
    }
}

/// An entry may count for longer than it should, but not shorter.
#[tokio::test]
async fn a_slow_answer_makes_no_entry_older() {
    let clock = MockClock::new();
    let memory = || WithClock::new(MemoryStore::new(), clock.clone());
    let server = testbed::Faulty::new(Slow(memory(), clock.clone()));
    let store = Fallback::new(server.clone(), memory());
    let limiter = Limiter::new("t", policy!("5/10s"), store.clone());
    server.set(Does::Refuse);
    assert!(limiter.acquire("key").await.unwrap().allowed());
    clock.advance(Duration::from_secs(5));
    server.set(Does::Answer);
    assert_eq!(store.flush(LONG).await, 0);
    clock.advance(Duration::from_micros(2_999_999));
    let policy = policy!("5/10s");
    let peek = Op::peek("key", &policy).with_name("t".into());
    assert_eq!(server.store().0.apply_now(&peek).log.usage[0].used, 1);
}
