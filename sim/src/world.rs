//! The state of a history that is being played: the server with its clock and faults, and the trace.

mod faults;

use std::collections::HashMap;
use std::fmt::{self, Write as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Result;
use fastrand::Rng;
use limiter_core::store::EntryId;
use limiter_core::{Policy, Timestamp};
use tokio::time::Instant;

use crate::history::Setting;
use crate::ledger::calls::{Call, Process, Slot};
use crate::ledger::{Book, Moment};
use crate::memory::{Memory, Saved};
use crate::redis::{Copy, Redis};

/// The server's clock at the beginning, in microseconds.
pub(crate) const EPOCH: u64 = 1_700_000_000_000_000;

/// The bytes of each key, and when they may be removed.
pub(crate) type Rows = HashMap<Vec<u8>, (Vec<u8>, Timestamp)>;

/// The call that a task makes, if it makes one, and its process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller {
    pub(crate) number: Option<usize>,
    pub(crate) process: usize,
}

tokio::task_local! {
    pub(crate) static CALL: Caller;
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

pub(crate) struct World {
    pub(crate) start: Instant,
    pub(crate) setting: Setting,
    /// Of each log, and the policies that some of its operations bring.
    pub(crate) policies: Vec<Policy>,
    pub(crate) own: Vec<Policy>,
    /// The Redis keys of the logs, two of each limiter.
    pub(crate) keys: Vec<Vec<u8>>,
    pub(crate) books: Vec<Book>,
    pub(crate) calls: Vec<Call>,
    pub(crate) processes: [Process; 4],
    /// The work that held slots, and when the last successful acquire or renewal with a caller's id was sent.
    pub(crate) slots: Vec<Slot>,
    pub(crate) held: HashMap<EntryId, (Instant, i64)>,
    pub(crate) redis: Redis,
    pub(crate) rows: Rows,
    pub(crate) memory: Memory,
    /// How many messages were sent.
    unasked: u64,
    /// Until when nothing may be added, and the server's error for a log, or for all, and when that ends.
    full: Instant,
    refused: Option<(Option<usize>, Instant)>,
    /// Until when faults last or have consequences, and until when they last, or have changed what slots depend on.
    troubled: Instant,
    loud: Instant,
    /// Microseconds by which the server's clock has stepped, and its last reading without steps.
    offset: i64,
    last: u64,
    pub(crate) stepped: Option<Instant>,
    pub(crate) reloaded: Option<Instant>,
    /// Until when the server is stopped or dead, when the last message of those that waited goes, and how often it died.
    stopped: Instant,
    pub(crate) dead: Instant,
    queue: Instant,
    pub(crate) lives: u64,
    /// Copies for servers that lose their last writes.
    copies: Vec<(usize, Copy, Rows, Saved, Vec<Book>)>,
    /// Until when the network fails.
    lossy: Instant,
    slow: Instant,
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
        [policies, own]: [Vec<Policy>; 2],
        keys: Vec<Vec<u8>>,
        redis: Redis,
        is_traced: bool,
    ) -> Self {
        let start = Instant::now();
        Self {
            start,
            setting,
            policies,
            own,
            books: vec![Book::default(); keys.len()],
            keys,
            calls: Vec::new(),
            processes: Default::default(),
            slots: Vec::new(),
            held: HashMap::new(),
            redis,
            rows: Rows::new(),
            memory: Memory::default(),
            unasked: 0,
            full: start,
            refused: None,
            troubled: start,
            loud: start,
            offset: 0,
            last: 0,
            stepped: None,
            reloaded: None,
            stopped: start,
            dead: start,
            queue: start,
            lives: 0,
            copies: Vec::new(),
            lossy: start,
            slow: start,
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

    /// Returns how many microseconds after the start the server's clock shows a time.
    fn real(&self, clock: u64) -> u64 {
        let line = clock
            .saturating_add_signed(-self.offset)
            .saturating_sub(EPOCH);
        (line as f64 / self.setting.speed).ceil() as u64
    }

    /// Advances the server's clock within the millisecond that tokio's timers have, often to a microsecond at which an entry of the log
    /// leaves a window, or one beside it.
    pub(crate) fn tick(
        &mut self,
        random: &mut Rng,
        log: Option<usize>,
        deadline: Option<u64>,
    ) -> Moment {
        let real = self.start.elapsed().as_micros() as u64;
        let from = self.last.max(real);
        let to = from.max(real + 999);
        let mut edges = Vec::new();
        if let Some(log) = log.filter(|_| random.u8(..4) > 0) {
            edges = self.edges(log, deadline, from, to, |edge| edge + random.u64(..3) - 1);
        }
        let between = random.u64(from..=from + (to - from) / 4);
        self.last = random.choice(edges).unwrap_or(between);
        self.moment(self.last)
    }

    /// Returns when entries of a log leave a window, and another edge, moved by `shift`, between two times since the start.
    fn edges(
        &self,
        log: usize,
        other: Option<u64>,
        from: u64,
        to: u64,
        mut shift: impl FnMut(u64) -> u64,
    ) -> Vec<u64> {
        let [first, last] = [from, to].map(|real| self.moment(real).clock);
        let policies = [self.policies[log].clone(), self.own[log].clone()];
        let edges = self.books[log].edges(&policies, first..=last).into_iter();
        let edges = edges.chain(other.filter(|other| (first..=last).contains(other)));
        edges
            .map(|edge| self.real(shift(edge)))
            .filter(|edge| (from..=to).contains(edge))
            .collect()
    }

    /// Lets the next message of a process arrive when an entry of a log leaves a window. Returns when to send it, if that is soon.
    pub(crate) fn aim(&mut self, process: usize, log: usize, random: &mut Rng) -> Option<Instant> {
        let from = self.start.elapsed().as_micros() as u64 + 4_000;
        let edges = self.edges(log, None, from, from + 1_500_000, |edge| edge);
        self.aim_at(process, random.choice(edges)?)
    }

    /// Lets the next message of a process arrive when the server's clock shows a time. Returns when to send it, if that is soon.
    pub(crate) fn aim_at_clock(&mut self, process: usize, clock: u64) -> Option<Instant> {
        self.aim_at(process, self.real(clock))
    }

    fn aim_at(&mut self, process: usize, at: u64) -> Option<Instant> {
        let at = self.start + Duration::from_millis(at / 1_000);
        let sent = at.checked_sub(Duration::from_millis(2))?;
        let is_soon = (Duration::ZERO..Duration::from_secs(2))
            .contains(&(sent.checked_duration_since(Instant::now())?));
        self.processes[process].aim = is_soon.then_some(at);
        is_soon.then_some(sent)
    }

    /// Decides how a message travels. Those of one connection arrive in their order.
    pub(crate) fn send(&mut self, process: usize, call: Option<usize>) -> (Journey, Rng) {
        self.unasked += 1;
        let (salt, sent) = match call.and_then(|call| self.calls.get_mut(call)) {
            Some(call) => {
                call.sent += 1;
                (call.replied, call.is_refused) = (None, false);
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
        let sender = &mut self.processes[process];
        let is_cut_off = sender.cut_off.is_some_and(|end| now < end);
        let fate = match random.u8(..8) {
            _ if is_cut_off => Fate::RequestLost,
            0 if is_lossy => Fate::RequestLost,
            1 | 2 if is_lossy => Fate::ReplyLost,
            3 if is_lossy => Fate::RequestLate,
            _ => Fate::Arrives,
        };
        let after_last = sender
            .lane
            .map_or(now, |last| last + Duration::from_millis(1));
        let aim = sender
            .aim
            .take_if(|aim| now < *aim)
            .filter(|aim| *aim < now + Duration::from_millis(4));
        let mut arrival = aim.unwrap_or(now + there).max(after_last);
        // After a broken connection, the next message goes through another one.
        sender.lane = (fate == Fate::Arrives).then_some(arrival);
        if fate == Fate::RequestLate {
            arrival += Duration::from_millis(random.u64(1..1_500));
        }
        if fate == Fate::RequestLate || is_slow {
            self.trouble(arrival + back);
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

    pub(crate) fn is_full(&self) -> bool {
        Instant::now() < self.full
    }

    /// Returns the server's error for a command about these logs that it refuses, although it is well.
    pub(crate) fn refusal(&mut self, logs: &[usize]) -> Option<&'static str> {
        match self.refused.filter(|(_, end)| Instant::now() < *end)?.0 {
            None => Some("NOPERM this user has no permissions"),
            Some(log) => logs
                .contains(&log)
                .then_some("WRONGTYPE Operation against a key holding the wrong kind of value"),
        }
    }

    fn trouble(&mut self, until: Instant) {
        self.troubled = self.troubled.max(until);
    }

    /// Returns `true` if nothing has gone wrong since a moment, nor has anything before that consequences.
    pub(crate) fn is_well_since(&self, moment: Instant) -> bool {
        self.troubled < moment
    }

    /// Returns `true` if no fault has lasted since a moment, nor cost an entry or a clock's word shortly before.
    pub(crate) fn is_quiet_since(&self, moment: Instant) -> bool {
        self.loud < moment
    }
}
