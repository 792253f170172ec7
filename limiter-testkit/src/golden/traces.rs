//! The data of the golden traces. Times are in microseconds.

use limiter_core::Counting::{Admitted, Attempts};
use limiter_core::store::Mode;

use super::trace::{Row, RowAnswer, Trace};

const fn row(at: u64, mode: Mode, cost: u64) -> Row {
    Row { at, mode, cost, own_limits: &[], limiter: 0, used_each: &[], answer: None }
}

const fn acquire(at: u64, cost: u64) -> Row {
    row(at, Mode::Acquire, cost)
}

const fn peek(at: u64, cost: u64) -> Row {
    row(at, Mode::Peek, cost)
}

const fn record(at: u64, cost: u64) -> Row {
    row(at, Mode::Record, cost)
}

impl Row {
    const fn answered(mut self, used: u64, of: u64, times: (Option<u64>, u64, u64)) -> Self {
        self.answer = Some(RowAnswer {
            allowed: times.0.is_none(),
            limit: of,
            used,
            remaining: of - used,
            retry_after: times.0,
            refill_after: times.1,
            reset_after: times.2,
        });
        self
    }

    /// An admission: `used` of `of`, the time to the next unit, and the time until the log is empty.
    const fn allowed(self, used: u64, of: u64, refill: u64, reset: u64) -> Self {
        self.answered(used, of, (None, refill, reset))
    }

    const fn under(mut self, own_limits: &'static [(u64, u64)]) -> Self {
        self.own_limits = own_limits;
        self
    }

    const fn by_another_limiter(mut self) -> Self {
        self.limiter = 1;
        self
    }

    const fn with_used(mut self, used_each: &'static [u64]) -> Self {
        self.used_each = used_each;
        self
    }

    /// A denial: `used` of `of`, the time to wait, the time to the next unit, and the time until the log is empty.
    const fn denied(self, used: u64, of: u64, retry: u64, refill: u64, reset: u64) -> Self {
        self.answered(used, of, (Some(retry), refill, reset))
    }
}

/// Returns the golden traces.
#[must_use]
pub fn traces() -> &'static [Trace] {
    TRACES
}

const METER: u64 = limiter_core::MAX_COST;
const HOUR: u64 = 3_600_000_000;

const TRACES: &[Trace] = &[
    // At 70 the log is 20, 35, 70; at 85 it is 35, 70, 85; at 150 nothing older than 90 counts.
    Trace {
        name: "in-process log",
        limits: &[(3, 60_000_000)],
        counting: Admitted,
        rows: &[
            acquire(0, 1).allowed(1, 3, 60_000_000, 60_000_000),
            acquire(20_000_000, 1).allowed(2, 3, 40_000_000, 60_000_000),
            acquire(35_000_000, 1).allowed(3, 3, 25_000_000, 60_000_000),
            acquire(70_000_000, 1).allowed(3, 3, 10_000_000, 60_000_000),
            acquire(75_000_000, 1).denied(3, 3, 5_000_000, 5_000_000, 55_000_000),
            acquire(85_000_000, 1).allowed(3, 3, 10_000_000, 60_000_000),
            acquire(90_000_000, 1).denied(3, 3, 5_000_000, 5_000_000, 55_000_000),
            acquire(150_000_000, 1).allowed(1, 3, 60_000_000, 60_000_000),
        ],
    },
    // At 60, the entry at 0 is exactly 60 old and no longer counts.
    Trace {
        name: "service in front of a cluster",
        limits: &[(10, 60_000_000)],
        counting: Admitted,
        rows: &[
            acquire(0, 1).allowed(1, 10, 60_000_000, 60_000_000),
            acquire(5_000_000, 1).allowed(2, 10, 55_000_000, 60_000_000),
            acquire(6_000_000, 1).allowed(3, 10, 54_000_000, 60_000_000),
            acquire(6_500_000, 1).allowed(4, 10, 53_500_000, 60_000_000),
            acquire(7_000_000, 1).allowed(5, 10, 53_000_000, 60_000_000),
            acquire(7_500_000, 1).allowed(6, 10, 52_500_000, 60_000_000),
            acquire(8_000_000, 1).allowed(7, 10, 52_000_000, 60_000_000),
            acquire(8_500_000, 1).allowed(8, 10, 51_500_000, 60_000_000),
            acquire(9_000_000, 1).allowed(9, 10, 51_000_000, 60_000_000),
            acquire(10_000_000, 1).allowed(10, 10, 50_000_000, 60_000_000),
            acquire(10_000_000, 1).denied(10, 10, 50_000_000, 50_000_000, 60_000_000),
            acquire(60_000_000, 1).allowed(10, 10, 5_000_000, 60_000_000),
            acquire(64_999_999, 1).denied(10, 10, 1, 1, 55_000_001),
            acquire(65_000_000, 1).allowed(10, 10, 1_000_000, 60_000_000),
        ],
    },
    // At 10, only the two denied attempts at 9 still count.
    Trace {
        name: "denied hits count",
        limits: &[(3, 10_000_000)],
        counting: Attempts,
        rows: &[
            acquire(0, 1).allowed(1, 3, 10_000_000, 10_000_000),
            acquire(0, 1).allowed(2, 3, 10_000_000, 10_000_000),
            acquire(0, 1).allowed(3, 3, 10_000_000, 10_000_000),
            acquire(9_000_000, 1).denied(3, 3, 1_000_000, 1_000_000, 10_000_000),
            acquire(9_000_000, 1).denied(3, 3, 1_000_000, 1_000_000, 10_000_000),
            acquire(10_000_000, 1).allowed(3, 3, 9_000_000, 10_000_000),
            acquire(10_000_000, 1).denied(3, 3, 9_000_000, 9_000_000, 10_000_000),
        ],
    },
    // The same operations as in the previous trace, and two more at 10.
    Trace {
        name: "denied hits are free",
        limits: &[(3, 10_000_000)],
        counting: Admitted,
        rows: &[
            acquire(0, 1).allowed(1, 3, 10_000_000, 10_000_000),
            acquire(0, 1).allowed(2, 3, 10_000_000, 10_000_000),
            acquire(0, 1).allowed(3, 3, 10_000_000, 10_000_000),
            acquire(9_000_000, 1).denied(3, 3, 1_000_000, 1_000_000, 1_000_000),
            acquire(9_000_000, 1).denied(3, 3, 1_000_000, 1_000_000, 1_000_000),
            acquire(10_000_000, 1).allowed(1, 3, 10_000_000, 10_000_000),
            acquire(10_000_000, 1).allowed(2, 3, 10_000_000, 10_000_000),
            acquire(10_000_000, 1).allowed(3, 3, 10_000_000, 10_000_000),
            acquire(10_000_000, 1).denied(3, 3, 10_000_000, 10_000_000, 10_000_000),
        ],
    },
    // A usage meter: `used - cost` is the usage before: 0, 1, 2, 2.
    Trace {
        name: "usage counter",
        limits: &[(METER, 3_600_000_000)],
        counting: Admitted,
        rows: &[
            record(0, 1).allowed(1, METER, 3_600_000_000, 3_600_000_000),
            record(1_000_000, 1).allowed(2, METER, 3_599_000_000, 3_600_000_000),
            record(2_000_000, 1).allowed(3, METER, 3_598_000_000, 3_600_000_000),
            record(3_600_000_000, 1).allowed(3, METER, 1_000_000, 3_600_000_000),
        ],
    },
    // A peek sees what the next acquire finds, and appends nothing.
    Trace {
        name: "peek",
        limits: &[(3, 10_000_000)],
        counting: Admitted,
        rows: &[
            acquire(0, 1).allowed(1, 3, 10_000_000, 10_000_000),
            acquire(4_000_000, 1).allowed(2, 3, 6_000_000, 10_000_000),
            acquire(5_000_000, 1).allowed(3, 3, 5_000_000, 10_000_000),
            acquire(8_000_000, 1).denied(3, 3, 2_000_000, 2_000_000, 7_000_000),
            peek(11_000_000, 1).allowed(2, 3, 3_000_000, 4_000_000),
            acquire(11_000_000, 1).allowed(3, 3, 3_000_000, 10_000_000),
            acquire(11_000_000, 1).denied(3, 3, 3_000_000, 3_000_000, 10_000_000),
        ],
    },
    // A cost above the maximum is refused. Two units do not fit where one does.
    Trace {
        name: "weights",
        limits: &[(10, 2_000_000)],
        counting: Admitted,
        rows: &[
            acquire(0, 11),
            acquire(0, 5).allowed(5, 10, 2_000_000, 2_000_000),
            acquire(1_900_000, 1).allowed(6, 10, 100_000, 2_000_000),
            acquire(1_900_000, 1).allowed(7, 10, 100_000, 2_000_000),
            acquire(1_900_000, 1).allowed(8, 10, 100_000, 2_000_000),
            acquire(1_900_000, 1).allowed(9, 10, 100_000, 2_000_000),
            acquire(1_900_000, 2).denied(9, 10, 100_000, 100_000, 2_000_000),
            acquire(1_900_000, 1).allowed(10, 10, 100_000, 2_000_000),
            acquire(2_100_000, 1).allowed(6, 10, 1_800_000, 2_000_000),
            acquire(2_100_000, 1).allowed(7, 10, 1_800_000, 2_000_000),
            acquire(2_100_000, 1).allowed(8, 10, 1_800_000, 2_000_000),
            acquire(2_100_000, 1).allowed(9, 10, 1_800_000, 2_000_000),
            acquire(2_100_000, 1).allowed(10, 10, 1_800_000, 2_000_000),
            acquire(2_100_000, 2).denied(10, 10, 1_800_000, 1_800_000, 2_000_000),
        ],
    },
    // 1, 2, 4 and 3 units at 10, 20, 30 and 50.
    Trace {
        name: "bursts",
        limits: &[(10, 60_000_000)],
        counting: Admitted,
        rows: &[
            acquire(10_000_000, 1).allowed(1, 10, 60_000_000, 60_000_000),
            acquire(20_000_000, 1).allowed(2, 10, 50_000_000, 60_000_000),
            acquire(20_000_000, 1).allowed(3, 10, 50_000_000, 60_000_000),
            acquire(30_000_000, 1).allowed(4, 10, 40_000_000, 60_000_000),
            acquire(30_000_000, 1).allowed(5, 10, 40_000_000, 60_000_000),
            acquire(30_000_000, 1).allowed(6, 10, 40_000_000, 60_000_000),
            acquire(30_000_000, 1).allowed(7, 10, 40_000_000, 60_000_000),
            acquire(50_000_000, 1).allowed(8, 10, 20_000_000, 60_000_000),
            acquire(50_000_000, 1).allowed(9, 10, 20_000_000, 60_000_000),
            acquire(50_000_000, 1).allowed(10, 10, 20_000_000, 60_000_000),
            acquire(71_000_000, 1).allowed(10, 10, 9_000_000, 60_000_000),
            acquire(72_000_000, 1).denied(10, 10, 8_000_000, 8_000_000, 59_000_000),
        ],
    },
    // Ten more requests just before the first entry expires: no window ever holds more than ten.
    Trace {
        name: "burst at the edge",
        limits: &[(10, 1_000_000)],
        counting: Admitted,
        rows: &[
            acquire(0, 1).allowed(1, 10, 1_000_000, 1_000_000),
            acquire(900_000, 1).allowed(2, 10, 100_000, 1_000_000),
            acquire(900_000, 1).allowed(3, 10, 100_000, 1_000_000),
            acquire(900_000, 1).allowed(4, 10, 100_000, 1_000_000),
            acquire(900_000, 1).allowed(5, 10, 100_000, 1_000_000),
            acquire(900_000, 1).allowed(6, 10, 100_000, 1_000_000),
            acquire(900_000, 1).allowed(7, 10, 100_000, 1_000_000),
            acquire(900_000, 1).allowed(8, 10, 100_000, 1_000_000),
            acquire(900_000, 1).allowed(9, 10, 100_000, 1_000_000),
            acquire(900_000, 1).allowed(10, 10, 100_000, 1_000_000),
            acquire(900_000, 1).denied(10, 10, 100_000, 100_000, 1_000_000),
            acquire(1_100_000, 1).allowed(10, 10, 800_000, 1_000_000),
        ],
    },
    // At 10, the oldest entry is 9 seconds old.
    Trace {
        name: "steady",
        limits: &[(5, 10_000_000)],
        counting: Admitted,
        rows: &[
            acquire(1_000_000, 1).allowed(1, 5, 10_000_000, 10_000_000),
            acquire(2_000_000, 1).allowed(2, 5, 9_000_000, 10_000_000),
            acquire(3_000_000, 1).allowed(3, 5, 8_000_000, 10_000_000),
            acquire(4_000_000, 1).allowed(4, 5, 7_000_000, 10_000_000),
            acquire(5_000_000, 1).allowed(5, 5, 6_000_000, 10_000_000),
            acquire(5_000_000, 1).denied(5, 5, 6_000_000, 6_000_000, 10_000_000),
            acquire(10_000_000, 1).denied(5, 5, 1_000_000, 1_000_000, 5_000_000),
            acquire(11_000_000, 1).allowed(5, 5, 1_000_000, 10_000_000),
        ],
    },
    // The two limits bind in turn. At 5, both would deny for a second, and the first is named.
    Trace {
        name: "two limits",
        limits: &[(3, 1_000_000), (5, 5_000_000)],
        counting: Admitted,
        rows: &[
            acquire(0, 1).allowed(1, 3, 1_000_000, 5_000_000),
            acquire(0, 1).allowed(2, 3, 1_000_000, 5_000_000),
            acquire(0, 1).allowed(3, 3, 1_000_000, 5_000_000),
            acquire(0, 1).denied(3, 3, 1_000_000, 1_000_000, 5_000_000),
            acquire(1_000_000, 1).allowed(4, 5, 4_000_000, 5_000_000),
            acquire(1_000_000, 1).allowed(5, 5, 4_000_000, 5_000_000),
            acquire(1_000_000, 1).denied(5, 5, 4_000_000, 4_000_000, 5_000_000),
            acquire(5_000_000, 1).allowed(1, 3, 1_000_000, 5_000_000),
            acquire(5_000_000, 1).allowed(2, 3, 1_000_000, 5_000_000),
            acquire(5_000_000, 1).allowed(3, 3, 1_000_000, 5_000_000),
            acquire(5_000_000, 1).denied(3, 3, 1_000_000, 1_000_000, 5_000_000),
        ],
    },
    // The operation at 90 counts as if it were at 100.
    Trace {
        name: "clock steps back",
        limits: &[(2, 10_000_000)],
        counting: Admitted,
        rows: &[
            acquire(100_000_000, 1).allowed(1, 2, 10_000_000, 10_000_000),
            acquire(90_000_000, 1).allowed(2, 2, 10_000_000, 10_000_000),
            acquire(99_000_000, 1).denied(2, 2, 10_000_000, 10_000_000, 10_000_000),
            acquire(109_999_999, 1).denied(2, 2, 1, 1, 1),
            acquire(110_000_000, 1).allowed(1, 2, 10_000_000, 10_000_000),
        ],
    },
    // An operation under a policy of one second does not drop the hour that the default policy counts.
    Trace {
        name: "another policy and another limiter",
        limits: &[(3, 1_000_000), (100, HOUR)],
        counting: Admitted,
        rows: &[
            acquire(0, 1).allowed(1, 3, 1_000_000, HOUR).with_used(&[1, 1]),
            acquire(0, 1).allowed(2, 3, 1_000_000, HOUR).with_used(&[2, 2]),
            acquire(0, 1).allowed(3, 3, 1_000_000, HOUR).with_used(&[3, 3]),
            acquire(2_000_000, 1).under(&[(50, 1_000_000)]).allowed(1, 50, 1_000_000, 1_000_000).with_used(&[1]),
            peek(2_000_000, 1).allowed(1, 3, 1_000_000, HOUR).with_used(&[1, 4]),
            peek(2_000_000, 1).by_another_limiter().allowed(0, 3, 0, 0).with_used(&[0, 0]),
        ],
    },
];
