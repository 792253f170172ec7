//! Runs scripts at the store's clock.

use futures::future::join_all;
use limiter_core::store::At;
use limiter_core::{Counting, Policy, Window};

use super::Session;
use crate::case::Case;
use crate::conformance::mismatch::Mismatch;
use crate::conformance::suite::run::Run;
use crate::policies::{leased, limit, policy, resolved};
use crate::script::Script;

/// How the times of a script become real times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pace {
    /// Windows are so long that nothing expires before the script ends, and no step waits.
    Standstill,
    /// Microseconds are stretched, and the steps sleep. Scripts that would sleep too long do not run.
    Stretched,
    /// The script is written in milliseconds, and the steps sleep.
    Millis,
}

/// Ten microseconds become an hour.
const STANDSTILL_FACTOR: u64 = 360_000_000;
/// The longest total sleep of a stretched script, in microseconds.
const MAX_TOTAL_SLEEP: u64 = 120_000;
/// The largest factor: a microsecond becomes two milliseconds.
const MAX_FACTOR: u64 = 2_000;
/// The number of concurrent scripts. They spend most of their time asleep.
const AT_ONCE: usize = 32;

impl Pace {
    /// Returns the factors of windows and of sleeps. `None` if the case does not suit this pace.
    fn factors(self, case: &Case) -> Option<(u64, u64)> {
        match self {
            Self::Standstill => Some((STANDSTILL_FACTOR, 0)),
            Self::Millis => Some((1, 1_000)),
            Self::Stretched => {
                let after = case.steps.iter().map(|step| step.after.max(0) as u64);
                let total: u64 = after.sum();
                let factor = MAX_TOTAL_SLEEP.checked_div(total)?.min(MAX_FACTOR);
                (factor > 10).then_some((factor, factor))
            }
        }
    }
}

fn stretched(policy: &Policy, factor: u64) -> Policy {
    let limits = policy.limits().iter().map(|of| {
        let times = |micros: u64| micros.saturating_mul(factor).min(Window::MAX.as_micros());
        let resolution = of.resolution().unwrap_or_default().as_micros() as u64;
        let coarse = resolved(
            limit(of.max(), times(of.window().as_micros())),
            times(resolution),
        );
        let lease = of.lease().unwrap_or_default().as_micros() as u64;
        leased(coarse, times(lease))
    });
    let limits: Vec<_> = limits.collect();
    self::policy(&limits, policy.counting() == Counting::Attempts)
}

/// Runs scripts, many at the same time.
pub(crate) async fn run_scripts(run: &mut Run<'_>, scripts: &[Script], pace: Pace, turn: usize) {
    for (batch, scripts) in scripts.chunks(AT_ONCE).enumerate() {
        let turns = turn + batch..;
        let runs = scripts.iter().zip(turns);
        let runs = runs.map(|(script, turn)| run_script(run, script, pace, turn));
        for result in join_all(runs).await {
            run.check(result);
        }
    }
}

/// Runs a script. Returns the number of calls, or 0 if the script does not suit this pace.
pub(crate) async fn run_script(
    run: &Run<'_>,
    script: &Script,
    pace: Pace,
    turn: usize,
) -> Result<u64, Mismatch> {
    let Some((windows, sleeps)) = pace.factors(&script.case) else {
        return Ok(0);
    };
    let mut case = script.case.clone();
    for policy in &mut case.policies {
        *policy = stretched(policy, windows);
    }
    let mut session = Session::new(run, &case, turn);
    // At the other paces, sweeps would only cost time.
    session.sweep = run.suite.sweep.clone().filter(|_| pace == Pace::Millis);
    let steps = case.steps.len();
    let mut result = session.script(script, 0..steps, sleeps).await;
    if result.is_ok() {
        let last = steps.saturating_sub(1);
        result = session.peek_all(last, At::StoreClock).await;
    }
    let result = session.ended(script, result).await;
    result.map_err(|mismatch| mismatch.under(" at the store's own clock", &[]))
}
