//! Stores with one flaw each, of kinds that no mutation of a log makes: keys, clocks, expiry, handles, concurrency and cancellation.
//!
//! `scripts/mutants` checks that the suite finds wrong logs.

mod concurrent;
mod joint;
mod store;
mod table;

use std::task::Poll;

use limiter_core::store::{Facts, JointFacts, JointOp, Mode, Op, Settlement, SettlementFacts};
use limiter_core::{Error, ErrorKind};
use limiter_testkit::conformance::{Phase, Sentence};

pub(crate) use store::{Flawed, StoreUnderTest};
pub(crate) use table::{FLAWS, RIGHT};

/// A phase that always finds the flaw, a sentence that the failure cites, the flaw's name, and what it changes.
pub(crate) type Flaw = (Phase, Sentence, &'static str, Change);

/// What a flaw changes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Change {
    /// Code that asks for the name of the flaw.
    Code,
    /// The name and the key of a log.
    Log(fn(&str, &[u8]) -> (String, Vec<u8>)),
    /// The store's clock.
    Clock(fn(u64) -> u64),
    /// An operation, on a handle with this number.
    Op(fn(&mut Op<'_>, u32)),
    Facts(fn(&mut Facts)),
    Settlement(fn(&mut Settlement<'_>)),
    SettlementFacts(fn(&mut SettlementFacts)),
    /// When a log expires after an operation at the store's clock, or at a given time.
    Expiry(fn(&Expiry<'_>) -> u64),
    GivenExpiry(fn(&Expiry<'_>) -> u64),
    /// Several operations as one.
    Together(fn(&Flawed, &[JointOp<'_>]) -> Option<JointFacts>),
}

/// An operation, and when its log expires. Times are in microseconds.
pub(crate) struct Expiry<'a> {
    op: &'a Op<'a>,
    appended: bool,
    /// The time of the operation, and the store's clock.
    now: u64,
    clock: u64,
    /// When the log expired before the operation (0 if there was none), and when the contract lets it expire now.
    before: u64,
    right: u64,
}

/// Is pending once.
async fn wait() {
    let mut waited = false;
    std::future::poll_fn(|context| {
        context.waker().wake_by_ref();
        if std::mem::replace(&mut waited, true) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
}

/// Returns the operation in another mode.
fn in_mode(mut op: Op<'_>, mode: Mode) -> Op<'_> {
    op.mode = mode;
    op
}

fn fail<T>() -> Result<T, Error> {
    Err(Error::new(ErrorKind::Unavailable, "a flaw"))
}
