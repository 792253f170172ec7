//! The state of a history that is being played: the server with its clock and faults, the checker's books, and the trace.

use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fastrand::Rng;
use redis::{Arg, Cmd, RedisError, Value};
use tokio::time::Instant;

use crate::history::{Fault, Setting};
use crate::ledger::{Asked, Log, Moment, Policies, Wire};
use crate::redis::{Copy, Redis, Refusal};

/// The server's clock at the beginning, in microseconds.
const EPOCH: u64 = 1_700_000_000_000_000;

/// A call of a process, as the network and the checker see it.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) salt: u64,
    pub(crate) asked: Vec<Asked>,
    /// The call whose entry this one settles, and its new cost.
    pub(crate) settles: Option<(usize, u64)>,
    /// How many messages it has sent.
    pub(crate) sent: u64,
    /// What the last reply that arrived said about each log.
    pub(crate) replied: Option<Vec<(Wire, Option<u64>)>>,
    /// When it ended, and whether its process knew the server's clock, and so had a deadline.
    pub(crate) ended: Option<Instant>,
    pub(crate) has_deadline: bool,
}

/// By how much a deadline may be late: the time of the slowest reply.
const SLOWEST: Duration = Duration::from_secs(1);

impl Call {
    fn is_late(&self) -> bool {
        let is_past = |ended: Instant| ended.elapsed() > SLOWEST;
        self.has_deadline && self.ended.is_some_and(is_past)
    }
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

/// What a run found.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// How many calls ended.
    pub calls: u64,
    /// How many commands the server executed.
    pub commands: u64,
    /// How often each fault began.
    pub faults: std::collections::BTreeMap<&'static str, u64>,
    /// How often each exception of the guarantee applied.
    pub exceptions: std::collections::BTreeMap<&'static str, u64>,
    /// The fullest window of the server, relative to its maximum.
    pub worst: f64,
}

pub(crate) struct World {
    pub(crate) start: Instant,
    pub(crate) setting: Setting,
    pub(crate) policies: Vec<Policies>,
    /// The Redis keys of the logs, two of each limiter.
    pub(crate) keys: Vec<Vec<u8>>,
    pub(crate) books: Vec<Log>,
    pub(crate) calls: Vec<Call>,
    pub(crate) redis: Redis,
    /// Microseconds by which the server's clock has stepped, and its last reading without steps.
    pub(crate) offset: i64,
    last: u64,
    /// Until when the server is stopped or dead, when the last message of those that waited goes, and how often it died.
    pub(crate) stopped: Instant,
    pub(crate) dead: Instant,
    queue: Instant,
    pub(crate) lives: u64,
    /// Copies for servers that lose their last writes.
    pub(crate) copies: Vec<(usize, Copy, Vec<Log>)>,
    /// Until when the network fails, and when each process's last message arrives.
    pub(crate) lossy: Instant,
    pub(crate) slow: Instant,
    pub(crate) lanes: [Instant; 4],
    /// Whether each process has had a reply.
    pub(crate) has_heard: [bool; 4],
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

impl World {
    pub(crate) fn new(
        setting: Setting,
        policies: Vec<Policies>,
        keys: Vec<Vec<u8>>,
        redis: Redis,
        is_traced: bool,
    ) -> Self {
        let start = Instant::now();
        Self {
            start,
            setting,
            policies,
            books: vec![Log::default(); keys.len()],
            keys,
            calls: Vec::new(),
            redis,
            offset: 0,
            last: 0,
            stopped: start,
            dead: start,
            queue: start,
            lives: 0,
            copies: Vec::new(),
            lossy: start,
            slow: start,
            lanes: [start; 4],
            has_heard: [false; 4],
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
    pub(crate) fn check(&mut self, what: &str, result: Result<(), String>) {
        if let Err(text) = result {
            self.note(|| format!("BROKEN: {what} {text}"));
            self.broken.push(format!("{what} {text}"));
        }
    }

    /// Counts an exception that the guarantee makes.
    pub(crate) fn except(&mut self, what: &'static str) {
        *self.tally.exceptions.entry(what).or_default() += 1;
    }

    /// Returns the present by the server's clock.
    pub(crate) fn now(&self) -> Moment {
        let real = self.last.max(self.start.elapsed().as_micros() as u64);
        self.moment(real)
    }

    fn moment(&self, real: u64) -> Moment {
        let line = (real as f64 * self.setting.speed) as u64;
        Moment {
            clock: (EPOCH + line).saturating_add_signed(self.offset),
            line,
        }
    }

    /// Advances the server's clock within the millisecond that tokio's timers have: often to where an entry expires.
    fn tick(&mut self, random: &mut Rng, log: Option<usize>) -> Moment {
        let from = self.last.max(self.start.elapsed().as_micros() as u64);
        let to = from.max(self.start.elapsed().as_micros() as u64 + 999);
        let mut edges = Vec::new();
        if let Some(log) = log.filter(|_| random.bool()) {
            for edge in self.books[log].edges(&self.policies[log / 2].default) {
                let line = (edge + random.u64(..3))
                    .saturating_sub(EPOCH + 1)
                    .saturating_add_signed(-self.offset);
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
        let (salt, sent) = match call.and_then(|call| self.calls.get_mut(call)) {
            Some(call) => {
                call.sent += 1;
                call.replied = None;
                (call.salt, call.sent)
            }
            None => (self.tally.commands ^ 0x5eed, 0),
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
        let fate = match random.u8(..8) {
            0 if is_lossy => Fate::RequestLost,
            1 | 2 if is_lossy => Fate::ReplyLost,
            3 if is_lossy => Fate::RequestLate,
            _ => Fate::Arrives,
        };
        let lane = &mut self.lanes[process];
        let mut arrival = (now + there).max(*lane + Duration::from_millis(1));
        *lane = arrival;
        if fate != Fate::Arrives {
            // The next message goes through another connection.
            *lane = now;
        }
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
        let keys: Vec<&[u8]> = match &*args {
            [b"UNLINK", key] => vec![key],
            [_, _, count, rest @ ..] => {
                let count = String::from_utf8_lossy(count).parse().unwrap_or(0);
                rest.iter().copied().take(count).collect()
            }
            _ => Vec::new(),
        };
        let logs: Vec<_> = keys
            .iter()
            .map(|key| self.keys.iter().position(|other| other == key))
            .collect();
        let now = self.tick(random, logs.first().copied().flatten());
        for log in logs.iter().copied().flatten() {
            if !self.redis.holds(now.clock, &self.keys[log]) {
                self.books[log].forget();
            }
        }
        let result = self.redis.execute(now.clock, command);
        self.tally.commands += 1;
        let replies: Vec<&[u8]> = match &result {
            Ok(Value::BulkString(reply)) => vec![reply],
            Ok(Value::Array(replies)) => replies
                .iter()
                .map(|reply| match reply {
                    Value::BulkString(reply) => &**reply,
                    _ => &[],
                })
                .collect(),
            _ => Vec::new(),
        };
        let mut wires = Vec::new();
        // A joint decision refunds what it charged before a part was denied.
        let is_change = self.redis.changes_entry(&args);
        let settles = call
            .filter(|_| is_change)
            .map(|call| self.calls[call].settles.unwrap_or((call, 0)));
        for (i, log) in logs.iter().enumerate() {
            let Some(log) = *log else { continue };
            let policies = self.policies[log / 2].clone();
            let what = format!("log {log}, call {call:?}");
            if args[0] == b"UNLINK" && result.is_ok() {
                self.books[log].reset(&policies.default, now.line);
                self.release(log, process, call, now);
                continue;
            }
            let (Some(reply), Some(request)) = (replies.get(i), args.get(3 + keys.len() + i))
            else {
                continue;
            };
            let flags = reply.last().copied().unwrap_or(0);
            let is_reply = flags != 127 && reply.first() != Some(&128);
            if let Some((target, cost)) = settles {
                if flags & 1 != 0 {
                    let result = self.books[log].settle(&policies.default, target, cost, now);
                    self.check(&what, result);
                    self.release(log, process, call, now);
                }
            } else if is_reply && !is_change && request.len() > 17 {
                let number = |bytes: &[u8]| {
                    bytes
                        .iter()
                        .fold(0, |number, byte| number << 8 | u64::from(*byte))
                };
                let given = args
                    .get(3 + 2 * keys.len())
                    .map(|given| String::from_utf8_lossy(given));
                let given = given.and_then(|given| given.parse().ok());
                let wire = Wire {
                    process,
                    kind: request[2],
                    cost: number(&request[10..17]),
                    given,
                    flags,
                    attempt: request
                        .get(17..33)
                        .and_then(|id| id.try_into().ok())
                        .unwrap_or_default(),
                };
                let asked = call.and_then(|call| {
                    self.calls[call]
                        .asked
                        .iter()
                        .find(|asked| asked.log == log)
                        .cloned()
                });
                let result = self.books[log].apply(&policies, asked.as_ref(), &wire, now);
                let is_late = call.is_some_and(|call| self.calls[call].is_late());
                if is_late && self.books[log].counts_late(&wire) {
                    self.check(&what, Err("counts after its caller gave up".to_owned()));
                }
                wires.push((wire, result.as_ref().ok().copied().flatten()));
                self.check(&what, result.map(drop));
            }
        }
        self.note(|| {
            let name = String::from_utf8_lossy(args[0]);
            let flags: Vec<_> = wires
                .iter()
                .map(|(wire, _)| (wire.kind, wire.cost, wire.flags))
                .collect();
            let failed = result
                .as_ref()
                .err()
                .map(ToString::to_string)
                .unwrap_or_default();
            let failed: String = failed.chars().take(60).collect();
            format!(
                "  server {} {name} logs {logs:?} of p{process} call {call:?}: {flags:?} {failed}",
                now.clock - EPOCH
            )
        });
        Executed {
            result,
            wires,
            life: self.lives,
        }
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
        for (log, book) in self.books.iter_mut().enumerate() {
            book.step(&self.policies[log / 2].default, by > 0, line);
            book.release(None, line);
        }
        self.except(if by > 0 {
            "the server's clock was set forward"
        } else {
            "the server's clock was set back"
        });
    }

    /// Begins a fault. `number` is that of its step.
    pub(crate) fn fail(&mut self, fault: Fault, number: usize, length: u64, random: &mut Rng) {
        self.note(|| format!("fault {fault:?} for {length} ms"));
        *self.tally.faults.entry(fault.name()).or_default() += 1;
        let end = Instant::now() + Duration::from_millis(length);
        match fault {
            Fault::Loss => self.lossy = self.lossy.max(end),
            Fault::Delay => self.slow = self.slow.max(end),
            Fault::Stop => self.stopped = self.stopped.max(end),
            Fault::Flush => self.redis.flush_scripts(),
            Fault::Memory => self.redis.refuse(Some(Refusal::Memory)),
            Fault::Replica => self.redis.refuse(Some(Refusal::Replica)),
            Fault::ServerClock => self.step_clock(random.i64(-2_000_000..2_000_000)),
            Fault::Crash | Fault::Forget | Fault::Failover => {
                self.lives += 1;
                self.dead = self.dead.max(end);
                self.redis.flush_scripts();
                if fault != Fault::Crash
                    && let Some(place) = self.copies.iter().position(|(step, ..)| *step == number)
                {
                    let (_, copy, books) = self.copies.remove(place);
                    self.redis.restore(copy);
                    let line = self.now().line;
                    // What processes hold in blocks may be lost.
                    for (log, (book, mut old)) in self.books.iter_mut().zip(books).enumerate() {
                        old.worst = old.worst.max(book.worst);
                        old.lose(&self.policies[log / 2].default, line);
                        old.release(None, line);
                        *book = old;
                    }
                    self.except("writes were lost");
                }
                if fault == Fault::Failover {
                    self.step_clock(random.i64(-50_000..50_000));
                }
            }
            Fault::ProcessClock | Fault::Restart => {}
        }
    }

    /// Ends a fault that does not end by itself.
    pub(crate) fn heal(&mut self, fault: Fault) {
        if matches!(fault, Fault::Memory | Fault::Replica) {
            self.note(|| format!("{fault:?} ends"));
            self.redis.refuse(None);
        }
    }
}

/// What the server did with a command.
pub(crate) struct Executed {
    pub(crate) result: Result<Value, RedisError>,
    pub(crate) wires: Vec<(Wire, Option<u64>)>,
    pub(crate) life: u64,
}
