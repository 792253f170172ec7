//! What a dropped call may have done.

use super::dropped::DroppedCall;
use crate::conformance::sequence::Plan;
use crate::conformance::sequence::call_result::{CallResult, StoreResult, agrees};
use crate::conformance::sequence::case::{Case, Step};

/// One order in which the store may have run the calls. The dropped call runs in its place, later or never.
#[derive(Debug)]
pub(super) struct History {
    pub(super) what: String,
    /// The expected answer of each later step; `None` if the step is skipped.
    pub(super) expected: Vec<Option<CallResult>>,
}

/// Returns all histories. The call may take effect late, because it may still be on its way to a server.
pub(super) fn histories(dropped: &DroppedCall) -> Result<Vec<History>, String> {
    let (case, step) = (&dropped.script.case, dropped.step);
    let later = &case.steps[step + 1..];
    let mut histories = Vec::new();
    for place in 0..=later.len() {
        let what = match place {
            0 => "the dropped call took effect at once".to_owned(),
            _ => format!("the dropped call took effect just before step {}", place + 1),
        };
        let mut steps = case.steps[..step].to_vec();
        steps.extend(&later[..place]);
        steps.push(case.steps[step]);
        steps.extend(&later[place..]);
        histories.push(of(case, what, steps, |i| if i < place { step + i } else { step + 1 + i }, later.len())?);
    }
    let steps = [&case.steps[..step], later].concat();
    histories.push(of(case, "the dropped call never took effect".to_owned(), steps, |i| step + i, later.len())?);
    Ok(histories)
}

fn of(
    case: &Case,
    what: String,
    steps: Vec<Step>,
    number: impl Fn(usize) -> usize,
    later: usize,
) -> Result<History, String> {
    let plan = Plan::of(&Case { steps, ..case.clone() })?;
    let reply =
        |step: usize| plan.calls.iter().find(|planned| planned.step == step).map(|planned| planned.expected.clone());
    Ok(History { what, expected: (0..later).map(|i| reply(number(i))).collect() })
}

impl History {
    /// Returns whether the store's answers to the later steps match this history. Ignores which call appended an
    /// entry, because the dropped call's receipt is lost.
    pub(super) fn agrees(&self, got: &[StoreResult]) -> bool {
        self.first_difference(got).is_none()
    }

    pub(super) fn first_difference(&self, got: &[StoreResult]) -> Option<usize> {
        let differs = |(expected, got): (&Option<CallResult>, &StoreResult)| match (expected.clone(), got) {
            (None, _) => false,
            (Some(CallResult::Decided(mut expected)), Ok(CallResult::Decided(got))) => {
                expected.repeats = got.repeats;
                !agrees(&CallResult::Decided(expected), &Ok(CallResult::Decided(got.clone())))
            }
            (Some(expected), got) => !agrees(&expected, got),
        };
        self.expected.iter().zip(got).position(differs)
    }
}
