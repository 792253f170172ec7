//! Calls that wait for one log, dropped calls, and failures of the table.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::future::IntoFuture;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use allocation_counter::measure;
use futures::FutureExt;
use futures::executor::block_on;
use futures::future::{FusedFuture, join_all};
use limiter_core::store::{JointOp, LiveKey, Log, LogKey, Op, StoredKey, WindowStore};
use limiter_core::{Clock, Error, ErrorKind, Limiter, Name, Policy, policy};
use limiter_log::{LogStore, read_key, stored_key};
use limiter_testkit::MockClock;

use crate::map::{Map, Workers};

static POLICY: Policy = policy!("1000/1m");

fn map() -> Map {
    Map {
        clock: Some(MockClock::new()),
        takes_several: true,
        ..Map::default()
    }
}

fn limiter(map: &Map) -> Limiter<LogStore<Map>> {
    Limiter::new("search", &POLICY, LogStore::new(map.clone()))
}

#[test]
fn calls_that_wait_for_one_log_are_saved_once_and_in_order() {
    let map = map();
    let search = limiter(&map);
    let calls = (0..500).map(|_| async { search.acquire("a").await.unwrap().remaining() });
    let remaining = map.run(join_all(calls));
    assert_eq!(remaining, Vec::from_iter((500..1_000).rev()));
    assert_eq!(map.counts(), (1, 1));
    let rest = map
        .run(search.acquire("a").cost(500).into_future())
        .unwrap();
    assert!(rest.is_allowed());
    let denied = map.run(async { (search.acquire("a").await, search.peek("a").await) });
    assert!(!denied.0.unwrap().is_allowed() && !denied.1.unwrap().is_allowed());
    assert_eq!(map.counts(), (4, 2), "a denial and a peek save nothing");
    for is_removed in [true, false] {
        let removed = map.run(search.reset("a").into_future()).unwrap();
        assert_eq!(removed, is_removed);
        assert!(map.run(search.peek("a").into_future()).unwrap().used() == 0);
    }
}

/// A batch that takes many calls is no longer than others may wait, and neither is the time between two polls.
#[test]
fn many_calls_on_one_log_are_several_batches_and_let_others_run() {
    let map = map();
    let search = limiter(&map);
    let calls = (0..2_500).map(|_| async { search.acquire("a").await.unwrap().used() });
    let mut calls = join_all(calls);
    let context = &mut Context::from_waker(Waker::noop());
    let mut polls = 0;
    while calls.poll_unpin(context).is_pending() {
        map.workers.poll();
        polls += 1;
    }
    assert_eq!(map.counts(), (3, 1));
    assert!(polls > 2_500 / 32, "{polls}");
}

/// Charges several logs as one, and returns the usage of the first.
async fn joint(store: &LogStore<Map>, keys: [&str; 2], is_advisory: bool) -> Result<u64, Error> {
    let [first, second] = keys.map(|key| JointOp::from(Op::acquire(key, &POLICY)));
    let second = JointOp {
        is_advisory,
        ..second
    };
    let facts = store.apply_all(&[first, second]).await?.unwrap();
    Ok(facts[0].as_ref().unwrap().log.usage[0].used)
}

#[test]
fn calls_that_share_a_log_are_combined_and_others_are_not() {
    let (map, keys) = (map(), Vec::from_iter((0..100).map(|i| i.to_string())));
    let search = limiter(&map);
    let calls = keys
        .iter()
        .map(|key| joint(search.store(), ["each", key], false));
    let used: Result<Vec<u64>, Error> = map.run(join_all(calls)).into_iter().collect();
    assert_eq!(used.unwrap(), Vec::from_iter(1..=100));
    assert_eq!(map.counts(), (2, 2), "63 and 37 calls are batches");
    let apart = keys[..40]
        .chunks(2)
        .map(|pair| joint(search.store(), [&pair[0], &pair[1]], false));
    assert!(map.run(join_all(apart)).iter().all(Result::is_ok));
    assert_eq!(map.counts(), (22, 22));
}

/// A busy key, calls on it and others, and calls on their own logs, all of which are repeated.
#[test]
fn no_call_starves_beside_a_busy_key() {
    let map = map();
    let search = limiter(&map);
    let keys = Vec::from_iter((0..12).map(|i| i.to_string()));
    let counts = [const { Cell::new(0) }; 28];
    let call = async |caller: usize| {
        loop {
            match caller {
                0..16 => drop(search.acquire("busy").await.unwrap()),
                16..22 => {
                    let keys = ["busy", &keys[caller - 16]];
                    joint(search.store(), keys, false).await.unwrap();
                }
                _ => {
                    let keys = [&keys[caller - 16], "own"];
                    joint(search.store(), keys, true).await.unwrap();
                }
            }
            counts[caller].set(counts[caller].get() + 1);
        }
    };
    let context = &mut Context::from_waker(Waker::noop());
    let mut callers = Vec::from_iter((0..28).map(|caller| Box::pin(call(caller))));
    for _ in 0..2_000 {
        callers
            .iter_mut()
            .for_each(|caller| _ = caller.poll_unpin(context));
        map.workers.poll();
    }
    drop(callers);
    let counts = counts.map(Cell::into_inner);
    let least = counts.iter().min().unwrap();
    assert!(
        *least > 50 && *least > counts.iter().max().unwrap() / 2,
        "{counts:?}"
    );
}

#[test]
fn many_calls_wait_and_too_many_are_refused() {
    let map = map();
    let search = limiter(&map);
    let keys = Vec::from_iter((0..100_001).map(|i| i.to_string()));
    let calls = keys
        .iter()
        .map(|key| joint(search.store(), ["each", key], true));
    let results = map.run(join_all(calls));
    let errors = Vec::from_iter(
        results
            .iter()
            .enumerate()
            .filter_map(|(i, result)| Some((i, result.as_ref().err()?))),
    );
    let [(100_000, error)] = errors[..] else {
        panic!("{errors:?}")
    };
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert_eq!(
        error.to_string(),
        "100000 calls wait for the table: it is too slow for this load"
    );
    assert_eq!(map.counts().0, 100_000_usize.div_ceil(63));
}

#[test]
fn an_advisory_operation_that_does_not_append_loses_no_comparison() {
    for (is_advisory, loads) in [(true, 2), (false, 3)] {
        let map = map();
        let search = limiter(&map);
        let decision = map.run(search.acquire("c").into_future());
        assert!(decision.unwrap().is_allowed());
        let [b, c] = ["b", "c"].map(|key| stored_key(LogKey::new(Name::new("search"), key)));
        let ops = ["a", "b"].map(|key| Op::acquire(key, &POLICY).with_name(Name::new("search")));
        let peek = JointOp {
            is_advisory,
            ..ops[1].to_peek().into()
        };
        let ops = [ops[0].into(), peek];
        let mut call = search.store().apply_all(&ops);
        assert!(
            call.poll_unpin(&mut Context::from_waker(Waker::noop()))
                .is_pending()
        );
        (0..2).for_each(|_| map.workers.poll());
        // Another process appends while the call runs.
        let appended = map.logs.lock().unwrap()[&c].clone();
        map.logs.lock().unwrap().insert(b, appended);
        assert!(map.run(call).is_ok());
        assert_eq!(map.counts().0, loads);
    }
}

/// Callers that leave take their batch with them: the next call on the log, and those on others, find a table that responds.
#[test]
fn a_request_that_hangs_ends_with_its_callers() {
    let map = Map {
        takes_several: true,
        ..Map::default()
    };
    let search = limiter(&map);
    let context = &mut Context::from_waker(Waker::noop());
    for _ in 0..3 {
        // As many as there are workers.
        map.hanging.store(2, Ordering::SeqCst);
        let mut calls = join_all(["a", "b"].map(|key| search.acquire(key).into_future()));
        while map.hanging.load(Ordering::SeqCst) > 0 {
            assert!(calls.poll_unpin(context).is_pending());
        }
    }
    for key in ["a", "b", "c"] {
        let decision = block_on(search.acquire(key).into_future());
        assert!(decision.unwrap().is_allowed());
    }
}

/// A swap arrives late, and meanwhile another process has used and settled the key. The table sweeps all that it may.
#[test]
fn a_late_swap_finds_no_key_absent_again() {
    let window = Duration::from_millis(100);
    for [refunds, later] in [[false, false], [true, false], [false, true]] {
        let first = map();
        let second = Map {
            holds_swaps: Arc::default(),
            workers: Workers::default(),
            ..first.clone()
        };
        let clock = first.clock.clone().unwrap();
        let policy = policy!("1/100ms");
        let [one, two] = [&first, &second]
            .map(|map| Limiter::new("search", &policy, LogStore::new(map.clone())));
        second.holds_swaps.store(true, Ordering::SeqCst);
        let mut late = pin!(two.acquire("a").into_future());
        let context = &mut Context::from_waker(Waker::noop());
        for _ in 0..5 {
            assert!(late.as_mut().poll(context).is_pending());
            second.workers.poll();
        }
        assert_eq!(second.counts().0, 1);
        assert!(
            first
                .run(one.acquire("a").into_future())
                .unwrap()
                .is_allowed()
        );
        if refunds {
            clock.advance(2 * window);
            let decision = first.run(one.acquire("a").into_future()).unwrap();
            let receipt = decision.receipt().unwrap();
            assert!(
                first
                    .run(one.refund("a", receipt).into_future())
                    .unwrap()
                    .applied()
            );
        }
        clock.advance(if later {
            Duration::from_secs(61)
        } else {
            window * 2
        });
        first.sweep();
        let loads = second.counts().0;
        second.holds_swaps.store(false, Ordering::SeqCst);
        // Its first comparison is lost, so it happens later.
        assert!(second.run(late).unwrap().is_allowed());
        assert_eq!(second.counts().0, loads + 1, "{refunds} {later}");
    }
}

/// Callers, each of which would copy the log.
#[test]
fn joint_calls_on_a_long_log_copy_it_once_for_all() {
    let map = map();
    let policy = policy!("4503599627370496/1h");
    let search = Limiter::new("search", &policy, LogStore::new(map.clone()));
    let mut log = Log::new();
    for _ in 0..100_000 {
        let _ = log.apply(&Op::record("", &policy), map.clock.as_ref().unwrap().now());
    }
    let key = stored_key(LogKey::new(Name::new("search"), "each"));
    let row = (log.to_bytes(), log.expires_at().unwrap());
    map.logs.lock().unwrap().insert(key, row);
    let ops = ["each", "own"].map(|key| Op::acquire(key, &policy).with_name(Name::new("search")));
    let ops = ops.map(JointOp::from);
    let allocated = |count: usize| {
        let calls = (0..count).map(|_| search.store().apply_all(&ops));
        let calls = join_all(calls);
        let allocated = measure(|| assert!(map.run(calls).iter().all(Result::is_ok)));
        allocated.bytes_total
    };
    let [one, many] = [1, 200].map(allocated);
    assert!(many < 2 * one, "{one} and {many} bytes");
}

#[test]
fn a_lost_worker_fails_its_calls_and_no_later_ones() {
    let map = map();
    let search = limiter(&map);
    let context = &mut Context::from_waker(Waker::noop());
    let mut calls = join_all(["a", "a", "b", "c"].map(|key| search.acquire(key).into_future()));
    for polls in 0..8 {
        assert!(calls.poll_unpin(context).is_pending());
        (0..polls).for_each(|_| map.workers.poll());
        map.workers.lose();
        let results = map.run(calls);
        let is_lost = |error: &Error| {
            error
                .to_string()
                .contains("the worker of the table was dropped or panicked")
        };
        let lost = results
            .iter()
            .filter(|result| result.as_ref().is_err_and(is_lost))
            .count();
        assert!(lost > 0 && results.len() == 4, "{polls}: {results:?}");
        assert!(map.run(search.acquire("a").into_future()).is_ok());
        calls = join_all(["a", "a", "b", "c"].map(|key| search.acquire(key).into_future()));
    }
}

/// Calls on one or two of three logs begin, are dropped, and are served in random order. Dropping one starts no worker: tables start
/// them in their runtime, and a future may be dropped elsewhere.
#[test]
fn a_dropped_call_loses_no_other_repeats_none_and_starts_no_worker() {
    const KEYS: [&str; 3] = ["a", "b", "c"];
    let context = &mut Context::from_waker(Waker::noop());
    let (mut applied, mut left_out) = (0, 0);
    for seed in 0..1_000 {
        let mut random = fastrand::Rng::with_seed(seed);
        let map = map();
        let search = limiter(&map);
        let store = search.store();
        let mut calls = Vec::new();
        let (mut begun, mut dropped) = ([0_u64; 3], [0_u64; 3]);
        for _ in 0..random.usize(5..60) {
            match random.u8(0..5) {
                0..3 => {
                    let most = random.usize(1..3);
                    let keys = random.choose_multiple(0..3, most);
                    keys.iter().for_each(|key| begun[*key] += 1);
                    let ops = keys
                        .iter()
                        .map(|key| Op::acquire(KEYS[*key], &POLICY).into());
                    let ops = Vec::from_iter(ops);
                    let mut call = async move { store.apply_all(&ops).await.is_ok() }
                        .boxed_local()
                        .fuse();
                    assert!(call.poll_unpin(context).is_pending());
                    calls.push((keys, call));
                }
                3 if !calls.is_empty() => {
                    let (keys, call) = calls.swap_remove(random.usize(..calls.len()));
                    if !call.is_terminated() {
                        keys.iter().for_each(|key| dropped[*key] += 1);
                    }
                    let workers = map.workers.count();
                    drop(call);
                    assert_eq!(map.workers.count(), workers, "seed {seed}");
                }
                _ => {
                    map.workers.poll();
                    for (_, call) in &mut calls {
                        assert!(
                            call.is_terminated() || call.poll_unpin(context) != Poll::Ready(false)
                        );
                    }
                }
            }
        }
        for _ in 0..1_000 {
            map.workers.poll();
            for (_, call) in &mut calls {
                assert!(call.is_terminated() || call.poll_unpin(context) != Poll::Ready(false));
            }
        }
        assert!(
            calls.iter().all(|(_, call)| call.is_terminated()),
            "seed {seed}"
        );
        for (i, key) in KEYS.iter().enumerate() {
            let peek = map.run(store.apply(Op::peek(key, &POLICY))).unwrap();
            let used = peek.log.usage[0].used;
            let least = begun[i] - dropped[i];
            assert!(
                (least..=begun[i]).contains(&used),
                "seed {seed}, {key}: {used}"
            );
            applied += used - least;
            left_out += begun[i] - used;
        }
    }
    // Of the dropped calls, some took effect and some did not.
    assert!(applied > 100 && left_out > 100, "{applied} {left_out}");
}

#[test]
fn comparisons_may_be_lost_a_hundred_times() {
    let mut map = map();
    map.lost = 1;
    let error = map
        .run(limiter(&map).acquire("a").into_future())
        .unwrap_err();
    assert_eq!(
        (error.kind(), map.counts()),
        (ErrorKind::Unavailable, (100, 100))
    );
}

#[test]
fn every_waiting_call_has_the_error_of_the_table_and_its_own_log() {
    let map = map();
    let search = limiter(&map);
    for kind in [
        ErrorKind::Unavailable,
        ErrorKind::Timeout,
        ErrorKind::Configuration,
    ] {
        *map.error.lock().unwrap() = Some(kind);
        for error in map.run(join_all((0..3).map(|_| search.acquire("a").into_future()))) {
            let error = error.unwrap_err();
            assert_eq!((error.kind(), error.key()), (kind, Some(&b"a"[..])));
            assert_eq!(error.to_string(), "limiter \"search\": the map is broken");
        }
    }
}

#[test]
fn long_keys_are_hashed_and_logs_stay_apart() {
    let long = "x".repeat(500);
    let names = ["", "a", "a:b", &long].map(Name::new);
    let keys = ["", "a", "a:b", "#", &long, &format!("{long}y")].map(String::from);
    let logs = names
        .iter()
        .flat_map(|name| keys.iter().map(|key| stored_key(LogKey::new(*name, key))));
    let stored: BTreeSet<_> = logs.collect();
    assert_eq!(stored.len(), names.len() * keys.len());
    assert!(stored.iter().all(|key| (1..=255).contains(&key.len())));
    assert!(
        stored.contains(&b"a%3Ab:#"[..])
            && stored
                .iter()
                .any(|key| key.starts_with(b"a#") && key.len() == 34)
    );
    // A key that looks like a hash is another log.
    let [hashed] = [stored_key(LogKey::new(names[1], &long))];
    assert_ne!(stored_key(LogKey::new(names[1], &hashed[1..])), hashed);
    for stored in &stored {
        let LiveKey { name, key } = read_key(stored).unwrap();
        match key {
            StoredKey::Known(key) => {
                assert_eq!(stored_key(LogKey::new(Name::new(&name), &key)), *stored);
            }
            StoredKey::Digest(hex) => assert!(hex.len() == 64 && stored.contains(&b'#')),
        }
    }
    assert!(stored.iter().all(|key| key[0] > 31), "a later format");
    for foreign in ["", "a", "a%3a:b", "a#b", "\u{2}a:b"] {
        assert_eq!(read_key(foreign.as_bytes()), None, "{foreign}");
    }
}
