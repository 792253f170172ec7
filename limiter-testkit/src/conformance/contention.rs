//! Many tasks on one log at the same time. Some serial order of their calls must explain every result.

mod order;

use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::future::join;
use limiter_core::store::At;
use limiter_core::{SharedStore, Timestamp};

use super::call::{Call, LogId};
use super::caller::{Caller, Route, StoreKeys, salt};
use super::mismatch::{Mismatch, describe};
use super::model::Model;
use super::result::CallResult;
use super::session::{Session, TogetherOrNot};
use super::suite::run::Run;
use super::tasks::{self, sleep, within};
use crate::case::Verb;
use crate::policies::START;
use crate::poll_times::poll_times;
use crate::script::{Clock, Script};
use order::{Made, Order, Search};

/// How often the first of two tasks is polled before the second begins.
const MAX_POLLS: usize = 12;
/// How long the second may take before the first goes on: it may wait for the first.
const MAX_WAIT: Duration = Duration::from_millis(20);
/// The number of tasks with separate keys.
const OWN_KEYS: usize = 200;

/// Runs every script of a text in several rounds, with the tasks spread over the handles.
pub(crate) async fn run(run: &mut Run<'_>, text: &str) {
    for _ in 0..run.suite.sizes.rounds {
        for script in run.scripts(text) {
            let tasks = run.suite.sizes.tasks;
            let title = format!("{tasks} concurrent tasks: {}", script.name);
            let script = Arc::new(script);
            if let Err(text) = together(run, &script).await {
                // If one task also fails, tasks that overlap are not the reason.
                let case = script.case.repeated(script.alone);
                let alone = Session::new(run, &case, 0).replay(&case).await;
                run.fail(match alone {
                    Ok(_) => Mismatch::new(title, &script.citations[0], text),
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
    for polls in 1..=MAX_POLLS {
        if interleaved(run, script, polls).await? {
            break;
        }
    }
    let count = run.suite.sizes.tasks;
    let steps = script.alone..script.case.steps.len();
    let mut turns = Vec::new();
    for _ in 0..run.suite.sizes.tries.div_ceil(steps.len()) {
        turns.push(Turn::start(run, script, count).await);
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
                let turn = &turns[turn];
                turn.make(&store, &mut caller, task, steps, true).await
            }
        }
    };
    let mut made = tasks::run_all((count, turns.len()), work).await?;
    for turn in turns.iter().rev() {
        let calls: Vec<Vec<Made>> = made.iter_mut().filter_map(Vec::pop).collect();
        turn.check(run, &calls).await?;
    }
    Ok(())
}

/// Makes the steps of a script in two tasks. The first is polled this often, and goes on when the second has ended, or waits for the
/// first. Returns `true` if the first has ended before.
async fn interleaved(
    run: &mut Run<'_>,
    script: &Arc<Script>,
    polls: usize,
) -> Result<bool, String> {
    let turn = Turn::start(run, script, 2).await;
    let steps = || script.alone..script.case.steps.len();
    let mut callers = [turn.caller.clone(), turn.caller.clone()];
    let [first, second] = &mut callers;
    let handles = run.handles.clone();
    let store = |task: usize| &handles[task % handles.len()];
    let mut first = pin!(turn.make(store(0), first, 0, steps(), false));
    let mut second = pin!(turn.make(store(1), second, 1, steps(), false));
    let ended = poll_times(polls, first.as_mut()).await;
    let has_ended = ended.is_some();
    let second_ended = within(MAX_WAIT, second.as_mut()).await;
    let ended = match (ended, second_ended) {
        (Some(first), Some(second)) => [first, second],
        (Some(first), None) => [first, second.await],
        (None, Some(second)) => [first.await, second],
        (None, None) => join(first, second).await.into(),
    };
    turn.check(run, &ended).await?;
    Ok(has_ended)
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
    /// Makes the steps that are made alone.
    async fn start(run: &Run<'_>, script: &Arc<Script>, tasks: usize) -> Self {
        let key = run.new_key();
        let own = tasks.min(OWN_KEYS) as u8;
        let store_keys = StoreKeys::new(0..=own, |k| format!("{key}/{k}").into_bytes());
        let mut turn = Self {
            script: Arc::clone(script),
            model: Model::new(&script.case),
            caller: Caller::new(store_keys, salt()),
            alone: Vec::new(),
            clock: AtomicU64::new(START),
        };
        let mut caller = turn.caller.clone();
        let alone = turn.make(run.store(), &mut caller, 0, 0..script.alone, false);
        turn.alone = alone.await;
        if let (Some(damage), Some(log)) = (&run.suite.damage, turn.damaged()) {
            damage(caller.store_keys.log(&log)).await;
        }
        turn.caller = caller;
        turn
    }

    /// Looks for an order that explains the calls of all tasks.
    async fn check(&self, run: &mut Run<'_>, calls: &[Vec<Made>]) -> Result<(), String> {
        let end = self.end(run.store(), calls).await;
        let count = calls.iter().map(Vec::len).sum::<usize>() + self.alone.len() + end.len();
        run.count(count as u64);
        run.passed(count as u64);
        let mut together = TogetherOrNot::default();
        for made in self.alone.iter().chain(calls.iter().flatten()) {
            if made.calls.len() > 1 {
                let is_consistent = together.note(&made.calls, made.got.is_some());
                is_consistent.map_err(|text| {
                    format!("A1: {text}\n{}", self.describe(std::slice::from_ref(made)))
                })?;
            }
        }
        self.explain(calls, &end)
    }

    /// Makes some steps of a task. A settlement without a receipt is left out.
    async fn make(
        &self,
        store: &SharedStore,
        caller: &mut Caller,
        task: usize,
        steps: Range<usize>,
        pauses: bool,
    ) -> Vec<Made> {
        let mut made = Vec::new();
        let mut next = steps.start;
        while next < steps.end {
            let members = self.script.case.call_at(next);
            next = members.end;
            let calls =
                members.filter_map(|number| Some((number, self.step(caller, task, number)?)));
            let calls: Vec<(usize, Call)> = calls.collect();
            if calls.is_empty() {
                continue;
            }
            // Without pauses, the tasks keep in step, and some pairs of calls never overlap.
            let pause = salt() as u64 % 4_800;
            if pauses && pause < 300 {
                sleep(Duration::from_micros(pause)).await;
            }
            made.push(self.call(store, caller, task, calls).await);
        }
        made
    }

    /// Returns the call of a task's step.
    fn step(&self, caller: &Caller, task: usize, number: usize) -> Option<Call> {
        // Tasks differ in the costs to which they settle, and in all keys but the first.
        let mut step = self.script.case.steps[number];
        if let Some(place) = &mut step.on {
            place.key *= 1 + (task % OWN_KEYS) as u8;
        }
        let (Verb::Settle(issuer) | Verb::Renew(issuer)) = step.verb else {
            return self.model.call(step, At::StoreClock);
        };
        caller.receipts.get(&issuer)?;
        step.cost += if step.cost == 0 { 0 } else { task as u64 };
        step.on = None;
        let first = LogId { name: 0, key: 0 };
        Some(Call {
            step,
            ..Call::new(step.verb, first, 0, At::StoreClock)
        })
    }

    async fn call(
        &self,
        store: &SharedStore,
        caller: &mut Caller,
        task: usize,
        mut calls: Vec<(usize, Call)>,
    ) -> Made {
        let given = |micros| At::Given(Timestamp::from_micros_saturating(micros));
        let at = match self.script.clock {
            Clock::Store => At::StoreClock,
            Clock::StandsStill => given(START),
            Clock::Ticks => given(self.clock.fetch_add(1, Ordering::Relaxed)),
        };
        for (_, call) in &mut calls {
            call.at = at;
        }
        let route = Route::in_turn(task + calls[0].0);
        let policies = &self.model.policies;
        let got = caller.call(store, policies, &calls, route).await;
        let stated = got.iter().flatten().find_map(CallResult::clock);
        for (_, call) in &mut calls {
            *call = call.happened(stated.unwrap_or_default());
        }
        Made {
            task,
            receipts: caller.receipts.clone(),
            calls,
            got,
        }
    }

    /// Returns the log that becomes unreadable before the tasks start.
    fn damaged(&self) -> Option<LogId> {
        let step = self.script.case.steps[self.script.damaged?];
        Some(self.model.call(step, At::StoreClock)?.log)
    }

    /// Looks at all entries of every log, and removes the logs.
    async fn end(&self, store: &SharedStore, calls: &[Vec<Made>]) -> Vec<Made> {
        let made = calls.iter().flatten().flat_map(|made| &made.calls);
        let mut logs: Vec<LogId> = made.map(|(_, call)| call.log).collect();
        logs.sort_unstable();
        logs.dedup();
        let task = calls.len();
        let mut made = Vec::new();
        for log in logs {
            let peek = self.model.peek_all(log, At::StoreClock);
            for call in [peek, Call::reset(log, At::StoreClock)] {
                let step = self.script.case.steps.len() + made.len();
                let calls = vec![(step, call)];
                let caller = &mut self.caller.clone();
                made.push(self.call(store, caller, task, calls).await);
            }
        }
        made
    }

    /// Finds an order of the calls, each task's in its own order, that explains every result.
    fn explain(&self, calls: &[Vec<Made>], end: &[Made]) -> Result<(), String> {
        let start = Order::new(&self.model);
        let Some(mut order) = self.alone.iter().try_fold(start, Order::then) else {
            let calls = self.describe(&self.alone);
            return Err(format!("before the tasks started:\n{calls}"));
        };
        order.model.damaged = self.damaged();
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

    fn describe(&self, made: &[Made]) -> String {
        let mut text = String::new();
        for made in made {
            for (i, (_, call)) in made.calls.iter().enumerate() {
                let at = call.time.as_micros();
                let got = made
                    .got
                    .as_ref()
                    .map_or(&CallResult::NotTogether, |got| &got[i]);
                text += &format!("  {}: {got}, at {at}\n", describe(&self.model, call));
            }
        }
        text
    }
}
