//! A process: the shipped stack, whose decisions are noted and checked.

mod checks;

use std::cell::Cell;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use anyhow::{anyhow, ensure};
use async_trait::async_trait;
use fastrand::Rng;
use futures::poll;
use limiter_core::store::{
    Change, Facts, JointFacts, JointOp, LogKey, Op, Settlement, SettlementFacts,
};
use limiter_core::{Decision, Error, ErrorKind, Limiter, Receipt, WindowStore, WithClock};
use limiter_memory::MemoryStore;
use limiter_redis::{Connection, RedisStore};
use limiter_wrappers::Guarded;
use tokio::time::Instant;

use crate::client::Client;
use crate::clocks::{Local, system_off};
use crate::gate::Gate;
use crate::history::{Choice, Server, Setting};
use crate::ledger::calls::{Call, PAUSE};
use crate::ledger::{Asked, Book};
use crate::network::Link;
use crate::table::Watched;
use crate::world::{CALL, Caller, Shared};

tokio::task_local! {
    /// What is random about the calls of a step.
    pub(crate) static SALT: Cell<u64>;
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
    pub(crate) fn new(world: &Shared, process: usize, (seed, life): (u64, u64)) -> Self {
        let world = world.clone();
        let setting = world.lock().setting.clone();
        let start = world.lock().start;
        let link = Link {
            world: world.clone(),
            process,
        };
        let store: Arc<dyn WindowStore> = match setting.server {
            Server::Table => Arc::new(Watched::new(link)),
            Server::Memory => Arc::new(Client(link)),
            Server::Redis => {
                let store = RedisStore::builder()
                    .seed(seed)
                    .response_timeout(setting.response)
                    .retries(setting.retries)
                    .with_connection(Connection::new(link));
                Arc::new(store.expect("a store"))
            }
        };
        let gate = Gate {
            store,
            world: world.clone(),
            process,
            life,
        };
        let store: Arc<dyn WindowStore> = Arc::new(gate);
        let builder = Guarded::builder(store)
            .timeout(setting.timeout)
            .failure_threshold(setting.threshold)
            .cooldown(PAUSE)
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
        settles: Option<(Change, Receipt)>,
        changes: Option<usize>,
    ) -> usize {
        let mut world = self.world.lock();
        let number = world.calls.len();
        // The ids of a table's logs are random.
        let settled = settles.map(|(change, receipt)| (change, receipt.at()));
        let text = || {
            format!(
                "p{} call {number}: {what} {asked:?} {settled:?}",
                self.process
            )
        };
        world.note(text);
        let draw = |salt: &Cell<u64>| salt.replace(Rng::with_seed(salt.get()).u64(..));
        let salt = SALT.try_with(draw).unwrap_or(number as u64);
        let process = &world.processes[self.process];
        let (has_deadline, was_blocked) = (process.has_heard, process.breaker.is_open());
        world.calls.push(Call {
            salt,
            asked,
            settles,
            changes: changes.map(|log| (self.process, log)),
            sent: 0,
            replied: None,
            is_refused: false,
            begun: Instant::now(),
            ended: None,
            has_deadline,
            has_passed: false,
            was_blocked,
        });
        number
    }

    /// Notes the end of a call, and checks that it did not take too long, and that its error has a reason.
    fn end<T>(&self, number: usize, result: &Result<T, Error>, text: impl FnOnce() -> String) {
        let mut world = self.world.lock();
        world.calls[number].ended = Some(Instant::now());
        let call = &world.calls[number];
        let (begun, is_refused) = (call.begun, call.is_refused);
        let is_blocked = !call.has_passed && call.was_blocked;
        let took = begun.elapsed();
        let line = || format!("p{} call {number} after {took:?}: {}", self.process, text());
        world.note(line);
        let Setting {
            response,
            retries,
            timeout,
            server,
            ..
        } = world.setting;
        // A call over a table waits for those before it.
        let attempts = match server {
            Server::Table | Server::Memory => Duration::MAX / 4,
            Server::Redis => (response + Duration::from_millis(21)) * (retries + 1),
        };
        let process = &mut world.processes[self.process];
        let was_paused = process.was_paused_since(begun);
        if is_blocked {
            process.breaker.block();
        }
        if result.is_err() {
            process.failed = Some(Instant::now());
        }
        // One with a block, and one without.
        let most = 2 * attempts.min(timeout) + Duration::from_millis(20);
        let check = || {
            ensure!(was_paused || took <= most, "takes {took:?}");
            let is_outage = result.as_ref().err().map(Error::is_retryable);
            ensure!(
                !is_refused || is_outage == Some(false),
                "hides a refusal of the server"
            );
            let is_well =
                world.is_well_since(begun) && !is_blocked && !was_paused && took < timeout;
            ensure!(
                !(is_well && is_outage == Some(true)),
                "fails although all is well: {:?}",
                result.as_ref().err()
            );
            Ok(())
        };
        let result = check();
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
            .map(|joint| Asked::of(place(joint.op.log), joint));
        let number = self.begin("decide", asked.collect(), None, None);
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
        self.end(number, &result, || match (&facts, &result) {
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
        self.conclude(number, ops, &facts.unwrap_or_default(), is_spent);
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
        let asked = Asked::of(log, &settlement.to_record(1).into());
        let settles = Some((settlement.change, settlement.receipt));
        let number = self.begin("settle", vec![asked], settles, Some(log));
        let result = self.scope(number, self.guarded.settle(settlement)).await;
        self.end(number, &result, || {
            format!("{:?}", result.as_ref().map(SettlementFacts::applied))
        });
        let mut world = self.world.lock();
        if let (Change::Renew { id: Some(id) }, Ok(true)) = (
            settlement.change,
            result.as_ref().map(SettlementFacts::applied),
        ) {
            let begun = world.calls[number].begun;
            world.held.insert(id, (begun, system_off(self.process)));
        }
        let is_local = world.calls[number].replied.is_none();
        if let (true, Ok(Some(changed))) = (is_local, result.as_ref().map(|facts| facts.changed)) {
            let process = &mut world.processes[self.process];
            let cost = match settlement.change {
                Change::Cost(cost) => cost,
                Change::Renew { .. } => changed.cost_before,
            };
            process.settle(log, changed.cost_before, cost);
            let receipt = settlement.receipt.entry();
            process.local[log].lower(receipt, cost, changed.entry.id);
        }
        result
    }

    async fn reset(&self, log: LogKey<'_>) -> Result<bool, Error> {
        let log_number = place(log);
        let number = self.begin("reset", Vec::new(), None, Some(log_number));
        {
            let mut world = self.world.lock();
            let process = &mut world.processes[self.process];
            process.local[log_number] = Book::default();
            // The charges that wait are gone. Those under way may still arrive.
            process.forgive(log_number);
        }
        let result = self.scope(number, self.guarded.reset(log)).await;
        self.end(number, &result, || format!("{result:?}"));
        // A process forgets its block of a log that it has reset.
        let process = &mut self.world.lock().processes[self.process];
        process.blocks[log_number].units = 0;
        result
    }

    fn inner(&self) -> Option<&dyn WindowStore> {
        Some(&self.guarded)
    }

    fn identity(&self) -> Option<usize> {
        self.guarded.identity()
    }
}
