//! Cases written in microseconds, at the pace of a real clock.

use std::sync::Arc;
use std::time::Duration;

use limiter_core::{Policy, Window, WindowStore};

use super::clock::When;
use super::session::Session;
use crate::conformance::cases::script::Script;
use crate::conformance::cases::script::finding;
use crate::conformance::generated::strategy::limit;
use crate::conformance::sequence::case::Case;
use crate::conformance::suite::failure::Finding;

/// How the time of a case passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pace {
    /// Windows are so long that the case is over before anything leaves.
    Standing,
    /// Entries leave: the steps sleep.
    Running,
}

/// Ten microseconds become an hour.
const STANDING: u64 = 360_000_000;
/// The longest that a case sleeps in all, in microseconds.
const LONGEST: u64 = 120_000;
/// A microsecond becomes at most two milliseconds.
const MOST: u64 = 2_000;

impl Pace {
    /// Returns how much longer everything takes, `None` if the case does not fit this pace.
    fn factor(self, case: &Case) -> Option<u64> {
        match self {
            Self::Standing => Some(STANDING),
            Self::Running => {
                let total: u64 = case.steps.iter().map(|step| u64::try_from(step.after).unwrap_or(0)).sum();
                let factor = LONGEST.checked_div(total)?.min(MOST);
                (factor > 10).then_some(factor)
            }
        }
    }
}

fn scaled(policy: &Policy, factor: u64) -> Policy {
    let limits = policy.limits().iter().map(|of| {
        let window = of.window().as_micros().saturating_mul(factor);
        limit(of.max(), window.min(Window::MAX.as_micros()))
    });
    Policy::new(limits).map_or_else(|_| policy.clone(), |new| new.with_counting(policy.counting()))
}

/// Puts a script to a store at the store's own clock. Returns how many calls there were; 0 if it does not fit the pace.
pub(crate) async fn put<S: WindowStore + ?Sized>(
    handles: &[Arc<S>],
    script: &Script,
    pace: Pace,
    (key, turn): (String, usize),
    tolerance: Option<Duration>,
) -> Result<u64, Finding> {
    let Some(factor) = pace.factor(&script.case) else { return Ok(0) };
    let mut case = script.case.clone();
    case.policies = case.policies.iter().map(|policy| scaled(policy, factor)).collect();
    let session = Session::new(handles, &case, &key, tolerance, turn);
    let mut session = session.map_err(|text| Finding::new(script.name, &[], text))?;
    let result = async {
        for (number, step) in case.steps.iter().enumerate() {
            let after = u64::try_from(step.after).unwrap_or(0);
            if pace == Pace::Running && after > 0 {
                session.sleep(Duration::from_micros(after * factor)).await?;
            }
            session.step(number, step.operation, When::Store).await?;
        }
        session.look(case.steps.len().saturating_sub(1)).await
    };
    let result = result.await;
    session.end().await;
    match result {
        Ok(()) => Ok(session.calls()),
        Err(mismatch) => {
            let mut finding = finding(script, session.plan(), mismatch);
            finding.title += " at the store's own clock";
            Err(finding)
        }
    }
}
