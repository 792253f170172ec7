//! Many tasks on one log at the same time. Some serial order of their calls must explain every result.

mod order;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use limiter_core::store::At;
use limiter_core::{SharedStore, Timestamp};

use super::script::{self, Clock, Script};
use super::sentence::Sentence::L12;
use super::sequence::caller::salt;
use super::sequence::caller::{Caller, Route, StoreKeys};
use super::sequence::case::Operation;
use super::sequence::mismatch::Mismatch;
use super::sequence::planner::Planner;
use super::sequence::{Call, Log};
use super::sleep::sleep;
use super::strategy::START;
use super::suite::run::Run;
use order::{Made, Order, Search};

/// The number of tasks with separate keys.
const OWN_KEYS: usize = 200;

/// Runs every script in several rounds, with the tasks spread over the handles.
pub(crate) async fn run(run: &mut Run<'_>) {
    for _ in 0..run.suite.sizes.rounds {
        for script in run.scripts(script::TOGETHER) {
            let title = format!(
                "{} concurrent tasks: {}",
                run.suite.sizes.tasks, script.name
            );
            if let Err(text) = together(run, &Arc::new(script)).await {
                run.fail(Mismatch::new(title, &[L12], text));
            }
        }
        if !run.mismatches.is_empty() {
            return;
        }
    }
}

/// Makes the steps of a script in all tasks, in several turns with new keys.
async fn together(run: &mut Run<'_>, script: &Arc<Script>) -> Result<(), String> {
    let (tasks, steps) = (run.suite.sizes.tasks, script.alone..script.case.steps.len());
    let mut turns = Vec::new();
    for _ in 0..run.suite.sizes.tries.div_ceil(steps.len()) {
        let mut turn = Turn::new(script, &run.new_key(), tasks);
        let mut caller = turn.caller.clone();
        turn.alone = turn
            .make(run.store(), &mut caller, 0, 0..script.alone)
            .await;
        turn.caller = caller;
        turns.push(turn);
    }
    let turns: Arc<[Turn]> = turns.into();
    let work = {
        let (turns, handles) = (Arc::clone(&turns), run.handles.clone());
        move |task: usize, turn: usize| {
            let (turns, store, steps) = (
                Arc::clone(&turns),
                handles[task % handles.len()].clone(),
                steps.clone(),
            );
            async move {
                turns[turn]
                    .make(&store, &mut turns[turn].caller.clone(), task, steps)
                    .await
            }
        }
    };
    let mut made = run
        .suite
        .spawner
        .run_all((tasks, turns.len()), work)
        .await?;
    for turn in turns.iter().rev() {
        let calls: Vec<Vec<Made>> = made.iter_mut().filter_map(Vec::pop).collect();
        let end = turn.end(run.store(), &calls).await;
        let count =
            (calls.iter().map(Vec::len).sum::<usize>() + turn.alone.len() + end.len()) as u64;
        run.count(count);
        run.passed(count);
        turn.explain(&calls, &end)?;
    }
    Ok(())
}

/// Logs that all tasks use at the same time, once.
struct Turn {
    script: Arc<Script>,
    planner: Planner,
    /// The call that each task's first call continues.
    caller: Caller,
    /// The calls before the tasks start.
    alone: Vec<Made>,
    /// The time that the next call gives.
    clock: AtomicU64,
}

impl Turn {
    fn new(script: &Arc<Script>, key: &str, tasks: usize) -> Self {
        let store_keys = StoreKeys::new(0..=tasks.min(OWN_KEYS) as u8, |k| {
            format!("{key}/{k}").into_bytes()
        });
        let (planner, caller) = (Planner::new(&script.case), Caller::new(store_keys));
        let clock = AtomicU64::new(START);
        Self {
            script: Arc::clone(script),
            planner,
            caller,
            alone: Vec::new(),
            clock,
        }
    }

    /// Makes some steps of a task. A settlement without a receipt is left out.
    async fn make(
        &self,
        store: &SharedStore,
        caller: &mut Caller,
        task: usize,
        steps: Range<usize>,
    ) -> Vec<Made> {
        let mut made = Vec::new();
        for step in steps {
            // Tasks differ in the costs to which they settle, and in all keys but the first.
            let call = match self.script.case.steps[step].operation {
                Operation::Settle { step: issuer, .. }
                    if !caller.receipts.contains_key(&issuer) =>
                {
                    continue;
                }
                Operation::Settle { step, cost, .. } => {
                    let cost = if cost == 0 { 0 } else { cost + task as u64 };
                    let operation = Operation::Settle {
                        step,
                        on: None,
                        cost,
                        policy: 0,
                    };
                    Call {
                        operation,
                        ..Call::reset(Log { name: 0, key: 0 }, Timestamp::EPOCH)
                    }
                }
                mut operation => {
                    if let Operation::Run { on, .. } = &mut operation {
                        on.key *= 1 + (task % OWN_KEYS) as u8;
                    }
                    let Some(call) = self.planner.call(operation, Timestamp::EPOCH) else {
                        continue;
                    };
                    call
                }
            };
            let owner = if step < self.script.alone { 0 } else { task };
            // Without pauses, the tasks keep in step, and some pairs of calls never overlap.
            let pause = salt() as u64 % 4_800;
            if step >= self.script.alone && pause < 300 {
                sleep(Duration::from_micros(pause)).await;
            }
            made.push(self.call(store, caller, (owner, step), call).await);
        }
        made
    }

    async fn call(
        &self,
        store: &SharedStore,
        caller: &mut Caller,
        of: (usize, usize),
        call: Call,
    ) -> Made {
        let at = match self.script.clock {
            Clock::Store => At::StoreClock,
            Clock::StandsStill => At::Given(Timestamp::from_micros_saturating(START)),
            Clock::Ticks => At::Given(Timestamp::from_micros_saturating(
                self.clock.fetch_add(1, Ordering::Relaxed),
            )),
        };
        let got = caller
            .call(
                store,
                &self.planner.plan,
                of.1,
                &call,
                at,
                Route::in_turn(of.0 + of.1),
            )
            .await;
        let time = match at {
            At::Given(given) => given,
            At::StoreClock => got.clock().unwrap_or_default(),
        };
        Made {
            of,
            call: Call {
                at: time,
                on_clock: at == At::StoreClock,
                ..call
            },
            receipt: caller.receipts.get(&of.1).copied(),
            got,
        }
    }

    /// Looks at all entries of every log, and removes the logs.
    async fn end(&self, store: &SharedStore, calls: &[Vec<Made>]) -> Vec<Made> {
        let mut logs: Vec<Log> = calls.iter().flatten().map(|made| made.call.log).collect();
        logs.sort_unstable();
        logs.dedup();
        let mut made = Vec::new();
        for log in logs {
            for call in [
                self.planner.peek_all(log, Timestamp::EPOCH),
                Call::reset(log, Timestamp::EPOCH),
            ] {
                let of = (calls.len(), self.script.case.steps.len() + made.len());
                made.push(self.call(store, &mut self.caller.clone(), of, call).await);
            }
        }
        made
    }

    /// Finds an order of the calls, each task's in its own order, that explains every result.
    fn explain(&self, calls: &[Vec<Made>], end: &[Made]) -> Result<(), String> {
        let order = self
            .alone
            .iter()
            .try_fold(Order::new(&self.planner), Order::then);
        let order = order
            .ok_or_else(|| format!("before the tasks started:\n{}", self.describe(&self.alone)))?;
        let tasks: Vec<&[Made]> = calls.iter().map(Vec::as_slice).collect();
        if Search::default().explains(&order, &tasks, end) {
            return Ok(());
        }
        let mut text =
            "no serial order of these calls explains the results: two tasks overlapped\n"
                .to_owned();
        for (task, calls) in tasks.iter().enumerate() {
            text += &format!("task {task}:\n{}", self.describe(calls));
        }
        Err(text + "afterwards:\n" + &self.describe(end))
    }

    fn describe(&self, calls: &[Made]) -> String {
        let line = |made: &Made| {
            let call = self.planner.plan.describe(&made.call);
            let at = made
                .got
                .clock()
                .map_or_else(String::new, |at| format!(", at {}", at.as_micros()));
            format!("  {call}: {}{at}\n", made.got)
        };
        calls.iter().map(line).collect()
    }
}
