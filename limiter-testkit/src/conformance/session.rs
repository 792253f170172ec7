//! Calls on a store, whose results are compared with the reference store's.
//!
//! Calls may be at the store's own clock, and their futures may be dropped. The store's results state when each call happened. The
//! reference store is called at the same times, so every field of every result is compared, even if calls are slow. A separate
//! check decides whether those times are right.

pub(super) mod clock;
pub(super) mod run_script;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use limiter_core::store::{At, LogKey, Mode};
use limiter_core::{BoxFuture, SharedStore, Timestamp, WindowStore};

use super::call::{Call, LogId};
use super::caller::{Caller, Route, StoreKeys, salt};
use super::mismatch::Mismatch;
use super::model::Model;
use super::result::CallResult;
use super::suite::Sweep;
use super::suite::run::{Run, reset_all};
use super::tasks::{DropAfter, sleep_on};
use crate::case::{Case, Step, Verb};
use crate::script::Script;
use crate::sentence::Sentence::{A1, T4};
use clock::{ClockCheck, Moment};

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
    pub(crate) model: Model,
    pub(crate) caller: Caller,
    clock: ClockCheck,
    /// The time of the first call.
    first: Option<Timestamp>,
    /// Whether the store made calls of several operations as one.
    pub(crate) together: TogetherOrNot,
}

/// Whether the store made some calls as one, by what that may depend on: everything except the time and what the logs hold.
#[derive(Clone, Debug, Default)]
pub(crate) struct TogetherOrNot(HashMap<Vec<(LogId, String)>, bool>);

impl TogetherOrNot {
    /// Notes whether the store made these calls as one.
    ///
    /// # Errors
    /// Returns a description if it did the opposite before.
    pub(crate) fn note(&mut self, calls: &[(usize, Call)], was: bool) -> Result<(), &'static str> {
        let about = |(_, call): &(usize, Call)| {
            let after = 0;
            let timeless = Step { after, ..call.step };
            let of = (timeless, call.policy, call.limiter_policy);
            (call.log, format!("{of:?}"))
        };
        let before = self.0.entry(calls.iter().map(about).collect());
        match (*before.or_insert(was), was) {
            (true, false) => {
                Err("the store returned `None` for operations that it applied as one before")
            }
            (false, true) => {
                Err("the store applied operations as one for which it returned `None` before")
            }
            _ => Ok(()),
        }
    }

    /// Returns `true` if the store made some calls as one.
    pub(crate) fn is_ever(&self) -> bool {
        self.0.values().any(|was| *was)
    }
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
            model: Model::new(case),
            caller: Caller::new(store_keys, salt()),
            clock: ClockCheck::new(None),
            first: None,
            together: TogetherOrNot::default(),
        }
    }

    /// Returns a session on the store under test, on unused keys.
    pub(crate) fn new(run: &Run<'_>, case: &Case, turn: usize) -> Self {
        let key = run.new_key();
        let store_keys = StoreKeys::of(case, |k| format!("{key}/{k}").into_bytes());
        let clock = ClockCheck::new(run.suite.tolerance);
        Self {
            turn,
            clock,
            ..Self::on(run.handles.clone(), store_keys, case)
        }
    }

    /// Returns the number of calls made.
    pub(crate) fn calls(&self) -> u64 {
        self.model.calls.len() as u64
    }

    fn handle(&self) -> &SharedStore {
        &self.handles[self.turn % self.handles.len()]
    }

    async fn sleep(&self, duration: Duration) -> Result<(), Mismatch> {
        // A mock clock rounds anything finer down.
        let duration = Duration::from_micros(duration.as_micros() as u64);
        let slept = sleep_on(self.handle(), duration).await;
        slept.map_err(|text| Mismatch::at_last(&self.model, &[T4], &text))
    }

    /// Makes all steps of a case at its times, then peeks at each log with every policy and at all entries, and resets it. Returns
    /// the number of calls.
    pub(crate) async fn replay(&mut self, case: &Case) -> Result<u64, Mismatch> {
        if let Some(step) = case.wrong_renewal() {
            let text = format!("step {step} renews with an id that is not its entry's");
            return Err(Mismatch::new(
                "a case that the contract leaves open",
                &[],
                text,
            ));
        }
        let times = case.times();
        let last = At::Given(times.last().copied().unwrap_or_default());
        let mut result = self
            .steps(case, 0..times.len(), 0, |step, _| At::Given(times[step]))
            .await;
        if result.is_ok() {
            result = self.finish(last).await;
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
        let when = |step, first| script.when(step, first);
        self.steps(&script.case, range, sleeps, when).await
    }

    /// Makes some steps of a case, each at the time `when(step, first)`; `first` is the time of the first call.
    async fn steps(
        &mut self,
        case: &Case,
        range: Range<usize>,
        sleeps: u64,
        when: impl Fn(usize, Option<Timestamp>) -> At,
    ) -> Result<(), Mismatch> {
        let start = Instant::now();
        let mut elapsed = Duration::ZERO;
        let mut next = range.start;
        while next < range.end {
            let number = next;
            let members = case.call_at(next);
            next = members.end;
            let step = case.steps[number];
            let after = Duration::from_micros(u64::try_from(step.after).unwrap_or(0) * sleeps);
            if !after.is_zero() {
                // Calls take time, so wait only for the rest.
                let late = start.elapsed().saturating_sub(elapsed);
                self.sleep(after.saturating_sub(late)).await?;
            }
            elapsed += after;
            let when = when(number, self.first);
            let calls = self.model.calls_of(case, members, when);
            // There is no call, for example, without a receipt.
            if calls.is_empty() {
                continue;
            }
            self.call(&calls).await?;
            if self.peeks && step.verb != Verb::Run(Mode::Peek) {
                self.peek_all(number, when).await?;
            }
        }
        Ok(())
    }

    /// Peeks at each log with every policy and at all entries, and resets it.
    pub(crate) async fn finish(&mut self, when: At) -> Result<(), Mismatch> {
        let last = self.model.last_step();
        for log in self.model.logs.clone() {
            for policy in 0..self.model.policies.len() {
                let peek = Call::new(Verb::Run(Mode::Peek), log, policy, when);
                self.call(&[(last, peek)]).await?;
            }
            self.call(&[(last, Call::reset(log, when))]).await?;
        }
        Ok(())
    }

    /// Peeks at all entries of every log.
    pub(crate) async fn peek_all(&mut self, step: usize, when: At) -> Result<(), Mismatch> {
        for log in self.model.logs.clone() {
            self.call(&[(step, self.model.peek_all(log, when))]).await?;
        }
        Ok(())
    }

    /// Makes a call, or several as one. If the store cannot, checks that nothing has changed.
    async fn call(&mut self, calls: &[(usize, Call)]) -> Result<(), Mismatch> {
        if let Some(sweep) = &self.sweep {
            sweep().await;
        }
        let store = self.handle().clone();
        let before = Moment::now(&store);
        let route = self.route.unwrap_or(Route::in_turn(self.turn));
        let policies = &self.model.policies;
        let got = self.caller.call(&store, policies, calls, route).await;
        let is_consistent = match calls {
            [_] => Ok(()),
            _ => self.together.note(calls, got.is_some()),
        };
        if let Some(got) = got {
            let by = route.method(&got[0]);
            let checked = self.check(calls, (before, got));
            checked.map_err(|mismatch| mismatch.decided_by(by))?;
            return is_consistent.map_err(|text| Mismatch::at_last(&self.model, &[A1], text));
        }
        self.model.add_refused(calls);
        is_consistent.map_err(|text| Mismatch::at_last(&self.model, &[A1], text))?;
        for (step, call) in calls {
            let peek = self.model.peek_all(call.log, call.at);
            let unchanged = Box::pin(self.call(&[(*step, peek)])).await;
            unchanged.map_err(|mismatch| mismatch.under(", after `None`", &[A1]))?;
        }
        Ok(())
    }

    /// Makes the call of some steps and drops its future. Returns `true` if it had already finished.
    pub(crate) async fn dropped_call(
        &mut self,
        case: &Case,
        steps: Range<usize>,
        when: At,
        after: DropAfter,
    ) -> Result<bool, Mismatch> {
        let mut calls = self.model.calls_of(case, steps, when);
        let store = self.handle().clone();
        let before = Moment::now(&store);
        if calls.is_empty() {
            return Ok(true);
        }
        let policies = &self.model.policies;
        let made = self.caller.call(&store, policies, &calls, Route::Facts);
        match after.poll(made).await {
            Some(Some(got)) => self.check(&calls, (before, got)).map(|()| true),
            Some(None) => {
                self.model.add_refused(&calls);
                Ok(true)
            }
            None => {
                for (_, call) in &mut calls {
                    *call = call.happened(before.system);
                }
                self.model.drop_calls(&calls);
                Ok(false)
            }
        }
    }

    /// Compares the results of calls that are one, and their time.
    fn check(
        &mut self,
        calls: &[(usize, Call)],
        (before, got): (Moment, Vec<CallResult>),
    ) -> Result<(), Mismatch> {
        let after = Moment::now(self.handle());
        let call = calls[0].1;
        let newest = self.model.newest(call.log);
        let stated = got[0].clock();
        self.turn += 1;
        self.first = self.first.or(stated);
        let time = stated.unwrap_or(before.system);
        let happened = |(step, call): &(usize, Call)| (*step, call.happened(time));
        let calls: Vec<(usize, Call)> = calls.iter().map(happened).collect();
        self.compare(&calls, &got)?;
        if let (At::StoreClock, Some(stated)) = (call.at, stated) {
            self.clock
                .check(stated, newest, (before, after))
                .map_err(|(citations, text)| Mismatch::at_last(&self.model, &citations, &text))?;
        }
        Ok(())
    }

    /// Compares a result with the expected one. The store may have forgotten the log, and a dropped call may have taken effect.
    fn compare(&mut self, calls: &[(usize, Call)], got: &[CallResult]) -> Result<(), Mismatch> {
        let receipts = &self.caller.receipts;
        let before = self.model.clone();
        let Err(wrong) = self.model.compare(calls, receipts, got) else {
            return Ok(());
        };
        // Whether the store had forgotten the log depends on its clock, which only some results state.
        let now = match (calls[0].1.at, got[0].clock()) {
            (At::StoreClock, Some(stated)) => stated,
            _ => {
                let after = Moment::now(self.handle());
                after.store.unwrap_or(after.system)
            }
        };
        let logs = || calls.iter().map(|(_, call)| call.log);
        let forgotten = |model: &Model| {
            let mut old = logs().filter(|log| model.may_forget(*log, now));
            let first = model.forgotten(old.next()?)?;
            Some(old.fold(first, |model, log| model.forgotten(log).unwrap_or(model)))
        };
        let changed = before.with_dropped_call(got[0].newest());
        let both = changed.as_ref().and_then(forgotten);
        // The log may also be forgotten before the dropped call takes effect.
        let earlier = forgotten(&before);
        let then_changed = earlier
            .as_ref()
            .and_then(|model| model.with_dropped_call(got[0].newest()));
        let others = [changed, earlier, both, then_changed];
        for mut other in others.into_iter().flatten() {
            if other.compare(calls, receipts, got).is_ok() {
                self.model = other;
                return Ok(());
            }
        }
        let mut mismatch = Mismatch::of(&self.model, &wrong);
        let is_early = |log: &LogId| {
            let early = before.forgotten(*log);
            early.is_some_and(|mut other| other.compare(calls, receipts, got).is_ok())
        };
        if let Some(log) = logs().find(is_early) {
            mismatch.citations.push(before.keeps(log));
            mismatch.text += "\na store that had forgotten the log would return this";
        }
        Err(mismatch)
    }

    /// Resets the logs. Returns the number of calls, or the script's mismatch.
    pub(crate) async fn ended(
        &self,
        script: &Script,
        result: Result<(), Mismatch>,
    ) -> Result<u64, Mismatch> {
        self.end().await;
        let result = result.map_err(|mismatch| script.cited(mismatch));
        result.map(|()| self.calls())
    }

    /// Resets the logs.
    pub(crate) async fn end(&self) {
        let keys = &self.caller.store_keys;
        let logs: Vec<LogKey<'_>> = self.model.logs.iter().map(|log| keys.log(log)).collect();
        reset_all(self.handle(), &logs).await;
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
    replay_in(handle, StoreKeys::of(case, keys), case)
        .await
        .map(drop)
}

/// Returns the number of calls. Boxed, so that the caller's crate does not compile it.
pub(super) fn replay_in(
    store: SharedStore,
    store_keys: StoreKeys,
    case: &Case,
) -> BoxFuture<'_, Result<u64, Mismatch>> {
    Box::pin(async move {
        Session::on(vec![store], store_keys, case)
            .replay(case)
            .await
    })
}
