//! The rules of the contract, each with its flaws.

use std::time::SystemTime;

use limiter_core::store::{At, LogKey, Mode, Op, Usage};
use limiter_core::{Counting, EntryId, Limit, Policy, Timestamp, Window};

use super::Flaw;

/// An entry of a log.
#[derive(Clone, Copy, Debug)]
pub(super) struct Item {
    pub(super) name: u128,
    pub(super) id: Option<EntryId>,
    pub(super) at: u64,
    /// The time that a flaw remembers the id for.
    pub(super) given: u64,
    pub(super) cost: u64,
    pub(super) admitted: bool,
    pub(super) refundable: bool,
    pub(super) mode: Mode,
    /// Whether an entry was named in its own cell of ten minutes, and in the cell before.
    pub(super) marks: [bool; 2],
    /// The usage that the operation returned.
    pub(super) used: u64,
}

pub(super) fn system_micros() -> u64 {
    Timestamp::try_from(SystemTime::now()).unwrap().as_micros()
}

impl Flaw {
    /// Returns the key of a log: its name and its key.
    pub(super) fn key(self, log: LogKey<'_>) -> Vec<u8> {
        let (name, key) = (log.name.as_str(), log.key);
        let name = match self {
            Self::IgnoresNames => String::new(),
            Self::IgnoresCaseOfNames => format!("{}:{}:", name.len(), name.to_lowercase()),
            Self::JoinsNamesAndKeys => format!("{name}:"),
            _ => format!("{}:{name}:", name.len()),
        };
        let text = || String::from_utf8_lossy(key).into_owned();
        let key = match self {
            Self::MixesUpKeys => text().into_bytes(),
            Self::CutsKeys => key[..key.len().min(255)].to_vec(),
            Self::IgnoresCaseOfKeys => key.to_ascii_lowercase(),
            Self::TrimsKeys => key.trim_ascii_end().to_vec(),
            Self::EndsKeysAtNul => key.split(|byte| *byte == 0).next().unwrap_or_default().to_vec(),
            Self::ReadsKeysAsNumbers => {
                text().trim().parse::<f64>().map_or(text(), |number| number.to_string()).into_bytes()
            }
            _ => key.to_vec(),
        };
        [name.into_bytes(), key].concat()
    }

    pub(super) fn same_id(self, one: EntryId, other: EntryId) -> bool {
        let (one, other) = (one.as_u128(), other.as_u128());
        match self {
            Self::ComparesHalfOfIds => one as u64 == other as u64,
            Self::ComparesAllButOneBitOfIds => one << 1 == other << 1,
            _ => one == other,
        }
    }

    /// Returns the policies that determine what an append keeps: those for windows, and those for maxima.
    pub(super) fn readers<'a>(self, op: &Op<'a>) -> [Vec<&'a Policy>; 2] {
        let (own, default) = (op.policy, op.limiter_policy.unwrap_or(op.policy));
        let both = vec![own, default];
        match self {
            Self::RetainsForTheOwnPolicy => [vec![own], vec![own]],
            Self::RetainsForTheDefaultPolicy => [vec![default], vec![default]],
            Self::RetainsTheOwnWindow => [vec![own], both],
            Self::RetainsTheOwnMax => [both, vec![own]],
            Self::RetainsTheSmallerMax => {
                let smaller = if own.largest_max() < default.largest_max() { own } else { default };
                [both, vec![smaller]]
            }
            _ => [both.clone(), both],
        }
    }

    pub(super) fn window(self, window: Window) -> u64 {
        match self {
            Self::CountsWhatIsAgedTheWindow => window.as_micros() + 1,
            Self::ForgetsAMicrosecondEarly => (window.as_micros() - 1).max(1),
            _ => window.as_micros(),
        }
    }

    pub(super) fn cost(self, item: &Item) -> u64 {
        match self {
            Self::IgnoresWeights => 1,
            Self::CutsCostsTo32Bits => u64::from(item.cost as u32),
            _ => item.cost,
        }
    }

    pub(super) fn sum(self, items: &[Item]) -> u64 {
        items.iter().map(|item| self.cost(item)).fold(0, u64::saturating_add)
    }

    /// Returns the time of the store's clock.
    pub(super) fn clock(self, started: u64) -> u64 {
        let hour = 3_600_000_000;
        match self {
            Self::StopsItsClock => started,
            Self::TellsMilliseconds => system_micros() / 1_000,
            Self::IsAnHourAhead => system_micros() + hour,
            _ => system_micros(),
        }
    }

    pub(super) fn now(self, op: (At, Mode), log: &[Item], window: Window, clock: u64) -> u64 {
        let newest = log.last().map_or(0, |item| item.at);
        let (at, mode) = op;
        let given = match at {
            At::Given(given) => given.as_micros(),
            At::StoreClock if self == Self::LetsTheStoresClockRunBack => return clock,
            At::StoreClock => clock,
        };
        match self {
            Self::TruncatesToMilliseconds => (given / 1_000 * 1_000).max(newest),
            Self::LetsTimeRunBack => given,
            Self::LetsTimeRunBackOnceExpired if log.len() == 1 && window.as_micros() == 1 => given,
            Self::LetsPeeksHoldTime if mode == Mode::Peek => given.max(newest),
            _ => given.max(newest),
        }
    }

    pub(super) fn counting(self, log: &[Item], limit: &Limit, now: u64) -> Vec<Item> {
        let age = |item: &Item| match self {
            Self::CutsAgesTo32Bits => u64::from(now.saturating_sub(item.at) as u32),
            _ => now.saturating_sub(item.at),
        };
        log.iter().copied().filter(|item| age(item) < self.window(limit.window())).collect()
    }

    pub(super) fn usage(self, log: &[Item], limit: &Limit, cost: u64, now: u64) -> Usage {
        let items = self.counting(log, limit, now);
        let used = self.sum(&items);
        let first = |room: u64| {
            let room = if self == Self::FreesTheOldestFirst { 1 } else { room };
            let found = (0..items.len()).find(|&i| self.sum(&items[..=i]) >= room);
            Timestamp::from_micros_saturating(found.map_or(0, |i| items[i].at))
        };
        let oldest = first(used.saturating_sub(limit.max()) + 1);
        Usage { used, oldest, blocker: first(used.saturating_add(cost).saturating_sub(limit.max())) }
    }

    pub(super) fn admits(self, log: &[Item], op: &Op<'_>, now: u64) -> bool {
        let limits = op.policy.limits();
        let limits = match limits {
            [first @ .., _] if self == Self::ForgetsTheLastLimit && !first.is_empty() => first,
            all => all,
        };
        let cost = if self == Self::IgnoresWeights { 1 } else { op.cost };
        let fits = |limit: &Limit| self.sum(&self.counting(log, limit, now)).saturating_add(cost) <= limit.max();
        limits.iter().all(fits)
    }

    /// Returns whether more units fit the limiter's default policy, too.
    pub(super) fn fits_default(self, log: &[Item], op: &Op<'_>, cost: u64, now: u64) -> bool {
        let default = op.limiter_policy.filter(|_| self != Self::GivesReceiptsByTheOwnPolicy);
        default.is_none_or(|default| {
            let mut other = *op;
            (other.policy, other.cost) = (default, cost);
            self.admits(log, &other, now)
        })
    }

    pub(super) fn appends(self, op: &Op<'_>, admitted: bool) -> bool {
        match (op.mode, self) {
            (Mode::Peek, flaw) => flaw == Self::PeekAppends,
            (Mode::Record, Self::RecordAppendsOnlyIfItFits) => admitted,
            (Mode::Record, _) => true,
            (Mode::Acquire, Self::AppendsDenied) => true,
            (Mode::Acquire, Self::DropsTheAttemptsThatAreDenied) => admitted,
            (Mode::Acquire, _) => admitted || op.policy.counting() == Counting::Attempts,
        }
    }

    /// Drops entries before an append, by age and by cost.
    pub(super) fn retain(self, log: &mut Vec<Item>, op: &Op<'_>, now: u64, keeps_old: bool) {
        let [windows, maxima] = self.readers(op);
        let longest = windows.iter().map(|policy| policy.longest_window()).max().unwrap();
        let shortest = op.policy.limits().iter().map(Limit::window).min().unwrap();
        let window = match self {
            _ if keeps_old => u64::MAX,
            Self::NeverTrims => u64::MAX,
            Self::TrimsOneTooLate => longest.as_micros() + 1,
            Self::TrimsByTheShortestWindow => shortest.as_micros(),
            Self::TrimsByTheFirstWindow => op.policy.limits()[0].window().as_micros(),
            _ => self.window(longest),
        };
        log.retain(|other| now.saturating_sub(other.at) < window);
        let largest = maxima.iter().map(|policy| policy.largest_max()).max().unwrap();
        match self {
            Self::NeverCaps | Self::NeverTrims => {}
            Self::CapsOneTooMany => self.cap(log, largest - 1),
            Self::CapsOneTooFew => self.cap(log, largest + 1),
            Self::CapsByTheFirstMaximum => self.cap(log, op.policy.limits()[0].max()),
            Self::CapsWithoutTheNewest => {
                let newest = log.last().map_or(0, |item| item.cost);
                self.cap(log, largest.saturating_add(newest));
            }
            _ => self.cap(log, largest),
        }
    }

    /// Drops the oldest entries while the remaining ones reach `most`.
    pub(super) fn cap(self, log: &mut Vec<Item>, most: u64) {
        while log.len() > 1 && self.sum(&log[1..]) >= most {
            log.remove(0);
        }
    }
}
