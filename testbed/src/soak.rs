//! Random faults for a given time.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fastrand::Rng;
use limiter_core::{BoxFuture, Limiter, SharedStore, policy};
use tokio::task::{JoinSet, block_in_place};
use tokio::time::{Instant, sleep};

use crate::observe::recovered;
use crate::scene::Scene;
use crate::subject::{Outcome, Subject};
use limiter_testkit::poll_times;

/// The limit: units within a window, in microseconds.
const MAX: u64 = 20;
const WINDOW: u64 = 1_000_000;
const TASKS: u64 = 3;

/// How long to soak, and how.
#[derive(Clone, Debug)]
pub struct Soak<F> {
    /// The faults to choose from. None may lose data.
    pub faults: Vec<F>,
    /// How long.
    pub length: Duration,
    /// The seed of all choices. Print it.
    pub seed: u64,
}

impl<F> Soak<F> {
    /// Returns a soak with the length `LIMITER_SOAK_SECONDS` (default: 4) and the seed `LIMITER_SEED` (default: random).
    #[must_use]
    pub fn from_env(faults: Vec<F>) -> Self {
        let number = |name| std::env::var(name).ok().and_then(|value| value.parse().ok());
        let length = Duration::from_secs(number("LIMITER_SOAK_SECONDS").unwrap_or(4));
        Self { faults, length, seed: number("LIMITER_SEED").unwrap_or_else(|| fastrand::u64(..)) }
    }
}

/// What happened in a soak.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct SoakReport {
    /// How often each fault happened.
    pub faults: BTreeMap<String, u64>,
    /// The number of calls of all subjects.
    pub calls: u64,
    /// The number of calls with each outcome, except dropped ones.
    pub outcomes: BTreeMap<String, u64>,
    /// The calls that were dropped.
    pub dropped: u64,
    /// The most units, of a limit of 20, that a window admitted, by subject.
    pub worst: BTreeMap<&'static str, u64>,
    /// The longest call.
    pub slowest: Duration,
    /// The broken promises. Empty for correct stores.
    pub violations: Vec<String>,
}

/// Runs random faults of random lengths, while tasks acquire, peek and drop calls under a limit of 20 per second. Checks that
/// every call ends within its store's bound, that no window admits more than [`Subject::most`] allows, and that the server decides
/// for each store again in the end.
///
/// Unlike in [`observe`](crate::observe), a window may meet several faults. Call it in a multi-threaded tokio runtime.
///
/// # Errors
/// If the scene cannot begin or end a fault.
pub async fn soak<X: Scene>(
    scene: &mut X,
    soak: &Soak<X::Fault>,
    subjects: &[Subject],
    direct: impl AsyncFn(String) -> SharedStore,
) -> io::Result<SoakReport> {
    let mut random = Rng::with_seed(soak.seed);
    let over = Arc::new(AtomicBool::new(false));
    let mut tasks = JoinSet::new();
    for subject in subjects {
        for _ in 0..TASKS {
            tasks.spawn(work(subject.clone(), random.fork(), Arc::clone(&over)));
        }
    }
    let mut report = SoakReport::default();
    let until = Instant::now() + soak.length;
    while Instant::now() < until {
        sleep(Duration::from_millis(random.u64(0..300))).await;
        let Some(fault) = random.choice(&soak.faults).copied() else { continue };
        *report.faults.entry(fault.to_string()).or_default() += 1;
        block_in_place(|| scene.begin(fault))?;
        sleep(Duration::from_millis(random.u64(10..700))).await;
        block_in_place(|| scene.end(fault))?;
    }
    over.store(true, Ordering::Relaxed);
    let mut admitted: BTreeMap<(&str, u8), Vec<(u64, u64)>> = BTreeMap::new();
    while let Some(done) = tasks.join_next().await {
        let done = done.map_err(io::Error::other)?;
        report.calls += done.calls;
        report.dropped += done.dropped;
        report.slowest = report.slowest.max(done.slowest);
        report.violations.extend(done.violations);
        for (outcome, count) in done.outcomes {
            *report.outcomes.entry(outcome).or_default() += count;
        }
        for (key, at, cost) in done.admitted {
            admitted.entry((done.subject, key)).or_default().push((at, cost));
        }
    }
    for ((subject, _), admitted) in admitted {
        let worst = report.worst.entry(subject).or_default();
        *worst = worst_window(admitted).max(*worst);
    }
    let direct = direct(scene.direct_url()).await;
    for subject in subjects {
        let name = format!("{}, recovery", subject.name);
        if let Err(violation) = recovered(subject, &name, &direct).await {
            report.violations.push(format!("{}: {violation}", subject.name));
        }
        let worst = report.worst.get(subject.name).copied().unwrap_or(0);
        if subject.most.is_some_and(|times| worst > times * MAX) {
            report.violations.push(format!("{}: a window of {MAX} admitted {worst}", subject.name));
        }
    }
    Ok(report)
}

/// What one task did.
struct Done {
    subject: &'static str,
    calls: u64,
    outcomes: BTreeMap<String, u64>,
    dropped: u64,
    /// Keys, times in microseconds, and costs.
    admitted: Vec<(u8, u64, u64)>,
    slowest: Duration,
    violations: Vec<String>,
}

async fn work(subject: Subject, mut random: Rng, over: Arc<AtomicBool>) -> Done {
    let limiter = Limiter::new(subject.name, policy!("20/1s"), subject.store.clone());
    let mut done = Done {
        subject: subject.name,
        calls: 0,
        outcomes: BTreeMap::new(),
        dropped: 0,
        admitted: Vec::new(),
        slowest: Duration::ZERO,
        violations: Vec::new(),
    };
    while !over.load(Ordering::Relaxed) {
        let (key, cost) = (random.u8(0..2), random.u64(1..4));
        done.calls += 1;
        let kind = random.u8(0..8);
        let polls = if kind == 0 { random.usize(1..4) } else { usize::MAX };
        let is_peek = kind == 1;
        // Boxed: a spawned task cannot hold the generic future.
        let call: BoxFuture<'_, _> =
            if is_peek { Box::pin(limiter.peek([key])) } else { Box::pin(limiter.acquire([key]).cost(cost)) };
        if let Some(call) = poll_times(polls, subject.call(call)).await {
            done.slowest = done.slowest.max(call.took);
            *done.outcomes.entry(call.outcome.to_string()).or_default() += 1;
            match (call.outcome, call.at) {
                (Outcome::Never, _) => {
                    done.violations.push(format!("{}: a call did not end within {:?}", subject.name, call.took));
                }
                (Outcome::Ok { allowed: true }, Some(at)) if !is_peek => done.admitted.push((key, at, cost)),
                _ => {}
            }
        } else {
            // What it would have admitted is not seen, which is in the store's favour.
            done.dropped += 1;
        }
        sleep(Duration::from_millis(random.u64(0..20))).await;
    }
    done
}

/// Returns the most units within any window, of admissions at these times with these costs.
fn worst_window(mut admitted: Vec<(u64, u64)>) -> u64 {
    admitted.sort_unstable();
    let (mut first, mut units, mut worst) = (0, 0, 0);
    for (at, cost) in &admitted {
        units += cost;
        while at - admitted[first].0 >= WINDOW {
            units -= admitted[first].1;
            first += 1;
        }
        worst = worst.max(units);
    }
    worst
}
