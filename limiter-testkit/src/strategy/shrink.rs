//! How a value that fails becomes simpler.

use std::fmt::Debug;
use std::ops::Range;

use limiter_core::store::Mode;
use limiter_core::{Counting, Limit, Policy};
use proptest::strategy::ValueTree;

use crate::conformance::policies::{START, limit, policy, resolved};
use crate::conformance::{Case, Joint, Place, Step, Verb};

/// A change that makes a value simpler, unless it does not apply.
type Change<T> = Box<dyn Fn(&mut T) + Send>;

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
                let before = self.value.clone();
                change(&mut self.value);
                if self.value != before {
                    self.before = Some(before);
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
                if limits.len() > 1 && number < limits.len() {
                    limits.remove(number);
                    set_limits(of, &limits);
                }
            }));
        }
        changes.push(Box::new(|of| {
            *of = of.clone().with_counting(Counting::Admitted);
        }));
        // The window contains the lease.
        let exact = |limit: &Limit| self::limit(limit.max(), limit.window().as_micros());
        changes.push(Box::new(move |of| {
            let limits: Vec<_> = of.limits().iter().map(exact).collect();
            set_limits(of, &limits);
        }));
        changes.push(Box::new(move |of| {
            let limits = of.limits().iter().map(|limit| match limit.resolution() {
                Some(resolution) => resolved(exact(limit), resolution.as_micros() as u64),
                None => exact(limit),
            });
            set_limits(of, &limits.collect::<Vec<_>>());
        }));
        changes
    }
}

fn set_limits(of: &mut Policy, limits: &[Limit]) {
    *of = policy(limits, of.counting() == Counting::Attempts);
}

/// Returns the limit with another maximum.
fn with_max(of: &Limit, max: u64) -> Limit {
    let exact = limit(max, of.stated_window().as_micros());
    let coarse = of
        .resolution()
        .map_or(Ok(exact), |resolution| exact.with_resolution(resolution));
    let made = coarse.and_then(|limit| {
        of.lease()
            .map_or(Ok(limit), |lease| limit.with_lease(lease))
    });
    made.unwrap_or(*of)
}

impl Shrunk for Case {
    fn changes(&self) -> Vec<Change<Self>> {
        let mut changes: Vec<Change<Self>> = Vec::new();
        for number in (0..self.policies.len()).rev() {
            changes.push(Box::new(move |case| remove_policy(case, number)));
        }
        for (number, policy) in self.policies.iter().enumerate() {
            for change in policy.changes() {
                changes.push(Box::new(move |case| {
                    case.policies.get_mut(number).into_iter().for_each(&change);
                }));
            }
        }
        // Together, because a limit of two needs a cost of two, and policies that are alike can replace one another.
        for most in 1..=3 {
            changes.push(Box::new(move |case| {
                for policy in &mut case.policies {
                    let limits = policy.limits().iter();
                    let limits = limits.map(|of| with_max(of, of.max().min(most)));
                    let limits: Vec<_> = limits.collect();
                    set_limits(policy, &limits);
                }
                for step in &mut case.steps {
                    step.cost = step.cost.min(most);
                }
            }));
        }
        for block in blocks(self.steps.len()) {
            changes.push(Box::new(move |case| {
                let left = case.without(|step| block.contains(&step));
                if !left.steps.is_empty() {
                    *case = left;
                }
            }));
        }
        for number in (0..self.steps.len()).rev() {
            for change in STEP_CHANGES {
                changes.push(Box::new(move |case| {
                    case.steps.get_mut(number).into_iter().for_each(change);
                }));
            }
        }
        changes.push(Box::new(|case| case.limiters.clear()));
        changes.push(Box::new(|case| case.start = START));
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

fn remove_policy(case: &mut Case, number: usize) {
    let count = case.policies.len();
    if count < 2 || number >= count {
        return;
    }
    case.policies.remove(number);
    let of_limiters = case
        .limiters
        .iter_mut()
        .filter_map(|limiter| limiter.policy.as_mut());
    let of_steps = case.steps.iter_mut().map(|step| &mut step.policy);
    // Uses of the policy become uses of the first.
    for policy in of_steps.chain(of_limiters) {
        let old = usize::from(*policy) % count;
        *policy = match old {
            _ if old == number => 0,
            _ => (old - usize::from(old > number)) as u8,
        };
    }
}

const STEP_CHANGES: [fn(&mut Step); 14] = [
    |step| (step.verb, step.id) = (Verb::Run(Mode::Peek), None),
    |step| {
        step.refers_to()
            .into_iter()
            .for_each(|issuer| *issuer = issuer.saturating_sub(1));
    },
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
