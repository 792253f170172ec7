//! A batch of acquires gets the decisions that the acquires get one by one.

use std::sync::atomic::Ordering;

use crate::slow_store::SlowStore;
use futures::FutureExt;
use futures::executor::block_on;
use limiter_core::{Decision, Error, ErrorKind, Limiter, Timestamp, policy};
use limiter_testkit::{Answer, ReferenceStore};

fn at(micros: u64) -> Timestamp {
    Timestamp::from_micros(micros).unwrap()
}

/// The decision, or the kind of the error and its key.
fn shown(results: Vec<Result<Decision, Error>>) -> Vec<Result<Answer, (ErrorKind, Vec<u8>)>> {
    let shown = results.into_iter().map(|result| match result {
        Ok(decision) => Ok(Answer::from(&decision)),
        Err(error) => Err((error.kind(), error.key().unwrap().to_vec())),
    });
    shown.collect()
}

#[test]
fn a_batch_decides_like_its_acquires_one_by_one() {
    let policy = policy!("9/1ms, 30/1s");
    let gold = policy!("20/1ms");
    let one_by_one = Limiter::new("n", policy.clone(), ReferenceStore::new());
    let now = Limiter::new("n", policy.clone(), ReferenceStore::new());
    let awaited = Limiter::new("n", policy.clone(), ReferenceStore::new());
    let slow = Limiter::new("n", policy, SlowStore { is_uneven: true, ..SlowStore::default() });
    let mut random = 7_u64;
    let mut below = |end: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % end
    };
    let mut allowed = [0; 2];
    for round in 0..300 {
        let size = [0, 1, 5, 40, 700][below(5) as usize];
        let keys = 1 + below(300);
        // Costs of 0 and above the maximum are errors.
        let batch: Vec<(u64, u64)> = (0..size).map(|_| (below(keys), below(12))).collect();
        let time = at(1 + round * 300);
        let special = below(3) == 0;
        macro_rules! of {
            ($limiter:expr) => {{
                let batch = $limiter.acquire_many(batch.iter().copied()).at(time);
                if special { batch.policy(&gold) } else { batch }
            }};
        }
        let expected = batch.iter().map(|(key, cost)| {
            let acquire = one_by_one.acquire(*key).cost(*cost).at(time);
            if special { acquire.policy(&gold) } else { acquire }.now()
        });
        let expected = shown(expected.collect());
        assert_eq!(shown(of!(now).now()), expected, "{round}");
        assert_eq!(shown(block_on(of!(awaited).into_future())), expected, "{round}");
        assert_eq!(shown(block_on(of!(slow).into_future())), expected, "{round}");
        for answer in expected.iter().flatten() {
            allowed[usize::from(answer.allowed)] += 1;
        }
    }
    assert!(allowed.into_iter().all(|count| count > 1_000), "{allowed:?}");
    let most = slow.store().running.lock().unwrap().1;
    assert!((20..=256).contains(&most), "{most} calls at a time");
}

#[test]
fn a_batch_that_is_dropped_made_some_of_its_calls_in_order() {
    let limiter = Limiter::new("n", policy!("9/1h"), SlowStore::default());
    let mut batch = Box::pin(limiter.acquire_many((0..500_u64).map(|key| (key, 1))).into_future());
    while limiter.store().calls.load(Ordering::Relaxed) == 0 {
        assert!(batch.as_mut().now_or_never().is_none());
    }
    drop(batch);
    let used = |key: u64| block_on(limiter.status(key)).unwrap().used();
    let used: Vec<u64> = (0..500).map(used).collect();
    assert!(used.starts_with(&[1]) && used.ends_with(&[0; 244]) && used.is_sorted_by(|a, b| a >= b), "{used:?}");
}
