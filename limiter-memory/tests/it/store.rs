//! What the store takes and gives back.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, SystemTime};

use allocation_counter::measure;
use limiter_core::IntoPolicy;
use limiter_core::store::LogKey;
use limiter_core::{Counting, Key, Limiter, Policy, SharedStore, SyncStore, Timestamp, policy};
use limiter_memory::MemoryStore;

/// A time, this many microseconds after the beginning of a test.
fn at(micros: u64) -> Timestamp {
    Timestamp::from_micros((1 << 50) + micros).unwrap()
}

/// Whether an acquire at a given time is admitted.
fn allows(limiter: &Limiter<MemoryStore>, key: impl Key, cost: u64, micros: u64) -> bool {
    let acquire = limiter.acquire(key).cost(cost).at(at(micros));
    acquire.now().unwrap().is_allowed()
}

/// Whether an acquire at the store's clock is admitted.
fn allows_now(limiter: &Limiter<MemoryStore>, key: impl Key) -> bool {
    limiter.acquire(key).now().unwrap().is_allowed()
}

/// A limiter on a new store in memory.
fn limiter(policy: impl IntoPolicy) -> Limiter<MemoryStore> {
    Limiter::new("test", policy, MemoryStore::new())
}

fn entries(limiter: &Limiter<MemoryStore>, key: impl Key) -> usize {
    let key = key.to_key();
    limiter.store().entries(LogKey::new(limiter.name(), &key))
}

#[test]
fn a_hit_of_a_known_key_does_not_allocate() {
    let three = "100/1h, 200/2h, 300/3h";
    for (policy, cost, seconds) in [
        ("3/1h", 1, 1200),
        ("100/1h", 1, 36),
        (three, 1, 36),
        ("100/1h", 2, 72),
        ("60/1h~1m", 1, 60),
    ] {
        let policy: Policy = policy.parse().unwrap();
        let limiter = limiter(policy.clone());
        let acquire = |micros| allows(&limiter, "key", cost, micros);
        // An entry leaves as an entry comes.
        let mut now = 0;
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
fn the_stores_clock_agrees_with_the_wall_clock_and_advances() {
    let limiter = limiter(policy!("1/1s"));
    let wall = || Timestamp::try_from(SystemTime::now()).unwrap().as_micros();
    let now = || limiter.peek("key").now().unwrap().at();
    let before = wall();
    let first = now();
    let expected = before - 100_000..wall() + 100_000;
    assert!(
        expected.contains(&first.as_micros()),
        "{first:?} vs. {before}"
    );
    std::thread::sleep(Duration::from_millis(50));
    let passed = now().micros_since(first);
    assert!((50_000..5_000_000).contains(&passed), "{passed} µs");
}

#[test]
fn nor_does_one_over_a_store_chosen_at_run_time() {
    let store: SharedStore = Arc::new(MemoryStore::new());
    let limiter = Limiter::new("test", policy!("10/1h"), store);
    let mut context = Context::from_waker(Waker::noop());
    let mut acquire = || match pin!(limiter.acquire("key")).poll(&mut context) {
        Poll::Ready(decision) => decision.unwrap().is_allowed(),
        Poll::Pending => panic!("the store is in memory"),
    };
    assert!((0..9).all(|_| acquire()));
    let more = measure(|| assert!(acquire() && (0..100).all(|_| !acquire())));
    assert_eq!(more.count_total, 0);
}

#[test]
fn a_log_that_counts_attempts_is_bounded_by_its_largest_maximum() {
    let limiter = limiter(policy!("5/1s, 50/1h").with_counting(Counting::Attempts));
    for (name, step) in [("frozen", 0), ("moving", 1)] {
        for i in 0..10_000 {
            assert_eq!(allows(&limiter, name, 1, i * step), i < 5);
            assert!(entries(&limiter, name) <= 50, "{name}");
        }
        assert_eq!(entries(&limiter, name), 50, "{name}");
    }
}

#[test]
fn idle_keys_are_swept_and_their_memory_returned() {
    let limiter = limiter(policy!("100/20ms"));
    let left = measure(|| {
        for i in 0..2_000_u32 {
            for _ in 0..10 {
                assert!(allows_now(&limiter, i.to_le_bytes()));
            }
        }
        std::thread::sleep(Duration::from_millis(200));
        assert!(allows_now(&limiter, "busy"));
        assert!(limiter.store().sweep() > 0);
        assert_eq!(limiter.store().len(), 1);
    });
    assert!(left.bytes_max > 100_000, "{left:?}");
    assert!(left.bytes_current < 20_000, "{left:?}");
}

#[test]
fn a_key_keeps_its_log_when_it_is_moved() {
    let limiter = limiter(policy!("2/1h"));
    let acquire = |key: u32| allows(&limiter, key.to_le_bytes(), 1, 0);
    let reset = |key: u32| limiter.reset(key.to_le_bytes()).now().unwrap();
    let len = || limiter.store().len();
    assert!((0..6_000).all(acquire));
    // Of keys that shared a place the first is gone, and the others move there.
    assert!((0..3_000).all(reset));
    assert_eq!(len(), 3_000);
    assert!((3_000..6_000).all(acquire));
    assert!(!(3_000..6_000).any(acquire));
    assert_eq!(len(), 3_000);
    // So many that all have to move.
    assert!((6_000..40_000).all(acquire));
    assert!((6_000..40_000).all(acquire));
    assert!(!(3_000..40_000).any(acquire));
    assert_eq!(len(), 37_000);
    assert!((0..40_000).all(|key| reset(key) == (key >= 3_000)));
    assert!(limiter.store().is_empty());
}

#[test]
fn a_fresh_key_takes_the_place_of_an_expired_one() {
    let limiter = limiter(policy!("1/1ms"));
    for round in 0..30_u32 {
        for key in 0..3_000_u32 {
            assert!(allows_now(&limiter, (round << 16 | key).to_le_bytes()));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let store = limiter.store();
    assert!(store.len() < 10_000, "{}", store.len());
    let is_held = |key: &u32| entries(&limiter, key.to_le_bytes()) > 0;
    let of_the_first_round = (0..3_000).filter(is_held).count();
    assert!(of_the_first_round < 300, "{of_the_first_round}");
    assert!(store.sweep() > 1_000 && store.is_empty());
    for key in 0..20_000_u32 {
        assert!(allows(&limiter, key.to_le_bytes(), 1, u64::from(key) << 10));
    }
    // Given times do not reveal the store's clock.
    assert_eq!((store.sweep(), store.len()), (0, 20_000));
    assert_eq!(store.sweep_at(at(1 << 40)), 20_000);
}

#[test]
fn a_key_with_one_entry_takes_a_hundred_bytes_and_a_unit_entry_at_most_eight_and_a_half() {
    let policy = policy!("1000/1h");
    let taken = |keys: u32, entries: u64| {
        let mut store = None;
        let taken = measure(|| {
            let store = store.insert(limiter(policy.clone()));
            for key in (0..keys).map(u32::to_le_bytes) {
                assert!((0..entries).all(|i| allows(store, key, 1, i)));
            }
        });
        taken.bytes_current as f64 / f64::from(keys)
    };
    let one = taken(100_000, 1);
    let hundred = taken(10_000, 100);
    assert!(one < 150.0, "{one} bytes a key");
    let each = (hundred - one) / 99.0;
    assert!(each <= 8.5, "{each} bytes an entry");
}

/// Returns the bytes of the logs, without an empty store's bytes.
fn bytes_of(
    filled: &mut Option<Limiter<MemoryStore>>,
    policy: &Policy,
    fill: impl FnOnce(&Limiter<MemoryStore>),
) -> i64 {
    let taken = measure(|| fill(filled.insert(limiter(policy))));
    let empty = measure(|| drop(std::hint::black_box(limiter(policy))));
    taken.bytes_current - empty.bytes_max as i64
}

#[test]
fn a_limit_of_100_000_a_day_takes_about_a_megabyte() {
    let bytes = bytes_of(&mut None, &policy!("100000/1d"), |limiter| {
        // Spread over a day.
        assert!((0..100_000).all(|i| allows(limiter, "key", 1, 863_999 * i)));
    });
    assert!((800_000..1_100_000).contains(&bytes), "{bytes} bytes");
}

#[test]
fn a_log_with_a_resolution_takes_memory_by_its_cells() {
    for (text, cells, at_most) in [
        ("1000000/30d~1h", 720, 40_000),
        ("1000000/30d~6h", 120, 8_000),
        ("1000/1h~1m", 60, 4_000),
    ] {
        let policy: Policy = text.parse().unwrap();
        let max = policy.limits()[0].max();
        let window = policy.longest_window().as_micros();
        let mut filled = None;
        let bytes = bytes_of(&mut filled, &policy, |limiter| {
            // Ten acquires in each cell, for two windows. A unit is released up to a cell late.
            for i in 0..20 * cells {
                let cost = max / (10 * cells + 10);
                let micros = i * (window / (10 * cells));
                assert!(allows(limiter, "key", cost, micros), "{text}: {i}");
            }
        });
        let limiter = filled.unwrap();
        let status = limiter.status("key").at(at(2 * window)).now();
        let used = status.unwrap().used();
        assert!(used > max / 2, "{text}: {used} are in use");
        let entries = entries(&limiter, "key") as u64;
        let expected = cells..=cells + 2;
        assert!(expected.contains(&entries), "{text}: {entries} entries");
        assert!((1..=at_most).contains(&bytes), "{text}: {bytes} bytes");
    }
}

#[test]
fn a_flood_of_fresh_keys_stays_within_the_bound_and_frees_nobody() {
    for (policy, max_keys, fresh, check_every) in [
        (policy!("3/1h"), 1_000, 50_000_u32, 1),
        // With a resolution, one entry may use the limit up.
        (policy!("3/1h~1h"), 1_000, 50_000, 1),
        (policy!("3/1d~1d, 3/1h"), 1_000, 50_000, 1),
        // Direct slots are open at first.
        (policy!("3/1h"), 65_536, 150_000, 500),
    ] {
        let limiter = Limiter::new("test", policy.clone(), MemoryStore::with_max_keys(max_keys));
        let store = limiter.store();
        while allows_now(&limiter, "over its limit") {}
        for i in 0..fresh {
            assert!(allows_now(&limiter, i.to_le_bytes()));
            if i % check_every == 0 {
                let len = store.len();
                assert!(len <= max_keys, "{policy}: {len} after key {i}");
                let is_freed = allows_now(&limiter, "over its limit");
                assert!(!is_freed, "{policy}: freed by fresh key {i}");
            }
        }
        assert!(store.len() > max_keys / 2, "{policy}: {}", store.len());
    }
}

#[test]
fn a_flood_of_long_keys_frees_their_memory_and_nobody() {
    let attempts = policy!("3/1h").with_counting(Counting::Attempts);
    let limiter = Limiter::new("test", attempts, MemoryStore::with_max_keys(8));
    let mut key = vec![b'k'; 1 << 20];
    for _ in 0..100 {
        assert!(limiter.acquire("victim").now().is_ok());
    }
    assert_eq!(entries(&limiter, "victim"), 3);
    for i in 0..200_u8 {
        key[1 << 19] = i;
        assert!(allows_now(&limiter, &key[..]));
        assert!(limiter.store().len() <= 8);
    }
    assert!(!allows_now(&limiter, "victim"));
    assert_eq!(limiter.peek(&key[..]).now().unwrap().used(), 1);
}

#[test]
fn limiters_of_different_names_share_no_log_and_a_hit_costs_no_allocation() {
    let store = Arc::new(MemoryStore::new());
    let long = "a key that is longer than what fits in a slot";
    for key in ["a", "a key of 18 bytes.", long] {
        // So many that some share a direct slot.
        for i in 0..6_000 {
            let name = format!("name {i}");
            let limiter = Limiter::new(name, policy!("2/1h"), Arc::clone(&store));
            let acquire = || limiter.acquire(key).now().unwrap().used();
            assert_eq!(acquire(), 1, "{key}: name {i}");
            let more = measure(|| assert_eq!(acquire(), 2));
            assert_eq!(more.count_total, 0, "{key}");
        }
    }
    assert_eq!(store.len(), 18_000);
}

#[test]
fn an_imported_log_decides_as_its_original_does_and_takes_as_many_bytes() {
    for (text, cost, calls, is_sparse) in [
        ("3/1h", 1, 2, false),
        ("100/1h", 1, 200, false),
        ("300/1h", 2, 100, false),
        ("100/30d", 1, 100, false),
        ("4503599627370496/30d", 1 << 40, 100, false),
        ("100/1h, 200/2h", 1, 100, false),
        ("60/1h~1m, 30/1m", 1, 50, false),
        ("100/1h", 1, 50, true),
    ] {
        const KEY: &str = "a key of any length and more";
        let policy: Policy = text.parse().unwrap();
        let acquire = |limiter: &Limiter<MemoryStore>, id: u64, micros: Option<u64>| {
            let mut acquire = limiter.acquire(KEY).cost(cost);
            if let Some(micros) = micros {
                acquire = acquire.at(Timestamp::from_micros(micros).unwrap());
            }
            if is_sparse {
                acquire = acquire.idempotency_key(u128::from(id));
            }
            acquire.now().unwrap()
        };
        let mut filled = None;
        let bytes = bytes_of(&mut filled, &policy, |limiter| {
            for i in 0..calls {
                let decision = acquire(limiter, i, None);
                if is_sparse && i % 3 == 0 {
                    let refund = limiter.refund(KEY, decision.receipt().unwrap());
                    assert!(refund.now().unwrap().applied());
                }
            }
        });
        let limiter = filled.unwrap();
        let copy = |other: &Limiter<MemoryStore>| {
            for (name, key, log) in limiter.store().export() {
                other.store().import(LogKey::new(name, &key), &log);
            }
        };
        // One key in both: two keys may need a table beside the direct slots.
        let mut copied = None;
        let copied_bytes = bytes_of(&mut copied, &policy, copy);
        let most = bytes + bytes / 4 + 128;
        assert!(copied_bytes <= most, "{text}: {copied_bytes} of {most}");
        let decision = limiter.acquire("b").cost(cost).now().unwrap();
        let other = copied.unwrap();
        copy(&other);
        let now = decision.at().as_micros();
        for (micros, repeated) in [
            (0, 1),
            (1, 1),
            (59_999_000, 49),
            (3_599_999_990, 7),
            (1 << 41, 99),
        ] {
            let [one, other] = [&limiter, &other]
                .map(|limiter| format!("{:?}", acquire(limiter, repeated, Some(now + micros))));
            assert_eq!(other, one, "{text}: {micros}");
        }
        if let Some(receipt) = decision.receipt() {
            let refunds = [&other, &other, &limiter]
                .map(|limiter| limiter.refund("b", receipt).now().unwrap().applied());
            assert_eq!(refunds, [true, false, true], "{text}");
        }
    }
}

#[test]
fn a_clock_that_is_set_times_every_call() {
    const HOUR: u64 = 3_600_000_000;
    let set_to = |micros| {
        Limiter::new(
            "test",
            policy!("2/1h"),
            MemoryStore::new().with_clock_at(at(micros)),
        )
    };
    let is_soon = |now: Timestamp| (at(0)..at(HOUR / 2)).contains(&now);
    let limiter = set_to(0);
    let first = limiter.acquire("a").now().unwrap();
    assert!(is_soon(first.at()) && is_soon(limiter.store().read_clock()));
    assert!(limiter.acquire("a").now().unwrap().is_allowed());
    // The next store goes on where this one was, a while later.
    let later = |micros| {
        let next = set_to(micros);
        for (name, key, log) in limiter.store().export() {
            next.store().import(LogKey::new(name, &key), &log);
        }
        next
    };
    let soon = later(HOUR / 2);
    assert_eq!(soon.status("a").now().unwrap().used(), 2);
    assert!(
        soon.refund("a", first.receipt().unwrap())
            .now()
            .unwrap()
            .applied()
    );
    assert_eq!((soon.store().sweep(), soon.store().len()), (0, 1));
    assert!(later(2 * HOUR).store().is_empty());
    let last = set_to(Timestamp::MAX.micros_since(at(0)));
    let used = |_| last.acquire("a").now().unwrap().used();
    assert_eq!([(), (), ()].map(used), [1, 2, 2]);
    assert_eq!(last.store().read_clock(), Timestamp::MAX);
}
