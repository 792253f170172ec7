//! Random faults for a given time.

use std::collections::BTreeMap;
use std::io;
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
const TASKS: usize = 3;

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

/// Runs random faults of random lengths, while tasks acquire, peek and drop calls with a limit of 20 per second. Checks that
/// every call ends within its store's bound, that no window admits more than [`Subject::most`] allows, and that the server
/// decides for each store again in the end. Returns the broken promises, which are none for correct stores.
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
) -> io::Result<Vec<String>> {
    let mut random = Rng::with_seed(soak.seed);
    let until = Instant::now() + soak.length;
    let mut tasks = JoinSet::new();
    for (number, subject) in subjects.iter().enumerate().flat_map(|subject| [subject; TASKS]) {
        let work = work(subject.clone(), random.fork(), until);
        tasks.spawn(async move { (number, work.await) });
    }
    while Instant::now() < until {
        let Some(fault) = random.choice(&soak.faults).copied() else { break };
        block_in_place(|| scene.begin(fault))?;
        sleep(Duration::from_millis(random.u64(10..700))).await;
        block_in_place(|| scene.end(fault))?;
        sleep(Duration::from_millis(random.u64(0..300))).await;
    }
    let (mut admitted, mut violations) = (BTreeMap::<(usize, u8), Vec<(u64, u64)>>::new(), Vec::new());
    while let Some(done) = tasks.join_next().await {
        let (number, work) = done.map_err(io::Error::other)?;
        work.admitted.into_iter().for_each(|(key, units)| admitted.entry((number, key)).or_default().push(units));
        violations.extend(work.violations);
    }
    let direct = direct(scene.direct_url()).await;
    for (number, subject) in subjects.iter().enumerate() {
        let recovered = recovered(subject, &format!("{}, recovery", subject.name), &direct).await;
        violations.extend(recovered.err().map(|violation| format!("{}: {violation}", subject.name)));
        let logs = admitted.range((number, 0)..=(number, u8::MAX));
        let worst = logs.map(|(_, units)| worst_window(units.clone())).max().unwrap_or(0);
        println!("{}: the worst window of {MAX} admitted {worst}", subject.name);
        if subject.most.is_some_and(|times| worst > times * MAX) {
            violations.push(format!("{}: a window of {MAX} admitted {worst}", subject.name));
        }
    }
    Ok(violations)
}

/// What a task has seen.
#[derive(Default)]
struct Work {
    /// The admitted units: the key, and their time in microseconds and cost. The admission of a dropped call is not seen, which
    /// is in the store's favour.
    admitted: Vec<(u8, (u64, u64))>,
    violations: Vec<String>,
}

async fn work(subject: Subject, mut random: Rng, until: Instant) -> Work {
    let limiter = Limiter::new(subject.name, policy!("20/1s"), subject.store.clone());
    let mut work = Work::default();
    while Instant::now() < until {
        let (key, cost, kind) = (random.u8(0..2), random.u64(1..4), random.u8(0..8));
        let polls = if kind == 0 { random.usize(1..4) } else { usize::MAX };
        // Boxed: a spawned task cannot hold the generic future.
        let call: BoxFuture<'_, _> = match kind {
            1 => Box::pin(limiter.peek([key])),
            _ => Box::pin(limiter.acquire([key]).cost(cost)),
        };
        if let Some(call) = poll_times(polls, subject.call(call)).await {
            if call.outcome == Seen::Never {
                work.violations.push(format!("{}: a call did not end within {:?}", subject.name, call.took));
            }
            let at = call.at.filter(|_| call.allowed() && kind != 1);
            work.admitted.extend(at.map(|at| (key, (at, cost))));
        }
        sleep(Duration::from_millis(random.u64(0..20))).await;
    }
    work
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
