//! The scenarios: named groups with one operation and a case for each library.

use std::sync::Arc;
use std::time::{Duration, Instant};

use limiter_core::{Limit, Limiter, Timestamp, Window};
use limiter_memory::MemoryStore;

use crate::baselines::{ClockBaseline, LineBaseline, LogBaseline, MapBaseline};
use crate::cached::Cached;
use crate::libraries::{Async, Dyn, Governor, Library, Limitador, Now, Quota, Read, Throttlecrab, Trypema};
use crate::workload::{Requests, Workload, keys, uniform, zipf};

/// One library in one scenario.
pub struct Case {
    /// The library's name.
    pub library: &'static str,
    /// Runs this many operations, asserts each answer, and returns the duration.
    pub run: Box<dyn FnMut(u64) -> Duration>,
    /// The number of operations in a turn; `None` if a turn takes a fixed time.
    pub operations: Option<u64>,
}

/// One operation, with a case for each library.
pub struct Scenario {
    /// `group/op`.
    pub name: &'static str,
    /// The workload, as the table describes it.
    pub about: &'static str,
    /// Returns the cases. Each builds and fills its limiter in the first run.
    pub cases: fn() -> Vec<Case>,
}

const MILLIS: fn(u64) -> Duration = Duration::from_millis;
/// 100 units per microsecond, more than a loop on one key can use.
const HOT: Quota = Quota::new(100_000, Duration::from_millis(1));
const HOUR: Duration = Duration::from_secs(3600);
/// So long that not one of a million units becomes free during a measurement.
const LONG: Duration = Duration::from_secs(1000 * 86_400);
const MILLION: usize = 1_000_000;

/// All scenarios, in the order of the tables.
pub const SCENARIOS: &[Scenario] = &[
    Scenario { name: "hot/allowed", about: "one key, 100,000 per ms", cases: || all(&hot(HOT, true)) },
    Scenario {
        name: "hot/denied",
        about: "one key, 10 per hour, used up",
        cases: || peers(&hot(Quota::new(10, HOUR), false)),
    },
    Scenario {
        name: "hot/two_threads",
        about: "two threads on one key, 100,000 per ms",
        cases: || all(&Workload { threads: 2, ..hot(HOT, true) }),
    },
    Scenario { name: "keys_1024/allowed", about: "1,024 keys at random, 100 per ms each", cases: || all(&keys_1024()) },
    Scenario {
        name: "keys_1024/two_threads",
        about: "two threads over 1,024 keys at random, 200 per ms each",
        cases: || all(&Workload { threads: 2, quota: Quota::new(200, MILLIS(1)), ..keys_1024() }),
    },
    Scenario {
        name: "keys_1M/uniform",
        about: "1,000,000 keys at random, 100 per s each",
        cases: || many(&among(MILLION, &uniform(MILLION, 1 << 21), PER_SECOND)),
    },
    Scenario {
        name: "keys_1M/zipf",
        about: "1,000,000 keys, the n-th in proportion to 1/n, 100,000 per ms each",
        cases: || many(&among(MILLION, &zipf(MILLION, 1 << 21), HOT)),
    },
    Scenario {
        name: "keys_1M/scattered",
        about: "1,000,000 keys at random, which are not in the cache, 100 per s each",
        cases: || {
            let requests = Requests::Scattered(Arc::new(uniform(MILLION, 1 << 21)));
            let scattered = Workload { keys: keys(MILLION), requests, ..hot(PER_SECOND, true) };
            vec![case::<Now>(&scattered), case::<Governor>(&scattered), case::<LineBaseline>(&scattered)]
        },
    },
    Scenario { name: "keys_1M/fresh", about: "1,000,000 keys seen for the first time, 100 per s each", cases: fresh },
    Scenario {
        name: "sweep/allowed",
        about: "100,000 keys at random, 1,000 per s each, a second thread sweeps all the time",
        cases: || {
            let among = among(100_000, &uniform(100_000, 1 << 20), Quota::new(1000, MILLIS(1000)));
            let workload = Workload { sweep: true, ..among };
            vec![case::<Now>(&workload), case::<Governor>(&workload)]
        },
    },
    Scenario {
        name: "cost_10/allowed",
        about: "one key, cost 10, 1,000,000 per ms",
        cases: || peers(&Workload { requests: Requests::Units(10), ..hot(Quota::new(1_000_000, MILLIS(1)), true) }),
    },
    Scenario {
        name: "cost_1000/allowed",
        about: "one key, cost 1,000, 100,000,000 per ms",
        cases: || {
            let cost = Workload { requests: Requests::Units(1000), ..hot(Quota::new(100_000_000, MILLIS(1)), true) };
            let one = Workload { requests: Requests::Units(1), ..hot(HOT, true) };
            vec![case::<Now>(&cost), plain(case::<Now>(&one))]
        },
    },
    Scenario {
        name: "windows_3/allowed",
        about: "one key, three windows of 1, 2 and 3 ms",
        cases: || {
            let windows = hot(Quota { more: 2, ..HOT }, true);
            vec![case::<Now>(&windows), case::<Read>(&windows), plain(case::<Now>(&hot(HOT, true)))]
        },
    },
    Scenario { name: "limit_10/denied", about: "one key, 10 per 1,000 days, used up", cases: || full(10) },
    Scenario { name: "limit_1000/denied", about: "one key, 1,000 per 1,000 days, used up", cases: || full(1000) },
    Scenario {
        name: "limit_1M/denied",
        about: "one key, 1,000,000 per 1,000 days, used up",
        cases: || full(1_000_000),
    },
    Scenario {
        name: "denials/one_key",
        about: "one key, 10 per 1,000 days, used up, beside the cache of denials",
        cases: || cached(&hot(Quota::new(10, LONG), false)),
    },
    Scenario {
        name: "denials/100k_keys",
        about: "100,000 keys at random, 10 per 1,000 days each, used up, beside the cache of denials",
        cases: || {
            let among = among(100_000, &uniform(100_000, 1 << 20), Quota::new(10, LONG));
            cached(&Workload { allowed: false, ..among })
        },
    },
    Scenario {
        name: "limit_10/sliding",
        about: "a log of 10, each entry leaves as one comes",
        cases: || compared_to_ten(10),
    },
    Scenario { name: "limit_1000/sliding", about: "the same of 1,000", cases: || compared_to_ten(1000) },
    Scenario { name: "limit_1M/sliding", about: "the same of 1,000,000", cases: || compared_to_ten(1_000_000) },
];

const PER_SECOND: Quota = Quota::new(100, Duration::from_secs(1));

fn hot(quota: Quota, allowed: bool) -> Workload {
    Workload { quota, keys: keys(1), requests: Requests::One, allowed, filled: 1, threads: 1, sweep: false }
}

/// Returns a workload on `count` keys, used in the order of `picks`.
fn among(count: usize, picks: &[u32], quota: Quota) -> Workload {
    let keys = keys(count);
    Workload { requests: Requests::in_order(&keys, picks), keys, ..hot(quota, true) }
}

fn keys_1024() -> Workload {
    among(1024, &uniform(1024, 1 << 16), Quota::new(100, MILLIS(1)))
}

fn case<L: Library>(workload: &Workload) -> Case {
    let (workload, mut library, mut from) = (workload.clone(), None::<L>, 0);
    let run = move |count| {
        let library = library.get_or_insert_with(|| workload.prepare());
        from += count as usize;
        workload.run(library, from, count)
    };
    Case { library: L::NAME, run: Box::new(run), operations: None }
}

fn peers(workload: &Workload) -> Vec<Case> {
    vec![
        case::<Now>(workload),
        case::<Governor>(workload),
        case::<Trypema<1>>(workload),
        case::<Trypema<100>>(workload),
        case::<Limitador>(workload),
        case::<Throttlecrab>(workload),
    ]
}

/// Returns the peers, and the baselines that work with any number of keys.
fn many(workload: &Workload) -> Vec<Case> {
    let mut cases = peers(workload);
    cases.extend([case::<LineBaseline>(workload), case::<MapBaseline>(workload)]);
    cases
}

fn all(workload: &Workload) -> Vec<Case> {
    let mut cases = many(workload);
    cases.extend([
        case::<Read>(workload),
        case::<Async>(workload),
        case::<Dyn>(workload),
        case::<ClockBaseline>(workload),
        case::<LogBaseline>(workload),
    ]);
    cases
}

/// The table name of the case with which a scenario compares this library's other case.
pub(crate) const PLAIN: &str = "plain";

fn plain(case: Case) -> Case {
    Case { library: PLAIN, ..case }
}

fn cached(workload: &Workload) -> Vec<Case> {
    vec![case::<Now>(workload), case::<Cached>(workload)]
}

fn full(max: u32) -> Vec<Case> {
    let [workload, ten] = [max, 10].map(|max| hot(Quota::new(max, LONG), false));
    vec![case::<Now>(&workload), case::<Governor>(&workload), plain(case::<Now>(&ten))]
}

/// Returns cases without limitador, which would take 15 s per turn.
fn fresh() -> Vec<Case> {
    let keys = keys(MILLION);
    vec![
        fresh_case::<Now>(&keys),
        fresh_case::<Governor>(&keys),
        fresh_case::<Trypema<1>>(&keys),
        fresh_case::<Trypema<100>>(&keys),
        fresh_case::<Throttlecrab>(&keys),
    ]
}

/// Uses every key once per limiter. When the keys run out, a new limiter starts. Building it is not measured.
fn fresh_case<L: Library>(keys: &Arc<Vec<String>>) -> Case {
    let (keys, mut library, mut used) = (Arc::clone(keys), L::with(PER_SECOND), 0);
    let run = move |mut count: u64| {
        let mut elapsed = Duration::ZERO;
        while count > 0 {
            if used == keys.len() {
                (library, used) = (L::with(PER_SECOND), 0);
            }
            let now = (keys.len() - used).min(count as usize);
            let start = Instant::now();
            for key in &keys[used..used + now] {
                assert!(library.allows(key), "{} on {key}", L::NAME);
            }
            elapsed += start.elapsed();
            used += now;
            count -= now as u64;
        }
        elapsed
    };
    Case { library: L::NAME, run: Box::new(run), operations: Some(MILLION as u64) }
}

fn compared_to_ten(max: u64) -> Vec<Case> {
    vec![sliding(max), plain(sliding(10))]
}

/// Returns a case with a full log: each microsecond, the oldest entry expires and one acquire is allowed.
fn sliding(max: u64) -> Case {
    let window = Window::from_micros(max).expect("the window is valid");
    let limit = Limit::with_window(max, window).expect("the limit is valid");
    let limiter = Limiter::new("bench", limit, MemoryStore::new());
    let (mut micros, mut full) = (1 << 50, false);
    let run = move |count| {
        let mut acquire = || {
            micros += 1;
            let request = limiter.acquire("user:00000000000").at(Timestamp::from_micros_saturating(micros));
            matches!(&request.now(), Ok(decision) if decision.allowed())
        };
        for _ in 0..if full { 0 } else { max } {
            assert!(acquire());
        }
        full = true;
        let start = Instant::now();
        for _ in 0..count {
            assert!(acquire());
        }
        start.elapsed()
    };
    Case { library: Now::NAME, run: Box::new(run), operations: None }
}
