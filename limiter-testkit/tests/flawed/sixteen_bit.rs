//! A store that counts the entries of a log in 16 bits.

use std::collections::HashMap;
use std::sync::Mutex;

use async_trait::async_trait;
use limiter_core::store::{Facts, Log, LogKey, Op, Settlement, SettlementFacts};
use limiter_core::{Error, Timestamp, WindowStore};

use super::rules::system_micros;

/// Loses a log that has 2^16 entries.
#[derive(Debug, Default)]
pub(crate) struct SixteenBitStore(Mutex<HashMap<Vec<u8>, Log>>);

impl SixteenBitStore {
    fn change<T>(&self, key: LogKey<'_>, change: impl FnOnce(&mut Log, Timestamp) -> T) -> T {
        let mut logs = self.0.lock().unwrap();
        let log = logs.entry(key.to_bytes()).or_default();
        if log.len() == 1 << 16 {
            *log = Log::new();
        }
        change(log, Timestamp::from_micros_saturating(system_micros()))
    }
}

#[async_trait]
impl WindowStore for SixteenBitStore {
    async fn apply(&self, op: Op<'_>) -> Result<Facts, Error> {
        Ok(self.change(op.log, |log, now| log.apply(&op, now)))
    }

    async fn settle(&self, settlement: Settlement<'_>) -> Result<SettlementFacts, Error> {
        Ok(self.change(settlement.log, |log, now| log.settle(&settlement, now)))
    }

    async fn reset(&self, key: LogKey<'_>) -> Result<bool, Error> {
        Ok(self.change(key, |log, _| !std::mem::take(log).is_empty()))
    }
}
