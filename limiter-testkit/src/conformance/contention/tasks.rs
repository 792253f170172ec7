//! Concurrent tasks on one log.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use limiter_core::store::{LogKey, Mode, Op, Settlement, SettlementFacts};
use limiter_core::{
    Decision, EntryId, Error, ErrorKind, MAX_COST, Name, Policy, Receipt, SharedStore, Timestamp, WindowStore as _,
};

use crate::conformance::generated::strategy::{START, limit};
use crate::conformance::sentence::Sentence::L12;
use crate::conformance::sequence::caller::{Route, decided};
use crate::conformance::spawn::Spawner;
use crate::conformance::suite::failure::{Finding, Findings};
use crate::conformance::suite::run::reset_all;

/// The state of the scenarios: the store, and the numbers of tasks and calls.
pub(super) struct Contention<'a> {
    pub(super) handles: &'a [SharedStore],
    pub(super) spawner: &'a Spawner,
    pub(super) tasks: usize,
    pub(super) tries: usize,
    pub(super) prefix: String,
    pub(super) keys: u64,
    pub(super) calls: u64,
    pub(super) findings: &'a mut Findings,
}

/// A log that all tasks use.
pub(super) struct SharedLog {
    handles: Vec<SharedStore>,
    policy: Policy,
    pub(super) key: String,
    clock: AtomicU64,
    /// How far the given time advances with each call, in microseconds. `None` uses the store's clock.
    tick: Option<u64>,
}

/// A task's number and the decision that it received.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) task: usize,
    pub(super) decision: Decision,
}

impl Seen {
    pub(super) fn used(&self) -> u64 {
        self.decision.used()
    }

    pub(super) fn entry(&self) -> Option<EntryId> {
        self.decision.receipt().map(|receipt| receipt.entry())
    }
}

impl SharedLog {
    fn handle(&self, task: usize) -> &SharedStore {
        &self.handles[task % self.handles.len()]
    }

    fn at(&self, tick: u64) -> Timestamp {
        Timestamp::from_micros_saturating(self.clock.fetch_add(tick, Ordering::Relaxed))
    }

    /// Returns an acquire of one unit.
    pub(super) fn op(&self) -> Op<'_> {
        let op = Op::acquire(&self.key, &self.policy).with_name(Name::new("conformance"));
        match self.tick {
            Some(tick) => op.at(self.at(tick)),
            None => op,
        }
    }

    pub(super) fn with_mode(&self, mode: Mode) -> Op<'_> {
        let mut op = self.op();
        op.mode = mode;
        op
    }

    pub(super) async fn decide(&self, task: usize, turn: usize, op: Op<'_>) -> Result<Seen, Error> {
        let (decision, _) = decided(self.handle(task), op, Route::in_turn(turn)).await?;
        Ok(Seen { task, decision })
    }

    /// Appends an entry of this cost and returns its receipt.
    pub(super) async fn receipt(&self, task: usize, turn: usize, cost: u64) -> Result<Receipt, Error> {
        let seen = self.decide(task, turn, self.op().with_cost(cost).with_kept()).await?;
        let none = || Error::new(ErrorKind::Inconsistent, "an admitted acquire returned no receipt");
        seen.decision.receipt().ok_or_else(none)
    }

    pub(super) async fn settle(&self, task: usize, receipt: Receipt, cost: u64) -> Result<SettlementFacts, Error> {
        let mut settlement = Settlement::new(self.op().log, &self.policy, receipt, cost);
        if let Some(tick) = self.tick {
            settlement = settlement.at(self.at(tick));
        }
        let facts = self.handle(task).settle(settlement).await?;
        facts.verify(&settlement)?;
        Ok(facts)
    }

    pub(super) async fn used(&self) -> Result<u64, Problem> {
        Ok(self.decide(0, 1, self.with_mode(Mode::Peek)).await.map_err(failed)?.used())
    }

    pub(super) async fn reset(&self, task: usize, key: LogKey<'_>) -> Result<bool, Error> {
        self.handle(task).reset(key).await
    }
}

/// Returns a limit that nothing exceeds.
pub(super) fn meter(window: u64) -> Policy {
    Policy::from(limit(MAX_COST, window))
}

/// A description of what went wrong.
pub(super) type Problem = String;

impl Contention<'_> {
    /// Returns a new log under a policy. The given time starts at [`START`] and advances by `tick` with each call.
    pub(super) fn shared(&mut self, policy: Policy, tick: Option<u64>) -> Arc<SharedLog> {
        self.keys += 1;
        let key = format!("{}/{}", self.prefix, self.keys);
        let handles = self.handles.to_vec();
        Arc::new(SharedLog { handles, policy, key, clock: AtomicU64::new(START), tick })
    }

    /// Runs `work(log, task, try)` in every task, `tries` times each. `in_step` makes all tasks start each try at the same
    /// time.
    pub(super) async fn all<T, F>(
        &mut self,
        shared: &Arc<SharedLog>,
        (tries, in_step): (usize, bool),
        work: impl Fn(Arc<SharedLog>, usize, usize) -> F + Clone + Send + Sync + 'static,
    ) -> Result<Vec<T>, Problem>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Error>> + Send,
    {
        let log = Arc::clone(shared);
        let work = move |task, turn| work(Arc::clone(&log), task, turn);
        let results = self.spawner.run_all((self.tasks, tries), in_step, work).await?;
        self.calls += (self.tasks * tries) as u64;
        results.into_iter().flatten().collect::<Result<_, _>>().map_err(failed)
    }

    /// Ends a scenario: removes the log and reports what went wrong.
    pub(super) async fn end(&mut self, shared: &SharedLog, what: &str, result: Result<(), Problem>) {
        reset_all(shared.handle(0), &[shared.op().log]).await;
        self.calls += 1;
        if let Err(text) = result {
            let title = format!("{} concurrent tasks: {what}", self.tasks);
            self.findings.push(Finding::new(title, &[L12.nth(2)], text));
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

/// Returns an error unless `holds`.
pub(super) fn ensure(holds: bool, problem: impl FnOnce() -> Problem) -> Result<(), Problem> {
    if holds { Ok(()) } else { Err(problem()) }
}

/// Reports two tasks that saw the same usage after appending an entry.
pub(super) fn distinct_usage<'a>(seen: impl IntoIterator<Item = &'a Seen>) -> Result<(), Problem> {
    let mut sorted: Vec<&Seen> = seen.into_iter().collect();
    sorted.sort_by_key(|seen| seen.used());
    match sorted.windows(2).find(|pair| pair[0].used() == pair[1].used()) {
        Some(pair) => Err(overlap(pair[0], pair[1], "two tasks saw the same usage after appending")),
        None => Ok(()),
    }
}

/// Reports that two tasks saw what only one of them can have seen.
pub(super) fn overlap(one: &Seen, other: &Seen, what: &str) -> Problem {
    let see = |seen: &Seen| {
        let decision = &seen.decision;
        format!(
            "  task {}: allowed {}, used {} of {}, at {}, entry {:x?}",
            seen.task,
            decision.allowed(),
            decision.used(),
            decision.limit(),
            decision.at().as_micros(),
            seen.entry().map(EntryId::as_u128)
        )
    };
    format!("{what}\n{}\n{}\ntwo tasks overlapped: each read the log before the other wrote it", see(one), see(other))
}
