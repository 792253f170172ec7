//! Between the guards of a process and its store: which calls the breaker lets pass, and what it learns from them.

use std::sync::Arc;

use async_trait::async_trait;
use limiter_core::store::{Facts, JointFacts, JointOp, LogKey, Op, Settlement, SettlementFacts};
use limiter_core::{Error, ErrorKind, WindowStore};
use tokio::time::Instant;

use crate::world::{CALL, Shared};

/// A store whose calls are compared with the [breaker](crate::ledger::calls::Breaker) that the documentation describes.
#[derive(Debug)]
pub(crate) struct Gate {
    pub(crate) store: Arc<dyn WindowStore>,
    pub(crate) world: Shared,
    pub(crate) process: usize,
    /// The life of the process. What happens after its end does not matter.
    pub(crate) life: u64,
}

/// A call under way. If it is dropped after the stack's timeout, it has failed.
struct Passing<'a> {
    gate: &'a Gate,
    begun: Instant,
    is_response: Option<Option<bool>>,
}

impl Drop for Passing<'_> {
    fn drop(&mut self) {
        let mut world = self.gate.world.lock();
        let setting = &world.setting;
        let (threshold, is_late) = (setting.threshold, self.begun.elapsed() >= setting.timeout);
        let is_response = self.is_response.or(is_late.then_some(Some(false)));
        let is_alive = world.processes[self.gate.process].life == self.gate.life;
        if let Some(is_response) = is_response.filter(|_| is_alive) {
            let process = self.gate.process;
            world.note(|| format!("  p{process}'s store responds: {is_response:?}"));
            let breaker = &mut world.processes[self.gate.process].breaker;
            breaker.note(is_response, threshold);
        }
    }
}

impl Gate {
    async fn pass<T>(
        &self,
        call: impl Future<Output = Result<T, Error>>,
        responds: impl Fn(&T) -> bool,
    ) -> Result<T, Error> {
        {
            let mut world = self.world.lock();
            let process = &mut world.processes[self.process];
            if process.life == self.life {
                let result = process.breaker.pass();
                world.check(&format!("p{}", self.process), result);
            }
            if let Ok(Some(call)) = CALL.try_with(|call| call.number) {
                world.calls[call].has_passed = true;
            }
        }
        let begun = Instant::now();
        let mut passing = Passing {
            gate: self,
            begun,
            is_response: None,
        };
        let result = call.await;
        passing.is_response = Some(match &result {
            Ok(result) => responds(result).then_some(true),
            Err(error) => match error.kind() {
                ErrorKind::Unavailable | ErrorKind::Timeout => Some(false),
                ErrorKind::Corrupt | ErrorKind::Inconsistent => Some(true),
                _ => None,
            },
        });
        result
    }
}

#[async_trait]
impl WindowStore for Gate {
    async fn apply(&self, op: Op<'_>) -> Result<Facts, Error> {
        self.pass(self.store.apply(op), |_| true).await
    }

    async fn settle(&self, settlement: Settlement<'_>) -> Result<SettlementFacts, Error> {
        self.pass(self.store.settle(settlement), |_| true).await
    }

    async fn reset(&self, log: LogKey<'_>) -> Result<bool, Error> {
        self.pass(self.store.reset(log), |_| true).await
    }

    async fn apply_all(&self, ops: &[JointOp<'_>]) -> Result<Option<JointFacts>, Error> {
        self.pass(self.store.apply_all(ops), Option::is_some).await
    }

    fn inner(&self) -> Option<&dyn WindowStore> {
        Some(&self.store)
    }

    fn identity(&self) -> Option<usize> {
        self.store.identity()
    }
}
