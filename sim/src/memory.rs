//! A limiter-server's memory store in the world, whose logs are saved and loaded when the server restarts.

use std::collections::HashMap;
use std::fmt;

use limiter_core::store::{EntryId, Log, LogKey};
use limiter_core::{Name, Receipt, Timestamp};
use limiter_memory::MemoryStore;

/// The server's store.
#[derive(Default)]
pub(crate) struct Memory {
    pub(crate) store: MemoryStore,
    /// What the books call each entry, by its log, number and time: the caller's id, or a number that no other entry has.
    pub(crate) names: HashMap<(usize, EntryId, Timestamp), EntryId>,
}

/// The logs in the server's file.
pub(crate) type Saved = Vec<(Name, Vec<u8>, Vec<u8>)>;

impl Memory {
    /// Returns the id in the books of an entry.
    pub(crate) fn named(&self, log: usize, receipt: Receipt) -> EntryId {
        let name = self.names.get(&(log, receipt.entry(), receipt.at()));
        name.copied().unwrap_or(receipt.entry())
    }

    pub(crate) fn save(&self) -> Saved {
        let logs = self.store.export();
        logs.map(|(name, key, log)| (name, key.as_ref().to_vec(), log.to_bytes()))
            .collect()
    }

    /// Replaces the store by one in another process.
    pub(crate) fn load(&mut self, saved: Saved) {
        self.store = MemoryStore::new();
        for (name, key, bytes) in saved {
            let log = Log::from_bytes(&bytes).expect("a log");
            self.store.import(LogKey::new(name, &key), &log);
        }
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Memory")
    }
}
