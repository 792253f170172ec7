//! The sizes of a suite.

use std::time::Duration;

/// How much each phase does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// The rounds of the cases: as written, with a peek after every step, and with inverted counting.
    pub(crate) rounds_of_cases: usize,
    pub(crate) long_log: u64,
    pub(crate) long_log_time: Duration,
    /// Whether keys of up to a mebibyte are used.
    pub(crate) huge_keys: bool,
    /// The number of consecutive operations at the store's clock.
    pub(crate) in_a_row: usize,
    /// How long the phase Forgetting may wait.
    pub(crate) wait: Duration,
    /// How many other keys come and go while a log must be kept.
    pub(crate) other_keys: usize,
    /// The maximum duration of a poll.
    pub(crate) blocking: Duration,
    pub(crate) depth: usize,
    pub(crate) one_in: u64,
    pub(crate) sequences: u64,
    /// The maximum number of runs to shrink a failing sequence.
    pub(crate) shrinking: usize,
    pub(crate) tasks: usize,
    pub(crate) tries: usize,
    pub(crate) rounds: u64,
}

impl Sizes {
    pub(crate) const FAST: Self = Self {
        rounds_of_cases: 3,
        long_log: 70_000,
        long_log_time: Duration::from_secs(10),
        huge_keys: true,
        in_a_row: 2_000,
        wait: Duration::from_secs(2),
        other_keys: 2_000,
        blocking: Duration::from_millis(2),
        depth: 2,
        one_in: 1,
        sequences: 600,
        shrinking: 5_000,
        tasks: 8,
        tries: 50,
        rounds: 4,
    };
    pub(crate) const SLOW: Self = Self {
        rounds_of_cases: 2,
        long_log: 1_100,
        long_log_time: Duration::from_secs(30),
        in_a_row: 100,
        other_keys: 50,
        blocking: Duration::from_millis(20),
        one_in: 6,
        sequences: 120,
        shrinking: 1_000,
        tries: 20,
        rounds: 1,
        ..Self::FAST
    };
    pub(crate) const SHARED: Self = Self {
        rounds_of_cases: 1,
        long_log: 300,
        huge_keys: false,
        in_a_row: 50,
        other_keys: 10,
        one_in: 24,
        sequences: 40,
        shrinking: 500,
        tasks: 4,
        tries: 10,
        ..Self::SLOW
    };
}
