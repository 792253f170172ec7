//! A sequence at the store's own clock.

use std::sync::Arc;
use std::time::Duration;

use limiter_core::store::{At, LogKey};
use limiter_core::{Error, Timestamp, WindowStore};

use super::candidate::Candidate;
use super::clock::{ClockCheck, Moment, When};
use crate::conformance::sentence::Cite;
use crate::conformance::sequence::caller::{Caller, Route, StoreKeys};
use crate::conformance::sequence::case::{Case, Operation};
use crate::conformance::sequence::plan::{Call, Log, Plan};
use crate::conformance::sequence::planner::Planner;
use crate::conformance::sequence::replay::{Mismatch, mismatch, salt};
use crate::conformance::sequence::reply::{Got, Reply, agrees};
use crate::conformance::sequence::transcript;
use crate::conformance::suite::run::reset_all;
use crate::conformance::tasks::sleep::sleep_on;

/// Puts calls to a store at its own clock, and compares the answers with the oracle's at the times that the store told.
pub(crate) struct Session<S: ?Sized> {
    handles: Vec<Arc<S>>,
    turn: usize,
    /// Every history that agrees with the answers so far; never empty.
    candidates: Vec<Candidate>,
    store_keys: StoreKeys,
    caller: Caller,
    clock: ClockCheck,
}

impl<S: WindowStore + ?Sized> Session<S> {
    /// Returns a session with the policies and limiters of `case`, on keys that begin with `key`.
    pub(crate) fn new(
        handles: &[Arc<S>],
        case: &Case,
        key: &str,
        tolerance: Option<Duration>,
        turn: usize,
    ) -> Result<Self, String> {
        let candidates = vec![Candidate::new(Planner::new(case)?)];
        let logs = (0..=2).map(|k| Log { name: 0, key: k });
        let store_keys = StoreKeys::of(logs, |k| format!("{key}/{k}").into_bytes());
        let caller = Caller::new(&store_keys, salt());
        let clock = ClockCheck::new(tolerance, handles[0].timer().is_some());
        Ok(Self { handles: handles.to_vec(), turn, candidates, store_keys, caller, clock })
    }

    fn planner(&self) -> &Planner {
        &self.candidates[0].planner
    }

    pub(crate) fn plan(&self) -> &Plan {
        self.planner().plan()
    }

    /// Returns how many calls were made.
    pub(crate) fn calls(&self) -> u64 {
        self.plan().calls.len() as u64
    }

    fn handle(&self) -> &Arc<S> {
        &self.handles[self.turn % self.handles.len()]
    }

    pub(crate) async fn sleep(&mut self, duration: Duration) -> Result<(), Mismatch> {
        // A mock clock cuts anything finer.
        let duration = Duration::from_micros(duration.as_micros() as u64);
        let slept = sleep_on(&**self.handle(), duration).await;
        self.clock.slept(duration);
        slept.map_err(|text| self.wrong(&[], text))
    }

    /// Returns a failure of the last call.
    pub(crate) fn wrong(&self, cites: &[Cite], text: impl Into<String>) -> Mismatch {
        let call = self.plan().calls.len().saturating_sub(1);
        let step = self.plan().calls.last().map_or(0, |planned| planned.step);
        let transcript = format!("{}{}", transcript::of_calls(self.plan()), text.into());
        Mismatch { call, step, cites: cites.to_vec(), transcript }
    }

    /// Makes the call of a step, and returns what it came to. `None` if there is nothing to call, as without a receipt.
    pub(crate) async fn step(
        &mut self,
        step: usize,
        operation: Operation,
        when: When,
    ) -> Result<Option<Reply>, Mismatch> {
        let Some(call) = self.planner().call(operation, Timestamp::EPOCH) else { return Ok(None) };
        self.ask(step, call, when).await.map(Some)
    }

    /// Looks at all entries of every log.
    pub(crate) async fn look(&mut self, step: usize) -> Result<(), Mismatch> {
        for log in self.planner().logs().to_vec() {
            self.ask(step, self.planner().look(log, Timestamp::EPOCH), When::Store).await?;
        }
        Ok(())
    }

    async fn ask(&mut self, step: usize, call: Call, when: When) -> Result<Reply, Mismatch> {
        let (number, log, newest) = (self.plan().calls.len(), call.log(), self.planner().newest(call.log()));
        let at = match when {
            When::Store => At::StoreClock,
            When::Given(at) => At::Given(at),
        };
        let store = Arc::clone(self.handle());
        let before = Moment::now();
        let plan = self.candidates[0].planner.plan();
        let got = self.caller.call(&store, plan, number, &call, at, Route::in_turn(self.turn)).await;
        let after = Moment::now();
        self.turn += 1;
        let told = got.as_ref().ok().and_then(Reply::at);
        let time = match when {
            When::Given(at) => at,
            When::Store => told.unwrap_or(before.system()),
        };
        if number == 0 {
            self.candidates.iter_mut().for_each(|candidate| candidate.planner.start_at(time));
        }
        let call = call.with_time(time);
        let got = self.compare((step, log), call, when, &got)?;
        if let (When::Store, Some(told)) = (when, told) {
            self.clock.check(told, newest, (before, after)).map_err(|(cites, text)| self.wrong(&cites, text))?;
        }
        Ok(got)
    }

    /// Keeps the histories that agree with an answer.
    fn compare(&mut self, (step, log): (usize, Log), call: Call, when: When, got: &Got) -> Result<Reply, Mismatch> {
        // A session does not know when a store was asked without telling a time. It may have forgotten by now.
        let now = call.at().unwrap_or(Moment::now().system());
        let forgotten = self.candidates.iter().filter(|candidate| candidate.may_forget(log, now));
        let mut possible: Vec<Candidate> = forgotten.filter_map(|candidate| candidate.forgotten(log)).collect();
        let too_early = self.candidates[0].forgotten(log);
        possible.splice(0..0, self.candidates.drain(..));
        let (mut agreeing, mut first) = (Vec::<(Candidate, Reply)>::new(), None);
        for mut candidate in possible {
            let identified = self.expected(&mut candidate, step, call, when, got);
            match identified {
                // Without this their number would double with every call.
                Ok(_) if agreeing.iter().any(|(other, _)| candidate.has_the_log_of(other, log)) => {}
                Ok(reply) => agreeing.push((candidate, reply)),
                Err(mismatch) => first = first.or(Some((candidate, mismatch))),
            }
        }
        if let Some((_, reply)) = agreeing.first() {
            let reply = reply.clone();
            self.candidates = agreeing.into_iter().map(|(candidate, _)| candidate).collect();
            return Ok(reply);
        }
        let Some((candidate, mut mismatch)) = first else { return Err(self.wrong(&[], "there is no history")) };
        let keeps = candidate.keeps(log);
        self.candidates = vec![candidate];
        if let Some(mut forgotten) = too_early
            && self.expected(&mut forgotten, step, call, when, got).is_ok()
        {
            mismatch.cites = vec![keeps];
            mismatch.transcript += "\nthe store has forgotten the log too early";
        }
        Err(mismatch)
    }

    /// Adds a call to a history, and compares its answer.
    fn expected(
        &self,
        candidate: &mut Candidate,
        step: usize,
        call: Call,
        when: When,
        got: &Got,
    ) -> Result<Reply, Mismatch> {
        if let Err(text) = candidate.expect(step, call, when) {
            return Err(Mismatch { call: 0, step, cites: Vec::new(), transcript: text });
        }
        let plan = candidate.planner.plan();
        let number = plan.calls.len() - 1;
        let got = self.caller.identify(number, &plan.calls[number], clone(got));
        match &got {
            Ok(reply) if agrees(&plan.calls[number].expected, &got) => Ok(reply.clone()),
            Err(error) if agrees(&plan.calls[number].expected, &got) => Ok(Reply::Refused(error.kind())),
            _ => Err(mismatch(plan, number, &got)),
        }
    }

    /// Removes the logs.
    pub(crate) async fn end(&self) {
        let logs: Vec<LogKey<'_>> = self.planner().logs().iter().map(|log| self.store_keys.log(*log)).collect();
        reset_all(&**self.handle(), &logs).await;
    }
}

/// Errors cannot be cloned. The text is what is shown of one.
fn clone(got: &Got) -> Got {
    match got {
        Ok(reply) => Ok(reply.clone()),
        Err(error) => Err(Error::new(error.kind(), format!("{error:?}"))),
    }
}
