//! A store whose calls need several polls.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

use async_trait::async_trait;
use limiter_core::store::{Facts, Log, LogKey, Op, Outcome, Settlement, SettlementFacts};
use limiter_core::{Error, Timestamp, WindowStore, policy};

use super::rules::system_micros;

/// What a dropped future leaves behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeftBehind {
    Nothing,
    ItsLock,
    HalfASettlement,
    AnEntryWithoutItsId,
    HalfAReset,
}

/// A store whose calls take a lock, wait, work, and wait again.
#[derive(Debug)]
pub(crate) struct Stepwise {
    left_behind: LeftBehind,
    locked: AtomicBool,
    logs: Mutex<HashMap<Vec<u8>, Log>>,
}

/// Unlocks when dropped, as a correct store does.
struct Guard<'a>(&'a AtomicBool);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// Is pending once.
pub(super) async fn wait() {
    let mut waited = false;
    std::future::poll_fn(|context| {
        context.waker().wake_by_ref();
        if std::mem::replace(&mut waited, true) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

impl Stepwise {
    pub(crate) fn new(left_behind: LeftBehind) -> Self {
        Self { left_behind, locked: AtomicBool::new(false), logs: Mutex::default() }
    }

    async fn lock(&self) -> Option<Guard<'_>> {
        while self.locked.swap(true, Ordering::Acquire) {
            wait().await;
            std::thread::yield_now();
        }
        (self.left_behind != LeftBehind::ItsLock).then(|| Guard(&self.locked))
    }

    fn change<T>(&self, key: LogKey<'_>, change: impl FnOnce(&mut Log, Timestamp) -> T) -> T {
        let now = Timestamp::from_micros_saturating(system_micros());
        change(self.logs.lock().unwrap().entry(key.to_bytes()).or_default(), now)
    }

    /// Makes one call while holding the lock, with a pause before and after it.
    async fn call<T>(&self, key: LogKey<'_>, change: impl FnOnce(&mut Log, Timestamp) -> T) -> T {
        let guard = self.lock().await;
        wait().await;
        let answer = self.change(key, change);
        wait().await;
        match guard {
            Some(guard) => drop(guard),
            None => self.locked.store(false, Ordering::Release),
        }
        answer
    }

    /// Replaces the log by a half-changed one, waits, and then changes the log as it was before.
    async fn in_halves<T>(
        &self,
        key: LogKey<'_>,
        half: impl FnOnce(&mut Log, Timestamp),
        whole: impl FnOnce(&mut Log, Timestamp) -> T,
    ) -> T {
        let _guard = self.lock().await;
        let before = self.change(key, |log, now| {
            let before = log.clone();
            half(log, now);
            before
        });
        wait().await;
        self.change(key, |log, now| {
            *log = before;
            whole(log, now)
        })
    }
}

#[async_trait]
impl WindowStore for Stepwise {
    async fn apply(&self, op: Op<'_>) -> Result<Facts, Error> {
        let whole = |log: &mut Log, now| log.apply(&op, now);
        if self.left_behind != LeftBehind::AnEntryWithoutItsId || op.id.is_none() {
            return Ok(self.call(op.log, whole).await);
        }
        let mut without = op;
        without.id = None;
        let half = |log: &mut Log, now| {
            if !matches!(log.clone().apply(&op, now).outcome, Outcome::Repeated(_)) {
                _ = log.apply(&without, now);
            }
        };
        Ok(self.in_halves(op.log, half, whole).await)
    }

    async fn settle(&self, settlement: Settlement<'_>) -> Result<SettlementFacts, Error> {
        let whole = |log: &mut Log, now| log.settle(&settlement, now);
        if self.left_behind != LeftBehind::HalfASettlement || settlement.cost == 0 {
            return Ok(self.call(settlement.log, whole).await);
        }
        let mut refund = settlement;
        refund.cost = 0;
        let half = |log: &mut Log, now| _ = log.settle(&refund, now);
        Ok(self.in_halves(settlement.log, half, whole).await)
    }

    async fn reset(&self, key: LogKey<'_>) -> Result<bool, Error> {
        let whole = |log: &mut Log, _| !std::mem::take(log).is_empty();
        if self.left_behind != LeftBehind::HalfAReset {
            return Ok(self.call(key, whole).await);
        }
        // Leaves one entry.
        let half = |log: &mut Log, now| _ = log.apply(&Op::record(key.key, &policy!("1/1us")).at(now), now);
        Ok(self.in_halves(key, half, whole).await)
    }
}
