//! The language in which cases are written.

use std::collections::HashMap;

use limiter_core::store::Mode;
use limiter_core::{Counting, Policy};

use crate::conformance::generated::strategy::START;
use crate::conformance::sentence::Citation;
use crate::conformance::sentence::Sentence::{E1, E2, F1, F2, L8, L11, S7, S8, T1, T2, T3, T4};
use crate::conformance::sequence::case::{Case, CaseId, CaseLimiter, Operation, Place, Step};
use crate::conformance::sequence::replay::Mismatch;
use crate::conformance::sequence::{Call, Plan};
use crate::conformance::suite::failure::Finding;

/// A named case. Each step lists the sentences of the contract that it checks.
///
/// A method named after an operation adds a step. The methods after it change that step:
/// `.acquire(2).after(5).id(1)`.
#[derive(Clone, Debug)]
pub(crate) struct Script {
    pub(crate) name: &'static str,
    pub(crate) case: Case,
    /// The sentences that each step checks.
    pub(crate) citations: Vec<Vec<Citation>>,
    about: Vec<Citation>,
    /// The steps that have a name.
    called: HashMap<&'static str, usize>,
}

/// Returns an empty script that checks `about`, under `policy` and without a limiter.
pub(crate) fn script(name: &'static str, about: &[Citation], policy: Policy) -> Script {
    let case = Case { policies: vec![policy], limiters: vec![CaseLimiter::NONE], start: START, steps: Vec::new() };
    Script { name, case, citations: Vec::new(), about: about.to_vec(), called: HashMap::new() }
}

/// Adds steps to a script: `steps!(script => acquire 2 after 5 id 1, settle "it" 3)` is
/// `script.acquire(2).after(5).id(1).settle("it", 3)`.
macro_rules! steps {
    ($script:expr => $($operation:ident $($argument:literal)* $($change:ident $value:literal)*),+) => {
        $script$(.$operation($($argument),*)$(.$change($value))*)+
    };
}
pub(crate) use steps;

impl Script {
    /// Sets the sentences that the following steps check.
    pub(crate) fn about(mut self, about: &[Citation]) -> Self {
        self.about = about.to_vec();
        self
    }

    /// Adds a policy. [`under`](Self::under) selects it.
    pub(crate) fn policy(mut self, policy: Policy) -> Self {
        self.case.policies.push(policy);
        self
    }

    /// Adds policies. [`under`](Self::under) selects one.
    pub(crate) fn policies(mut self, policies: impl IntoIterator<Item = Policy>) -> Self {
        self.case.policies.extend(policies);
        self
    }

    /// Sends all operations through a limiter whose default policy is the first policy. [`by`](Self::by) selects
    /// another limiter.
    pub(crate) fn through_a_limiter(self) -> Self {
        self.through(&[CaseLimiter { name: 0, policy: Some(0) }])
    }

    /// Sets the limiters. [`by`](Self::by) selects one.
    pub(crate) fn through(mut self, limiters: &[CaseLimiter]) -> Self {
        self.case.limiters = limiters.to_vec();
        self
    }

    /// Makes all policies count attempts.
    pub(crate) fn counting_attempts(self) -> Self {
        self.counting(Counting::Attempts)
    }

    fn counting(mut self, counting: Counting) -> Self {
        let policies = self.case.policies.into_iter();
        self.case.policies = policies.map(|policy| policy.with_counting(counting)).collect();
        self
    }

    /// Returns the same script with the counting mode of each policy inverted.
    pub(crate) fn counting_otherwise(mut self) -> Self {
        for policy in &mut self.case.policies {
            *policy = policy.clone().with_counting(match policy.counting() {
                Counting::Admitted => Counting::Attempts,
                Counting::Attempts => Counting::Admitted,
            });
        }
        self
    }

    /// Sets the time before the first step.
    pub(crate) fn starting_at(mut self, start: u64) -> Self {
        self.case.start = start;
        self
    }

    fn step(mut self, operation: Operation) -> Self {
        self.case.steps.push(Step { after: 0, operation });
        self.citations.push(self.about.clone());
        self
    }

    fn run(self, mode: Mode, cost: u64) -> Self {
        self.step(Operation::Run { mode, on: Place::default(), policy: 0, cost, id: None })
    }

    pub(crate) fn acquire(self, cost: u64) -> Self {
        self.run(Mode::Acquire, cost)
    }

    pub(crate) fn record(self, cost: u64) -> Self {
        self.run(Mode::Record, cost)
    }

    pub(crate) fn peek(self, cost: u64) -> Self {
        self.run(Mode::Peek, cost)
    }

    /// Settles the entry of the step called `name`.
    pub(crate) fn settle(self, name: &str, cost: u64) -> Self {
        // A test checks that a step has this name.
        let step = self.called.get(name).copied().unwrap_or(usize::MAX);
        self.step(Operation::Settle { step, on: None, cost, policy: 0 })
    }

    pub(crate) fn refund(self, name: &str) -> Self {
        self.settle(name, 0)
    }

    pub(crate) fn reset(self) -> Self {
        self.step(Operation::Reset { on: Place::default() })
    }

    /// Adds more steps for each item.
    pub(crate) fn for_each<T>(self, items: impl IntoIterator<Item = T>, add: impl Fn(Self, T) -> Self) -> Self {
        items.into_iter().fold(self, add)
    }

    fn last(mut self, change: impl FnOnce(&mut Step)) -> Self {
        if let Some(step) = self.case.steps.last_mut() {
            change(step);
        }
        self
    }

    /// Names the step, so that another step can settle its entry.
    pub(crate) fn called(mut self, name: &'static str) -> Self {
        self.called.insert(name, self.case.steps.len() - 1);
        self
    }

    /// Advances the time before the step by this number of microseconds.
    pub(crate) fn after(self, after: i64) -> Self {
        self.last(|step| step.after = after)
    }

    /// Gives the step an id that no other sequence uses.
    pub(crate) fn id(self, number: u8) -> Self {
        self.with_id(CaseId::Fresh(number))
    }

    /// Gives the step exactly this id.
    pub(crate) fn exact_id(self, exact: u128) -> Self {
        self.with_id(CaseId::Exactly(exact))
    }

    fn with_id(self, new: CaseId) -> Self {
        self.last(|step| {
            if let Operation::Run { id, .. } = &mut step.operation {
                *id = Some(new);
            }
        })
    }

    fn place(self, change: impl FnOnce(&mut Place)) -> Self {
        self.last(|step| match &mut step.operation {
            Operation::Run { on, .. } | Operation::Reset { on } => change(on),
            Operation::Settle { on, .. } => change(on.get_or_insert_default()),
        })
    }

    /// Runs the step on this key. Default: key 0, or for a settlement the key that issued the receipt.
    pub(crate) fn key(self, key: u8) -> Self {
        self.place(|place| place.key = key)
    }

    /// Runs the step through this limiter. Default: the first.
    pub(crate) fn by(self, limiter: u8) -> Self {
        self.place(|place| place.limiter = limiter)
    }

    /// Runs the step under this policy. Default: the first.
    pub(crate) fn under(self, number: u8) -> Self {
        self.last(|step| {
            if let Operation::Run { policy, .. } | Operation::Settle { policy, .. } = &mut step.operation {
                *policy = number;
            }
        })
    }
}

/// Returns the failing case. It cites the sentences of the step that failed.
pub(crate) fn finding(script: &Script, plan: &Plan, mismatch: Mismatch) -> Finding {
    let mut citations = script.citations.get(mismatch.step).cloned().unwrap_or_default();
    // These sentences identify the mistake better than the step does.
    let identifies_mistake =
        |citation: &Citation| matches!(citation.item, T1 | T2 | T3 | T4 | L11 | S7 | E1 | E2 | F1 | F2);
    if mismatch.citations.first().is_some_and(identifies_mistake) {
        let more = mismatch.citations.iter().filter(|citation| identifies_mistake(citation) || citation.item == L8);
        let more: Vec<Citation> =
            more.filter(|citation| !citations.iter().any(|own| own.item == citation.item)).copied().collect();
        citations.splice(0..0, more);
    } else if matches!(plan.calls[mismatch.call].call, Call::Reset { .. }) {
        citations = vec![S8.nth(1)];
    }
    Finding::about(format!("case \"{}\"", script.name), &citations, mismatch)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::super::scripts;
    use super::*;
    use crate::conformance::sentence::Sentence;

    #[test]
    fn script_names_are_unique_and_every_step_has_an_answer() {
        let mut names = HashSet::new();
        for script in scripts() {
            assert!(names.insert(script.name), "two scripts are called {:?}", script.name);
            for script in [script.clone(), script.counting_otherwise()] {
                let (plan, with_peeks) = (Plan::of(&script.case).unwrap(), Plan::with_peeks(&script.case).unwrap());
                assert!(plan.len() > script.case.steps.len() && with_peeks.len() > plan.len(), "{}", script.name);
                assert_eq!(script.citations.len(), script.case.steps.len());
            }
        }
        assert!(names.len() > 90, "{}", names.len());
    }

    /// A skipped settlement would check nothing.
    #[test]
    fn no_settlement_is_skipped() {
        for script in scripts() {
            let steps: HashSet<usize> =
                Plan::of(&script.case).unwrap().calls.iter().map(|planned| planned.step).collect();
            let left_out: Vec<usize> = (0..script.case.steps.len()).filter(|step| !steps.contains(step)).collect();
            assert!(left_out.is_empty(), "{:?} skips the steps {left_out:?}", script.name);
        }
    }

    #[test]
    fn every_citation_has_a_text() {
        for script in scripts() {
            for citation in script.citations.iter().flatten() {
                assert!(!citation.text().is_empty(), "{:?} cites {citation:?}", script.name);
            }
        }
    }

    #[test]
    fn every_sentence_about_sequences_has_scripts() {
        use Sentence::{C1, C2, E1, E2, F1, F2, L12, L14, T2, T4, T5};
        let elsewhere = [T2, T4, T5, L12, L14, F1, F2, E1, E2, C1, C2];
        let cited: HashSet<Sentence> =
            scripts().iter().flat_map(|script| script.citations.concat()).map(|citation| citation.item).collect();
        let missing: Vec<&Sentence> = Sentence::ALL
            .iter()
            .filter(|sentence| !cited.contains(sentence) && !elsewhere.contains(sentence))
            .collect();
        assert!(missing.is_empty(), "{missing:?}");
    }
}
