//! limiter-log over a simulated table, in the same world.
//!
//! After each swap, the books note how the row has changed. What a call returns must be in a row that was saved, or follow from what
//! its process loaded.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use fastrand::Rng;
use limiter_core::store::{
    self, Change as Settles, Facts, JointFacts, JointOp, Log, LogKey, Mode, Op, Outcome,
    Settlement, SettlementFacts, decide,
};
use limiter_core::{BoxFuture, Error, ErrorKind, Timestamp, WindowStore};
use limiter_log::{Change, Loaded, LogStore, New, Table, stored_key};

use crate::ledger::Moment;
use crate::ledger::list::{Entry, List, seen};
use crate::ledger::wire::Wire;
use crate::network::Link;
use crate::world::{CALL, World};

/// When a process loaded each log last.
type Loads = [Moment; 4];

/// Returns the log that a row has.
fn read(bytes: Option<&Vec<u8>>) -> List {
    let Some(bytes) = bytes else {
        return List::default();
    };
    let log = Log::from_bytes(bytes).expect("a log");
    let entry = |(entry, cost): (store::Entry, u64)| Entry {
        id: entry.id,
        at: entry.at.as_micros(),
        cost,
        fits: true,
        is_merged: false,
        is_renewed: false,
    };
    List {
        entries: log.entries().map(entry).collect(),
        expires_at: log.expires_at().unwrap_or_default().as_micros(),
    }
}

impl World {
    fn load(&mut self, process: usize, keys: &[Vec<u8>], random: &mut Rng) -> (Loaded, Moment) {
        let logs: Vec<usize> = keys.iter().filter_map(|key| self.log_of(key)).collect();
        let moment = self.tick(random, logs.first().copied(), None);
        let now = moment.time();
        self.note(|| format!("  table loads logs {logs:?} of p{process}"));
        self.sweep(keys.iter(), now, random);
        let rows = keys.iter().map(|key| self.rows.get(key));
        let logs = rows
            .map(|row| row.map(|(bytes, _)| bytes.clone()))
            .collect();
        (Loaded { logs, now }, moment)
    }

    fn sweep<'a>(
        &mut self,
        keys: impl Iterator<Item = &'a Vec<u8>>,
        now: Timestamp,
        random: &mut Rng,
    ) {
        for key in keys {
            let may_go = |(_, expires_at): &(_, Timestamp)| *expires_at <= now && random.bool();
            if self.rows.get(key).is_some_and(may_go) {
                self.rows.remove(key);
            }
        }
    }

    /// Saves changes of logs that a process loaded at these moments, and notes what has changed.
    fn swap(
        &mut self,
        process: usize,
        changes: Vec<Change>,
        until: Timestamp,
        loads: &Loads,
        random: &mut Rng,
    ) -> bool {
        let keys = changes.iter().map(|change| &change.key);
        self.sweep(keys, self.now().time(), random);
        let bytes = |key: &Vec<u8>| self.rows.get(key).map(|(bytes, _)| bytes);
        let mut compared = changes.iter();
        let is_saved = compared.all(|change| bytes(&change.key) == change.old.as_ref());
        let is_saved = is_saved && self.now().time() < until;
        let line = self.now().line;
        for Change { key, old, new } in changes.into_iter().filter(|_| is_saved) {
            let New::Saved {
                log: bytes,
                expires_at,
            } = new
            else {
                continue;
            };
            if let Some(log) = self.log_of(&key) {
                let after = read(Some(&bytes));
                let (book, policies) =
                    (&mut self.books[log], [&self.policies[log], &self.own[log]]);
                let result = book.save(policies, &read(old.as_ref()), after, loads[log], line);
                self.check(&format!("log {log}"), result);
            }
            self.rows.insert(key, (bytes, expires_at));
        }
        self.note(|| format!("  table swaps for p{process}: {is_saved}"));
        is_saved
    }
}

/// A process's connection to the table.
#[derive(Clone, Debug)]
pub(crate) struct TableLink {
    link: Link,
    loads: Arc<Mutex<Loads>>,
}

impl TableLink {
    fn logs<'a>(&self, keys: impl Iterator<Item = &'a Vec<u8>>) -> Vec<usize> {
        let world = self.link.world.lock();
        keys.filter_map(|key| world.log_of(key)).collect()
    }
}

#[async_trait]
impl Table for TableLink {
    async fn load(&self, keys: &[Vec<u8>]) -> Result<Loaded, Error> {
        let (asked, process) = (keys.to_vec(), self.link.process);
        let execute =
            move |world: &mut World, random: &mut _| Ok(world.load(process, &asked, random));
        let asking = self.link.ask(None, self.logs(keys.iter()), execute);
        let (loaded, now) = asking.await?;
        let world = self.link.world.lock();
        let mut loads = self.loads.lock().unwrap();
        let logs = keys.iter().filter_map(|key| world.log_of(key));
        logs.for_each(|log| loads[log] = now);
        Ok(loaded)
    }

    async fn swap(&self, changes: Vec<Change>, until: Timestamp) -> Result<bool, Error> {
        let (loads, process) = (*self.loads.lock().unwrap(), self.link.process);
        let logs = self.logs(changes.iter().map(|change| &change.key));
        let execute = move |world: &mut World, random: &mut _| match world.is_full() {
            true => Err(ErrorKind::Unavailable),
            false => Ok(world.swap(process, changes, until, &loads, random)),
        };
        self.link.ask(None, logs, execute).await
    }

    fn spawn(&self, worker: BoxFuture<'static, ()>) {
        tokio::spawn(worker);
    }

    fn takes_several(&self) -> bool {
        true
    }
}

/// A process's store, whose results are checked.
#[derive(Debug)]
pub(crate) struct Watched(LogStore<TableLink>);

/// A call that has begun: the stack's call to which it belongs, when, and in which life of the server.
struct Begun {
    call: Option<usize>,
    line: u64,
    life: u64,
}

impl Watched {
    pub(crate) fn new(link: Link) -> Self {
        let now = link.world.lock().now();
        let loads = Arc::new(Mutex::new([now; 4]));
        Self(LogStore::new(TableLink { link, loads }))
    }

    fn link(&self) -> &Link {
        &self.0.table().link
    }

    /// Notes that a call begins, which may append to these logs.
    fn begin<'a>(&self, appends: impl Iterator<Item = LogKey<'a>>) -> Begun {
        let mut world = self.link().world.lock();
        for log in appends {
            if let Some(log) = world.log_of(&stored_key(log)) {
                world.books[log].open += 1;
            }
        }
        let call = CALL.try_with(|call| call.number).ok().flatten();
        if let Some(call) = call {
            world.calls[call].sent += 1;
            (world.calls[call].replied, world.calls[call].is_refused) = (None, false);
        }
        let line = world.now().line;
        let life = world.lives;
        Begun { call, line, life }
    }

    /// Checks what a call returned of a log.
    fn check(
        &self,
        begun: &Begun,
        log: LogKey<'_>,
        check: impl FnOnce(&mut World, usize) -> anyhow::Result<()>,
    ) {
        let mut world = self.link().world.lock();
        // The server may have lost what it saved.
        let log = world
            .log_of(&stored_key(log))
            .filter(|_| world.lives == begun.life);
        if let Some(log) = log {
            let result = check(&mut world, log);
            let result = result.and_then(|()| world.books[log].balance());
            world.check(&format!("call {:?} on log {log}", begun.call), result);
        }
    }

    fn decided(
        &self,
        world: &mut World,
        begun: &Begun,
        op: &Op<'_>,
        facts: &Facts,
        log: usize,
    ) -> anyhow::Result<()> {
        let policy = world.policies[log].clone();
        let asked = begun.call.map(|call| &world.calls[call].asked);
        let asked = asked.and_then(|asked| asked.iter().find(|asked| asked.log == log));
        let cost = asked.map_or(op.cost, |asked| asked.cost);
        let line = world.now().line;
        let book = &mut world.books[log];
        book.open -= u64::from(op.mode != Mode::Peek);
        if let (None, Some(id)) = (begun.call, op.id) {
            book.carry(id, self.link().process, op.cost);
        }
        match facts.outcome {
            Outcome::Appended(entry) => {
                book.name(entry.id, begun.line)?;
                if let Some(id) = op.id {
                    book.append_once(op, id, entry, begun.line, line)?;
                }
                let counts = op.mode == Mode::Acquire && op.limiter_policy.is_none();
                match facts.admitted && counts {
                    true => book.confirm(&policy, entry.id, cost),
                    false => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }

    async fn decide(
        &self,
        ops: &[JointOp<'_>],
        deciding: impl Future<Output = Result<Option<JointFacts>, Error>>,
    ) -> Result<Option<JointFacts>, Error> {
        let appending = ops.iter().filter(|joint| joint.op.mode != Mode::Peek);
        let begun = self.begin(appending.map(|joint| joint.op.log));
        let facts = deciding.await;
        if let (Err(error), Some(call)) = (&facts, begun.call) {
            self.link().world.lock().calls[call].is_refused = !error.is_retryable();
        }
        let facts = facts?;
        for (joint, facts) in ops.iter().zip(facts.iter().flatten().flatten()) {
            self.check(&begun, joint.op.log, |world, log| {
                self.decided(world, &begun, &joint.op, facts, log)
            });
        }
        if let Some(call) = begun.call {
            let replies = ops.iter().zip(facts.iter().flatten().flatten());
            let replies = replies.map(|(joint, facts)| {
                let seen = seen(&decide(&joint.described_by(facts), facts.clone()));
                (Wire::of(None, joint.op.cost, facts), Some(seen))
            });
            self.link().world.lock().calls[call].replied = Some(replies.collect());
        }
        Ok(facts)
    }
}

#[async_trait]
impl WindowStore for Watched {
    async fn apply(&self, op: Op<'_>) -> Result<Facts, Error> {
        let deciding = async { Ok(Some(vec![Ok(self.0.apply(op).await?)])) };
        let facts = self.decide(&[op.into()], deciding).await?;
        let none = || Error::new(ErrorKind::Inconsistent, "no facts");
        facts.and_then(|mut facts| facts.pop()).ok_or_else(none)?
    }

    async fn apply_all(&self, ops: &[JointOp<'_>]) -> Result<Option<JointFacts>, Error> {
        self.decide(ops, self.0.apply_all(ops)).await
    }

    async fn settle(&self, settlement: Settlement<'_>) -> Result<SettlementFacts, Error> {
        let is_renewal = matches!(settlement.change, Settles::Renew { .. });
        let begun = self.begin(is_renewal.then_some(settlement.log).into_iter());
        let facts = self.0.settle(settlement).await?;
        self.check(&begun, settlement.log, |world, log| {
            let book = &mut world.books[log];
            book.open -= u64::from(is_renewal);
            match (facts.changed, settlement.change) {
                (Some(changed), Settles::Renew { .. }) => book.name(changed.entry.id, begun.line),
                _ => Ok(()),
            }
        });
        if let Some(call) = begun.call {
            self.link().world.lock().calls[call].replied = Some(Vec::new());
        }
        Ok(facts)
    }

    async fn reset(&self, log: LogKey<'_>) -> Result<bool, Error> {
        let note = |is_begin: bool| {
            let mut world = self.link().world.lock();
            let line = world.now().line;
            if let Some(log) = world.log_of(&stored_key(log)) {
                world.books[log].ask_reset(is_begin, line);
            }
        };
        note(true);
        self.begin(std::iter::empty());
        let removed = self.0.reset(log).await?;
        note(false);
        Ok(removed)
    }

    fn identity(&self) -> Option<usize> {
        self.0.identity()
    }
}
