//! How a case is written.

use std::collections::HashMap;

use limiter_core::store::Mode;
use limiter_core::{Counting, Policy};

use crate::conformance::generated::strategy::START;
use crate::conformance::sentence::Cite;
use crate::conformance::sentence::Sentence::{E1, E2, F1, F2, L8, L11, S7, S8, T1, T2, T3, T4};
use crate::conformance::sequence::case::{Case, CaseId, CaseLimiter, Operation, Place, Step};
use crate::conformance::sequence::plan::{Call, Plan};
use crate::conformance::sequence::replay::Mismatch;
use crate::conformance::suite::failure::Finding;

/// A case with a name, and the sentences that each of its steps is about.
///
/// A step is added by the name of its operation. What follows changes that step: `.acquire(2).after(5).id(1)`.
#[derive(Clone, Debug)]
pub(crate) struct Script {
    pub(crate) name: &'static str,
    pub(crate) case: Case,
    /// For each step.
    pub(crate) cites: Vec<Vec<Cite>>,
    about: Vec<Cite>,
    /// The steps with a name.
    called: HashMap<&'static str, usize>,
}

/// Returns an empty script about `about`, under `policy` and without a limiter.
pub(crate) fn script(name: &'static str, about: &[Cite], policy: Policy) -> Script {
    let case = Case { policies: vec![policy], limiters: vec![CaseLimiter::NONE], start: START, steps: Vec::new() };
    Script { name, case, cites: Vec::new(), about: about.to_vec(), called: HashMap::new() }
}

impl Script {
    /// The further steps are about these sentences.
    pub(crate) fn about(mut self, about: &[Cite]) -> Self {
        self.about = about.to_vec();
        self
    }

    /// Adds a policy, for [`under`](Self::under).
    pub(crate) fn policy(mut self, policy: Policy) -> Self {
        self.case.policies.push(policy);
        self
    }

    /// Adds policies, for [`under`](Self::under).
    pub(crate) fn policies(mut self, policies: impl IntoIterator<Item = Policy>) -> Self {
        self.case.policies.extend(policies);
        self
    }

    /// All operations come through a limiter whose default policy is the first one, unless [`by`](Self::by) names another.
    pub(crate) fn through_a_limiter(self) -> Self {
        self.through(&[CaseLimiter { name: 0, policy: Some(0) }])
    }

    /// The limiters, for [`by`](Self::by).
    pub(crate) fn through(mut self, limiters: &[CaseLimiter]) -> Self {
        self.case.limiters = limiters.to_vec();
        self
    }

    /// All policies count attempts.
    pub(crate) fn counting_attempts(self) -> Self {
        self.counting(Counting::Attempts)
    }

    fn counting(mut self, counting: Counting) -> Self {
        let policies = self.case.policies.into_iter();
        self.case.policies = policies.map(|policy| policy.with_counting(counting)).collect();
        self
    }

    /// The same script, in which each policy counts the other way.
    pub(crate) fn counting_otherwise(mut self) -> Self {
        for policy in &mut self.case.policies {
            *policy = policy.clone().with_counting(match policy.counting() {
                Counting::Admitted => Counting::Attempts,
                Counting::Attempts => Counting::Admitted,
            });
        }
        self
    }

    /// The time before the first step.
    pub(crate) fn starting_at(mut self, start: u64) -> Self {
        self.case.start = start;
        self
    }

    fn step(mut self, operation: Operation) -> Self {
        self.case.steps.push(Step { after: 0, operation });
        self.cites.push(self.about.clone());
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
        // A name that no step has is found by a test.
        let step = self.called.get(name).copied().unwrap_or(usize::MAX);
        self.step(Operation::Settle { step, on: None, cost, policy: 0 })
    }

    pub(crate) fn refund(self, name: &str) -> Self {
        self.settle(name, 0)
    }

    pub(crate) fn reset(self) -> Self {
        self.step(Operation::Reset { on: Place::default() })
    }

    /// Adds more steps, as many times as there are items.
    pub(crate) fn for_each<T>(self, items: impl IntoIterator<Item = T>, add: impl Fn(Self, T) -> Self) -> Self {
        items.into_iter().fold(self, add)
    }

    fn last(mut self, change: impl FnOnce(&mut Step)) -> Self {
        if let Some(step) = self.case.steps.last_mut() {
            change(step);
        }
        self
    }

    /// Names the step, to settle its entry.
    pub(crate) fn called(mut self, name: &'static str) -> Self {
        self.called.insert(name, self.case.steps.len() - 1);
        self
    }

    /// Moves the time before the step by so many microseconds.
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

    /// The step is on this key. Otherwise on key 0, or for a settlement the key that issued the receipt.
    pub(crate) fn key(self, key: u8) -> Self {
        self.place(|place| place.key = key)
    }

    /// The step comes through this limiter. Otherwise through the first.
    pub(crate) fn by(self, limiter: u8) -> Self {
        self.place(|place| place.limiter = limiter)
    }

    /// The step is under this policy. Otherwise under the first.
    pub(crate) fn under(self, number: u8) -> Self {
        self.last(|step| {
            if let Operation::Run { policy, .. } | Operation::Settle { policy, .. } = &mut step.operation {
                *policy = number;
            }
        })
    }
}

/// The failing case, about the sentences of the step that failed.
pub(crate) fn finding(script: &Script, plan: &Plan, mismatch: Mismatch) -> Finding {
    let mut cites = script.cites.get(mismatch.step).cloned().unwrap_or_default();
    // Some answers are wrong in a way that says more than the step.
    let says_more = |cite: &Cite| matches!(cite.item, T1 | T2 | T3 | T4 | L11 | S7 | E1 | E2 | F1 | F2);
    if mismatch.cites.first().is_some_and(says_more) {
        let more = mismatch.cites.iter().filter(|cite| says_more(cite) || cite.item == L8);
        let more: Vec<Cite> = more.filter(|cite| !cites.iter().any(|own| own.item == cite.item)).copied().collect();
        cites.splice(0..0, more);
    } else if matches!(plan.calls[mismatch.call].call, Call::Reset { .. }) {
        cites = vec![S8.nth(1)];
    }
    Finding::about(format!("case \"{}\"", script.name), &cites, mismatch)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::super::scripts::scripts;
    use super::*;
    use crate::conformance::sentence::Sentence;

    #[test]
    fn every_script_has_a_name_of_its_own_and_an_answer_for_every_step() {
        let mut names = HashSet::new();
        for script in scripts() {
            assert!(names.insert(script.name), "two scripts are called {:?}", script.name);
            for script in [script.clone(), script.counting_otherwise()] {
                let (plan, watched) = (Plan::of(&script.case).unwrap(), Plan::watched(&script.case).unwrap());
                assert!(plan.len() > script.case.steps.len() && watched.len() > plan.len(), "{}", script.name);
                assert_eq!(script.cites.len(), script.case.steps.len());
            }
        }
        assert!(names.len() > 90, "{}", names.len());
    }

    /// A settlement that is left out checks nothing.
    #[test]
    fn every_settlement_is_put_to_the_store() {
        for script in scripts() {
            let steps: HashSet<usize> =
                Plan::of(&script.case).unwrap().calls.iter().map(|planned| planned.step).collect();
            let left_out: Vec<usize> = (0..script.case.steps.len()).filter(|step| !steps.contains(step)).collect();
            assert!(left_out.is_empty(), "{:?} leaves out the steps {left_out:?}", script.name);
        }
    }

    #[test]
    fn every_citation_has_a_text() {
        for script in scripts() {
            for cite in script.cites.iter().flatten() {
                assert!(!cite.text().is_empty(), "{:?} cites {cite:?}", script.name);
            }
        }
    }

    #[test]
    fn every_sentence_about_sequences_has_scripts() {
        use Sentence::{C1, C2, E1, E2, F1, F2, L12, L14, T2, T4, T5};
        let elsewhere = [T2, T4, T5, L12, L14, F1, F2, E1, E2, C1, C2];
        let cited: HashSet<Sentence> =
            scripts().iter().flat_map(|script| script.cites.concat()).map(|cite| cite.item).collect();
        let missing: Vec<&Sentence> = Sentence::ALL
            .iter()
            .filter(|sentence| !cited.contains(sentence) && !elsewhere.contains(sentence))
            .collect();
        assert!(missing.is_empty(), "{missing:?}");
    }
}
