//! The ways to share a limit between processes, in virtual time: the tables of docs/leases.md.

use std::fmt::Write;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::poll;
use limiter_core::store::{Facts, LogKey, Op, Settlement, SettlementFacts};
use limiter_core::{Error, ErrorKind, Limiter, Policy, SyncStore, WindowStore, WithClock};
use limiter_memory::MemoryStore;
use limiter_testkit::worst_window;
use limiter_wrappers::Guarded;
use tokio::time::{Instant, sleep};

use crate::script::{Virtual, step_system_clock};

/// The store behind a network, and what happened.
#[derive(Clone, Debug)]
struct Home(Arc<World>);

#[derive(Debug)]
struct World {
    clock: Virtual,
    store: WithClock<MemoryStore, Virtual>,
    /// The way of a message, in one direction.
    trip: Duration,
    is_down: AtomicBool,
    calls: AtomicUsize,
    decisions: AtomicUsize,
    /// Decisions that waited for the store.
    waited: AtomicUsize,
    /// When an acquire was admitted, in milliseconds.
    admitted: Mutex<Vec<u64>>,
}

impl Home {
    fn new(trip: Duration) -> Self {
        step_system_clock(0);
        let clock = Virtual(Instant::now(), 0);
        let store = WithClock::new(MemoryStore::new(), clock);
        let is_down = AtomicBool::new(false);
        let [calls, decisions, waited] = [(); 3].map(|()| AtomicUsize::new(0));
        let admitted = Mutex::default();
        Self(Arc::new(World {
            clock,
            store,
            trip,
            is_down,
            calls,
            decisions,
            waited,
            admitted,
        }))
    }

    fn now(&self) -> u64 {
        self.0.clock.0.elapsed().as_millis() as u64
    }

    fn admit(&self) {
        self.0.admitted.lock().unwrap().push(self.now());
    }

    fn admitted(&self) -> Vec<u64> {
        self.0.admitted.lock().unwrap().clone()
    }

    /// Returns a count as a percentage of the decisions.
    fn percent(&self, count: usize) -> f64 {
        100.0 * count as f64 / self.0.decisions.load(Relaxed) as f64
    }

    /// Returns what the window with most admissions admits.
    fn worst(&self, window: u64) -> u64 {
        let admitted = self.admitted().into_iter().map(Duration::from_millis);
        worst_window(admitted, Duration::from_millis(window))
    }
}

#[async_trait]
impl WindowStore for Home {
    async fn apply(&self, op: Op<'_>) -> Result<Facts, Error> {
        sleep(self.0.trip).await;
        if self.0.is_down.load(Relaxed) {
            return Err(Error::new(ErrorKind::Unavailable, "down"));
        }
        self.0.calls.fetch_add(1, Relaxed);
        let facts = self.0.store.apply_now(&op);
        if facts.admitted {
            self.admit();
        }
        sleep(self.0.trip).await;
        Ok(facts)
    }

    async fn settle(&self, settlement: Settlement<'_>) -> Result<SettlementFacts, Error> {
        Ok(self.0.store.settle_now(&settlement))
    }

    async fn reset(&self, log: LogKey<'_>) -> Result<bool, Error> {
        Ok(self.0.store.reset_now(log))
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Way {
    Store,
    /// Each process has its part of the limit.
    Divided,
    /// Each process counts, and reports every second.
    Late,
    /// Of a second.
    Lease,
}

/// A process: its limiter, or what it knows of if it reports late.
enum Process {
    Stack(Limiter),
    Late(Vec<u64>),
}

/// Plays processes that share `max` in `window` milliseconds, each with a load in acquires per second. `each` runs every millisecond.
async fn play(
    way: Way,
    (trip, max, window): (Duration, u64, u64),
    loads: &[u64],
    length: u64,
    each: impl Fn(&Home),
) -> Home {
    let home = Home::new(trip);
    let (max, lease) = match way {
        Way::Divided => (max / loads.len() as u64, ""),
        Way::Lease => (max, "+1s"),
        Way::Store | Way::Late => (max, ""),
    };
    let policy: Policy = format!("{max}/{window}ms{lease}").parse().unwrap();
    let start = |_: &u64| match way {
        Way::Late => Process::Late(Vec::new()),
        Way::Divided => {
            let own = WithClock::new(MemoryStore::new(), home.0.clock);
            Process::Stack(Limiter::new("t", policy.clone(), own).into_shared())
        }
        Way::Store | Way::Lease => {
            let stack = Guarded::builder(home.clone());
            Process::Stack(Limiter::new("t", policy.clone(), stack.fail_closed()).into_shared())
        }
    };
    let mut processes: Vec<_> = loads.iter().map(start).collect();
    for ms in 0..length {
        each(&home);
        for (process, load) in processes.iter_mut().zip(loads) {
            for _ in load * ms / 1_000..load * (ms + 1) / 1_000 {
                home.0.decisions.fetch_add(1, Relaxed);
                let is_admitted = match process {
                    Process::Late(known) => {
                        let used = known.len() - known.partition_point(|at| at + window <= ms);
                        let is_admitted = (used as u64) < max;
                        known.extend(is_admitted.then_some(ms));
                        is_admitted
                    }
                    Process::Stack(limiter) => {
                        let limiter = limiter.clone();
                        let mut call = Box::pin(async move { limiter.acquire("k").await });
                        match poll!(call.as_mut()) {
                            Poll::Ready(decision) => decision.unwrap().is_allowed(),
                            Poll::Pending => {
                                home.0.waited.fetch_add(1, Relaxed);
                                tokio::spawn(call);
                                false // The store notes it.
                            }
                        }
                    }
                };
                if is_admitted {
                    home.admit();
                }
            }
            if let Process::Late(known) = process
                && ms % 1_000 == 999
            {
                home.0.calls.fetch_add(1, Relaxed);
                known.clone_from(&home.admitted());
            }
        }
        sleep(Duration::from_millis(1)).await;
    }
    home
}

/// Asserts that a page has a table.
fn assert_shown(page: &str, table: &str) {
    println!("{table}");
    assert!(page.contains(table), "the page differs from this:\n{table}");
}

#[tokio::test(start_paused = true)]
async fn where_leases_stand() {
    const MAX: u64 = 12_800;
    const WINDOW: u64 = 64_000;
    let limit = (Duration::from_micros(500), MAX, WINDOW);
    let mut table = String::new();
    for (way, name) in [
        (Way::Store, "each decision calls the store"),
        (Way::Divided, "each process has a quarter of the limit"),
        (Way::Late, "each process counts, and reports every second"),
        (Way::Lease, "a lease of one second"),
    ] {
        let played = async |loads: &[u64]| play(way, limit, loads, 3 * WINDOW, |_| {}).await;
        let calm = played(&[40; 4]).await;
        let skewed = played(&[160, 0, 0, 0]).await;
        let full = played(&[100; 4]).await;
        let burst = self::play(way, limit, &[2_000; 4], 4_000, |_| {}).await;
        let worst = [&calm, &skewed, &full, &burst].map(|home| home.worst(WINDOW));
        assert!(
            way == Way::Late || worst.iter().all(|worst| *worst <= MAX),
            "{worst:?}"
        );
        let [.., full, burst] = worst.map(|worst| 100.0 * worst as f64 / MAX as f64);
        let skewed = skewed.percent(skewed.admitted().len());
        let calls = calm.percent(calm.0.calls.load(Relaxed)) / 100.0;
        let row = format!("| {name} | {burst:.0} % | {full:.0} % | {skewed:.0} % | {calls:.2} |");
        writeln!(table, "{row}").unwrap();
    }
    assert_shown(include_str!("../../../docs/leases.md"), &table);
}

#[tokio::test(start_paused = true)]
async fn far_regions() {
    let limit = (Duration::from_millis(80), 100_000, 60_000);
    let mut rows = [
        "three times 1,000 per second: the minute that admitted most",
        "admitted in three minutes",
        "decisions that wait for the store",
        "wait of the median decision",
        "one region with 333 per second is lost: units that nobody uses until they expire",
        "three with 333, and the home is lost: admitted in the next 10 s",
    ]
    .map(|name| format!("| {name} |"));
    for way in [Way::Store, Way::Lease] {
        let busy = play(way, limit, &[1_000; 3], 180_000, |_| {}).await;
        let worst = busy.worst(60_000);
        assert!(worst <= 100_000, "{worst}");
        let waited = busy.percent(busy.0.waited.load(Relaxed));
        // A third of the load, which the limit admits.
        let lost_home = play(way, limit, &[333; 3], 30_000, |home| {
            home.0.is_down.store(home.now() >= 20_000, Relaxed);
        });
        let after = lost_home
            .await
            .admitted()
            .into_iter()
            .filter(|at| *at >= 20_000);
        let lost_region = play(way, limit, &[333], 20_000, |_| {}).await;
        let policy = "100000/61s".parse().unwrap();
        let peek = Op::peek("k", &policy).with_name("t".into());
        let used = lost_region.0.store.apply_now(&peek).log.usage[0].used as usize;
        let cells = [
            worst.to_string(),
            busy.admitted().len().to_string(),
            format!("{waited:.1} %"),
            format!("{} ms", if waited > 50.0 { 160 } else { 0 }),
            (used - lost_region.admitted().len()).to_string(),
            after.count().to_string(),
        ];
        for (row, cell) in rows.iter_mut().zip(cells) {
            write!(row, " {cell} |").unwrap();
        }
    }
    assert_shown(include_str!("../../../docs/leases.md"), &rows.join("\n"));
}
