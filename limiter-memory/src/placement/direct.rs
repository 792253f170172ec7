//! The direct slot: one key, its log and their lock in one cache line.

use std::mem;

use super::key::KeyedLog;
use crate::log::LogForm;

/// A place for one key.
#[derive(Default)]
pub(crate) enum DirectSlot {
    #[default]
    Vacant,
    Taken(KeyedLog),
    /// For good: all keys are in the shards.
    Closed,
}

impl DirectSlot {
    /// Returns the log of this key if it is here.
    #[inline(always)]
    pub(crate) fn log_of(&mut self, name: u32, key: &[u8]) -> Option<&mut LogForm> {
        match self {
            Self::Taken(keyed) if keyed.key.is(name, key) => Some(&mut keyed.log),
            _ => None,
        }
    }

    pub(crate) fn copy(&self) -> Option<KeyedLog> {
        match self {
            Self::Taken(keyed) => Some(keyed.clone()),
            _ => None,
        }
    }

    /// Takes the log out if `matches` holds for it.
    pub(crate) fn take_if(&mut self, matches: impl FnOnce(&KeyedLog) -> bool) -> Option<KeyedLog> {
        match mem::take(self) {
            Self::Taken(keyed) if matches(&keyed) => Some(keyed),
            other => {
                *self = other;
                None
            }
        }
    }
}
