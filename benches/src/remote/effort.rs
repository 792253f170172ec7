//! The effort of a measurement.

/// The effort of a measurement.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// The number of turns per contestant.
    pub rounds: usize,
    /// Decisions per turn. Few, so that other load interrupts few turns.
    pub calls: usize,
    /// The number of keys in scenarios with many keys.
    pub keys: usize,
    /// The number of turns per contestant in the client measurements.
    pub client_rounds: usize,
    /// Decisions per client turn with one task. With more tasks, four times as many.
    pub client_calls: usize,
}

impl Effort {
    /// Takes less than two minutes.
    pub const QUICK: Self = Self { rounds: 151, calls: 300, keys: 100_000, client_rounds: 15, client_calls: 2000 };
    /// Takes more turns.
    pub const FULL: Self = Self { rounds: 381, calls: 200, keys: 100_000, client_rounds: 61, client_calls: 3000 };
    /// Checks that everything works.
    pub const TEST: Self = Self { rounds: 2, calls: 20, keys: 200, client_rounds: 2, client_calls: 300 };
}
