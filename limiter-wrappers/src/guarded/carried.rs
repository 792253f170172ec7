//! Local charges that the primary store does not hold yet: for each log, its cost by cells of time.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, DefaultHasher, Hash, Hasher, RandomState};
use std::sync::Arc;

use limiter_core::store::{At, Change, EntryId, LogKey, Retention, Settlement};
use limiter_core::{Limit, MAX_COST, Name, Policy, Timestamp, Window};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::nodes::NodeName;

/// A log's longest window has this many cells.
const CELLS: u64 = 32;
const MAX_LOGS: usize = 100_000;

pub(super) type LogId = (Name, Arc<[u8]>);

fn id_of(log: LogKey<'_>) -> LogId {
    (log.name, log.key.into())
}

/// Some entries of a log. Their times are the local store's: from its clock, or given by callers.
#[derive(Clone, Copy)]
pub(super) struct Cell {
    pub(super) oldest: Timestamp,
    pub(super) newest: Timestamp,
    pub(super) is_given: bool,
    pub(super) cost: u64,
}

impl Cell {
    /// Returns the cell of one entry. `source` is where its time is from.
    pub(super) fn new(time: Timestamp, source: At, cost: u64) -> Self {
        Self {
            oldest: time,
            newest: time,
            is_given: source != At::StoreClock,
            cost,
        }
    }
}

/// A log with cells to send.
struct CarriedLog {
    id: LogId,
    /// For all limits that its operations carried.
    retention: Retention,
    /// In the order of their times. Never empty.
    cells: Vec<Cell>,
    /// The id of the first cell once that is frozen.
    frozen: Option<EntryId>,
}

impl CarriedLog {
    /// Returns the index of the first cell that is not frozen.
    fn first_open(&self) -> usize {
        usize::from(self.frozen.is_some())
    }

    fn add(&mut self, new: Cell) {
        let first = self.first_open();
        let width = (self.retention.window.as_micros() / CELLS).max(1);
        let place = |cell: &Cell| (cell.is_given, cell.newest.as_micros() / width);
        let mut open = self.cells.iter_mut().skip(first);
        if let Some(cell) = open.rfind(|cell| place(cell) == place(&new)) {
            cell.cost = cell.cost.saturating_add(new.cost).min(MAX_COST);
            (cell.oldest, cell.newest) = (cell.oldest.min(new.oldest), cell.newest.max(new.newest));
        } else {
            let index = self.cells.partition_point(|cell| cell.newest <= new.newest);
            // Half of the memory of a full log would otherwise be spare.
            self.cells.reserve_exact(1);
            self.cells.insert(index.max(first), new);
        }
    }

    /// Drops the cells that affect no limit at `clock`.
    fn trim(&mut self, clock: Timestamp) {
        let Retention { window, max } = self.retention;
        let newest = self.cells.last().map_or(clock, |cell| cell.newest);
        let has_expired = |cell: &&Cell| {
            let clock = if cell.is_given { newest } else { clock };
            !window.counts(cell.newest, newest.max(clock))
        };
        let expired = self.cells.iter().take_while(has_expired).count();
        if expired > 0 {
            self.frozen = None;
            self.cells.drain(..expired);
        }
        self.cells.retain(|cell| cell.cost > 0);
        let mut newer = 0_u64;
        let surplus = self.cells.iter().rposition(|cell| {
            let is_surplus = newer >= max;
            newer = newer.saturating_add(cell.cost);
            is_surplus
        });
        let first = self.first_open();
        let last = surplus.map_or(first, |last| first.max(last + 1));
        self.cells.drain(first..last);
    }
}

#[derive(Default)]
pub(super) struct Carried {
    /// By number. Numbers increase, so the oldest log is the first.
    logs: BTreeMap<u64, CarriedLog>,
    numbers: HashMap<LogId, u64>,
    last_number: u64,
    /// For all limits of all operations so far.
    widest: Option<Retention>,
    /// The number of logs that were dropped because there were too many.
    pub(super) dropped: u64,
    /// Nodes that failed, and until when their logs wait.
    pub(super) paused: HashMap<NodeName, Instant>,
    pub(super) sweep: Option<JoinHandle<()>>,
    /// The random numbers of the ids: a seed, and how many were taken.
    random: (u64, u64),
}

impl Carried {
    /// Without a seed, the keys of `RandomState` come from the operating system.
    pub(super) fn new(seed: Option<u64>) -> Self {
        let random = || RandomState::new().hash_one(std::process::id());
        Self {
            random: (seed.unwrap_or_else(random), 0),
            ..Self::default()
        }
    }

    fn new_id(&mut self) -> EntryId {
        let half = |count: &mut u64, seed: u64| {
            *count += 1;
            let mut hasher = DefaultHasher::new();
            (seed, *count).hash(&mut hasher);
            u128::from(hasher.finish())
        };
        let (seed, count) = &mut self.random;
        (half(count, *seed) << 64 | half(count, *seed)).into()
    }

    pub(super) fn len(&self) -> usize {
        self.logs.len()
    }

    /// Adds an entry that the local store has appended at `clock`. A settlement carries no retention.
    pub(super) fn add(
        &mut self,
        log: LogKey<'_>,
        retention: Option<Retention>,
        clock: Timestamp,
        cell: Cell,
    ) {
        let all = Retention {
            window: Window::MIN,
            max: 1,
        };
        let all = widest(self.widest.unwrap_or(all), retention);
        self.widest = Some(all);
        let id = id_of(log);
        let number = self.numbers.entry(id.clone());
        let number = *number.or_insert(self.last_number + 1);
        self.last_number = self.last_number.max(number);
        let initial = retention.unwrap_or(all);
        let new = || CarriedLog {
            id,
            retention: initial,
            cells: Vec::new(),
            frozen: None,
        };
        let log = self.logs.entry(number).or_insert_with(new);
        log.retention = widest(log.retention, retention);
        log.add(cell);
        self.trim(number, clock);
        if self.logs.len() > MAX_LOGS
            && let Some((_, mut log)) = self.logs.pop_first()
        {
            self.numbers.remove(&log.id);
            log.trim(clock);
            self.dropped += u64::from(!log.cells.is_empty());
        }
    }

    /// Follows a settlement that the local store has applied at `clock` to an entry of this cost.
    pub(super) fn settle(&mut self, settlement: &Settlement<'_>, before: u64, clock: Timestamp) {
        match settlement.change {
            Change::Cost(cost) => {
                if !self.replace(settlement, before, cost, clock) && cost > before {
                    let at = settlement.receipt.at();
                    let mut added = Cell::new(at, settlement.at, cost - before);
                    // Settlements of its neighbours must not find the added cost, because their own cells are sent.
                    added.oldest = Timestamp::MAX;
                    self.add(settlement.log, None, clock, added);
                }
            }
            Change::Renew { .. } => {
                self.replace(settlement, before, 0, clock);
                let retention = settlement.to_record(before).retention();
                let renewed = Cell::new(clock, settlement.at, before);
                self.add(settlement.log, Some(retention), clock, renewed);
            }
        }
    }

    /// Replaces the cost of an entry in its cell. Returns `false` if that is sent, or about to be.
    fn replace(
        &mut self,
        settlement: &Settlement<'_>,
        old: u64,
        new: u64,
        clock: Timestamp,
    ) -> bool {
        let at = settlement.receipt.at();
        let number = self.numbers.get(&id_of(settlement.log)).copied();
        let number = number.unwrap_or_default();
        let log = self.logs.get_mut(&number);
        let mut unsent = log.into_iter().flat_map(|log| {
            let first = log.first_open();
            log.cells.iter_mut().skip(first)
        });
        let Some(cell) = unsent.find(|cell| cell.oldest <= at && at <= cell.newest) else {
            return false;
        };
        let cost = cell.cost.saturating_add(new).saturating_sub(old);
        cell.cost = cost.min(MAX_COST);
        self.trim(number, clock);
        true
    }

    /// Removes the cells of a log.
    pub(super) fn remove(&mut self, log: LogKey<'_>) {
        if let Some(number) = self.numbers.remove(&id_of(log)) {
            self.logs.remove(&number);
        }
    }

    /// Returns a thousand logs in the order of their numbers, beginning with this one. If there are none at all, ends the sweep.
    pub(super) fn some_from(&mut self, number: u64) -> Option<Vec<(u64, LogId)>> {
        if self.logs.is_empty() {
            self.sweep = None;
            return None;
        }
        let some = self.logs.range(number..).take(1000);
        Some(
            some.map(|(number, log)| (*number, log.id.clone()))
                .collect(),
        )
    }

    /// Returns the oldest cell that still counts.
    pub(super) fn oldest(&mut self, number: u64, clock: Timestamp) -> Option<Cell> {
        self.trim(number, clock);
        self.logs.get(&number)?.cells.first().copied()
    }

    /// Freezes a cell, which is at `at` by the primary store's clock. That clock showed `now`.
    ///
    /// Returns the id, the cost and the policy of its record: one exact limit, which erases no entry that a limit of the log's
    /// operations counts. Returns `None` if the cell has changed since it was the oldest, or no longer counts.
    pub(super) fn freeze(
        &mut self,
        number: u64,
        cell: Cell,
        at: Timestamp,
        now: Timestamp,
    ) -> Option<(EntryId, u64, Policy)> {
        let new_id = self.new_id();
        let log = self.logs.get_mut(&number)?;
        let first = log.cells.first();
        let cost = first.filter(|first| first.newest == cell.newest)?.cost;
        let Retention { window, max } = log.retention;
        let id = *log.frozen.get_or_insert(new_id);
        if !window.counts(at, now) {
            self.confirm(number, id);
            return None;
        }
        Some((id, cost, Limit::with_window(max, window).ok()?.into()))
    }

    /// Removes a frozen cell: the primary store holds it.
    pub(super) fn confirm(&mut self, number: u64, id: EntryId) {
        let log = self.logs.get_mut(&number);
        if let Some(log) = log.filter(|log| log.frozen == Some(id)) {
            log.frozen = None;
            log.cells.remove(0);
            self.trim(number, Timestamp::EPOCH);
        }
    }

    fn trim(&mut self, number: u64, clock: Timestamp) {
        let Some(log) = self.logs.get_mut(&number) else {
            return;
        };
        log.trim(clock);
        if log.cells.is_empty() {
            self.numbers.remove(&log.id);
            self.logs.remove(&number);
        }
    }
}

fn widest(a: Retention, b: Option<Retention>) -> Retention {
    b.map_or(a, |b| Retention {
        window: a.window.max(b.window),
        max: a.max.max(b.max),
    })
}
