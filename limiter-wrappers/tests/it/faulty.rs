//! A store that fails on command, and operations of each kind.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use limiter_core::store::{Facts, LogKey, Mode, Op, Settlement, SettlementFacts};
use limiter_core::{Error, ErrorKind, Limiter, NowStore, Policy, WindowStore, policy};
use limiter_memory::MemoryStore;
use tokio::time::sleep;

/// What the store does with a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Does {
    Answer,
    Refuse,
    /// Never answer.
    Hang,
    /// Apply it, and lose the answer.
    LoseAnswer,
    /// Wait until another fault, or none, is set.
    Hold,
    Corrupt,
    /// Return facts that contradict themselves.
    Contradict,
}

/// A store in memory that answers through futures only and fails by rule. Notes what it has applied.
#[derive(Clone, Default)]
pub(crate) struct Faulty(Arc<Inner>);

#[derive(Default)]
struct Inner {
    store: MemoryStore,
    rule: Mutex<Option<Rule>>,
    calls: AtomicU64,
    applied: Mutex<Vec<String>>,
}

/// From a verb and a log.
type Rule = Box<dyn FnMut(&str, LogKey<'_>) -> Does + Send>;

impl fmt::Debug for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Faulty")
    }
}

impl Faulty {
    pub(crate) fn rule(&self, rule: impl FnMut(&str, LogKey<'_>) -> Does + Send + 'static) {
        *self.0.rule.lock().unwrap() = Some(Box::new(rule));
    }

    pub(crate) fn set(&self, does: Does) {
        self.rule(move |_, _| does);
    }

    pub(crate) fn calls(&self) -> u64 {
        self.0.calls.load(Ordering::SeqCst)
    }

    /// Returns the settlements, resets and records that were applied since the last call, each as `verb cost`.
    pub(crate) fn replayed(&self) -> Vec<String> {
        let applied = std::mem::take(&mut *self.0.applied.lock().unwrap());
        applied.into_iter().filter(|call| !call.starts_with("acquire") && !call.starts_with("peek")).collect()
    }

    /// Returns what a log of the limiter `t` has used, beyond the maximum too.
    pub(crate) fn used(&self, key: impl AsRef<[u8]>, policy: &Policy) -> u64 {
        self.memory().apply_now(&Op::peek(&key, policy).with_name("t".into())).log.usage[0].used
    }

    pub(crate) fn memory(&self) -> &MemoryStore {
        &self.0.store
    }

    fn does(&self, verb: &str, log: LogKey<'_>) -> Does {
        self.0.rule.lock().unwrap().as_mut().map_or(Does::Answer, |rule| rule(verb, log))
    }

    async fn call<T>(
        &self,
        (verb, log, cost): (&str, LogKey<'_>, u64),
        apply: impl FnOnce(&MemoryStore, Does) -> T,
    ) -> Result<T, Error> {
        self.0.calls.fetch_add(1, Ordering::SeqCst);
        tokio::task::yield_now().await;
        let mut does = self.does(verb, log);
        while does == Does::Hold {
            sleep(Duration::from_millis(1)).await;
            does = self.does(verb, log);
        }
        match does {
            Does::Refuse => return Err(Error::new(ErrorKind::Unavailable, "refused")),
            Does::Corrupt => return Err(Error::new(ErrorKind::Corrupt, "corrupt")),
            Does::Hang => return std::future::pending().await,
            _ => {}
        }
        let answer = apply(&self.0.store, does);
        self.0.applied.lock().unwrap().push(format!("{verb} {cost}"));
        if does == Does::LoseAnswer { Err(Error::new(ErrorKind::Timeout, "the answer is lost")) } else { Ok(answer) }
    }
}

#[async_trait]
impl WindowStore for Faulty {
    async fn apply(&self, op: Op<'_>) -> Result<Facts, Error> {
        let verb = match op.mode {
            Mode::Acquire => "acquire",
            Mode::Peek => "peek",
            Mode::Record => "record",
        };
        let apply = |store: &MemoryStore, does| {
            let mut facts = store.apply_now(&op);
            facts.admitted ^= does == Does::Contradict;
            facts
        };
        self.call((verb, op.log, op.cost), apply).await
    }

    async fn settle(&self, settlement: Settlement<'_>) -> Result<SettlementFacts, Error> {
        self.call(("settle", settlement.log, settlement.cost), |store, _| store.settle_now(&settlement)).await
    }

    async fn reset(&self, log: LogKey<'_>) -> Result<bool, Error> {
        self.call(("reset", log, 0), |store, _| store.reset_now(log)).await
    }
}

/// The key of [`traffic`].
pub(crate) const SECRET: &str = "203.0.113.7";

/// One operation of each kind on `SECRET`, under 5/10s.
pub(crate) fn traffic<S: NowStore>(limiter: &Limiter<S>) {
    for _ in 0..6 {
        let _ = limiter.acquire(SECRET).now().unwrap();
    }
    let gold = policy!("50/10s").with_name("gold");
    let decision = limiter.acquire(SECRET).policy(&gold).now().unwrap();
    let _ = limiter.peek(SECRET).now().unwrap();
    let _ = limiter.status(SECRET).now().unwrap();
    let _ = limiter.record("other").cost(7).now().unwrap();
    let _ = limiter.refund(SECRET, decision.receipt().unwrap()).now();
    limiter.reset(SECRET).now();
    limiter.acquire(SECRET).cost(6).now().unwrap_err();
}
