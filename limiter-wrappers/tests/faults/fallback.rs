//! A fallback through outages every two seconds: after the last one, the primary store holds what was agreed, or a stated cost more.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use fastrand::Rng;
use limiter_core::{Clock, Limiter, Policy, Receipt, Timestamp, WithClock, policy};
use limiter_memory::MemoryStore;
use limiter_redis::RedisStore;
use limiter_wrappers::{Fallback, Guarded, Outage, Stack};
use testbed::{ClusterFault, ClusterScene, RedisScene, Scene, Soak, alone, random_faults, worst_window};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::{PAUSE, TIMEOUT, connect, direct, lossless_soak};

/// In milliseconds, so that most outages end before the next fault.
const PAUSES: Range<u64> = 1300..2000;
/// How long a recovery may take on a busy machine.
const RECOVERY: Duration = Duration::from_secs(20);
const HOT_MAX: u64 = 20;
/// Never reached, so that every acquire is admitted.
const LEDGER: Policy = policy!("1000000000/1h");

/// A clock that is fast by this many seconds.
#[derive(Debug)]
struct Fast(u64);

impl Clock for Fast {
    fn now(&self) -> Timestamp {
        let since = SystemTime::UNIX_EPOCH.elapsed().unwrap() + Duration::from_secs(self.0);
        Timestamp::from_micros_saturating(since.as_micros() as u64)
    }
}

type Store = Fallback<Guarded<RedisStore>, WithClock<MemoryStore, Fast>>;

/// Over one server, and at the same time, with a fast clock, over a cluster with one dead master.
#[test]
fn a_fallback_through_random_faults() {
    let _alone = alone();
    let runtime = || tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    std::thread::scope(|scope| {
        let dead_master = Soak::from_env(vec![ClusterFault::OneMaster]);
        scope.spawn(move || runtime().block_on(run(&mut ClusterScene::start().unwrap(), &dead_master, 5)));
        runtime().block_on(run(&mut RedisScene::start().unwrap(), &lossless_soak(), 0));
    });
}

async fn run<X: Scene>(scene: &mut X, soak: &Soak<X::Fault>, seconds_fast: u64) {
    let mut random = Rng::with_seed(soak.seed);
    let redis = connect(&scene.url()).await;
    let stack = Stack::new(redis).timeout(TIMEOUT).failure_threshold(3).cooldown(PAUSE);
    let events = Arc::new(Mutex::new(Vec::new()));
    let listener = Arc::clone(&events);
    let listen = move |outage: Outage<'_>| listener.lock().unwrap().push(matches!(outage, Outage::Began { .. }));
    let store = stack.fallback(WithClock::new(MemoryStore::new(), Fast(seconds_fast))).on_outage(listen);
    let until = Instant::now() + soak.length;
    let mut ledgers = JoinSet::new();
    for task in 0..4 {
        ledgers.spawn(keep_ledger(store.clone(), random.fork(), format!("ledger {task}"), until));
    }
    let over = Arc::new(AtomicBool::new(false));
    let hot = tokio::spawn(hammer(store.clone(), Arc::clone(&over)));
    let faults: u64 = random_faults(scene, soak, &mut random, PAUSES).await.unwrap().values().sum();
    // The hot key is hammered on, and yet the primary store decides again.
    let recovered = Instant::now() + RECOVERY;
    loop {
        let before = store.fallback_decisions();
        sleep(Duration::from_millis(500)).await;
        if store.fallback_decisions() == before {
            break;
        }
        assert!(Instant::now() < recovered, "calls are still decided locally");
    }
    over.store(true, Ordering::Relaxed);
    let worst = worst_window(hot.await.unwrap());
    assert!(worst <= 2 * HOT_MAX, "a window of {HOT_MAX} admitted {worst}");
    // A busy machine is slow.
    assert_eq!((store.flush(6 * RECOVERY).await, store.dropped()), (0, 0));
    while store.in_outage() {
        assert!(Instant::now() < recovered + RECOVERY, "the outage does not end");
        // A settlement may have been the last call to a node, and nothing follows one that fails.
        let _ = Limiter::new("ledger", LEDGER, store.clone()).peek(random.u64(..)).await.unwrap();
        sleep(Duration::from_millis(10)).await;
    }
    let server = direct(scene.direct_url()).await;
    let clock = Limiter::new("clock", policy!("1/1s"), server.clone());
    let mut entries = 0;
    while let Some(ledger) = ledgers.join_next().await {
        for (key, Ledger { least, most, count }) in ledger.unwrap() {
            let ledger = Limiter::new("ledger", LEDGER, server.clone());
            let status = ledger.status(&*key).await.unwrap();
            assert!((least..=most).contains(&status.used()), "{key}: {} of {least} to {most}", status.used());
            // No entry lies in the server's future.
            assert!(status.at() <= clock.status("").await.unwrap().at(), "{key}");
            entries += count;
            // Nothing arrives after a reset, because nothing is being sent.
            assert!(Limiter::new("ledger", LEDGER, store.clone()).reset(&*key).await.unwrap());
            assert_eq!(ledger.status(&*key).await.unwrap().used(), 0, "{key}");
        }
    }
    let events = events.lock().unwrap();
    assert!(events.iter().enumerate().all(|(i, began)| *began == (i % 2 == 0)), "{events:?}");
    let outages = events.len() / 2;
    let local = store.fallback_decisions();
    println!("{faults} faults, {outages} outages, {entries} entries, {local} decided locally, {worst} at worst");
    assert!(entries > 100 && outages > 0);
}

/// What a key must have used.
#[derive(Default)]
struct Ledger {
    least: u64,
    /// Twice as much as all entries ever cost: a call that timed out may count twice, and what a sent cell held stays charged.
    most: u64,
    count: usize,
}

/// Acquires, settles and refunds on one key after the other, and peeks at others. Returns the keys, and what each must have used.
async fn keep_ledger(store: Store, mut random: Rng, name: String, until: Instant) -> Vec<(String, Ledger)> {
    let limiter = Limiter::new("ledger", LEDGER, store);
    let (mut ledgers, mut ledger) = (Vec::new(), Ledger::default());
    let mut entries: Vec<(u64, Receipt)> = Vec::new();
    while Instant::now() < until || ledger.count > 0 {
        let key = format!("{name} {}", ledgers.len());
        // The server takes longer to settle an entry, the more entries are newer.
        if ledger.count == 300 || Instant::now() >= until {
            ledger.least = entries.drain(..).map(|(kept, _)| kept).sum();
            ledgers.push((key, std::mem::take(&mut ledger)));
            continue;
        }
        let (index, cost) = (random.usize(..entries.len().max(1)), random.u64(1..100));
        match (random.u8(..8), entries.get_mut(index)) {
            (0 | 1, Some((kept, receipt))) if *kept > 0 => {
                ledger.most += 2 * cost;
                // An error leaves open which cost it has.
                *kept = match limiter.settle(&*key, *receipt, cost).await {
                    Ok(settled) => {
                        assert!(settled.applied(), "{key}: entry {index}");
                        cost
                    }
                    Err(error) => {
                        assert!(error.is_retryable(), "{key}: {error}");
                        cost.min(*kept)
                    }
                };
            }
            (2, Some((kept, receipt))) => {
                let _ = limiter.refund(&*key, *receipt).await;
                *kept = 0;
            }
            (4, _) => drop(limiter.peek(random.u64(..)).await.unwrap()),
            _ => {
                let new = limiter.acquire(&*key).cost(cost).await.unwrap();
                assert!(new.allowed(), "{key}: entry {}", ledger.count);
                (ledger.most, ledger.count) = (ledger.most + 2 * cost, ledger.count + 1);
                entries.push((cost, new.receipt().unwrap()));
            }
        }
        sleep(Duration::from_millis(random.u64(0..40))).await;
    }
    ledgers
}

/// Acquires on one key until it is over. Returns when it was admitted.
async fn hammer(store: Store, over: Arc<AtomicBool>) -> Vec<(u64, u64)> {
    let limiter = Limiter::new("hot", policy!("20/1s"), store);
    let mut admitted = Vec::new();
    while !over.load(Ordering::Relaxed) {
        let decision = limiter.acquire("key").await.unwrap();
        if decision.allowed() {
            admitted.push((decision.at().as_micros(), 1));
        }
        sleep(Duration::from_millis(3)).await;
    }
    admitted
}
