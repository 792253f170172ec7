//! Many tasks on one log at the same time. Some serial order of their calls must explain every result.

mod order;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use limiter_core::store::At;
use limiter_core::{SharedStore, Timestamp};

use super::caller::{Caller, Route, StoreKeys, salt};
use super::case::{Step, Verb};
use super::mismatch::{Mismatch, describe};
use super::model::{Call, LogId, Model};
use super::policies::START;
use super::script::{self, Clock, Script};
use super::sentence::Sentence::L12;
use super::session::Session;
use super::suite::run::Run;
use super::tasks::{self, sleep};
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
            let script = Arc::new(script);
            if let Err(text) = together(run, &script).await {
                // If one task also fails, tasks that overlap are not the reason.
                let case = script.case.repeated(script.alone);
                let alone = Session::new(run, &case, 0).replay(&case).await;
                run.fail(match alone {
                    Ok(_) => Mismatch::new(title, &[L12], text),
                    Err(mismatch) => mismatch.titled(format!("one task: {}", script.name)),
                });
            }
        }
        if !run.mismatches.is_empty() {
            return;
        }
    }
}

/// Makes the steps of a script in all tasks, in several turns with new keys.
async fn together(run: &mut Run<'_>, script: &Arc<Script>) -> Result<(), String> {
    let count = run.suite.sizes.tasks;
    let steps = script.alone..script.case.steps.len();
    let mut turns = Vec::new();
    for _ in 0..run.suite.sizes.tries.div_ceil(steps.len()) {
        let key = run.new_key();
        let own = count.min(OWN_KEYS) as u8;
        let store_keys = StoreKeys::new(0..=own, |k| format!("{key}/{k}").into_bytes());
        let mut turn = Turn {
            script: Arc::clone(script),
            model: Model::new(&script.case),
            caller: Caller::new(store_keys),
            alone: Vec::new(),
            clock: AtomicU64::new(START),
        };
        let mut caller = turn.caller.clone();
        let alone = turn.make(run.store(), &mut caller, 0, 0..script.alone);
        turn.alone = alone.await;
        turn.caller = caller;
        turns.push(turn);
    }
    let turns: Arc<[Turn]> = turns.into();
    let work = {
        let turns = Arc::clone(&turns);
        let handles = run.handles.clone();
        move |task: usize, turn: usize| {
            let turns = Arc::clone(&turns);
            let steps = steps.clone();
            let store = handles[task % handles.len()].clone();
            async move {
                let mut caller = turns[turn].caller.clone();
                turns[turn].make(&store, &mut caller, task, steps).await
            }
        }
    };
    let mut made = tasks::run_all((count, turns.len()), work).await?;
    for turn in turns.iter().rev() {
        let calls: Vec<Vec<Made>> = made.iter_mut().filter_map(Vec::pop).collect();
        let end = turn.end(run.store(), &calls).await;
        let count = calls.iter().map(Vec::len).sum::<usize>() + turn.alone.len() + end.len();
        run.count(count as u64);
        run.passed(count as u64);
        turn.explain(&calls, &end)?;
    }
    Ok(())
}

/// Logs that all tasks use at the same time, once.
struct Turn {
    script: Arc<Script>,
    model: Model,
    /// The calls that each task's calls continue.
    caller: Caller,
    /// The calls before the tasks start.
    alone: Vec<Made>,
    /// The time that the next call gives.
    clock: AtomicU64,
}

impl Turn {
    /// Makes some steps of a task. A settlement without a receipt is left out.
    async fn make(
        &self,
        store: &SharedStore,
        caller: &mut Caller,
        task: usize,
        steps: Range<usize>,
    ) -> Vec<Made> {
        let mut made = Vec::new();
        for number in steps {
            // Tasks differ in the costs to which they settle, and in all keys but the first.
            let mut step = self.script.case.steps[number];
            if let Some(place) = &mut step.on {
                place.key *= 1 + (task % OWN_KEYS) as u8;
            }
            let first = LogId { name: 0, key: 0 };
            let call = match step.verb {
                Verb::Settle(issuer) | Verb::Renew(issuer)
                    if !caller.receipts.contains_key(&issuer) =>
                {
                    continue;
                }
                Verb::Settle(_) | Verb::Renew(_) => {
                    step.cost += if step.cost == 0 { 0 } else { task as u64 };
                    Some(Call {
                        step: Step { on: None, ..step },
                        ..Call::new(step.verb, first, 0, At::StoreClock)
                    })
                }
                _ => self.model.call(step, At::StoreClock),
            };
            let Some(call) = call else { continue };
            let is_alone = number < self.script.alone;
            // Without pauses, the tasks keep in step, and some pairs of calls never overlap.
            let pause = salt() as u64 % 4_800;
            if !is_alone && pause < 300 {
                sleep(Duration::from_micros(pause)).await;
            }
            let of = (if is_alone { 0 } else { task }, number);
            made.push(self.call(store, caller, of, call).await);
        }
        made
    }

    async fn call(
        &self,
        store: &SharedStore,
        caller: &mut Caller,
        of: (usize, usize),
        mut call: Call,
    ) -> Made {
        let given = |micros| At::Given(Timestamp::from_micros_saturating(micros));
        call.at = match self.script.clock {
            Clock::Store => At::StoreClock,
            Clock::StandsStill => given(START),
            Clock::Ticks => given(self.clock.fetch_add(1, Ordering::Relaxed)),
        };
        let route = Route::in_turn(of.0 + of.1);
        let got = caller.call(store, &self.model, of.1, &call, route).await;
        Made {
            of,
            call: call.happened(got.clock().unwrap_or_default()),
            receipt: caller.receipts.get(&of.1).copied(),
            got,
        }
    }

    /// Looks at all entries of every log, and removes the logs.
    async fn end(&self, store: &SharedStore, calls: &[Vec<Made>]) -> Vec<Made> {
        let mut logs: Vec<LogId> = calls.iter().flatten().map(|made| made.call.log).collect();
        logs.sort_unstable();
        logs.dedup();
        let mut made = Vec::new();
        for log in logs {
            let peek = self.model.peek_all(log, At::StoreClock);
            for call in [peek, Call::reset(log, At::StoreClock)] {
                let of = (calls.len(), self.script.case.steps.len() + made.len());
                made.push(self.call(store, &mut self.caller.clone(), of, call).await);
            }
        }
        made
    }

    /// Finds an order of the calls, each task's in its own order, that explains every result.
    fn explain(&self, calls: &[Vec<Made>], end: &[Made]) -> Result<(), String> {
        let start = Order::new(&self.model);
        let Some(order) = self.alone.iter().try_fold(start, Order::then) else {
            let calls = self.describe(&self.alone);
            return Err(format!("before the tasks started:\n{calls}"));
        };
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
            let (call, at) = (
                describe(&self.model, &made.call),
                made.call.time.as_micros(),
            );
            format!("  {call}: {}, at {at}\n", made.got)
        };
        calls.iter().map(line).collect()
    }
}
