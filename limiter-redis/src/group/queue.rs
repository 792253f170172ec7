//! The queues of operations, one for each key with an operation under way.

use std::collections::HashMap;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use redis::Value;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::channel::Call;
use crate::failure::Failure;

/// The queues of a store by the Redis key.
///
/// One lock guards all of them. It is held for a few steps, and never across an `.await`.
#[derive(Debug, Default)]
pub(crate) struct Queues(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    by_key: HashMap<Arc<[u8]>, Entries>,
    /// How many queues there have been.
    made: u64,
}

#[derive(Debug)]
struct Entries {
    /// Distinguishes this queue from earlier and later ones of its key.
    number: u64,
    waiting: Vec<Waiting>,
    /// Dropped when the first operation is over, which wakes the queue's task. `None` before that task starts, and afterwards.
    first: Option<oneshot::Sender<()>>,
    has_task: bool,
}

/// The answer to one operation.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) reply: Arc<Value>,
    /// The operation's place in a call of several.
    pub(crate) place: Option<usize>,
}

impl Answer {
    pub(crate) fn alone(reply: Value) -> Self {
        Self { reply: Arc::new(reply), place: None }
    }
}

/// An operation that waits to be sent.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) call: Call,
    /// When its caller gives up.
    pub(crate) end: Option<Instant>,
    pub(crate) answer: oneshot::Sender<Message>,
}

/// What a waiting caller receives.
#[derive(Debug)]
pub(crate) enum Message {
    /// It was sent.
    Answer(Result<Answer, Failure>),
    /// It was not sent, because the queue's task was dropped.
    NotSent(Call),
}

/// The place of an operation.
#[derive(Debug)]
pub(crate) enum Entered {
    /// No other operation on the key is under way. The caller sends this one, and holds the turn meanwhile.
    First(Call, Turn),
    /// The queue's task sends it. `starts` is what the caller starts that task with, if there is none yet: the queue, and a
    /// receiver that completes when the first operation is over.
    Waits { answer: oneshot::Receiver<Message>, starts: Option<(Queue, oneshot::Receiver<()>)> },
}

/// Held by the caller of a queue's first operation. Dropping it lets the others go on.
#[derive(Debug)]
pub(crate) struct Turn(Handle);

/// One queue, held by its task. Dropping it returns what it holds to the callers.
#[derive(Debug)]
pub(crate) struct Queue(Handle);

#[derive(Debug)]
struct Handle {
    queues: Arc<Queues>,
    key: Arc<[u8]>,
    number: u64,
}

impl Queues {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an operation to the queue of its key. `end` is when its caller gives up.
    pub(crate) fn enter(self: &Arc<Self>, call: Call, end: Option<Instant>) -> Entered {
        let key = Arc::clone(&call.stored);
        let handle = |number| Handle { queues: Arc::clone(self), key: Arc::clone(&key), number };
        let mut state = self.lock();
        let Some(entries) = state.by_key.get_mut(&key) else {
            state.made += 1;
            let number = state.made;
            let entries = Entries { number, waiting: Vec::new(), first: None, has_task: false };
            state.by_key.insert(Arc::clone(&key), entries);
            return Entered::First(call, Turn(handle(number)));
        };
        let (sender, answer) = oneshot::channel();
        entries.waiting.push(Waiting { call, end, answer: sender });
        let starts = (!mem::replace(&mut entries.has_task, true)).then(|| {
            let (over, first) = oneshot::channel();
            entries.first = Some(over);
            (Queue(handle(entries.number)), first)
        });
        Entered::Waits { answer, starts }
    }
}

impl State {
    /// Returns the entries of a queue that still exists.
    fn find(&mut self, handle: &Handle) -> Option<&mut Entries> {
        self.by_key.get_mut(&handle.key).filter(|entries| entries.number == handle.number)
    }
}

impl Queue {
    /// Returns what waits. If nothing does, removes the queue and returns `None`.
    pub(crate) fn take(&self) -> Option<Vec<Waiting>> {
        let mut state = self.0.queues.lock();
        let mut waiting = mem::take(&mut state.find(&self.0)?.waiting);
        waiting.retain(|one| !one.answer.is_closed());
        if waiting.is_empty() {
            state.by_key.remove(&self.0.key);
            return None;
        }
        Some(waiting)
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        let removed = {
            let mut state = self.0.queues.lock();
            state.find(&self.0).is_some().then(|| state.by_key.remove(&self.0.key)).flatten()
        };
        for Waiting { call, answer, .. } in removed.into_iter().flat_map(|entries| entries.waiting) {
            let _ = answer.send(Message::NotSent(call));
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut state = self.0.queues.lock();
        let Some(entries) = state.find(&self.0) else { return };
        if entries.has_task {
            entries.first = None;
        } else {
            state.by_key.remove(&self.0.key);
        }
    }
}
