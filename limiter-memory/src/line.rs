//! Where a key and its log may be, beside the shards.

use std::mem;

use crate::key::Key;
use crate::log::Log;

/// A key and its log.
pub(crate) struct Slot {
    pub(crate) key: Key,
    pub(crate) log: Log,
}

/// Where one key may be. With its lock it is one cache line.
#[derive(Default)]
pub(crate) enum Line {
    #[default]
    Vacant,
    Taken(Slot),
    /// No key comes here any more.
    Closed,
}

impl Line {
    /// The log of this key.
    #[inline(always)]
    pub(crate) fn log_of(&mut self, name: u32, key: &[u8]) -> Option<&mut Log> {
        match self {
            Self::Taken(slot) if slot.key.is(name, key) => Some(&mut slot.log),
            _ => None,
        }
    }

    /// What is in it if that holds.
    pub(crate) fn take_if(&mut self, holds: impl FnOnce(&Slot) -> bool) -> Option<Slot> {
        match mem::take(self) {
            Self::Taken(slot) if holds(&slot) => Some(slot),
            other => {
                *self = other;
                None
            }
        }
    }

    /// What was in it. It stays closed.
    pub(crate) fn close(&mut self) -> Option<Slot> {
        let taken = self.take_if(|_| true);
        *self = Self::Closed;
        taken
    }
}
