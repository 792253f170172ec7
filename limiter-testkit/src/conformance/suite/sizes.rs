//! The sizes of a suite.

use std::time::Duration;

/// How much each phase of a [`Suite`](crate::conformance::Suite) does. The presets differ in them.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Sizes {
    /// The rounds of the cases: with a peek after every step, as written, and with inverted counting.
    pub rounds_of_cases: usize,
    /// The number of entries of the long log.
    pub long_log: u64,
    /// The time after which the long log stops early, which is not a failure.
    pub long_log_time: Duration,
    /// Whether keys of up to a mebibyte are used.
    pub huge_keys: bool,
    /// The number of consecutive operations at the store's clock. Half as many other keys come and go while a log must be kept.
    pub in_a_row: usize,
    /// How long [`Phase::Forgetting`](crate::conformance::Phase::Forgetting) may wait. Sentence F2 grants a minute: with more than 70 s, the phase
    /// also checks logs shortly before that minute ends.
    pub wait: Duration,
    /// How long a call may block its thread before it breaks sentence T5. A store that first leaves its runtime's thread, as with
    /// tokio's `block_in_place`, may use any duration.
    pub blocking: Duration,
    /// How long a call may take before the run ends, by sentence C2. [`Phase::Cancel`](crate::conformance::Phase::Cancel) allows half of
    /// that for the calls after a dropped one.
    pub call: Duration,
    /// The number of random sequences.
    pub sequences: u64,
    /// The number of concurrent tasks.
    pub tasks: usize,
    /// How many calls each task makes for each script.
    pub tries: usize,
    /// The number of rounds of concurrent tasks.
    pub rounds: u64,
}

impl Sizes {
    pub(crate) const FAST: Self = Self {
        rounds_of_cases: 3,
        long_log: 70_000,
        long_log_time: Duration::from_secs(10),
        huge_keys: true,
        in_a_row: 4_000,
        wait: Duration::from_secs(2),
        blocking: Duration::from_millis(2),
        call: Duration::from_secs(20),
        sequences: 750,
        tasks: 8,
        tries: 50,
        rounds: 4,
    };
    pub(crate) const SLOW: Self = Self {
        rounds_of_cases: 2,
        long_log: 1_100,
        long_log_time: Duration::from_secs(30),
        in_a_row: 100,
        blocking: Duration::from_millis(20),
        call: Duration::from_secs(40),
        sequences: 150,
        tries: 20,
        rounds: 1,
        ..Self::FAST
    };
    pub(crate) const SHARED: Self = Self {
        rounds_of_cases: 1,
        long_log: 300,
        huge_keys: false,
        in_a_row: 50,
        sequences: 50,
        tasks: 4,
        tries: 10,
        ..Self::SLOW
    };
}
