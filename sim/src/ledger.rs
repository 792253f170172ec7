//! The checker's books: what each log of the server must hold, and what was admitted, as seen from outside.
//!
//! A copy of the server's data has a copy of its books, so that they are restored together.

mod rows;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::RangeInclusive;

use anyhow::{Context, Result, ensure};
use limiter_core::store::{
    At, Change, Entry, EntryId, Facts, JointOp, Log, Mode, Op, Outcome, Settlement,
};
use limiter_core::{Limit, Policy, Receipt, Timestamp, Window};

/// The kind of an operation, and the flags of replies, that the checker reads in the scripts' format.
const RECORD: u8 = 3;
const ADMITTED: u8 = 1;
const APPENDED: u8 = 2;
const REPEATED: u8 = 4;

/// A moment by the server's clock, and by that clock without its steps, in microseconds.
#[derive(Clone, Copy, Debug)]
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
    pub(crate) at: At,
    pub(crate) policy: Policy,
    pub(crate) limiter_policy: Option<Policy>,
}

impl Asked {
    pub(crate) fn of(log: usize, op: &Op<'_>) -> Self {
        Self {
            log,
            mode: op.mode,
            cost: op.cost,
            at: op.at,
            policy: op.policy.clone(),
            limiter_policy: op.limiter_policy.cloned(),
        }
    }

    pub(crate) fn op(&self) -> Op<'_> {
        let mut op = Op::new(self.mode, "", &self.policy).with_cost(self.cost);
        (op.limiter_policy, op.at) = (self.limiter_policy.as_ref(), self.at);
        op
    }
}

/// What the server received and replied.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wire {
    /// The caller's id, or the store's id of the attempt, which a retry repeats.
    pub(crate) id: EntryId,
    /// It may include a block.
    pub(crate) cost: u64,
    pub(crate) flags: u8,
}

pub(crate) fn number(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0, |number, byte| number << 8 | u64::from(*byte))
}

fn id(bytes: &[u8]) -> EntryId {
    bytes
        .iter()
        .fold(0_u128, |number, byte| number << 8 | u128::from(*byte))
        .into()
}

impl Wire {
    pub(crate) fn new(request: &[u8], reply: &[u8]) -> Self {
        let has_callers_id = request[1] >= 2;
        Self {
            id: id(if has_callers_id {
                &request[19..35]
            } else {
                &request[17..23]
            }),
            cost: number(&request[10..17]),
            flags: reply.last().copied().unwrap_or(0),
        }
    }

    /// Returns what a reply with these facts says.
    pub(crate) fn of(cost: u64, facts: &Facts) -> Self {
        let (id, flags) = match facts.outcome {
            Outcome::Appended(entry) => (entry.id, APPENDED),
            _ => (0.into(), 0),
        };
        Self { id, cost, flags }
    }

    fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    pub(crate) fn is_appended(&self) -> bool {
        self.has(APPENDED)
    }

    pub(crate) fn is_admitted(&self) -> bool {
        self.has(ADMITTED)
    }
}

/// The books of one log.
#[derive(Clone, Default)]
pub(crate) struct Book {
    /// What the server must hold.
    log: Log,
    /// The entries of that log by the ids that the server gave them.
    entries: BTreeMap<EntryId, Entry>,
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
    /// How many resets of a table's stores are under way, and when the last one ended.
    resets: u64,
    reset_at: u64,
    /// The fullest window, relative to its maximum.
    pub(crate) worst: f64,
}

fn longest(policy: &Policy) -> u64 {
    policy.longest_window().as_micros()
}

/// Applies operations that the server executed as one, and checks its verdicts. Returns the facts that it must have found, except for
/// repetitions.
pub(crate) fn apply(
    books: &mut [Book],
    ops: &[(Asked, Wire)],
    now: Moment,
) -> Result<Vec<Option<Facts>>> {
    // A repeated denial denies the others.
    let repeats_denial = |(_, wire): &(_, Wire)| wire.has(REPEATED) && !wire.has(ADMITTED);
    let is_denied = ops.iter().any(repeats_denial);
    let joint = ops.iter().map(|(asked, wire)| match wire.has(REPEATED) {
        true => JointOp {
            is_advisory: true,
            ..asked.op().to_peek().into()
        },
        false if is_denied => asked.op().to_peek().into(),
        false => asked.op().into(),
    });
    let logs = ops.iter().map(|(asked, _)| books[asked.log].log.clone());
    let mut logs: Vec<Log> = logs.collect();
    let facts = Log::apply_all(&mut logs, &joint.collect::<Vec<_>>(), now.time());
    let mut results = Vec::new();
    for ((asked, wire), (log, facts)) in ops.iter().zip(logs.into_iter().zip(facts)) {
        books[asked.log].note(asked, wire, &facts, log, now)?;
        results.push((!wire.has(REPEATED)).then_some(facts));
    }
    Ok(results)
}

impl Book {
    /// Checks that the server holds a log until it may expire.
    pub(crate) fn expire(&mut self, is_held: bool, now: Moment) -> Result<()> {
        let expires_at = self.log.expires_at();
        if is_held {
            return Ok(());
        }
        self.log = Log::new();
        let has_expired = expires_at.is_none_or(|expires_at| now.time() >= expires_at);
        ensure!(has_expired, "is gone before its entries have expired");
        Ok(())
    }

    fn holds(&self, id: EntryId, window: Option<Window>, asked: &Asked, now: Moment) -> bool {
        let (Some(entry), Some(window)) = (self.entries.get(&id), window) else {
            return false;
        };
        let receipt = Receipt::new(entry.id, entry.at, window);
        let settlement = Settlement::new(asked.op().log, &asked.policy, receipt, 1);
        self.log.clone().settle(&settlement, now.time()).applied()
    }

    fn note(
        &mut self,
        asked: &Asked,
        wire: &Wire,
        facts: &Facts,
        log: Log,
        now: Moment,
    ) -> Result<()> {
        if wire.has(REPEATED) {
            ensure!(self.knows(wire.id), "repeats what nobody did");
            return Ok(());
        }
        let window = asked.op().receipt_window();
        let counts_twice =
            wire.has(APPENDED) && !self.is_set_back && self.holds(wire.id, window, asked, now);
        ensure!(!counts_twice, "counts twice");
        let appended = match facts.outcome {
            Outcome::Appended(entry) => Some(entry),
            _ => None,
        };
        ensure!(
            wire.has(ADMITTED) == facts.admitted && wire.has(APPENDED) == appended.is_some(),
            "{wire:?} is unlike the contract: {asked:?}, {facts:?}"
        );
        self.log = log;
        if let Some(entry) = appended {
            self.entries.insert(wire.id, entry);
            self.is_displaced |= !facts.refundable;
        }
        Ok(())
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
            self.worst = self.worst.max(admitted as f64 / limit.max() as f64);
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

    /// Checks that a process carried over no more than it charged.
    pub(crate) fn check_carried(&self, process: usize, charged: u64) -> Result<()> {
        let own = self.carried.values().filter(|(by, _)| *by == process);
        let carried: u64 = own.map(|(_, cost)| cost).sum();
        ensure!(carried <= charged, "carried over {carried} of {charged}");
        Ok(())
    }

    /// Notes a settlement that the server executed, and checks whether it took effect. Returns `true` if it did.
    pub(crate) fn settle(
        &mut self,
        asked: &Asked,
        change: Change,
        request: &[u8],
        reply: &[u8],
        now: Moment,
    ) -> Result<bool> {
        let is_applied = reply.last().is_some_and(|flags| flags & 1 != 0);
        let named = id(&request[..16]);
        let Some(entry) = self.entries.get(&named) else {
            ensure!(!is_applied, "settles what nobody did");
            return Ok(false);
        };
        let named_at = Timestamp::from_micros_saturating(number(&request[16..23]));
        let at = match change {
            Change::Cost(_) => named_at,
            // A renewal may find the entry where an earlier attempt moved it.
            Change::Renew { .. } => named_at.max(entry.at),
        };
        let window = Window::from_micros(number(&request[23..30])).context("no window")?;
        let receipt = Receipt::new(entry.id, at, window);
        let mut settlement = Settlement::new(asked.op().log, &asked.policy, receipt, 0);
        (settlement.change, settlement.limiter_policy) = (change, asked.limiter_policy.as_ref());
        let facts = self.log.settle(&settlement, now.time());
        let is_right = is_applied == facts.applied();
        ensure!(is_right, "settles: {is_applied}, unlike the contract");
        match (facts.changed, change) {
            (Some(_), Change::Cost(cost)) => {
                self.lower(named, cost, named);
                if self.is_displaced {
                    self.excuse(
                        asked.limiter_policy.as_ref().unwrap_or(&asked.policy),
                        now.line,
                    );
                }
            }
            (Some(changed), Change::Renew { .. }) => {
                let end = reply.len() - 29;
                self.entries
                    .insert(id(&reply[end - 16..end]), changed.entry);
            }
            (None, _) => {}
        }
        Ok(is_applied)
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

    /// Notes that all entries are gone.
    pub(crate) fn reset(&mut self, policy: &Policy, line: u64) {
        self.log = Log::new();
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
        self.worst = self.worst.max(newer.worst);
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
    pub(crate) fn repeat(&self, op: &Op<'_>, process: usize, now: Moment, ttl: u64) -> Result<()> {
        let fits = self.log.clone().apply(&op.to_peek(), now.time()).admitted;
        let holds = !fits || now.line < self.released[process] + ttl;
        ensure!(
            holds,
            "repeats a denial of {} that no longer holds",
            op.cost
        );
        Ok(())
    }

    /// Returns `true` if the server appended an entry with this id.
    pub(crate) fn knows(&self, id: EntryId) -> bool {
        self.entries.contains_key(&id)
    }

    /// Returns `true` if slots may be held whose entries the server has lost.
    pub(crate) fn has_lost_slots(&self, now: Moment) -> bool {
        now.line < self.lost
    }

    /// Returns when entries leave a window of the limiter's policy, in a range of times by the server's clock, in microseconds.
    pub(crate) fn edges(&self, policy: &Policy, range: RangeInclusive<u64>) -> Vec<u64> {
        let edges = self.entries.values().flat_map(|entry| {
            let windows = policy.limits().iter().map(Limit::window);
            windows.map(|window| entry.at.as_micros() + window.as_micros())
        });
        let mut edges: Vec<u64> = edges.filter(|edge| range.contains(edge)).collect();
        // A table's ids are random.
        edges.sort_unstable();
        edges
    }
}

/// Returns the record of a sweep, whose policy is one exact limit. `None` for the peek that reads the clock.
pub(crate) fn swept(log: usize, request: &[u8], cost: u64, at: At) -> Option<Asked> {
    if request[2] != RECORD {
        return None;
    }
    let window = Window::from_micros(number(&request[35..42])).ok()?;
    let limit = Limit::with_window(number(&request[42..49]), window).ok()?;
    let policy = Policy::from(limit);
    let mut op = Op::record("", &policy).with_cost(cost);
    op.at = at;
    Some(Asked::of(log, &op))
}

/// Returns the sum of what was admitted in the window that ends now.
pub(crate) fn sum_within(admitted: &[(u64, u64, EntryId)], window: u64, now: u64) -> u64 {
    let is_within = |(at, ..): &&(u64, u64, EntryId)| *at <= now && now - at < window;
    admitted
        .iter()
        .filter(is_within)
        .map(|(_, cost, _)| cost)
        .sum()
}
