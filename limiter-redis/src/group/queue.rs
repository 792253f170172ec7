//! The queues of operations, one for each key with an operation under way.

use std::collections::HashMap;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::channel::Call;
use crate::failure::Failure;

/// The queues of a store by the Redis key.
///
/// One lock guards all of them. It is held for a few steps, and never across an `.await`.
#[derive(Debug)]
pub(crate) struct Queues<A>(Mutex<State<A>>);

#[derive(Debug)]
struct State<A> {
    by_key: HashMap<Arc<[u8]>, Entries<A>>,
    /// How many queues there have been.
    made: u64,
}

#[derive(Debug)]
struct Entries<A> {
    /// Tells it from other queues of its key, earlier or later.
    number: u64,
    waiting: Vec<Waiting<A>>,
    /// Dropped once the first operation is over. `None` if the queue has no task yet, or if that knows already.
    first: Option<oneshot::Sender<()>>,
    has_task: bool,
}

/// An operation that waits to be sent.
#[derive(Debug)]
pub(crate) struct Waiting<A> {
    pub(crate) call: Call,
    /// When its caller gives up.
    pub(crate) end: Option<Instant>,
    pub(crate) answer: oneshot::Sender<Message<A>>,
}

/// What an operation that waited becomes.
#[derive(Debug)]
pub(crate) enum Message<A> {
    /// It was sent.
    Answer(Result<A, Failure>),
    /// It was not sent, because the queue's task was dropped.
    NotSent(Call),
}

/// The place of an operation.
#[derive(Debug)]
pub(crate) enum Entered<A> {
    /// No other operation on the key is under way. The caller sends this one, and holds the turn meanwhile.
    First(Call, Turn<A>),
    /// The queue's task sends it. If there is no task yet, the caller starts it, with what tells it that the first operation is
    /// over.
    Waits { answer: oneshot::Receiver<Message<A>>, starts: Option<(Queue<A>, oneshot::Receiver<()>)> },
}

/// Held by the caller of a queue's first operation. Dropping it lets the others go on.
#[derive(Debug)]
pub(crate) struct Turn<A>(Handle<A>);

/// One queue, held by its task. Dropping it returns what it holds to the callers.
#[derive(Debug)]
pub(crate) struct Queue<A>(Handle<A>);

#[derive(Debug)]
struct Handle<A> {
    queues: Arc<Queues<A>>,
    key: Arc<[u8]>,
    number: u64,
}

impl<A> Default for Queues<A> {
    fn default() -> Self {
        Self(Mutex::new(State { by_key: HashMap::new(), made: 0 }))
    }
}

impl<A> Queues<A> {
    fn lock(&self) -> MutexGuard<'_, State<A>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an operation to the queue of its key. `end` is when its caller gives up.
    pub(crate) fn enter(self: &Arc<Self>, call: Call, end: Option<Instant>) -> Entered<A> {
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

impl<A> State<A> {
    /// Returns the entries of a queue that still exists.
    fn find(&mut self, handle: &Handle<A>) -> Option<&mut Entries<A>> {
        self.by_key.get_mut(&handle.key).filter(|entries| entries.number == handle.number)
    }
}

impl<A> Queue<A> {
    /// Returns what waits. If nothing does, removes the queue and returns `None`.
    pub(crate) fn take(&self) -> Option<Vec<Waiting<A>>> {
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

impl<A> Drop for Queue<A> {
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

impl<A> Drop for Turn<A> {
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
