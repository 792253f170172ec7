//! Many tasks on one key.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use limiter_core::store::{LogKey, Op, Settlement};
use limiter_core::{Decision, Error, Limit, Name, Policy, Receipt, Timestamp, WindowStore};

use super::replay::by_facts;
use super::spawn::{Spawner, Task};
use super::strategy::{START, limit, policy};

/// How many tasks there are, and how many operations each makes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Crowd {
    pub(super) tasks: usize,
    pub(super) tries: usize,
}

/// What every task needs.
struct Stage<S: ?Sized> {
    store: Arc<S>,
    policy: Policy,
    key: Vec<u8>,
    clock: AtomicU64,
    /// How far the clock moves at each reading, in microseconds.
    tick: u64,
}

impl<S: WindowStore + ?Sized> Stage<S> {
    fn at(&self) -> Timestamp {
        Timestamp::from_micros_saturating(self.clock.fetch_add(self.tick, Ordering::Relaxed))
    }

    async fn acquire(&self, cost: u64, id: Option<u128>) -> Result<Decision, Error> {
        let mut op = Op::acquire(&self.key, &self.policy).with_cost(cost).at(self.at());
        op.id = id.map(Into::into);
        match self.store.decide_at_once(op) {
            Some(decision) => decision,
            None => by_facts(&*self.store, op).await,
        }
    }

    fn log(&self) -> LogKey<'_> {
        LogKey::new(Name::default(), &self.key)
    }
}

/// The results of all tasks, or why there are not as many as there must be.
type Results<T> = Result<Vec<T>, String>;

pub(super) struct Contention<'a, S: ?Sized> {
    pub(super) store: &'a Arc<S>,
    pub(super) spawner: &'a Spawner,
    pub(super) crowd: Crowd,
    pub(super) new_key: &'a (dyn Fn() -> Vec<u8> + Sync),
}

impl<S: WindowStore + ?Sized> Contention<'_, S> {
    /// Runs everything once; returns how many operations that were.
    pub(super) async fn run(&self) -> Result<u64, String> {
        let total = (self.crowd.tasks * self.crowd.tries) as u64;
        let max = (total / 2).max(1);
        let mut operations = 0;
        for (cost, attempts) in [(1, false), (3, false), (1, true)] {
            operations += self.frozen(limit(max.max(cost), 1_000), cost, attempts).await?;
        }
        operations += self.running(&[limit(5, 20)], 1).await?;
        operations += self.running(&[limit(5, 20), limit(12, 100)], 2).await?;
        operations += self.same_id().await?;
        operations += self.same_receipt().await?;
        Ok(operations)
    }

    fn stage(&self, policy: Policy, tick: u64) -> Arc<Stage<S>> {
        let clock = AtomicU64::new(START);
        Arc::new(Stage { store: Arc::clone(self.store), policy, key: (self.new_key)(), clock, tick })
    }

    async fn clear(&self, stage: &Stage<S>) -> Result<(), String> {
        let there_was_one = self.store.reset(stage.log()).await.map_err(|e| format!("reset failed: {e:?}"))?;
        if there_was_one { Ok(()) } else { Err("reset found no log after many operations".to_owned()) }
    }

    /// Runs `work` in every task, as often as the crowd tries.
    async fn crowd<T, F>(&self, tries: usize, work: impl Fn() -> F + Clone + Send + Sync + 'static) -> Results<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Error>> + Send,
    {
        let results = Arc::new(Mutex::new(Vec::new()));
        let task = |_| -> Task {
            let (results, work) = (Arc::clone(&results), work.clone());
            Box::pin(async move {
                for _ in 0..tries {
                    let result = work().await;
                    results.lock().unwrap_or_else(PoisonError::into_inner).push(result);
                }
            })
        };
        self.spawner.run_all((0..self.crowd.tasks).map(task).collect()).await;
        let results = std::mem::take(&mut *results.lock().unwrap_or_else(PoisonError::into_inner));
        let (got, wanted) = (results.len(), self.crowd.tasks * tries);
        if got != wanted {
            return Err(format!(
                "{got} of {wanted} operations were made: a task ended early. If the store needs the runtime that it was \
                 made on, start the tasks there: `Suite::spawn`"
            ));
        }
        results.into_iter().collect::<Result<_, _>>().map_err(|e| format!("an operation failed: {e:?}"))
    }

    /// Frozen time: exactly as much is admitted as fits, and each admitted operation saw another usage.
    async fn frozen(&self, limit: Limit, cost: u64, attempts: bool) -> Result<u64, String> {
        let stage = self.stage(policy(&[limit], attempts), 0);
        let worker = Arc::clone(&stage);
        let work = move || {
            let stage = Arc::clone(&worker);
            async move { stage.acquire(cost, None).await }
        };
        let decisions = self.crowd(self.crowd.tries, work).await?;
        let tried = decisions.len() as u64;
        let fits = (limit.max() / cost).min(tried);
        let mut used: Vec<u64> = decisions.iter().filter(|d| d.allowed()).map(Decision::used).collect();
        used.sort_unstable();
        let expected: Vec<u64> = (1..=fits).map(|n| n * cost).collect();
        if used != expected {
            let what = if used.len() as u64 == fits { "which usage each saw" } else { "how many" };
            return Err(format!(
                "{} tasks took {cost} of {limit} each, {tried} times in all, at one instant: {} were admitted, expected \
                 {fits}; {what} is wrong: {used:?}",
                self.crowd.tasks,
                used.len(),
            ));
        }
        self.clear(&stage).await?;
        Ok(tried)
    }

    /// Running time: no window ever holds more than its maximum, counted from the outside.
    async fn running(&self, limits: &[Limit], cost: u64) -> Result<u64, String> {
        let stage = self.stage(policy(limits, false), 1);
        let worker = Arc::clone(&stage);
        let work = move || {
            let stage = Arc::clone(&worker);
            async move { stage.acquire(cost, None).await }
        };
        let decisions = self.crowd(self.crowd.tries, work).await?;
        let mut admitted: Vec<u64> = decisions.iter().filter(|d| d.allowed()).map(|d| d.at().as_micros()).collect();
        admitted.sort_unstable();
        for limit in limits {
            let window = limit.window().as_micros();
            for (i, &end) in admitted.iter().enumerate() {
                let held = admitted[..=i].iter().filter(|&&at| end - at < window).count() as u64 * cost;
                if held > limit.max() {
                    return Err(format!("the window of {limit} that ends at {end} holds {held}"));
                }
            }
        }
        // Whoever came first found an empty log.
        if admitted.is_empty() {
            return Err("nothing was admitted on a new key".to_owned());
        }
        self.clear(&stage).await?;
        Ok(decisions.len() as u64)
    }

    /// One operation, repeated by everybody under one id, counts once.
    async fn same_id(&self) -> Result<u64, String> {
        let stage = self.stage(policy(&[limit(self.crowd.tasks as u64 + 1, 1_000)], false), 0);
        let worker = Arc::clone(&stage);
        let work = move || {
            let stage = Arc::clone(&worker);
            async move { stage.acquire(1, Some(7)).await }
        };
        let decisions = self.crowd(1, work).await?;
        if let Some(wrong) = decisions.iter().find(|d| !d.allowed() || d.used() != 1 || d.receipt().is_none()) {
            return Err(format!("one acquire repeated under one id by many tasks at once: {wrong:?}"));
        }
        self.clear(&stage).await?;
        Ok(decisions.len() as u64)
    }

    /// One receipt, refunded by everybody, is refunded once.
    async fn same_receipt(&self) -> Result<u64, String> {
        let stage = self.stage(policy(&[limit(9, 1_000)], false), 0);
        let failed = |e: Error| format!("an acquire failed: {e:?}");
        _ = stage.acquire(2, None).await.map_err(failed)?;
        let decision = stage.acquire(3, None).await.map_err(failed)?;
        let receipt: Receipt = decision.receipt().ok_or("an admitted acquire gave no receipt")?;
        let worker = Arc::clone(&stage);
        let work = move || {
            let stage = Arc::clone(&worker);
            async move {
                let settlement = Settlement::new(stage.log(), &stage.policy, receipt, 0).at(stage.at());
                Ok(stage.store.settle(settlement).await?.applied)
            }
        };
        let refunded = self.crowd(1, work).await?;
        let times = refunded.iter().filter(|&&refunded| refunded).count();
        let used = stage.acquire(1, None).await.map_err(failed)?.used();
        if (times, used) != (1, 3) {
            return Err(format!("a receipt was refunded {times} times at once, and {used} are used, expected 1 and 3"));
        }
        self.clear(&stage).await?;
        Ok(refunded.len() as u64 + 3)
    }
}
