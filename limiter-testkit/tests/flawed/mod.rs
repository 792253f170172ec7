//! A store that is right but for one flaw.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

use limiter_core::store::{At, Entry, Facts, LogFacts, LogKey, Mode, Op, Outcome, Settlement, SettlementFacts, Usage};
use limiter_core::{
    Counting, Decision, EntryId, Error, Limit, MAX_COST, PerLimit, Policy, Timestamp, Window, WindowStore,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    None,
    CountsWhatIsAgedTheWindow,
    ForgetsAMicrosecondEarly,
    AppendsDenied,
    IgnoresWeights,
    ChecksThenAdds,
    LetsTimeRunBack,
    LetsTimeRunBackOnceExpired,
    ForgetsTheLastLimit,
    RefundsTwice,
    RefundsANeighbour,
    RefundsByTimeAlone,
    RefundsWhatHasLeft,
    IgnoresIds,
    KeepsRefundedIds,
    RepeatsTheVerdictOfNow,
    RepeatsForEver,
    PeekAppends,
    RecordAppendsOnlyIfItFits,
    DropsTheAttemptsThatAreDenied,
    ResetLeaves,
    CapsOneTooMany,
    NeverCaps,
    NeverTrims,
    TrimsByTheShortestWindow,
    IgnoresSettlements,
    SettlesAnew,
    MergesTies,
    FreesTheOldestFirst,
    MixesUpKeys,
    CutsKeys,
    OverflowsCosts,
    AppliesWhatItDoesNotDecideAtOnce,
    IgnoresNames,
    JoinsNamesAndKeys,
    IgnoresCaseOfNames,
    RepeatsInTheOwnWindow,
    RetainsForTheOwnPolicy,
    RetainsForTheDefaultPolicy,
    RetainsTheOwnWindow,
    RetainsTheOwnMax,
    RetainsTheSmallerMax,
    SettlesWithTheUsageBefore,
    SettlesWithTheUsageOfOneLimit,
    SettlesAtTheReceiptsTime,
    SettlesUnderTheDefaultName,
}

#[derive(Clone, Copy, Debug)]
struct Item {
    name: u128,
    id: Option<EntryId>,
    at: u64,
    cost: u64,
    admitted: bool,
}

#[derive(Debug, Default)]
struct Shared {
    logs: HashMap<Vec<u8>, Vec<Item>>,
    /// Ids that outlived their entries.
    ghosts: HashMap<(Vec<u8>, EntryId), Item>,
    names: u128,
}

#[derive(Debug)]
pub(crate) struct FlawedStore {
    flaw: Flaw,
    shared: Mutex<Shared>,
}

impl FlawedStore {
    pub(crate) fn new(flaw: Flaw) -> Self {
        Self { flaw, shared: Mutex::default() }
    }

    fn has(&self, flaw: Flaw) -> bool {
        self.flaw == flaw
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap()
    }

    /// The key of a log: its name and its key.
    fn key(&self, log: LogKey<'_>) -> Vec<u8> {
        let (name, key) = (log.name.as_str(), log.key);
        let name = match self.flaw {
            Flaw::IgnoresNames => String::new(),
            Flaw::IgnoresCaseOfNames => format!("{}:{}:", name.len(), name.to_lowercase()),
            Flaw::JoinsNamesAndKeys => format!("{name}:"),
            _ => format!("{}:{name}:", name.len()),
        };
        let key = match self.flaw {
            Flaw::MixesUpKeys => String::from_utf8_lossy(key).into_owned().into_bytes(),
            Flaw::CutsKeys => key[..key.len().min(1 << 16)].to_vec(),
            _ => key.to_vec(),
        };
        [name.into_bytes(), key].concat()
    }

    /// The policies that an append retains for: for their windows, and for their maxima.
    fn readers<'a>(&self, op: &Op<'a>) -> [Vec<&'a Policy>; 2] {
        let (own, default) = (op.policy, op.limiter_policy.unwrap_or(op.policy));
        let both = vec![own, default];
        match self.flaw {
            Flaw::RetainsForTheOwnPolicy => [vec![own], vec![own]],
            Flaw::RetainsForTheDefaultPolicy => [vec![default], vec![default]],
            Flaw::RetainsTheOwnWindow => [vec![own], both],
            Flaw::RetainsTheOwnMax => [both, vec![own]],
            Flaw::RetainsTheSmallerMax => {
                let smaller = if own.largest_max() < default.largest_max() { own } else { default };
                [both, vec![smaller]]
            }
            _ => [both.clone(), both],
        }
    }

    fn window(&self, window: Window) -> u64 {
        match self.flaw {
            Flaw::CountsWhatIsAgedTheWindow => window.as_micros() + 1,
            Flaw::ForgetsAMicrosecondEarly => (window.as_micros() - 1).max(1),
            _ => window.as_micros(),
        }
    }

    fn cost(&self, item: &Item) -> u64 {
        match self.flaw {
            Flaw::IgnoresWeights => 1,
            Flaw::OverflowsCosts => u64::from(item.cost as u32),
            _ => item.cost,
        }
    }

    fn sum(&self, items: &[Item]) -> u64 {
        items.iter().map(|item| self.cost(item)).fold(0, u64::saturating_add)
    }

    fn now(&self, at: At, log: &[Item], window: Window) -> u64 {
        let At::Given(given) = at else {
            return Timestamp::try_from(std::time::SystemTime::now()).unwrap().as_micros();
        };
        let given = given.as_micros();
        let newest = log.last().map_or(0, |item| item.at);
        match self.flaw {
            Flaw::LetsTimeRunBack => given,
            Flaw::LetsTimeRunBackOnceExpired if log.len() == 1 && window.as_micros() == 1 => given,
            _ => given.max(newest),
        }
    }

    fn counting(&self, log: &[Item], limit: &Limit, now: u64) -> Vec<Item> {
        log.iter().copied().filter(|item| now.saturating_sub(item.at) < self.window(limit.window())).collect()
    }

    fn usage(&self, log: &[Item], limit: &Limit, cost: u64, now: u64) -> Usage {
        let items = self.counting(log, limit, now);
        let used = self.sum(&items);
        let first = |room: u64| {
            let room = if self.has(Flaw::FreesTheOldestFirst) { 1 } else { room };
            let found = (0..items.len()).find(|&i| self.sum(&items[..=i]) >= room);
            Timestamp::from_micros_saturating(found.map_or(0, |i| items[i].at))
        };
        let oldest = first(used.saturating_sub(limit.max()) + 1);
        Usage { used, oldest, blocker: first(used.saturating_add(cost).saturating_sub(limit.max())) }
    }

    fn limits<'a>(&self, op: &Op<'a>) -> &'a [Limit] {
        let limits = op.policy.limits();
        if self.has(Flaw::ForgetsTheLastLimit) && limits.len() > 1 { &limits[..limits.len() - 1] } else { limits }
    }

    fn repeated(&self, shared: &Shared, key: &[u8], op: &Op<'_>, now: u64) -> Option<Item> {
        let id = op.id.filter(|_| !self.has(Flaw::IgnoresIds))?;
        let log = shared.logs.get(key).map_or(&[][..], Vec::as_slice);
        let window = match self.flaw {
            Flaw::RepeatsForEver => u64::MAX,
            Flaw::RepeatsInTheOwnWindow => op.policy.longest_window().as_micros(),
            _ => self.window(op.retention().window),
        };
        let ghost = shared.ghosts.get(&(key.to_vec(), id));
        log.iter().chain(ghost).copied().find(|item| item.id == Some(id) && now.saturating_sub(item.at) < window)
    }

    fn admits(&self, log: &[Item], op: &Op<'_>, now: u64) -> bool {
        let cost = if self.has(Flaw::IgnoresWeights) { 1 } else { op.cost };
        let fits = |limit: &Limit| self.sum(&self.counting(log, limit, now)).saturating_add(cost) <= limit.max();
        self.limits(op).iter().all(fits)
    }

    fn appends(&self, op: &Op<'_>, admitted: bool) -> bool {
        match (op.mode, self.flaw) {
            (Mode::Peek, flaw) => flaw == Flaw::PeekAppends,
            (Mode::Record, Flaw::RecordAppendsOnlyIfItFits) => admitted,
            (Mode::Record, _) => true,
            (Mode::Acquire, Flaw::AppendsDenied) => true,
            (Mode::Acquire, Flaw::DropsTheAttemptsThatAreDenied) => admitted,
            (Mode::Acquire, _) => admitted || op.policy.counting() == Counting::Attempts,
        }
    }

    fn append(&self, log: &mut Vec<Item>, op: &Op<'_>, item: Item) {
        match log.last_mut() {
            Some(last) if self.has(Flaw::MergesTies) && last.at == item.at && last.admitted == item.admitted => {
                *last = item;
            }
            _ => log.push(item),
        }
        let [windows, maxima] = self.readers(op);
        let longest = windows.iter().map(|policy| policy.longest_window()).max().unwrap();
        let shortest = op.policy.limits().iter().map(Limit::window).min().unwrap();
        let window = match self.flaw {
            Flaw::NeverTrims => u64::MAX,
            Flaw::TrimsByTheShortestWindow => shortest.as_micros(),
            _ => self.window(longest),
        };
        log.retain(|other| item.at.saturating_sub(other.at) < window);
        let largest = maxima.iter().map(|policy| policy.largest_max()).max().unwrap();
        match self.flaw {
            Flaw::NeverCaps | Flaw::NeverTrims => {}
            Flaw::CapsOneTooMany => self.cap(log, largest - 1),
            _ => self.cap(log, largest),
        }
    }

    fn cap(&self, log: &mut Vec<Item>, most: u64) {
        while log.len() > 1 && self.sum(&log[1..]) >= most {
            log.remove(0);
        }
    }

    fn apply_step(&self, op: &Op<'_>, earlier: Option<(u64, bool)>) -> (Facts, u64, bool) {
        let mut shared = self.lock();
        let key = self.key(op.log);
        let mut log = shared.logs.get(&key).cloned().unwrap_or_default();
        let now = self.now(op.at, &log, op.policy.longest_window());
        let repeated = self.repeated(&shared, &key, op, now);
        let (now, fits) = earlier.unwrap_or_else(|| (now, self.admits(&log, op, now)));
        let original = repeated.filter(|_| !self.has(Flaw::RepeatsTheVerdictOfNow)).map(|item| item.admitted);
        let admitted = original.unwrap_or(fits);
        let entry =
            |item: Item| Entry { id: EntryId::from_u128(item.name), at: Timestamp::from_micros_saturating(item.at) };
        let mut outcome = repeated.map_or(Outcome::Nothing, |item| Outcome::Repeated(entry(item)));
        let only_checks = self.has(Flaw::ChecksThenAdds) && earlier.is_none();
        if repeated.is_none() && self.appends(op, admitted) && !only_checks {
            shared.names += 1;
            let item = Item { name: shared.names, id: op.id, at: now, cost: op.cost, admitted };
            self.append(&mut log, op, item);
            outcome = if op.mode == Mode::Peek { Outcome::Nothing } else { Outcome::Appended(entry(item)) };
            shared.logs.insert(key, log.clone());
        }
        (Facts { admitted, outcome, log: self.log_facts(&log, op.policy, op.cost, now) }, now, fits)
    }

    fn log_facts(&self, log: &[Item], policy: &Policy, cost: u64, now: u64) -> LogFacts {
        let usage: Vec<Usage> = policy.limits().iter().map(|limit| self.usage(log, limit, cost, now)).collect();
        let at = Timestamp::from_micros_saturating;
        LogFacts {
            now: at(now),
            newest: log.last().map(|item| at(item.at)),
            usage: PerLimit::from_slice(&usage).unwrap(),
        }
    }

    fn find(&self, log: &[Item], settlement: &Settlement<'_>) -> Option<usize> {
        let receipt = settlement.receipt;
        let named = log.iter().position(|item| item.name == receipt.entry().as_u128());
        match self.flaw {
            Flaw::RefundsANeighbour => named.map(|_| 0),
            Flaw::RefundsTwice => named.or(log.len().checked_sub(1)),
            Flaw::RefundsByTimeAlone => log.iter().position(|item| item.at == receipt.at().as_micros()),
            _ => named,
        }
    }

    fn settle_step(&self, settlement: &Settlement<'_>) -> SettlementFacts {
        let mut shared = self.lock();
        let mut key = self.key(settlement.log);
        if self.has(Flaw::SettlesUnderTheDefaultName) && settlement.receipt.at().as_micros().is_multiple_of(2) {
            key = self.key(LogKey::new(limiter_core::Name::default(), settlement.log.key));
        }
        let before = shared.logs.get(&key).cloned().unwrap_or_default();
        let mut log = before.clone();
        let now = self.now(settlement.at, &log, settlement.receipt.window());
        let has_left = settlement.receipt.has_left(Timestamp::from_micros_saturating(now));
        let found = self.find(&log, settlement).filter(|_| !has_left || self.has(Flaw::RefundsWhatHasLeft));
        if let Some(i) = found {
            if settlement.cost == 0 {
                let gone = log.remove(i);
                if let Some(id) = gone.id.filter(|_| self.has(Flaw::KeepsRefundedIds)) {
                    shared.ghosts.insert((key.clone(), id), gone);
                }
            } else if self.has(Flaw::SettlesAnew) {
                let mut item = log.remove(i);
                (item.cost, item.at) = (settlement.cost, now);
                log.push(item);
            } else if !self.has(Flaw::IgnoresSettlements) {
                log[i].cost = settlement.cost;
            }
            self.cap(&mut log, MAX_COST);
            if log.is_empty() {
                shared.logs.remove(&key)
            } else {
                shared.logs.insert(key, log.clone())
            };
        }
        let shown = if self.has(Flaw::SettlesWithTheUsageBefore) { &before } else { &log };
        let now = match self.flaw {
            Flaw::SettlesAtTheReceiptsTime => shown.last().map_or(now, |item| item.at),
            _ => now,
        };
        let mut facts = self.log_facts(shown, settlement.policy, 0, now);
        if self.has(Flaw::SettlesWithTheUsageOfOneLimit) {
            facts.usage = PerLimit::from_slice(&vec![facts.usage[0]; facts.usage.len()]).unwrap();
        }
        SettlementFacts { applied: found.is_some(), log: facts }
    }
}

impl WindowStore for FlawedStore {
    async fn apply(&self, op: Op<'_>) -> Result<Facts, Error> {
        let (facts, now, fits) = self.apply_step(&op, None);
        if !self.has(Flaw::ChecksThenAdds) {
            return Ok(facts);
        }
        let mut waited = false;
        std::future::poll_fn(|context| {
            context.waker().wake_by_ref();
            if std::mem::replace(&mut waited, true) { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
        })
        .await;
        std::thread::yield_now();
        Ok(self.apply_step(&op, Some((now, fits))).0)
    }

    fn decide_at_once(&self, op: Op<'_>) -> Option<Result<Decision, Error>> {
        if self.has(Flaw::AppliesWhatItDoesNotDecideAtOnce)
            && let Ok(op) = op.checked()
        {
            self.apply_step(&op, None);
        }
        None
    }

    async fn settle(&self, settlement: Settlement<'_>) -> Result<SettlementFacts, Error> {
        Ok(self.settle_step(&settlement))
    }

    async fn reset(&self, log: LogKey<'_>) -> Result<bool, Error> {
        let mut shared = self.lock();
        let key = self.key(log);
        shared.ghosts.retain(|(of, _), _| *of != key);
        if self.has(Flaw::ResetLeaves) {
            let Some(log) = shared.logs.get_mut(&key) else { return Ok(false) };
            log.truncate(1);
            return Ok(true);
        }
        Ok(shared.logs.remove(&key).is_some())
    }
}
