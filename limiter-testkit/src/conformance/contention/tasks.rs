//! Concurrent tasks on one log.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use limiter_core::store::{LogKey, Op, Settlement, SettlementFacts};
use limiter_core::{Decision, Error, ErrorKind, Name, Policy, Receipt, Timestamp, WindowStore};

use crate::conformance::generated::strategy::START;
use crate::conformance::sentence::Sentence::L12;
use crate::conformance::sequence::caller::{Route, decided};
use crate::conformance::spawn::Spawner;
use crate::conformance::suite::failure::{Finding, Findings};
use crate::conformance::suite::run::reset_all;

/// The state of a scenario: the store, and the numbers of tasks and calls.
pub(super) struct Contention<'a, S: ?Sized> {
    pub(super) handles: &'a [Arc<S>],
    pub(super) spawner: &'a Spawner,
    pub(super) tasks: usize,
    pub(super) tries: usize,
    pub(super) prefix: String,
    pub(super) keys: u64,
    pub(super) calls: u64,
}

/// A log that all tasks use.
pub(super) struct SharedLog<S: ?Sized> {
    pub(super) handles: Vec<Arc<S>>,
    pub(super) policy: Policy,
    pub(super) key: String,
    pub(super) clock: AtomicU64,
    /// How far the given time advances with each call, in microseconds. `None` uses the store's clock.
    pub(super) tick: Option<u64>,
}

/// A task's number and the decision that it received.
#[derive(Clone, Debug)]
pub(super) struct TaskDecision {
    pub(super) task: usize,
    pub(super) decision: Decision,
}

impl<S: WindowStore + ?Sized> SharedLog<S> {
    pub(super) fn handle(&self, task: usize) -> &Arc<S> {
        &self.handles[task % self.handles.len()]
    }

    pub(super) fn log(&self) -> LogKey<'_> {
        LogKey::new(Name::new("conformance"), &self.key)
    }

    pub(super) fn at(&self, tick: u64) -> Timestamp {
        Timestamp::from_micros_saturating(self.clock.fetch_add(tick, Ordering::Relaxed))
    }

    /// Returns an acquire of one unit.
    pub(super) fn op(&self) -> Op<'_> {
        let mut op = Op::acquire(&self.key, &self.policy).with_name(self.log().name);
        if let Some(tick) = self.tick {
            op = op.at(self.at(tick));
        }
        op
    }

    pub(super) async fn decide(&self, task: usize, turn: usize, op: Op<'_>) -> Result<TaskDecision, Error> {
        let (decision, _) = decided(self.handle(task), op, Route::in_turn(turn)).await?;
        Ok(TaskDecision { task, decision })
    }

    pub(super) async fn settle(&self, task: usize, receipt: Receipt, cost: u64) -> Result<SettlementFacts, Error> {
        let mut settlement = Settlement::new(self.log(), &self.policy, receipt, cost);
        if let Some(tick) = self.tick {
            settlement = settlement.at(self.at(tick));
        }
        let facts = self.handle(task).settle(settlement).await?;
        facts.verify(&settlement)?;
        Ok(facts)
    }

    pub(super) async fn reset(&self, task: usize) -> Result<bool, Error> {
        self.handle(task).reset(self.log()).await
    }
}

/// A description of what went wrong.
pub(super) type Problem = String;

impl<S: WindowStore + ?Sized> Contention<'_, S> {
    /// Returns a new log. The given time starts at [`START`] and advances by `tick` with each call.
    pub(super) fn shared(&mut self, policy: Policy, tick: Option<u64>) -> Arc<SharedLog<S>> {
        self.keys += 1;
        let key = format!("{}/{}", self.prefix, self.keys);
        Arc::new(SharedLog { handles: self.handles.to_vec(), policy, key, clock: AtomicU64::new(START), tick })
    }

    /// Runs `work(log, task, try)` in every task, `tries` times each.
    pub(super) async fn all<T, F>(
        &mut self,
        shared: &Arc<SharedLog<S>>,
        tries: usize,
        work: impl Fn(Arc<SharedLog<S>>, usize, usize) -> F + Clone + Send + Sync + 'static,
    ) -> Result<Vec<T>, Problem>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Error>> + Send,
    {
        let log = Arc::clone(shared);
        let results =
            self.spawner.run_all((self.tasks, tries), move |task, turn| work(Arc::clone(&log), task, turn)).await?;
        self.calls += (self.tasks * tries) as u64;
        results.into_iter().flatten().collect::<Result<_, _>>().map_err(failed)
    }

    /// Ends a scenario: removes the log and reports what went wrong.
    pub(super) async fn end(
        &mut self,
        shared: &SharedLog<S>,
        what: &str,
        result: Result<(), Problem>,
        findings: &mut Findings,
    ) {
        reset_all(&**shared.handle(0), &[shared.log()]).await;
        self.calls += 1;
        if let Err(text) = result {
            let title = format!("{} concurrent tasks: {what}", self.tasks);
            findings.push(Finding::new(title, &[L12.nth(2)], text));
        }
    }
}

#[allow(clippy::needless_pass_by_value, reason = "for map_err")]
pub(super) fn failed(error: Error) -> Problem {
    let why = match error.kind() {
        ErrorKind::Inconsistent => {
            "; two tasks overlapped: the log changed between the moment when the store took the verdict and the moment when it \
             described the log"
        }
        _ => "",
    };
    format!("a call returned the error {error:?}{why}")
}

/// Reports that two tasks saw what only one of them can have seen.
pub(super) fn overlap(one: &TaskDecision, other: &TaskDecision, what: &str) -> Problem {
    let see = |seen: &TaskDecision| {
        let (decision, entry) = (&seen.decision, seen.decision.receipt().map(|receipt| receipt.entry().as_u128()));
        format!(
            "  task {}: allowed {}, used {} of {}, at {}, entry {entry:x?}",
            seen.task,
            decision.allowed(),
            decision.used(),
            decision.limit(),
            decision.at().as_micros()
        )
    };
    format!("{what}\n{}\n{}\ntwo tasks overlapped: each read the log before the other wrote it", see(one), see(other))
}
