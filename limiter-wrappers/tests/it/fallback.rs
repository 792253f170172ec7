//! What a fallback promises, in virtual time: tokio's clock is paused, and every store reads it.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use fastrand::Rng;
use limiter_core::store::{Facts, LogKey, Op, Settlement, SettlementFacts};
use limiter_core::{
    Clock, Counting, Error, ErrorKind, Limiter, Policy, Receipt, SyncStore, Timestamp, WindowStore, WithClock, policy,
};
use limiter_memory::MemoryStore;
use limiter_wrappers::{DenialCache, Fallback, Outage};
use tokio::runtime::{Builder, Handle};
use tokio::time::{Instant, sleep, timeout};

use crate::faulty::Does;

const LONG: Duration = Duration::from_secs(10);

/// Tokio's clock, and by how many seconds it is wrong.
#[derive(Clone, Copy, Debug)]
struct Virtual(Instant, i64);

impl Clock for Virtual {
    fn now(&self) -> Timestamp {
        let micros = 1_700_000_000_000_000 + self.0.elapsed().as_micros() as u64;
        Timestamp::from_micros_saturating(micros.saturating_add_signed(self.1 * 1_000_000))
    }
}

type Memory = WithClock<MemoryStore, Virtual>;
type Server = testbed::Faulty<Memory>;

struct Scene {
    policy: Policy,
    clock: Virtual,
    server: Server,
    store: Fallback<Server, Memory>,
    limiter: Limiter<Fallback<Server, Memory>>,
}

impl Scene {
    fn new(policy: Policy) -> Self {
        let clock = Virtual(Instant::now(), 0);
        Self::over(policy, testbed::Faulty::new(WithClock::new(MemoryStore::new(), clock)), clock, 0)
    }

    /// Returns one process over a server, whose local clock is wrong by some seconds.
    fn over(policy: Policy, server: Server, clock: Virtual, wrong: i64) -> Self {
        let store = Fallback::new(server.clone(), WithClock::new(MemoryStore::new(), Virtual(clock.0, wrong)));
        Self { limiter: Limiter::new("t", policy.clone(), store.clone()), policy, clock, server, store }
    }

    /// Acquires a millisecond later, which must be admitted.
    async fn acquire(&self, key: &str, cost: u64) -> Receipt {
        sleep(Duration::from_millis(1)).await;
        self.limiter.acquire(key).cost(cost).await.unwrap().receipt().unwrap()
    }

    async fn settle(&self, key: &str, receipt: Receipt, cost: u64) -> bool {
        self.limiter.settle(key, receipt, cost).await.unwrap().applied()
    }

    /// Ends the outage. Returns the records that arrive, without their repetitions.
    async fn carried(&self) -> Vec<String> {
        self.server.set(Does::Answer);
        assert_eq!(self.store.flush(LONG).await, 0);
        let mut records = self.server.replayed();
        records.dedup();
        records
    }

    /// Returns the units that the server counts, beyond the maximum too.
    fn used(&self, key: &str) -> u64 {
        self.used_at(key, self.clock.now())
    }

    fn used_at(&self, key: &str, at: Timestamp) -> u64 {
        self.server.store().apply_now(&Op::peek(key, &self.policy).with_name("t".into()).at(at)).log.usage[0].used
    }

    /// Returns for how long the server's log counts.
    fn counts_for(&self, key: &str) -> Duration {
        let peek = Op::peek(key, &self.policy).with_name("t".into());
        let newest = self.server.store().apply_now(&peek).log.newest.unwrap();
        let window = self.policy.longest_window();
        Duration::from_micros(window.micros_left(newest, self.clock.now()))
    }
}

/// Sentences 1 and 2: no call waits for a sweep, which sends 64 logs at a time, one record per cell.
#[tokio::test(start_paused = true)]
async fn the_primary_store_decides_from_its_first_answer_on() {
    let scene = Scene::new(policy!("5/32s"));
    scene.server.set(Does::Refuse);
    for millis in [130, 50, 1000] {
        sleep(Duration::from_millis(millis)).await;
        assert_eq!(scene.limiter.acquire("hot").await.unwrap().at(), scene.clock.now());
    }
    for key in 0..199 {
        scene.acquire(&key.to_string(), 1).await;
    }
    assert_eq!((scene.store.carried_logs(), scene.store.fallback_decisions()), (200, 202));
    let asked = Arc::new(Mutex::new(BTreeSet::new()));
    let sent = Arc::clone(&asked);
    scene.server.rule(move |verb, log| match verb {
        "acquire" => Does::Answer,
        _ => (sent.lock().unwrap().insert(log.key.to_vec()), Does::Hold).1,
    });
    for used in 1..=5 {
        let call = timeout(Duration::from_millis(10), scene.limiter.acquire("hot")).await;
        assert_eq!(call.expect("no call waits for the sweep").unwrap().used(), used);
    }
    sleep(Duration::from_secs(1)).await;
    assert_eq!((asked.lock().unwrap().len(), Handle::current().metrics().num_alive_tasks()), (64, 1));
    assert_eq!(scene.store.flush(Duration::from_millis(20)).await, 200);
    scene.server.replayed();
    scene.server.rule(|_, log| if log.key == b"hot" { Does::Answer } else { Does::Refuse });
    sleep(LONG).await;
    assert_eq!(scene.server.replayed(), ["record 2", "record 1"]);
    scene.carried().await;
    assert_eq!((scene.used("hot"), scene.used("0"), scene.used("198")), (5, 1, 1));
}

/// Sentence 2: an ended runtime ends the sweep, the next call starts it, and it ends with the store.
#[test]
fn a_sweep_outlives_its_runtime_but_not_its_store() {
    let runtime = || Builder::new_current_thread().enable_all().build().unwrap();
    let scene = runtime().block_on(async {
        let scene = Scene::new(policy!("5/1h"));
        scene.server.set(Does::Refuse);
        scene.acquire("key", 1).await;
        scene.server.set(Does::Hold);
        sleep(Duration::from_millis(150)).await;
        scene
    });
    runtime().block_on(async {
        scene.server.set(Does::Answer);
        scene.acquire("other", 1).await;
        let sent = async {
            while scene.used("key") == 0 {
                sleep(Duration::from_millis(1)).await;
            }
            scene.server.set(Does::Refuse);
            scene.acquire("key", 1).await;
            drop(scene);
            while Handle::current().metrics().num_alive_tasks() > 0 {
                sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(LONG, sent).await.expect("the sweep begins, and ends");
    });
}

/// Sentence 3: a lost answer counts once, and what follows it waits in another cell.
#[tokio::test(start_paused = true)]
async fn a_frozen_cell_is_sent_until_it_is_confirmed() {
    let scene = Scene::new(policy!("50/1h"));
    scene.server.rule(|verb, _| if verb == "acquire" { Does::Refuse } else { Does::LoseAnswer });
    scene.acquire("key", 2).await;
    // The answer to the peek is lost, too.
    sleep(LONG).await;
    assert_eq!(scene.used("key"), 0);
    scene.server.rule(|verb, _| match verb {
        "acquire" => Does::Refuse,
        "record" => Does::LoseAnswer,
        _ => Does::Answer,
    });
    sleep(LONG).await;
    scene.acquire("key", 3).await;
    scene.acquire("key", 4).await;
    sleep(LONG).await;
    assert_eq!((scene.used("key"), scene.carried().await), (2, vec!["record 2".to_owned(), "record 7".to_owned()]));
    assert_eq!(scene.used("key"), 9);
}

/// Sentences 3 and 4: a cell has the age of its newest entry, whatever the clocks say, and goes on growing older once it is frozen.
#[tokio::test(start_paused = true)]
async fn an_entry_keeps_its_age() {
    for (wrong, stuck) in [(5, false), (-5, false), (0, true)] {
        let clock = Virtual(Instant::now(), 0);
        let server = testbed::Faulty::new(WithClock::new(MemoryStore::new(), clock));
        let scene = Scene::over(policy!("5/64s"), server, clock, wrong);
        // The record is refused after the cell is frozen.
        let does = move |verb: &str| if stuck && verb == "peek" { Does::Answer } else { Does::Refuse };
        scene.server.rule(move |verb, _| does(verb));
        // Most likely in one cell, of 2 s.
        for key in ["key", "key", "dead"] {
            scene.acquire(key, 1).await;
        }
        let newest = Instant::now() - Duration::from_millis(1);
        sleep(Duration::from_secs(40)).await;
        scene.server.rule(move |verb, log| if log.key == b"key" { Does::Answer } else { does(verb) });
        sleep(Duration::from_secs(1)).await;
        assert_eq!((scene.used("key"), scene.store.carried_logs()), (2, 1), "{wrong} {stuck}");
        assert_eq!(scene.counts_for("key"), Duration::from_secs(64) - newest.elapsed(), "{wrong} {stuck}");
        sleep(Duration::from_secs(24)).await;
        assert_eq!((scene.store.carried_logs(), scene.store.dropped(), scene.used("dead")), (0, 0, 0));
    }
}

/// A store whose answers take a second.
#[derive(Debug)]
struct Slow(Memory);

#[async_trait]
impl WindowStore for Slow {
    async fn apply(&self, op: Op<'_>) -> Result<Facts, Error> {
        let facts = self.0.apply_now(&op);
        sleep(Duration::from_secs(1)).await;
        Ok(facts)
    }

    async fn settle(&self, settlement: Settlement<'_>) -> Result<SettlementFacts, Error> {
        Ok(self.0.settle_now(&settlement))
    }

    async fn reset(&self, log: LogKey<'_>) -> Result<bool, Error> {
        Ok(self.0.reset_now(log))
    }
}

/// Sentence 4: an entry may count for longer than it should, but not shorter.
#[tokio::test(start_paused = true)]
async fn an_old_reading_of_the_clock_makes_no_entry_older() {
    let clock = Virtual(Instant::now(), 0);
    let memory = || WithClock::new(MemoryStore::new(), clock);
    let server = testbed::Faulty::new(Slow(memory()));
    let store = Fallback::new(server.clone(), memory());
    server.set(Does::Refuse);
    let policy = policy!("5/64s");
    let appended = Limiter::new("t", policy.clone(), store.clone()).acquire("key").await.unwrap().at();
    server.set(Does::Answer);
    assert_eq!(store.flush(LONG).await, 0);
    let at = appended.saturating_add(Duration::from_micros(63_999_999));
    let peek = Op::peek("key", &policy).with_name("t".into()).at(at);
    assert_eq!(server.store().0.apply_now(&peek).log.usage[0].used, 1);
}

/// Sentence 4: no entry is later than the primary store's clock, or earlier than it should be if the answer comes late.
#[tokio::test(start_paused = true)]
async fn a_slow_answer_makes_no_entry_older() {
    let scene = Scene::new(policy!("5/64s"));
    scene.server.set(Does::Refuse);
    scene.acquire("key", 1).await;
    let appended = Instant::now();
    scene.server.set(Does::Hold);
    // The peek is under way, and entries that follow are younger.
    sleep(Duration::from_secs(1)).await;
    scene.server.rule(|verb, _| match verb {
        "acquire" => Does::Refuse,
        _ => Does::Hold,
    });
    scene.acquire("key", 1).await;
    sleep(Duration::from_secs(4)).await;
    scene.carried().await;
    let late = Duration::from_secs(64) - appended.elapsed();
    let counts_for = scene.counts_for("key");
    assert!(scene.used("key") == 2 && counts_for >= late, "{counts_for:?} {late:?}");
    assert!(counts_for <= Duration::from_secs(64));
}

/// Sentence 4.
#[tokio::test(start_paused = true)]
async fn times_given_by_the_caller_are_kept_and_expire() {
    let scene = Scene::new(policy!("5/1h"));
    let at = |seconds: u64| Timestamp::from_micros_saturating(1_000_000 * seconds);
    scene.server.set(Does::Refuse);
    for (key, seconds) in [("expired", 10), ("expired", 3800), ("counts", 10), ("late", 10)] {
        assert!(scene.limiter.acquire(key).at(at(seconds)).await.unwrap().allowed());
    }
    let record = Op::record("late", &scene.policy).with_name("t".into()).at(at(3700));
    scene.server.store().apply_now(&record);
    assert_eq!(scene.carried().await, ["record 1"]);
    let used = |key, seconds| scene.used_at(key, at(seconds));
    assert_eq!((used("expired", 3700), used("counts", 3609), used("counts", 3610), used("late", 3700)), (1, 1, 0, 1));
}

/// Sentence 3.
#[tokio::test(start_paused = true)]
async fn an_error_pauses_the_logs_of_its_node_only() {
    let scene = Scene::new(policy!("5/1h"));
    scene.server.set(Does::Refuse);
    for log in 0..1500 {
        scene.acquire(&format!("{log}@dead"), 1).await;
    }
    scene.acquire("log@live", 1).await;
    let calls = Arc::new(Mutex::new(0));
    let counted = Arc::clone(&calls);
    scene.server.rule(move |_, log| {
        let is_dead = log.key.ends_with(b"@dead");
        *counted.lock().unwrap() += usize::from(is_dead);
        if is_dead { Does::Corrupt } else { Does::Answer }
    });
    sleep(Duration::from_millis(400)).await;
    assert_eq!((scene.used("log@live"), scene.store.carried_logs()), (1, 1500));
    let calls = *calls.lock().unwrap();
    assert!((64..=5 * 64).contains(&calls), "{calls}");
    scene.carried().await;
}

/// Sentence 5: whatever happens, the server then counts what an exact log of all entries counts, for each limit and at any time.
#[tokio::test(start_paused = true)]
async fn nothing_is_missing_that_a_limit_could_tell_apart() {
    let (default, small) = (policy!("20/64s, 9/10s"), policy!("3/5s"));
    for seed in 0..300 {
        let (mut random, scene) = (Rng::with_seed(seed), Scene::new(default.clone()));
        let exact = WithClock::new(MemoryStore::new(), scene.clock);
        let meter = policy!("1000000/64s");
        for _ in 0..80 {
            sleep(Duration::from_millis(random.u64(1..2000))).await;
            if random.u8(..8) == 0 {
                scene.server.set([Does::Answer, Does::Refuse][random.usize(..2)]);
            }
            let policy = [&default, &small][random.usize(..2)];
            let cost = random.u64(1..=3);
            let call = scene.limiter.acquire("key").cost(cost).policy(policy).await.unwrap();
            if call.allowed() {
                let _ = exact.apply_now(&Op::record("key", &meter).with_cost(cost));
            }
        }
        scene.carried().await;
        for second in 0..64 {
            let at = scene.clock.now().saturating_add(Duration::from_secs(second));
            let held = scene.server.store().apply_now(&Op::peek("key", &default).with_name("t".into()).at(at)).log;
            let all = exact.apply_now(&Op::peek("key", &default).at(at)).log;
            for (limit, (held, all)) in default.limits().iter().zip(held.usage.iter().zip(all.usage.iter())) {
                assert!(held.used.min(limit.max()) >= all.used.min(limit.max()), "{seed}, {second} s, {limit}");
            }
        }
    }
}

/// Sentence 5: the newest cells that together reach the maximum are sent, and no others.
#[tokio::test(start_paused = true)]
async fn cells_beyond_the_maximum_go() {
    let scene = Scene::new(policy!("5/64s").with_counting(Counting::Attempts));
    scene.server.set(Does::Refuse);
    for cost in [5, 4, 3, 2] {
        sleep(LONG).await;
        let _ = scene.limiter.acquire("key").cost(cost).await.unwrap();
    }
    assert_eq!(scene.carried().await, ["record 3", "record 2"]);
}

/// Sentences 5 and 6: attempts on one key push out nothing, and beyond 100,000 logs the oldest go.
#[tokio::test(start_paused = true)]
async fn attempts_push_out_nothing_but_too_many_logs_do() {
    let scene = Scene::new(policy!("5/1d").with_counting(Counting::Attempts));
    scene.server.set(Does::Refuse);
    for key in 0..100 {
        scene.acquire(&format!("quota {key}"), 5).await;
    }
    for _ in 0..110_000 {
        let _ = scene.limiter.acquire("attacked").await.unwrap();
    }
    assert_eq!((scene.store.carried_logs(), scene.store.dropped()), (101, 0));
    for key in 0..99_902_u64 {
        assert!(scene.limiter.acquire(key).await.unwrap().allowed());
    }
    assert_eq!((scene.store.carried_logs(), scene.store.dropped()), (100_000, 3));
    scene.server.set(Does::Answer);
    assert_eq!(scene.store.flush(Duration::MAX).await, 0);
    let quotas: Vec<u64> = (0..100).map(|key| scene.used(&format!("quota {key}"))).collect();
    assert_eq!(quotas, [vec![0; 3], vec![5; 97]].concat());
    assert!(scene.used("attacked") >= 5);
}

/// Sentence 7: a settlement asks the local log first.
#[tokio::test(start_paused = true)]
async fn settlements_change_cells_until_they_are_frozen() {
    // The units that the server counts in the end, if 2 of 4 units are refunded, settled to 1, and settled to 7: before their cell
    // is frozen, while its answer is lost, and after it is confirmed.
    for (stage, expected) in [("before", [2, 3, 9]), ("frozen", [4, 4, 9]), ("confirmed", [5, 5, 10])] {
        for (cost, expected) in [0, 1, 7].into_iter().zip(expected) {
            let scene = Scene::new(policy!("50/64s"));
            let healthy = scene.acquire("key", 1).await;
            scene.server.set(Does::Refuse);
            let receipt = scene.acquire("key", 2).await;
            scene.acquire("key", 1).await;
            match stage {
                "before" => {}
                "frozen" => scene.server.rule(|verb, _| if verb == "record" { Does::LoseAnswer } else { Does::Answer }),
                _ => {
                    scene.carried().await;
                    scene.server.set(Does::Refuse);
                    // Another cell, which is not the receipt's.
                    scene.acquire("key", 1).await;
                }
            }
            sleep(LONG).await;
            assert!(scene.settle("key", receipt, cost).await, "{stage} {cost}");
            scene.server.set(Does::Refuse);
            let error = scene.limiter.refund("key", healthy).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable, "the entry is the primary store's");
            scene.carried().await;
            assert_eq!(scene.used("key"), expected, "{stage} {cost}");
            assert!(scene.counts_for("key") < Duration::from_secs(55), "younger than its entry: {stage} {cost}");
            assert!(scene.settle("key", healthy, 3).await && scene.used("key") == expected + 2);
        }
    }
}

/// Sentence 7: a reset clears what is local, and its error is returned.
#[tokio::test(start_paused = true)]
async fn a_reset_is_the_primary_stores() {
    let scene = Scene::new(policy!("5/1h"));
    scene.acquire("key", 2).await;
    scene.server.set(Does::Refuse);
    scene.acquire("key", 5).await;
    assert_eq!(scene.limiter.reset("key").await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(scene.store.carried_logs(), 0);
    scene.acquire("key", 3).await;
    assert_eq!((scene.carried().await, scene.used("key")), (vec!["record 3".to_owned()], 5));
    assert_eq!((scene.limiter.reset("key").await.unwrap(), scene.limiter.reset("key").await.unwrap()), (true, false));
    assert_eq!(scene.used("key"), 0);
    // A log that is damaged waits for its reset, and stops no other.
    scene.server.set(Does::Refuse);
    scene.acquire("damaged", 1).await;
    scene.acquire("sound", 1).await;
    let is_damaged = |verb: &str, log: LogKey<'_>| log.key == b"damaged" && verb != "reset";
    scene.server.rule(move |verb, log| if is_damaged(verb, log) { Does::Corrupt } else { Does::Answer });
    assert_eq!((scene.store.flush(LONG).await, scene.used("sound")), (1, 1));
    assert!(!scene.limiter.reset("damaged").await.unwrap());
    assert_eq!(scene.store.carried_logs(), 0);
}

/// Sentence 8: a window admits its maximum in the primary store and in each process, however many outages it contains. An id that is
/// repeated after an outage counts twice, and so may a call that timed out.
#[tokio::test(start_paused = true)]
async fn the_costs_of_outages_are_bounded() {
    let scene = Scene::new(policy!("5/1h"));
    let second = Scene::over(scene.policy.clone(), scene.server.clone(), scene.clock, 0);
    let mut admitted = 0;
    for outage in 0..20 {
        scene.server.set([Does::Answer, Does::Refuse][outage % 2]);
        for process in [&scene, &second].into_iter().cycle().take(8) {
            sleep(Duration::from_millis(1)).await;
            admitted += u64::from(process.limiter.acquire("key").await.unwrap().allowed());
        }
    }
    assert_eq!(admitted, 3 * 5);
    assert!(second.carried().await.len() + scene.carried().await.len() > 0 && scene.used("key") >= 5);
    let by_id = async || scene.limiter.acquire("id").idempotency_key(7).await.unwrap().used();
    scene.server.set(Does::Refuse);
    assert_eq!((by_id().await, by_id().await), (1, 1));
    scene.server.set(Does::LoseAnswer);
    assert_eq!(scene.limiter.acquire("lost").await.unwrap().used(), 1);
    scene.carried().await;
    assert_eq!((by_id().await, by_id().await, scene.used("lost")), (2, 2, 2));
}

/// Returns the units that three processes over one store admit beyond their quotas in an outage, and those missing in the store.
async fn three_processes(keys: usize, is_carried: bool) -> (u64, u64) {
    let (mut random, scene) = (Rng::with_seed(1), Scene::new(policy!("20/1h")));
    let processes = [(); 3].map(|()| Scene::over(scene.policy.clone(), scene.server.clone(), scene.clock, 0));
    let (mut admitted, mut receipts) = (vec![0_u64; keys], [const { Vec::new() }; 3]);
    for step in 0..1600 {
        let in_outage = (300..1050).contains(&step);
        let fails = move |verb: &str| in_outage || (verb == "record" && !is_carried);
        scene.server.rule(move |verb, _| if fails(verb) { Does::Refuse } else { Does::Answer });
        sleep(Duration::from_millis(2)).await;
        for (process, receipts) in processes.iter().zip(&mut receipts) {
            let key = random.usize(..keys).min(random.usize(..keys));
            if let Some(receipt) = process.limiter.acquire(key.to_string()).await.unwrap().receipt() {
                admitted[key] += 1;
                receipts.push((key, receipt));
            }
            if random.u8(..10) == 0 && !receipts.is_empty() {
                let (key, receipt) = receipts.swap_remove(random.usize(..receipts.len()));
                let refund = process.limiter.refund(key.to_string(), receipt).await;
                admitted[key] -= u64::from(refund.is_ok_and(|refund| refund.applied()));
            }
        }
    }
    for process in processes.iter().filter(|_| is_carried) {
        process.carried().await;
    }
    let (mut beyond, mut missing) = (0, 0);
    for (key, admitted) in admitted.into_iter().enumerate() {
        assert!(admitted <= 4 * 20);
        beyond += admitted.saturating_sub(20);
        missing += admitted.saturating_sub(scene.used(&key.to_string()));
    }
    (beyond, missing)
}

#[tokio::test(start_paused = true)]
async fn three_processes_admit_little_beyond_their_quotas() {
    let (beyond, missing) = three_processes(300, true).await;
    let control = three_processes(300, false).await;
    println!("beyond the quotas, and missing: {beyond}, {missing}; if nothing is carried over: {control:?}");
    assert!(beyond <= 320 && missing <= 320 && control.0.min(control.1) > 320);
    assert_eq!(three_processes(3000, true).await, (0, 0));
}

/// A partial outage is one outage and one task. An answer of the denial cache is no answer of the primary store.
#[tokio::test(start_paused = true)]
async fn an_outage_begins_and_ends_once() {
    let events = Arc::new(Mutex::new(Vec::new()));
    let listener = Arc::clone(&events);
    let server = crate::faulty::Faulty::default();
    let cache = DenialCache::new(server.clone(), 10).max_age(Duration::MAX);
    let store = Fallback::new(cache, MemoryStore::new());
    let store = store.on_outage(move |outage: Outage<'_>| listener.lock().unwrap().push(format!("{outage:?}")));
    let limiter = Limiter::new("t", policy!("1/1h"), store.clone());
    for allowed in [true, false] {
        assert_eq!(limiter.acquire("denied").await.unwrap().allowed(), allowed);
    }
    server.rule(|_, log| if log.key.starts_with(b"dead") { Does::Refuse } else { Does::Answer });
    for pair in 0..600 {
        assert!(limiter.acquire(format!("dead {pair}")).await.unwrap().allowed());
        assert!(limiter.acquire(format!("live {pair}")).await.unwrap().allowed());
    }
    assert!(store.in_outage() && Handle::current().metrics().num_alive_tasks() <= 1);
    server.set(Does::Refuse);
    for _ in 0..5 {
        sleep(Duration::from_secs(1)).await;
        assert!(!limiter.acquire("denied").await.unwrap().allowed() && store.in_outage());
    }
    assert_eq!(store.fallback_decisions(), 600);
    server.set(Does::Answer);
    // Without a call, too.
    sleep(LONG).await;
    let events = events.lock().unwrap();
    assert!(events.len() == 2 && events[1].starts_with("Ended { node: None, calls: 600"), "{events:?}");
    assert_eq!((Handle::current().metrics().num_alive_tasks(), store.carried_logs()), (0, 0));
}
