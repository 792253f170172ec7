//! What the local store has appended and the primary store does not hold yet: for each log, its cost by cells of time.
//!
//! ```text
//!   oldest                                newest
//!   [ frozen ] [ cell ] [ cell ] … [ cell ] ◄── an entry of the local log
//!       │
//!       ▼ one record, repeated with one id until it is confirmed
//!   primary store
//! ```

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use limiter_core::store::{At, Entry, LogFacts, LogKey, Op, Retention, Settlement};
use limiter_core::{EntryId, Limit, MAX_COST, Name, Policy, Timestamp, Window};
use tokio::time::Instant;

/// The longest window of a log has this many cells.
const CELLS: u64 = 32;

/// The identity of a log, owned. It has no `Debug`, which would print the key.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct LogId(Arc<(Name, Box<[u8]>)>);

impl LogId {
    pub(super) fn key(&self) -> LogKey<'_> {
        LogKey { name: self.0.0, key: &self.0.1 }
    }
}

/// When an entry was appended, in microseconds: of the caller's time, or of the process's monotonic clock.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Time {
    pub(super) is_given: bool,
    micros: u64,
}

impl Time {
    /// Returns the caller's time, or the store's clock.
    pub(super) fn at(self) -> At {
        if self.is_given { At::Given(Timestamp::from_micros_saturating(self.micros)) } else { At::StoreClock }
    }
}

struct Cell {
    /// The time of its newest entry.
    time: Time,
    /// The same by the local store's clock, as a receipt states it.
    local: Timestamp,
    cost: u64,
}

/// A log with cells to send.
struct Log {
    id: LogId,
    /// For all limits that its operations carried.
    retention: Retention,
    /// In the order of their times. Never empty.
    cells: Vec<Cell>,
    /// The id of the oldest cell once that is frozen.
    frozen: Option<EntryId>,
    /// Entries up to here, by the local store's clock, are in no cell, or in the frozen one.
    sent_until: Timestamp,
    is_sending: bool,
}

impl Log {
    /// Returns the index of the first cell that takes more entries.
    fn first_open(&self) -> usize {
        // Between the reading of the primary store's clock and the record, the oldest cell must not grow younger.
        usize::from(self.is_sending || self.frozen.is_some())
    }

    fn add(&mut self, new: Cell) {
        let first = self.first_open().min(self.cells.len());
        let width = (self.retention.window.as_micros() / CELLS).max(1);
        let place = |time: Time| (time.is_given, time.micros / width);
        let mut open = self.cells.iter_mut().skip(first);
        if let Some(cell) = open.find(|cell| place(cell.time) == place(new.time)) {
            cell.cost = cell.cost.saturating_add(new.cost).min(MAX_COST);
            cell.local = cell.local.max(new.local);
            cell.time.micros = cell.time.micros.max(new.time.micros);
        } else {
            let earlier = self.cells.iter().rposition(|cell| cell.local <= new.local);
            // Half of the memory of a full log would otherwise be spare.
            self.cells.reserve_exact(1);
            self.cells.insert(earlier.map_or(first, |index| first.max(index + 1)), new);
        }
        self.drop_beyond_max();
    }

    /// Drops the cells older than the newest ones that together reach the maximum, which no limit can tell apart.
    fn drop_beyond_max(&mut self) {
        let (mut sum, first) = (0_u64, usize::from(self.frozen.is_some()));
        let oldest_needed = self.cells.iter().rposition(|cell| {
            sum = sum.saturating_add(cell.cost);
            sum >= self.retention.max
        });
        if let Some(needed) = oldest_needed.filter(|needed| *needed > first) {
            for cell in self.cells.drain(first..needed) {
                self.sent_until = self.sent_until.max(cell.local);
            }
        }
    }

    /// Drops the cells that no longer count. Times of callers pass with the newest of them.
    fn drop_expired(&mut self, now: u64) {
        let given = self.cells.iter().map(|cell| cell.time).filter(|time| time.is_given);
        let newest_given = given.map(|time| time.micros).max().unwrap_or_default();
        let window = self.retention.window.as_micros();
        let counts = |cell: &Cell| {
            let now = if cell.time.is_given { newest_given } else { now };
            now.saturating_sub(cell.time.micros) < window
        };
        if !self.cells.first().is_some_and(counts) {
            self.frozen = None;
        }
        self.cells.retain(counts);
    }

    /// Returns the index of the cell that holds the entry of this time, unless that cell is frozen or gone.
    fn unsent(&self, local: Timestamp) -> Option<usize> {
        let first = usize::from(self.frozen.is_some());
        if local <= self.sent_until {
            return None;
        }
        self.cells.iter().skip(first).position(|cell| local <= cell.local).map(|index| first + index)
    }

    fn remove_oldest(&mut self) {
        self.frozen = None;
        self.cells.remove(0);
    }
}

/// The record of a frozen cell.
pub(super) struct Record {
    /// One exact limit, which erases nothing that a limit of the log's operations counts.
    pub(super) policy: Policy,
    pub(super) cost: u64,
    pub(super) id: EntryId,
    pub(super) at: Timestamp,
}

pub(super) struct Carried {
    /// By number. Numbers increase, so the oldest log is the first.
    logs: BTreeMap<u64, Log>,
    numbers: HashMap<LogId, u64>,
    max_logs: usize,
    dropped: u64,
    /// For all limits of all operations so far.
    widest: Retention,
    last_number: u64,
    /// The number of the log that was taken last.
    last_taken: u64,
    /// The upper half of ids, so that those of two processes differ.
    id_prefix: u64,
    next_id: u64,
    began: Instant,
}

impl Carried {
    pub(super) fn new(max_logs: usize) -> Self {
        Self {
            logs: BTreeMap::new(),
            numbers: HashMap::new(),
            max_logs,
            dropped: 0,
            widest: Retention { window: Window::MIN, max: 1 },
            last_number: 0,
            last_taken: 0,
            id_prefix: RandomState::new().hash_one("fallback"),
            next_id: 0,
            began: Instant::now(),
        }
    }

    /// Returns the number of logs.
    pub(super) fn len(&self) -> usize {
        self.logs.len()
    }

    /// Returns how many logs were dropped because there were too many.
    pub(super) const fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Adds an entry that the local store has appended.
    pub(super) fn add(&mut self, op: &Op<'_>, entry: Entry) {
        let time = self.time(op.at, entry.at, 0);
        // What is older was sent before this log was carried.
        let sent_until = Timestamp::from_micros_saturating(entry.at.as_micros().saturating_sub(1));
        self.add_cell(op.log, Some(op.retention()), sent_until, Cell { time, local: entry.at, cost: op.cost });
    }

    /// Adjusts the cost of an entry that the local store has settled. `before` and `after` are the total costs of the local log,
    /// and `facts` describe it.
    pub(super) fn settle(&mut self, settlement: &Settlement<'_>, (before, after): (u64, u64), facts: &LogFacts) {
        let at = settlement.receipt.at();
        if let Some(number) = self.numbers.get(&id_of(settlement.log)).copied()
            && let Some(log) = self.logs.get_mut(&number)
            && let Some(index) = log.unsent(at)
            && let Some(cell) = log.cells.get_mut(index)
        {
            cell.cost = cell.cost.saturating_add(after).saturating_sub(before).min(MAX_COST);
            if cell.cost == 0 {
                log.cells.remove(index);
                self.forget_if_empty(number);
            }
        } else if after > before {
            let time = self.time(settlement.at, at, facts.now.micros_since(at));
            let newest = facts.newest.unwrap_or(facts.now);
            self.add_cell(settlement.log, None, newest, Cell { time, local: at, cost: after - before });
        }
    }

    /// Removes the cells of a log.
    pub(super) fn remove(&mut self, log: LogKey<'_>) {
        if let Some(number) = self.numbers.remove(&id_of(log)) {
            self.logs.remove(&number);
        }
    }

    /// Takes the next log to send, unless the next thousand must all wait.
    pub(super) fn take_next(&mut self, must_wait: impl Fn(LogKey<'_>) -> bool) -> Option<(u64, LogId)> {
        for _ in 0..self.logs.len().min(1000) {
            let next = self.logs.range(self.last_taken + 1..).next().or_else(|| self.logs.first_key_value());
            self.last_taken = *next?.0;
            let log = self.logs.get_mut(&self.last_taken)?;
            if !log.is_sending && !must_wait(log.id.key()) {
                log.is_sending = true;
                return Some((self.last_taken, log.id.clone()));
            }
        }
        None
    }

    pub(super) fn put_back(&mut self, number: u64) {
        if let Some(log) = self.logs.get_mut(&number) {
            log.is_sending = false;
        }
    }

    /// Puts back the logs that a sweep had taken when its runtime ended.
    pub(super) fn put_all_back(&mut self) {
        self.logs.values_mut().for_each(|log| log.is_sending = false);
    }

    /// Returns the time of the oldest cell that still counts.
    pub(super) fn oldest(&mut self, number: u64, now: Instant) -> Option<Time> {
        let now = self.micros(now);
        let log = self.logs.get_mut(&number)?;
        log.drop_expired(now);
        let time = log.cells.first().map(|cell| cell.time);
        self.forget_if_empty(number);
        time
    }

    /// Freezes the oldest cell, if it is the one of this time. The primary store's clock showed `read` at `asked` or later.
    pub(super) fn freeze(&mut self, number: u64, time: Time, asked: Instant, read: Timestamp) -> Option<Record> {
        let (asked, new_id) = (self.micros(asked), u128::from(self.id_prefix) << 64 | u128::from(self.next_id));
        let log = self.logs.get_mut(&number)?;
        // It may have been refunded or reset meanwhile.
        let cell = log.cells.first().filter(|cell| cell.time == time)?;
        let at = match time.at() {
            At::StoreClock => read.as_micros().saturating_sub(asked.saturating_sub(time.micros)),
            At::Given(at) => at.as_micros(),
        };
        let at = Timestamp::from_micros_saturating(at);
        let Retention { window, max } = log.retention;
        if !window.counts(at, read) {
            log.remove_oldest();
            self.forget_if_empty(number);
            return None;
        }
        log.sent_until = log.sent_until.max(cell.local);
        let policy = Limit::with_window(max, window).ok()?.into();
        let record = Record { policy, cost: cell.cost, id: *log.frozen.get_or_insert(new_id.into()), at };
        self.next_id += 1;
        Some(record)
    }

    /// Removes a frozen cell: the primary store holds it.
    pub(super) fn confirm(&mut self, number: u64, id: EntryId) {
        if let Some(log) = self.logs.get_mut(&number).filter(|log| log.frozen == Some(id)) {
            log.remove_oldest();
            self.forget_if_empty(number);
        }
    }

    /// Adds a cell. A settlement carries no retention, but its entry was carried before, with its operation's.
    fn add_cell(&mut self, key: LogKey<'_>, retention: Option<Retention>, sent_until: Timestamp, cell: Cell) {
        let (id, now) = (id_of(key), self.micros(Instant::now()));
        if let Some(retention) = retention {
            self.widest = widest(self.widest, retention);
        }
        let number = *self.numbers.entry(id.clone()).or_insert(self.last_number + 1);
        self.last_number = self.last_number.max(number);
        let (cells, frozen) = (Vec::new(), None);
        let initial = retention.unwrap_or(self.widest);
        let new = || Log { id, retention: initial, cells, frozen, sent_until, is_sending: false };
        let log = self.logs.entry(number).or_insert_with(new);
        if let Some(retention) = retention {
            log.retention = widest(log.retention, retention);
        }
        log.add(cell);
        log.drop_expired(now);
        self.forget_if_empty(number);
        while self.logs.len() > self.max_logs
            && let Some((_, mut log)) = self.logs.pop_first()
        {
            self.numbers.remove(&log.id);
            log.drop_expired(now);
            self.dropped += u64::from(!log.cells.is_empty());
        }
    }

    fn forget_if_empty(&mut self, number: u64) {
        if let Some(log) = self.logs.get(&number).filter(|log| log.cells.is_empty()) {
            self.numbers.remove(&log.id);
            self.logs.remove(&number);
        }
    }

    /// Returns the time of an entry of this age. It is at `local` in the local log.
    fn time(&self, at: At, local: Timestamp, age: u64) -> Time {
        match at {
            At::StoreClock => Time { is_given: false, micros: self.micros(Instant::now()).saturating_sub(age) },
            At::Given(_) => Time { is_given: true, micros: local.as_micros() },
        }
    }

    fn micros(&self, instant: Instant) -> u64 {
        u64::try_from(instant.saturating_duration_since(self.began).as_micros()).unwrap_or(u64::MAX)
    }
}

fn id_of(log: LogKey<'_>) -> LogId {
    LogId(Arc::new((log.name, log.key.into())))
}

fn widest(a: Retention, b: Retention) -> Retention {
    Retention { window: a.window.max(b.window), max: a.max.max(b.max) }
}
