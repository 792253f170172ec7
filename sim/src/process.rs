//! A process: the shipped stack, whose decisions are noted and checked.

use std::cell::{Cell, RefCell};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, SystemTime};

use anyhow::{Context, anyhow, bail, ensure};
use async_trait::async_trait;
use fastrand::Rng;
use futures::poll;
use limiter_core::store::{
    Change, Facts, JointFacts, JointOp, LogKey, Mode, Op, Outcome, Settlement, SettlementFacts,
    decide,
};
use limiter_core::{
    BoxFuture, Clock, Decision, Error, ErrorKind, Limiter, Timestamp, WindowStore, WithClock,
};
use limiter_memory::MemoryStore;
use limiter_redis::{Connection, RedisStore};
use limiter_wrappers::Guarded;
use tokio::time::{Instant, sleep};

use crate::history::{Choice, Setting};
use crate::ledger::{Asked, Book, Moment};
use crate::network::Link;
use crate::table::Watched;
use crate::world::{CALL, Call, Caller, Counted, Shared, World};

tokio::task_local! {
    /// What is random about the calls of a step.
    pub(crate) static SALT: Cell<u64>;
}

thread_local! {
    /// When the history began, and by how many milliseconds each process's system clock is wrong.
    pub(crate) static SYSTEM: RefCell<(Option<Instant>, [i64; 4])> = const { RefCell::new((None, [0; 4])) };
}

/// The system's clock of the process that asks.
pub(crate) fn system_clock() -> SystemTime {
    let process = CALL.try_with(|caller| caller.process).unwrap_or(0);
    SYSTEM.with_borrow(|(start, off)| {
        let passed = start.map_or(Duration::ZERO, |start| start.elapsed());
        let since = 1_700_000_000_000 + passed.as_millis() as i64 + off[process];
        SystemTime::UNIX_EPOCH + Duration::from_millis(since as u64)
    })
}

/// The clock of a process's local store.
#[derive(Clone, Copy, Debug)]
struct Local(Instant);

impl Clock for Local {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros_saturating((1 << 50) + self.0.elapsed().as_micros() as u64)
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'_, ()> {
        Box::pin(sleep(duration))
    }
}

/// A call that is not dropped takes less.
const WITHIN: Duration = Duration::from_secs(1);

/// The names of the two limiters.
pub(crate) const NAMES: [&str; 2] = ["first", "second"];

/// Returns the number of a log.
pub(crate) fn place(log: LogKey<'_>) -> usize {
    2 * usize::from(log.name.as_str() == NAMES[1]) + usize::from(log.key == b"1")
}

/// The stack of a process in one of its lives.
#[derive(Clone, Debug)]
pub(crate) struct Stack {
    pub(crate) guarded: Guarded<Arc<dyn WindowStore>>,
    world: Shared,
    process: usize,
}

impl Stack {
    /// Starts a process.
    pub(crate) fn new(world: &Shared, process: usize, seed: u64) -> Self {
        let world = world.clone();
        let setting = world.lock().setting.clone();
        let start = world.lock().start;
        let link = Link {
            world: world.clone(),
            process,
        };
        let store: Arc<dyn WindowStore> = if setting.is_table {
            Arc::new(Watched::new(link))
        } else {
            let store = RedisStore::builder()
                .seed(seed)
                .response_timeout(setting.response)
                .retries(setting.retries)
                .with_connection(Connection::new(link));
            Arc::new(store.expect("a store"))
        };
        let builder = Guarded::builder(store)
            .timeout(setting.timeout)
            .failure_threshold(setting.threshold)
            .cooldown(Duration::from_millis(300))
            .denial_cache_capacity(setting.cache)
            .denial_ttl(setting.denial_ttl)
            .seed(seed);
        let guarded = match setting.choice {
            Choice::Error => builder.or_error(),
            Choice::Open => builder.fail_open(),
            Choice::Closed => builder.fail_closed(),
            Choice::Local => builder.fallback(WithClock::new(MemoryStore::new(), Local(start))),
        };
        Self {
            guarded,
            world,
            process,
        }
    }

    /// Returns the limiters in front of the stack.
    pub(crate) fn limiters(&self) -> [Limiter<Self>; 2] {
        let policies = self.world.lock().policies.clone();
        [0, 1].map(|i| Limiter::new(NAMES[i], policies[2 * i].clone(), self.clone()))
    }

    fn begin(
        &self,
        what: &str,
        asked: Vec<Asked>,
        change: Option<Change>,
        changes: Option<usize>,
    ) -> usize {
        let mut world = self.world.lock();
        let number = world.calls.len();
        let text = || {
            format!(
                "p{} call {number}: {what} {asked:?} {change:?}",
                self.process
            )
        };
        world.note(text);
        let draw = |salt: &Cell<u64>| salt.replace(Rng::with_seed(salt.get()).u64(..));
        let salt = SALT.try_with(draw).unwrap_or(number as u64);
        let has_deadline = world.processes[self.process].has_heard;
        let (sent, replied, begun, ended) = (0, None, Instant::now(), None);
        world.calls.push(Call {
            salt,
            asked,
            change,
            changes: changes.map(|log| (self.process, log)),
            sent,
            replied,
            begun,
            ended,
            has_deadline,
        });
        number
    }

    /// Notes the end of a call, and checks that it did not take too long.
    fn end(&self, number: usize, text: impl FnOnce() -> String) {
        let mut world = self.world.lock();
        world.calls[number].ended = Some(Instant::now());
        let begun = world.calls[number].begun;
        let took = begun.elapsed();
        let line = || format!("p{} call {number} after {took:?}: {}", self.process, text());
        world.note(line);
        let Setting {
            response,
            retries,
            timeout,
            is_table,
            ..
        } = world.setting;
        // A call over a table waits for those before it.
        let attempts = match is_table {
            true => Duration::MAX / 4,
            false => (response + Duration::from_millis(21)) * (retries + 1),
        };
        // One with a block, and one without.
        let was_paused = world.processes[self.process]
            .paused
            .is_some_and(|end| end > begun);
        let most = 2 * attempts.min(timeout) + Duration::from_millis(20);
        let is_in_time = (was_paused || took <= most).then_some(());
        let result = is_in_time.with_context(|| format!("takes {took:?}"));
        world.check(&format!("call {number}"), result);
    }

    fn scope<T>(&self, number: usize, call: impl Future<Output = T>) -> impl Future<Output = T> {
        CALL.scope(
            Caller {
                number: Some(number),
                process: self.process,
            },
            call,
        )
    }

    /// Checks a decision: who made it, and whether they may.
    fn conclude(
        &self,
        number: usize,
        ops: &[JointOp<'_>],
        facts: &[Facts],
        is_spent: bool,
        is_open: bool,
    ) {
        let mut world = self.world.lock();
        let now = world.now();
        let replied = world.calls[number].replied.clone();
        let was_sent = world.calls[number].sent > 0;
        let begun = world.calls[number].begun;
        for (i, (joint, facts)) in ops.iter().zip(facts).enumerate() {
            let op = joint.described_by(facts);
            let log = place(op.log);
            let replied = replied.as_ref().and_then(|replied| replied.get(i));
            let is_admitted = facts.admitted || op.mode == Mode::Record;
            let id = op.id.filter(|_| facts.admitted);
            world.held.extend(id.map(|id| (id, begun)));
            let process = &mut world.processes[self.process];
            let result = if let Some((wire, expected)) = replied {
                let block = wire.cost - op.cost.min(wire.cost);
                if block > 0 && wire.is_appended() {
                    process.blocks[log] = (process.blocks[log].0 + block, Some(begun));
                }
                let fields = |facts: &Facts| {
                    let decision = decide(&op, facts.clone());
                    (
                        decision.is_allowed(),
                        decision.retry_after(),
                        decision.status().clone(),
                    )
                };
                let found = fields(facts);
                let is_equal = |expected| fields(expected) == found;
                let is_right = block > 0 || expected.as_ref().is_none_or(is_equal);
                let text = || format!("decides {found:?} unlike the contract: {expected:?}");
                is_right.then_some(()).with_context(text)
            } else if is_spent && facts.admitted {
                self.spent(&mut world, log, op.cost, now)
            } else if !is_admitted && !was_sent && !is_open {
                self.repeated(&world, log, &op, now)
            } else {
                self.stood_in(&mut world, log, &op, facts)
            };
            world.check(&format!("call {number} on log {log}"), result);
            self.check_carried(&mut world, log);
        }
    }

    /// Checks a decision of a block.
    fn spent(&self, world: &mut World, log: usize, cost: u64, now: Moment) -> anyhow::Result<()> {
        let policy = world.policies[log].clone();
        let (units, asked) = &mut world.processes[self.process].blocks[log];
        ensure!(*units >= cost, "spends more than was granted");
        *units -= cost;
        let lease = policy.lease().unwrap_or_default();
        let is_leased = asked.is_some_and(|asked| asked.elapsed() < lease * 63 / 64);
        ensure!(is_leased, "spends a block that has ended");
        world.books[log].spend(&policy, cost, now)
    }

    /// Checks a denial of the cache. The server's clock may be faster or slower.
    fn repeated(&self, world: &World, log: usize, op: &Op<'_>, now: Moment) -> anyhow::Result<()> {
        // The reply to a change may be on its way. A call that was dropped has no end.
        let is_changing = |call: &Call| {
            let is_under_way = call.ended.is_none() && call.begun.elapsed() < WITHIN;
            is_under_way && call.changes == Some((self.process, log))
        };
        if world.calls.iter().any(is_changing) {
            return Ok(());
        }
        let tolerance = if world.setting.speed == 1.0 {
            1_000
        } else {
            17_000
        };
        let ttl = world.setting.denial_ttl.as_micros() as u64 + 20_000;
        let earlier = Moment {
            clock: now.clock - tolerance,
            ..now
        };
        world.books[log].repeat(op, self.process, earlier, ttl)
    }

    /// Checks a decision of the stand-in.
    fn stood_in(
        &self,
        world: &mut World,
        log: usize,
        op: &Op<'_>,
        facts: &Facts,
    ) -> anyhow::Result<()> {
        let is_admitted = facts.admitted || op.mode == Mode::Record;
        let tally = &mut world.tally;
        match (world.setting.choice, is_admitted) {
            (Choice::Open, _) => {
                tally.count(Counted::Exception, "a call was admitted without the store");
            }
            (Choice::Closed, false) => {}
            (Choice::Closed | Choice::Error, true) => bail!("is admitted by nobody"),
            (Choice::Error, false) => bail!("is denied by nobody"),
            (Choice::Local, _) => {
                let Outcome::Appended(entry) = facts.outcome else {
                    return Ok(());
                };
                let process = &mut world.processes[self.process];
                process.charged[log] += op.cost;
                if facts.admitted && op.mode == Mode::Acquire && op.limiter_policy.is_none() {
                    tally.count(Counted::Exception, "a local store admitted a call");
                    let line = world.start.elapsed().as_micros() as u64;
                    let now = Moment { clock: line, line };
                    return process.local[log].admit(&world.policies[log], entry.id, op.cost, now);
                }
            }
        }
        Ok(())
    }

    pub(crate) fn check_carried(&self, world: &mut World, log: usize) {
        let charged = world.processes[self.process].charged[log];
        let result = world.books[log].check_carried(self.process, charged);
        world.check(&format!("process {} on log {log}", self.process), result);
    }
}

#[async_trait]
impl WindowStore for Stack {
    async fn apply(&self, op: Op<'_>) -> Result<Facts, Error> {
        let none = || Error::new(ErrorKind::Inconsistent, "no facts");
        let facts = self.apply_all(&[op.into()]).await?;
        facts.and_then(|mut facts| facts.pop()).ok_or_else(none)?
    }

    async fn apply_all(&self, ops: &[JointOp<'_>]) -> Result<Option<JointFacts>, Error> {
        let asked = ops
            .iter()
            .map(|joint| Asked::of(place(joint.op.log), &joint.op));
        let number = self.begin("decide", asked.collect(), None, None);
        let is_open = self.guarded.breakers().iter().any(|(_, is_open)| *is_open);
        let before = self.guarded.lease_decisions().0;
        let mut deciding = pin!(self.scope(number, self.guarded.apply_all(ops)));
        // A process that decides by itself does so immediately.
        let first = poll!(&mut deciding);
        let is_spent = self.guarded.lease_decisions().0 > before;
        let result = match first {
            Poll::Ready(result) => result,
            Poll::Pending => deciding.await,
        };
        let facts = |facts: &JointFacts| facts.iter().flatten().cloned().collect();
        let facts: Option<Vec<_>> = result.as_ref().ok().and_then(Option::as_ref).map(facts);
        self.end(number, || match (&facts, &result) {
            (Some(facts), _) => {
                let one = |facts: &Facts| {
                    (
                        facts.admitted,
                        facts.log.usage.first().map(|usage| usage.used),
                    )
                };
                format!("{:?}", facts.iter().map(one).collect::<Vec<_>>())
            }
            (None, result) => format!("{result:?}"),
        });
        self.conclude(number, ops, &facts.unwrap_or_default(), is_spent, is_open);
        result
    }

    fn try_decide(&self, op: Op<'_>) -> Option<Result<Decision, Error>> {
        let before = self.guarded.lease_decisions().0;
        let caller = Caller {
            number: None,
            process: self.process,
        };
        let decided = CALL.sync_scope(caller, || self.guarded.try_decide(op))?;
        if let Ok(decision) = &decided {
            let log = place(op.log);
            let mut world = self.world.lock();
            let now = world.now();
            let is_spent = self.guarded.lease_decisions().0 > before;
            let result = match (is_spent, decision.is_denied()) {
                (true, false) => self.spent(&mut world, log, op.cost, now),
                (_, true) => self.repeated(&world, log, &op, now),
                (false, false) => Err(anyhow!("is admitted at once by nobody")),
            };
            world.note(|| format!("p{} at once on log {log}: {decision:?}", self.process));
            world.check(&format!("at once on log {log}"), result);
        }
        Some(decided)
    }

    async fn settle(&self, settlement: Settlement<'_>) -> Result<SettlementFacts, Error> {
        let log = place(settlement.log);
        let asked = Asked::of(log, &settlement.to_record(1));
        let number = self.begin("settle", vec![asked], Some(settlement.change), Some(log));
        let result = self.scope(number, self.guarded.settle(settlement)).await;
        self.end(number, || {
            format!("{:?}", result.as_ref().map(SettlementFacts::applied))
        });
        let mut world = self.world.lock();
        if let (Change::Renew { id: Some(id) }, Ok(true)) = (
            settlement.change,
            result.as_ref().map(SettlementFacts::applied),
        ) {
            let begun = world.calls[number].begun;
            world.held.insert(id, begun);
        }
        let is_local = world.calls[number].replied.is_none();
        if let (true, Ok(Some(changed))) = (is_local, result.as_ref().map(|facts| facts.changed)) {
            let process = &mut world.processes[self.process];
            let cost = match settlement.change {
                Change::Cost(cost) => cost,
                Change::Renew { .. } => changed.cost_before,
            };
            process.charged[log] += cost;
            let receipt = settlement.receipt.entry();
            process.local[log].lower(receipt, cost, changed.entry.id);
        }
        result
    }

    async fn reset(&self, log: LogKey<'_>) -> Result<bool, Error> {
        let log_number = place(log);
        let number = self.begin("reset", Vec::new(), None, Some(log_number));
        self.world.lock().processes[self.process].local[log_number] = Book::default();
        let result = self.scope(number, self.guarded.reset(log)).await;
        self.end(number, || format!("{result:?}"));
        // A process forgets its block of a log that it has reset.
        let process = &mut self.world.lock().processes[self.process];
        process.blocks[log_number].0 = 0;
        result
    }

    fn inner(&self) -> Option<&dyn WindowStore> {
        Some(&self.guarded)
    }

    fn identity(&self) -> Option<usize> {
        self.guarded.identity()
    }
}
