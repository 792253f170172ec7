//! Starts tasks.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;

use futures::channel::oneshot;
use futures::executor::block_on;
use futures::future::join_all;

/// A task of the suite.
pub type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Starts a task and returns a future that ends when the task ends.
#[derive(Clone)]
pub(crate) struct Spawner(Arc<dyn Fn(Task) -> Task + Send + Sync>);

impl Spawner {
    pub(crate) fn new(spawn: impl Fn(Task) -> Task + Send + Sync + 'static) -> Self {
        Self(Arc::new(spawn))
    }

    /// Runs each task on a new thread, which needs no runtime.
    pub(crate) fn threads() -> Self {
        Self::new(|task| {
            let (end, ended) = oneshot::channel::<()>();
            std::thread::spawn(move || {
                block_on(task);
                _ = end.send(());
            });
            Box::pin(async move { _ = ended.await })
        })
    }

    /// Starts a task.
    pub(crate) fn start(&self, task: Task) -> Task {
        (self.0)(task)
    }

    /// Runs `work(task, turn)` for every task, `turns` times each. All tasks start each turn at the same time. Returns the results
    /// in the order of tasks, then of turns.
    ///
    /// # Errors
    /// If a task ended early. States the number of results.
    pub(crate) async fn run_all<T, F>(
        &self,
        (tasks, turns): (usize, usize),
        work: impl Fn(usize, usize) -> F + Clone + Send + Sync + 'static,
    ) -> Result<Vec<Vec<T>>, String>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send,
    {
        let results = Arc::new(Mutex::new(
            (0..tasks).map(|_| Vec::new()).collect::<Vec<Vec<T>>>(),
        ));
        let ready = Arc::new(AtomicUsize::new(0));
        let task = |number| -> Task {
            let (results, ready, work) = (Arc::clone(&results), Arc::clone(&ready), work.clone());
            Box::pin(async move {
                for count in 0..turns {
                    // Without this barrier, the first task would finish before the last one starts.
                    ready.fetch_add(1, Ordering::SeqCst);
                    let all = tasks * (count + 1);
                    // Every task holds a reference, so fewer than all remain if one ended early.
                    let has_lost_one = || count > 0 && Arc::strong_count(&ready) <= tasks;
                    wait_until(|| ready.load(Ordering::SeqCst) >= all || has_lost_one()).await;
                    let result = work(number, count).await;
                    results.lock().unwrap_or_else(PoisonError::into_inner)[number].push(result);
                }
            })
        };
        // Starts all tasks before awaiting any of them.
        let started: Vec<Task> = (0..tasks).map(|number| self.start(task(number))).collect();
        join_all(started).await;
        let results = std::mem::take(&mut *results.lock().unwrap_or_else(PoisonError::into_inner));
        let (got, wanted) = (results.iter().map(Vec::len).sum::<usize>(), tasks * turns);
        if got == wanted {
            return Ok(results);
        }
        Err(format!(
            "{got} of {wanted} turns ended: a task ended early. It panicked, or the store needs the runtime that it was made \
             on; then start the tasks there: `Suite::spawn`"
        ))
    }
}

/// Yields to other tasks and threads until `holds` returns `true`.
async fn wait_until(holds: impl Fn() -> bool) {
    poll_fn(|context| {
        if holds() {
            return Poll::Ready(());
        }
        std::thread::yield_now();
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
