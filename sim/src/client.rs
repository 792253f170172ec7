//! A process's client of a server with a memory store.

use async_trait::async_trait;
use fastrand::Rng;
use limiter_core::store::{
    At, Change, Changed, EntryId, Facts, JointFacts, JointOp, LogKey, Op, Outcome, Settlement,
    SettlementFacts,
};
use limiter_core::{Error, ErrorKind, Name, Receipt, SyncStore, Timestamp, WindowStore};
use limiter_log::stored_key;

use crate::ledger::calls::Judged;
use crate::ledger::wire::Wire;
use crate::ledger::{Asked, Moment};
use crate::network::Link;
use crate::world::{CALL, World};

/// An operation on its way to the server.
struct Asking {
    name: Name,
    key: Vec<u8>,
    id: Option<EntryId>,
    asked: Asked,
}

impl Asking {
    fn joint(&self, now: Moment) -> JointOp<'_> {
        let asked = &self.asked;
        let mut op = Op::new(asked.mode, &self.key, &asked.policy).with_name(self.name);
        let at = asked.at.map(Timestamp::from_micros_saturating);
        op.limiter_policy = asked.limiter_policy.as_ref();
        (op.cost, op.id) = (asked.cost, self.id);
        op.at = At::Given(at.unwrap_or(now.time()));
        let mut joint = JointOp::from(op);
        (joint.is_advisory, joint.keeps_charge) = (asked.is_advisory, asked.keeps_charge);
        joint
    }
}

impl World {
    fn decide(&mut self, asking: &[Asking], now: Moment) -> (Vec<Facts>, Vec<Wire>) {
        let joint: Vec<JointOp<'_>> = asking.iter().map(|asking| asking.joint(now)).collect();
        let store = &self.memory.store;
        let mut all = match &*joint {
            [JointOp { op, .. }] => vec![store.apply_now(op)],
            joint => store.apply_all_now(joint),
        };
        let mut wires = Vec::new();
        for (facts, asking) in all.iter_mut().zip(asking) {
            if asking.asked.at.is_none() {
                facts.log.clock = now.time();
            }
            let mut wire = Wire::of(asking.id, asking.asked.cost, facts);
            if let Outcome::Appended(entry) = facts.outcome {
                let names = &mut self.memory.names;
                wire.id = asking
                    .id
                    .unwrap_or(EntryId::from_u128(names.len() as u128 | 1 << 100));
                names.insert((asking.asked.log, entry.id, entry.at), wire.id);
            }
            wires.push(wire);
        }
        (all, wires)
    }
}

/// A process's client of the server.
#[derive(Clone, Debug)]
pub(crate) struct Client(pub(crate) Link);

impl Client {
    fn logs<'a>(&self, keys: impl Iterator<Item = LogKey<'a>>) -> Vec<usize> {
        let world = self.0.world.lock();
        keys.filter_map(|key| world.log_of(&stored_key(key)))
            .collect()
    }

    /// Asks the server, and notes what its reply says of the process's call.
    async fn ask<'a, T: Send + 'static>(
        &self,
        keys: impl Iterator<Item = LogKey<'a>>,
        execute: impl FnOnce(&mut World, Option<usize>, &[usize], Moment) -> (T, Option<Judged>)
        + Send
        + 'static,
    ) -> Result<T, Error> {
        let call = CALL.try_with(|call| call.number).ok().flatten();
        let (logs, process) = (self.logs(keys), self.0.process);
        let asked = logs.clone();
        let execute = move |world: &mut World, random: &mut Rng| {
            let now = world.tick(random, asked.first().copied(), None);
            let (reply, judged) = execute(world, call, &asked, now);
            world.note(|| {
                let wires = judged.iter().flatten();
                let flags: Vec<_> = wires.map(|(wire, _)| (wire.cost, wire.flags)).collect();
                format!("  memory logs {asked:?} of p{process} call {call:?}: {flags:?}")
            });
            Ok((reply, judged))
        };
        let result = self.0.ask(call, logs, execute).await;
        if let Some(call) = call {
            let call = &mut self.0.world.lock().calls[call];
            match &result {
                Ok((_, judged)) => call.replied.clone_from(judged),
                Err(error) => call.is_refused = !error.is_retryable(),
            }
        }
        Ok(result?.0)
    }
}

#[async_trait]
impl WindowStore for Client {
    async fn apply(&self, op: Op<'_>) -> Result<Facts, Error> {
        let none = || Error::new(ErrorKind::Inconsistent, "no facts");
        let facts = self.apply_all(&[op.into()]).await?;
        facts.and_then(|mut facts| facts.pop()).ok_or_else(none)?
    }

    async fn apply_all(&self, ops: &[JointOp<'_>]) -> Result<Option<JointFacts>, Error> {
        let process = self.0.process;
        let asking = |joint: &JointOp<'_>| {
            let LogKey { name, key } = joint.op.log;
            let log = self.0.world.lock().log_of(&stored_key(joint.op.log));
            let asked = Asked::of(log.unwrap_or(0), joint);
            let (key, id) = (key.to_vec(), joint.op.id);
            Asking {
                name,
                key,
                id,
                asked,
            }
        };
        let asking: Vec<Asking> = ops.iter().map(asking).collect();
        let execute = move |world: &mut World, call: Option<usize>, logs: &[usize], now: Moment| {
            let (facts, wires) = world.decide(&asking, now);
            let asked = asking.iter().map(|asking| asking.asked.clone());
            let is_watched = logs.len() == asking.len();
            let judged = is_watched.then(|| {
                let result = world.judge(process, call, asked.zip(wires).collect(), now);
                world.check(&format!("logs {logs:?}, call {call:?}"), result)
            });
            (facts, judged.flatten())
        };
        let facts = self
            .ask(ops.iter().map(|joint| joint.op.log), execute)
            .await?;
        Ok(Some(facts.into_iter().map(Ok).collect()))
    }

    async fn settle(&self, settlement: Settlement<'_>) -> Result<SettlementFacts, Error> {
        let (process, receipt, change) = (self.0.process, settlement.receipt, settlement.change);
        let LogKey { name, key } = settlement.log;
        let (key, policy) = (key.to_vec(), settlement.policy.clone());
        let limiter_policy = settlement.limiter_policy.cloned();
        let execute = move |world: &mut World, call: Option<usize>, logs: &[usize], now: Moment| {
            let log = LogKey::new(name, &key);
            let mut settlement = Settlement::new(log, &policy, receipt, 0).at(now.time());
            (settlement.change, settlement.limiter_policy) = (change, limiter_policy.as_ref());
            let mut facts = world.memory.store.settle_now(&settlement);
            facts.log.clock = now.time();
            let log = logs.first().copied().unwrap_or(0);
            let named = world.memory.named(log, receipt);
            if let Some(Changed { entry, .. }) = facts.changed {
                world.memory.names.insert((log, entry.id, entry.at), named);
            }
            let is_renewal = matches!(change, Change::Renew { .. });
            let renewed = facts.changed.filter(|_| is_renewal).map(|_| named);
            let settles = (change, Receipt::new(named, receipt.at(), receipt.window()));
            let judged = call.filter(|_| !logs.is_empty()).map(|call| {
                let result = world.settle(process, call, settles, (facts.applied(), renewed), now);
                world.check(&format!("logs {logs:?}, call {call}"), result)
            });
            (facts, judged.flatten())
        };
        self.ask([settlement.log].into_iter(), execute).await
    }

    async fn reset(&self, log: LogKey<'_>) -> Result<bool, Error> {
        let (process, name, key) = (self.0.process, log.name, log.key.to_vec());
        let execute = move |world: &mut World, call: Option<usize>, logs: &[usize], now: Moment| {
            let removed = world.memory.store.reset_now(LogKey::new(name, &key));
            logs.iter()
                .for_each(|log| world.reset(*log, process, call, now));
            (removed, Some(Vec::new()))
        };
        self.ask([log].into_iter(), execute).await
    }
}
