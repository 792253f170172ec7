//! Calls that wait for one log, dropped calls, and failures of the table.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::future::IntoFuture;
use std::task::{Context, Poll, Waker};

use futures::FutureExt;
use futures::future::{FusedFuture, join_all};
use limiter_core::store::{JointOp, LiveKey, LogKey, Op, StoredKey, WindowStore};
use limiter_core::{Error, ErrorKind, Limiter, Name, Policy, policy};
use limiter_log::{LogStore, read_key, stored_key};
use limiter_testkit::MockClock;

use crate::map::Map;

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
    assert!(map.run(search.reset("a").into_future()).unwrap());
    assert!(map.logs.lock().unwrap().is_empty());
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
    for foreign in ["", "a", "a%3a:b", "a#b"] {
        assert_eq!(read_key(foreign.as_bytes()), None, "{foreign}");
    }
}
