//! Runs scripts at the store's clock.

use futures::future::join_all;
use limiter_core::store::At;
use limiter_core::{Counting, Policy, Window};

use super::Session;
use crate::conformance::mismatch::Mismatch;
use crate::conformance::suite::run::Run;
use crate::policies::{limit, policy, resolved};
use crate::script::Script;

/// How the times of a script become real times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pace {
    /// Windows are so long that nothing expires before the script ends, and no step waits.
    Standstill,
    /// The script is written in milliseconds, and the steps sleep.
    Millis,
}

/// Ten microseconds become an hour.
const STANDSTILL_FACTOR: u64 = 360_000_000;
/// The number of concurrent scripts. They spend most of their time asleep.
const AT_ONCE: usize = 32;

fn stretched(policy: &Policy) -> Policy {
    let limits = policy.limits().iter().map(|of| {
        let most = Window::MAX.as_micros();
        let times = |micros: u64| micros.saturating_mul(STANDSTILL_FACTOR).min(most);
        let resolution = of.resolution().unwrap_or_default().as_micros() as u64;
        let window = times(of.window().as_micros());
        resolved(limit(of.max(), window), times(resolution))
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

/// Runs a script. Returns the number of calls.
async fn run_script(
    run: &Run<'_>,
    script: &Script,
    pace: Pace,
    turn: usize,
) -> Result<u64, Mismatch> {
    let sleeps = if pace == Pace::Millis { 1_000 } else { 0 };
    let mut case = script.case.clone();
    if pace == Pace::Standstill {
        for policy in &mut case.policies {
            *policy = stretched(policy);
        }
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
