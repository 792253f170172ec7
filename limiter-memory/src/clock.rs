//! The store's own clock: monotonic, in microseconds, anchored to the Unix epoch once per process.
//!
//! A process's stores share the anchor. A wall clock that is set later does not move it: windows keep their length.

use std::sync::LazyLock;
#[cfg(not(feature = "quanta"))]
use std::time::Instant as Start;
use std::time::SystemTime;

use limiter_core::Timestamp;

// The start comes first: it may calibrate for 200 ms, by which the clock would be late.
static CLOCK: LazyLock<AnchoredClock> = LazyLock::new(|| AnchoredClock {
    start: Start::now(),
    unix_micros: Timestamp::from_system_saturating(SystemTime::now()).as_micros(),
});

struct AnchoredClock {
    unix_micros: u64,
    start: Start,
}

#[cfg(feature = "quanta")]
struct Start {
    clock: quanta::Clock,
    ticks: u64,
    /// The microseconds of a tick, in units of 2^-64: scaling is one multiplication.
    tick: u64,
}

#[cfg(feature = "quanta")]
impl Start {
    fn now() -> Self {
        let clock = quanta::Clock::new();
        let nanos = u128::from(clock.delta_as_nanos(0, 1 << 40));
        let tick = u64::try_from((nanos << 24) / 1000).unwrap_or(u64::MAX);
        Self {
            ticks: clock.raw(),
            clock,
            tick,
        }
    }
}

#[cfg(feature = "quanta")]
#[inline]
fn elapsed_micros(start: &Start) -> u64 {
    let ticks = start.clock.raw().saturating_sub(start.ticks);
    ((u128::from(ticks) * u128::from(start.tick)) >> 64) as u64
}

#[cfg(not(feature = "quanta"))]
fn elapsed_micros(start: &Start) -> u64 {
    start.elapsed().as_micros() as u64
}

/// Returns the microseconds since the Unix epoch, which may be more than a timestamp's.
#[inline]
pub(crate) fn micros() -> u64 {
    let clock = &*CLOCK;
    clock.unix_micros + elapsed_micros(&clock.start)
}
