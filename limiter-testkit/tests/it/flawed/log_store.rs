//! A store over [`Log`], with several handles, expiry times, and calls that need several polls.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use limiter_core::store::{At, Facts, Log, LogKey, Mode, Op, Outcome, Retention, Settlement, SettlementFacts};
use limiter_core::{Error, Timestamp, WindowStore, policy};

use super::rules::system_micros;
use super::{LogFlaw, wait};

type Logs = HashMap<Vec<u8>, Stored>;

/// A log, and the time in microseconds at which the store forgets it.
#[derive(Clone, Debug, Default)]
struct Stored {
    log: Log,
    until: u64,
    /// A forgotten log whose ids are still known.
    ghost: Option<Log>,
}

/// What the handles of a store share.
#[derive(Debug, Default)]
struct Shared {
    locked: AtomicBool,
    logs: Mutex<Logs>,
}

/// What a handle hides from the others.
#[derive(Debug, Default)]
struct Private {
    logs: HashMap<Vec<u8>, Log>,
    denied: HashMap<Vec<u8>, Facts>,
}

#[derive(Debug)]
pub(crate) struct LogStore {
    flaw: LogFlaw,
    number: u32,
    shared: Arc<Shared>,
    private: Mutex<Private>,
}

/// Unlocks when dropped, as a correct store does.
struct Guard<'a>(&'a AtomicBool);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl LogStore {
    pub(crate) fn new(flaw: LogFlaw) -> Self {
        Self { flaw, number: 0, shared: Arc::default(), private: Mutex::default() }
    }

    /// Opens another handle of the same store.
    pub(crate) fn another(&self, number: u32) -> Self {
        if self.flaw == LogFlaw::OpeningClears && number > 1 {
            self.shared.logs.lock().unwrap().clear();
        }
        Self { flaw: self.flaw, number, shared: Arc::clone(&self.shared), private: Mutex::default() }
    }

    pub(crate) async fn sweep(&self) {
        let now = system_micros();
        let has_expired = |stored: &Stored| match self.flaw {
            LogFlaw::SweepsGivenTimes if stored.until > now + 30_000_000 => true,
            _ => !stored.log.is_empty() && stored.until <= now,
        };
        let select = |logs: &Logs| -> Vec<Vec<u8>> {
            logs.iter().filter(|(_, stored)| has_expired(stored)).map(|(key, _)| key.clone()).collect()
        };
        let mut expired = select(&self.shared.logs.lock().unwrap());
        match self.flaw {
            LogFlaw::SweepsInTwoSteps => std::thread::yield_now(),
            LogFlaw::SweepsInTwoPolls => wait().await,
            _ => expired.clear(),
        }
        let mut logs = self.shared.logs.lock().unwrap();
        if !matches!(self.flaw, LogFlaw::SweepsInTwoSteps | LogFlaw::SweepsInTwoPolls) {
            expired = select(&logs);
        }
        let is_swept = |key: &Vec<u8>| match self.flaw {
            LogFlaw::SweepsAllNames => expired.iter().any(|other| own_key(other) == own_key(key)),
            _ => expired.contains(key),
        };
        for (_, stored) in logs.iter_mut().filter(|(key, _)| is_swept(key)) {
            let log = std::mem::take(&mut stored.log);
            stored.ghost = (self.flaw == LogFlaw::SweepLeavesIds).then_some(log);
        }
        logs.retain(|_, stored| !stored.log.is_empty() || stored.ghost.is_some());
    }

    async fn lock(&self) -> Option<Guard<'_>> {
        while self.shared.locked.swap(true, Ordering::Acquire) {
            if self.flaw == LogFlaw::BlocksWhenContended {
                std::thread::sleep(Duration::from_millis(10));
            }
            wait().await;
            std::thread::yield_now();
        }
        (self.flaw != LogFlaw::LeavesItsLock).then(|| Guard(&self.shared.locked))
    }

    fn change<T>(&self, key: LogKey<'_>, change: impl FnOnce(&mut Stored, u64) -> T) -> T {
        let (bytes, now) = (key.to_bytes(), system_micros());
        match self.flaw {
            LogFlaw::HidesItsLock => {
                // Other handles do not wait for this lock.
                let _own = self.private.lock().unwrap();
                let mut stored = self.shared.logs.lock().unwrap().get(&bytes).cloned().unwrap_or_default();
                let answer = change(&mut stored, now);
                std::thread::yield_now();
                self.shared.logs.lock().unwrap().insert(bytes, stored);
                answer
            }
            LogFlaw::HidesItsLogs => {
                let (mut own, mut logs) = (self.private.lock().unwrap(), self.shared.logs.lock().unwrap());
                let stored = logs.entry(bytes.clone()).or_default();
                stored.log = own.logs.get(&bytes).unwrap_or(&stored.log).clone();
                let answer = change(stored, now);
                own.logs.insert(bytes, stored.log.clone());
                answer
            }
            _ => {
                let mut logs = self.shared.logs.lock().unwrap();
                if self.flaw == LogFlaw::ForgetsWhenThereAreMany && logs.len() > 1_000 {
                    logs.clear();
                }
                let stored = logs.entry(bytes.clone()).or_default();
                let is_lost = self.flaw == LogFlaw::CountsIn16Bits && stored.log.len() == 1 << 16;
                if is_lost || !stored.log.is_empty() && stored.until <= now {
                    stored.log = Log::new();
                }
                let answer = change(stored, now);
                let until = stored.until;
                if stored.log.is_empty() && stored.ghost.is_none() {
                    logs.remove(&bytes);
                }
                if self.flaw == LogFlaw::ExpiresAllNames {
                    let same = logs.iter_mut().filter(|(other, _)| own_key(other) == own_key(&bytes));
                    same.for_each(|(_, stored)| stored.until = until);
                }
                answer
            }
        }
    }

    /// Makes one call. A store that takes steps holds its lock meanwhile, with a pause before and after the change.
    async fn call<T>(&self, key: LogKey<'_>, change: impl FnOnce(&mut Stored, u64) -> T) -> T {
        if !self.flaw.takes_steps() {
            return self.change(key, change);
        }
        let guard = self.lock().await;
        wait().await;
        let answer = self.change(key, change);
        wait().await;
        match guard {
            Some(guard) => drop(guard),
            None => self.shared.locked.store(false, Ordering::Release),
        }
        answer
    }

    /// Replaces the log by a half-changed one, waits, and then changes the log as it was before.
    async fn in_halves<T>(
        &self,
        key: LogKey<'_>,
        half: impl FnOnce(&mut Stored, u64),
        whole: impl FnOnce(&mut Stored, u64) -> T,
    ) -> T {
        let _guard = self.lock().await;
        let before = self.change(key, |stored, now| {
            let before = stored.clone();
            half(stored, now);
            before
        });
        wait().await;
        self.change(key, |stored, now| {
            *stored = before;
            whole(stored, now)
        })
    }

    fn append(&self, op: &Op<'_>, stored: &mut Stored, now: u64) -> Facts {
        let mut facts = stored.log.apply(op, time(now));
        let ghost = stored.ghost.clone().map(|mut ghost| ghost.apply(op, time(now)));
        if let Some(Facts { outcome: Outcome::Repeated(entry), admitted, refundable, .. }) = ghost {
            stored.log = Log::new();
            let mut peek = *op;
            peek.mode = Mode::Peek;
            facts = stored.log.apply(&peek, time(now));
            (facts.outcome, facts.admitted, facts.refundable) = (Outcome::Repeated(entry), admitted, refundable);
        }
        stored.until = self.until(op, &facts, stored, now);
        facts
    }

    /// Returns how long a log is kept after an operation.
    fn until(&self, op: &Op<'_>, facts: &Facts, stored: &Stored, now: u64) -> u64 {
        let (before, right) = (stored.until, stored.log.expires_at().map_or(now, Timestamp::as_micros));
        let appended = matches!(facts.outcome, Outcome::Appended(_));
        let (own, window) = (op.policy.longest_window().as_micros(), op.retention().window.as_micros());
        let default = Retention::of(op.limiter_policy.unwrap_or(op.policy)).window.as_micros();
        let at = facts.log.now.as_micros();
        if op.at != At::StoreClock {
            return match self.flaw {
                LogFlaw::GivenTimesAsItsOwn if appended => at + window,
                LogFlaw::GivenTimesAfterTheWindow if appended => now + window,
                _ => right,
            };
        }
        match self.flaw {
            LogFlaw::AfterAPeek if op.mode == Mode::Peek => now + own,
            LogFlaw::AfterTheLastOperation => now + own,
            _ if !appended => before.max(if before == 0 { right } else { before }),
            LogFlaw::ByTheFirstWindow => at + op.policy.limits()[0].window().as_micros(),
            LogFlaw::ByTheOwnWindow => at + own,
            LogFlaw::ByTheDefaultWindow => at + default,
            LogFlaw::AfterWholeMillis => (at + window) / 1_000 * 1_000,
            LogFlaw::AfterWholeSeconds => {
                at + window / 1_000_000 * 1_000_000 + if window < 1_000_000 { window } else { 0 }
            }
            LogFlaw::AfterTheFirstAppend if before > now => before,
            LogFlaw::WindowAfterTheClock => now + window,
            _ => right,
        }
    }
}

fn time(micros: u64) -> Timestamp {
    Timestamp::from_micros_saturating(micros)
}

/// Returns the part of a log's bytes that is its own key, without its name.
fn own_key(bytes: &[u8]) -> &[u8] {
    bytes.iter().position(|byte| *byte == b':').map_or(bytes, |colon| &bytes[colon..])
}

impl LogFlaw {
    fn takes_steps(self) -> bool {
        matches!(
            self,
            Self::NoneInSteps
                | Self::LeavesItsLock
                | Self::LeavesHalfASettlement
                | Self::LeavesAnEntryWithoutItsId
                | Self::LeavesAnAppendWithoutItsExpiry
                | Self::LeavesHalfAReset
                | Self::BlocksWhenContended
        )
    }
}

#[async_trait]
impl WindowStore for LogStore {
    async fn apply(&self, op: Op<'_>) -> Result<Facts, Error> {
        let (key, mut op) = (op.log.to_bytes(), op);
        if self.flaw == LogFlaw::HidesItsDenials && op.mode == Mode::Acquire && op.id.is_none() {
            let own = self.private.lock().unwrap();
            // Until its retry time, a denied operation stays denied.
            let same =
                |facts: &&Facts| op.at == At::Given(facts.log.now) && facts.log.usage.len() == op.policy.limits().len();
            if let Some(facts) = own.denied.get(&key).filter(same) {
                return Ok(facts.clone());
            }
        }
        if let (LogFlaw::HidesItsIds, Some(id)) = (self.flaw, op.id) {
            // Other handles do not find this id.
            op.id = Some((id.as_u128() ^ u128::from(self.number)).into());
        }
        let whole = |stored: &mut Stored, now| self.append(&op, stored, now);
        let facts = match self.flaw {
            LogFlaw::LeavesAnEntryWithoutItsId if op.id.is_some() => {
                let mut without = op;
                without.id = None;
                let half = |stored: &mut Stored, now| {
                    if !matches!(stored.log.clone().apply(&op, time(now)).outcome, Outcome::Repeated(_)) {
                        _ = self.append(&without, stored, now);
                    }
                };
                self.in_halves(op.log, half, whole).await
            }
            LogFlaw::LeavesAnAppendWithoutItsExpiry => {
                let half = |stored: &mut Stored, now| {
                    let before = stored.until;
                    _ = self.append(&op, stored, now);
                    stored.until = if before == 0 { stored.until } else { before };
                };
                self.in_halves(op.log, half, whole).await
            }
            _ => self.call(op.log, whole).await,
        };
        let is_denial =
            op.mode == Mode::Acquire && !facts.admitted && facts.outcome == Outcome::Nothing && op.cost == 1;
        if is_denial && self.flaw == LogFlaw::HidesItsDenials {
            self.private.lock().unwrap().denied.insert(key, facts.clone());
        }
        Ok(facts)
    }

    async fn settle(&self, settlement: Settlement<'_>) -> Result<SettlementFacts, Error> {
        self.private.lock().unwrap().denied.remove(&settlement.log.to_bytes());
        let settle = |settlement: &Settlement<'_>, stored: &mut Stored, now| {
            let facts = stored.log.settle(settlement, time(now));
            if self.flaw == LogFlaw::AfterASettlement && settlement.at == At::StoreClock {
                stored.until = now + settlement.policy.longest_window().as_micros();
            }
            facts
        };
        let whole = |stored: &mut Stored, now| settle(&settlement, stored, now);
        if self.flaw != LogFlaw::LeavesHalfASettlement || settlement.cost == 0 {
            return Ok(self.call(settlement.log, whole).await);
        }
        let mut refund = settlement;
        refund.cost = 0;
        let half = |stored: &mut Stored, now| _ = settle(&refund, stored, now);
        Ok(self.in_halves(settlement.log, half, whole).await)
    }

    async fn reset(&self, key: LogKey<'_>) -> Result<bool, Error> {
        self.private.lock().unwrap().denied.remove(&key.to_bytes());
        let whole = |stored: &mut Stored, _| {
            stored.ghost = None;
            !std::mem::take(&mut stored.log).is_empty()
        };
        if self.flaw != LogFlaw::LeavesHalfAReset {
            return Ok(self.call(key, whole).await);
        }
        // Leaves one entry.
        let half = |stored: &mut Stored, now| {
            _ = self.append(&Op::record(key.key, &policy!("1/1us")).at(time(now)), stored, now);
        };
        Ok(self.in_halves(key, half, whole).await)
    }
}
