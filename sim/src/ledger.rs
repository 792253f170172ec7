//! The checker's books: what each log of the server holds, and what was admitted, as seen from outside.
//!
//! A copy of the server's data has a copy of its books, so that they are restored together.

use limiter_core::{Limit, Policy};

/// The kinds and flags of the scripts' format that the checker reads.
const RECORD: u8 = 3;
const ADMITTED: u8 = 1;
const APPENDED: u8 = 2;
const REPEATED: u8 = 4;

/// A moment by the server's clock, and by that clock without its steps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    pub(crate) clock: u64,
    pub(crate) line: u64,
}

/// What a caller asked for about one log.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) call: usize,
    pub(crate) process: usize,
    pub(crate) log: usize,
    pub(crate) cost: u64,
    pub(crate) id: Option<u128>,
    pub(crate) is_own: bool,
    /// Whether the call waits: after a denial, such as that of a stack in an outage, it makes a new attempt.
    pub(crate) waits: bool,
}

/// An operation as the server saw it: it may include a block, or come from a sweep.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wire {
    pub(crate) process: usize,
    pub(crate) kind: u8,
    pub(crate) cost: u64,
    pub(crate) given: Option<u64>,
    pub(crate) flags: u8,
    /// The store's id of the attempt, which a retry repeats.
    pub(crate) attempt: [u8; 16],
}

impl Wire {
    fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Returns `true` if it was admitted and appended now.
    pub(crate) fn is_granted(&self) -> bool {
        self.kind < RECORD && self.flags & (ADMITTED | APPENDED) == ADMITTED | APPENDED
    }
}

#[derive(Clone, Debug)]
struct Entry {
    at: u64,
    cost: u64,
    /// The call that appended it, and those that repeated that.
    calls: Vec<usize>,
    id: Option<u128>,
    attempt: [u8; 16],
    /// The process whose sweep appended it.
    swept_by: Option<usize>,
    /// Whether the server may have dropped it, and with it its id.
    is_dropped: bool,
}

/// An admission: when, how much, and by which call.
type Admission = (u64, u64, usize);

/// The policies of a log: of its limiter, and of operations that bring their own.
#[derive(Clone, Debug)]
pub(crate) struct Policies {
    pub(crate) default: Policy,
    pub(crate) own: Policy,
}

/// The books of one log.
#[derive(Clone, Debug, Default)]
pub(crate) struct Log {
    entries: Vec<Entry>,
    /// By the line of the server's clock, with the limiter's policy.
    admitted: Vec<Admission>,
    /// Until when exceptions excuse admissions.
    excused: u64,
    /// Whether an entry without room displaced others, or the newest may have been refunded.
    is_displaced: bool,
    is_refunded: bool,
    /// Whether the server's clock was set back, which lets late requests count.
    is_set_back: bool,
    /// What each process carried over.
    carried: [u64; 4],
    /// When others last released units, for each process.
    released: [u64; 4],
    /// The fullest window, relative to its maximum.
    pub(crate) worst: f64,
}

fn longest(policy: &Policy) -> u64 {
    policy
        .limits()
        .iter()
        .map(|limit| limit.window().as_micros())
        .max()
        .unwrap_or(0)
}

/// How much longer than its window an entry may count, because it merged with newer ones.
fn slack(limit: &Limit) -> u64 {
    limit
        .resolution()
        .map_or(0, |resolution| resolution.as_micros() as u64)
}

/// Returns how long ids are known: as long as exact limits see their entries.
fn receipt_window<'a>(limits: impl Iterator<Item = &'a Limit>) -> u64 {
    let exact = limits.filter(|limit| limit.resolution().is_none());
    exact
        .map(|limit| limit.window().as_micros())
        .max()
        .unwrap_or(0)
}

impl Log {
    fn used(&self, window: u64, now: u64) -> u64 {
        let counts = |entry: &&Entry| now.saturating_sub(entry.at) < window;
        self.entries
            .iter()
            .filter(counts)
            .map(|entry| entry.cost)
            .sum()
    }

    fn newest(&self) -> u64 {
        self.entries.iter().map(|entry| entry.at).max().unwrap_or(0)
    }

    /// Returns times at which something expires.
    pub(crate) fn edges(&self, policy: &Policy) -> Vec<u64> {
        let edge = |entry: &Entry| {
            let windows = policy
                .limits()
                .iter()
                .map(|limit| limit.window().as_micros());
            windows.map(|window| entry.at + window).collect::<Vec<_>>()
        };
        self.entries.iter().flat_map(edge).collect()
    }

    /// Notes an operation, and checks its verdict. Returns the wait of a denial, if that is exact.
    pub(crate) fn apply(
        &mut self,
        policies: &Policies,
        asked: Option<&Asked>,
        wire: &Wire,
        now: Moment,
    ) -> Result<Option<u64>, String> {
        let is_own = asked.is_some_and(|asked| asked.is_own);
        let policy = if is_own {
            &policies.own
        } else {
            &policies.default
        };
        let at = wire.given.unwrap_or(now.clock).max(self.newest());
        let room = |log: &Self, limit: &Limit, more: u64| {
            log.used(limit.window().as_micros() + more, at) + wire.cost <= limit.max()
        };
        let fits = |log: &Self| {
            policies
                .default
                .limits()
                .iter()
                .all(|limit| room(log, limit, 0))
        };
        if asked.is_some() && wire.kind != RECORD && !wire.has(REPEATED) {
            if wire.has(ADMITTED) && !is_own && !fits(self) && now.line >= self.excused {
                return Err(format!("admits {} at {at} without room", wire.cost));
            }
            let fits_late = policy
                .limits()
                .iter()
                .all(|limit| room(self, limit, slack(limit)));
            if !wire.has(ADMITTED) && fits_late && !self.is_displaced {
                return Err(format!("denies {} at {at} without a reason", wire.cost));
            }
        }
        let wait = (!wire.has(ADMITTED))
            .then(|| self.wait(policy, wire, at, now.clock))
            .flatten();
        if wire.has(APPENDED) {
            self.drop_old(&policies.default, at);
            let limits = policies.default.limits().iter();
            let own = if is_own { policies.own.limits() } else { &[] };
            let known = receipt_window(limits.clone().chain(own));
            // A repetition does not find an entry that has merged.
            let is_exact = limits.into_iter().all(|limit| slack(limit) == 0);
            let twice = |entry: &Entry| match asked {
                Some(asked) => {
                    let is_known = is_exact || at - entry.at < known;
                    let is_same =
                        asked.id.is_some() && entry.id == asked.id && at - entry.at < known;
                    let is_retry = !asked.waits || entry.attempt == wire.attempt;
                    is_same || is_known && is_retry && entry.calls.contains(&asked.call)
                }
                None => false,
            };
            if self
                .entries
                .iter()
                .filter(|entry| !entry.is_dropped)
                .any(twice)
                && !self.is_set_back
            {
                return Err("counts twice".to_owned());
            }
            self.is_displaced |= !fits(self);
            self.entries.push(Entry {
                at,
                cost: wire.cost,
                calls: asked.iter().map(|asked| asked.call).collect(),
                id: asked.and_then(|asked| asked.id),
                attempt: wire.attempt,
                swept_by: asked.is_none().then_some(wire.process),
                is_dropped: false,
            });
            self.drop_old(&policies.default, at);
            match asked {
                Some(asked) if wire.is_granted() && !is_own => {
                    self.admit(&policies.default, (now.line, asked.cost, asked.call))?;
                }
                None => self.carried[wire.process] += wire.cost,
                _ => {}
            }
        }
        if let Some(asked) = asked.filter(|asked| asked.id.is_some() && wire.has(REPEATED)) {
            let same = self.entries.iter_mut().rfind(|entry| entry.id == asked.id);
            same.into_iter()
                .for_each(|entry| entry.calls.push(asked.call));
        }
        Ok(wait)
    }

    /// Returns `true` if an operation counts although its deadline has passed.
    pub(crate) fn counts_late(&self, wire: &Wire) -> bool {
        wire.has(APPENDED) && !self.is_set_back
    }

    /// Notes that the key is gone. It may be before its entries have expired, if the clock was set back since.
    pub(crate) fn forget(&mut self) {
        if self.is_set_back {
            self.entries.clear();
        }
    }

    /// Notes what the server drops with an append, at the latest: what no limit of the limiter sees.
    fn drop_old(&mut self, policy: &Policy, at: u64) {
        let most = policy.limits().iter().map(Limit::max).max().unwrap_or(0);
        let window = longest(policy);
        let mut newer = 0;
        for entry in self.entries.iter_mut().rev() {
            if (newer >= most || at - entry.at >= window) && !entry.is_dropped {
                entry.is_dropped = true;
                if let Some(process) = entry.swept_by {
                    self.carried[process] -= entry.cost;
                }
            }
            newer += entry.cost;
        }
    }

    /// Returns how long a denied acquire has to wait, unless entries merge or were displaced.
    fn wait(&self, policy: &Policy, wire: &Wire, at: u64, clock: u64) -> Option<u64> {
        if wire.kind != 1
            || self.is_displaced
            || policy.limits().iter().any(|limit| slack(limit) > 0)
        {
            return None;
        }
        let expiry = |limit: &Limit| {
            let window = limit.window().as_micros();
            let mut used = self.used(window, at);
            let counting = self.entries.iter().filter(|entry| at - entry.at < window);
            let first = counting.skip_while(|entry| {
                used -= entry.cost;
                used + wire.cost > limit.max()
            });
            first.map(|entry| entry.at + window).next().unwrap_or(at)
        };
        let denies =
            |limit: &&Limit| self.used(limit.window().as_micros(), at) + wire.cost > limit.max();
        policy
            .limits()
            .iter()
            .filter(denies)
            .map(expiry)
            .max()
            .map(|expiry| expiry - clock)
    }

    /// Notes an admission, and checks every window that it ends.
    fn admit(&mut self, policy: &Policy, admission: Admission) -> Result<(), String> {
        self.admitted.push(admission);
        for limit in policy.limits() {
            let window = limit.stated_window().as_micros();
            let admitted = sum_within(&self.admitted, window, admission.0);
            if admission.0 >= self.excused {
                self.worst = self.worst.max(admitted as f64 / limit.max() as f64);
                if admitted > limit.max() {
                    return Err(format!("a window of {limit} admits {admitted}"));
                }
            }
        }
        Ok(())
    }

    /// Notes an acquire that a process decided from a block.
    pub(crate) fn spend(&mut self, policy: &Policy, admission: Admission) -> Result<(), String> {
        if admission.0 < self.excused {
            return Ok(());
        }
        self.admit(policy, admission)
    }

    /// Notes a settlement that took effect.
    pub(crate) fn settle(
        &mut self,
        policy: &Policy,
        call: usize,
        cost: u64,
        now: Moment,
    ) -> Result<(), String> {
        let Some(entry) = self
            .entries
            .iter_mut()
            .rfind(|entry| entry.calls.contains(&call))
        else {
            return Err(format!("settles call {call}, of which nothing counts"));
        };
        entry.cost = cost;
        let calls = entry.calls.clone();
        self.entries.retain(|entry| entry.cost > 0);
        let of_entry = |(.., call): &&mut Admission| calls.contains(call);
        for admission in self.admitted.iter_mut().filter(of_entry) {
            admission.1 = admission.1.min(cost);
        }
        self.is_refunded = true;
        if self.is_displaced {
            self.excuse(policy, now.line);
        }
        Ok(())
    }

    /// Excuses what admissions after this moment may exceed, because entries that the server no longer counts may still count.
    pub(crate) fn excuse(&mut self, policy: &Policy, line: u64) {
        self.admitted.clear();
        self.excused = self.excused.max(line + longest(policy));
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
        self.entries.clear();
        self.is_displaced = false;
        self.carried = [0; 4];
        self.admitted.clear();
        self.lose(policy, line);
    }

    /// Notes that this is an older copy, of which later entries are lost.
    pub(crate) fn lose(&mut self, policy: &Policy, line: u64) {
        let lease = policy.limits().iter().filter_map(Limit::lease).max();
        self.excused = self
            .excused
            .max(line + lease.map_or(0, |lease| lease.as_micros() as u64 * 65 / 64));
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
        policies: &Policies,
        asked: &Asked,
        now: Moment,
        ttl: u64,
    ) -> Result<(), String> {
        let policy = if asked.is_own {
            &policies.own
        } else {
            &policies.default
        };
        let clock = now.clock.max(self.newest());
        let fits = |limit: &Limit| {
            self.used(limit.window().as_micros() + slack(limit), clock) + asked.cost <= limit.max()
        };
        let is_excused = self.is_displaced || now.line < self.released[asked.process] + ttl;
        if policy.limits().iter().all(fits) && !is_excused {
            return Err(format!(
                "repeats a denial of {} that no longer holds",
                asked.cost
            ));
        }
        Ok(())
    }

    /// Checks that a process carried over no more than it charged. Ids of entries that merge are forgotten.
    pub(crate) fn carry(
        &self,
        policy: &Policy,
        process: usize,
        charged: u64,
    ) -> Result<(), String> {
        let carried = self.carried[process];
        let is_exact = policy.limits().iter().all(|limit| slack(limit) == 0);
        match is_exact && !self.is_set_back && carried > charged {
            true => Err(format!("carried over {carried} of {charged}")),
            false => Ok(()),
        }
    }
}

/// Returns the sum of what was admitted in the window that ends now.
pub(crate) fn sum_within(admitted: &[Admission], window: u64, now: u64) -> u64 {
    let is_within = |(at, ..): &&Admission| *at <= now && now - at < window;
    admitted
        .iter()
        .filter(is_within)
        .map(|(_, cost, _)| cost)
        .sum()
}
