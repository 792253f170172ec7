//! The lengths that a limit's resolution or lease may have.

use std::time::Duration;

/// The lengths in microseconds and as text, by code. Code 0 means none. Each divides the next, so the cells of all policies nest.
pub const RESOLUTIONS: [(u64, &str); 14] = [
    (0, "none"),
    (1, "1us"),
    (10, "10us"),
    (100, "100us"),
    (1_000, "1ms"),
    (10_000, "10ms"),
    (100_000, "100ms"),
    (1_000_000, "1s"),
    (10_000_000, "10s"),
    (60_000_000, "1m"),
    (600_000_000, "10m"),
    (3_600_000_000, "1h"),
    (21_600_000_000, "6h"),
    (86_400_000_000, "1d"),
];

/// Returns the code of a length in nanoseconds.
pub(crate) const fn code_of(nanos: u128) -> Option<usize> {
    let mut code = 1;
    while code < RESOLUTIONS.len() {
        if RESOLUTIONS[code].0 as u128 * 1000 == nanos {
            return Some(code);
        }
        code += 1;
    }
    None
}

/// Returns the length of a code, `None` for code 0.
pub(crate) const fn length(code: u8) -> Option<Duration> {
    match RESOLUTIONS[code as usize].0 {
        0 => None,
        micros => Some(Duration::from_micros(micros)),
    }
}

/// Returns the nearest shorter and the nearest longer length as text. Without one of them, returns the first two or the
/// last two.
pub(crate) fn nearest(nanos: u64) -> [&'static str; 2] {
    let longer = RESOLUTIONS
        .partition_point(|(micros, _)| micros * 1000 < nanos)
        .clamp(2, RESOLUTIONS.len() - 1);
    [RESOLUTIONS[longer - 1].1, RESOLUTIONS[longer].1]
}
