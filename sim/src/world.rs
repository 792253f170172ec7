//! The state of a history that is being played: the server with its clock and faults, the checker's books, and the trace.

use std::collections::{BTreeMap, HashMap};
use std::fmt::{self, Write as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use fastrand::Rng;
use limiter_core::store::{At, Change, EntryId, Facts, Mode};
use limiter_core::{Policy, Timestamp};
use redis::{Arg, Cmd, RedisError, Value};
use tokio::time::Instant;

use crate::history::{FAULTS, Fault, Setting};
use crate::ledger::{self, Asked, Book, Moment, Wire};
use crate::redis::{Copy, Redis, Refusal};
use crate::table::Rows;

/// The server's clock at the beginning, in microseconds.
pub(crate) const EPOCH: u64 = 1_700_000_000_000_000;

/// The call that a task makes, if it makes one, and its process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller {
    pub(crate) number: Option<usize>,
    pub(crate) process: usize,
}

tokio::task_local! {
    pub(crate) static CALL: Caller;
}

/// Returns the bytes of a reply that is a string.
fn bulk(reply: &Value) -> &[u8] {
    match reply {
        Value::BulkString(reply) => reply,
        _ => &[],
    }
}

/// What a script did with each log.
type Judged = Vec<(Wire, Option<Facts>)>;

/// A decision or a change that a process asks its stack for.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) salt: u64,
    pub(crate) asked: Vec<Asked>,
    pub(crate) change: Option<Change>,
    /// The process and the log, if it settles or resets.
    pub(crate) changes: Option<(usize, usize)>,
    /// How many messages it has sent.
    pub(crate) sent: u64,
    /// What the last reply that arrived said: for each operation what the server received, and the facts that it must have found.
    pub(crate) replied: Option<Judged>,
    pub(crate) begun: Instant,
    /// When it ended, and whether its process knew the server's clock, and so had a deadline.
    pub(crate) ended: Option<Instant>,
    pub(crate) has_deadline: bool,
}

/// By how much a deadline may be late: the time of the slowest reply.
const SLOWEST: Duration = Duration::from_secs(1);

/// What the checker knows of a process.
#[derive(Default)]
pub(crate) struct Process {
    /// What it admitted locally, by log, and what it charged locally in all its lives.
    pub(crate) local: [Book; 4],
    pub(crate) charged: [u64; 4],
    /// The units of its blocks that it was granted and has not spent, by log, and when the last block was asked for.
    pub(crate) blocks: [(u64, Option<Instant>); 4],
    /// Whether it has had a reply.
    pub(crate) has_heard: bool,
    /// Until when its messages are lost, and until when it stands still.
    pub(crate) cut_off: Option<Instant>,
    pub(crate) paused: Option<Instant>,
    /// When its last message arrives.
    lane: Option<Instant>,
}

impl Process {
    /// Forgets what the process knew.
    pub(crate) fn restart(&mut self) {
        let charged = self.charged;
        *self = Self {
            charged,
            cut_off: self.cut_off,
            paused: self.paused,
            lane: self.lane,
            ..Self::default()
        };
    }
}

/// Work that held a slot of a log.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) log: usize,
    /// The first and the last instant at which it ran.
    pub(crate) first: Instant,
    pub(crate) last: Instant,
    /// Whether slots may have been held whose entries the server has lost.
    pub(crate) is_excused: bool,
}

/// How a message travels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Journey {
    pub(crate) arrival: Instant,
    pub(crate) back: Duration,
    pub(crate) fate: Fate,
    /// Whether the sender notices that the connection broke.
    pub(crate) is_silent: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Fate {
    Arrives,
    RequestLost,
    ReplyLost,
    /// The connection breaks, but the server still reads the request.
    RequestLate,
}

/// What runs did. Printed as a table in Markdown, which depends on the histories alone.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// How often something was done, a fault began, or an exception of the guarantee applied.
    counts: BTreeMap<(Counted, &'static str), u64>,
    /// The fullest window of the server, relative to its maximum.
    pub(crate) worst: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Counted {
    Done,
    Fault,
    Exception,
}

impl Tally {
    /// Adds what another run did.
    pub fn add(&mut self, other: &Self) {
        for (name, count) in &other.counts {
            *self.counts.entry(*name).or_default() += count;
        }
        self.worst = self.worst.max(other.worst);
    }

    pub(crate) fn count(&mut self, what: Counted, name: &'static str) {
        *self.counts.entry((what, name)).or_default() += 1;
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "| | |\n|---|---:|")?;
        for ((what, name), count) in &self.counts {
            let kind = match what {
                Counted::Exception => "exception: ",
                _ => "",
            };
            writeln!(f, "| {kind}{name} | {count} |")?;
        }
        let name = "the fullest window, of its maximum";
        writeln!(f, "| {name} | {:.3} |", self.worst)
    }
}

pub(crate) struct World {
    pub(crate) start: Instant,
    pub(crate) setting: Setting,
    /// Of each log.
    pub(crate) policies: Vec<Policy>,
    /// The Redis keys of the logs, two of each limiter.
    keys: Vec<Vec<u8>>,
    pub(crate) books: Vec<Book>,
    pub(crate) calls: Vec<Call>,
    pub(crate) processes: [Process; 4],
    /// The work that held slots, and when the last successful acquire or renewal with a caller's id was sent.
    pub(crate) slots: Vec<Slot>,
    pub(crate) held: HashMap<EntryId, Instant>,
    redis: Redis,
    pub(crate) rows: Rows,
    /// How many messages were sent.
    unasked: u64,
    /// Whether the table refuses writes.
    pub(crate) is_refusing: bool,
    /// Microseconds by which the server's clock has stepped, and its last reading without steps.
    offset: i64,
    last: u64,
    /// Until when the server is stopped or dead, when the last message of those that waited goes, and how often it died.
    stopped: Instant,
    pub(crate) dead: Instant,
    queue: Instant,
    pub(crate) lives: u64,
    /// Copies for servers that lose their last writes.
    copies: Vec<(usize, Copy, Rows, Vec<Book>)>,
    /// Until when the network fails.
    lossy: Instant,
    slow: Instant,
    pub(crate) tally: Tally,
    pub(crate) broken: Vec<String>,
    pub(crate) trace: Option<String>,
}

/// The world, as its tasks share it.
#[derive(Clone)]
pub(crate) struct Shared(pub(crate) Arc<Mutex<World>>);

impl Shared {
    pub(crate) fn lock(&self) -> MutexGuard<'_, World> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("World")
    }
}

impl World {
    pub(crate) fn new(
        setting: Setting,
        policies: Vec<Policy>,
        keys: Vec<Vec<u8>>,
        redis: Redis,
        is_traced: bool,
    ) -> Self {
        let start = Instant::now();
        Self {
            start,
            setting,
            policies,
            books: vec![Book::default(); keys.len()],
            keys,
            calls: Vec::new(),
            processes: Default::default(),
            slots: Vec::new(),
            held: HashMap::new(),
            redis,
            rows: Rows::new(),
            unasked: 0,
            is_refusing: false,
            offset: 0,
            last: 0,
            stopped: start,
            dead: start,
            queue: start,
            lives: 0,
            copies: Vec::new(),
            lossy: start,
            slow: start,
            tally: Tally::default(),
            broken: Vec::new(),
            trace: is_traced.then(String::new),
        }
    }

    /// Adds a line to the trace.
    pub(crate) fn note(&mut self, line: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            let _ = writeln!(trace, "{:>6} {}", self.start.elapsed().as_millis(), line());
        }
    }

    /// Notes that a rule is broken.
    pub(crate) fn check<T>(&mut self, what: &str, result: Result<T>) -> Option<T> {
        if let Err(text) = &result {
            self.note(|| format!("BROKEN: {what} {text}"));
            self.broken.push(format!("{what} {text}"));
        }
        result.ok()
    }

    /// Returns the present by the server's clock.
    pub(crate) fn now(&self) -> Moment {
        self.moment(self.last.max(self.start.elapsed().as_micros() as u64))
    }

    fn moment(&self, real: u64) -> Moment {
        let line = (real as f64 * self.setting.speed) as u64;
        Moment {
            clock: (EPOCH + line).saturating_add_signed(self.offset),
            line,
        }
    }

    /// Advances the server's clock within the millisecond that tokio's timers have, often to a microsecond at which an entry of the log
    /// leaves a window, or one beside it.
    pub(crate) fn tick(&mut self, random: &mut Rng, log: Option<usize>) -> Moment {
        let real = self.start.elapsed().as_micros() as u64;
        let from = self.last.max(real);
        let to = from.max(real + 999);
        let mut edges = Vec::new();
        if let Some(log) = log.filter(|_| random.bool()) {
            let [first, last] = [from, to].map(|real| self.moment(real).clock);
            for edge in self.books[log].edges(&self.policies[log], first..=last) {
                let line = (edge + random.u64(..3)).saturating_add_signed(-self.offset);
                let line = line.saturating_sub(EPOCH + 1);
                edges.push((line as f64 / self.setting.speed).ceil() as u64);
            }
            edges.retain(|edge| (from..=to).contains(edge));
        }
        let between = random.u64(from..=from + (to - from) / 4);
        self.last = random.choice(edges).unwrap_or(between);
        self.moment(self.last)
    }

    /// Decides how a message travels. Those of one connection arrive in their order.
    pub(crate) fn send(&mut self, process: usize, call: Option<usize>) -> (Journey, Rng) {
        self.unasked += 1;
        let (salt, sent) = match call.and_then(|call| self.calls.get_mut(call)) {
            Some(call) => {
                call.sent += 1;
                call.replied = None;
                (call.salt, call.sent)
            }
            None => (self.last ^ 0x5eed ^ (process as u64) << 60, self.unasked),
        };
        let mut random = Rng::with_seed(salt ^ sent.wrapping_mul(0x9e37_79b9));
        let now = Instant::now();
        let is_lossy = now < self.lossy;
        let is_slow = now < self.slow;
        let mut trip = || {
            let longest = if is_slow && random.bool() { 400 } else { 3 };
            Duration::from_millis(random.u64(1..=longest))
        };
        let there = trip();
        let back = trip();
        let is_cut_off = self.processes[process].cut_off.is_some_and(|end| now < end);
        let fate = match random.u8(..8) {
            _ if is_cut_off => Fate::RequestLost,
            0 if is_lossy => Fate::RequestLost,
            1 | 2 if is_lossy => Fate::ReplyLost,
            3 if is_lossy => Fate::RequestLate,
            _ => Fate::Arrives,
        };
        let lane = &mut self.processes[process].lane;
        let after_last = lane.map_or(now, |last| last + Duration::from_millis(1));
        let mut arrival = (now + there).max(after_last);
        // After a broken connection, the next message goes through another one.
        *lane = (fate == Fate::Arrives).then_some(arrival);
        if fate == Fate::RequestLate {
            arrival += Duration::from_millis(random.u64(1..1_500));
        }
        let is_silent = fate != Fate::Arrives && random.bool();
        (
            Journey {
                arrival,
                back,
                fate,
                is_silent,
            },
            random,
        )
    }

    /// Returns until when a message waits at a stopped server. Those that waited go in their order.
    pub(crate) fn waits(&mut self) -> Option<Instant> {
        let now = Instant::now();
        (now < self.stopped.max(self.queue)).then(|| {
            self.queue = self.stopped.max(self.queue) + Duration::from_millis(1);
            self.queue
        })
    }

    /// Returns the number of the log with this key. Of other keys, the checker knows nothing.
    pub(crate) fn log_of(&self, key: &[u8]) -> Option<usize> {
        self.keys.iter().position(|other| other == key)
    }

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
        let now = self.tick(random, logs.first().copied());
        for log in logs.iter().copied() {
            let is_held = self.redis.holds(now.clock, &self.keys[log]);
            let result = self.books[log].expire(is_held, now);
            self.check(&format!("log {log}"), result);
        }
        let result = self.redis.execute(now.clock, command);
        let replies: Vec<&[u8]> = match &result {
            Ok(Value::Array(replies)) => replies.iter().map(bulk).collect(),
            Ok(reply) => vec![bulk(reply)],
            Err(_) => Vec::new(),
        };
        let mut replied = None;
        if is_reset && result.is_ok() {
            for log in &logs {
                self.books[*log].reset(&self.policies[*log], now.line);
                self.release(*log, process, call, now);
            }
            replied = Some(Vec::new());
        } else if !logs.is_empty() && !replies.is_empty() {
            let result = self.judge(process, call, &logs, rest, &replies, now);
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
        Executed { result, replied }
    }

    /// Checks what a script did with logs. Returns `None` if that is nothing.
    fn judge(
        &mut self,
        process: usize,
        call: Option<usize>,
        logs: &[usize],
        requests: &[&[u8]],
        replies: &[&[u8]],
        now: Moment,
    ) -> Result<Option<Judged>> {
        let is_refused = |reply: &&[u8]| reply.last() == Some(&127) || reply.first() == Some(&128);
        if replies.iter().any(is_refused) {
            return Ok(None);
        }
        if let Some(change) = call.and_then(|call| self.calls[call].change) {
            let asked = call.map(|call| self.calls[call].asked[0].clone());
            let asked = asked.context("settles without a call")?;
            let book = &mut self.books[asked.log];
            if book.settle(&asked, change, requests[0], replies[0], now)? {
                self.release(asked.log, process, call, now);
            }
            return Ok(Some(Vec::new()));
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
                None => ledger::swept(*log, request, wire.cost, at),
            };
            // A sweep peeks to read the clock.
            let Some(mut asked) = asked else {
                return Ok(None);
            };
            asked.cost = wire.cost;
            ops.push((asked, wire));
        }
        let facts = ledger::apply(&mut self.books, &ops, now)?;
        for (asked, wire) in ops.iter().filter(|(_, wire)| wire.is_appended()) {
            let book = &mut self.books[asked.log];
            let Some(call) = call.map(|call| &self.calls[call]) else {
                book.carry(wire.id, process, wire.cost);
                continue;
            };
            let must_be_in_time = call.has_deadline && !book.is_set_back;
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
        Ok(Some(wires.zip(facts).collect()))
    }

    /// Checks that at no instant more slots were held than the limit allows.
    pub(crate) fn check_slots(&mut self) {
        let held = |slot: &Slot| {
            let others = self.slots.iter().filter(|other| {
                other.log == slot.log && (other.first..=other.last).contains(&slot.first)
            });
            others.count() as u64
        };
        let mut slots = self.slots.iter().filter(|slot| !slot.is_excused);
        let result = slots.try_for_each(|slot| {
            let (held, max) = (held(slot), self.policies[slot.log].smallest_max());
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

    /// Steps the server's clock by this many microseconds.
    fn step_clock(&mut self, by: i64) {
        self.offset += by;
        let line = self.now().line;
        for (book, policy) in self.books.iter_mut().zip(&self.policies) {
            book.step(policy, by > 0, line);
            book.release(None, line);
        }
        let way = match by > 0 {
            true => "the server's clock was set forward",
            false => "the server's clock was set back",
        };
        self.tally.count(Counted::Exception, way);
    }

    /// Copies the server's data for the fault that this step brings.
    pub(crate) fn copy(&mut self, step: usize) {
        self.copies.push((
            step,
            self.redis.copy(),
            self.rows.clone(),
            self.books.clone(),
        ));
    }

    /// Begins a fault, perhaps of a process. `number` is that of its step.
    pub(crate) fn fail(
        &mut self,
        fault: Fault,
        process: usize,
        number: usize,
        length: u64,
        random: &mut Rng,
    ) {
        self.note(|| format!("fault {fault:?} for {length} ms"));
        let name = FAULTS.iter().find(|(_, other, _)| *other == fault);
        self.tally
            .count(Counted::Fault, name.map_or("", |(.., name)| name));
        let end = Instant::now() + Duration::from_millis(length);
        match fault {
            Fault::Loss => self.lossy = self.lossy.max(end),
            Fault::Delay => self.slow = self.slow.max(end),
            Fault::Stop => self.stopped = self.stopped.max(end),
            Fault::Flush => self.redis.flush_scripts(),
            Fault::Memory => self.refuse(Some(Refusal::Memory)),
            Fault::Replica => self.refuse(Some(Refusal::Replica)),
            Fault::ServerClock => self.step_clock(random.i64(-2_000_000..2_000_000)),
            Fault::Crash | Fault::Forget | Fault::Failover => {
                self.lives += 1;
                self.dead = self.dead.max(end);
                self.redis.flush_scripts();
                if let Some(place) = self.copies.iter().position(|(step, ..)| *step == number) {
                    let (_, copy, rows, books) = self.copies.remove(place);
                    self.redis.restore(copy);
                    self.rows = rows;
                    self.restore(books);
                }
                if fault == Fault::Failover {
                    self.step_clock(random.i64(-50_000..50_000));
                }
            }
            Fault::CutOff => self.processes[process].cut_off = Some(end),
            Fault::Pause => self.processes[process].paused = Some(end),
            Fault::ProcessClock | Fault::Restart => {}
        }
    }

    /// Replaces the books by those of an older copy.
    fn restore(&mut self, books: Vec<Book>) {
        let line = self.now().line;
        for ((book, mut old), policy) in self.books.iter_mut().zip(books).zip(&self.policies) {
            old.keep(book);
            old.lose(policy, line);
            old.release(None, line);
            *book = old;
        }
        self.tally.count(Counted::Exception, "writes were lost");
    }

    /// Ends a fault that does not end by itself.
    pub(crate) fn heal(&mut self, fault: Fault) {
        if matches!(fault, Fault::Memory | Fault::Replica) {
            self.note(|| format!("{fault:?} ends"));
            self.refuse(None);
        }
    }

    fn refuse(&mut self, refusal: Option<Refusal>) {
        self.is_refusing = refusal.is_some();
        self.redis.refuse(refusal);
    }
}

/// What the server did with a command.
pub(crate) struct Executed {
    pub(crate) result: Result<Value, RedisError>,
    pub(crate) replied: Option<Judged>,
}
