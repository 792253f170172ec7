//! The queues of operations, one for each key with an operation in flight.

use std::collections::HashMap;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

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
    /// How many owners queues have had.
    owners: u64,
}

#[derive(Debug)]
struct Entries {
    /// The number of the present owner. It is no other queue's, earlier or later.
    owner: u64,
    /// When the owner began its present step: to send what it holds.
    since: Instant,
    waiting: Vec<Waiting>,
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
    pub(crate) end: Instant,
    pub(crate) answer: oneshot::Sender<Message>,
}

/// What a waiting caller receives.
#[derive(Debug)]
pub(crate) enum Message {
    /// It was sent.
    Answer(Result<Answer, Failure>),
    /// It was not sent, because the queue's owner was dropped.
    NotSent(Call),
}

/// The place of an operation.
#[derive(Debug)]
pub(crate) enum Entered {
    /// No other operation on the key is in flight. The caller sends this one, and owns the queue meanwhile.
    First(Call, Queue),
    /// The queue's owner sends it.
    Waits(oneshot::Receiver<Message>),
}

/// One queue, held by its owner. Dropping it returns what waits to the callers.
#[derive(Debug)]
pub(crate) struct Queue {
    queues: Arc<Queues>,
    key: Arc<[u8]>,
    owner: u64,
}

impl Queues {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an operation to the queue of its key. `end` is when its caller gives up.
    pub(crate) fn enter(self: &Arc<Self>, call: Call, end: Instant) -> Entered {
        let mut state = self.lock();
        if let Some(entries) = state.by_key.get_mut(&call.stored) {
            let (sender, answer) = oneshot::channel();
            entries.waiting.push(Waiting { call, end, answer: sender });
            return Entered::Waits(answer);
        }
        state.owners += 1;
        let (key, owner) = (Arc::clone(&call.stored), state.owners);
        state.by_key.insert(Arc::clone(&key), Entries { owner, since: Instant::now(), waiting: Vec::new() });
        Entered::First(call, Queue { queues: Arc::clone(self), key, owner })
    }

    /// Takes over the queue of a key if something waits in it and its owner has done nothing for longer than this.
    pub(crate) fn take_over(self: &Arc<Self>, key: &Arc<[u8]>, patience: Duration) -> Option<Queue> {
        let (now, mut state) = (Instant::now(), self.lock());
        let owner = state.owners + 1;
        let entries = state.by_key.get_mut(key)?;
        if entries.waiting.is_empty() || now.saturating_duration_since(entries.since) < patience {
            return None;
        }
        (entries.owner, entries.since) = (owner, now);
        state.owners = owner;
        Some(Queue { queues: Arc::clone(self), key: Arc::clone(key), owner })
    }
}

impl State {
    /// Returns the entries of a queue that still has this owner.
    fn find(&mut self, queue: &Queue) -> Option<&mut Entries> {
        self.by_key.get_mut(&queue.key).filter(|entries| entries.owner == queue.owner)
    }
}

impl Queue {
    /// Whether anything waits.
    pub(crate) fn has_waiting(&self) -> bool {
        self.queues.lock().find(self).is_some_and(|entries| !entries.waiting.is_empty())
    }

    /// Returns the waiting operations. Removes an empty queue and returns `None`.
    pub(crate) fn take(&self) -> Option<Vec<Waiting>> {
        let mut state = self.queues.lock();
        let entries = state.find(self)?;
        let mut waiting = mem::take(&mut entries.waiting);
        waiting.retain(|one| !one.answer.is_closed());
        if waiting.is_empty() {
            state.by_key.remove(&self.key);
            return None;
        }
        entries.since = Instant::now();
        Some(waiting)
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        let removed = {
            let mut state = self.queues.lock();
            state.find(self).is_some().then(|| state.by_key.remove(&self.key)).flatten()
        };
        for Waiting { call, answer, .. } in removed.into_iter().flat_map(|entries| entries.waiting) {
            let _ = answer.send(Message::NotSent(call));
        }
    }
}
