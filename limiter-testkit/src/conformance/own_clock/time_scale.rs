//! Runs cases that are written in microseconds on a real clock.

use std::sync::Arc;
use std::time::Duration;

use limiter_core::{Policy, Window, WindowStore};

use super::Session;
use super::clock::When;
use crate::conformance::cases::script::Script;
use crate::conformance::cases::script::finding;
use crate::conformance::generated::strategy::limit;
use crate::conformance::sequence::case::Case;
use crate::conformance::suite::failure::Finding;
use crate::conformance::suite::run::Run;

/// How the time of a case is scaled to real time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TimeScale {
    /// Windows are so long that nothing expires before the case ends.
    Standstill,
    /// The steps sleep, and entries expire.
    RealTime,
}

/// Ten microseconds become an hour.
const STANDSTILL_FACTOR: u64 = 360_000_000;
/// The longest total sleep of a case, in microseconds.
const MAX_TOTAL_SLEEP: u64 = 120_000;
/// The largest factor: a microsecond becomes two milliseconds.
const MAX_FACTOR: u64 = 2_000;

impl TimeScale {
    /// Returns the factor; `None` if the case does not suit this scale.
    fn factor(self, case: &Case) -> Option<u64> {
        match self {
            Self::Standstill => Some(STANDSTILL_FACTOR),
            Self::RealTime => {
                let total: u64 = case.steps.iter().map(|step| u64::try_from(step.after).unwrap_or(0)).sum();
                let factor = MAX_TOTAL_SLEEP.checked_div(total)?.min(MAX_FACTOR);
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

/// Runs a script at the store's clock. Returns the number of calls, or 0 if the script does not suit this scale.
pub(crate) async fn replay_script<S: WindowStore + ?Sized>(
    run: &Run<'_, S>,
    handles: &[Arc<S>],
    script: &Script,
    scale: TimeScale,
    turn: usize,
) -> Result<u64, Finding> {
    let Some(factor) = scale.factor(&script.case) else { return Ok(0) };
    let mut case = script.case.clone();
    case.policies = case.policies.iter().map(|policy| scaled(policy, factor)).collect();
    let session = Session::new(run, handles, &case, turn);
    let mut session = session.map_err(|text| Finding::new(script.name, &[], text))?;
    let result = async {
        for (number, step) in case.steps.iter().enumerate() {
            let after = u64::try_from(step.after).unwrap_or(0);
            if scale == TimeScale::RealTime && after > 0 {
                session.sleep(Duration::from_micros(after * factor)).await?;
            }
            session.step(number, step.operation, When::Store).await?;
        }
        session.peek_all(case.steps.len().saturating_sub(1)).await
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
