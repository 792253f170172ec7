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
        let held = holds.entry(key).or_insert(until);
        *held = until.max(*held);
    }

    /// Returns how long requests with this key are held back.
    pub(super) fn left(&self, key: &[u8], now: Option<Timestamp>) -> Option<Duration> {
        let until = *self.0.lock().unwrap_or_else(PoisonError::into_inner).get(key)?;
        let left = until.micros_since(now?);
        (left > 0).then(|| Duration::from_micros(left))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_wait_that_the_server_asked_for_holds() {
        let seconds = |seconds: u64| Timestamp::from_micros_saturating(seconds * 1_000_000);
        let holds = Holds::default();
        for until in [30, 31, 10] {
            holds.add(b"key".to_vec(), seconds(1), seconds(until));
        }
        assert_eq!(holds.left(b"key", Some(seconds(1))), Some(Duration::from_secs(30)));
        assert_eq!(holds.left(b"key", Some(seconds(31))), None);
        assert_eq!(holds.left(b"other", Some(seconds(1))), None);
    }
}
