//! Calls that wait for one log, dropped calls, and failures of the table.

use std::collections::BTreeSet;
use std::future::IntoFuture;
use std::sync::atomic::Ordering;
use std::task::{Context, Waker};

use futures::FutureExt;
use futures::executor::block_on;
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

/// Runs calls that all wait when the first one is served.
fn together<C: Future>(map: &Map, calls: impl IntoIterator<Item = C>) -> Vec<C::Output> {
    map.is_closed.store(true, Ordering::SeqCst);
    let mut calls: Vec<_> = calls.into_iter().map(Box::pin).collect();
    let context = &mut Context::from_waker(Waker::noop());
    assert!(
        calls
            .iter_mut()
            .all(|call| call.poll_unpin(context).is_pending())
    );
    map.is_closed.store(false, Ordering::SeqCst);
    block_on(join_all(calls))
}

fn limiter(map: &Map) -> Limiter<LogStore<Map>> {
    Limiter::new("search", &POLICY, LogStore::new(map.clone()))
}

#[test]
fn calls_that_wait_for_one_log_are_saved_once_and_in_order() {
    let map = map();
    let search = limiter(&map);
    let calls = (0..500).map(|_| async { search.acquire("a").await.unwrap().remaining() });
    let remaining = together(&map, calls);
    assert_eq!(remaining, Vec::from_iter((500..1_000).rev()));
    assert_eq!(map.counts(), (2, 2), "the first call did not wait");
    let rest = block_on(search.acquire("a").cost(500).into_future()).unwrap();
    assert!(rest.is_allowed());
    let denied = block_on(async { (search.acquire("a").await, search.peek("a").await) });
    assert!(!denied.0.unwrap().is_allowed() && !denied.1.unwrap().is_allowed());
    assert_eq!(map.counts(), (5, 3), "a denial and a peek save nothing");
    assert!(block_on(search.reset("a").into_future()).unwrap());
    assert!(map.logs.lock().unwrap().is_empty());
}

#[test]
fn calls_on_several_logs_are_combined_too() {
    let map = map();
    let search = limiter(&map);
    let keys = Vec::from_iter((0..40).map(|i| i.to_string()));
    let pairs = keys.iter().map(|key| {
        let [one, all] = ["each", key].map(|key| Op::acquire(key, &POLICY).into());
        let store = search.store();
        async move { store.apply_all(&[one, all]).await.unwrap().unwrap() }
    });
    let used: Vec<u64> = together(&map, pairs)
        .iter()
        .map(|facts| facts[0].as_ref().unwrap().log.usage[0].used)
        .collect();
    assert_eq!(used, Vec::from_iter(1..=40));
    assert_eq!(map.counts(), (3, 3), "1, 32 and 7 calls are batches");
}

#[test]
fn a_dropped_call_loses_no_other_and_repeats_none() {
    const CALLS: usize = 6;
    let context = &mut Context::from_waker(Waker::noop());
    let mut outcomes = BTreeSet::new();
    for (polls, dropped) in
        (0..9).flat_map(|polls| (1..=CALLS).map(move |dropped| (polls, dropped)))
    {
        let map = map();
        let search = limiter(&map);
        let call = |_| async { search.acquire("a").await.unwrap().used() }.boxed();
        let mut calls: Vec<_> = (0..CALLS).map(call).map(FutureExt::fuse).collect();
        for _ in 0..polls {
            for call in &mut calls {
                let _ = call.poll_unpin(context);
            }
        }
        let rest = calls.split_off(dropped);
        drop(calls);
        let later = block_on(async {
            join_all(rest.into_iter().filter(|call| !call.is_terminated())).await;
            search.acquire("a").await.unwrap().used() as usize
        });
        // A call that was not polled has not begun.
        assert!(
            (CALLS - dropped + 1..=CALLS + 1).contains(&later),
            "{polls} {dropped}: {later}"
        );
        outcomes.insert((dropped, later));
    }
    // All calls took effect although the first was dropped, and none did.
    assert!(
        outcomes.is_superset(&BTreeSet::from([(1, CALLS), (1, CALLS + 1), (CALLS, 1)])),
        "{outcomes:?}"
    );
}

#[test]
fn comparisons_may_be_lost_a_hundred_times() {
    let mut map = map();
    map.lost = 1;
    let error = block_on(limiter(&map).acquire("a").into_future()).unwrap_err();
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
        for error in together(&map, (0..3).map(|_| search.acquire("a").into_future())) {
            let error = error.unwrap_err();
            assert_eq!((error.kind(), error.key()), (kind, Some(&b"a"[..])));
            assert_eq!(error.to_string(), "limiter \"search\": the map is broken");
        }
    }
}

#[test]
fn a_damaged_log_is_an_error_until_it_is_reset() {
    let map = map();
    let search = limiter(&map);
    let [good, bad] = ["good", "bad"].map(|key| LogKey::new(Name::new("search"), key));
    map.damage(bad);
    let acquire = |log: LogKey<'static>| {
        let mut op = Op::acquire("", &POLICY);
        op.log = log;
        JointOp::from(op)
    };
    let error = block_on(search.acquire("bad").into_future()).unwrap_err();
    assert_eq!(
        (error.kind(), error.key()),
        (ErrorKind::Corrupt, Some(&b"bad"[..]))
    );
    assert!(
        error
            .to_string()
            .ends_with("the saved log has the version 9, expected 1 (reset removes it)"),
        "{error}"
    );
    let ops = [acquire(good), acquire(bad)];
    let error = block_on(search.store().apply_all(&ops)).unwrap_err();
    assert_eq!(
        (error.kind(), error.key()),
        (ErrorKind::Corrupt, Some(&b"bad"[..]))
    );
    let ops = [
        acquire(good),
        JointOp {
            is_advisory: true,
            ..acquire(bad)
        },
    ];
    let facts = block_on(search.store().apply_all(&ops)).unwrap().unwrap();
    let kinds = facts
        .iter()
        .map(|facts| facts.as_ref().map_err(Error::kind).err());
    assert_eq!(Vec::from_iter(kinds), [None, Some(ErrorKind::Corrupt)]);
    // The reset is one of the combined calls.
    let calls = async {
        futures::join!(
            search.acquire("bad").into_future(),
            search.reset("bad").into_future(),
            search.acquire("bad").into_future()
        )
    };
    let (before, reset, after) = block_on(calls);
    assert_eq!(before.unwrap_err().kind(), ErrorKind::Corrupt);
    assert!(reset.unwrap() && after.unwrap().used() == 1);
    assert_eq!(
        block_on(search.status("good").into_future())
            .unwrap()
            .used(),
        1
    );
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
