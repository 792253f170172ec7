//! What the store takes and gives back.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use allocation_counter::measure;
use limiter_core::{Counting, DynWindowStore, Limit, Limiter, Op, Policy, Timestamp};
use limiter_memory::MemoryStore;

fn at(micros: u64) -> Timestamp {
    Timestamp::from_micros(micros).unwrap()
}

#[test]
fn a_hit_of_a_known_key_does_not_allocate() {
    let three = "100/1h, 200/2h, 300/3h";
    for (policy, cost, seconds) in [("3/1h", 1, 1200), ("100/1h", 1, 36), (three, 1, 36), ("100/1h", 2, 72)] {
        let policy: Policy = policy.parse().unwrap();
        let limiter = Limiter::new(MemoryStore::new(), policy.clone());
        let acquire =
            |micros| limiter.run_now(Op::acquire("key", &policy).cost(cost).at(at(micros))).unwrap().allowed();
        // One leaves as one comes.
        let mut now = 1 << 50;
        let mut slide = || {
            now += seconds * 1_000_000;
            assert!(acquire(now));
        };
        (0..1000).for_each(|_| slide());
        let allowed = measure(|| (0..1000).for_each(|_| slide()));
        assert_eq!(allowed.count_total, 0, "{policy}: allowed");
        let denied = measure(|| assert!((0..1000).all(|_| !acquire(now))));
        assert_eq!(denied.count_total, 0, "{policy}: denied");
    }
}

#[test]
fn nor_does_one_over_a_store_chosen_at_run_time() {
    let store: Arc<dyn DynWindowStore> = Arc::new(MemoryStore::new());
    let limiter = Limiter::new(store, Limit::new(10, Duration::from_secs(3600)).unwrap());
    let acquire = || match pin!(limiter.acquire("key")).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(decision) => decision.unwrap().allowed(),
        Poll::Pending => panic!("the store is in memory"),
    };
    assert!((0..9).all(|_| acquire()));
    let more = measure(|| assert!(acquire() && (0..100).all(|_| !acquire())));
    assert_eq!(more.count_total, 0);
}

#[test]
fn a_log_that_counts_attempts_is_bounded_by_its_largest_maximum() {
    let policy = "5/1s, 50/1h".parse::<Policy>().unwrap().counting(Counting::Attempts);
    let limiter = Limiter::new(MemoryStore::new(), policy.clone());
    for (name, step) in [("frozen", 0), ("moving", 1)] {
        for i in 0..10_000 {
            let op = Op::acquire(name, &policy).at(at((1 << 50) + i * step));
            assert_eq!(limiter.run_now(op).unwrap().allowed(), i < 5);
            assert!(limiter.store().entries(name) <= 50, "{name}");
        }
        assert_eq!(limiter.store().entries(name), 50, "{name}");
    }
}

#[test]
fn idle_keys_are_swept_and_their_memory_returned() {
    let limiter = Limiter::new(MemoryStore::new(), Limit::new(100, Duration::from_millis(20)).unwrap());
    let left = measure(|| {
        for i in 0..2_000_u32 {
            for _ in 0..10 {
                assert!(limiter.acquire_now(&i.to_le_bytes()).allowed());
            }
        }
        std::thread::sleep(Duration::from_millis(200));
        assert!(limiter.acquire_now("busy").allowed());
        assert!(limiter.store().sweep() > 0);
        assert_eq!(limiter.store().len(), 1);
    });
    assert!(left.bytes_max > 100_000, "{left:?}");
    assert!(left.bytes_current < 20_000, "{left:?}");
}

#[test]
fn a_key_keeps_its_log_when_it_is_moved() {
    let policy = Policy::from(Limit::per_hour(2).unwrap());
    let limiter = Limiter::new(MemoryStore::new(), policy.clone());
    let acquire =
        |key: u32| limiter.run_now(Op::acquire(&key.to_le_bytes(), &policy).at(at(1 << 50))).unwrap().allowed();
    let len = || limiter.store().len();
    assert!((0..6_000).all(acquire));
    // Of keys that shared a place the first is gone, and the others move there.
    assert!((0..3_000_u32).all(|key| limiter.reset_now(&key.to_le_bytes())));
    assert_eq!(len(), 3_000);
    assert!((3_000..6_000).all(acquire));
    assert!(!(3_000..6_000).any(acquire));
    assert_eq!(len(), 3_000);
    // So many that all have to move.
    assert!((6_000..40_000).all(acquire));
    assert!((6_000..40_000).all(acquire));
    assert!(!(3_000..40_000).any(acquire));
    assert_eq!(len(), 37_000);
    assert!((0..40_000_u32).all(|key| limiter.reset_now(&key.to_le_bytes()) == (key >= 3_000)));
    assert!(limiter.store().is_empty());
}

#[test]
fn a_fresh_key_takes_the_place_of_an_expired_one() {
    let limiter = Limiter::new(MemoryStore::new(), Limit::new(1, Duration::from_millis(1)).unwrap());
    for round in 0..30_u32 {
        for key in 0..3_000_u32 {
            assert!(limiter.acquire_now(&(round << 16 | key).to_le_bytes()).allowed());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(limiter.store().len() < 10_000, "{}", limiter.store().len());
    let of_the_first_round = (0..3_000_u32).filter(|key| limiter.store().entries(&key.to_le_bytes()) > 0).count();
    assert!(of_the_first_round < 300, "{of_the_first_round}");
    assert!(limiter.store().sweep() > 1_000 && limiter.store().is_empty());
    let given = Limiter::new(MemoryStore::new(), Limit::new(1, Duration::from_millis(1)).unwrap());
    for (i, key) in (0..20_000_u32).map(u32::to_le_bytes).enumerate() {
        let op = Op::acquire(&key, given.policy()).at(at((i as u64) << 10));
        assert!(given.run_now(op).unwrap().allowed());
    }
    assert_eq!(given.store().sweep(), 0, "given times say nothing about the store's clock");
    assert_eq!((given.store().len(), given.store().sweep_at(at(1 << 50))), (20_000, 20_000));
}

#[test]
fn a_key_with_one_entry_takes_a_hundred_bytes_and_a_unit_entry_at_most_eight_and_a_half() {
    let policy = Policy::from(Limit::per_hour(1000).unwrap());
    let taken = |keys: u32, entries: u64| {
        let mut store = None;
        let taken = measure(|| {
            let store = store.insert(Limiter::new(MemoryStore::new(), policy.clone()));
            for key in (0..keys).map(u32::to_le_bytes) {
                for i in 0..entries {
                    let op = Op::acquire(&key, &policy).at(at((1 << 50) + i));
                    assert!(store.run_now(op).unwrap().allowed());
                }
            }
        });
        taken.bytes_current as f64 / f64::from(keys)
    };
    let (one, hundred) = (taken(100_000, 1), taken(10_000, 100));
    assert!(one < 150.0, "{one} bytes a key");
    assert!((hundred - one) / 99.0 <= 8.5, "{hundred} bytes for a hundred entries, {one} for one");
}

#[test]
fn a_flood_of_fresh_keys_stays_within_the_bound_and_frees_nobody() {
    let policy = Policy::from(Limit::per_hour(3).unwrap());
    let limiter = Limiter::new(MemoryStore::with_max_keys(1000), policy.clone());
    while limiter.acquire_now("over its limit").allowed() {}
    for i in 0..50_000_u32 {
        assert!(limiter.acquire_now(&i.to_le_bytes()).allowed());
        assert!(limiter.store().len() <= 1000);
        assert!(!limiter.acquire_now("over its limit").allowed(), "freed by fresh key {i}");
    }
    assert!(limiter.store().len() > 500, "{}", limiter.store().len());
}

#[test]
fn a_bound_that_leaves_room_for_lines_holds_when_they_are_closed_and_after() {
    let max_keys = 65_536;
    let policy = Policy::from(Limit::per_hour(3).unwrap());
    let limiter = Limiter::new(MemoryStore::with_max_keys(max_keys), policy.clone());
    while limiter.acquire_now("over its limit").allowed() {}
    for i in 0..150_000_u32 {
        assert!(limiter.acquire_now(&i.to_le_bytes()).allowed());
        if i % 500 == 0 {
            assert!(limiter.store().len() <= max_keys, "{} after fresh key {i}", limiter.store().len());
            assert!(!limiter.acquire_now("over its limit").allowed(), "freed by fresh key {i}");
        }
    }
    assert!(limiter.store().len() > max_keys / 2, "{}", limiter.store().len());
}
