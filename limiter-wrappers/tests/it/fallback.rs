//! What a fallback promises, by the numbered sentences of its documentation.

use std::time::Duration;

use limiter_core::store::Op;
use limiter_core::{Clock, Timestamp, WindowStore, WithClock, policy};
use limiter_memory::MemoryStore;
use tokio::runtime::{Builder, Handle};
use tokio::time::{Instant, timeout};

use crate::scene::{Does, Scene, Virtual, wait};

const LONG: Duration = Duration::from_secs(20);

/// Returns a process whose server is down, and whose local clock is five seconds wrong.
fn scene(policy: &str) -> Scene {
    let clock = Virtual(Instant::now(), -5);
    let scene = Scene::new(policy, |stack| {
        stack.fallback(WithClock::new(MemoryStore::new(), clock))
    });
    scene.server.set(Does::Refuse);
    scene
}

impl Scene {
    /// Lets the server do this with peeks and records, and refuse all else.
    fn sweeps(&self, peek: Does, record: Does) {
        self.server.rule(move |verb, _| match verb {
            "peek" => peek,
            "record" => record,
            _ => Does::Refuse,
        });
    }

    /// Acquires from the local store.
    async fn charge(&self, key: &str, cost: u64) -> limiter_core::Receipt {
        wait(1).await;
        let decision = self.limiter.acquire(key).cost(cost).await.unwrap();
        decision.receipt().unwrap()
    }

    async fn settle(&self, key: &str, receipt: limiter_core::Receipt, cost: u64) -> bool {
        let settled = self.limiter.settle(key, receipt, cost).await;
        settled.unwrap().applied()
    }

    /// Ends the outage. Returns the costs of the records since the last look, and what the key `k` then counts.
    async fn flush(&self) -> String {
        self.server.set(Does::Answer);
        assert_eq!(self.store().flush(LONG).await, 0);
        let mut records = self.server.replayed();
        records.retain(|call| call.starts_with("record"));
        records.dedup();
        let records = records.join(" ").replace("record ", "");
        format!("{records} = {}", self.used("k"))
    }
}

#[tokio::test(start_paused = true)]
async fn sentence_1_the_primary_store_decides_as_soon_as_it_responds() {
    let scene = scene("9/64s");
    scene.charge("k", 9).await;
    scene.server.rule(|verb, _| match verb {
        "record" => Does::Refuse,
        _ => Does::Answer,
    });
    assert_eq!(scene.acquire("k", 9).await, Ok(true));
    assert_eq!((scene.used("k"), scene.store().carried_logs()), (9, 1));
}

#[tokio::test(start_paused = true)]
async fn sentence_2_a_record_carries_a_cell_of_a_32nd() {
    let scene = scene("9/64s");
    scene.charge("k", 1).await;
    scene.charge("k", 2).await;
    wait(2_000).await;
    scene.charge("k", 4).await;
    assert_eq!(scene.flush().await, "3 4 = 7");
}

#[tokio::test(start_paused = true)]
async fn sentence_3_a_cell_counts_once_until_it_no_longer_counts() {
    let scene = scene("50/64s");
    scene.charge("k", 2).await;
    scene.sweeps(Does::Answer, Does::LoseAnswer);
    wait(900).await;
    // Later charges wait in another cell.
    scene.charge("k", 3).await;
    scene.charge("k", 4).await;
    wait(900).await;
    assert_eq!(scene.used("k"), 2);
    assert_eq!(scene.flush().await, "2 7 = 9");
    scene.sweeps(Does::Answer, Does::Refuse);
    scene.charge("old", 2).await;
    wait(64_200).await;
    assert_eq!((scene.store().carried_logs(), scene.used("old")), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn sentence_4_the_age_is_the_newest_entrys() {
    for (first, second) in [
        (Does::Refuse, Does::Answer),
        (Does::AnswerLate, Does::Answer),
        (Does::Answer, Does::AnswerLate),
    ] {
        let scene = scene("9/64s");
        scene.charge("k", 1).await;
        scene.charge("k", 2).await;
        let charged = Instant::now();
        wait(40_000).await;
        scene.sweeps(first, second);
        wait(3_000).await;
        scene.flush().await;
        let rest = Duration::from_secs(64) - charged.elapsed();
        wait(rest.as_millis() as u64 - 1).await;
        assert_eq!(scene.used("k"), 3);
        // A late reply makes the entry younger at most.
        wait(2_001).await;
        assert_eq!(scene.used("k"), 0);
    }
    // Times given by callers are kept, and expire by one another.
    let scene = scene("5/1h");
    let at = |seconds: u64| Timestamp::from_micros_saturating(seconds * 1_000_000);
    for (key, seconds) in [("a", 10), ("a", 3_800), ("b", 10)] {
        let acquire = scene.limiter.acquire(key).at(at(seconds)).await;
        assert!(acquire.unwrap().is_allowed());
    }
    scene.flush().await;
    let used = [("a", 3_800), ("b", 3_609), ("b", 3_610)];
    let used = used.map(|(key, seconds)| scene.used_at(key, at(seconds)));
    assert_eq!(used, [1, 1, 0]);
}

/// The sweep reads the local clock. The newest entry of the log with the default name and an empty key is no clock.
#[tokio::test(start_paused = true)]
async fn sentence_4_a_log_with_a_future_time_does_not_age_the_others() {
    let scene = scene("5/1h");
    let policy = policy!("9/1h");
    let tomorrow = scene.clock.now().saturating_add(24 * 180 * LONG);
    let record = Op::record("", &policy).at(tomorrow);
    assert!(scene.store().apply(record).await.is_ok());
    scene.charge("key", 1).await;
    scene.flush().await;
    assert_eq!(scene.used("key"), 1);
}

/// The newest cells that together reach the maximum are sent, and no others. Above 100,000 logs the oldest go.
#[tokio::test(start_paused = true)]
async fn sentences_5_and_6_attempts_push_out_nothing_but_too_many_logs_do() {
    let mut scene = scene("5/64s");
    let attempts = policy!("5/64s").with_counting(limiter_core::Counting::Attempts);
    scene.limiter = limiter_core::Limiter::new("t", attempts, scene.store().clone());
    for cost in [5, 4, 3, 2] {
        assert_eq!(scene.acquire("k", cost).await, Ok(cost == 5));
        wait(9_000).await;
    }
    assert_eq!(scene.flush().await, "3 2 = 5");
    scene.server.set(Does::Refuse);
    let acquire = async |key: String| drop(scene.limiter.acquire(key).await.unwrap());
    for key in 0..100 {
        acquire(format!("quota {key}")).await;
    }
    for _ in 0..10_000 {
        acquire("attacked".to_owned()).await;
    }
    let counts = || (scene.store().carried_logs(), scene.store().dropped());
    assert_eq!(counts(), (101, 0));
    for key in 0..99_902 {
        acquire(format!("{key}")).await;
    }
    assert_eq!(counts(), (100_000, 3));
    scene.flush().await;
    let used = |key: u64| scene.used(&format!("quota {key}"));
    assert!((0..100).all(|key| used(key) == u64::from(key >= 3)) && scene.used("attacked") >= 5);
}

#[tokio::test(start_paused = true)]
async fn sentence_7_a_settlement_changes_a_cell_until_that_is_frozen() {
    // Whether the record is lost before the settlements, and what the server then counts.
    for (is_frozen, expected) in [(false, " 21"), (true, " 38")] {
        let scene = scene("50/64s");
        let mut charges = Vec::new();
        for _ in 0..3 {
            charges.push(scene.charge("k", 9).await);
        }
        if is_frozen {
            scene.sweeps(Does::Answer, Does::LoseAnswer);
            wait(900).await;
        }
        for (receipt, cost) in charges.into_iter().zip([0, 1, 20]) {
            assert!(scene.settle("k", receipt, cost).await);
        }
        // Once it is frozen, only an increase is sent, with the entry's time.
        assert!(scene.flush().await.ends_with(expected));
        wait(64_000).await;
        assert_eq!(scene.used("k"), 0);
    }
    // The primary store's entries are settled there, or not at all.
    let scene = scene("50/1h");
    scene.server.set(Does::Answer);
    let primary = scene.charge("k", 9).await;
    scene.server.set(Does::Refuse);
    scene.charge("k", 9).await;
    assert!(scene.limiter.settle("k", primary, 0).await.is_err());
    scene.flush().await;
    assert!(scene.settle("k", primary, 3).await && scene.used("k") == 12);
    // A reset clears the local log, and returns the primary store's result.
    scene.server.set(Does::Refuse);
    scene.charge("k", 9).await;
    assert!(scene.limiter.reset("k").await.is_err());
    assert_eq!(scene.store().carried_logs(), 0);
    scene.flush().await;
    assert!(scene.used("k") == 12 && scene.limiter.reset("k").await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn sentence_8_a_window_admits_its_maximum_in_each_store() {
    let scene = scene("5/1h");
    scene.server.set(Does::Answer);
    scene.charge("k", 5).await;
    for fits in [true, false] {
        scene.server.set(Does::Refuse);
        assert_eq!(scene.acquire("k", 5).await, Ok(fits));
        assert_eq!(scene.acquire("k", 1).await, Ok(false));
        scene.flush().await;
        assert_eq!(scene.acquire("k", 1).await, Ok(false));
    }
    // An id that is repeated after the outage counts twice.
    let repeat = async || {
        scene
            .limiter
            .acquire("i")
            .idempotency_key(7_u128)
            .await
            .unwrap()
    };
    scene.server.set(Does::Refuse);
    drop((repeat().await, repeat().await));
    scene.flush().await;
    assert!(repeat().await.is_allowed() && scene.used("i") == 2);
}

/// Sentences 1 to 3: no call waits for the sweep, which sends 64 logs at a time, and rests only for the node that fails.
#[tokio::test(start_paused = true)]
async fn a_dead_node_holds_up_no_other() {
    let scene = scene("5/1h");
    for log in 0..1_500 {
        scene.charge(&format!("{log}@dead"), 1).await;
    }
    scene.charge("log@live", 1).await;
    wait(150).await;
    let asked = || scene.server.calls_to("peek");
    scene.server.rule(|verb, _| match verb {
        "acquire" => Does::Answer,
        _ => Does::Hold,
    });
    let before = asked();
    wait(1_000).await;
    let tasks = Handle::current().metrics().num_alive_tasks();
    assert_eq!((asked() - before, tasks), (64, 1));
    let call = timeout(Duration::from_millis(10), scene.limiter.acquire("log@live")).await;
    let call = call.expect("no call waits for the sweep");
    assert_eq!(call.unwrap().used(), 1);
    scene
        .server
        .rule(|_, log| match log.key.ends_with(b"@dead") {
            true => Does::Corrupt,
            false => Does::Answer,
        });
    let before = asked();
    wait(400).await;
    assert_eq!(
        (scene.used("log@live"), scene.store().carried_logs()),
        (2, 1_500)
    );
    assert!(
        (64..=5 * 64).contains(&(asked() - before)),
        "{}",
        asked() - before
    );
    scene.flush().await;
}

/// Sentence 2: an ended runtime ends the sweep, the next call starts it, and it ends with the store.
#[test]
fn a_sweep_outlives_its_runtime_but_not_its_store() {
    let runtime = || Builder::new_current_thread().enable_all().build().unwrap();
    let scene = runtime().block_on(async {
        let scene = scene("5/1h");
        scene.charge("key", 1).await;
        scene.sweeps(Does::LoseAnswer, Does::Refuse);
        wait(150).await;
        scene
    });
    runtime().block_on(async {
        scene.server.set(Does::Answer);
        scene.charge("other", 1).await;
        let sent = async {
            while scene.used("key") == 0 {
                wait(1).await;
            }
            scene.server.set(Does::Refuse);
            scene.charge("key", 1).await;
            drop(scene);
            while Handle::current().metrics().num_alive_tasks() > 0 {
                wait(1).await;
            }
        };
        let sent = timeout(LONG, sent).await;
        sent.expect("the sweep begins, and ends");
    });
}
