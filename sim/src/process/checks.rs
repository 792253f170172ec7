//! Checks of decisions: who made them, and whether they may.

use std::time::Duration;

use anyhow::{anyhow, bail, ensure};
use limiter_core::Limit;
use limiter_core::store::{Entry, Facts, JointOp, Mode, Op, Outcome, decide};
use tokio::time::Instant;

use super::{Stack, WITHIN, place};
use crate::clocks::{is_held, system_off};
use crate::history::Choice;
use crate::ledger::calls::{Block, Call};
use crate::ledger::list::{exact, seen};
use crate::ledger::{Asked, Moment};
use crate::world::World;

impl Stack {
    /// Checks a decision: who made it, and whether they may.
    pub(super) fn conclude(
        &self,
        number: usize,
        ops: &[JointOp<'_>],
        facts: &[Facts],
        is_spent: bool,
    ) {
        let mut world = self.world.lock();
        let now = world.now();
        let call = &world.calls[number];
        let (replied, begun) = (call.replied.clone(), call.begun);
        let (was_sent, is_blocked) = (call.sent > 0, call.was_blocked && !call.has_passed);
        for (i, (joint, facts)) in ops.iter().zip(facts).enumerate() {
            let op = joint.described_by(facts);
            let log = place(op.log);
            let replied = replied.as_ref().and_then(|replied| replied.get(i));
            let is_admitted = facts.admitted || op.mode == Mode::Record;
            let id = op
                .id
                .filter(|_| facts.admitted && !matches!(facts.outcome, Outcome::Repeated { .. }));
            let sent = (begun, system_off(self.process));
            world.held.extend(id.map(|id| (id, sent)));
            let process = &mut world.processes[self.process];
            let result = if let Some((wire, expected)) = replied {
                let block = wire.cost - op.cost.min(wire.cost);
                if block > 0 && wire.is_appended() {
                    let units = process.blocks[log].units + block;
                    process.blocks[log] = Block {
                        units,
                        asked: Some(sent),
                    };
                }
                let found = seen(&decide(&op, facts.clone()));
                match expected {
                    Some(_) if block > 0 && !facts.admitted => {
                        Err(anyhow!("denies for want of a block"))
                    }
                    Some(expected) if block == 0 && *expected != found => Err(anyhow!(
                        "decides {found:?} unlike the contract: {expected:?}"
                    )),
                    _ => Ok(()),
                }
            } else if is_spent && facts.admitted {
                self.spent(&mut world, log, op.cost, now)
            } else if !is_admitted && !was_sent && !is_blocked {
                self.repeated(&world, log, &op, now)
            } else {
                self.stood_in(&mut world, (number, log), &op, facts)
            };
            let now = facts.log.now.as_micros();
            let window = exact(op.policy, op.limiter_policy);
            let is_past = |entry: Entry| now - entry.at.as_micros() >= window;
            let result = match (op.id, &facts.outcome) {
                (Some(_), Outcome::Repeated { entry, .. }) if is_past(*entry) => {
                    Err(anyhow!("repeats what no longer counts"))
                }
                _ => result,
            };
            world.check(&format!("call {number} on log {log}"), result);
            self.check_carried(&mut world, log);
        }
    }

    /// Checks a decision of a block.
    pub(super) fn spent(
        &self,
        world: &mut World,
        log: usize,
        cost: u64,
        now: Moment,
    ) -> anyhow::Result<()> {
        let policy = world.policies[log].clone();
        let Block { units, asked } = &mut world.processes[self.process].blocks[log];
        ensure!(*units >= cost, "spends more than was granted");
        *units -= cost;
        let lease = policy.lease().unwrap_or_default();
        let is_leased = asked.is_some_and(|sent| is_held(sent, self.process, lease));
        ensure!(is_leased, "spends a block that has ended");
        world.books[log].spend(&policy, cost, now)
    }

    /// Checks a denial of the cache. The server's clock may be faster or slower.
    pub(super) fn repeated(
        &self,
        world: &World,
        log: usize,
        op: &Op<'_>,
        now: Moment,
    ) -> anyhow::Result<()> {
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
        let asked = Asked::of(log, &(*op).into());
        world.books[log].repeat(&asked, self.process, earlier, ttl)
    }

    /// Checks a decision of the stand-in.
    fn stood_in(
        &self,
        world: &mut World,
        (number, log): (usize, usize),
        op: &Op<'_>,
        facts: &Facts,
    ) -> anyhow::Result<()> {
        let is_admitted = facts.admitted || op.mode == Mode::Record;
        let call = &world.calls[number];
        let (begun, is_blocked) = (call.begun, call.was_blocked && !call.has_passed);
        let was_paused = world.processes[self.process].was_paused_since(begun);
        let is_well = world.is_well_since(begun) && !is_blocked && !was_paused;
        ensure!(!is_well, "decides without the store although all is well");
        match (world.setting.choice, is_admitted) {
            (Choice::Open, _) | (Choice::Closed, false) => {}
            (Choice::Closed | Choice::Error, true) => bail!("is admitted by nobody"),
            (Choice::Error, false) => bail!("is denied by nobody"),
            (Choice::Local, _) => {
                let Outcome::Appended(entry) = facts.outcome else {
                    return Ok(());
                };
                let process = &mut world.processes[self.process];
                process.charges[log].push((Instant::now(), op.cost, op.cost));
                if facts.admitted && op.mode == Mode::Acquire && op.limiter_policy.is_none() {
                    let line = world.start.elapsed().as_micros() as u64;
                    let now = Moment { clock: line, line };
                    return process.local[log].admit(op.policy, entry.id, op.cost, now);
                }
            }
        }
        Ok(())
    }

    /// Checks that the process carries over what it charged: no more, and if nothing waits, all that has not expired.
    pub(crate) fn check_carried(&self, world: &mut World, log: usize) {
        let policy = &world.policies[log];
        let window = policy.limits().iter().map(Limit::window).min();
        let young = window.map_or(Duration::ZERO, |window| window.as_duration() / 2);
        let (charged, due) = world.processes[self.process].charged(log, young);
        let carried = world.books[log].carried_by(self.process);
        let is_due = due.min(policy.largest_max());
        let waits = self.guarded.carried_logs() > 0;
        let check = || {
            ensure!(carried <= charged, "carried over {carried} of {charged}");
            ensure!(
                waits || carried >= is_due,
                "carried over {carried}, but {is_due} are due"
            );
            Ok(())
        };
        let result = check();
        world.check(&format!("process {} on log {log}", self.process), result);
    }
}
