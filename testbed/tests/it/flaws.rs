//! The testbed finds what stores do wrong.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use limiter_core::store::{Facts, LogKey, Op, Settlement, SettlementFacts};
use limiter_core::{Error, ErrorKind, SharedStore, WindowStore};
use limiter_testkit::ReferenceStore;
use testbed::{Scene, Seen, Soak, Subject, observe, soak};

const BOUND: Duration = Duration::from_millis(100);

/// The only fault of a [`Server`].
const DOWN: &str = "down";

/// A server in memory.
#[derive(Clone, Debug, Default)]
struct Server {
    store: Arc<ReferenceStore>,
    is_down: Arc<AtomicBool>,
    was_down: Arc<AtomicBool>,
}

impl Scene for Server {
    type Fault = &'static str;

    fn url(&self) -> String {
        String::new()
    }

    fn begin(&mut self, _fault: &str) -> io::Result<()> {
        self.is_down.store(true, Ordering::SeqCst);
        self.was_down.store(true, Ordering::SeqCst);
        Ok(())
    }

    fn end(&mut self, _fault: &str) -> io::Result<()> {
        self.is_down.store(false, Ordering::SeqCst);
        Ok(())
    }
}

/// What a store does wrong while the server is down.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Flaw {
    None,
    Hangs,
    IsSlow,
    FailsForGood,
    ForgetsIds,
    CountsTwice,
    AdmitsUncounted,
    NeverRecovers,
}

#[derive(Clone, Debug)]
struct Store {
    server: Server,
    flaw: Flaw,
}

#[async_trait]
impl WindowStore for Store {
    async fn apply(&self, mut op: Op<'_>) -> Result<Facts, Error> {
        let Server { store, is_down, was_down } = &self.server;
        let affected = if self.flaw == Flaw::NeverRecovers { was_down } else { is_down };
        if !affected.load(Ordering::SeqCst) {
            return store.apply(op).await;
        }
        let for_good = self.flaw == Flaw::FailsForGood;
        let kind = if for_good { ErrorKind::Configuration } else { ErrorKind::Unavailable };
        match self.flaw {
            Flaw::None | Flaw::NeverRecovers | Flaw::FailsForGood => {}
            Flaw::Hangs => std::future::pending().await,
            Flaw::IsSlow => tokio::time::sleep(2 * BOUND).await,
            Flaw::ForgetsIds => {
                op.id = None;
                store.apply(op).await?;
            }
            Flaw::CountsTwice => {
                let first = store.apply(op).await;
                return if op.id.is_none() { store.apply(op).await.and(first) } else { first };
            }
            Flaw::AdmitsUncounted => return ReferenceStore::new().apply(op).await,
        }
        Err(Error::new(kind, "down").with_log(op.log))
    }

    async fn settle(&self, settlement: Settlement<'_>) -> Result<SettlementFacts, Error> {
        self.server.store.settle(settlement).await
    }

    async fn reset(&self, log: LogKey<'_>) -> Result<bool, Error> {
        self.server.store.reset(log).await
    }
}

fn subject(name: &'static str, server: &Server, flaw: Flaw) -> Subject {
    let store = Arc::new(Store { server: server.clone(), flaw });
    Subject { name, store, bound: BOUND, most: Some(1) }
}

/// Each flaw, with what most callers see and the violations that must be found.
const FLAWS: [(&str, Flaw, Option<Seen>, &[&str]); 8] = [
    ("none", Flaw::None, Some(Seen::Err(ErrorKind::Unavailable)), &[]),
    ("hangs", Flaw::Hangs, Some(Seen::Never), &["did not end within"]),
    ("slow", Flaw::IsSlow, Some(Seen::Err(ErrorKind::Unavailable)), &["usually take"]),
    ("kind", Flaw::FailsForGood, Some(Seen::Err(ErrorKind::Configuration)), &["failed as Configuration"]),
    ("ids", Flaw::ForgetsIds, None, &["idempotency keys count"]),
    ("twice", Flaw::CountsTwice, None, &["admitted, count"]),
    ("uncounted", Flaw::AdmitsUncounted, Some(Seen::Ok(true)), &["admitted, count 0", "a window of 10 admitted"]),
    ("stuck", Flaw::NeverRecovers, None, &["does not decide again"]),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_flaw_is_found() {
    let mut server = Server::default();
    let subjects = FLAWS.map(|(name, flaw, ..)| subject(name, &server, flaw));
    let direct: SharedStore = server.store.clone();
    let observed = observe(&mut server, DOWN, &subjects, async |_| direct.clone()).await.unwrap();
    for ((name, _, outcome, violations), observed) in FLAWS.iter().zip(&observed) {
        assert!(outcome.is_none_or(|outcome| outcome == observed.during), "{name}: {observed:?}");
        let all = observed.violations.join("; ");
        assert_eq!(violations.is_empty(), all.is_empty(), "{name}: {all}");
        assert!(violations.iter().all(|violation| all.contains(violation)), "{name}: {all}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_soak_finds_flaws_too() {
    let mut server = Server::default();
    let flaws = [("none", Flaw::None), ("uncounted", Flaw::AdmitsUncounted), ("hangs", Flaw::Hangs)];
    let subjects = flaws.map(|(name, flaw)| subject(name, &server, flaw));
    let direct: SharedStore = server.store.clone();
    let settings = Soak { faults: vec![DOWN], length: Duration::from_secs(2), seed: 1 };
    let violations = soak(&mut server, &settings, &subjects, async |_| direct.clone()).await.unwrap();
    let found = |text: &str| violations.iter().any(|violation| violation.contains(text));
    assert!(found("uncounted: a window of 20 admitted") && found("hangs: a call did not end"), "{violations:?}");
    assert!(!found("none:"), "{violations:?}");
}
