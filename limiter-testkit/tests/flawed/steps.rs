//! A store whose calls need several polls.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

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
}

impl WindowStore for Stepwise {
    async fn apply(&self, op: Op<'_>) -> Result<Facts, Error> {
        if let (LeftBehind::AnEntryWithoutItsId, Some(_)) = (self.left_behind, op.id) {
            let guard = self.lock().await;
            let before = self.change(op.log, |log, _| log.clone());
            let mut without = op;
            without.id = None;
            self.change(op.log, |log, now| {
                let found = log.clone().apply(&op, now).outcome;
                if !matches!(found, Outcome::Repeated(_)) {
                    let _ = log.apply(&without, now);
                }
            });
            wait().await;
            let facts = self.change(op.log, |log, now| {
                *log = before;
                log.apply(&op, now)
            });
            drop(guard);
            return Ok(facts);
        }
        Ok(self.call(op.log, |log, now| log.apply(&op, now)).await)
    }

    async fn settle(&self, settlement: Settlement<'_>) -> Result<SettlementFacts, Error> {
        if self.left_behind == LeftBehind::HalfASettlement && settlement.cost > 0 {
            let guard = self.lock().await;
            let before = self.change(settlement.log, |log, _| log.clone());
            let mut refund = settlement;
            refund.cost = 0;
            self.change(settlement.log, |log, now| log.settle(&refund, now));
            wait().await;
            let facts = self.change(settlement.log, |log, now| {
                *log = before;
                log.settle(&settlement, now)
            });
            drop(guard);
            return Ok(facts);
        }
        Ok(self.call(settlement.log, |log, now| log.settle(&settlement, now)).await)
    }

    async fn reset(&self, key: LogKey<'_>) -> Result<bool, Error> {
        if self.left_behind == LeftBehind::HalfAReset {
            let guard = self.lock().await;
            // First removes all entries except one.
            let found = self.change(key, |log, _| !log.is_empty());
            self.change(key, |log, now| {
                let policy = policy!("1/1us");
                let _ = log.apply(&Op::record(key.key, &policy).at(now), now);
            });
            wait().await;
            self.change(key, |log, _| drop(std::mem::take(log)));
            drop(guard);
            return Ok(found);
        }
        Ok(self.call(key, |log, _| !std::mem::take(log).is_empty()).await)
    }
}
