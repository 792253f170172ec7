//! Several threads on one key.

use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use limiter_core::{Limit, Limiter, Op, Policy, Timestamp};
use limiter_memory::MemoryStore;

#[test]
fn at_a_frozen_time_they_admit_exactly_the_maximum() {
    let at = Timestamp::from_micros(1 << 50).unwrap();
    let policy = Policy::from(Limit::per_second(1000).unwrap());
    for threads in [2, 4, 8] {
        let limiter = Limiter::new(MemoryStore::new(), policy.clone());
        let barrier = Barrier::new(threads);
        let admitted: usize = thread::scope(|scope| {
            let acquire = || {
                barrier.wait();
                (0..1000).filter(|_| limiter.run_now(Op::acquire("key", &policy).at(at)).unwrap().allowed()).count()
            };
            let threads: Vec<_> = (0..threads).map(|_| scope.spawn(acquire)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(admitted, 1000, "{threads} threads");
    }
}

#[test]
fn while_time_runs_no_window_admits_more_than_the_maximum() {
    let (max, window) = (50, Duration::from_millis(2));
    let limiter = Limiter::new(MemoryStore::new(), Limit::new(max as u64, window).unwrap());
    let mut admitted: Vec<u64> = thread::scope(|scope| {
        let acquire = || {
            let decisions = (0..100_000).map(|_| limiter.acquire_now("key"));
            decisions
                .filter(limiter_core::Decision::allowed)
                .map(|decision| decision.at().as_micros())
                .collect::<Vec<_>>()
        };
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(acquire)).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    admitted.sort_unstable();
    assert!(admitted.len() > max, "{}", admitted.len());
    for pair in admitted.windows(max + 1) {
        assert!(pair[max] - pair[0] >= window.as_micros() as u64, "{pair:?}");
    }
}
