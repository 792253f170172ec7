//! The scenarios in Redis.

use std::time::Duration;

use limiter_core::{Counting, Limit, Policy};

use crate::turns::Effort;

/// A contestant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    Limiter,
    Grouped,
    OneByOne,
    Together,
    Gcra,
    Noop,
    Trypema,
    Script,
    Multi,
}

impl Who {
    /// Returns its name in the tables.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Limiter => "limiter",
            Self::Grouped => "group commit",
            Self::OneByOne => "one by one",
            Self::Together => "`acquire_many`",
            Self::Gcra => "GCRA",
            Self::Noop => "no-op",
            Self::Trypema => "trypema",
            Self::Script => "sorted set, script",
            Self::Multi => "sorted set, MULTI",
        }
    }

    /// Whether a decision is one call of a script.
    pub(super) fn is_one_script(self) -> bool {
        matches!(self, Self::Limiter | Self::Gcra | Self::Noop | Self::Script)
    }
}

/// A burst, and the time in which it refills.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rate {
    pub(super) burst: u64,
    pub(super) seconds: u64,
}

/// The earlier use of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Before {
    /// This many recent units, each an entry.
    Units(u64),
    /// One unit in each of this many equal parts of the window, for three windows. The oldest unit of the last window
    /// has just expired.
    Expired(u64),
    /// The same, but no unit of the last window has expired.
    Steady(u64),
    /// The window is as long as this many entries take at the speed of the turn. The turn starts with a full window.
    Sliding(u64),
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Measure {
    /// The bytes of one key alone.
    Bytes,
    /// The server's time.
    Server,
    /// What this many tasks see that share one connection, each with one request in flight.
    Clients(usize),
    /// One caller's batches of this many keys.
    Batches(usize),
}

/// Decisions with known answers, as data.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) name: String,
    pub(crate) about: String,
    pub(super) measure: Measure,
    pub(super) who: &'static [Who],
    pub(super) keys: usize,
    pub(super) policy: Policy,
    /// The closest rate of algorithms that spread a limit evenly.
    pub(super) rate: Rate,
    pub(super) cost: u64,
    pub(super) allowed: bool,
    pub(super) before: Before,
    /// Whether logs are cut to the entries that they had before each turn.
    pub(super) restore: bool,
    /// The server's `zset-max-listpack-entries`.
    pub(super) listpack: u64,
    /// The goal: the highest acceptable ratio to the time of the other contestant.
    pub(crate) goal: Option<f64>,
}

const SERVER: &[Who] = &[Who::Limiter, Who::Gcra, Who::Noop];
pub(crate) const CLIENTS: &[Who] = &[Who::Limiter, Who::Gcra, Who::Noop, Who::Trypema];
pub(crate) const SORTED_SETS: &[Who] = &[Who::Limiter, Who::Script, Who::Multi];
/// The entries of logs beside a sorted set.
pub(crate) const TEXTBOOK: [u64; 3] = [100, 1000, 100_000];
/// The numbers of tasks.
pub(crate) const TASKS: [usize; 4] = [1, 16, 128, 1024];
/// The entries of a log, and `zset-max-listpack-entries`.
pub(crate) const SIZING: [(u64, u64); 6] = [(10, 128), (100, 128), (400, 128), (400, 512), (1000, 128), (100_000, 128)];
/// The default of Redis.
const LISTPACK: u64 = 128;
/// The numbers of acquires in a batch.
pub(crate) const BATCHES: [usize; 3] = [1, 10, 100];
/// The numbers of units of which the bytes are measured.
pub(crate) const UNITS: [u64; 4] = [1, 10, 100, 1000];
/// The loads of group commit, and the numbers of tasks.
const GROUPED: [&str; 3] = ["allowed, the log grows", "allowed, entries expire after 100 ms", "denied"];
const GROUPED_TASKS: [usize; 2] = [1, 128];

/// The goals for allowed, for denied, for denied decisions that count, and for group commit.
const ALLOWED: Option<f64> = Some(1.1);
const DENIED: Option<f64> = Some(0.9);
const ATTEMPTS: Option<f64> = Some(1.3);
const GROUP_COMMIT: Option<f64> = Some(0.25);
const HOUR: u64 = 3600;
const DAY: u64 = 24 * HOUR;
/// So long that no unit becomes free during a measurement.
const LONG: u64 = 1000 * DAY;
const PLENTY: u64 = 10_000_000;
const USED_UP: u64 = 100;

pub(crate) const fn verdict(allowed: bool) -> &'static str {
    if allowed { "allowed" } else { "denied" }
}

fn limit(max: u64, seconds: u64) -> Limit {
    Limit::new(max, Duration::from_secs(seconds)).expect("limits are valid")
}

fn two(first: Limit, second: Limit) -> Policy {
    Policy::new([first, second]).expect("policies are valid")
}

fn scenario(name: impl Into<String>, about: &str, who: &'static [Who], max: u64, seconds: u64) -> Scenario {
    Scenario {
        name: name.into(),
        about: about.to_owned(),
        measure: Measure::Server,
        who,
        keys: 1,
        policy: limit(max, seconds).into(),
        rate: Rate { burst: max, seconds },
        cost: 1,
        allowed: true,
        before: Before::Units(0),
        restore: false,
        listpack: LISTPACK,
        goal: None,
    }
}

fn allowed(name: &str, about: &str, max: u64, before: Before) -> Scenario {
    Scenario { before, goal: ALLOWED, ..scenario(name, about, SERVER, max, HOUR) }
}

fn denied(name: &str, about: &str, max: u64) -> Scenario {
    let used_up = scenario(name, about, SERVER, max, LONG);
    Scenario { allowed: false, before: Before::Units(max), goal: DENIED, ..used_up }
}

/// Returns decisions on logs with `entries` entries, shared by so many keys that their logs hardly grow.
fn length(name: String, who: &'static [Who], entries: u64, allowed: bool) -> Scenario {
    let max = if allowed { PLENTY } else { entries };
    let keys = (100_000 / entries).clamp(1, 50) as usize;
    Scenario { allowed, keys, before: Before::Units(entries), restore: true, ..scenario(name, "", who, max, DAY) }
}

/// Returns the scenarios in which the limiter's time is compared with that of another algorithm.
pub(crate) fn server(effort: &Effort) -> Vec<Scenario> {
    let keys = effort.keys.min(100_000);
    vec![
        allowed("server/hot/allowed/growing", "one key, the log grows", PLENTY, Before::Units(0)),
        Scenario {
            policy: limit(1200, HOUR).into(),
            ..allowed(
                "server/hot/allowed/steady",
                "one key, about 400 entries, one expires as one comes",
                PLENTY,
                Before::Sliding(400),
            )
        },
        denied("server/hot/denied", "one key, 100 used up", 100),
        denied("server/hot/denied/1000", "one key, 1,000 used up", 1000),
        Scenario {
            before: Before::Steady(100),
            ..denied("server/hot/denied/steady", "one key, 100 used up for several windows", 100)
        },
        Scenario {
            keys,
            ..allowed("server/keys/allowed/growing", "100,000 keys, one entry and more each", 1000, Before::Units(1))
        },
        Scenario {
            keys,
            ..allowed(
                "server/keys/allowed/steady",
                "100,000 keys, 10 entries each, one expires as one comes",
                20,
                Before::Expired(10),
            )
        },
        Scenario { keys, ..denied("server/keys/denied", "100,000 keys, 10 used up each", 10) },
        Scenario {
            keys,
            before: Before::Steady(10),
            ..denied("server/keys/denied/steady", "100,000 keys, 10 used up each for several windows", 10)
        },
        Scenario {
            policy: two(limit(PLENTY, HOUR), limit(10 * PLENTY, DAY)),
            goal: None,
            ..allowed("server/general/two_limits", "one key, two limits, the log grows", PLENTY, Before::Units(0))
        },
        Scenario {
            policy: two(limit(100, LONG), limit(1000, 2 * LONG)),
            goal: None,
            ..denied("server/general/two_limits/denied", "one key, two limits, 100 used up", 100)
        },
        Scenario {
            cost: 5,
            goal: None,
            ..allowed("server/general/cost_5", "one key, cost 5, the log grows", PLENTY, Before::Units(0))
        },
        Scenario {
            policy: Policy::from(limit(100, LONG)).with_counting(Counting::Attempts),
            goal: ATTEMPTS,
            ..denied("server/general/attempts", "one key, 100 used up, denied attempts count", 100)
        },
    ]
}

/// Returns the scenarios with and without group commit, each with its number of tasks.
pub(crate) fn grouped() -> Vec<(usize, Scenario)> {
    let hundred_millis = Limit::new(PLENTY, Duration::from_millis(100)).expect("limits are valid");
    let mut all = Vec::new();
    for (load, limit) in GROUPED.into_iter().zip([limit(PLENTY, DAY), hundred_millis, limit(USED_UP, DAY)]) {
        for tasks in GROUPED_TASKS {
            let used_up = limit.max() == USED_UP;
            let who = &[Who::Limiter, Who::Grouped];
            let scenario = Scenario {
                measure: Measure::Clients(tasks),
                policy: limit.into(),
                allowed: !used_up,
                before: Before::Units(if used_up { USED_UP } else { 0 }),
                goal: GROUP_COMMIT.filter(|_| tasks > 1),
                ..scenario(format!("group_commit/{load}/{tasks}"), load, who, limit.max(), DAY)
            };
            all.push((tasks, scenario));
        }
    }
    all
}

/// Returns all scenarios.
pub(super) fn all(effort: &Effort) -> Vec<Scenario> {
    let mut all = server(effort);
    let few = |entries: u64| entries.min(effort.keys as u64);
    for entries in TEXTBOOK {
        for allowed in [true, false] {
            let name = format!("textbook/{entries}/{}", verdict(allowed));
            all.push(length(name, SORTED_SETS, few(entries), allowed));
        }
    }
    for tasks in TASKS {
        let clients = scenario(format!("clients/{tasks}"), "", CLIENTS, 1_000_000, 60);
        all.push(Scenario { measure: Measure::Clients(tasks), keys: 1000, ..clients });
    }
    all.extend(grouped().into_iter().map(|(_, scenario)| scenario));
    for batch in BATCHES {
        let batches = scenario(format!("batch/{batch}"), "", &[Who::OneByOne, Who::Together], PLENTY, HOUR);
        all.push(Scenario { measure: Measure::Batches(batch), ..batches });
    }
    for (entries, listpack) in SIZING {
        for allowed in [true, false] {
            let name = format!("sizing/{entries}/{listpack}/{}", verdict(allowed));
            all.push(Scenario { listpack, ..length(name, &[Who::Limiter], few(entries), allowed) });
        }
    }
    for units in UNITS {
        let bytes = scenario(format!("bytes/{units}"), "", &[Who::Limiter, Who::Gcra], units, HOUR);
        all.push(Scenario { measure: Measure::Bytes, before: Before::Units(units), ..bytes });
    }
    all
}
