//! Resets, and the right to change a log.
//!
//! A reset that overtook a replay would leave its charge behind, so both need the log's turn. If a replay has it, the reset waits in
//! the journal and follows.

use std::sync::Arc;

use limiter_core::store::LogKey;
use limiter_core::{Error, NowStore, Timestamp, WindowStore};

use super::charge::LogId;
use super::journal::Change;
use super::shared::{Shared, State};

/// A reset of the primary store under way.
pub(super) struct Reset<'a, P: WindowStore, L: NowStore> {
    turn: Turn<'a, P, L>,
    /// Its number in the journal.
    waiting: Option<u64>,
}

/// The right to change a log in the primary store other than by its callers.
pub(super) struct Turn<'a, P: WindowStore, L: NowStore> {
    shared: &'a Arc<Shared<P, L>>,
    pub(super) log: LogId,
}

impl<P: WindowStore, L: NowStore> Drop for Turn<'_, P, L> {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        state.journal.put_back(&self.log);
        self.shared.start_replay(state);
    }
}

impl<P: WindowStore, L: NowStore> Shared<P, L> {
    /// Takes the next log to replay.
    pub(super) fn take_next(self: &Arc<Self>) -> Option<Turn<'_, P, L>> {
        let log = self.lock().journal.take_next()?;
        Some(Turn { shared: self, log })
    }

    /// Begins a reset of the primary store. Returns `None` if somebody has the turn of the log: the reset then waits for it.
    pub(super) fn begin_reset(self: &Arc<Self>, log: LogKey<'_>) -> Option<Reset<'_, P, L>> {
        let (log, mut state) = (LogId::from(log), self.lock());
        let is_free = state.journal.take(&log);
        // What waits must not outlive a reset whose call is dropped.
        let must_follow = !is_free || state.journal.first(&log).is_some();
        let waiting = must_follow.then(|| self.reset_later(&mut state, &log));
        is_free.then(|| Reset { turn: Turn { shared: self, log }, waiting })
    }

    /// Resets what is local if the primary store was reset. The reset waits if that store is away.
    pub(super) fn end_reset(&self, reset: &Reset<'_, P, L>, answer: Result<bool, Error>) -> Result<bool, Error> {
        let Reset { turn: Turn { log, .. }, waiting } = reset;
        let mut state = self.lock();
        if answer.as_ref().is_err_and(Error::is_retryable) {
            waiting.unwrap_or_else(|| self.reset_later(&mut state, log));
            return Ok(true);
        }
        if let Some(number) = waiting {
            state.journal.remove(*number);
            return answer.map(|_| true);
        }
        answer.map(|existed| state.journal.discard(log) | self.local.reset_now(log.key()) | existed)
    }

    /// Resets what is local, and journals a reset of the primary store. Returns its number.
    fn reset_later(&self, state: &mut State, log: &LogId) -> u64 {
        state.journal.discard(log);
        self.local.reset_now(log.key());
        state.journal.push(log.clone(), Change::Reset, Timestamp::MAX)
    }
}
