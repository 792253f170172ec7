//! Several handles of one store. Some hide state from the other handles.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use limiter_core::store::{At, Facts, Log, LogKey, Mode, Op, Outcome, Settlement, SettlementFacts};
use limiter_core::{Decision, Error, Timestamp, WindowStore};

use super::rules::system_micros;

/// The state that a handle hides from other handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PrivateState {
    Nothing,
    ItsLock,
    ItsLogs,
    ItsDenials,
    ItsIds,
}

type Logs = Arc<Mutex<HashMap<Vec<u8>, Log>>>;

/// A handle of a store.
#[derive(Debug)]
pub(crate) struct HandleStore {
    private: PrivateState,
    number: u32,
    logs: Logs,
    own: Mutex<LocalState>,
}

#[derive(Debug, Default)]
struct LocalState {
    logs: HashMap<Vec<u8>, Log>,
    denied: HashMap<Vec<u8>, Facts>,
}

impl HandleStore {
    pub(crate) fn new(private: PrivateState) -> Self {
        Self { private, number: 0, logs: Arc::default(), own: Mutex::default() }
    }

    /// Returns another handle of the same store.
    pub(crate) fn another(&self) -> Self {
        Self { private: self.private, number: self.number + 1, logs: Arc::clone(&self.logs), own: Mutex::default() }
    }

    fn change<T>(&self, key: LogKey<'_>, change: impl FnOnce(&mut Log, Timestamp) -> T) -> T {
        let (bytes, now) = (key.to_bytes(), Timestamp::from_micros_saturating(system_micros()));
        match self.private {
            PrivateState::ItsLock => {
                // Other handles do not wait for this lock.
                let _own = self.own.lock().unwrap();
                let mut log = self.logs.lock().unwrap().get(&bytes).cloned().unwrap_or_default();
                let answer = change(&mut log, now);
                std::thread::yield_now();
                self.logs.lock().unwrap().insert(bytes, log);
                answer
            }
            PrivateState::ItsLogs => {
                let (mut own, mut logs) = (self.own.lock().unwrap(), self.logs.lock().unwrap());
                let log =
                    own.logs.entry(bytes.clone()).or_insert_with(|| logs.get(&bytes).cloned().unwrap_or_default());
                let answer = change(log, now);
                logs.insert(bytes, log.clone());
                answer
            }
            _ => change(self.logs.lock().unwrap().entry(bytes).or_default(), now),
        }
    }
}

#[async_trait]
impl WindowStore for HandleStore {
    async fn apply(&self, op: Op<'_>) -> Result<Facts, Error> {
        let key = op.log.to_bytes();
        if self.private == PrivateState::ItsDenials && op.mode == Mode::Acquire && op.id.is_none() {
            let own = self.own.lock().unwrap();
            // Until its retry time, a denied operation stays denied.
            let same =
                |facts: &&Facts| op.at == At::Given(facts.log.now) && facts.log.usage.len() == op.policy.limits().len();
            if let Some(facts) = own.denied.get(&key).filter(same) {
                return Ok(facts.clone());
            }
        }
        let mut op = op;
        if let (PrivateState::ItsIds, Some(id)) = (self.private, op.id) {
            // Other handles do not find this id.
            op.id = Some((id.as_u128() ^ u128::from(self.number)).into());
        }
        let facts = self.change(op.log, |log, now| log.apply(&op, now));
        let is_denial =
            op.mode == Mode::Acquire && !facts.admitted && facts.outcome == Outcome::Nothing && op.cost == 1;
        if is_denial && self.private == PrivateState::ItsDenials {
            self.own.lock().unwrap().denied.insert(key, facts.clone());
        }
        Ok(facts)
    }

    async fn settle(&self, settlement: Settlement<'_>) -> Result<SettlementFacts, Error> {
        self.own.lock().unwrap().denied.remove(&settlement.log.to_bytes());
        Ok(self.change(settlement.log, |log, now| log.settle(&settlement, now)))
    }

    async fn reset(&self, key: LogKey<'_>) -> Result<bool, Error> {
        self.own.lock().unwrap().denied.remove(&key.to_bytes());
        Ok(self.change(key, |log, _| !std::mem::take(log).is_empty()))
    }

    fn try_decide(&self, _: Op<'_>) -> Option<Result<Decision, Error>> {
        None
    }
}
