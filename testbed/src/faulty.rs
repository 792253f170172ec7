//! A store that fails by rule.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use limiter_core::store::{
    Change, Facts, JointFacts, JointOp, LogKey, Mode, Op, Settlement, SettlementFacts,
};
use limiter_core::{Decision, Error, ErrorKind, WindowStore};
use tokio::time::sleep;

/// The behaviour of a [`Faulty`] store on a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Does {
    /// Apply it and answer.
    Answer,
    /// Fail as unavailable.
    Refuse,
    /// Fail as corrupt.
    Corrupt,
    /// Fail as misconfigured.
    Misconfigure,
    /// Never respond, and do not apply the call.
    Hang,
    /// Apply it, and never answer.
    ApplyAndHang,
    /// Apply it, and fail as timed out.
    LoseAnswer,
    /// Apply it, and respond a second later.
    AnswerLate,
    /// Wait until another rule is set or the rule's result changes.
    Hold,
    /// Answer with facts that contradict themselves.
    Contradict,
    /// Apply nothing as one, as a Cluster does with logs of several slots.
    Separate,
}

/// From a verb and a log.
type Rule = Box<dyn FnMut(&str, LogKey<'_>) -> Does + Send>;

/// A store that fails by rule, and always waits before it decides, except after [`decide_immediately`](Faulty::decide_immediately). Notes its calls. Clones are the same store.
#[derive(Default)]
pub struct Faulty<S>(Arc<Inner<S>>);

#[derive(Default)]
struct Inner<S> {
    store: S,
    rule: Mutex<Option<Rule>>,
    immediate: AtomicBool,
    calls: Mutex<BTreeMap<&'static str, usize>>,
    applied: Mutex<Vec<String>>,
}

impl<S> Clone for Faulty<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<S> fmt::Debug for Faulty<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Faulty")
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<S> Faulty<S> {
    /// Returns a store that decides like `store`, but not immediately.
    pub fn new(store: S) -> Self {
        let (rule, immediate, calls, applied) = Default::default();
        Self(Arc::new(Inner {
            store,
            rule,
            immediate,
            calls,
            applied,
        }))
    }

    /// Sets the behaviour on each call, by verb (`acquire`, `peek`, `record`, `settle`, `reset`, or `apply_all` for several
    /// operations as one) and log.
    pub fn rule(&self, rule: impl FnMut(&str, LogKey<'_>) -> Does + Send + 'static) {
        *lock(&self.0.rule) = Some(Box::new(rule));
    }

    /// Does the same with every call.
    pub fn set(&self, does: Does) {
        self.rule(move |_, _| does);
    }

    /// Makes it decide without waiting where it can, regardless of the rule, or stops that.
    pub fn decide_immediately(&self, immediate: bool) {
        self.0.immediate.store(immediate, Ordering::SeqCst);
    }

    /// Returns the number of calls.
    pub fn calls(&self) -> usize {
        lock(&self.0.calls).values().sum()
    }

    /// Returns the number of calls with this verb.
    pub fn calls_to(&self, verb: &str) -> usize {
        lock(&self.0.calls).get(verb).copied().unwrap_or(0)
    }

    /// Returns the settlements, resets and records that were applied since the last call, each as `verb cost`.
    pub fn replayed(&self) -> Vec<String> {
        let applied = std::mem::take(&mut *lock(&self.0.applied));
        applied
            .into_iter()
            .filter(|call| !call.starts_with("acquire") && !call.starts_with("peek"))
            .collect()
    }

    /// Returns the store.
    pub fn store(&self) -> &S {
        &self.0.store
    }

    fn does(&self, verb: &str, log: LogKey<'_>) -> Does {
        lock(&self.0.rule)
            .as_mut()
            .map_or(Does::Answer, |rule| rule(verb, log))
    }

    /// Notes a call, and fails instead of applying it if the rule says so.
    async fn begin(&self, verb: &'static str, log: LogKey<'_>) -> Result<Does, Error> {
        *lock(&self.0.calls).entry(verb).or_default() += 1;
        tokio::task::yield_now().await;
        let mut does = self.does(verb, log);
        while does == Does::Hold {
            sleep(Duration::from_millis(1)).await;
            does = self.does(verb, log);
        }
        match does {
            Does::Refuse => Err(Error::new(ErrorKind::Unavailable, "refused")),
            Does::Corrupt => Err(Error::new(ErrorKind::Corrupt, "corrupt")),
            Does::Misconfigure => Err(Error::new(ErrorKind::Configuration, "wrong")),
            Does::Hang => std::future::pending().await,
            does => Ok(does),
        }
    }

    /// Notes that a call was applied, and answers it.
    async fn end<T>(&self, does: Does, applied: String, answer: T) -> Result<T, Error> {
        lock(&self.0.applied).push(applied);
        match does {
            Does::LoseAnswer => return Err(Error::new(ErrorKind::Timeout, "the answer is lost")),
            Does::ApplyAndHang => std::future::pending().await,
            Does::AnswerLate => sleep(Duration::from_secs(1)).await,
            _ => {}
        }
        Ok(answer)
    }
}

#[async_trait]
impl<S: WindowStore> WindowStore for Faulty<S> {
    async fn apply(&self, op: Op<'_>) -> Result<Facts, Error> {
        let verb = match op.mode {
            Mode::Acquire => "acquire",
            Mode::Peek => "peek",
            Mode::Record => "record",
        };
        let does = self.begin(verb, op.log).await?;
        let mut facts = self.store().apply(op).await?;
        facts.admitted ^= does == Does::Contradict;
        self.end(does, format!("{verb} {}", op.cost), facts).await
    }

    async fn settle(&self, settlement: Settlement<'_>) -> Result<SettlementFacts, Error> {
        let (verb, cost) = match settlement.change {
            Change::Cost(cost) => ("settle", cost),
            Change::Renew { .. } => ("renew", 0),
        };
        let does = self.begin(verb, settlement.log).await?;
        let facts = self.store().settle(settlement).await?;
        self.end(does, format!("{verb} {cost}"), facts).await
    }

    async fn reset(&self, log: LogKey<'_>) -> Result<bool, Error> {
        let does = self.begin("reset", log).await?;
        let there_was_a_log = self.store().reset(log).await?;
        self.end(does, "reset 0".to_owned(), there_was_a_log).await
    }

    async fn apply_all(&self, ops: &[JointOp<'_>]) -> Result<Option<JointFacts>, Error> {
        let Some(first) = ops.first() else {
            return self.store().apply_all(ops).await;
        };
        let does = self.begin("apply_all", first.op.log).await?;
        if does == Does::Separate {
            return Ok(None);
        }
        let facts = self.store().apply_all(ops).await?;
        self.end(does, "apply_all 0".to_owned(), facts).await
    }

    fn try_decide(&self, op: Op<'_>) -> Option<Result<Decision, Error>> {
        if self.0.immediate.load(Ordering::SeqCst) {
            self.store().try_decide(op)
        } else {
            None
        }
    }

    fn inner(&self) -> Option<&dyn WindowStore> {
        Some(self.store())
    }

    fn identity(&self) -> Option<usize> {
        self.store().identity()?;
        Some(Arc::as_ptr(&self.0).addr())
    }

    /// The node of `key@node` is `node`.
    fn node(&self, log: LogKey<'_>) -> Option<Arc<str>> {
        let node = log
            .key
            .iter()
            .position(|byte| *byte == b'@')
            .map(|at| &log.key[at + 1..]);
        node.map(|node| String::from_utf8_lossy(node).into())
    }
}
