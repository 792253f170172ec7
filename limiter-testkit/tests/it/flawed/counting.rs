//! A store that loses a log of 65,536 entries. The reference store would be too slow for so many.

use std::collections::HashMap;
use std::sync::Mutex;

use async_trait::async_trait;
use limiter_core::store::{At, Facts, Log, LogKey, Op, Settlement, SettlementFacts};
use limiter_core::{Error, Timestamp, WindowStore};

#[derive(Debug, Default)]
pub(super) struct CountsIn16Bits(Mutex<HashMap<Vec<u8>, Log>>);

fn time(at: At) -> Timestamp {
    if let At::Given(given) = at {
        given
    } else {
        Timestamp::EPOCH
    }
}

#[async_trait]
impl WindowStore for CountsIn16Bits {
    async fn apply(&self, op: Op<'_>) -> Result<Facts, Error> {
        let mut logs = self.0.lock().unwrap();
        let log = logs.entry(op.log.to_bytes()).or_default();
        if log.len() == 1 << 16 {
            *log = Log::new();
        }
        Ok(log.apply(&op, time(op.at)))
    }

    async fn settle(&self, settlement: Settlement<'_>) -> Result<SettlementFacts, Error> {
        let mut logs = self.0.lock().unwrap();
        Ok(logs
            .entry(settlement.log.to_bytes())
            .or_default()
            .settle(&settlement, time(settlement.at)))
    }

    async fn reset(&self, log: LogKey<'_>) -> Result<bool, Error> {
        Ok(self.0.lock().unwrap().remove(&log.to_bytes()).is_some())
    }
}
