//! The testbed finds what stores do wrong.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use limiter_core::store::{Facts, LogKey, Op, Settlement, SettlementFacts};
use limiter_core::{BoxFuture, Error, ErrorKind, SharedStore, WindowStore};
use limiter_testkit::ReferenceStore;
use testbed::{Seen, Subject, observe};
use tokio::time::sleep;

const BOUND: Duration = Duration::from_millis(100);

/// A store's behaviour while its server is down.
type Flaw = for<'a> fn(&'a ReferenceStore, Op<'a>) -> BoxFuture<'a, Result<Facts, Error>>;

/// A store with a server in memory.
#[derive(Debug)]
struct Store {
    server: Arc<ReferenceStore>,
    is_down: Arc<AtomicBool>,
    flaw: Flaw,
}

#[async_trait]
impl WindowStore for Store {
    async fn apply(&self, op: Op<'_>) -> Result<Facts, Error> {
        if self.is_down.load(Ordering::SeqCst) {
            (self.flaw)(&self.server, op).await
        } else {
            self.server.apply(op).await
        }
    }

    async fn settle(&self, settlement: Settlement<'_>) -> Result<SettlementFacts, Error> {
        self.server.settle(settlement).await
    }

    async fn reset(&self, log: LogKey<'_>) -> Result<bool, Error> {
        self.server.reset(log).await
    }
}

fn fails(kind: ErrorKind) -> Result<Facts, Error> {
    Err(Error::new(kind, "down"))
}

const NONE: Flaw = |_, _| Box::pin(async { fails(ErrorKind::Unavailable) });
const HANGS: Flaw = |_, _| Box::pin(std::future::pending());
const IS_SLOW: Flaw = |_, _| {
    Box::pin(async {
        sleep(2 * BOUND).await;
        fails(ErrorKind::Unavailable)
    })
};
const FAILS_FOR_GOOD: Flaw = |_, _| Box::pin(async { fails(ErrorKind::Configuration) });
const FORGETS_IDS: Flaw = |store, mut op| {
    Box::pin(async move {
        op.id = None;
        store.apply(op).await.and(fails(ErrorKind::Unavailable))
    })
};
const COUNTS_TWICE: Flaw = |store, op| {
    Box::pin(async move {
        let first = store.apply(op).await;
        if op.id.is_none() {
            store.apply(op).await.and(first)
        } else {
            first
        }
    })
};
const ADMITS_UNCOUNTED: Flaw =
    |_, op| Box::pin(async move { ReferenceStore::new().apply(op).await });

/// Each flaw, with what most callers see and the violations that must be found.
const FLAWS: [(&str, Flaw, Option<Seen>, &[&str]); 8] = [
    ("none", NONE, Some(Seen::Err(ErrorKind::Unavailable)), &[]),
    ("hangs", HANGS, Some(Seen::Never), &["did not end within"]),
    (
        "slow",
        IS_SLOW,
        Some(Seen::Err(ErrorKind::Unavailable)),
        &["usually take"],
    ),
    (
        "kind",
        FAILS_FOR_GOOD,
        Some(Seen::Err(ErrorKind::Configuration)),
        &["failed as Configuration"],
    ),
    ("ids", FORGETS_IDS, None, &["idempotency keys count"]),
    (
        "twice",
        COUNTS_TWICE,
        None,
        &["admitted, count", "dropped calls count"],
    ),
    (
        "uncounted",
        ADMITS_UNCOUNTED,
        Some(Seen::Ok(true)),
        &["admitted, count 0", "a window of 10 admitted"],
    ),
    ("stuck", NONE, None, &["does not decide again"]),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_flaw_is_found() {
    let (server, [is_down, is_stuck]) = <(Arc<ReferenceStore>, [Arc<AtomicBool>; 2])>::default();
    let subjects = FLAWS.map(|(name, flaw, ..)| {
        let is_down = if name == "stuck" { &is_stuck } else { &is_down };
        let store = Arc::new(Store {
            server: server.clone(),
            is_down: is_down.clone(),
            flaw,
        });
        Subject {
            name,
            store,
            bound: BOUND,
            most: Some(1),
        }
    });
    let inject = |during: &mut dyn FnMut()| {
        is_down.store(true, Ordering::SeqCst);
        is_stuck.store(true, Ordering::SeqCst);
        during();
        is_down.store(false, Ordering::SeqCst);
        Ok(String::new())
    };
    let observed = observe(&subjects, false, inject, async |_| {
        server.clone() as SharedStore
    })
    .await
    .unwrap();
    for ((name, _, outcome, violations), observed) in FLAWS.iter().zip(&observed) {
        assert!(
            outcome.is_none_or(|outcome| outcome == observed.during),
            "{name}: {observed:?}"
        );
        let all = observed.violations.join("; ");
        assert_eq!(violations.is_empty(), all.is_empty(), "{name}: {all}");
        assert!(
            violations.iter().all(|violation| all.contains(violation)),
            "{name}: {all}"
        );
    }
}
