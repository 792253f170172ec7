//! Calls on a store, whose results are compared with the reference store's.
//!
//! Calls may be at the store's own clock, and their futures may be dropped. The store's results state when each call happened. The
//! reference store is called at the same times, so every field of every result is compared, even if calls are slow. A separate
//! check decides whether those times are right.

pub(super) mod clock;
mod history;
pub(super) mod run_script;

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use limiter_core::store::{At, LogKey, Mode};
use limiter_core::{BoxFuture, Name, SharedStore, Timestamp, WindowStore};

use super::script::Script;
use super::sentence::Sentence;
use super::sequence::call_result::CallResult;
use super::sequence::caller::{Caller, Route, StoreKeys};
use super::sequence::case::{Case, Operation};
use super::sequence::mismatch::Mismatch;
use super::sequence::planner::Planner;
use super::sequence::{Call, Plan, transcript};
use super::sleep::{DropAfter, sleep_on};
use super::suite::run::{Run, reset_all};
use clock::{ClockCheck, Moment};
use history::History;

/// A function that makes the store sweep.
pub(crate) type Sweep = Arc<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>;

/// Calls a store, and compares its results with the reference store's at the times that the store stated.
pub(crate) struct Session {
    /// Handles of one store, used in turn.
    pub(crate) handles: Vec<SharedStore>,
    /// Which handle and which route come next.
    turn: usize,
    /// The route of all calls. `None` takes the routes in turn.
    pub(crate) route: Option<Route>,
    /// Makes the store sweep before each call.
    pub(crate) sweep: Option<Sweep>,
    /// Whether it looks at all entries after every step.
    pub(crate) peeks: bool,
    history: History,
    caller: Caller,
    clock: ClockCheck,
    /// The time of the first call.
    first: Option<Timestamp>,
}

impl Session {
    /// Returns a session with the policies and limiters of `case`.
    pub(crate) fn on(handles: Vec<SharedStore>, store_keys: StoreKeys, case: &Case) -> Self {
        Self {
            handles,
            turn: 0,
            route: None,
            sweep: None,
            peeks: false,
            history: History::new(Planner::new(case)),
            caller: Caller::new(store_keys),
            clock: ClockCheck::new(None, false),
            first: None,
        }
    }

    /// Returns a session on the store under test, on unused keys.
    pub(crate) fn new(run: &Run<'_>, case: &Case, turn: usize) -> Self {
        let key = run.new_key();
        let store_keys = StoreKeys::new(case.keys(), |k| format!("{key}/{k}").into_bytes());
        let clock = ClockCheck::new(run.suite.tolerance, run.store().clock().is_some());
        Self {
            turn,
            clock,
            ..Self::on(run.handles.clone(), store_keys, case)
        }
    }

    /// Changes the names, and the first key.
    pub(crate) fn name(&mut self, names: [Name; 2], first: Option<Vec<u8>>) {
        self.caller.store_keys.change(names.to_vec(), first);
    }

    fn planner(&self) -> &Planner {
        &self.history.planner
    }

    pub(crate) fn plan(&self) -> &Plan {
        &self.planner().plan
    }

    /// Returns the number of calls made.
    pub(crate) fn calls(&self) -> u64 {
        self.plan().calls.len() as u64
    }

    fn handle(&self) -> &SharedStore {
        &self.handles[self.turn % self.handles.len()]
    }

    pub(crate) async fn sleep(&mut self, duration: Duration) -> Result<(), Mismatch> {
        // A mock clock rounds anything finer down.
        let duration = Duration::from_micros(duration.as_micros() as u64);
        let slept = sleep_on(self.handle(), duration).await;
        self.clock.slept(duration);
        slept.map_err(|text| self.wrong(&[], text))
    }

    /// Returns a mismatch at the last call.
    pub(crate) fn wrong(&self, citations: &[Sentence], text: impl Into<String>) -> Mismatch {
        let call = self.plan().calls.len().saturating_sub(1);
        let step = self.plan().calls.last().map_or(0, |planned| planned.step);
        let transcript = format!("{}{}", transcript::of_calls(self.plan()), text.into());
        Mismatch {
            call,
            step,
            ..Mismatch::new("", citations, transcript)
        }
    }

    /// Makes all steps of a case at its times, then peeks at each log with every policy and at all entries, and resets it. Returns
    /// the number of calls.
    pub(crate) async fn replay(&mut self, case: &Case) -> Result<u64, Mismatch> {
        let times = case.times();
        let mut result = self
            .steps(case, 0..times.len(), 0, |step, _| At::Given(times[step]))
            .await;
        if result.is_ok() {
            result = self
                .finish(At::Given(times.last().copied().unwrap_or_default()))
                .await;
        }
        if result.is_err() {
            self.end().await;
        }
        result.map(|()| self.calls())
    }

    /// Makes some steps of a script, with sleeps of `sleeps` microseconds per unit of time.
    pub(crate) async fn script(
        &mut self,
        script: &Script,
        range: Range<usize>,
        sleeps: u64,
    ) -> Result<(), Mismatch> {
        self.steps(&script.case, range, sleeps, |step, first| {
            script.when(step, first)
        })
        .await
    }

    /// Makes some steps of a case, each at the time `when(step, first)`; `first` is the time of the first call.
    async fn steps(
        &mut self,
        case: &Case,
        range: Range<usize>,
        sleeps: u64,
        when: impl Fn(usize, Option<Timestamp>) -> At,
    ) -> Result<(), Mismatch> {
        let (start, mut elapsed) = (Instant::now(), Duration::ZERO);
        for number in range {
            let step = case.steps[number];
            let after = Duration::from_micros(u64::try_from(step.after).unwrap_or(0) * sleeps);
            if !after.is_zero() {
                // Calls take time, so wait only for the rest.
                let late = start.elapsed().saturating_sub(elapsed);
                self.sleep(after.saturating_sub(late)).await?;
            }
            elapsed += after;
            // There is no call, for example, without a receipt.
            let Some(call) = self.planner().call(step.operation, Timestamp::EPOCH) else {
                continue;
            };
            let when = when(number, self.first);
            self.call(number, call, when).await?;
            if self.peeks
                && !matches!(
                    step.operation,
                    Operation::Run {
                        mode: Mode::Peek,
                        ..
                    }
                )
            {
                self.peek_all(number, when).await?;
            }
        }
        Ok(())
    }

    /// Peeks at each log with every policy and at all entries, and resets it.
    pub(crate) async fn finish(&mut self, when: At) -> Result<(), Mismatch> {
        let last = self.plan().calls.last().map_or(0, |planned| planned.step);
        for log in self.planner().logs.clone() {
            for policy in 0..self.plan().policies.len() {
                self.call(last, Call::peek(log, policy, Timestamp::EPOCH), when)
                    .await?;
            }
            self.call(last, Call::reset(log, Timestamp::EPOCH), when)
                .await?;
        }
        Ok(())
    }

    /// Makes a step's call and drops its future. Returns `true` if it had already finished.
    pub(crate) async fn dropped_step(
        &mut self,
        step: usize,
        operation: Operation,
        when: At,
        after: DropAfter,
    ) -> Result<bool, Mismatch> {
        let Some(call) = self.planner().call(operation, Timestamp::EPOCH) else {
            return Ok(true);
        };
        let (store, before) = (self.handle().clone(), Moment::now());
        let plan = &self.history.planner.plan;
        let future = self
            .caller
            .call(&store, plan, step, &call, when, Route::Facts);
        if let Some(got) = after.poll(future).await {
            return self
                .answered(step, (call, when), (before, got))
                .map(|()| true);
        }
        let call = Call {
            at: given(when).unwrap_or(before.system),
            on_clock: when == At::StoreClock,
            ..call
        };
        self.history.drop_call(step, call, when);
        Ok(false)
    }

    /// Peeks at all entries of every log.
    pub(crate) async fn peek_all(&mut self, step: usize, when: At) -> Result<(), Mismatch> {
        for log in self.planner().logs.clone() {
            self.call(step, self.planner().peek_all(log, Timestamp::EPOCH), when)
                .await?;
        }
        Ok(())
    }

    async fn call(&mut self, step: usize, call: Call, when: At) -> Result<(), Mismatch> {
        if let Some(sweep) = &self.sweep {
            sweep().await;
        }
        let (store, before) = (self.handle().clone(), Moment::now());
        let plan = &self.history.planner.plan;
        let route = self.route.unwrap_or(Route::in_turn(self.turn));
        let got = self
            .caller
            .call(&store, plan, step, &call, when, route)
            .await;
        self.answered(step, (call, when), (before, got))
    }

    /// Compares a call's result, and its time.
    fn answered(
        &mut self,
        step: usize,
        (call, when): (Call, At),
        (before, got): (Moment, CallResult),
    ) -> Result<(), Mismatch> {
        let (after, newest, stated) = (Moment::now(), self.planner().newest(call.log), got.clock());
        self.turn += 1;
        self.first = self.first.or(stated);
        let time = given(when).or(stated).unwrap_or(before.system);
        if self.plan().calls.is_empty() {
            self.history.planner.plan.start = time;
        }
        let call = Call {
            at: time,
            on_clock: when == At::StoreClock,
            ..call
        };
        self.compare(step, (call, when), &got)?;
        if let (At::StoreClock, Some(stated)) = (when, stated) {
            self.clock
                .check(stated, newest, (before, after))
                .map_err(|(citations, text)| self.wrong(&citations, text))?;
        }
        Ok(())
    }

    /// Compares a result with the expected one. The store may have forgotten the log, and a dropped call may have taken effect.
    fn compare(
        &mut self,
        step: usize,
        (call, when): (Call, At),
        got: &CallResult,
    ) -> Result<(), Mismatch> {
        let (log, receipts) = (call.log, &self.caller.receipts);
        let before = self.history.clone();
        let agree = |history: &mut History| history.compare(step, (call, when), receipts, got);
        let Err(mut mismatch) = agree(&mut self.history) else {
            return Ok(());
        };
        // If the result states no time, the session cannot know whether the store had forgotten the log.
        let now = if got.clock().is_some() {
            call.at
        } else {
            Moment::now().system
        };
        let forgotten = |history: &History| {
            let may_forget = history.may_forget(log, now);
            history.forgotten(log).filter(|_| may_forget)
        };
        let changed = before.with_dropped_call(got.newest());
        let both = changed.as_ref().and_then(forgotten);
        let others = [changed, forgotten(&before), both];
        for mut other in others.into_iter().flatten() {
            if agree(&mut other).is_ok() {
                self.history = other;
                return Ok(());
            }
        }
        if before
            .forgotten(log)
            .is_some_and(|mut forgotten| agree(&mut forgotten).is_ok())
        {
            mismatch.citations = vec![before.keeps(log)];
            mismatch.transcript += "\nthe store has forgotten the log too early";
        }
        Err(mismatch)
    }

    /// Resets the logs.
    pub(crate) async fn end(&self) {
        let logs: Vec<LogKey<'_>> = self
            .planner()
            .logs
            .iter()
            .map(|log| self.caller.store_keys.log(*log))
            .collect();
        reset_all(self.handle(), &logs).await;
    }
}

/// Returns the time that the caller gives.
fn given(at: At) -> Option<Timestamp> {
    if let At::Given(at) = at {
        Some(at)
    } else {
        None
    }
}

/// Makes the calls of `case` on `store` one after another and compares every field of every result with the reference store's. Then
/// peeks at each log with every policy, and resets it. The case's key `k` becomes `keys(k)`, which must be unused with every name.
///
/// Stores choose different entry ids. Receipts therefore compare equal if both or neither exist, their times and
/// windows agree, and they name the entry of the same call.
///
/// # Errors
/// Returns the first [`Mismatch`].
pub async fn replay<S>(
    store: &Arc<S>,
    case: &Case,
    keys: impl Fn(u8) -> Vec<u8>,
) -> Result<(), Mismatch>
where
    S: WindowStore + ?Sized,
{
    let handle: SharedStore = Arc::new(Arc::clone(store));
    Session::on(vec![handle], StoreKeys::new(case.keys(), keys), case)
        .replay(case)
        .await
        .map(drop)
}

/// Returns the calls that a case makes, with their expected results.
#[cfg(test)]
pub(crate) fn planned(case: &Case) -> Plan {
    let store: SharedStore = Arc::new(crate::ReferenceStore::new());
    let mut session = Session::on(
        vec![store],
        StoreKeys::new(case.keys(), |key| vec![key]),
        case,
    );
    futures::executor::block_on(session.replay(case)).unwrap();
    session.plan().clone()
}
