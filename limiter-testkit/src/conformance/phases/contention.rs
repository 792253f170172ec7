//! Many tasks on one key.

mod acquires;
mod mixed;
mod settlements;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use limiter_core::store::{LogKey, Op, Settlement, SettlementFacts};
use limiter_core::{Decision, Error, ErrorKind, Name, Policy, Receipt, Timestamp, WindowStore};

use crate::conformance::generate::strategy::START;
use crate::conformance::sentence::Sentence::L12;
use crate::conformance::sequence::put::{Way, decided};
use crate::conformance::suite::{Finding, Findings, Run, reset_all};
use crate::conformance::tasks::spawn::Spawner;

pub(crate) async fn run<S: WindowStore + ?Sized>(run: &mut Run<'_, S>, findings: &mut Findings) {
    let handles = run.handles()[..1].to_vec();
    for _ in 0..run.sizes().rounds {
        at_once(run, &handles, findings).await;
        if !findings.is_empty() {
            return;
        }
    }
}

/// Runs everything once, the tasks spread over the handles.
pub(crate) async fn at_once<S>(run: &mut Run<'_, S>, handles: &[Arc<S>], findings: &mut Findings)
where
    S: WindowStore + ?Sized,
{
    let (tasks, tries) = (run.sizes().tasks, run.sizes().tries);
    let mut contention =
        Contention { handles, spawner: run.spawner(), tasks, tries, prefix: run.new_key(), keys: 0, calls: 0 };
    acquires::run(&mut contention, findings).await;
    settlements::run(&mut contention, findings).await;
    mixed::run(&mut contention, findings).await;
    let calls = contention.calls;
    run.report.contended += calls;
    run.count(calls);
}

struct Contention<'a, S: ?Sized> {
    handles: &'a [Arc<S>],
    spawner: &'a Spawner,
    tasks: usize,
    tries: usize,
    prefix: String,
    keys: u64,
    calls: u64,
}

/// One log that all tasks use.
struct Shared<S: ?Sized> {
    handles: Vec<Arc<S>>,
    policy: Policy,
    key: String,
    clock: AtomicU64,
    /// How far the given time moves with each call, in microseconds. `None` for the store's clock.
    tick: Option<u64>,
}

/// What a task saw: its number and its decision.
#[derive(Clone, Debug)]
struct Seen {
    task: usize,
    decision: Decision,
}

impl<S: WindowStore + ?Sized> Shared<S> {
    fn handle(&self, task: usize) -> &Arc<S> {
        &self.handles[task % self.handles.len()]
    }

    fn log(&self) -> LogKey<'_> {
        LogKey::new(Name::new("conformance"), &self.key)
    }

    fn at(&self, tick: u64) -> Timestamp {
        Timestamp::from_micros_saturating(self.clock.fetch_add(tick, Ordering::Relaxed))
    }

    /// Returns an acquire of one unit.
    fn op(&self) -> Op<'_> {
        let mut op = Op::acquire(&self.key, &self.policy).with_name(self.log().name);
        if let Some(tick) = self.tick {
            op = op.at(self.at(tick));
        }
        op
    }

    async fn decide(&self, task: usize, turn: usize, op: Op<'_>) -> Result<Seen, Error> {
        let (decision, _) = decided(self.handle(task), op, Way::of_turn(turn)).await?;
        Ok(Seen { task, decision })
    }

    async fn settle(&self, task: usize, receipt: Receipt, cost: u64) -> Result<SettlementFacts, Error> {
        let mut settlement = Settlement::new(self.log(), &self.policy, receipt, cost);
        if let Some(tick) = self.tick {
            settlement = settlement.at(self.at(tick));
        }
        let facts = self.handle(task).settle(settlement).await?;
        facts.verify(&settlement)?;
        Ok(facts)
    }

    async fn reset(&self, task: usize) -> Result<bool, Error> {
        self.handle(task).reset(self.log()).await
    }
}

/// What went wrong.
type Wrong = String;

impl<S: WindowStore + ?Sized> Contention<'_, S> {
    /// Returns a new log. The given time starts now and moves by `tick` with each call.
    fn shared(&mut self, policy: Policy, tick: Option<u64>) -> Arc<Shared<S>> {
        self.keys += 1;
        let key = format!("{}/{}", self.prefix, self.keys);
        Arc::new(Shared { handles: self.handles.to_vec(), policy, key, clock: AtomicU64::new(START), tick })
    }

    /// Lets every task do `work(log, task, try)` as many times as there are tries.
    async fn all<T, F>(
        &mut self,
        shared: &Arc<Shared<S>>,
        tries: usize,
        work: impl Fn(Arc<Shared<S>>, usize, usize) -> F + Clone + Send + Sync + 'static,
    ) -> Result<Vec<T>, Wrong>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Error>> + Send,
    {
        let log = Arc::clone(shared);
        let results = self.spawner.run_all((self.tasks, tries), move |task, turn| work(Arc::clone(&log), task, turn)).await?;
        self.calls += (self.tasks * tries) as u64;
        results.into_iter().flatten().collect::<Result<_, _>>().map_err(failed)
    }

    /// Ends a scenario: removes the log, and says what went wrong.
    async fn end(&mut self, shared: &Shared<S>, what: &str, result: Result<(), Wrong>, findings: &mut Findings) {
        reset_all(&**shared.handle(0), &[shared.log()]).await;
        self.calls += 1;
        if let Err(text) = result {
            let title = format!("{} tasks at once: {what}", self.tasks);
            findings.push(Finding::new(title, &[L12.nth(2)], text));
        }
    }
}

fn failed(error: Error) -> Wrong {
    let why = match error.kind() {
        ErrorKind::Inconsistent => {
            "; two tasks overlapped: the log changed between the moment when the store took the verdict and the moment when it \
             described the log"
        }
        _ => "",
    };
    format!("a call returned the error {error:?}{why}")
}

/// Says that two tasks saw what only one can have seen.
fn overlap(one: &Seen, other: &Seen, what: &str) -> Wrong {
    let see = |seen: &Seen| {
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
    format!(
        "{what}\n{}\n{}\ntwo tasks overlapped: each took the log as it was before the other had changed it",
        see(one),
        see(other)
    )
}
