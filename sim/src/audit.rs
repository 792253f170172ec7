//! The server's work as the checker sees it: what each command did, compared with the books.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use fastrand::Rng;
use limiter_core::store::{At, Change, EntryId, Mode};
use limiter_core::{Receipt, Timestamp};
use redis::{Arg, Cmd, RedisError, Value};
use tokio::time::Instant;

use crate::ledger::calls::{Judged, Slot};
use crate::ledger::wire::{self, Wire};
use crate::ledger::{self, Asked, Moment};
use crate::redis::error;
use crate::world::{EPOCH, World};
use limiter_redis::format::{FAILED, LATE};

/// By how much a deadline may be late: the time of the slowest reply.
const SLOWEST: Duration = Duration::from_secs(1);

/// What the server did with a command.
pub(crate) struct Executed {
    pub(crate) result: Result<Value, RedisError>,
    pub(crate) replied: Option<Judged>,
    /// Whether it refused the command, although it is well.
    pub(crate) is_refused: bool,
}

/// Returns the bytes of a reply that is a string.
fn bulk(reply: &Value) -> &[u8] {
    match reply {
        Value::BulkString(reply) => reply,
        _ => &[],
    }
}

impl World {
    /// Executes a command that arrived, and checks what it did.
    pub(crate) fn execute(
        &mut self,
        process: usize,
        call: Option<usize>,
        command: &Cmd,
        random: &mut Rng,
    ) -> Executed {
        let bytes = |arg| match arg {
            Arg::Simple(bytes) => Some(bytes),
            _ => None,
        };
        let args: Vec<&[u8]> = command.args_iter().filter_map(bytes).collect();
        let is_reset = args[0] == b"UNLINK";
        let (keys, rest) = match &*args {
            [_, key] => (std::slice::from_ref(key), &[][..]),
            [_, _, count, rest @ ..] => {
                let count = String::from_utf8_lossy(count).parse().unwrap_or(0);
                rest.split_at(count)
            }
            _ => (&[][..], &[][..]),
        };
        let logs: Vec<usize> = keys.iter().map_while(|key| self.log_of(key)).collect();
        let is_decision = call.is_none_or(|call| self.calls[call].settles.is_none());
        let request = rest.first().filter(|_| is_decision && !logs.is_empty());
        let deadline = request.map(|request| wire::deadline(request));
        let now = self.tick(random, logs.first().copied(), deadline);
        for log in logs.iter().copied() {
            let is_held = self.redis.holds(now.clock, &self.keys[log]);
            let result = self.books[log].expire(is_held, now);
            self.check(&format!("log {log}"), result);
        }
        let refusal = self.refusal(&logs).filter(|_| !is_reset);
        let result = match refusal {
            Some(text) => Err(error(text)),
            None => {
                self.redis.fill(self.is_full());
                self.redis.execute(now.clock, command)
            }
        };
        let replies: Vec<&[u8]> = match &result {
            Ok(Value::Array(replies)) => replies.iter().map(bulk).collect(),
            Ok(reply) => vec![bulk(reply)],
            Err(_) => Vec::new(),
        };
        let mut replied = None;
        if is_reset && result.is_ok() {
            logs.iter()
                .for_each(|log| self.reset(*log, process, call, now));
            replied = Some(Vec::new());
        } else if !logs.is_empty() && !replies.is_empty() {
            let result = self.read(process, call, &logs, rest, &replies, now);
            replied = self
                .check(&format!("logs {logs:?}, call {call:?}"), result)
                .flatten();
        }
        self.note(|| {
            let name = String::from_utf8_lossy(args[0]);
            let wires = replied.iter().flatten();
            let flags: Vec<_> = wires.map(|(wire, _)| (wire.cost, wire.flags)).collect();
            let failed = result.as_ref().err().map(ToString::to_string).unwrap_or_default();
            format!(
                "  server {} {name} logs {logs:?} of p{process} call {call:?}: {flags:?} {failed:.60}",
                now.clock.cast_signed() - EPOCH as i64
            )
        });
        Executed {
            result,
            replied,
            is_refused: refusal.is_some(),
        }
    }

    /// Notes that a log is empty.
    pub(crate) fn reset(&mut self, log: usize, process: usize, call: Option<usize>, now: Moment) {
        self.books[log].reset(&self.policies[log], now.line);
        self.release(log, process, call, now);
    }

    /// Checks a settlement: whether it took effect, and the id that a renewed entry has.
    pub(crate) fn settle(
        &mut self,
        process: usize,
        call: usize,
        settles: (Change, Receipt),
        done: (bool, Option<EntryId>),
        now: Moment,
    ) -> Result<Judged> {
        let asked = self.calls[call].asked[0].clone();
        self.books[asked.log].settle(&asked, settles, done, now)?;
        if done.0 {
            self.release(asked.log, process, Some(call), now);
        }
        Ok(Vec::new())
    }

    /// Checks what a script did with logs. Returns `None` if that is nothing.
    fn read(
        &mut self,
        process: usize,
        call: Option<usize>,
        logs: &[usize],
        requests: &[&[u8]],
        replies: &[&[u8]],
        now: Moment,
    ) -> Result<Option<Judged>> {
        let is_refused =
            |reply: &&[u8]| reply.last() == Some(&LATE) || reply.first() == Some(&FAILED);
        if replies.iter().any(is_refused) {
            return Ok(None);
        }
        if let Some(call) = call
            && let Some(settles) = self.calls[call].settles
        {
            let done = wire::settled(settles.0, replies[0]);
            return self.settle(process, call, settles, done, now).map(Some);
        }
        let given = requests.get(logs.len()).filter(|given| !given.is_empty());
        let given = given.and_then(|given| String::from_utf8_lossy(given).parse().ok());
        let at = given.map_or(At::StoreClock, |given| {
            At::Given(Timestamp::from_micros_saturating(given))
        });
        let mut ops = Vec::new();
        for ((log, request), reply) in logs.iter().zip(requests).zip(replies) {
            let wire = Wire::new(request, reply);
            let asked = match call {
                Some(call) => self.calls[call]
                    .asked
                    .iter()
                    .find(|asked| asked.log == *log)
                    .cloned(),
                None => wire::swept(*log, request, wire.cost, at),
            };
            // A sweep peeks to read the clock.
            let Some(mut asked) = asked else {
                return Ok(None);
            };
            asked.cost = wire.cost;
            ops.push((asked, wire));
        }
        let appends = ops.iter().any(|(_, wire)| wire.is_appended());
        let is_late = requests[..logs.len()]
            .iter()
            .any(|request| wire::deadline(request) <= now.clock);
        ensure!(!(appends && is_late), "appends at its deadline or later");
        self.judge(process, call, ops, now).map(Some)
    }

    /// Checks what the server did with logs.
    pub(crate) fn judge(
        &mut self,
        process: usize,
        call: Option<usize>,
        ops: Vec<(Asked, Wire)>,
        now: Moment,
    ) -> Result<Judged> {
        let seen = ledger::apply(&mut self.books, &ops, now.clock)?;
        for (asked, wire) in ops.iter().filter(|(_, wire)| wire.is_appended()) {
            let book = &mut self.books[asked.log];
            let Some(call) = call.map(|call| &self.calls[call]) else {
                book.carry(wire.id, process, wire.cost);
                self.check_time(asked, process, now)?;
                continue;
            };
            // One that stood still may have read the server's clock late.
            let has_paused = self.processes[process].paused.is_some();
            let must_be_in_time = call.has_deadline && !book.is_set_back && !has_paused;
            // What the process knows of the server's clock may have drifted.
            let most = SLOWEST + self.start.elapsed() / 64;
            let is_late = call.ended.is_some_and(|ended| ended.elapsed() > most);
            ensure!(
                !(must_be_in_time && is_late),
                "counts after its caller gave up"
            );
            let own = call.asked.iter().find(|own| own.log == asked.log);
            let cost = own.map_or(0, |own| own.cost);
            if wire.is_admitted() && asked.mode == Mode::Acquire && asked.limiter_policy.is_none() {
                book.admit(&self.policies[asked.log], wire.id, cost, now)?;
            }
        }
        let wires = ops.into_iter().map(|(_, wire)| wire);
        Ok(wires.zip(seen).collect())
    }

    /// Checks that a charge is carried over with the time of a local charge: it may count for longer, but not shorter.
    fn check_time(&self, asked: &Asked, process: usize, now: Moment) -> Result<()> {
        let at = asked.at.context("carries without a time")? as f64;
        let is_it = |(charged, ..): &(Instant, u64, u64)| {
            let passed = charged.elapsed().as_micros() as f64 * self.setting.speed;
            let off = at - (now.clock as f64 - passed);
            (-20_000.0 - passed / 50.0..1_000_000.0).contains(&off)
        };
        let has_stepped = self
            .stepped
            .is_some_and(|at| at.elapsed() < Duration::from_secs(3));
        let is_right = has_stepped || self.processes[process].charges[asked.log].iter().any(is_it);
        ensure!(is_right, "carries a charge over with a wrong time");
        Ok(())
    }

    /// Checks that at no instant more slots were held than the limit allows.
    pub(crate) fn check_slots(&mut self) {
        let held = |slot: &Slot| {
            let others = self.slots.iter().filter(|other| {
                other.log == slot.log && (other.first..=other.last).contains(&slot.first)
            });
            let max = others.clone().map(|other| other.max).max().unwrap_or(0);
            (others.count() as u64, max)
        };
        let mut slots = self.slots.iter().filter(|slot| !slot.is_excused);
        let result = slots.try_for_each(|slot| {
            let (held, max) = held(slot);
            let at = slot.first - self.start;
            ensure!(held <= max, "{held} of {max} are held after {at:?}");
            Ok(())
        });
        self.check("slots:", result);
    }

    /// Notes that a call released units. While it is under way, its process does not know.
    fn release(&mut self, log: usize, process: usize, call: Option<usize>, now: Moment) {
        let is_under_way = call.is_some_and(|call| self.calls[call].ended.is_none());
        self.books[log].release(is_under_way.then_some(process), now.line);
    }
}
