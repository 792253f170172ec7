//! limiter-log over a simulated table, in the same histories.
//!
//! Before each swap, the checker looks for the waiting calls that explain it, in their order. A call may be saved once, returns what was
//! computed from a log that its process loaded, and returns a change only after that is saved.

use std::collections::HashMap;
use std::fmt;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use fastrand::Rng;
use limiter_core::store::{
    Change as Settles, Changed, EntryId, Facts, JointFacts, JointOp, Log, LogKey, Mode, Op,
    Outcome as Did, Settlement, SettlementFacts,
};
use limiter_core::{BoxFuture, Error, ErrorKind, Name, Policy, Timestamp, WindowStore};
use limiter_log::{Change, Loaded, LogStore, New, Table, stored_key};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout};

use crate::history::{Fault, Setting};
use crate::ledger::{Asked, Book, Moment};
use crate::process::{NAMES, place};
use crate::world::EPOCH;

/// What a call does to its logs, and with what it replaces one that it resets.
type Apply = Box<dyn Fn(&mut [Log], &Log, Timestamp) -> Done + Send>;

#[derive(Clone, Default)]
struct Done {
    text: String,
    has_changed: bool,
    notes: Vec<(usize, Note)>,
}

#[derive(Clone, Copy)]
enum Note {
    Admitted(EntryId, u64),
    Settled(EntryId, u64),
    /// From an id, or where the last renewal with the caller's id moved the entry, to an id.
    Renewed(EntryId, Option<EntryId>, EntryId),
    Reset,
}

/// A call that waits for its process's store.
struct Call {
    life: usize,
    logs: Vec<usize>,
    apply: Apply,
    has_ended: bool,
    is_dropped: bool,
    is_saved: bool,
    /// What it may return.
    results: Vec<String>,
}

/// What a process has loaded, and when.
#[derive(Clone)]
struct Load {
    logs: Vec<(usize, Option<Vec<u8>>)>,
    now: Timestamp,
    line: u64,
}

/// When the logs of a swap were loaded, and the calls that change them.
type Explained = (u64, Vec<(usize, Done)>);

/// A server's table, its clock and faults, and the checker.
pub(crate) struct Desk {
    start: Instant,
    speed: f64,
    policies: Vec<Policy>,
    rows: [Option<(Vec<u8>, Timestamp)>; 4],
    books: Vec<Book>,
    calls: Vec<Call>,
    renewed: HashMap<EntryId, EntryId>,
    loads: HashMap<(usize, usize), Load>,
    random: Rng,
    offset: i64,
    last: u64,
    /// Until when messages are lost, late or refused, and a process's are lost.
    lossy: Instant,
    slow: Instant,
    down: Instant,
    cut_off: [Instant; 4],
    pub(crate) saved: u64,
    pub(crate) broken: Vec<String>,
}

#[derive(Clone)]
pub(crate) struct Shared(pub(crate) Arc<Mutex<Desk>>);

impl Shared {
    pub(crate) fn new(setting: &Setting, policies: Vec<Policy>, seed: u64) -> Self {
        let start = Instant::now();
        Self(Arc::new(Mutex::new(Desk {
            start,
            speed: setting.speed,
            policies,
            rows: Default::default(),
            books: vec![Book::default(); 4],
            calls: Vec::new(),
            renewed: HashMap::new(),
            loads: HashMap::new(),
            random: Rng::with_seed(seed),
            offset: 0,
            last: 0,
            lossy: start,
            slow: start,
            down: start,
            cut_off: [start; 4],
            saved: 0,
            broken: Vec::new(),
        })))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Desk> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Desk")
    }
}

impl Desk {
    /// Begins a fault. Most stop the server.
    pub(crate) fn fail(&mut self, fault: Fault, process: usize, length: u64, random: &mut Rng) {
        let end = Instant::now() + Duration::from_millis(length);
        match fault {
            Fault::Loss => self.lossy = end,
            Fault::Delay => self.slow = end,
            Fault::CutOff => self.cut_off[process] = end,
            Fault::ServerClock => {
                let by = random.i64(-2_000_000..2_000_000);
                self.offset += by;
                let line = self.line();
                for (book, policy) in self.books.iter_mut().zip(&self.policies) {
                    book.step(policy, by > 0, line);
                }
            }
            Fault::Pause | Fault::ProcessClock | Fault::Restart | Fault::Flush => {}
            _ => self.down = end,
        }
    }

    /// Advances the clock within tokio's millisecond.
    fn line(&mut self) -> u64 {
        let real = self.start.elapsed().as_micros() as u64;
        self.last = self
            .random
            .u64(self.last.max(real)..=self.last.max(real + 200));
        (self.last as f64 * self.speed) as u64
    }

    fn load(&mut self, logs: &[usize]) -> Load {
        let line = self.line();
        let clock = (EPOCH + line).saturating_add_signed(self.offset);
        let now = Timestamp::from_micros_saturating(clock);
        for row in &mut self.rows {
            row.take_if(|(_, expires_at)| *expires_at <= now && self.random.bool());
        }
        let row = |log: &usize| self.rows[*log].as_ref().map(|(bytes, _)| bytes.clone());
        let logs = logs.iter().map(|log| (*log, row(log))).collect();
        Load { logs, now, line }
    }

    /// Notes what a process has loaded. A waiting call that changes nothing may return what it sees there.
    fn note(&mut self, life: usize, load: &Load) {
        let start = load.start(&[]);
        let mut resets = Vec::new();
        for call in self.calls.iter_mut().filter(|call| call.is_in(life, load)) {
            let done = (call.apply)(&mut load.of(call, &start), &Log::new(), load.now);
            call.results
                .extend((!done.has_changed).then_some(done.text));
        }
        // Nothing is saved if a reset removes what the calls before it appended to an empty log.
        for (place, (log, _)) in load
            .logs
            .iter()
            .enumerate()
            .filter(|(_, row)| row.1.is_none())
        {
            let mut own = vec![start[place].clone()];
            let mut undone = Vec::new();
            for (number, call) in self.calls.iter().enumerate() {
                if call.is_in(life, load) && call.logs == [*log] {
                    undone.push((number, (call.apply)(&mut own, &Log::new(), load.now).text));
                }
                if own[0].is_empty() {
                    resets.append(&mut undone);
                }
            }
        }
        for (number, text) in resets {
            self.calls[number].results.push(text);
        }
        for (log, _) in &load.logs {
            self.loads.insert((life, *log), load.clone());
        }
    }

    /// Returns the calls that explain a swap, and what they do.
    fn explain(&mut self, life: usize, changes: &[(usize, Change)]) -> Explained {
        let load = self.loads[&(life, changes[0].0)].clone();
        let numbers = 0..self.calls.len();
        let waiting: Vec<_> = numbers
            .filter(|i| self.calls[*i].is_in(life, &load))
            .collect();
        let mut search = Search {
            calls: &self.calls,
            load: &load,
            changes,
            left: 20_000,
        };
        let start = load.start(changes);
        let Some(found) = search.run(&waiting, start, &[], Vec::new()) else {
            let reason = match search.left {
                0 => "the search for the calls took too long",
                _ => "no waiting call asked for it",
            };
            let text = format!("life {life} saves {changes:?}: {reason}");
            self.broken.push(text);
            return (load.line, Vec::new());
        };
        for (number, done) in found.iter().filter(|(_, done)| !done.has_changed) {
            self.calls[*number].results.push(done.text.clone());
        }
        let changing = found.into_iter().filter(|(_, done)| done.has_changed);
        (load.line, changing.collect())
    }

    fn swap(&mut self, changes: Vec<(usize, Change)>, (line, found): Explained) -> bool {
        let row = |log: usize| self.rows[log].as_ref().map(|(bytes, _)| bytes);
        if changes
            .iter()
            .any(|(log, change)| row(*log) != change.old.as_ref())
        {
            return false;
        }
        for (log, change) in changes {
            match change.new {
                New::Unchanged => {}
                New::Removed => self.rows[log] = None,
                New::Saved {
                    log: bytes,
                    expires_at,
                } => self.rows[log] = Some((bytes, expires_at)),
            }
        }
        for (number, done) in found {
            self.saved += 1;
            let call = &mut self.calls[number];
            call.results.push(done.text);
            if mem::replace(&mut call.is_saved, true) {
                self.broken.push(format!("call {number} counts twice"));
            }
            for (log, note) in done.notes {
                let (book, policy) = (&mut self.books[log], &self.policies[log]);
                let now = Moment { clock: 0, line };
                match note {
                    Note::Admitted(id, cost) => {
                        self.broken.extend(book.admit(policy, id, cost, now).err());
                    }
                    Note::Settled(id, cost) => book.lower(id, cost, id),
                    Note::Renewed(named, id, after) => {
                        let moved = id.and_then(|id| self.renewed.insert(id, after));
                        book.lower(moved.unwrap_or(named), u64::MAX, after);
                    }
                    Note::Reset => book.reset(policy, line),
                }
            }
        }
        true
    }

    /// Checks what a call returned: what it changed is saved, and otherwise it saw what its process loaded.
    fn end(&mut self, number: usize, text: Option<String>) {
        let call = &mut self.calls[number];
        call.has_ended = true;
        if let Some(text) = text.filter(|text| !call.results.contains(text)) {
            let expected = call.results.last();
            let text = format!("call {number} returns {text}, expected {expected:?}");
            self.broken.push(text);
        }
    }
}

impl Call {
    /// Whether it may be in a batch of a store that has loaded these logs.
    fn is_in(&self, life: usize, load: &Load) -> bool {
        let holds = |log: &usize| load.logs.iter().any(|(loaded, _)| loaded == log);
        self.life == life && !self.has_ended && !self.is_saved && self.logs.iter().all(holds)
    }
}

impl Load {
    /// Returns the logs. Those that begin with a swap get the ids that it saves.
    fn start(&self, changes: &[(usize, Change)]) -> Vec<Log> {
        let log = |(log, bytes): &(usize, Option<Vec<u8>>)| match bytes {
            Some(bytes) => Log::from_bytes(bytes).expect("a log"),
            None => empty(*log, changes),
        };
        self.logs.iter().map(log).collect()
    }

    fn of(&self, call: &Call, logs: &[Log]) -> Vec<Log> {
        let place = |log: &usize| self.logs.iter().position(|(loaded, _)| loaded == log);
        call.logs
            .iter()
            .filter_map(place)
            .map(|i| logs[i].clone())
            .collect()
    }
}

/// Returns an empty log that gives the ids that a swap saves.
fn empty(log: usize, changes: &[(usize, Change)]) -> Log {
    let saved = changes
        .iter()
        .find_map(|(changed, change)| match &change.new {
            New::Saved { log: bytes, .. } if *changed == log => Some(&bytes[..9]),
            _ => None,
        });
    saved.map_or_else(Log::new, |ids| {
        Log::from_bytes(&[ids, &[0; 3]].concat()).expect("an empty log")
    })
}

/// A search for the calls of a swap: for each log, the first of those that wait. One whose caller is gone may have left.
struct Search<'a> {
    calls: &'a [Call],
    load: &'a Load,
    changes: &'a [(usize, Change)],
    left: u32,
}

impl Search<'_> {
    fn run(
        &mut self,
        waiting: &[usize],
        logs: Vec<Log>,
        stopped: &[usize],
        done: Vec<(usize, Done)>,
    ) -> Option<Vec<(usize, Done)>> {
        self.left = self.left.saturating_sub(1);
        let Some((number, rest)) = waiting.split_first().filter(|_| self.left > 0) else {
            return (self.left > 0 && self.is_saved(&logs)).then_some(done);
        };
        let call = &self.calls[*number];
        if !call.logs.iter().any(|log| stopped.contains(log)) {
            let mut own = self.load.of(call, &logs);
            let mut more = done.clone();
            more.push((
                *number,
                (call.apply)(&mut own, &self.empty(call), self.load.now),
            ));
            let mut after = logs.clone();
            for (log, own) in call.logs.iter().zip(own) {
                let place = self
                    .load
                    .logs
                    .iter()
                    .position(|(loaded, _)| loaded == log)?;
                after[place] = own;
            }
            let found = self.run(rest, after, stopped, more);
            if found.is_some() {
                return found;
            }
        }
        let own: &[usize] = if call.is_dropped { &[] } else { &call.logs };
        self.run(rest, logs, &[stopped, own].concat(), done)
    }

    fn empty(&self, call: &Call) -> Log {
        empty(call.logs[0], self.changes)
    }

    fn is_saved(&self, logs: &[Log]) -> bool {
        self.load.logs.iter().zip(logs).all(|((log, old), now)| {
            let change = self.changes.iter().find(|(changed, _)| changed == log);
            match change.map(|(_, change)| &change.new) {
                Some(New::Saved { log, .. }) => *log == now.to_bytes(),
                Some(New::Removed) => now.is_empty(),
                _ => old
                    .as_ref()
                    .map_or(now.is_empty(), |old| *old == now.to_bytes()),
            }
        })
    }
}

/// A process's connection.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    pub(crate) desk: Shared,
    pub(crate) life: usize,
    pub(crate) process: usize,
}

impl Link {
    /// Sends a request, which may be lost, or late, or its reply.
    async fn send<T: Send + 'static>(
        &self,
        run: impl FnOnce(&mut Desk) -> T + Send + 'static,
    ) -> Result<T, Error> {
        let now = Instant::now();
        let ([there, back], fate) = {
            let desk = &mut *self.desk.lock();
            let longest = if now < desk.slow { 400 } else { 3 };
            let mut trip = || Duration::from_millis(desk.random.u64(1..=longest));
            let trips = [trip(), trip()];
            let fate = match desk.random.u8(..8) {
                fate if now < desk.cut_off[self.process] => fate % 2,
                fate if now < desk.lossy => fate,
                _ => 7,
            };
            (trips, fate)
        };
        let desk = self.desk.clone();
        let (reply, received) = oneshot::channel();
        tokio::spawn(async move {
            sleep(there * if fate == 2 { 100 } else { 1 }).await;
            let is_down = fate == 0 || Instant::now() < desk.lock().down;
            let done = (!is_down).then(|| run(&mut desk.lock()));
            sleep(back).await;
            _ = reply.send(done.filter(|_| fate > 1));
        });
        let received = timeout(Duration::from_millis(250), received).await;
        match received {
            Ok(Ok(Some(done))) => Ok(done),
            _ => Err(Error::new(ErrorKind::Timeout, "no reply")),
        }
    }
}

#[async_trait]
impl Table for Link {
    async fn load(&self, keys: &[Vec<u8>]) -> Result<Loaded, Error> {
        let logs: Vec<usize> = keys.iter().map(|key| log_of(key)).collect();
        let load = self.send(move |desk| desk.load(&logs)).await?;
        self.desk.lock().note(self.life, &load);
        let now = load.now;
        let logs = load.logs.into_iter().map(|(_, bytes)| bytes).collect();
        Ok(Loaded { logs, now })
    }

    async fn swap(&self, changes: Vec<Change>) -> Result<bool, Error> {
        let changes: Vec<_> = changes
            .into_iter()
            .map(|change| (log_of(&change.key), change))
            .collect();
        let found = self.desk.lock().explain(self.life, &changes);
        self.send(move |desk| desk.swap(changes, found)).await
    }

    fn spawn(&self, worker: BoxFuture<'static, ()>) {
        tokio::spawn(worker);
    }

    fn takes_several(&self) -> bool {
        true
    }
}

/// Returns the number of the log with this key.
fn log_of(key: &[u8]) -> usize {
    let is = |log: &usize| {
        stored_key(LogKey::new(
            Name::new(NAMES[log / 2]),
            &(log % 2).to_string(),
        )) == key
    };
    (0..4).find(is).expect("a known log")
}

/// A process's store, whose calls are noted and checked.
#[derive(Clone, Debug)]
pub(crate) struct Watched {
    store: Arc<LogStore<Link>>,
    link: Link,
}

/// Notes a call that is dropped.
struct Guard<'a>(&'a Shared, usize);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        let call = &mut self.0.lock().calls[self.1];
        call.is_dropped = !call.has_ended;
    }
}

/// Returns a result without the part of its ids that is random.
fn shown(result: &impl fmt::Debug) -> String {
    let text = format!("{result:?}");
    let parts = text.split("high: ").enumerate().map(|(i, part)| match i {
        0 => part,
        _ => part.trim_start_matches(|c: char| c.is_ascii_digit()),
    });
    parts.collect()
}

fn is_appended(facts: &Facts) -> bool {
    matches!(facts.outcome, Did::Appended(_))
}

impl Watched {
    pub(crate) fn new(link: Link) -> Self {
        let store = Arc::new(LogStore::new(link.clone()));
        Self { store, link }
    }

    async fn call<R>(
        &self,
        logs: Vec<usize>,
        apply: impl Fn(&mut [Log], &Log, Timestamp) -> Done + Send + 'static,
        call: impl Future<Output = Result<R, Error>>,
        show: impl FnOnce(&R) -> String,
    ) -> Result<R, Error> {
        let desk = &self.link.desk;
        let number = {
            let mut desk = desk.lock();
            desk.calls.push(Call {
                life: self.link.life,
                logs,
                apply: Box::new(apply),
                has_ended: false,
                is_dropped: false,
                is_saved: false,
                results: Vec::new(),
            });
            desk.calls.len() - 1
        };
        let _guard = Guard(desk, number);
        let result = call.await;
        desk.lock().end(number, result.as_ref().ok().map(show));
        result
    }
}

#[async_trait]
impl WindowStore for Watched {
    async fn apply(&self, op: Op<'_>) -> Result<Facts, Error> {
        let none = || Error::new(ErrorKind::Inconsistent, "no facts");
        let facts = self.apply_all(&[op.into()]).await?;
        facts.and_then(|mut facts| facts.pop()).ok_or_else(none)?
    }

    async fn apply_all(&self, ops: &[JointOp<'_>]) -> Result<Option<JointFacts>, Error> {
        let logs = ops.iter().map(|joint| place(joint.op.log)).collect();
        let own = ops.iter().map(|joint| {
            let asked = Asked::of(place(joint.op.log), &joint.op);
            (asked, joint.op.id, joint.is_advisory, joint.keeps_charge)
        });
        let own: Vec<_> = own.collect();
        let apply = move |logs: &mut [Log], _: &Log, now| {
            let joint = own.iter().map(|(asked, id, is_advisory, keeps_charge)| {
                let mut op = asked.op();
                op.id = *id;
                JointOp {
                    op,
                    is_advisory: *is_advisory,
                    keeps_charge: *keeps_charge,
                }
            });
            let facts = Log::apply_all(logs, &joint.collect::<Vec<_>>(), now);
            let note = |((asked, ..), facts): (&(Asked, _, _, _), &Facts)| match facts.outcome {
                Did::Appended(entry)
                    if facts.admitted
                        && asked.mode == Mode::Acquire
                        && asked.limiter_policy.is_none() =>
                {
                    Some((asked.log, Note::Admitted(entry.id, asked.cost)))
                }
                _ => None,
            };
            Done {
                has_changed: facts.iter().any(is_appended),
                notes: own.iter().zip(&facts).filter_map(note).collect(),
                text: shown(&facts),
            }
        };
        let call = async {
            match ops {
                [joint] => Ok(Some(vec![Ok(self.store.apply(joint.op).await?)])),
                _ => self.store.apply_all(ops).await,
            }
        };
        let show = |facts: &Option<JointFacts>| {
            let facts: Vec<_> = facts.iter().flatten().flatten().collect();
            shown(&facts)
        };
        self.call(logs, apply, call, show).await
    }

    async fn settle(&self, settlement: Settlement<'_>) -> Result<SettlementFacts, Error> {
        let log = place(settlement.log);
        let asked = Asked::of(log, &settlement.to_record(1));
        let Settlement {
            receipt, change, ..
        } = settlement;
        let apply = move |logs: &mut [Log], _: &Log, now| {
            let op = asked.op();
            let mut own = Settlement::new(op.log, op.policy, receipt, 0);
            (own.change, own.at, own.limiter_policy) = (change, asked.at, op.limiter_policy);
            let before = logs[0].to_bytes();
            let facts = logs[0].settle(&own, now);
            let note = |changed: &Changed| match change {
                Settles::Cost(cost) => (log, Note::Settled(receipt.entry(), cost)),
                Settles::Renew { id } => {
                    (log, Note::Renewed(receipt.entry(), id, changed.entry.id))
                }
            };
            Done {
                text: shown(&facts),
                has_changed: logs[0].to_bytes() != before,
                notes: facts.changed.iter().map(note).collect(),
            }
        };
        let show = |facts: &SettlementFacts| shown(facts);
        self.call(vec![log], apply, self.store.settle(settlement), show)
            .await
    }

    async fn reset(&self, log: LogKey<'_>) -> Result<bool, Error> {
        let number = place(log);
        let apply = move |logs: &mut [Log], empty: &Log, _| {
            let has_changed = !logs[0].is_empty();
            logs[0] = empty.clone();
            Done {
                text: has_changed.to_string(),
                has_changed,
                notes: vec![(number, Note::Reset)],
            }
        };
        let show = |removed: &bool| removed.to_string();
        self.call(vec![number], apply, self.store.reset(log), show)
            .await
    }

    fn identity(&self) -> Option<usize> {
        self.store.identity()
    }
}
