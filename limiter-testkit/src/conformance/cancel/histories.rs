//! What may have happened when a call was dropped.

use super::dropped::Dropped;
use crate::conformance::sequence::case::{Case, Step};
use crate::conformance::sequence::plan::Plan;
use crate::conformance::sequence::reply::{Got, Reply, agrees};

/// One of the orders in which a store may have done everything: the dropped call at its place, later or never.
#[derive(Debug)]
pub(super) struct History {
    pub(super) what: String,
    /// What each later step must answer; `None` if the step is left out.
    pub(super) expected: Vec<Option<Reply>>,
}

/// Returns all histories. Late ones are possible: the call may still be on its way to a server.
pub(super) fn histories(dropped: &Dropped) -> Result<Vec<History>, String> {
    let (case, step) = (&dropped.script.case, dropped.step);
    let later = &case.steps[step + 1..];
    let mut histories = Vec::new();
    for place in 0..=later.len() {
        let what = match place {
            0 => "the dropped call had its effect".to_owned(),
            _ => format!("it had its effect only before step {}", place + 1),
        };
        let mut steps = case.steps[..step].to_vec();
        steps.extend(&later[..place]);
        steps.push(case.steps[step]);
        steps.extend(&later[place..]);
        histories.push(of(case, what, steps, |i| if i < place { step + i } else { step + 1 + i }, later.len())?);
    }
    let steps = [&case.steps[..step], later].concat();
    histories.push(of(case, "the dropped call had no effect".to_owned(), steps, |i| step + i, later.len())?);
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
    /// Whether the answers to the later steps are those of this history. Which call appended an entry is not compared: the
    /// dropped call's receipt is lost.
    pub(super) fn agrees(&self, got: &[Got]) -> bool {
        self.first_difference(got).is_none()
    }

    pub(super) fn first_difference(&self, got: &[Got]) -> Option<usize> {
        let differs = |(expected, got): (&Option<Reply>, &Got)| match (expected.clone(), got) {
            (None, _) => false,
            (Some(Reply::Decided(mut expected)), Ok(Reply::Decided(got))) => {
                expected.repeats = got.repeats;
                !agrees(&Reply::Decided(expected), &Ok(Reply::Decided(got.clone())))
            }
            (Some(expected), got) => !agrees(&expected, got),
        };
        self.expected.iter().zip(got).position(differs)
    }
}
