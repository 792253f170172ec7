//! What the checker knows of calls, processes and slots.

use std::time::Duration;

use anyhow::{Result, ensure};
use limiter_core::Receipt;
use limiter_core::store::Change;
use tokio::time::Instant;

use super::list::Seen;
use super::wire::Wire;
use super::{Asked, Book};

/// What a script did with each log: what the server received, and what the caller must see.
pub(crate) type Judged = Vec<(Wire, Option<Seen>)>;

/// A decision or a change that a process asks its stack for.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) salt: u64,
    pub(crate) asked: Vec<Asked>,
    pub(crate) settles: Option<(Change, Receipt)>,
    /// The process and the log, if it settles or resets.
    pub(crate) changes: Option<(usize, usize)>,
    /// How many messages it has sent.
    pub(crate) sent: u64,
    /// What the last reply that arrived said, and whether that was an error that is no outage.
    pub(crate) replied: Option<Judged>,
    pub(crate) is_refused: bool,
    pub(crate) begun: Instant,
    /// When it ended, and whether its process knew the server's clock, and so had a deadline.
    pub(crate) ended: Option<Instant>,
    pub(crate) has_deadline: bool,
    /// Whether the breaker let it pass, and whether that was open when it began.
    pub(crate) has_passed: bool,
    pub(crate) was_blocked: bool,
}

/// The units of a block that a process was granted and has not spent, and when it asked for the last one, by both its clocks.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Block {
    pub(crate) units: u64,
    pub(crate) asked: Option<(Instant, i64)>,
}

/// What the checker knows of a process.
#[derive(Default)]
pub(crate) struct Process {
    /// How often it was started again.
    pub(crate) life: u64,
    /// What it admitted locally, by log, and when and how much it charged locally in all its lives: at most, and at least.
    pub(crate) local: [Book; 4],
    pub(crate) charges: [Vec<(Instant, u64, u64)>; 4],
    pub(crate) blocks: [Block; 4],
    pub(crate) breaker: Breaker,
    /// Whether it has had a reply, and when its last call failed.
    pub(crate) has_heard: bool,
    pub(crate) failed: Option<Instant>,
    /// Until when its messages are lost, and until when it stands still.
    pub(crate) cut_off: Option<Instant>,
    pub(crate) paused: Option<Instant>,
    /// When its last message arrives, and when its next one should.
    pub(crate) lane: Option<Instant>,
    pub(crate) aim: Option<Instant>,
}

impl Process {
    /// Forgets what the process knew.
    pub(crate) fn restart(&mut self) {
        (0..4).for_each(|log| self.forgive(log));
        let charges = std::mem::take(&mut self.charges);
        *self = Self {
            life: self.life + 1,
            charges,
            cut_off: self.cut_off,
            paused: self.paused,
            lane: self.lane,
            ..Self::default()
        };
    }

    /// Returns `true` if it stands still now or did so after a moment.
    pub(crate) fn was_paused_since(&self, moment: Instant) -> bool {
        self.paused.is_some_and(|end| end > moment)
    }

    /// Returns how much it charged at most, and how much of that must reach the server, though a part of it may have expired.
    pub(crate) fn charged(&self, log: usize, young: Duration) -> (u64, u64) {
        let charges = self.charges[log].iter();
        let is_young = |(at, ..): &&(Instant, u64, u64)| at.elapsed() < young;
        let due = charges
            .clone()
            .filter(is_young)
            .map(|(.., least)| least)
            .sum();
        (charges.map(|(_, most, _)| most).sum(), due)
    }

    /// Notes that an entry which it charged has another cost.
    pub(crate) fn settle(&mut self, log: usize, mut before: u64, cost: u64) {
        for (.., least) in self.charges[log].iter_mut().rev() {
            let taken = before.min(*least);
            (*least, before) = (*least - taken, before - taken);
        }
        self.charges[log].push((Instant::now(), cost, 0));
    }

    /// Notes that charges of a log need not reach the server.
    pub(crate) fn forgive(&mut self, log: usize) {
        self.charges[log]
            .iter_mut()
            .for_each(|(.., least)| *least = 0);
    }
}

/// The circuit breaker as its documentation describes it.
#[derive(Default)]
pub(crate) struct Breaker {
    failures: u32,
    failed: Option<Instant>,
    /// While it is open, when the next call passes.
    probe: Option<Instant>,
}

pub(crate) const PAUSE: Duration = Duration::from_millis(300);

impl Breaker {
    /// Returns `true` if calls are blocked.
    pub(crate) fn is_open(&self) -> bool {
        let is_gone = |probe: Instant| {
            let last = self.failed.map_or(probe, |failed| failed.max(probe));
            last.elapsed() > Duration::from_secs(60)
        };
        self.probe
            .is_some_and(|probe| Instant::now() < probe && !is_gone(probe))
    }

    /// Notes that a call passes.
    pub(crate) fn pass(&mut self) -> Result<()> {
        ensure!(
            !self.is_open(),
            "calls the store although the breaker is open"
        );
        self.probe = self.probe.map(|_| Instant::now() + PAUSE);
        Ok(())
    }

    /// Notes a result: a response, a failure, or neither.
    pub(crate) fn note(&mut self, is_response: Option<bool>, threshold: u32) {
        let now = Instant::now();
        match is_response {
            Some(true) => (self.failures, self.probe) = (0, None),
            Some(false) => {
                let is_old = |failed: Instant| failed.elapsed() > Duration::from_secs(60);
                if self.failed.is_some_and(is_old) {
                    (self.failures, self.probe) = (0, None);
                }
                self.failed = Some(now);
                if self.probe.is_none() {
                    self.failures += 1;
                    self.probe = (self.failures >= threshold).then(|| now + PAUSE);
                }
            }
            None => self.probe = self.probe.map(|_| now),
        }
    }

    /// Notes a call that the breaker has blocked.
    pub(crate) fn block(&mut self) {
        self.failed = Some(Instant::now());
    }
}

/// Work that held a slot of a log.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) log: usize,
    /// The first and the last instant at which it ran.
    pub(crate) first: Instant,
    pub(crate) last: Instant,
    /// How many the policy allowed with which it was acquired.
    pub(crate) max: u64,
    /// Whether slots may have been held whose entries the server has lost.
    pub(crate) is_excused: bool,
}
