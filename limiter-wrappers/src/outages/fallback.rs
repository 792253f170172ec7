//! Limiting locally while a store is away.

mod aged;
mod charge;
mod journal;
mod replay;
mod reset;
mod shared;

use std::fmt;
use std::ops::ControlFlow::{Break, Continue};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use async_trait::async_trait;
use limiter_core::store::{Facts, LogKey, LogPlace, Op, Otherwise, Settlement, SettlementFacts, attempt, decide};
use limiter_core::{Decision, Error, NowStore, Timer, WindowStore};
use tokio::time::{Instant, sleep};

use self::shared::Shared;
use super::outage::{Outage, later};

/// Limits in a local store while the primary one is away, and replays afterwards what changed.
///
/// Each call goes to the primary store first, and whatever it answers is the answer. If it fails with
/// [`Unavailable`](limiter_core::ErrorKind::Unavailable) or [`Timeout`](limiter_core::ErrorKind::Timeout), `local` decides.
///
/// ```text
///                     answer
///   call ─► primary ─────────────► caller
///              │ fails                ▲
///              ▼                      │
///            local ──── decision ─────┘
///              │ appended
///              ▼
///           journal ──── replay ────► primary
/// ```
///
/// # Replay
/// Entries, settlements, refunds and resets of an outage wait in a journal. A task on the current tokio runtime replays them: many
/// logs at a time, in order within a log, with a pause after an error, until none is left. No call waits for it.
///
/// - A step whose answer was lost is repeated under the same id, so an entry counts once.
/// - An entry keeps its age. The primary store's clock decides, whatever the local one says. If the log already holds a newer
///   entry, the replayed one counts from that on, so it may count for longer than it should.
/// - What has expired is dropped, and so is an entry that was refunded before it was sent.
/// - A call that timed out may have had its effect. Without an idempotency key it then counts twice.
///
/// # What a window admits
/// At most `max` in the primary store and, in each process, `max` in the local store, however many outages the window contains. A
/// replay does not empty the local store.
///
/// # Ids and receipts
/// This process repeats the verdict that it has given for an idempotency key, before and after the replay, as long as the entry
/// counts. A receipt that it has issued works likewise. Other processes cannot know either: to them, the id is new until its replay,
/// and has the primary store's verdict afterwards.
///
/// During an outage a settlement reports success unless its receipt has expired, and a reset reports that there was a log. Both
/// describe the local log.
///
/// Under a limit with a [resolution](limiter_core::Limit::resolution), ids and receipts end after ten minutes. If the answer to a call
/// with an id was lost and the replay comes later than that, the entry may count twice. A replayed entry is kept, so it merges
/// ten minutes later than others.
///
/// # Memory
/// The journal holds at most [`max_entries`](Self::max_entries) changes, and the oldest go first. After their replay it holds as many
/// receipts, until they expire. A change or a receipt takes less than a KiB and the key. The local store has its own bound. An
/// operation that appends nothing takes no memory.
///
/// # Cancel safety
/// As the primary store's. A reset of a log of which changes wait follows in the replay, even if its call is dropped. The replay
/// belongs to no call. It ends with the last clone; call [`flush`](Self::flush) first.
pub struct Fallback<P, L>(Arc<Shared<P, L>>);

impl<P, L> Fallback<P, L> {
    /// Returns `primary`, with `local` in its place while it is away.
    #[must_use]
    pub fn new(primary: P, local: L) -> Self {
        Self(Arc::new(Shared::new(primary, local)))
    }

    /// Sets how many changes are kept to be replayed. Default: 100,000.
    ///
    /// The oldest go if there are more. They count locally only, and [`dropped`](Self::dropped) counts them.
    #[must_use]
    pub fn max_entries(self, max_entries: usize) -> Self {
        self.0.state().journal.max = max_entries;
        self
    }

    /// Adds a listener, which is called once when an outage begins and once when it ends. Default: none.
    ///
    /// An outage begins with the first call that fails. It is over when the primary store has answered everything for a second.
    /// The listener is called within the call, or the replay, that notices it.
    #[must_use]
    pub fn on_outage(self, listener: impl Fn(Outage<'_>) + Send + Sync + 'static) -> Self {
        self.0.outages.listen(listener);
        self
    }

    /// Returns the primary store.
    pub fn primary(&self) -> &P {
        &self.0.primary
    }

    /// Returns the local store.
    pub fn local(&self) -> &L {
        &self.0.local
    }

    /// Whether an outage has begun and is not over.
    #[must_use]
    pub fn is_out(&self) -> bool {
        self.0.outages.is_out()
    }

    /// Returns the nodes of the primary store that have failed since the start, and whether an outage of each is not over.
    #[must_use]
    pub fn nodes(&self) -> Vec<(Option<Arc<str>>, bool)> {
        self.0.outages.nodes()
    }

    /// Returns how many calls the local store has decided.
    #[must_use]
    pub fn local_decisions(&self) -> u64 {
        self.0.local_decisions()
    }

    /// Returns how many changes were never replayed because the journal was full.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.0.state().journal.dropped()
    }
}

impl<P: WindowStore, L: NowStore> Fallback<P, L> {
    /// Returns how many changes wait to be replayed.
    #[must_use]
    pub fn journal_len(&self) -> usize {
        self.0.lock().journal.changes()
    }

    /// Waits until all changes are replayed, but no longer than `timeout`. Returns how many are left.
    ///
    /// Call it at shutdown, after the last request.
    ///
    /// # Cancel safety
    /// Nothing is lost: the replay goes on.
    pub async fn flush(&self, timeout: Duration) -> usize {
        let deadline = later(timeout);
        loop {
            self.0.start_replay(self.0.lock());
            let left = self.journal_len();
            let time_left = deadline.saturating_duration_since(Instant::now());
            if left == 0 || time_left.is_zero() {
                return left;
            }
            sleep(time_left.min(Duration::from_millis(5))).await;
        }
    }
}

#[async_trait]
impl<P: WindowStore, L: NowStore> WindowStore for Fallback<P, L> {
    async fn apply(&self, op: Op<'_>) -> Result<Facts, Error> {
        let answer = self.0.primary.apply(op).await;
        self.0.outages.note(&answer, || self.place(op.log).node);
        match answer {
            Err(error) if error.is_retryable() => Ok(self.0.decide_locally(&op)),
            Ok(facts) => Ok(self.0.answered(&op, facts)),
            error => error,
        }
    }

    async fn settle(&self, settlement: Settlement<'_>) -> Result<SettlementFacts, Error> {
        let mut sent = settlement;
        match self.0.settle_locally(&settlement) {
            Break(facts) => return Ok(facts),
            Continue(receipt) => sent.receipt = receipt,
        }
        let answer = self.0.primary.settle(sent).await;
        self.0.outages.note_change(&answer, || self.place(settlement.log).node);
        match answer {
            Err(error) if error.is_retryable() => Ok(self.0.settle_later(&settlement)),
            answer => answer,
        }
    }

    async fn reset(&self, log: LogKey<'_>) -> Result<bool, Error> {
        let Some(reset) = self.0.begin_reset(log) else { return Ok(true) };
        let answer = self.0.primary.reset(log).await;
        self.0.outages.note_change(&answer, || self.place(log).node);
        self.0.end_reset(&reset, answer)
    }

    fn try_decide(&self, op: Op<'_>, otherwise: Otherwise<'_>) -> Poll<Result<Decision, Error>> {
        let attempted = || {
            if self.0.may_repeat(&op) {
                return None;
            }
            match attempt(&self.0.primary, op)? {
                Err(error) if error.is_retryable() => {
                    self.0.outages.failed(&error, &self.place(op.log).node, 1);
                    Some(op.checked().map(|op| decide(&op, self.0.decide_locally(&op))))
                }
                answer => {
                    self.0.outages.note_decision(&answer, || self.place(op.log).node);
                    Some(answer)
                }
            }
        };
        attempted().map_or_else(otherwise, Poll::Ready)
    }

    fn timer(&self) -> Option<&dyn Timer> {
        self.0.primary.timer()
    }

    fn place(&self, log: LogKey<'_>) -> LogPlace {
        self.0.primary.place(log)
    }
}

impl<P, L> Clone for Fallback<P, L> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<P: fmt::Debug, L: fmt::Debug> fmt::Debug for Fallback<P, L> {
    /// Prints no keys, and locks nothing.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Fallback");
        out.field("primary", self.primary()).field("local", self.local()).field("is_out", &self.is_out());
        out.finish_non_exhaustive()
    }
}
