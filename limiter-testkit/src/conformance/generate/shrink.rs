//! Makes a failing sequence smaller for as long as it still fails.

use limiter_core::store::Mode;
use limiter_core::{Counting, Limit, Policy};
use proptest::strategy::ValueTree;

use super::strategy::{START, limit};
use crate::conformance::sequence::case::{Case, CaseLimiter, Operation, Place, Step};

/// A sequence that shrinks: first steps go, many at once and then one by one, then the rest becomes simpler.
///
/// It ends when a whole round of candidates has passed: no step can be removed, and no limit, cost, id, key or time
/// simplified. Settlements name the steps whose receipts they use, and keep doing so when another step goes.
#[derive(Clone, Debug)]
pub(crate) struct Shrinking {
    /// The smallest sequence that failed.
    best: Case,
    current: Case,
    /// What is tried next, if `best` has such a part.
    next: usize,
    /// Whether something became smaller in this round.
    progress: bool,
    /// Whether `best` is known to fail.
    failed: bool,
}

impl Shrinking {
    /// Returns a tree that begins with `case`.
    pub(crate) fn new(case: Case) -> Self {
        Self { best: case.clone(), current: case, next: 0, progress: false, failed: false }
    }

    /// Goes to the next candidate; `false` if there is none.
    fn advance(&mut self) -> bool {
        loop {
            match candidate(&self.best, self.next) {
                Candidate::End if self.progress => (self.next, self.progress) = (0, false),
                Candidate::End => {
                    self.current = self.best.clone();
                    return false;
                }
                Candidate::Same => self.next += 1,
                Candidate::Case(case) => {
                    self.current = case;
                    return true;
                }
            }
        }
    }
}

impl ValueTree for Shrinking {
    type Value = Case;

    fn current(&self) -> Case {
        self.current.clone()
    }

    fn simplify(&mut self) -> bool {
        if self.failed {
            // The candidate failed too. The same number is another candidate now.
            self.best = self.current.clone();
            self.progress = true;
        }
        self.failed = true;
        self.advance()
    }

    fn complicate(&mut self) -> bool {
        self.next += 1;
        self.advance()
    }
}

enum Candidate {
    /// There are no further candidates.
    End,
    /// This one would change nothing.
    Same,
    Case(Case),
}

/// The candidates by number: removals of half of the steps, a quarter and so on, then simplifications of each step, of the
/// policies, of the limiters and of the start.
fn candidate(case: &Case, mut number: usize) -> Candidate {
    let len = case.steps.len();
    let mut size = len.div_ceil(2);
    while size > 0 {
        let chunks = len.div_ceil(size);
        if number < chunks {
            let from = len.saturating_sub((number + 1) * size);
            return of(case, without(case, from, len - number * size));
        }
        number -= chunks;
        size = if size == 1 { 0 } else { size.div_ceil(2) };
    }
    if number < len * STEPS {
        return of(case, simpler_step(case, number / STEPS, number % STEPS));
    }
    number -= len * STEPS;
    let policies = case.policies.len();
    if number < policies * POLICIES {
        return of(case, simpler_policy(case, number / POLICIES, number % POLICIES));
    }
    match number - policies * POLICIES {
        0 => of(case, Case { start: START, ..case.clone() }),
        1 => of(case, Case { limiters: vec![CaseLimiter::NONE], ..case.clone() }),
        2 => of(case, without_last_policy(case)),
        3 => of(case, everywhere(case, |on| on.key = 0)),
        4 => of(case, everywhere(case, |on| on.limiter = 0)),
        5 => of(case, Case { policies: case.policies[..1].to_vec(), ..case.clone() }),
        _ => Candidate::End,
    }
}

fn of(case: &Case, smaller: Case) -> Candidate {
    if smaller == *case { Candidate::Same } else { Candidate::Case(smaller) }
}

/// The case without the steps from `from` to `to`, and without the settlements of their receipts. The others keep their
/// times.
fn without(case: &Case, from: usize, to: usize) -> Case {
    let mut kept: Vec<Option<usize>> = Vec::with_capacity(case.steps.len());
    let (mut steps, mut after) = (Vec::new(), 0_i64);
    for (number, step) in case.steps.iter().enumerate() {
        after = after.saturating_add(step.after);
        let mut operation = step.operation;
        let goes = match &mut operation {
            _ if (from..to).contains(&number) => true,
            Operation::Settle { step, .. } => match kept.get(*step).copied().flatten() {
                Some(moved) => {
                    *step = moved;
                    false
                }
                None => true,
            },
            _ => false,
        };
        kept.push((!goes).then_some(steps.len()));
        if !goes {
            steps.push(Step { after, operation });
            after = 0;
        }
    }
    Case { steps, ..case.clone() }
}

/// How many ways there are to simplify a step.
const STEPS: usize = 11;
/// Smaller numbers are counted down one by one.
const FEW: i64 = 100;

/// A number one lower, but at least 1, if it is small.
fn lower(number: u64) -> u64 {
    if number > 1 && number < FEW.unsigned_abs() { number - 1 } else { number }
}

fn simpler_step(case: &Case, number: usize, way: usize) -> Case {
    let mut case = case.clone();
    let Some(step) = case.steps.get_mut(number) else { return case };
    let after = step.after;
    match way {
        0 => step.after = 0,
        1 => step.after = after / 2,
        2 => step.after = if after.abs() < FEW { after - after.signum() } else { after },
        _ => simpler_operation(&mut step.operation, way - 3),
    }
    case
}

fn simpler_operation(operation: &mut Operation, way: usize) {
    match operation {
        Operation::Run { mode, on, policy, cost, id } => match way {
            0 => *on = Place::default(),
            1 => on.limiter = 0,
            2 => *policy = 0,
            3 => *cost = 1,
            4 => *cost = lower(*cost),
            6 => *cost = (*cost / 2).max(1).min(*cost),
            5 => *id = None,
            _ => *mode = if *mode == Mode::Peek { Mode::Peek } else { Mode::Record },
        },
        Operation::Settle { on, cost, policy, .. } => match way {
            0 => *on = None,
            2 => *policy = 0,
            3 => *cost = 0,
            4 => *cost = lower(*cost),
            5 => *cost = (*cost).min(1),
            6 => *cost = (*cost / 2).max(1).min(*cost),
            _ => {}
        },
        Operation::Reset { on } => match way {
            0 => *on = Place::default(),
            1 => on.limiter = 0,
            _ => {}
        },
    }
}

/// How many ways there are to simplify a policy.
const POLICIES: usize = 16;

fn simpler_policy(case: &Case, number: usize, way: usize) -> Case {
    let mut case = case.clone();
    let Some(policy) = case.policies.get_mut(number) else { return case };
    let mut limits = policy.limits().to_vec();
    let mut counting = policy.counting();
    match way {
        0 => counting = Counting::Admitted,
        // One of the limits goes.
        1..=8 if limits.len() > 1 && way <= limits.len() => drop(limits.remove(way - 1)),
        9 => limits.iter_mut().for_each(|of| *of = limit(1, of.window().as_micros())),
        10 => limits.iter_mut().for_each(|of| *of = limit(lower(of.max()), of.window().as_micros())),
        11 => limits.iter_mut().for_each(|of| *of = limit((of.max() / 2).max(1), of.window().as_micros())),
        12 => limits.iter_mut().for_each(|of| *of = limit(of.max(), of.window().as_micros().min(10))),
        13 => limits.iter_mut().for_each(|of| *of = limit(of.max(), of.window().as_micros().min(1))),
        14 => limits.truncate(1),
        _ => {}
    }
    *policy = rebuilt(&limits, policy).with_counting(counting);
    case
}

fn rebuilt(limits: &[Limit], policy: &Policy) -> Policy {
    Policy::new(limits.iter().copied()).unwrap_or_else(|_| policy.clone())
}

/// The case with another place for every operation.
fn everywhere(case: &Case, change: impl Fn(&mut Place)) -> Case {
    let mut case = case.clone();
    for step in &mut case.steps {
        match &mut step.operation {
            Operation::Run { on, .. } | Operation::Reset { on } | Operation::Settle { on: Some(on), .. } => change(on),
            Operation::Settle { on: None, .. } => {}
        }
    }
    case
}

/// Operations that named the last policy name another one then.
fn without_last_policy(case: &Case) -> Case {
    let mut case = case.clone();
    if case.policies.len() > 1 {
        case.policies.pop();
    }
    case
}

#[cfg(test)]
mod tests {
    use limiter_core::policy;
    use proptest::strategy::Strategy;
    use proptest::test_runner::TestRunner;

    use super::super::strategy::cases;
    use super::*;

    /// Shrinks a case for as long as `fails` holds.
    fn shrunk(case: Case, fails: impl Fn(&Case) -> bool) -> Case {
        let mut tree = Shrinking::new(case);
        assert!(fails(&tree.current()));
        let mut tries = 0;
        let mut go_on = tree.simplify();
        while go_on {
            tries += 1;
            assert!(tries < 20_000, "it does not end");
            go_on = if fails(&tree.current()) { tree.simplify() } else { tree.complicate() };
        }
        tree.current()
    }

    fn refunds(case: &Case) -> usize {
        case.steps.iter().filter(|step| matches!(step.operation, Operation::Settle { cost: 0, .. })).count()
    }

    #[test]
    fn shrinks_to_what_matters() {
        let mut runner = TestRunner::deterministic();
        let mut found = 0;
        for _ in 0..100 {
            let case = cases(40..=60).new_tree(&mut runner).unwrap().current();
            if refunds(&case) < 2 {
                continue;
            }
            let small = shrunk(case, |case| refunds(case) >= 2);
            // Two refunds, and the one or two steps whose receipts they use.
            assert!((3..=4).contains(&small.steps.len()), "{small:?}");
            assert!(small.steps.iter().all(|step| step.after == 0), "{small:?}");
            assert_eq!((small.policies.len(), small.limiters.len(), small.start), (1, 1, START));
            assert_eq!(small.policies[0].limits(), policy!("1/1us").limits());
            found += 1;
        }
        assert!(found > 50, "{found}");
    }

    #[test]
    fn a_step_that_goes_takes_its_settlements_along_and_no_other() {
        let run = |cost| Step {
            after: 1,
            operation: Operation::Run { mode: Mode::Record, on: Place::default(), policy: 0, cost, id: None },
        };
        let settle = |step, cost| Step { after: 1, operation: Operation::Settle { step, on: None, cost, policy: 0 } };
        let steps = vec![run(1), run(2), settle(0, 5), settle(1, 6), run(3), settle(4, 7)];
        let case = Case { policies: vec![policy!("3/10us")], limiters: vec![CaseLimiter::NONE], start: START, steps };
        let smaller = without(&case, 0, 1);
        let mut expected = vec![run(2), settle(0, 6), run(3), settle(2, 7)];
        expected[0].after = 2;
        expected[1].after = 2;
        assert_eq!(smaller.steps, expected);
    }
}
