//! When outages begin and end.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use limiter_core::Error;

/// The beginning or the end of an outage.
#[derive(Debug)]
#[non_exhaustive]
pub enum Outage<'a> {
    /// The store has just failed for the first time.
    Began {
        /// Why.
        error: &'a Error,
    },
    /// The store has answered again.
    Ended {
        /// The number of calls that it could not answer.
        calls: u64,
    },
}

type Listener = Arc<dyn Fn(Outage<'_>) + Send + Sync>;

/// Reports each outage once, however many calls it affects.
#[derive(Clone, Default)]
pub(crate) struct OutageLog {
    /// The calls that the current outage has affected so far; 0 means that there is none.
    calls: Arc<AtomicU64>,
    listener: Option<Listener>,
}

impl OutageLog {
    pub(crate) fn listen(&mut self, listener: impl Fn(Outage<'_>) + Send + Sync + 'static) {
        self.listener = Some(Arc::new(listener));
    }

    pub(crate) fn failed(&self, error: &Error) {
        if self.calls.fetch_add(1, Ordering::Relaxed) == 0
            && let Some(listener) = &self.listener
        {
            listener(Outage::Began { error });
        }
    }

    /// Returns whether this ends an outage.
    pub(crate) fn answered(&self) -> bool {
        if self.calls.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let calls = self.calls.swap(0, Ordering::Relaxed);
        if calls > 0
            && let Some(listener) = &self.listener
        {
            listener(Outage::Ended { calls });
        }
        calls > 0
    }
}

impl fmt::Debug for OutageLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutageLog").field("calls", &self.calls).finish_non_exhaustive()
    }
}
