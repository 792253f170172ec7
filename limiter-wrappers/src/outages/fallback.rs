//! Limiting locally while a store is away.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dashmap::DashMap;
use foldhash::fast::RandomState;
use limiter_core::store::{Entry, Facts, LogKey, Op, Outcome, Settlement, SettlementFacts};
use limiter_core::{Decision, EntryId, Error, Name, NowStore, Policy, Receipt, Timer, WindowStore};
use tokio::runtime::Handle;

use super::outage::{Outage, OutageLog};
use super::substitute::Ids;

/// Limits in a local store while the primary one is away, and merges what it admitted into the primary store afterwards.
///
/// An operation that fails with [`Unavailable`](limiter_core::ErrorKind::Unavailable) or
/// [`Timeout`](limiter_core::ErrorKind::Timeout) is decided by `local`, which knows only this process and this outage. So during an
/// outage each process admits up to the limit once more per window. Once the primary store answers again, the entries are
/// recorded there with their times, each once. A log is merged before the next operation on it, and all others in the background.
/// Then the windows are right again, for all processes.
///
/// - The primary store clamps the times of merged entries to its newest entry, so they may count for longer than they should.
/// - An operation that timed out may also have taken effect in the primary store. It then counts twice, unless it has an
///   idempotency key.
/// - The system clocks of processes and store must agree, because a merged entry has the local time. An entry from the future
///   holds up the time of its log.
///
/// A receipt is settled in the store that holds its entry. Settling an entry of the primary store while it is away returns the
/// error. So does a reset.
///
/// # Cancel safety
/// As the primary store's. A merge that is dropped is repeated later, with the same ids.
pub struct Fallback<P, L> {
    shared: Arc<Shared<P, L>>,
    outages: OutageLog,
}

/// By name and key.
type Logs = DashMap<(Name, Box<[u8]>), Arc<Mutex<LocalLog>>, RandomState>;

struct Shared<P, L> {
    primary: P,
    local: L,
    ids: Ids,
    /// Those that an outage affected, until no receipt of theirs is valid.
    logs: Logs,
    /// Whether there may be any. The map would lock all its parts to say so.
    has_logs: AtomicBool,
    /// The entries of all logs, and how many there may be.
    held: AtomicUsize,
    max_entries: usize,
}

/// What happened to one log during an outage.
#[derive(Default)]
struct LocalLog {
    /// Whether a task is merging it. Others use the local store meanwhile, so nobody waits for a server that may be away.
    is_merging: bool,
    /// To be merged, oldest first.
    unmerged: VecDeque<LocalEntry>,
    /// Entries of the local store, with those of the primary store that they were merged as.
    merged: Vec<(Entry, Entry)>,
    /// Of all policies that the entries were appended under.
    longest_window: Duration,
}

#[derive(Clone)]
struct LocalEntry {
    /// As the local store knows it, and its receipt.
    local: Entry,
    /// Under which it is merged, so that repeating the merge changes nothing.
    id: EntryId,
    /// 0 if it was refunded.
    cost: u64,
    settled: bool,
    /// Whether the primary store may hold it already, from a merge that was cut off or from a call that timed out.
    may_be_recorded: bool,
    policy: Policy,
}

impl LocalLog {
    fn next_to_merge(&mut self) -> Option<LocalEntry> {
        let next = self.unmerged.front_mut()?;
        let entry = next.clone();
        next.may_be_recorded = true;
        Some(entry)
    }
}

impl<P, L> Fallback<P, L> {
    /// Returns `primary`, with `local` in its place while it is away.
    #[must_use]
    pub fn new(primary: P, local: L) -> Self {
        let shared = Shared {
            primary,
            local,
            ids: Ids::new(),
            logs: DashMap::with_hasher(RandomState::default()),
            has_logs: AtomicBool::new(false),
            held: AtomicUsize::new(0),
            max_entries: 100_000,
        };
        Self { shared: Arc::new(shared), outages: OutageLog::default() }
    }

    /// Sets how many entries of an outage are kept to be merged. Entries beyond that count locally only. Default: 100,000.
    ///
    /// Call it before the first operation; afterwards it has no effect.
    #[must_use]
    pub fn max_entries(mut self, max_entries: usize) -> Self {
        if let Some(shared) = Arc::get_mut(&mut self.shared) {
            shared.max_entries = max_entries;
        }
        self
    }

    /// Calls `listener` once when an outage begins and once when it ends, within the call that notices it. Default: none.
    #[must_use]
    pub fn on_outage(mut self, listener: impl Fn(Outage<'_>) + Send + Sync + 'static) -> Self {
        self.outages.listen(listener);
        self
    }

    /// Returns the primary store.
    pub fn primary(&self) -> &P {
        &self.shared.primary
    }

    /// Returns the local store.
    pub fn local(&self) -> &L {
        &self.shared.local
    }

    /// Returns the number of entries that wait to be merged.
    #[must_use]
    pub fn unmerged(&self) -> usize {
        self.shared.held.load(Ordering::Relaxed)
    }
}

impl<P, L> Shared<P, L> {
    fn log(&self, log: LogKey<'_>) -> Option<Arc<Mutex<LocalLog>>> {
        if !self.has_logs.load(Ordering::Acquire) {
            return None;
        }
        self.logs.get(&(log.name, log.key.into())).map(|found| Arc::clone(&found))
    }

    fn log_or_new(&self, log: LogKey<'_>) -> Arc<Mutex<LocalLog>> {
        self.has_logs.store(true, Ordering::Release);
        Arc::clone(&self.logs.entry((log.name, log.key.into())).or_default())
    }
}

impl<P: WindowStore, L: NowStore> Shared<P, L> {
    /// Applies an operation to the local store, and remembers its entry.
    fn apply_locally(&self, op: &Op<'_>, log: &mut LocalLog) -> Facts {
        let facts = self.local.apply_now(op);
        if let Outcome::Appended(local) = facts.outcome
            && self.held.fetch_add(1, Ordering::Relaxed) < self.max_entries
        {
            let id = op.id.unwrap_or_else(|| self.ids.next());
            log.longest_window = log.longest_window.max(op.retention().window.as_duration());
            log.unmerged.push_back(LocalEntry {
                local,
                id,
                cost: op.cost,
                settled: false,
                may_be_recorded: op.id.is_some(),
                policy: op.policy.clone(),
            });
        } else if matches!(facts.outcome, Outcome::Appended(_)) {
            self.held.fetch_sub(1, Ordering::Relaxed);
        }
        facts
    }

    /// Records the entries of a log in the primary store, unless another task does. Returns whether all are recorded.
    async fn merge(&self, key: LogKey<'_>, log: &Mutex<LocalLog>) -> Result<bool, Error> {
        {
            let mut log = lock(log);
            if log.unmerged.is_empty() || log.is_merging {
                return Ok(log.unmerged.is_empty());
            }
            log.is_merging = true;
        }
        let _merging = Merging(log);
        loop {
            let Some(entry) = lock(log).next_to_merge() else { break };
            let op =
                Op::record(key.key, &entry.policy).with_name(key.name).with_cost(entry.cost.max(1)).with_id(entry.id);
            let outcome = if entry.cost > 0 || entry.may_be_recorded {
                self.primary.apply(op.at(entry.local.at)).await?.outcome
            } else {
                Outcome::Nothing
            };
            let (merged, mut recorded) = match outcome {
                Outcome::Appended(merged) => (Some(merged), Some(op.cost)),
                Outcome::Repeated(merged) => (Some(merged), Some(op.cost).filter(|_| !entry.settled)),
                Outcome::Nothing => (None, None),
            };
            while let Some((merged, cost)) = self.finish_merge(key, log, &entry, merged, recorded) {
                let receipt = Receipt::new(merged.id, merged.at, op.retention().window);
                self.primary.settle(Settlement::new(key, &entry.policy, receipt, cost)).await?;
                recorded = Some(cost);
            }
        }
        Ok(true)
    }

    /// Takes an entry off those to be merged, unless the primary store holds it with another cost than the log: then returns the
    /// entry to settle and the cost.
    fn finish_merge(
        &self,
        key: LogKey<'_>,
        log: &Mutex<LocalLog>,
        entry: &LocalEntry,
        merged: Option<Entry>,
        recorded: Option<u64>,
    ) -> Option<(Entry, u64)> {
        let mut log = lock(log);
        // A reset may have taken it away.
        if let Some(front) = log.unmerged.front().filter(|front| front.id == entry.id) {
            if let Some(merged) = merged.filter(|_| recorded != Some(front.cost)) {
                return Some((merged, front.cost));
            }
            log.unmerged.pop_front();
            self.held.fetch_sub(1, Ordering::Relaxed);
        }
        log.merged.extend(merged.map(|merged| (entry.local, merged)));
        if log.unmerged.is_empty() {
            // Behind the lock, so that no entry is appended to the local log in between.
            self.local.reset_now(key);
        }
        None
    }

    /// Merges all logs, until the primary store fails. Returns how long their receipts are valid.
    async fn merge_all(&self) -> Duration {
        let mut longest = Duration::ZERO;
        let keys: Vec<_> = self.logs.iter().map(|entry| entry.key().clone()).collect();
        for (name, key) in keys {
            let log_key = LogKey { name, key: &key };
            let Some(log) = self.log(log_key) else { continue };
            longest = longest.max(lock(&log).longest_window);
            if self.merge(log_key, &log).await.is_err() {
                break;
            }
        }
        longest
    }

    /// Forgets the logs that have been merged. Those that another task holds stay.
    fn forget_merged(&self) {
        self.logs.retain(|_, log| {
            // Nobody can get hold of the log while its part of the map is locked.
            let is_merged = log.try_lock().is_ok_and(|log| log.unmerged.is_empty());
            !(is_merged && Arc::strong_count(log) == 1)
        });
    }
}

fn lock(log: &Mutex<LocalLog>) -> MutexGuard<'_, LocalLog> {
    log.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Lets another task merge once this one is done, or dropped.
struct Merging<'a>(&'a Mutex<LocalLog>);

impl Drop for Merging<'_> {
    fn drop(&mut self) {
        lock(self.0).is_merging = false;
    }
}

impl<P: WindowStore, L: NowStore> Fallback<P, L> {
    /// Notes that the primary store has answered. The first answer after an outage starts the merge of all logs.
    fn answered(&self) {
        if self.outages.answered()
            && let Ok(runtime) = Handle::try_current()
        {
            let shared = Arc::clone(&self.shared);
            runtime.spawn(async move {
                let receipts_valid = shared.merge_all().await;
                let shared = { Arc::downgrade(&{ shared }) };
                tokio::time::sleep(receipts_valid).await;
                if let Some(shared) = shared.upgrade() {
                    shared.forget_merged();
                }
            });
        }
    }
}

impl<P: WindowStore, L: NowStore> WindowStore for Fallback<P, L> {
    async fn apply(&self, op: Op<'_>) -> Result<Facts, Error> {
        let shared = &*self.shared;
        let answer = match shared.log(op.log) {
            Some(log) => match shared.merge(op.log, &log).await {
                Ok(true) => shared.primary.apply(op).await,
                Ok(false) => return Ok(shared.apply_locally(&op, &mut lock(&log))),
                Err(error) => Err(error),
            },
            None => shared.primary.apply(op).await,
        };
        match answer {
            Err(error) if error.is_retryable() => {
                self.outages.failed(&error);
                let log = shared.log_or_new(op.log);
                let facts = shared.apply_locally(&op, &mut lock(&log));
                Ok(facts)
            }
            answer => {
                self.answered();
                answer
            }
        }
    }

    async fn settle(&self, settlement: Settlement<'_>) -> Result<SettlementFacts, Error> {
        let shared = &*self.shared;
        let mut settlement = settlement;
        if let Some(log) = shared.log(settlement.log) {
            let mut log = lock(&log);
            let named = |entry: &Entry| entry.id == settlement.receipt.entry() && entry.at == settlement.receipt.at();
            if let Some(index) = log.unmerged.iter().position(|entry| named(&entry.local)) {
                let facts = shared.local.settle_now(&settlement);
                if facts.applied {
                    log.unmerged[index].cost = settlement.cost;
                    log.unmerged[index].settled = true;
                }
                return Ok(facts);
            }
            if let Some((_, merged)) = log.merged.iter().find(|(local, _)| named(local)) {
                settlement.receipt = Receipt::new(merged.id, merged.at, settlement.receipt.window());
            }
        }
        let answer = shared.primary.settle(settlement).await;
        match &answer {
            Err(error) if error.is_retryable() => self.outages.failed(error),
            _ => self.answered(),
        }
        answer
    }

    async fn reset(&self, log: LogKey<'_>) -> Result<bool, Error> {
        let reset = self.shared.primary.reset(log).await?;
        let Some(local) = self.shared.log(log) else { return Ok(reset) };
        let mut local = lock(&local);
        let unmerged = std::mem::take(&mut local.unmerged).len();
        self.shared.held.fetch_sub(unmerged, Ordering::Relaxed);
        Ok(self.shared.local.reset_now(log) || unmerged > 0 || reset)
    }

    fn decide_at_once(&self, op: Op<'_>) -> Option<Result<Decision, Error>> {
        if self.shared.log(op.log).is_some() {
            return None;
        }
        // Whatever is decided locally has to be remembered, which `apply` does.
        self.shared
            .primary
            .decide_at_once(op)
            .filter(|decision| !matches!(decision, Err(error) if error.is_retryable()))
    }

    fn timer(&self) -> Option<&dyn Timer> {
        self.shared.primary.timer()
    }
}

impl<P, L> Clone for Fallback<P, L> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), outages: self.outages.clone() }
    }
}

impl<P: fmt::Debug, L: fmt::Debug> fmt::Debug for Fallback<P, L> {
    /// Prints no keys, and locks nothing.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shared { primary, local, held, .. } = &*self.shared;
        let mut out = f.debug_struct("Fallback");
        out.field("primary", primary).field("local", local).field("unmerged", held).finish_non_exhaustive()
    }
}
