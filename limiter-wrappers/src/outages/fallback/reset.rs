//! Resets, and the right to change a log.
//!
//! A reset that overtook a replay would leave its charge behind, so both need the log's turn. If a replay has it, the reset is
//! journaled and follows.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use limiter_core::store::LogKey;
use limiter_core::{Error, NowStore, WindowStore};

use super::change::LogId;
use super::shared::{Shared, State};

/// The right to change a log in the primary store other than by its callers.
pub(super) struct Turn<'a, P, L> {
    shared: &'a Shared<P, L>,
    pub(super) log: LogId,
}

/// A reset under way.
pub(super) struct Reset<'a, P, L> {
    turn: Turn<'a, P, L>,
    /// The first step that does not precede it.
    before: u64,
}

impl<P, L> Shared<P, L> {
    pub(super) const fn turn(&self, log: LogId) -> Turn<'_, P, L> {
        Turn { shared: self, log }
    }
}

impl<P: WindowStore, L: NowStore> Shared<P, L> {
    /// Begins a reset of the primary store, or journals it if somebody changes the log there just now.
    pub(super) fn begin_reset(self: &Arc<Self>, log: LogKey<'_>) -> Option<Reset<'_, P, L>> {
        let id = LogId::from(log);
        let mut state = self.lock();
        if state.journal.take(&id) {
            return Some(Reset { turn: self.turn(id), before: state.journal.next_number() });
        }
        self.reset_later(&mut state, log);
        drop(state);
        self.start_replay();
        None
    }

    /// Resets what is local, too. Journals the reset if the primary store is away.
    pub(super) fn end_reset(
        self: &Arc<Self>,
        reset: &Reset<'_, P, L>,
        answer: Result<bool, Error>,
    ) -> Result<bool, Error> {
        let log = reset.turn.log.key();
        let mut state = self.lock();
        match answer {
            Err(error) if error.is_retryable() => {
                self.reset_later(&mut state, log);
                drop(state);
                self.start_replay();
                Ok(true)
            }
            Ok(existed) => {
                let discarded = state.journal.discard(log, reset.before);
                state.verdicts.forget(log);
                Ok(self.local.reset_now(log) || discarded || existed)
            }
            error => error,
        }
    }

    fn reset_later(&self, state: &mut State, log: LogKey<'_>) {
        state.journal.discard(log, u64::MAX);
        state.verdicts.forget(log);
        self.local.reset_now(log);
        state.journal.push_reset(log);
        self.in_use.store(true, Ordering::Release);
    }
}

impl<P, L> Drop for Turn<'_, P, L> {
    fn drop(&mut self) {
        self.shared.state().journal.put_back(&self.log);
    }
}
