//! The clocks of processes.

use std::cell::RefCell;
use std::time::{Duration, SystemTime};

use limiter_core::{BoxFuture, Clock, Timestamp};
use tokio::time::{Instant, sleep};

use crate::world::CALL;

thread_local! {
    /// When the history began, and by how many milliseconds each process's system clock is wrong.
    pub(crate) static SYSTEM: RefCell<(Option<Instant>, [i64; 4])> = const { RefCell::new((None, [0; 4])) };
}

/// The system's clock of the process that asks.
pub(crate) fn system_clock() -> SystemTime {
    let process = CALL.try_with(|caller| caller.process).unwrap_or(0);
    SYSTEM.with_borrow(|(start, off)| {
        let passed = start.map_or(Duration::ZERO, |start| start.elapsed());
        let since = 1_700_000_000_000 + passed.as_millis() as i64 + off[process];
        SystemTime::UNIX_EPOCH + Duration::from_millis(since as u64)
    })
}

/// Returns by how many milliseconds a process's system clock is wrong.
pub(crate) fn system_off(process: usize) -> i64 {
    SYSTEM.with_borrow(|(_, off)| off[process])
}

/// Returns `true` if a process that sent a request at a moment may still use what it got, by both its clocks.
pub(crate) fn is_held((sent, off): (Instant, i64), process: usize, window: Duration) -> bool {
    let held = window * 63 / 64;
    let passed = sent.elapsed().as_millis() as i64 + system_off(process) - off;
    sent.elapsed() < held && passed >= 0 && (passed as u128) < held.as_millis() + 1
}

/// The clock of a process's local store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Local(pub(crate) Instant);

impl Clock for Local {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros_saturating((1 << 50) + self.0.elapsed().as_micros() as u64)
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'_, ()> {
        Box::pin(sleep(duration))
    }
}
