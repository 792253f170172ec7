//! The scenarios of the server measurements.

use std::time::Duration;

use limiter_core::{Counting, Limit, Policy};

use super::contestants::Rate;

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

/// Decisions with known answers.
#[derive(Clone, Debug)]
pub(super) struct Shape {
    pub(super) name: &'static str,
    pub(super) about: &'static str,
    /// Many keys in random order, or one hot key.
    pub(super) many: bool,
    pub(super) policy: Policy,
    /// The closest rate of the other algorithm.
    pub(super) rate: Rate,
    pub(super) cost: u64,
    pub(super) allowed: bool,
    pub(super) before: Before,
    /// The goal: the highest acceptable ratio to the time of the other algorithm.
    pub(super) goal: Option<f64>,
}

/// The goals for allowed, for denied, and for denied decisions that count.
const ALLOWED: Option<f64> = Some(1.1);
const ATTEMPTS: Option<f64> = Some(1.3);
const DENIED: Option<f64> = Some(0.9);
const HOUR: u64 = 3600;
/// So long that no unit becomes free during a measurement.
const LONG: u64 = 1000 * 86_400;
const PLENTY: u64 = 10_000_000;

fn limit(max: u64, seconds: u64) -> Limit {
    Limit::new(max, Duration::from_secs(seconds)).expect("limits are valid")
}

fn two(first: Limit, second: Limit) -> Policy {
    Policy::new([first, second]).expect("policies are valid")
}

fn allowed(name: &'static str, about: &'static str, max: u64, before: Before) -> Shape {
    let (policy, rate) = (limit(max, HOUR).into(), Rate { burst: max, seconds: HOUR });
    Shape { name, about, many: false, policy, rate, cost: 1, allowed: true, before, goal: ALLOWED }
}

fn denied(name: &'static str, about: &'static str, max: u64) -> Shape {
    let (policy, rate) = (limit(max, LONG).into(), Rate { burst: max, seconds: LONG });
    Shape { name, about, many: false, policy, rate, cost: 1, allowed: false, before: Before::Units(max), goal: DENIED }
}

/// Returns all scenarios, in the order of the table.
pub(super) fn all() -> Vec<Shape> {
    vec![
        allowed("server/hot/allowed/growing", "one key, the log grows", PLENTY, Before::Units(0)),
        Shape {
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
        Shape {
            before: Before::Steady(100),
            ..denied("server/hot/denied/steady", "one key, 100 used up for several windows", 100)
        },
        Shape {
            many: true,
            ..allowed("server/keys/allowed/growing", "100,000 keys, one entry and more each", 1000, Before::Units(1))
        },
        Shape {
            many: true,
            ..allowed(
                "server/keys/allowed/steady",
                "100,000 keys, 10 entries each, one expires as one comes",
                20,
                Before::Expired(10),
            )
        },
        Shape { many: true, ..denied("server/keys/denied", "100,000 keys, 10 used up each", 10) },
        Shape {
            many: true,
            before: Before::Steady(10),
            ..denied("server/keys/denied/steady", "100,000 keys, 10 used up each for several windows", 10)
        },
        Shape {
            policy: two(limit(PLENTY, HOUR), limit(10 * PLENTY, 24 * HOUR)),
            goal: None,
            ..allowed("server/general/two_limits", "one key, two limits, the log grows", PLENTY, Before::Units(0))
        },
        Shape {
            policy: two(limit(100, LONG), limit(1000, 2 * LONG)),
            goal: None,
            ..denied("server/general/two_limits/denied", "one key, two limits, 100 used up", 100)
        },
        Shape {
            cost: 5,
            goal: None,
            ..allowed("server/general/cost_5", "one key, cost 5, the log grows", PLENTY, Before::Units(0))
        },
        Shape {
            policy: Policy::from(limit(100, LONG)).with_counting(Counting::Attempts),
            goal: ATTEMPTS,
            ..denied("server/general/attempts", "one key, 100 used up, denied attempts count", 100)
        },
    ]
}
