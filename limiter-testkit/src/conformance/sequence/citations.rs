//! Finds the sentences of the contract that a wrong answer probably breaks.
//!
//! Handwritten cases name their sentences, but generated sequences do not. This module derives them from the call,
//! the differing field and the preceding call. In a shrunk sequence, the last call that could change the log is
//! almost always the wrong one.

use limiter_core::store::Retention;
use limiter_core::{ErrorKind, MAX_COST};

use super::call_result::{CallResult, Decided, OutcomeKind, Settled, StoreResult};
use super::{Call, Plan};
use crate::conformance::sentence::{Citation, Sentence};

use Sentence::{E1, E2, L1, L2, L3, L4, L5, L6, L7, L8, L9, L10, L11, L13, S1, S2, S3, S4, S5, S6, S7, S8, T1, T3};

/// The maximum number of cited sentences.
const MAX_CITATIONS: usize = 3;

/// Returns the sentences that the wrong answer to call `number` probably breaks, likeliest first.
pub(crate) fn probable_citations(plan: &Plan, number: usize, got: &StoreResult) -> Vec<Citation> {
    let citations = WrongAnswer { plan, number };
    let mut citations = match (&plan.calls[number].expected, got) {
        (_, Err(error)) if error.kind() == ErrorKind::Inconsistent => [vec![L11.nth(1)], citations.history()].concat(),
        (CallResult::Refused(_), _) => vec![E2.nth(1)],
        (CallResult::Reset(_), Ok(_)) => vec![S8.into()],
        (CallResult::Settled(settled), Err(_)) if settled.applied => vec![S6.into(), E1.into()],
        (_, Err(_)) => vec![E1.into()],
        (CallResult::Settled(expected), Ok(CallResult::Settled(got))) => citations.settled(expected, got),
        (CallResult::Decided(expected), Ok(CallResult::Decided(got))) => citations.decided(expected, got),
        _ => Vec::new(),
    };
    let mut seen = Vec::new();
    citations.retain(|citation| !seen.contains(citation) && (seen.push(*citation), seen.len() <= MAX_CITATIONS).1);
    citations
}

struct WrongAnswer<'a> {
    plan: &'a Plan,
    number: usize,
}

impl WrongAnswer<'_> {
    fn call(&self) -> &Call {
        &self.plan.calls[self.number].call
    }

    /// Cites a wrong time: either clamped or unclamped by mistake.
    fn time(&self, expected: &CallResult) -> Vec<Citation> {
        let is_clamped = expected.at() != self.call().at();
        if is_clamped { vec![T3.nth(1)] } else { vec![T3.into(), T1.into()] }
    }

    fn settled(&self, expected: &Settled, got: &Settled) -> Vec<Citation> {
        let Call::Settle { log, receipt, cost, .. } = *self.call() else { return Vec::new() };
        if expected.status.at != got.status.at {
            return self.time(&self.plan.calls[self.number].expected);
        }
        if expected.applied != got.applied {
            let says_wrong =
                if (&expected.status, expected.newest) == (&got.status, got.newest) { Some(S7.nth(1)) } else { None };
            let is_elsewhere = self.plan.calls[receipt].call.log() != log;
            let citations = match expected.applied {
                true if cost > MAX_COST / 2 => vec![S6.into(), S1.nth(1)],
                true => vec![S1.nth(1), L8.into()],
                false if is_elsewhere => vec![S1.nth(2)],
                false => vec![S4.into()],
            };
            return says_wrong.into_iter().chain(citations).collect();
        }
        if expected.status == got.status {
            return vec![L11.nth(2)];
        }
        let mut citations = self.of_call(self.number);
        citations.push(S7.into());
        citations.extend(self.history());
        citations
    }

    fn decided(&self, expected: &Decided, got: &Decided) -> Vec<Citation> {
        if expected.answer.status.at != got.answer.status.at {
            return self.time(&self.plan.calls[self.number].expected);
        }
        if let (Some(right), Some(wrong)) = (expected.raw_facts, got.raw_facts)
            && expected.answer == got.answer
            && right.newest != wrong.newest
        {
            // If the log lost its newest entry, this call may have dropped it.
            let lost = wrong.newest < right.newest && right.outcome != OutcomeKind::Appended;
            return if lost { vec![L11.nth(2), L8.nth(1)] } else { vec![L11.nth(2)] };
        }
        let repeated = expected.repeats.is_some();
        let outcome = |decided: &Decided| decided.raw_facts.map(|raw_facts| raw_facts.outcome);
        if expected.repeats != got.repeats || (got.raw_facts.is_some() && outcome(expected) != outcome(got)) {
            let citation = if repeated || outcome(got) == Some(OutcomeKind::Repeated) { L9.into() } else { L13.nth(1) };
            return [vec![citation], self.history()].concat();
        }
        if repeated {
            return [vec![L9.nth(2)], self.history()].concat();
        }
        let same_verdict = expected.answer.allowed == got.answer.allowed;
        let is_receipt = same_verdict && expected.answer.receipt != got.answer.receipt;
        let mut citations = if is_receipt { vec![L5.nth(1)] } else { Vec::new() };
        citations.extend(self.history());
        if !same_verdict {
            citations.insert(citations.len().min(1), L3.nth(1));
        }
        citations.push(L11.nth(3));
        citations
    }

    /// Cites the last call that could change the log, and entries at the edge of a window.
    fn history(&self) -> Vec<Citation> {
        let log = self.call().log();
        let mut citations = Vec::new();
        let last = (0..self.number).rev().find(|i| !self.plan.calls[*i].call.is_peek());
        let last_here = (0..self.number).rev().find(|i| {
            let call = &self.plan.calls[*i].call;
            call.log() == log && !call.is_peek()
        });
        if self.is_at_an_edge() {
            citations.push(L2.nth(1));
        }
        if last != last_here {
            citations.push(L1.nth(2));
        }
        if self.call().is_peek() {
            citations.extend(last_here.map_or_else(|| vec![L4.nth(2)], |i| self.of_call(i)));
        } else {
            citations.extend(self.of_call(self.number));
            let is_quiet = |i: &usize| !self.has_appended(*i);
            citations.extend(last_here.filter(is_quiet).map(|i| self.of_call(i)).unwrap_or_default());
        }
        citations
    }

    fn has_appended(&self, number: usize) -> bool {
        self.outcome(number) == Some(OutcomeKind::Appended)
    }

    fn outcome(&self, number: usize) -> Option<OutcomeKind> {
        match &self.plan.calls[number].expected {
            CallResult::Decided(decided) => decided.raw_facts.map(|raw_facts| raw_facts.outcome),
            _ => None,
        }
    }

    /// Returns whether an entry of the log is about as old as a window of the call.
    fn is_at_an_edge(&self) -> bool {
        let planned = &self.plan.calls[self.number];
        let (Call::Run { policy, .. } | Call::Settle { policy, .. }) = planned.call else { return false };
        let Some(now) = planned.expected.at() else { return false };
        let before =
            (0..self.number).rev().map(|i| &self.plan.calls[i]).find(|before| before.call.log() == planned.call.log());
        let held = planned.held.iter().chain(before.into_iter().flat_map(|before| &before.held));
        let mut ages = held.filter_map(|i| self.plan.calls[*i].expected.at()).map(|at| now.micros_since(at));
        let windows = || self.plan.policies[policy].limits().iter().map(|limit| limit.window().as_micros());
        ages.any(|age| windows().any(|window| age.abs_diff(window) <= 1))
    }

    /// Cites what a call does to the log.
    fn of_call(&self, number: usize) -> Vec<Citation> {
        let Self { plan, .. } = self;
        match (&plan.calls[number].call, &plan.calls[number].expected) {
            (Call::Reset { .. }, _) => vec![S8.into()],
            (Call::Settle { .. }, CallResult::Settled(settled)) if !settled.applied => vec![S4.nth(1)],
            (Call::Settle { cost, .. }, _) => {
                let citation = if *cost == 0 { S3.into() } else { S2.into() };
                if self.dropped(number).len() > usize::from(*cost == 0) {
                    vec![S5.into(), citation]
                } else {
                    vec![citation]
                }
            }
            (Call::Run { id, .. }, _) => match self.outcome(number) {
                Some(OutcomeKind::Appended) => self.of_append(number),
                Some(OutcomeKind::Repeated) => vec![L9.nth(1)],
                _ if id.is_some() => vec![L10.into(), L4.nth(2)],
                _ => vec![L4.nth(2)],
            },
        }
    }

    fn of_append(&self, number: usize) -> Vec<Citation> {
        let Call::Run { policy, limiter_policy, .. } = self.plan.calls[number].call else { return Vec::new() };
        let policies = [Some(policy), limiter_policy].into_iter().flatten();
        let windows = policies.map(|policy| Retention::of(&self.plan.policies[policy]).window);
        let (window, now) = (windows.max(), self.plan.calls[number].expected.at());
        let is_old = |entry: &usize| {
            let at = self.plan.calls[*entry].expected.at();
            window.zip(at).zip(now).is_some_and(|((window, at), now)| !window.counts(at, now))
        };
        let dropped = self.dropped(number);
        let mut citations = Vec::new();
        if dropped.iter().any(is_old) {
            citations.push(L6.nth(1));
        }
        if dropped.iter().any(|entry| !is_old(entry)) {
            citations.push(L7.nth(1));
        }
        citations.push(L5.nth(1));
        if dropped.is_empty() {
            citations.push(L8.nth(1));
        }
        citations
    }

    /// Returns the calls whose entries a call dropped from its log.
    fn dropped(&self, number: usize) -> Vec<usize> {
        let log = self.plan.calls[number].call.log();
        let before = (0..number).rev().find(|i| self.plan.calls[*i].call.log() == log);
        let now = &self.plan.calls[number].held;
        let before = before.map(|i| &self.plan.calls[i].held[..]).unwrap_or_default();
        before.iter().copied().filter(|entry| !now.contains(entry)).collect()
    }
}
