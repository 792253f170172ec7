//! One call on a store with a flaw, and what flaws do to it.

use std::collections::HashMap;

use limiter_core::store::{At, Facts, LogFacts, Mode, Op, Outcome};
use limiter_core::{EntryId, Limit, Policy, Receipt, Timestamp, Window};
use limiter_testkit::reference::merging::{Append, Rules};
use limiter_testkit::reference::{age, cap, log_facts, longest_exact};
use limiter_testkit::{ReferenceEntry, ReferenceStore};

/// What a store with a flaw remembers about a log beside its entries.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    /// A time that clamps later ones.
    pub(super) time: u64,
    /// Entries that have left the log, but whose ids are still known.
    pub(super) ghosts: Vec<ReferenceEntry>,
    /// By entry: the mode of the operation that appended it, its given time, and the usage that it returned.
    pub(super) appended: HashMap<EntryId, (Mode, u64, u64)>,
    /// When the store forgets the log; 0 for never.
    pub(super) until: u64,
}

/// A call. A settlement or a reset is a peek whose facts are `admitted` if it took effect.
#[derive(Debug)]
pub(crate) struct FlawedCall<'a> {
    pub(super) store: &'a ReferenceStore,
    pub(super) op: Op<'a>,
    pub(super) receipt: Receipt,
    /// The cost of a settlement.
    pub(super) cost: u64,
    /// The time of the store's clock.
    pub(super) clock: u64,
    /// The handle.
    pub(super) number: u128,
    pub(super) before: Vec<ReferenceEntry>,
    pub(super) log: Vec<ReferenceEntry>,
    pub(super) facts: Facts,
    /// Whether the call ends with an error.
    pub(super) fails: bool,
    pub(super) memory: &'a mut Memory,
    /// What the store remembers about all logs.
    pub(super) shared: &'a mut Memory,
}

pub(super) fn time(micros: u64) -> Timestamp {
    Timestamp::from_micros_saturating(micros)
}

impl<'a> FlawedCall<'a> {
    /// Returns the time that the caller gave, or the clock's.
    pub(super) fn given(&self) -> u64 {
        if let At::Given(given) = self.op.at {
            given.as_micros()
        } else {
            self.clock
        }
    }

    /// Returns the time of the operation.
    pub(super) fn now(&self) -> Timestamp {
        self.before
            .iter()
            .map(|entry| entry.at)
            .fold(time(self.given()), Timestamp::max)
    }

    /// Returns by how much the operation is later than the given time.
    pub(super) fn clamped_by(&self) -> u64 {
        self.now().as_micros() - self.given()
    }

    pub(super) fn on_clock(&self) -> bool {
        self.op.at == At::StoreClock
    }

    pub(super) fn is(&self, mode: Mode) -> bool {
        self.op.mode == mode
    }

    pub(super) fn appended(&self) -> bool {
        matches!(self.facts.outcome, Outcome::Appended(_))
    }

    pub(super) fn repeated(&self) -> bool {
        matches!(self.facts.outcome, Outcome::Repeated(_))
    }

    pub(super) fn is_denied(&self) -> bool {
        self.is(Mode::Acquire) && !self.repeated() && !self.facts.admitted
    }

    pub(super) fn window(&self) -> u64 {
        self.op.retention().window.as_micros()
    }

    pub(super) fn max(&self) -> u64 {
        self.op.retention().max
    }

    pub(super) fn default(&self) -> &'a Policy {
        self.op.limiter_policy.unwrap_or(self.op.policy)
    }

    /// Changes the time of the operation.
    pub(super) fn shift(&mut self, change: impl Fn(u64) -> u64) {
        self.op.at = At::Given(time(change(self.given())));
    }

    /// Holds a time, which clamps this operation and later ones.
    pub(super) fn hold(&mut self, at: u64) {
        self.memory.time = self.memory.time.max(at);
        let held = self.memory.time;
        self.shift(|given| given.max(held));
    }

    /// Moves entries that are newer than the given time back to it.
    pub(super) fn step_back(&mut self, condition: bool) {
        let given = if condition {
            time(self.given())
        } else {
            Timestamp::MAX
        };
        self.log
            .iter_mut()
            .for_each(|entry| entry.at = entry.at.min(given));
    }

    /// Changes the operation's id.
    pub(super) fn change_id(&mut self, change: impl Fn(u128) -> u128) {
        self.op.id = self.op.id.map(|id| change(id.as_u128()).into());
    }

    /// Keeps the log for as long as the contract demands, and remembers the append.
    pub(super) fn keep(&mut self) {
        if self.appended() {
            let now = self.facts.log.now.as_micros();
            let start = if self.on_clock() {
                now
            } else {
                self.clock + 61_000_000
            };
            self.memory.until = start.saturating_add(self.window());
            let appended = (self.op.mode, self.given(), self.facts.log.usage[0].used);
            self.memory.appended.insert(self.fresh().name, appended);
        }
    }

    /// Changes when the log is forgotten, after an append at the store's clock or at a given time.
    pub(super) fn expire(&mut self, on_clock: bool, until: u64) {
        if self.appended() && self.on_clock() == on_clock {
            self.memory.until = until;
        }
    }

    pub(super) fn expire_if(&mut self, condition: bool, after: &Policy) {
        if condition && self.on_clock() {
            self.memory.until = self.clock + after.longest_window().as_micros();
        }
    }

    /// Replaces what an append drops.
    pub(super) fn drop(&mut self, window: u64, max: u64) {
        if self.appended() && !self.op.merges() {
            let new = self.log.pop();
            self.log = self.before.iter().copied().chain(new).collect();
            self.drop_old(window, max);
        }
    }

    pub(super) fn drop_old(&mut self, window: u64, max: u64) {
        let now = self.now();
        self.log.retain(|entry| age(entry, now) < window);
        cap(&mut self.log, max);
    }

    /// Drops entries as an append does.
    pub(super) fn drop_if(&mut self, condition: bool) {
        if condition {
            self.drop_old(self.window(), self.max());
        }
    }

    /// Returns the entry that the operation appends.
    pub(super) fn fresh(&self) -> ReferenceEntry {
        let name = if let Outcome::Appended(entry) = self.facts.outcome {
            entry.id
        } else {
            EntryId::from_u128(7)
        };
        let Facts {
            admitted,
            refundable,
            ..
        } = self.facts;
        ReferenceEntry {
            name,
            id: self.op.id,
            at: self.now(),
            cost: self.op.cost,
            admitted,
            refundable,
        }
    }

    /// Returns the limits of both policies.
    fn limits(&self) -> Vec<Limit> {
        [self.op.policy, self.default()]
            .iter()
            .flat_map(|policy| policy.limits())
            .copied()
            .collect()
    }

    /// Merges entries as an append does.
    pub(super) fn merge_if(&mut self, condition: bool) {
        let now = self.now();
        let newest = self.before.last().map_or(now, |entry| entry.at);
        let mut names = (self.fresh().name.as_u128() << 64..).map(EntryId::from_u128);
        let append = Append::new(self.limits(), newest, now, self.fresh().name);
        if condition {
            append.merge(&Rules::CONTRACT, &mut self.log, || names.next().unwrap());
        }
    }

    /// Changes the entry that was appended.
    pub(super) fn change_new(&mut self, change: impl Fn(&mut ReferenceEntry)) {
        let appended = self.appended();
        self.log
            .last_mut()
            .filter(|_| appended)
            .into_iter()
            .for_each(change);
    }

    /// Gives the appended entry another name.
    pub(super) fn rename(&mut self, name: Option<u128>) {
        if let (Outcome::Appended(entry), Some(name)) = (&mut self.facts.outcome, name) {
            entry.id = name.into();
            self.change_new(|entry| entry.name = name.into());
        }
    }

    /// Remembers the entry that the operation appends or would append.
    pub(super) fn remember_if(&mut self, condition: bool) {
        self.memory
            .ghosts
            .extend((condition && self.op.id.is_some()).then(|| self.fresh()));
    }

    /// Returns the state of these entries.
    pub(super) fn described(&self, log: &[ReferenceEntry], now: Timestamp) -> LogFacts {
        log_facts(
            log,
            self.op.policy,
            self.op.cost,
            [now, self.facts.log.clock.min(now)],
        )
    }

    /// Returns whether more units fit a policy now.
    pub(super) fn fits(&self, policy: &Policy, cost: u64) -> bool {
        let used = log_facts(&self.log, policy, cost, [self.now(); 2]).usage;
        used.iter()
            .zip(policy.limits())
            .all(|(usage, limit)| usage.used.saturating_add(cost) <= limit.max())
    }

    pub(super) fn same_id(&self, entry: &ReferenceEntry) -> bool {
        entry.id == self.op.id
    }

    /// Returns whether the operation would repeat the entry in another window.
    pub(super) fn within(&self, entry: &ReferenceEntry, window: u64) -> bool {
        self.same_id(entry) && age(entry, self.now()) < window
    }

    /// Returns whether the operation repeats the entry.
    pub(super) fn repeats(&self, entry: &ReferenceEntry) -> bool {
        self.within(entry, longest_exact(&self.limits()))
    }

    /// Returns the mode of the operation that appended the entry, its given time, and the usage that it returned.
    pub(super) fn appended_by(&self, entry: EntryId) -> (Mode, u64, u64) {
        self.memory
            .appended
            .get(&entry)
            .copied()
            .unwrap_or((Mode::Peek, u64::MAX, 0))
    }

    /// Returns whether the receipt names the entry.
    pub(super) fn names(&self, entry: &ReferenceEntry) -> bool {
        (entry.name, entry.at) == (self.receipt.entry(), self.receipt.at())
    }

    /// Returns the entry that the receipt names.
    pub(super) fn named(&self) -> Option<ReferenceEntry> {
        self.before.iter().copied().find(|entry| self.names(entry))
    }

    /// Lets the settlement find this entry, if there is one.
    pub(super) fn find(&mut self, entry: Option<ReferenceEntry>) {
        self.receipt = entry.map_or(self.receipt, |entry| {
            Receipt::new(entry.name, entry.at, self.receipt.window())
        });
    }

    pub(super) fn find_nothing_if(&mut self, condition: bool) {
        self.valid_for(if condition { 0 } else { self.valid() });
    }

    /// Returns how long the receipt is valid.
    pub(super) fn valid(&self) -> u64 {
        self.receipt.window().as_micros()
    }

    /// Makes the receipt valid for another time. One for 0 names no entry.
    pub(super) fn valid_for(&mut self, window: u64) {
        let entry = if window == 0 {
            u128::MAX.into()
        } else {
            self.receipt.entry()
        };
        self.receipt = Receipt::new(
            entry,
            self.receipt.at(),
            Window::from_micros(window.max(1)).unwrap_or(Window::MAX),
        );
    }

    /// Undoes a settlement.
    pub(super) fn undo_if(&mut self, condition: bool) {
        if condition && self.facts.admitted {
            self.log = self.before.clone();
        }
    }

    /// Changes the entry that was settled to a cost.
    pub(super) fn change(&mut self, change: impl Fn(&mut ReferenceEntry, u64)) {
        let i = self
            .log
            .iter()
            .position(|entry| self.names(entry))
            .filter(|_| self.facts.admitted);
        i.into_iter()
            .for_each(|i| change(&mut self.log[i], self.cost));
    }

    /// Puts the settled entry behind all entries up to a time.
    pub(super) fn put_behind(&mut self, at: Timestamp) {
        self.change(|entry, _| entry.at = at);
        self.log
            .sort_by_key(|entry| (entry.at, entry.name == self.receipt.entry()));
    }
}
