//! When outages begin and end.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use limiter_core::store::{Facts, Outcome};
use limiter_core::{Decision, Error};
use tokio::time::Instant;

/// The beginning or the end of an outage.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Outage<'a> {
    /// The store has just failed for the first time.
    Began {
        /// Why.
        error: &'a Error,
    },
    /// The store has answered everything for a second.
    Ended {
        /// The number of calls that it could not answer.
        calls: u64,
    },
}

/// How long a store must answer everything until an outage is over.
const CALM: Duration = Duration::from_secs(1);

type Listener = Arc<dyn Fn(Outage<'_>) + Send + Sync>;

/// Reports each outage once, however many calls it affects, and however many others the store answers meanwhile.
///
/// ```text
///           failure                answer
///   well ───────────► out ◄──────────────────► answering ─── answer, a second later ───► well
///                                 failure
/// ```
#[derive(Clone, Default)]
pub(crate) struct OutageLog(Arc<Inner>);

#[derive(Default)]
struct Inner {
    /// Whether there is an outage, so that a call of a store that is well takes no lock.
    is_out: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    listeners: Vec<Listener>,
    /// The calls that the outage has affected so far.
    calls: u64,
    /// The first answer since the last failure.
    answering_since: Option<Instant>,
}

impl OutageLog {
    pub(crate) fn listen(&self, listener: impl Fn(Outage<'_>) + Send + Sync + 'static) {
        self.lock().listeners.push(Arc::new(listener));
    }

    pub(crate) fn is_out(&self) -> bool {
        self.0.is_out.load(Ordering::Acquire)
    }

    /// Notes the answer to an operation.
    pub(crate) fn note(&self, answer: &Result<Facts, Error>) {
        match answer {
            // A denial cache may have answered, which says nothing about the store.
            Ok(Facts { admitted: false, outcome: Outcome::Nothing, .. }) => {}
            answer => self.note_change(answer),
        }
    }

    /// Notes the answer to an operation that was decided at once.
    pub(crate) fn note_decision(&self, answer: &Result<Decision, Error>) {
        if !answer.as_ref().is_ok_and(|decision| !decision.allowed() && !decision.appended()) {
            self.note_change(answer);
        }
    }

    /// Notes the answer to a settlement or a reset.
    pub(crate) fn note_change<T>(&self, answer: &Result<T, Error>) {
        self.note_calls(answer, 1);
    }

    /// Notes the answer to a call that nobody waits for.
    pub(crate) fn note_replay<T>(&self, answer: &Result<T, Error>) {
        self.note_calls(answer, 0);
    }

    fn note_calls<T>(&self, answer: &Result<T, Error>, calls: u64) {
        match answer {
            Err(error) if error.is_retryable() => self.failed(error, calls),
            _ => self.answered(),
        }
    }

    pub(crate) fn failed(&self, error: &Error, calls: u64) {
        let mut state = self.lock();
        state.calls += calls;
        state.answering_since = None;
        if !self.0.is_out.swap(true, Ordering::AcqRel) {
            report(state, Outage::Began { error });
        }
    }

    fn answered(&self) {
        if self.is_out() {
            self.lock().answering_since.get_or_insert_with(Instant::now);
            self.end();
        }
    }

    /// Returns how long until the outage is over if nothing fails. `None` if there is no outage, or the store has not answered.
    pub(crate) fn ends_in(&self) -> Option<Duration> {
        let since = self.lock().answering_since.filter(|_| self.is_out())?;
        Some(CALM.saturating_sub(since.elapsed()))
    }

    /// Ends the outage if it is over.
    pub(crate) fn end(&self) {
        let mut state = self.lock();
        if self.is_out() && state.answering_since.is_some_and(|since| since.elapsed() >= CALM) {
            self.0.is_out.store(false, Ordering::Release);
            let calls = std::mem::take(&mut state.calls);
            report(state, Outage::Ended { calls });
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Calls the listeners without the lock: they may call the store.
fn report(state: MutexGuard<'_, State>, outage: Outage<'_>) {
    let listeners = state.listeners.clone();
    drop(state);
    for listener in listeners {
        listener(outage);
    }
}

impl fmt::Debug for OutageLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutageLog").field("is_out", &self.is_out()).finish_non_exhaustive()
    }
}

/// Returns the instant after `duration`, or one in the distant future if there is none.
pub(crate) fn later(duration: Duration) -> Instant {
    let now = Instant::now();
    // Thirty years, as tokio's timers do.
    now.checked_add(duration).unwrap_or_else(|| now + Duration::from_secs(30 * 365 * 86_400))
}
