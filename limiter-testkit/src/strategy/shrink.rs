//! How a value that fails becomes simpler.

use std::fmt::Debug;
use std::ops::Range;

use limiter_core::{Counting, Limit, Policy};
use proptest::strategy::ValueTree;

use crate::conformance::policies::{START, limit, policy, resolved};
use crate::conformance::{Case, Joint, Place, Step, Verb};

/// A change that makes a value simpler. `None` if it does not apply.
type Change<T> = Box<dyn Fn(&T) -> Option<T> + Send>;

/// A value that can be simpler.
pub trait Shrunk: Clone + Debug + PartialEq {
    /// Returns changes, the most promising first. No sequence of them returns to a value.
    #[doc(hidden)]
    fn changes(&self) -> Vec<Change<Self>>;
}

/// A value and the simpler ones that have not been tried. Each change is tried again until none is left that fails.
#[must_use]
pub struct Tree<T: Shrunk> {
    value: T,
    /// The value before the last change.
    before: Option<T>,
    changes: std::vec::IntoIter<Change<T>>,
    /// Whether a change of this round stays.
    has_changed: bool,
}

impl<T: Shrunk> Debug for Tree<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut out = f.debug_struct("Tree");
        out.field("value", &self.value).finish_non_exhaustive()
    }
}

impl<T: Shrunk> Tree<T> {
    pub(crate) fn new(value: T) -> Self {
        Self {
            changes: value.changes().into_iter(),
            value,
            before: None,
            has_changed: false,
        }
    }

    /// Makes the next change. Returns `false` if there is none.
    fn change(&mut self) -> bool {
        loop {
            for change in self.changes.by_ref() {
                if let Some(simpler) = change(&self.value).filter(|other| *other != self.value) {
                    self.before = Some(std::mem::replace(&mut self.value, simpler));
                    return true;
                }
            }
            if !std::mem::take(&mut self.has_changed) {
                return false;
            }
            self.changes = self.value.changes().into_iter();
        }
    }
}

impl<T: Shrunk> ValueTree for Tree<T> {
    type Value = T;

    fn current(&self) -> T {
        self.value.clone()
    }

    fn simplify(&mut self) -> bool {
        self.has_changed |= self.before.take().is_some();
        self.change()
    }

    /// Takes the last change back, and makes the next.
    fn complicate(&mut self) -> bool {
        let Some(before) = self.before.take() else {
            return false;
        };
        self.value = before;
        self.change()
    }
}

impl Shrunk for Policy {
    fn changes(&self) -> Vec<Change<Self>> {
        let mut changes: Vec<Change<Self>> = Vec::new();
        for number in (0..self.limits().len()).rev() {
            changes.push(Box::new(move |of| {
                let mut limits = of.limits().to_vec();
                let is_one_of_several = limits.len() > 1 && number < limits.len();
                is_one_of_several.then(|| limits.remove(number))?;
                Some(like(of, &limits))
            }));
        }
        changes.push(Box::new(|of| {
            Some(of.clone().with_counting(Counting::Admitted))
        }));
        // The window contains the lease.
        let exact = |limit: &Limit| self::limit(limit.max(), limit.window().as_micros());
        changes.push(Box::new(move |of| {
            let limits: Vec<Limit> = of.limits().iter().map(exact).collect();
            Some(like(of, &limits))
        }));
        changes.push(Box::new(move |of| {
            let limits = of.limits().iter().map(|limit| match limit.resolution() {
                Some(resolution) => resolved(exact(limit), resolution.as_micros() as u64),
                None => exact(limit),
            });
            Some(like(of, &limits.collect::<Vec<_>>()))
        }));
        changes
    }
}

/// Returns a policy of these limits that counts like another one.
fn like(of: &Policy, limits: &[Limit]) -> Policy {
    policy(limits, of.counting() == Counting::Attempts)
}

impl Shrunk for Case {
    fn changes(&self) -> Vec<Change<Self>> {
        let mut changes: Vec<Change<Self>> = Vec::new();
        for number in (0..self.policies.len()).rev() {
            changes.push(Box::new(move |case| without_policy(case, number)));
        }
        for (number, policy) in self.policies.iter().enumerate() {
            for change in policy.changes() {
                changes.push(Box::new(move |case| {
                    let mut case = case.clone();
                    let policy = case.policies.get_mut(number)?;
                    *policy = change(policy)?;
                    Some(case)
                }));
            }
        }
        for block in blocks(self.steps.len()) {
            changes.push(Box::new(move |case| {
                let is_dropped = |step| block.contains(&step);
                Some(case.without(is_dropped)).filter(|case| !case.steps.is_empty())
            }));
        }
        for number in (0..self.steps.len()).rev() {
            for change in STEP_CHANGES {
                changes.push(Box::new(move |case| {
                    let mut case = case.clone();
                    change(case.steps.get_mut(number)?);
                    Some(case)
                }));
            }
        }
        changes.push(Box::new(|case| {
            let mut case = case.clone();
            case.limiters.clear();
            Some(case)
        }));
        changes.push(Box::new(|case| {
            let mut case = case.clone();
            case.start = START;
            Some(case)
        }));
        changes
    }
}

/// Returns ever smaller blocks of steps, each size from the last step to the first.
fn blocks(steps: usize) -> Vec<Range<usize>> {
    let mut blocks = Vec::new();
    let mut width = steps;
    while width > 0 {
        let mut end = steps;
        while end > 0 {
            blocks.push(end.saturating_sub(width)..end);
            end = end.saturating_sub(width);
        }
        width /= 2;
    }
    blocks
}

fn without_policy(case: &Case, number: usize) -> Option<Case> {
    let count = case.policies.len();
    if count < 2 || number >= count {
        return None;
    }
    let mut case = case.clone();
    case.policies.remove(number);
    // Uses of the policy become uses of the first.
    let renumber = |policy: &mut u8| {
        let old = usize::from(*policy) % count;
        *policy = match old {
            _ if old == number => 0,
            _ => (old - usize::from(old > number)) as u8,
        };
    };
    case.steps
        .iter_mut()
        .for_each(|step| renumber(&mut step.policy));
    let limiters = case.limiters.iter_mut();
    limiters
        .filter_map(|limiter| limiter.policy.as_mut())
        .for_each(renumber);
    Some(case)
}

const STEP_CHANGES: [fn(&mut Step); 12] = [
    |step| step.cost = step.cost.min(1),
    |step| step.id = None,
    |step| step.after = 0,
    |step| step.joint = Joint::default(),
    |step| step.joint.is_advisory = false,
    |step| step.joint.keeps_charge = false,
    // A settlement's place says that the receipt belongs to another log.
    |step| {
        step.on = step.on.filter(|place| {
            *place != Place::default() && !matches!(step.verb, Verb::Settle(_) | Verb::Renew(_))
        });
    },
    |step| step.on.iter_mut().for_each(|place| place.limiter = 0),
    |step| step.on.iter_mut().for_each(|place| place.key = 0),
    |step| step.policy = 0,
    |step| step.cost -= step.cost.saturating_sub(1) / 2,
    |step| step.after /= 2,
];
