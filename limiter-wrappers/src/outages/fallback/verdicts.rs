//! What this process has answered by itself: the verdicts of ids, and the entries that its receipts name.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use limiter_core::store::{Entry, Facts, LogKey, Outcome};
use limiter_core::{EntryId, Receipt, Timestamp, Window};

use super::aged::Aged;
use super::change::LogId;

/// An entry of the local store.
pub(super) struct Issued {
    /// As its receipt names it.
    pub(super) entry: Entry,
    /// As the local store names it.
    pub(super) local: Entry,
    /// As the primary store names it, once it is recorded there.
    pub(super) primary: Option<Entry>,
    pub(super) window: Window,
    /// `None` once it is refunded, which frees the id.
    pub(super) verdict: Option<bool>,
}

impl Issued {
    /// Returns the receipt by which a store knows the entry.
    pub(super) const fn receipt(&self, entry: Entry) -> Receipt {
        Receipt::new(entry.id, entry.at, self.window)
    }

    /// Returns what a store has answered to an operation with the entry's id, with this verdict and this entry.
    pub(super) fn repeated(&mut self, facts: Facts, admitted: bool) -> Facts {
        if let Outcome::Appended(primary) | Outcome::Repeated(primary) = facts.outcome {
            self.primary = Some(primary);
        }
        Facts { admitted, outcome: Outcome::Repeated(self.entry), log: facts.log }
    }
}

/// The entries of the local store until they expire, and no more than the journal may hold.
pub(super) struct Verdicts {
    issued: Aged<(LogId, Issued)>,
    by_id: HashMap<(LogId, EntryId), u64, RandomState>,
}

impl Verdicts {
    pub(super) fn new() -> Self {
        Self { issued: Aged::new(), by_id: HashMap::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.issued.len() == 0
    }

    /// Adds an entry. The oldest go if there are more than `max`.
    pub(super) fn issue(&mut self, log: LogId, issued: Issued, expires: Timestamp, max: usize) {
        let id = issued.entry.id;
        let number = self.issued.push(expires, (log.clone(), issued));
        if let Some(earlier) = self.by_id.insert((log, id), number) {
            self.issued.remove(earlier);
        }
        while self.issued.len() > max
            && let Some((_, (log, issued))) = self.issued.remove_oldest()
        {
            self.by_id.remove(&(log, issued.entry.id));
        }
    }

    pub(super) fn find(&mut self, log: LogKey<'_>, id: EntryId) -> Option<&mut Issued> {
        let number = self.by_id.get(&(log.into(), id))?;
        self.issued.get_mut(*number).map(|(_, issued)| issued)
    }

    /// Forgets the entries of a log.
    pub(super) fn forget(&mut self, log: LogKey<'_>) {
        let of_log = self.issued.iter().filter(|(_, (other, _))| other.key() == log);
        let numbers: Vec<u64> = of_log.map(|(number, _)| number).collect();
        for number in numbers {
            if let Some((log, issued)) = self.issued.remove(number) {
                self.by_id.remove(&(log, issued.entry.id));
            }
        }
    }

    /// Forgets what has expired at `now`, by the local store's clock.
    pub(super) fn expire(&mut self, now: Timestamp) {
        while let Some((_, (log, issued))) = self.issued.remove_expired(now) {
            self.by_id.remove(&(log, issued.entry.id));
        }
    }
}
