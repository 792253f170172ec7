//! Tasks beside one another, on whatever runtime the store needs.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use futures::channel::oneshot;
use futures::executor::block_on;
use futures::future::join_all;

/// A task of the suite.
pub type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Starts a task, and returns a future that ends when the task has.
#[derive(Clone)]
pub(super) struct Spawner(Arc<dyn Fn(Task) -> Task + Send + Sync>);

impl Spawner {
    pub(super) fn new(spawn: impl Fn(Task) -> Task + Send + Sync + 'static) -> Self {
        Self(Arc::new(spawn))
    }

    /// Each task on a thread of its own, which needs no runtime.
    pub(super) fn threads() -> Self {
        Self::new(|task| {
            let (end, ended) = oneshot::channel::<()>();
            std::thread::spawn(move || {
                block_on(task);
                _ = end.send(());
            });
            Box::pin(async move { _ = ended.await })
        })
    }

    /// Starts all tasks before it waits for any.
    pub(super) async fn run_all(&self, tasks: Vec<Task>) {
        let started: Vec<Task> = tasks.into_iter().map(|task| (self.0)(task)).collect();
        join_all(started).await;
    }
}

impl fmt::Debug for Spawner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Spawner")
    }
}
