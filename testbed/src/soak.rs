//! Random faults for a given time.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fastrand::Rng;
use limiter_core::{BoxFuture, Limiter, SharedStore, policy};
use limiter_testkit::poll_times;
use tokio::task::{JoinSet, block_in_place};
use tokio::time::{Instant, sleep};

use crate::observe::recovered;
use crate::scene::Scene;
use crate::subject::{Seen, Subject};

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
    /// The seed of all choices.
    pub seed: u64,
}

impl<F> Soak<F> {
    /// Returns a soak of `LIMITER_SOAK_SECONDS` (default: 4, or 60 with `LIMITER_TEST_ALL`) and with the seed `LIMITER_SEED`
    /// (default: random), which it prints.
    #[must_use]
    pub fn from_env(faults: Vec<F>) -> Self {
        let number = |name| std::env::var(name).ok().and_then(|value| value.parse().ok());
        let seconds = number("LIMITER_SOAK_SECONDS").unwrap_or(if crate::test_all() { 60 } else { 4 });
        let seed = number("LIMITER_SEED").unwrap_or_else(|| fastrand::u64(..));
        println!("LIMITER_SEED={seed} for {seconds} s");
        Self { faults, length: Duration::from_secs(seconds), seed }
    }
}

/// What happened in a soak.
#[derive(Clone, Debug, Default)]
pub struct SoakReport {
    /// The number of faults and calls, by fault and by outcome. The outcome of a dropped call is not known.
    pub counts: BTreeMap<String, u64>,
    /// The number of calls of all subjects.
    pub calls: u64,
    /// The calls that were dropped.
    pub dropped: u64,
    /// The most units, of a limit of 20, that a window admitted, by subject.
    pub worst: BTreeMap<&'static str, u64>,
    /// The broken promises. Empty for correct stores.
    pub violations: Vec<String>,
}

/// What the tasks share: the report, and the admitted units of each subject and key, as times in microseconds and costs.
type Shared = Arc<Mutex<(SoakReport, BTreeMap<(&'static str, u8), Vec<(u64, u64)>>)>>;

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
    let until = Instant::now() + soak.length;
    let (shared, mut tasks) = (Shared::default(), JoinSet::new());
    for subject in subjects {
        for _ in 0..TASKS {
            tasks.spawn(work(subject.clone(), random.fork(), until, Arc::clone(&shared)));
        }
    }
    let mut faults = random_faults(scene, soak, &mut random).await?;
    while let Some(done) = tasks.join_next().await {
        done.map_err(io::Error::other)?;
    }
    let (mut report, admitted) = std::mem::take(&mut *shared.lock().unwrap_or_else(PoisonError::into_inner));
    report.counts.append(&mut faults);
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

/// Begins and ends random faults for the soak's length. Returns the number of each.
async fn random_faults<X: Scene>(
    scene: &mut X,
    soak: &Soak<X::Fault>,
    random: &mut Rng,
) -> io::Result<BTreeMap<String, u64>> {
    let until = Instant::now() + soak.length;
    let mut faults = BTreeMap::new();
    while Instant::now() < until {
        let Some(fault) = random.choice(&soak.faults).copied() else { break };
        *faults.entry(fault.to_string()).or_default() += 1;
        block_in_place(|| scene.begin(fault))?;
        sleep(Duration::from_millis(random.u64(10..700))).await;
        block_in_place(|| scene.end(fault))?;
        sleep(Duration::from_millis(random.u64(0..300))).await;
    }
    Ok(faults)
}

async fn work(subject: Subject, mut random: Rng, until: Instant, shared: Shared) {
    let limiter = Limiter::new(subject.name, policy!("20/1s"), subject.store.clone());
    while Instant::now() < until {
        let (key, cost, kind) = (random.u8(0..2), random.u64(1..4), random.u8(0..8));
        let polls = if kind == 0 { random.usize(1..4) } else { usize::MAX };
        // Boxed: a spawned task cannot hold the generic future.
        let call: BoxFuture<'_, _> = match kind {
            1 => Box::pin(limiter.peek([key])),
            _ => Box::pin(limiter.acquire([key]).cost(cost)),
        };
        let call = poll_times(polls, subject.call(call)).await;
        {
            let (report, admitted) = &mut *shared.lock().unwrap_or_else(PoisonError::into_inner);
            report.calls += 1;
            // What a dropped call would have admitted is not seen, which is in the store's favour.
            report.dropped += u64::from(call.is_none());
            if let Some(call) = call {
                *report.counts.entry(call.outcome.to_string()).or_default() += 1;
                if call.outcome == Seen::Never {
                    report.violations.push(format!("{}: a call did not end within {:?}", subject.name, call.took));
                }
                if let (true, Some(at)) = (call.allowed() && kind != 1, call.at) {
                    admitted.entry((subject.name, key)).or_default().push((at, cost));
                }
            }
        }
        sleep(Duration::from_millis(random.u64(0..20))).await;
    }
}

/// Returns the most units within any second, of admissions at these times in microseconds with these costs.
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
