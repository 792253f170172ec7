//! Group commit: concurrent operations on one key go to Redis together.
//!
//! ```text
//! the first ─► sent at once by its caller ──────────► answered
//!     others arrive ─► queue ─► the queue's task waits ─► sends all, alike ones as one call ─► sends the next ones, …
//! ```
//!
//! A key has a queue while an operation on it is under way. Its caller sends the first operation itself, so without
//! concurrency there is neither a task nor a hand-over. The second operation starts the queue's task. It waits for the first one,
//! sends what has arrived, waits for the answers, sends what has arrived since, and ends once nothing has.

mod queue;

use std::sync::Arc;

use futures_util::future::join_all;
use redis::aio::ConnectionLike;
use tokio::sync::oneshot;
use tokio::task::yield_now;
use tokio::time::{Instant, timeout, timeout_at};

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
    pub(crate) async fn apply<C>(&self, channel: &Channel<C>, mut call: Call) -> Result<Answer, Failure>
    where
        C: ConnectionLike + Clone + Send + Sync + 'static,
    {
        let end = channel.retry_policy.end();
        loop {
            let (answer, starts) = match self.0.enter(call, end) {
                Entered::First(mut call, _turn) => {
                    return channel.apply(&mut call, end).await.map(Answer::alone);
                }
                Entered::Waits { answer, starts } => (answer, starts),
            };
            if let Some((queue, first)) = starts {
                tokio::spawn(serve(queue, channel.clone(), first));
            }
            let message = match end {
                Some(end) => timeout_at(end, answer).await.map_err(|_| Failure::Timeout)?,
                None => answer.await,
            };
            match message {
                Ok(Message::Answer(answer)) => return answer,
                Ok(Message::NotSent(unsent)) => call = unsent,
                // The queue's task was dropped while it waited for Redis: its runtime has ended.
                Err(_) => return Err(Failure::Timeout),
            }
        }
    }
}

/// Sends what waits in a queue, until nothing does.
async fn serve<C>(queue: Queue, channel: Channel<C>, first: oneshot::Receiver<()>)
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
{
    // The first caller sends its operation itself. If nobody polls its future, it must not hold up the others.
    let _ = timeout(channel.retry_policy.response_timeout, first).await;
    loop {
        // Those just answered often ask again at once.
        yield_now().await;
        let Some(waiting) = queue.take() else { break };
        // Sent in this order on one connection.
        join_all(calls(waiting).into_iter().map(|call| send(&channel, call))).await;
    }
}

/// Splits operations into calls of alike ones, in order.
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
async fn send<C>(channel: &Channel<C>, waiting: Vec<Waiting>)
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
{
    // Without an end, if one of them has none.
    let end: Option<Vec<Instant>> = waiting.iter().map(|one| one.end).collect();
    let end = end.and_then(|ends| ends.into_iter().max());
    let (mut calls, callers): (Vec<_>, Vec<_>) = waiting.into_iter().map(|one| (one.call, one.answer)).unzip();
    let reply = match &mut calls[..] {
        [call] => channel.apply(call, end).await,
        calls => channel.apply_group(calls, end).await,
    };
    let reply = reply.map(Arc::new);
    let alone = callers.len() == 1;
    for (place, caller) in callers.into_iter().enumerate() {
        let answer = reply.clone().map(|reply| Answer { reply, place: (!alone).then_some(place) });
        // Fails if the caller has gone.
        let _ = caller.send(Message::Answer(answer));
    }
}
