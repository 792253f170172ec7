//! Requests that a server asked to come back later.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use limiter_core::Timestamp;

/// Until when requests are held back, by their keys.
#[derive(Debug, Default)]
pub(super) struct Holds(Mutex<HashMap<Vec<u8>, Timestamp>>);

impl Holds {
    pub(super) fn add(&self, key: Vec<u8>, now: Timestamp, until: Timestamp) {
        let mut holds = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        holds.retain(|_, until| *until > now);
        holds.insert(key, until);
    }

    /// Returns how long requests with this key are held back.
    pub(super) fn left(&self, key: &[u8], now: Option<Timestamp>) -> Option<Duration> {
        let until = *self.0.lock().unwrap_or_else(PoisonError::into_inner).get(key)?;
        let left = until.micros_since(now?);
        (left > 0).then(|| Duration::from_micros(left))
    }
}
