//! The checker's books: what each log of the server must hold, and what was admitted, as seen from outside.
//!
//! A copy of the server's data has a copy of its books, so that they are restored together.

pub(crate) mod calls;
pub(crate) mod list;
mod rows;
pub(crate) mod wire;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::RangeInclusive;

use anyhow::{Context, Result, ensure};
use limiter_core::store::{At, Change, EntryId, JointOp, Mode};
use limiter_core::{Limit, Policy, Receipt, Timestamp};
use limiter_redis::format::REPEATED;

use self::list::{Entry, List, Seen};
use self::wire::Wire;

/// A moment by the server's clock, and by that clock without its steps, in microseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Moment {
    pub(crate) clock: u64,
    pub(crate) line: u64,
}

impl Moment {
    pub(crate) fn time(self) -> Timestamp {
        Timestamp::from_micros_saturating(self.clock)
    }
}

/// An operation on a log, or the record to which a settlement belongs.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) log: usize,
    pub(crate) mode: Mode,
    pub(crate) cost: u64,
    /// The given time.
    pub(crate) at: Option<u64>,
    pub(crate) policy: Policy,
    pub(crate) limiter_policy: Option<Policy>,
    pub(crate) is_advisory: bool,
    pub(crate) keeps_charge: bool,
}

impl Asked {
    pub(crate) fn of(log: usize, joint: &JointOp<'_>) -> Self {
        let op = &joint.op;
        Self {
            log,
            mode: op.mode,
            cost: op.cost,
            at: match op.at {
                At::StoreClock => None,
                At::Given(at) => Some(at.as_micros()),
            },
            policy: op.policy.clone(),
            limiter_policy: op.limiter_policy.cloned(),
            is_advisory: joint.is_advisory,
            keeps_charge: joint.keeps_charge,
        }
    }

    pub(crate) fn to_peek(&self) -> Self {
        let mode = Mode::Peek;
        Self {
            mode,
            ..self.clone()
        }
    }

    fn denies(&self, fits: bool) -> bool {
        !fits && !self.is_advisory && self.mode != Mode::Record
    }
}

/// The books of one log.
#[derive(Clone, Default)]
pub(crate) struct Book {
    /// What the server must hold.
    pub(crate) list: List,
    /// The ids of all entries that it ever held.
    known: HashSet<EntryId>,
    /// When, how much, and as which entry, with the limiter's policy: by the line of the server's clock.
    admitted: Vec<(u64, u64, EntryId)>,
    /// Until when exceptions excuse admissions, and slots whose entries are lost may be held.
    excused: u64,
    lost: u64,
    /// Whether an entry without room displaced others, or the newest may have been refunded.
    is_displaced: bool,
    is_refunded: bool,
    /// Whether the server's clock was set back, so that late requests count, and retries do not find their entries.
    pub(crate) is_set_back: bool,
    /// What each process carried over.
    carried: HashMap<EntryId, (usize, u64)>,
    /// When others last released units, for each process.
    released: [u64; 4],
    /// Calls of a table's stores that may still append, and the entries in saved rows that no call has returned.
    pub(crate) open: u64,
    unnamed: BTreeSet<EntryId>,
    /// The last entry of each caller's id, and when it was returned.
    callers: HashMap<EntryId, (EntryId, u64)>,
    /// How many resets of a table's stores are under way, and when the last one ended.
    resets: u64,
    reset_at: u64,
}

fn longest(policy: &Policy) -> u64 {
    policy.longest_window().as_micros()
}

/// Applies operations that the server executed as one, and checks its verdicts. Returns what their callers must see, except for
/// repetitions.
pub(crate) fn apply(
    books: &mut [Book],
    ops: &[(Asked, Wire)],
    clock: u64,
) -> Result<Vec<Option<Seen>>> {
    let repeats = |wire: &Wire| wire.has(REPEATED);
    let verdicts = ops.iter().map(|(asked, wire)| {
        let fits = books[asked.log].list.judge(asked, clock);
        if repeats(wire) {
            wire.is_admitted()
        } else {
            fits.fits
        }
    });
    let fits: Vec<bool> = verdicts.collect();
    let denying = || (0..ops.len()).filter(|&i| ops[i].0.denies(fits[i]));
    // A repeated denial denies the others.
    let denier = denying().find(|&i| repeats(&ops[i].1)).or(denying().next());
    let mut results = Vec::new();
    for (i, (asked, wire)) in ops.iter().enumerate() {
        let is_held = denier.is_some_and(|denier| denier != i) && !asked.keeps_charge;
        let asked = if is_held { &asked.to_peek() } else { asked };
        results.push(books[asked.log].apply(asked, wire, clock)?);
    }
    Ok(results)
}

impl Book {
    /// Checks that the server holds a log until it may expire.
    pub(crate) fn expire(&mut self, is_held: bool, now: Moment) -> Result<()> {
        if !is_held && !self.list.entries.is_empty() {
            let has_expired = now.clock >= self.list.expires_at;
            self.list = List::default();
            ensure!(has_expired, "is gone before its entries have expired");
        }
        Ok(())
    }

    fn apply(&mut self, asked: &Asked, wire: &Wire, clock: u64) -> Result<Option<Seen>> {
        let original = self.list.find(wire.id, asked, clock);
        if wire.has(REPEATED) {
            ensure!(self.knows(wire.id), "repeats what nobody did");
            let is_there = original.is_some() || !wire.has_callers_id;
            ensure!(is_there, "repeats what no longer counts");
            let is_same = original.is_none_or(|entry| entry.fits == wire.is_admitted());
            ensure!(is_same, "repeats a different verdict");
            return Ok(None);
        }
        let must_repeat = original.is_some() && !self.is_set_back && asked.mode != Mode::Peek;
        let counts_twice = must_repeat && (wire.is_appended() || wire.has_callers_id);
        ensure!(!counts_twice, "counts twice");
        let verdict = self.list.judge(asked, clock);
        ensure!(
            (wire.is_admitted(), wire.is_appended()) == (verdict.fits, verdict.appends),
            "{wire:?} is unlike the contract: {asked:?}, {verdict:?}, {:?}",
            self.list
        );
        if verdict.appends {
            let entry = Entry {
                id: wire.id,
                at: self.list.time(asked, clock),
                cost: asked.cost,
                fits: verdict.fits,
                is_merged: false,
                is_renewed: false,
            };
            self.list.append(asked, entry, clock);
            self.known.insert(wire.id);
            self.is_displaced |= !verdict.is_refundable;
        }
        Ok(Some(self.list.seen(asked, verdict.fits, clock)))
    }

    /// Notes an admission, and checks every window that it ends.
    pub(crate) fn admit(
        &mut self,
        policy: &Policy,
        id: EntryId,
        cost: u64,
        now: Moment,
    ) -> Result<()> {
        self.admitted.push((now.line, cost, id));
        self.check(policy, now.line)
    }

    /// Checks the windows that end at a moment.
    fn check(&mut self, policy: &Policy, line: u64) -> Result<()> {
        let is_excused = line < self.excused;
        for limit in policy.limits().iter().filter(|_| !is_excused) {
            let window = limit.stated_window().as_micros();
            let admitted = sum_within(&self.admitted, window, line);
            ensure!(
                admitted <= limit.max(),
                "a window of {limit} admits {admitted}"
            );
        }
        Ok(())
    }

    /// Notes an acquire that a process decided from a block, unless the server may have lost that.
    pub(crate) fn spend(&mut self, policy: &Policy, cost: u64, now: Moment) -> Result<()> {
        if now.line < self.excused {
            return Ok(());
        }
        self.admit(policy, 0.into(), cost, now)
    }

    /// Notes what a process carried over.
    pub(crate) fn carry(&mut self, id: EntryId, process: usize, cost: u64) {
        self.carried.insert(id, (process, cost));
    }

    /// Returns what a process carried over.
    pub(crate) fn carried_by(&self, process: usize) -> u64 {
        let own = self.carried.values().filter(|(by, _)| *by == process);
        own.map(|(_, cost)| cost).sum()
    }

    /// Notes a settlement that the server executed, and checks whether it took effect. A renewed entry may have another id.
    pub(crate) fn settle(
        &mut self,
        asked: &Asked,
        (change, receipt): (Change, Receipt),
        (is_applied, renewed): (bool, Option<EntryId>),
        now: Moment,
    ) -> Result<()> {
        let named = receipt.entry();
        let before = self.list.settle(asked, (change, receipt), now.clock);
        let is_right = is_applied == before.is_some();
        ensure!(is_right, "settles: {is_applied}, unlike the contract");
        match change {
            Change::Cost(cost) if is_applied => {
                self.lower(named, cost, named);
                if self.is_displaced {
                    self.excuse(
                        asked.limiter_policy.as_ref().unwrap_or(&asked.policy),
                        now.line,
                    );
                }
            }
            _ => {}
        }
        if let Some(id) = renewed {
            self.list.entries.last_mut().context("lost")?.id = id;
            self.known.insert(id);
        }
        Ok(())
    }

    /// Notes a settlement, after which the entry has this id.
    pub(crate) fn lower(&mut self, id: EntryId, cost: u64, after: EntryId) {
        for admission in self.admitted.iter_mut().filter(|(.., of)| *of == id) {
            (admission.1, admission.2) = (admission.1.min(cost), after);
        }
        self.is_refunded = true;
    }

    /// Excuses what admissions after this moment may exceed, because entries that the server no longer counts may still count.
    fn excuse(&mut self, policy: &Policy, line: u64) {
        self.admitted.clear();
        self.excused = self.excused.max(line + longest(policy));
        self.lost = self.lost.max(self.excused);
    }

    /// Notes that the server's clock stepped.
    pub(crate) fn step(&mut self, policy: &Policy, is_forward: bool, line: u64) {
        self.is_set_back |= !is_forward;
        if is_forward || self.is_refunded {
            self.excuse(policy, line);
        }
    }

    /// Notes that the default policy changes. Calls that have begun keep the old one.
    pub(crate) fn change(&mut self, policy: &Policy, line: u64) {
        self.excused = self.excused.max(line + 15_000_000 + longest(policy));
    }

    /// Notes that all entries are gone.
    pub(crate) fn reset(&mut self, policy: &Policy, line: u64) {
        self.list = List::default();
        self.is_displaced = false;
        self.admitted.clear();
        self.lose(policy, line);
    }

    /// Notes that this is an older copy, of which later entries are lost, and with them blocks that processes hold.
    pub(crate) fn lose(&mut self, policy: &Policy, line: u64) {
        let lease = policy.lease().unwrap_or_default().as_micros() as u64;
        self.excused = self.excused.max(line + lease * 65 / 64);
        self.lost = self.lost.max(line + longest(policy));
    }

    /// Keeps what does not depend on the server's data, and replaces the rest by that of an older copy.
    pub(crate) fn keep(&mut self, newer: &Self) {
        self.excused = self.excused.max(newer.excused);
        self.lost = self.lost.max(newer.lost);
        self.is_set_back |= newer.is_set_back;
        self.carried.clone_from(&newer.carried);
        self.unnamed.clone_from(&newer.unnamed);
        (self.open, self.resets, self.reset_at) = (newer.open, newer.resets, newer.reset_at);
    }

    /// Notes that units were released. The process that knows may be one that no longer repeats its denial.
    pub(crate) fn release(&mut self, known_by: Option<usize>, line: u64) {
        for (process, released) in self.released.iter_mut().enumerate() {
            if known_by != Some(process) {
                *released = line;
            }
        }
    }

    /// Checks a denial that a process repeated, which the server decided at most `ttl` before.
    pub(crate) fn repeat(
        &self,
        asked: &Asked,
        process: usize,
        now: Moment,
        ttl: u64,
    ) -> Result<()> {
        let fits = self.list.judge(asked, now.clock).fits;
        let holds = !fits || now.line < self.released[process] + ttl;
        ensure!(
            holds,
            "repeats a denial of {} that no longer holds",
            asked.cost
        );
        Ok(())
    }

    /// Returns `true` if an entry with this id is in the log.
    pub(crate) fn holds(&self, id: EntryId) -> bool {
        self.list.entries.iter().any(|entry| entry.id == id)
    }

    /// Returns `true` if the server appended an entry with this id.
    pub(crate) fn knows(&self, id: EntryId) -> bool {
        self.known.contains(&id)
    }

    /// Returns `true` if slots may be held whose entries the server has lost.
    pub(crate) fn has_lost_slots(&self, now: Moment) -> bool {
        now.line < self.lost
    }

    /// Returns when entries leave a window of these policies, in a range of times by the server's clock, in microseconds.
    pub(crate) fn edges(&self, policies: &[Policy], range: RangeInclusive<u64>) -> Vec<u64> {
        let limits: Vec<Limit> = policies.iter().flat_map(Policy::limits).copied().collect();
        let edges = self.list.entries.iter().flat_map(|entry| {
            let edge = |limit: &Limit| entry.at + limit.window().as_micros();
            limits.iter().map(edge)
        });
        edges.filter(|edge| range.contains(edge)).collect()
    }
}

/// Returns the sum of what was admitted in the window that ends now.
pub(crate) fn sum_within(admitted: &[(u64, u64, EntryId)], window: u64, now: u64) -> u64 {
    let is_within = |(at, ..): &&(u64, u64, EntryId)| *at <= now && now - at < window;
    let within = admitted.iter().filter(is_within);
    within.map(|(_, cost, _)| cost).sum()
}
