//! Group commit: concurrent acquires of a key share a script call.
//!
//! ```text
//! the first ─► sent at once by its caller ─► answered ─► its caller starts the queue's task
//!     others arrive ─► queue ─► the task sends all, one call per run of equal acquires ─► sends the next, …
//! ```
//!
//! A key has a queue while an operation on it is in flight. The first caller sends its operation itself, so without concurrency
//! there is no task. If others wait when it is answered, it spawns the queue's task. The task sends all queued operations, waits
//! for the replies, and repeats until the queue is empty.
//!
//! A queue has one owner: the first caller, then the task. If its runtime stands still, or nobody polls the first caller, one of
//! those that wait takes the queue over, and the former owner finds out when it goes on.

mod queue;

use std::sync::Arc;

use futures_util::future::join_all;
use tokio::task::yield_now;
use tokio::time::{Instant, timeout_at};

use crate::channel::{Call, Channel};
use crate::failure::Failure;
use crate::group::queue::{Entered, Message, Queue, Queues, Waiting};

pub(crate) use crate::group::queue::Answer;

/// The most operations in one call. The server executes nothing else meanwhile.
const MAX_GROUP: usize = 256;

/// The group commit of one store.
#[derive(Debug, Default)]
pub(crate) struct GroupCommit(Arc<Queues>);

impl GroupCommit {
    /// Applies an operation, alone or together with others.
    pub(crate) async fn apply(&self, channel: &Channel, mut call: Call) -> Result<Answer, Failure> {
        let (end, key) = (channel.end(), Arc::clone(&call.stored));
        // How long an owner may take for one step. More than that is not wrong: then both send at once.
        let patience = channel.retry_policy.response_timeout;
        loop {
            let mut answer = match self.0.enter(call, end) {
                Entered::First(call, queue) => {
                    let answer = channel.apply(&mut [call], end).await.map(Answer::alone);
                    if queue.has_waiting() {
                        tokio::spawn(serve(queue, channel.clone()));
                    }
                    return answer;
                }
                Entered::Waits(answer) => answer,
            };
            let message = loop {
                let check = Instant::now() + patience;
                if let Ok(message) = timeout_at(check.min(end), &mut answer).await {
                    break message;
                }
                if end <= Instant::now() {
                    return Err(Failure::Timeout(patience));
                }
                if let Some(queue) = self.0.take_over(&key, patience) {
                    tokio::spawn(serve(queue, channel.clone()));
                }
            };
            match message {
                Ok(Message::Answer(answer)) => return answer,
                Ok(Message::NotSent(unsent)) => call = unsent,
                // The queue's task was dropped while it waited for Redis: its runtime has ended.
                Err(_) => return Err(Failure::Timeout(patience)),
            }
        }
    }
}

/// Sends what waits in a queue, until nothing does.
async fn serve(queue: Queue, channel: Channel) {
    loop {
        // Those just answered often ask again at once.
        yield_now().await;
        let Some(waiting) = queue.take() else { break };
        // Sent in this order on one connection.
        join_all(calls(waiting).into_iter().map(|call| send(&channel, call))).await;
    }
}

/// Splits operations into calls, in order.
fn calls(waiting: Vec<Waiting>) -> Vec<Vec<Waiting>> {
    let mut calls: Vec<Vec<Waiting>> = Vec::new();
    for next in waiting {
        match calls.last_mut() {
            Some(call) if call.len() < MAX_GROUP && call.last().is_some_and(|last| last.call.is_like(&next.call)) => {
                call.push(next);
            }
            _ => calls.push(vec![next]),
        }
    }
    calls
}

/// Sends one call and answers its callers.
async fn send(channel: &Channel, waiting: Vec<Waiting>) {
    let end = waiting.iter().map(|one| one.end).max().unwrap_or_else(Instant::now);
    let (mut calls, callers): (Vec<_>, Vec<_>) = waiting.into_iter().map(|one| (one.call, one.answer)).unzip();
    let reply = channel.apply(&mut calls, end).await.map(Arc::new);
    let alone = callers.len() == 1;
    for (place, caller) in callers.into_iter().enumerate() {
        let answer = reply.clone().map(|reply| Answer { reply, place: (!alone).then_some(place) });
        // Fails if the caller has gone.
        let _ = caller.send(Message::Answer(answer));
    }
}
