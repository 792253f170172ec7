//! The scenarios of one operation in memory.

use std::time::Duration;

use anyhow::Result;

use super::floor::Floor;
use super::library::{Contestant, Quota};
use super::ours::{Async, Cached, Dyn, Now, Read, Sliding};
use super::peers::{Governor, Limitador, Throttlecrab, Trypema};
use super::workload::{Order, Requested, Workload};
use crate::record::Figures;
use crate::turns::{self, Case, Effort};

/// One operation, and who is measured. The first contestant is this library.
#[derive(Clone, Copy)]
pub struct Scenario {
    /// `group/op`.
    pub name: &'static str,
    /// The workload, as the table describes it.
    pub about: &'static str,
    workload: Workload,
    contestants: &'static [&'static [Contestant]],
    /// The workload with which the first contestant is compared.
    plain: Option<Workload>,
}

/// A contestant of one scenario, which is filled in the first run.
pub struct Timed {
    /// Its name.
    pub who: &'static str,
    /// Runs this many operations, asserts each answer, and returns the duration.
    pub run: Box<dyn FnMut(u64) -> Duration>,
    /// The number of operations in a turn; `None` if a turn takes a fixed time.
    pub(crate) operations: Option<u64>,
}

pub(crate) const NOW: Contestant = Contestant::of::<Now>();
const GOVERNOR: Contestant = Contestant::of::<Governor>();
/// The minimum work of every exact log.
pub(crate) const FLOOR: Contestant = Contestant::of::<Floor>();
/// The name of the first contestant with the workload with which it is compared.
pub(crate) const PLAIN: &str = "plain";
pub(crate) const CACHED: Contestant = Contestant::of::<Cached>();

/// This library and its peers, in the order of the columns.
pub(crate) const PEERS: &[Contestant] = &[
    NOW,
    GOVERNOR,
    Contestant::of::<Trypema<1>>(),
    Contestant::of::<Trypema<100>>(),
    Contestant::of::<Limitador>(),
    Contestant::of::<Throttlecrab>(),
];
/// Other ways to call this library.
pub(crate) const FORMS: &[Contestant] = &[Contestant::of::<Read>(), Contestant::of::<Async>(), Contestant::of::<Dyn>()];
const ALL: &[&[Contestant]] = &[PEERS, FORMS, &[FLOOR]];
const MANY: &[&[Contestant]] = &[PEERS, &[FLOOR]];
const BOTH: &[&[Contestant]] = &[&[NOW, GOVERNOR]];
/// limitador would take 15 s per turn.
const FRESH: &[&[Contestant]] = &[&[
    NOW,
    GOVERNOR,
    Contestant::of::<Trypema<1>>(),
    Contestant::of::<Trypema<100>>(),
    Contestant::of::<Throttlecrab>(),
]];
const ALONE: &[&[Contestant]] = &[&[NOW]];
const SLIDING: &[&[Contestant]] = &[&[Contestant::of::<Sliding>()]];

const MILLI: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);
/// So long that not one of a million units becomes free during a measurement.
const LONG: Duration = Duration::from_secs(1000 * 86_400);
const MILLION: usize = 1_000_000;
/// 100 units per microsecond, more than a loop on one key can use.
const HOT: Workload = Workload::hot(Quota::new(100_000, MILLI));
const KEYS_1024: Workload = Workload::among(1024, Order::Uniform, Quota::new(100, MILLI));
const UNIFORM: Workload = Workload::among(MILLION, Order::Uniform, Quota::new(100, SECOND));
const ZIPF: Workload = Workload { order: Order::Zipf, quota: HOT.quota, ..UNIFORM };
const SCATTERED: Workload = Workload { order: Order::Scattered, ..UNIFORM };
const NEW_KEYS: Workload = Workload { order: Order::Fresh, ..UNIFORM };
const SWEPT: Workload = Workload { sweep: true, ..Workload::among(100_000, Order::Uniform, Quota::new(1000, SECOND)) };
const COST_10: Workload = Workload { cost: Some(10), ..Workload::hot(Quota::new(1_000_000, MILLI)) };
const COST_1: Workload = Workload { cost: Some(1), ..HOT };
const COST_1000: Workload = Workload { cost: Some(1000), ..Workload::hot(Quota::new(100_000_000, MILLI)) };
const WINDOWS_3: Workload = Workload::hot(Quota { more: 2, ..HOT.quota });
const DENIALS: Workload = Workload { keys: 100_000, ..used_up(10) };

const fn used_up(max: u32) -> Workload {
    Workload::used_up(Quota::new(max, LONG))
}

const fn sliding(max: u32) -> Workload {
    Workload { entries: max, ..Workload::hot(Quota::new(max, Duration::from_micros(max as u64))) }
}

const fn scenario(
    name: &'static str,
    about: &'static str,
    contestants: &'static [&'static [Contestant]],
    workload: Workload,
) -> Scenario {
    Scenario { name, about, workload, contestants, plain: None }
}

const fn beside(plain: Workload, scenario: Scenario) -> Scenario {
    Scenario { plain: Some(plain), ..scenario }
}

/// All scenarios, in the order of the tables.
pub const SCENARIOS: &[Scenario] = &[
    scenario("hot/allowed", "one key, 100,000 per ms", ALL, HOT),
    scenario("hot/denied", "one key, 10 per hour, used up", &[PEERS], Workload::used_up(Quota::new(10, HOUR))),
    scenario("hot/two_threads", "two threads on one key, 100,000 per ms", ALL, Workload { threads: 2, ..HOT }),
    scenario("keys_1024/allowed", "1,024 keys at random, 100 per ms each", ALL, KEYS_1024),
    scenario(
        "keys_1024/two_threads",
        "two threads over 1,024 keys at random, 200 per ms each",
        ALL,
        Workload { threads: 2, quota: Quota::new(200, MILLI), ..KEYS_1024 },
    ),
    scenario("keys_1M/uniform", "1,000,000 keys at random, 100 per s each", MANY, UNIFORM),
    scenario("keys_1M/zipf", "1,000,000 keys, the n-th in proportion to 1/n, 100,000 per ms each", MANY, ZIPF),
    scenario(
        "keys_1M/scattered",
        "1,000,000 keys at random, which are not in the cache, 100 per s each",
        &[&[NOW, GOVERNOR, FLOOR]],
        SCATTERED,
    ),
    scenario("keys_1M/fresh", "1,000,000 keys seen for the first time, 100 per s each", FRESH, NEW_KEYS),
    scenario(
        "sweep/allowed",
        "100,000 keys at random, 1,000 per s each, a second thread sweeps all the time",
        BOTH,
        SWEPT,
    ),
    scenario("cost_10/allowed", "one key, cost 10, 1,000,000 per ms", &[PEERS], COST_10),
    beside(COST_1, scenario("cost_1000/allowed", "one key, cost 1,000, 100,000,000 per ms", ALONE, COST_1000)),
    beside(
        HOT,
        scenario(
            "windows_3/allowed",
            "one key, three windows of 1, 2 and 3 ms",
            &[&[NOW, Contestant::of::<Read>()]],
            WINDOWS_3,
        ),
    ),
    beside(used_up(10), scenario("limit_10/denied", "one key, 10 per 1,000 days, used up", BOTH, used_up(10))),
    beside(used_up(10), scenario("limit_1000/denied", "one key, 1,000 per 1,000 days, used up", BOTH, used_up(1000))),
    beside(
        used_up(10),
        scenario("limit_1M/denied", "one key, 1,000,000 per 1,000 days, used up", BOTH, used_up(1_000_000)),
    ),
    scenario(
        "denials/one_key",
        "one key, 10 per 1,000 days, used up, beside the cache of denials",
        &[&[NOW, CACHED]],
        used_up(10),
    ),
    scenario(
        "denials/100k_keys",
        "100,000 keys at random, 10 per 1,000 days each, used up, beside the cache of denials",
        &[&[NOW, CACHED]],
        DENIALS,
    ),
    beside(
        sliding(10),
        scenario("limit_10/sliding", "a log of 10, each entry leaves as one comes", SLIDING, sliding(10)),
    ),
    beside(sliding(10), scenario("limit_1000/sliding", "the same of 1,000", SLIDING, sliding(1000))),
    beside(sliding(10), scenario("limit_1M/sliding", "the same of 1,000,000", SLIDING, sliding(1_000_000))),
];

impl Scenario {
    /// Whether it has a contestant with this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.contestants.iter().any(|group| group.iter().any(|contestant| contestant.name == name))
    }

    /// Returns all contestants.
    #[must_use]
    pub fn timed(&self, effort: &Effort) -> Vec<Timed> {
        let small = |workload: Workload| Workload { keys: workload.keys.min(effort.keys), ..workload };
        let requested = Requested::new(small(self.workload));
        let mut all: Vec<Timed> =
            self.contestants.concat().into_iter().map(|contestant| timed(contestant, requested.clone())).collect();
        if let Some(plain) = self.plain {
            all.push(timed(self.contestants[0][0].named(PLAIN), Requested::new(small(plain))));
        }
        all
    }
}

fn timed(contestant: Contestant, requested: Requested) -> Timed {
    let Workload { threads, order, keys, .. } = requested.workload;
    let mut prepared = None;
    let run = move |count| (prepared.get_or_insert_with(|| (contestant.prepare)(&requested)).run)(threads, count);
    let operations = (order == Order::Fresh).then_some(keys as u64);
    Timed { who: contestant.name, run: Box::new(run), operations }
}

/// Measures contestants in turns. Returns nanoseconds per operation.
pub(crate) fn in_turns(timed: &mut [Timed], effort: &Effort) -> Result<Figures> {
    let long = timed.iter().any(|timed| timed.operations.is_some());
    let rounds = if long { effort.rounds.isqrt() / 2 + 1 } else { effort.rounds };
    let mut cases = Vec::new();
    for timed in timed {
        let count = operations(timed, effort.turn);
        let run = &mut timed.run;
        let turn = move || Ok(vec![("ns", run(count).as_nanos() as f64 / count as f64)]);
        cases.push(Case { who: timed.who, turn: Box::new(turn) });
    }
    turns::measure(&mut cases, |round| round >= rounds, &[])
}

/// Returns the number of operations in a turn. Measuring it also warms up.
fn operations(timed: &mut Timed, turn: Duration) -> u64 {
    if let Some(fixed) = timed.operations {
        return fixed;
    }
    let mut count = 64;
    loop {
        let elapsed = (timed.run)(count);
        if elapsed >= turn / 4 {
            return ((count as f64 * turn.as_secs_f64() / elapsed.as_secs_f64()) as u64).max(1);
        }
        count *= 4;
    }
}
