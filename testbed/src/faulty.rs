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
use limiter_core::{Decision, Error, ErrorKind, SyncStore, Timestamp, WindowStore};
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

    fn note(&self, verb: &'static str) {
        *lock(&self.0.calls).entry(verb).or_default() += 1;
    }

    fn does(&self, verb: &str, log: LogKey<'_>) -> Does {
        lock(&self.0.rule)
            .as_mut()
            .map_or(Does::Answer, |rule| rule(verb, log))
    }

    async fn call<T>(
        &self,
        (verb, log, cost): (&'static str, LogKey<'_>, u64),
        apply: impl Future<Output = Result<T, Error>> + Send,
    ) -> Result<(T, Does), Error> {
        self.note(verb);
        tokio::task::yield_now().await;
        let mut does = self.does(verb, log);
        while does == Does::Hold {
            sleep(Duration::from_millis(1)).await;
            does = self.does(verb, log);
        }
        match does {
            Does::Refuse => return Err(Error::new(ErrorKind::Unavailable, "refused")),
            Does::Corrupt => return Err(Error::new(ErrorKind::Corrupt, "corrupt")),
            Does::Misconfigure => return Err(Error::new(ErrorKind::Configuration, "wrong")),
            Does::Hang => return std::future::pending().await,
            _ => {}
        }
        let answer = apply.await?;
        lock(&self.0.applied).push(format!("{verb} {cost}"));
        match does {
            Does::LoseAnswer => Err(Error::new(ErrorKind::Timeout, "the answer is lost")),
            Does::ApplyAndHang => std::future::pending().await,
            Does::AnswerLate => {
                sleep(Duration::from_secs(1)).await;
                Ok((answer, does))
            }
            _ => Ok((answer, does)),
        }
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
        let (mut facts, does) = self
            .call((verb, op.log, op.cost), self.store().apply(op))
            .await?;
        facts.admitted ^= does == Does::Contradict;
        Ok(facts)
    }

    async fn settle(&self, settlement: Settlement<'_>) -> Result<SettlementFacts, Error> {
        let call = match settlement.change {
            Change::Cost(cost) => ("settle", settlement.log, cost),
            Change::Renew { .. } => ("renew", settlement.log, 0),
        };
        Ok(self.call(call, self.store().settle(settlement)).await?.0)
    }

    async fn reset(&self, log: LogKey<'_>) -> Result<bool, Error> {
        Ok(self
            .call(("reset", log, 0), self.store().reset(log))
            .await?
            .0)
    }

    async fn apply_all(&self, ops: &[JointOp<'_>]) -> Result<Option<JointFacts>, Error> {
        let apply = self.store().apply_all(ops);
        match ops.first() {
            Some(first) => Ok(self.call(("apply_all", first.op.log, 0), apply).await?.0),
            None => apply.await,
        }
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

/// Follows no rule, and notes only the calls of `decide_now`.
impl<S: SyncStore> SyncStore for Faulty<S> {
    fn apply_now(&self, op: &Op<'_>) -> Facts {
        self.store().apply_now(op)
    }

    fn decide_now(&self, op: Op<'_>) -> Result<Decision, Error> {
        self.note("decide_now");
        self.store().decide_now(op)
    }

    fn apply_all_now(&self, ops: &[JointOp<'_>]) -> Vec<Facts> {
        self.store().apply_all_now(ops)
    }

    fn settle_now(&self, settlement: &Settlement<'_>) -> SettlementFacts {
        self.store().settle_now(settlement)
    }

    fn reset_now(&self, log: LogKey<'_>) -> bool {
        self.store().reset_now(log)
    }

    fn read_clock(&self) -> Timestamp {
        self.store().read_clock()
    }
}
