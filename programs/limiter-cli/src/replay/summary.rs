//! The totals of a replay.

use std::collections::HashMap;

use foldhash::fast::FixedState;
use limiter_core::{Policy, Timestamp};

use crate::pass::RowResult;
use crate::trace::{Action, Row};

/// Counts the results of the rows of a trace, in total and per key.
#[derive(Debug)]
pub(super) struct Summary {
    /// Rows read, without skipped rows.
    pub(super) rows: u64,
    /// Acquires and peeks that fitted.
    pub(super) allowed: u64,
    /// Acquires and peeks that did not fit.
    pub(super) denied: u64,
    /// Records.
    pub(super) recorded: u64,
    /// Resets.
    pub(super) resets: u64,
    /// Rows refused because of their cost.
    pub(super) refused: u64,
    /// The earliest and the latest row.
    pub(super) span: Option<(Timestamp, Timestamp)>,
    pub(super) keys: HashMap<Box<[u8]>, KeyCount, FixedState>,
    window: u64,
}

/// The totals of one key.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct KeyCount {
    /// All rows of the key.
    pub(super) rows: u64,
    /// Acquires and peeks that did not fit.
    pub(super) denied: u64,
    /// The highest usage of a limit as a share of its maximum, and the time when it was first reached.
    pub(super) peak: (f64, Timestamp),
    /// The streak with the most denials.
    pub(super) worst: Streak,
    current: Streak,
}

/// Consecutive denials of one key, each less than the longest window after the previous one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Streak {
    /// The number of denials.
    pub(super) denied: u64,
    /// The first denial.
    pub(super) from: Timestamp,
    /// The last denial.
    pub(super) to: Timestamp,
}

/// A key and its totals.
pub(super) type CountedKey<'a> = (&'a [u8], KeyCount);

impl Summary {
    /// Returns an empty summary.
    pub(super) fn new(policy: &Policy) -> Self {
        Self {
            rows: 0,
            allowed: 0,
            denied: 0,
            recorded: 0,
            resets: 0,
            refused: 0,
            span: None,
            // The seed affects only the order of iteration. A flood of chosen keys would slow down only this program.
            keys: HashMap::with_hasher(FixedState::default()),
            window: policy.longest_window().as_micros(),
        }
    }

    /// Returns the number of keys that were denied at least once.
    pub(super) fn keys_denied(&self) -> usize {
        self.keys.values().filter(|count| count.denied > 0).count()
    }

    /// Returns the keys with the most rows, at most `most` of them.
    pub(super) fn busiest(&self, most: usize) -> Vec<CountedKey<'_>> {
        self.top(most, |count| (count.rows, count.denied as f64))
    }

    /// Returns the keys with the most denials, at most `most` of them. Leaves out keys without denials.
    pub(super) fn most_denied(&self, most: usize) -> Vec<CountedKey<'_>> {
        let mut top = self.top(most, |count| (count.denied, count.rows as f64));
        top.retain(|(_, count)| count.denied > 0);
        top
    }

    /// Returns the keys with the highest rank, in descending order. Equal ranks are in the order of the keys.
    pub(super) fn top(
        &self,
        most: usize,
        rank: impl Fn(&KeyCount) -> (u64, f64),
    ) -> Vec<CountedKey<'_>> {
        let order = |a: &CountedKey<'_>, b: &CountedKey<'_>| {
            let first = rank(&a.1);
            let second = rank(&b.1);
            second
                .0
                .cmp(&first.0)
                .then(second.1.total_cmp(&first.1))
                .then_with(|| a.0.cmp(b.0))
        };
        let mut all: Vec<CountedKey<'_>> = self
            .keys
            .iter()
            .map(|(key, count)| (&**key, *count))
            .collect();
        if all.len() > most {
            all.select_nth_unstable_by(most, order);
            all.truncate(most);
        }
        all.sort_unstable_by(order);
        all
    }

    /// Counts the result of a row.
    #[inline]
    pub(super) fn add(&mut self, row: &Row<'_>, result: &RowResult) {
        self.rows += 1;
        self.span = Some(self.span.map_or((row.at, row.at), |(from, to)| {
            (from.min(row.at), to.max(row.at))
        }));
        let count = match self.keys.get_mut(row.key) {
            Some(count) => count,
            None => self.keys.entry(row.key.into()).or_default(),
        };
        count.rows += 1;
        match result {
            RowResult::Refused(_) => self.refused += 1,
            RowResult::Reset => self.resets += 1,
            RowResult::Decided(decision) => {
                let peak = decision.used() as f64 / decision.limit().max() as f64;
                if peak > count.peak.0 {
                    count.peak = (peak, decision.at());
                }
                if row.action == Action::Record {
                    self.recorded += 1;
                } else if decision.is_allowed() {
                    self.allowed += 1;
                } else {
                    self.denied += 1;
                    count.deny(decision.at(), self.window);
                }
            }
        }
    }
}

impl KeyCount {
    fn deny(&mut self, at: Timestamp, window: u64) {
        self.denied += 1;
        let current = &mut self.current;
        if current.denied == 0 || at.micros_since(current.to) >= window || at < current.to {
            *current = Streak {
                denied: 0,
                from: at,
                to: at,
            };
        }
        current.denied += 1;
        current.to = at;
        if current.denied > self.worst.denied {
            self.worst = *current;
        }
    }
}
