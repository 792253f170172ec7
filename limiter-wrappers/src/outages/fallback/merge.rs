//! What was admitted during an outage, and its way into the primary store.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dashmap::DashMap;
use foldhash::fast::RandomState;
use limiter_core::store::{Entry, Facts, LogKey, Op, Outcome, Settlement};
use limiter_core::{EntryId, Error, Name, NowStore, Policy, Receipt, WindowStore};

use crate::outages::substitute::Ids;

/// By name and key.
type Logs = DashMap<(Name, Box<[u8]>), Arc<Mutex<LocalLog>>, RandomState>;

/// What the clones of a fallback share.
pub(super) struct Shared<P, L> {
    pub(super) primary: P,
    pub(super) local: L,
    ids: Ids,
    /// Those that an outage affected, until no receipt of theirs is valid.
    logs: Logs,
    /// Whether there may be any. The map would lock all its parts to say so.
    has_logs: AtomicBool,
    /// The entries of all logs, and how many there may be.
    pub(super) held: AtomicUsize,
    pub(super) max_entries: usize,
}

/// What happened to one log during an outage.
#[derive(Default)]
pub(super) struct LocalLog {
    /// Whether a task is merging it. Others use the local store meanwhile, so nobody waits for a server that may be away.
    is_merging: bool,
    /// To be merged, oldest first.
    pub(super) unmerged: VecDeque<LocalEntry>,
    /// Entries of the local store, with those of the primary store that they were merged as.
    pub(super) merged: Vec<(Entry, Entry)>,
    /// Of all policies that the entries were appended under.
    longest_window: Duration,
}

#[derive(Clone)]
pub(super) struct LocalEntry {
    /// As the local store knows it, and its receipt.
    pub(super) local: Entry,
    /// Under which it is merged, so that repeating the merge changes nothing.
    id: EntryId,
    /// 0 if it was refunded.
    pub(super) cost: u64,
    pub(super) settled: bool,
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

impl<P, L> Shared<P, L> {
    pub(super) fn new(primary: P, local: L) -> Self {
        Self {
            primary,
            local,
            ids: Ids::new(),
            logs: DashMap::with_hasher(RandomState::default()),
            has_logs: AtomicBool::new(false),
            held: AtomicUsize::new(0),
            max_entries: 100_000,
        }
    }

    pub(super) fn log(&self, log: LogKey<'_>) -> Option<Arc<Mutex<LocalLog>>> {
        if !self.has_logs.load(Ordering::Acquire) {
            return None;
        }
        self.logs.get(&(log.name, log.key.into())).map(|found| Arc::clone(&found))
    }

    pub(super) fn log_or_new(&self, log: LogKey<'_>) -> Arc<Mutex<LocalLog>> {
        self.has_logs.store(true, Ordering::Release);
        Arc::clone(&self.logs.entry((log.name, log.key.into())).or_default())
    }
}

impl<P: WindowStore, L: NowStore> Shared<P, L> {
    /// Applies an operation to the local store, and remembers its entry.
    pub(super) fn apply_locally(&self, op: &Op<'_>, log: &mut LocalLog) -> Facts {
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
    pub(super) async fn merge(&self, key: LogKey<'_>, log: &Mutex<LocalLog>) -> Result<bool, Error> {
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
    pub(super) async fn merge_all(&self) -> Duration {
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
    pub(super) fn forget_merged(&self) {
        self.logs.retain(|_, log| {
            // Nobody can get hold of the log while its part of the map is locked.
            let is_merged = log.try_lock().is_ok_and(|log| log.unmerged.is_empty());
            !(is_merged && Arc::strong_count(log) == 1)
        });
    }
}

pub(super) fn lock(log: &Mutex<LocalLog>) -> MutexGuard<'_, LocalLog> {
    log.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Lets another task merge once this one is done, or dropped.
struct Merging<'a>(&'a Mutex<LocalLog>);

impl Drop for Merging<'_> {
    fn drop(&mut self) {
        lock(self.0).is_merging = false;
    }
}
