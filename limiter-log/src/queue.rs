//! The queue: calls wait for their logs, and workers take them in batches.
//!
//! Each log has a lane. A call waits in the lanes of all its logs. Once it is the first in each of them and no batch has one of these
//! logs, it is ready. A batch is the oldest ready call, and the calls that follow it in its lanes. So calls of one lane are served in
//! order, no call starves, and calls that share no log never wait for each other.

mod state;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use limiter_core::{Error, ErrorKind};

use self::state::State;
use crate::batch;
use crate::call::Call;
use crate::table::Table;

/// How many calls may wait. More are refused.
const MOST_CALLS: usize = 100_000;

/// The calls of a process on one table.
pub(crate) struct Queue<T> {
    pub(crate) table: T,
    state: Mutex<State>,
}

impl<T: Table> Queue<T> {
    pub(crate) fn new(table: T) -> Self {
        let state = Mutex::default();
        Self { table, state }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a call, which leaves the queue when the ticket is dropped.
    pub(crate) fn join(self: &Arc<Self>, call: Call) -> Result<Ticket<T>, Error> {
        let number = {
            let mut state = self.lock();
            if state.len() >= MOST_CALLS {
                let text =
                    format!("{MOST_CALLS} calls wait for the table: it is too slow for this load");
                return Err(Error::new(ErrorKind::Unavailable, text));
            }
            state.add(call)
        };
        self.hire();
        let queue = Arc::clone(self);
        Ok(Ticket { queue, number })
    }

    /// Starts a worker if a call is ready and there may be one more.
    fn hire(self: &Arc<Self>) {
        if self.lock().hire(self.table.workers()) {
            let worker = Worker {
                queue: Arc::clone(self),
                has_ended: false,
            };
            self.table.spawn(Box::pin(worker.run()));
        }
    }
}

/// A call's place in the queue.
pub(crate) struct Ticket<T: Table> {
    queue: Arc<Queue<T>>,
    number: u64,
}

impl<T: Table> Drop for Ticket<T> {
    /// Starts no worker, because a future may be dropped outside the table's runtime. A call that waited behind this one is ready
    /// now, or when the batch that they both wait for has ended. The worker of a batch then takes it.
    fn drop(&mut self) {
        // In two statements, so that the call is dropped after the lock is released.
        let call = self.queue.lock().remove(self.number);
        drop(call);
    }
}

struct Worker<T: Table> {
    queue: Arc<Queue<T>>,
    has_ended: bool,
}

impl<T: Table> Worker<T> {
    /// Serves calls until none is ready.
    async fn run(mut self) {
        loop {
            let Some((keys, mut calls)) = self.queue.lock().take_batch() else {
                self.has_ended = true;
                return;
            };
            let taken = Taken(&self.queue, keys);
            self.queue.hire();
            let result = batch::run(&self.queue.table, &taken.1, &mut calls).await;
            for call in calls {
                call.finish(result.as_ref().err());
            }
        }
    }
}

impl<T: Table> Drop for Worker<T> {
    /// A runtime that ends drops its tasks. If no worker is left, no call waits in vain.
    fn drop(&mut self) {
        if !self.has_ended {
            let abandoned = self.queue.lock().lose_worker();
            drop(abandoned);
        }
    }
}

/// The logs of a batch that runs.
struct Taken<'a, T: Table>(&'a Queue<T>, Vec<Vec<u8>>);

impl<T: Table> Drop for Taken<'_, T> {
    fn drop(&mut self) {
        self.0.lock().release(&self.1);
    }
}
