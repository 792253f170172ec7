//! The task that sends what is carried over.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use limiter_core::store::{Facts, LogKey, Op};
use limiter_core::{Error, Policy, WindowStore, policy};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use super::carried::{Carried, LogId};
use crate::outages::outage::{Node, OutageLog};

const MAX_LOGS: usize = 100_000;
const LOGS_AT_A_TIME: usize = 64;
/// How long a node rests after an error, and how soon the sweep looks for more logs.
const PAUSE: Duration = Duration::from_millis(100);
/// A peek with it reads a store's clock, past a denial cache.
static CLOCK: Policy = policy!("1/1us");

pub(super) struct Sweep<P> {
    pub(super) primary: P,
    pub(super) outages: OutageLog,
    state: Mutex<State>,
    /// The number of carried logs, so that a healthy call takes no lock.
    waiting: AtomicUsize,
}

struct State {
    carried: Carried,
    task: Option<JoinHandle<()>>,
}

impl<P> Sweep<P> {
    pub(super) fn new(primary: P) -> Self {
        let state = Mutex::new(State { carried: Carried::new(MAX_LOGS), task: None });
        Self { primary, outages: OutageLog::default(), state, waiting: AtomicUsize::new(0) }
    }

    /// Returns the number of logs of which something is carried.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Acquire)
    }

    /// Calls `change` with the lock of all local logs.
    pub(super) fn locked<T>(&self, change: impl FnOnce(&mut Carried) -> T) -> T {
        self.with_state(|state| change(&mut state.carried))
    }

    fn with_state<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let result = change(&mut state);
        self.waiting.store(state.carried.len(), Ordering::Release);
        result
    }

    /// Ends the task if nothing waits. Returns whether it did.
    fn end(&self) -> bool {
        self.with_state(|state| {
            let is_over = state.carried.len() == 0;
            if is_over {
                state.task = None;
            }
            is_over
        })
    }
}

impl<P: WindowStore> Sweep<P> {
    /// Starts the task if something waits, no task runs, and the caller is in a runtime.
    pub(super) fn start(self: &Arc<Self>) {
        if self.waiting() == 0 {
            return;
        }
        self.with_state(|state| {
            // A runtime that ended has dropped its task.
            if state.task.as_ref().is_none_or(JoinHandle::is_finished)
                && let Ok(runtime) = Handle::try_current()
            {
                state.carried.put_all_back();
                state.task = Some(runtime.spawn(Arc::clone(self).run()));
            }
        });
    }

    /// Sends until nothing waits, and then waits for the end of the outage.
    async fn run(self: Arc<Self>) {
        let mut sending = FuturesUnordered::new();
        let mut paused = HashMap::new();
        // The cells go with the last clone.
        while Arc::strong_count(&self) > 1 {
            paused.retain(|_, until| *until > Instant::now());
            let must_wait = |log: LogKey<'_>| !paused.is_empty() && paused.contains_key(&self.primary.place(log).node);
            while sending.len() < LOGS_AT_A_TIME
                && let Some((number, log)) = self.locked(|carried| carried.take_next(must_wait))
            {
                sending.push(self.send(number, log));
            }
            match timeout(PAUSE, sending.next()).await {
                Ok(Some(Err(node))) => drop(paused.insert(node, Instant::now() + PAUSE)),
                // Another log may wait.
                Ok(Some(Ok(()))) | Err(_) => {}
                Ok(None) => {
                    if let Some(left) = self.outages.ends_in() {
                        sleep(left.min(PAUSE)).await;
                        self.outages.end();
                    } else if self.end() {
                        return;
                    } else {
                        sleep(PAUSE).await;
                    }
                }
            }
        }
    }

    /// Sends the cells of a log until none is left, or a call fails: it then returns the node.
    async fn send(&self, number: u64, log: LogId) -> Result<(), Node> {
        let sent = loop {
            match self.send_oldest(number, log.key()).await {
                Ok(true) => {}
                Ok(false) => break Ok(()),
                Err(_) => break Err(self.primary.place(log.key()).node),
            }
        };
        self.locked(|carried| carried.put_back(number));
        sent
    }

    /// Sends the oldest cell of a log. Returns `false` if there is none, or it has changed meanwhile.
    async fn send_oldest(&self, number: u64, log: LogKey<'_>) -> Result<bool, Error> {
        // Before the primary store's clock is read: an entry may count for longer than it should, but not shorter.
        let asked = Instant::now();
        let Some(time) = self.locked(|carried| carried.oldest(number, asked)) else { return Ok(false) };
        let mut peek = Op::peek(log.key, &CLOCK).with_name(log.name);
        peek.at = time.at();
        let now = self.ask(peek).await?.log.now;
        let record = self.locked(|carried| carried.freeze(number, time, asked, now));
        let Some(record) = record else { return Ok(false) };
        let op = Op::record(log.key, &record.policy).with_name(log.name).with_cost(record.cost);
        self.ask(op.with_id(record.id).at(record.at)).await?;
        self.locked(|carried| carried.confirm(number, record.id));
        Ok(true)
    }

    async fn ask(&self, op: Op<'_>) -> Result<Facts, Error> {
        let answer = self.primary.apply(op).await;
        self.outages.note_sweep(&answer, || self.primary.place(op.log).node);
        answer
    }
}
