//! Several operations as one, behind wrappers: while the store is down, and after a denial.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::script::bare;
use async_trait::async_trait;
use limiter_core::request::{AllOf, Part};
use limiter_core::store::{Facts, JointFacts, JointOp, LogKey, LogPlace, Op, Settlement, SettlementFacts};
use limiter_core::{Counting, Error, ErrorKind, Limiter, SharedStore, SyncStore, WindowStore, policy};
use limiter_memory::MemoryStore;
use limiter_testkit::ReferenceStore;
use limiter_wrappers::Stack;

/// A store that fails on command, and counts calls.
#[derive(Debug, Default)]
struct Joining {
    store: ReferenceStore,
    fails: AtomicBool,
    calls: AtomicU64,
}

impl Joining {
    fn call(&self) -> Result<&ReferenceStore, Error> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        let is_down = self.fails.load(Ordering::SeqCst);
        if is_down { Err(Error::new(ErrorKind::Unavailable, "connection refused")) } else { Ok(&self.store) }
    }

    fn calls(&self) -> u64 {
        self.calls.swap(0, Ordering::SeqCst)
    }
}

#[async_trait]
impl WindowStore for Joining {
    async fn apply(&self, op: Op<'_>) -> Result<Facts, Error> {
        Ok(self.call()?.apply_now(&op))
    }

    async fn settle(&self, settlement: Settlement<'_>) -> Result<SettlementFacts, Error> {
        Ok(self.call()?.settle_now(&settlement))
    }

    async fn reset(&self, log: LogKey<'_>) -> Result<bool, Error> {
        Ok(self.call()?.reset_now(log))
    }

    async fn apply_all(&self, ops: &[JointOp<'_>]) -> Result<Option<JointFacts>, Error> {
        self.call()?.apply_all(ops).await
    }

    fn place(&self, log: LogKey<'_>) -> LogPlace {
        self.store.place(log)
    }
}

async fn used(limiter: &Limiter) -> u64 {
    limiter.status("k").await.unwrap().used()
}

#[tokio::test]
async fn one_call_replaces_the_answer_while_the_store_is_down() {
    let down = || Arc::new(Joining { fails: AtomicBool::new(true), ..Joining::default() });
    let [open, closed, fallback] = [down(), down(), down()];
    for (name, joining, store, expected) in [
        ("open", &open, Arc::new(bare(open.clone()).fail_open()) as SharedStore, [true, true]),
        ("closed", &closed, Arc::new(bare(closed.clone()).fail_closed()), [false, false]),
        ("fallback", &fallback, Arc::new(bare(fallback.clone()).fallback(MemoryStore::new())), [true, false]),
    ] {
        let (one, two) =
            (Limiter::new("one", policy!("1/1h"), store.clone()), Limiter::new("two", policy!("2/1h"), store));
        for admits in expected {
            let mut both = AllOf::new().with(two.acquire("k")).with(one.acquire("k"));
            assert_eq!((both.decide().await.unwrap(), joining.calls()), (admits, 1), "{name}");
        }
        if name == "fallback" {
            assert_eq!([used(&one).await, used(&two).await], [1, 1], "all or none");
            // A repetition finds its entry, and a kept charge stays.
            let repeated = || one.acquire("r").idempotency_key(7_u128);
            assert!(AllOf::new().with(repeated()).with(two.acquire("r")).decide().await.unwrap());
            assert!(AllOf::new().with(repeated()).with(two.acquire("r")).decide().await.unwrap());
            let kept = Part::from(two.acquire("k")).keep_charge();
            assert!(!AllOf::new().with(kept).with(one.acquire("k")).decide().await.unwrap());
            assert_eq!([used(&one).await, used(&two).await], [1, 2]);
        }
        if name == "closed" {
            assert!(AllOf::new().with(one.record("k")).with(two.record("k")).decide().await.is_err());
        }
    }
}

#[tokio::test]
async fn a_denial_cache_responds_if_it_knows_all_denials() {
    let joining = Arc::new(Joining::default());
    let store: SharedStore = Arc::new(Stack::new(joining.clone()).or_error());
    let limiter = |name, policy| Limiter::new(name, policy, store.clone());
    let [first, second, third] = ["first", "second", "third"].map(|name| limiter(name, policy!("1/1h")));
    let attempts = limiter("attempts", policy!("1/1h").with_counting(Counting::Attempts));
    for limiter in [&first, &second, &attempts] {
        assert!(limiter.acquire("k").await.unwrap().allowed());
    }
    joining.calls();
    for (calls, others) in [(1, &third), (0, &second), (1, &third), (1, &attempts), (1, &attempts)] {
        let mut both = AllOf::new().with(others.acquire("k")).with(first.acquire("k"));
        assert!(!both.decide().await.unwrap());
        assert!(both.retry_after().is_some());
        // The first call brings in the denial of each that is not known.
        assert!(joining.calls() <= calls.max(u64::from(others.name() == second.name())), "{both:?}");
    }
    assert_eq!(used(&third).await, 0);
    // A charge is noticed.
    assert!(
        AllOf::new()
            .with(third.acquire("k"))
            .with(limiter("fourth", policy!("9/1h")).acquire("k"))
            .decide()
            .await
            .unwrap()
    );
    assert_eq!(used(&third).await, 1);
}
