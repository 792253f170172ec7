//! How long a measurement takes.

/// How long to measure.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// How often each contestant has its turn.
    pub rounds: usize,
    /// Decisions in a turn: few, so that most turns are over before the machine does something else.
    pub calls: usize,
    /// How many keys "many keys" are.
    pub keys: usize,
    /// How often each contestant has its turn with clients' tasks.
    pub client_rounds: usize,
    /// Decisions in such a turn, of one task; four times as many of more tasks.
    pub client_calls: usize,
}

impl Effort {
    /// Within two minutes.
    pub const QUICK: Self = Self { rounds: 151, calls: 300, keys: 100_000, client_rounds: 15, client_calls: 2000 };
    /// More turns.
    pub const FULL: Self = Self { rounds: 381, calls: 200, keys: 100_000, client_rounds: 61, client_calls: 3000 };
    /// Whether everything works.
    pub const TEST: Self = Self { rounds: 2, calls: 20, keys: 200, client_rounds: 2, client_calls: 300 };
}
