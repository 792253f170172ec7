//! Several threads on one key.

use std::collections::HashSet;
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use limiter_core::store::LogKey;
use limiter_core::{Limit, Limiter, Timestamp, policy};
use limiter_memory::MemoryStore;

#[test]
fn while_time_runs_no_window_admits_more_than_the_maximum() {
    let max = 50;
    let window = Duration::from_millis(2);
    let limit = Limit::new(max as u64, window).unwrap();
    let limiter = Limiter::new("test", limit, MemoryStore::new());
    let mut admitted: Vec<u64> = thread::scope(|scope| {
        let acquire = || {
            let decisions = (0..100_000).map(|_| limiter.acquire("key").now().unwrap());
            decisions
                .filter(limiter_core::Decision::is_allowed)
                .map(|decision| decision.at().as_micros())
                .collect::<Vec<_>>()
        };
        let threads = [(); 4].map(|()| scope.spawn(acquire));
        threads.map(|thread| thread.join().unwrap()).concat()
    });
    admitted.sort_unstable();
    assert!(admitted.len() > max, "{}", admitted.len());
    for pair in admitted.windows(max + 1) {
        assert!(pair[max] - pair[0] >= window.as_micros() as u64, "{pair:?}");
    }
}

fn at(second: u64) -> Timestamp {
    Timestamp::from_micros((1 << 50) + second * 1_000_000).unwrap()
}

#[test]
fn a_key_has_one_log_while_others_come_and_go() {
    let limiter = Limiter::new("test", policy!("20/1h"), MemoryStore::new());
    let acquire = |key: &str, second| {
        let decision = limiter.acquire(key).at(at(second)).now().unwrap();
        decision.is_allowed()
    };
    // Few keys at first, then enough to move all of them to the other form.
    for (round, keys) in [(0, 1_000), (1, 6_000), (2, 30_000)] {
        let barrier = Barrier::new(3);
        let stay = || {
            barrier.wait();
            let keys = (0..keys).map(|i| format!("{round}: stays {i}"));
            keys.map(|key| (0..15).filter(|second| acquire(&key, *second)).count())
                .sum::<usize>()
        };
        let go = || {
            barrier.wait();
            for turn in 0..keys / 100 {
                let keys = (0..100).map(|i| format!("{round}: goes {turn} {i}"));
                assert!(keys.clone().all(|key| acquire(&key, 0)));
                let mut reset = |key| limiter.reset::<String>(key).now().unwrap();
                assert!(keys.clone().all(&mut reset));
                assert!(!keys.clone().any(&mut reset), "a key had two logs");
            }
        };
        let admitted: usize = thread::scope(|scope| {
            scope.spawn(go);
            let threads = [(); 2].map(|()| scope.spawn(stay));
            threads.map(|thread| thread.join().unwrap()).iter().sum()
        });
        // Two threads have asked 15 times each for 20 of every key.
        assert_eq!(admitted, 20 * keys);
    }
    assert_eq!(limiter.store().len(), 37_000);
    for key in (0..6_000).map(|i| format!("1: stays {i}")) {
        let log = LogKey::new(limiter.name(), &key);
        assert_eq!(limiter.store().entries(log), 20, "{key}");
    }
}

#[test]
fn an_export_misses_no_key_that_stays() {
    for (name, max_keys) in [("unbounded", usize::MAX), ("bounded", 60_000)] {
        let store = MemoryStore::with_max_keys(max_keys);
        let limiter = Limiter::new(name, policy!("1/1h"), store);
        let is_stayer = |key: u32| key.is_multiple_of(16);
        let acquire = |key: u32| {
            let decision = limiter.acquire(key.to_le_bytes()).now().unwrap();
            assert!(decision.is_allowed());
        };
        (0..16_000).filter(|key| is_stayer(*key)).for_each(acquire);
        let fill = || {
            // Tables grow, keys leave the direct slots, and keys behind a removed one move back.
            for round in 0..5 {
                let others = || (0..16_000).filter(|key| !is_stayer(*key));
                others().for_each(acquire);
                others().for_each(|key| assert!(limiter.reset(key.to_le_bytes()).now().unwrap()));
                assert_eq!(limiter.store().len(), 1_000, "round {round}");
            }
        };
        thread::scope(|scope| {
            let filling = scope.spawn(fill);
            loop {
                let is_last = filling.is_finished();
                let stayers: HashSet<u32> = limiter
                    .store()
                    .export()
                    .filter_map(|(exported, key, log)| {
                        assert_eq!((exported, log.len()), (limiter.name(), 1));
                        let key = u32::from_le_bytes(key.as_ref().try_into().unwrap());
                        is_stayer(key).then_some(key)
                    })
                    .collect();
                assert_eq!(stayers.len(), 1_000);
                if is_last {
                    break;
                }
            }
        });
    }
}

/// An import of a full log over a full one admits nothing in between.
#[test]
fn an_import_replaces_a_log_at_once() {
    let limiter = Limiter::new("test", policy!("1/1h"), MemoryStore::new());
    assert!(limiter.acquire("key").now().unwrap().is_allowed());
    let store = limiter.store();
    let (name, key, log) = store.export().next().unwrap();
    let import = || store.import(LogKey::new(name, &key), &log);
    thread::scope(|scope| {
        let importing = scope.spawn(|| (0..20_000).for_each(|_| import()));
        while !importing.is_finished() {
            assert!(limiter.acquire("key").now().unwrap().is_denied());
        }
    });
}
