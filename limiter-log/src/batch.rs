//! Combining: the calls of one process that wait for one log are applied to one loaded log, in order, and saved once.

use std::collections::{BTreeSet, HashMap};
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared, WeakShared};
use limiter_core::store::Log;
use limiter_core::{Error, ErrorKind};

use crate::call::{Call, Held};
use crate::table::{Change, Loaded, New, Table};

/// How often a batch is applied to a newly loaded log after a lost comparison. Each lost one is a change by another process.
const ATTEMPTS: usize = 100;
/// How many calls on several logs are one batch. One changed log makes the whole batch lose.
const MOST_JOINT: usize = 32;

/// A batch runs while one of its callers polls it, so no runtime is needed. It is dropped with its last caller.
type Batch = Shared<BoxFuture<'static, ()>>;

/// The calls of a batch; `None` once it has begun.
type Calls = Arc<Mutex<Option<Vec<Arc<dyn Call>>>>>;

/// The newest batch of each lane. Batches of one lane run one after another.
///
/// Calls on one log have the lane of its key, and all calls on several logs the lane with the empty key.
#[derive(Default)]
pub(crate) struct Lanes(Arc<Mutex<HashMap<Vec<u8>, Lane>>>);

struct Lane {
    batch: WeakShared<BoxFuture<'static, ()>>,
    calls: Calls,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Lanes {
    /// Adds a call to its lane's next batch. It has a result when the batch has ended.
    pub(crate) fn join<T: Table>(&self, call: Arc<dyn Call>, table: &Arc<T>) -> Batch {
        let (lane, most) = match call.keys() {
            [key] => (key.clone(), usize::MAX),
            _ => (Vec::new(), MOST_JOINT),
        };
        let mut lanes = lock(&self.0);
        // A batch must not be dropped here, because that takes the lock. It is returned or becomes part of the next one.
        let newest = lanes.get(&lane);
        let newest = newest.and_then(|lane| Some((lane.batch.upgrade()?, &lane.calls)));
        if let Some((batch, calls)) = &newest
            && let Some(open) = lock(calls).as_mut().filter(|open| open.len() < most)
        {
            open.push(call);
            return batch.clone();
        }
        let previous = newest.map(|(batch, _)| batch);
        let calls = Arc::new(Mutex::new(Some(vec![call])));
        let own = Own {
            lanes: Arc::clone(&self.0),
            lane: lane.clone(),
            calls: Arc::clone(&calls),
        };
        let table = Arc::clone(table);
        let batch = async move {
            if let Some(previous) = previous {
                previous.await;
            }
            let calls = lock(&own.calls).take().unwrap_or_default();
            if let Err(error) = run(&*table, &calls).await {
                let text = error.to_string();
                calls.iter().for_each(|call| call.fail(error.kind(), &text));
            }
        };
        let batch = batch.boxed().shared();
        if let Some(weak) = batch.downgrade() {
            lanes.insert(lane, Lane { batch: weak, calls });
        }
        batch
    }
}

/// Belongs to a batch. Removes the lane when the newest batch has ended or is dropped.
struct Own {
    lanes: Arc<Mutex<HashMap<Vec<u8>, Lane>>>,
    lane: Vec<u8>,
    calls: Calls,
}

impl Drop for Own {
    fn drop(&mut self) {
        let mut lanes = lock(&self.lanes);
        let newest = lanes.get(&self.lane);
        if newest.is_some_and(|lane| Arc::ptr_eq(&lane.calls, &self.calls)) {
            lanes.remove(&self.lane);
        }
    }
}

/// Applies calls to the logs of all their keys until none has changed meanwhile.
async fn run(table: &impl Table, calls: &[Arc<dyn Call>]) -> Result<(), Error> {
    let keys: BTreeSet<&Vec<u8>> = calls.iter().flat_map(|call| call.keys()).collect();
    let keys: Vec<Vec<u8>> = keys.into_iter().cloned().collect();
    for _ in 0..ATTEMPTS {
        let Loaded { logs: old, now } = table.load(&keys).await?;
        if old.len() != keys.len() {
            let text = format!(
                "the table returned {} logs of {} keys",
                old.len(),
                keys.len()
            );
            return Err(Error::new(ErrorKind::Inconsistent, text));
        }
        let mut held: Vec<Held> = old.iter().map(|old| read(old.as_deref())).collect();
        // A call that changes one log depends on all of its logs.
        let mut compared = vec![false; keys.len()];
        for call in calls {
            let own = call.keys().iter();
            let own = own.filter_map(|key| keys.binary_search(key).ok());
            let own: Vec<usize> = own.collect();
            let take = |i: &usize| mem::replace(&mut held[*i], Err(String::new()));
            let mut logs: Vec<Held> = own.iter().map(take).collect();
            let changed = call.run(&mut logs, now);
            for (i, log) in own.into_iter().zip(logs) {
                held[i] = log;
                compared[i] |= changed;
            }
        }
        let all = keys.iter().zip(old).zip(&held).zip(compared);
        let changes: Vec<Change> = all
            .filter(|(_, is_compared)| *is_compared)
            .map(|(((key, old), held), _)| change(key.clone(), old, held))
            .collect();
        let is_same = changes.iter().all(|change| change.new == New::Unchanged);
        if is_same || table.swap(changes).await? {
            return Ok(());
        }
    }
    let text = format!(
        "other processes changed the log during each of {ATTEMPTS} attempts: give the limit a lease, or share the key among fewer processes"
    );
    Err(Error::new(ErrorKind::Unavailable, text))
}

pub(crate) fn read(bytes: Option<&[u8]>) -> Held {
    let read = bytes.map_or_else(|| Ok(Log::new()), Log::from_bytes);
    read.map_err(|error| format!("{error} (reset removes it)"))
}

fn change(key: Vec<u8>, old: Option<Vec<u8>>, held: &Held) -> Change {
    let new = match held {
        Err(_) => New::Unchanged,
        Ok(log) if log.is_empty() && old.is_none() => New::Unchanged,
        Ok(log) if log.is_empty() => New::Removed,
        Ok(log) => match log.to_bytes() {
            log if Some(&log) == old.as_ref() => New::Unchanged,
            bytes => New::Saved {
                log: bytes,
                expires_at: log.expires_at().unwrap_or_default(),
            },
        },
    };
    Change { key, old, new }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::{Failed, Pending};
    use crate::table::async_trait;

    #[derive(Debug)]
    struct Hangs;

    #[async_trait]
    impl Table for Hangs {
        async fn load(&self, _: &[Vec<u8>]) -> Result<Loaded, Error> {
            std::future::pending().await
        }

        async fn swap(&self, _: Vec<Change>) -> Result<bool, Error> {
            std::future::pending().await
        }
    }

    #[test]
    fn dropped_calls_leave_no_lane() {
        let (lanes, table) = (Lanes::default(), Arc::new(Hangs));
        let join = |key: u8| {
            let work = |_: &mut [Held], _| -> Result<((), bool), Failed> { Ok(((), false)) };
            lanes.join(Arc::new(Pending::new(vec![vec![key]], work)), &table)
        };
        let mut batches = Vec::from_iter([1, 1, 2, 2].map(join));
        batches
            .iter_mut()
            .for_each(|batch| _ = batch.now_or_never());
        batches.extend([1, 2, 2, 3].map(join));
        assert_eq!(lock(&lanes.0).len(), 3);
        while batches.pop().is_some() {}
        assert_eq!((lock(&lanes.0).len(), Arc::strong_count(&table)), (0, 1));
    }
}
