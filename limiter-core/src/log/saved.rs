//! A log's saved form.

use super::{Log, MERGED, Original};
use crate::error::{Error, ErrorKind};
use crate::policy::bounds::MAX_COST;
use crate::policy::time::Timestamp;
use crate::store::op::EntryId;

/// No valid log costs that much: without its oldest entry, it costs less than [`MAX_COST`]. Sums of more could overflow.
const MOST_COST: u64 = 2 * MAX_COST;

/// No log gets as far: a log that is read can append more numbers than time suffices for.
const FIRST_UNUSED_NUMBER: u64 = MERGED / 2;

/// The version that saved bytes begin with.
const VERSION: u8 = 1;

#[derive(Clone, Debug, PartialEq)]
struct SavedLog {
    prefix: u64,
    next: u64,
    expires_at: u64,
    /// Oldest first.
    entries: Vec<SavedEntry>,
}

/// The time, the cost, the number with the flag [`MERGED`], and the idempotency key with its [`Original`] verdict.
type SavedEntry = (u64, u64, u64, Option<(u128, bool, bool)>);

impl From<&Log> for SavedLog {
    fn from(log: &Log) -> Self {
        let ids = log.ids.iter().map(|(id, original)| {
            (
                original.number,
                (id.as_u128(), original.admitted, original.refundable),
            )
        });
        let ids: std::collections::HashMap<_, _> = ids.collect();
        let entries = log.entries.iter().enumerate().map(|(i, entry)| {
            let id = ids.get(&entry.number()).filter(|_| !entry.is_merged());
            (
                entry.at.as_micros(),
                log.cost_of(i),
                entry.flagged,
                id.copied(),
            )
        });
        let entries = entries.collect();
        Self {
            prefix: log.prefix,
            next: log.next,
            expires_at: log.expires_at.as_micros(),
            entries,
        }
    }
}

impl Log {
    /// Returns the log as bytes. Logs with equal bytes are in the same state.
    ///
    /// The format begins with its version. It takes 13 to 37 bytes, and for each entry 3 to 9 bytes if entries are at most a month
    /// apart and cost less than 16,384, and 17 more with an idempotency key.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let saved = SavedLog::from(self);
        let mut bytes = vec![VERSION];
        bytes.extend(saved.prefix.to_be_bytes());
        for number in [saved.expires_at, saved.next, saved.entries.len() as u64] {
            write(&mut bytes, number);
        }
        let mut last = 0;
        let mut before = 0;
        for (at, cost, flagged, id) in saved.entries {
            let number = flagged & !MERGED;
            let flags = u64::from(flagged & MERGED > 0) << 1 | u64::from(id.is_some());
            write(&mut bytes, at - last);
            write(&mut bytes, cost);
            write(&mut bytes, (number - before) << 2 | flags);
            if let Some((id, admitted, refundable)) = id {
                bytes.extend(id.to_be_bytes());
                bytes.push(u8::from(admitted) << 1 | u8::from(refundable));
            }
            (last, before) = (at, number);
        }
        bytes
    }

    /// Returns the log that [`to_bytes`](Self::to_bytes) returned these bytes for.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if the bytes are damaged, or of a later version.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Error> {
        let corrupt = |text: String| Error::new(ErrorKind::Corrupt, text);
        match bytes.split_first() {
            Some((&VERSION, mut rest)) => decode(&mut rest)
                .filter(|_| rest.is_empty())
                .and_then(|saved| read(&saved))
                .ok_or_else(|| corrupt("the saved log is damaged".into())),
            Some((version, _)) => Err(corrupt(format!(
                "the saved log has the version {version}, expected {VERSION}"
            ))),
            None => Err(corrupt("the saved log is empty".into())),
        }
    }

    /// Returns the log with all its times later by `micros`, or earlier if that is negative. Times out of range stay at the bound.
    ///
    /// It mends a log that was kept by a clock that was wrong. Receipts from before keep the old times.
    #[must_use]
    pub fn shifted(mut self, micros: i64) -> Self {
        let shift = |at: Timestamp| {
            let moved = at.as_micros().saturating_add_signed(micros);
            Timestamp::from_micros(moved).unwrap_or(Timestamp::MAX)
        };
        for entry in &mut self.entries {
            entry.at = shift(entry.at);
        }
        self.expires_at = shift(self.expires_at);
        self
    }
}

/// Appends a number in groups of seven bits, the lowest first.
fn write(bytes: &mut Vec<u8>, mut number: u64) {
    while number > 0x7F {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

fn number(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let byte = u64::from(bytes.split_off_first().copied()?);
        let group = byte & 0x7F;
        number |= group << shift;
        if byte == group {
            return (number >> shift == group).then_some(number);
        }
    }
    None
}

fn array<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    bytes.split_off(..N)?.try_into().ok()
}

fn decode(bytes: &mut &[u8]) -> Option<SavedLog> {
    let prefix = u64::from_be_bytes(array(bytes)?);
    let [expires_at, next, count] = [number(bytes)?, number(bytes)?, number(bytes)?];
    let mut entries: Vec<SavedEntry> = Vec::new();
    let mut at = 0_u64;
    let mut last = 0_u64;
    for _ in 0..count {
        at = at.checked_add(number(bytes)?)?;
        let cost = number(bytes)?;
        let flagged = number(bytes)?;
        last = last.checked_add(flagged >> 2)?;
        let id = match flagged & 1 {
            0 => None,
            _ => {
                let (id, [verdict]) = (u128::from_be_bytes(array(bytes)?), array(bytes)?);
                (verdict < 4).then_some(())?;
                Some((id, verdict & 2 > 0, verdict & 1 > 0))
            }
        };
        let merged = if flagged & 2 > 0 { MERGED } else { 0 };
        entries.push((at, cost, last | merged, id));
    }
    Some(SavedLog {
        prefix,
        next,
        expires_at,
        entries,
    })
}

fn read(saved: &SavedLog) -> Option<Log> {
    let mut log = Log::with_ids(saved.prefix, 0);
    log.expires_at = Timestamp::from_micros(saved.expires_at).ok()?;
    for &(at, cost, flagged, id) in &saved.entries {
        let at = Timestamp::from_micros(at).ok()?;
        let number = flagged & !MERGED;
        if log.newest().is_some_and(|newest| at < newest)
            || number < log.next
            || !(1..=MAX_COST).contains(&cost)
        {
            return None;
        }
        log.next = number;
        log.append(at, cost);
        log.entries.back_mut()?.flagged = flagged;
        if let Some((id, admitted, refundable)) = id {
            let original = Original {
                number,
                admitted,
                refundable,
            };
            let is_new = log.ids.insert(EntryId::from_u128(id), original).is_none();
            if !is_new || flagged & MERGED > 0 || (refundable && !admitted) {
                return None;
            }
        }
        if log.cost() > MOST_COST {
            return None;
        }
    }
    (log.next <= saved.next && saved.next < FIRST_UNUSED_NUMBER).then_some(Log {
        next: saved.next,
        ..log
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::policy;
    use crate::store::Op;

    fn log() -> Log {
        let mut log = Log::new();
        let [policy, default] = [policy!("9/1h"), policy!("4/1h")];
        for (i, (at, cost)) in [(0, 1), (0, 2), (9, 1), (1_000_000, 3), (1_000_000, 3)]
            .into_iter()
            .enumerate()
        {
            let at = Timestamp::from_micros(1_700_000_000_000_000 + at).unwrap();
            let mut op = Op::record("", &policy)
                .with_limiter_policy(&default)
                .with_cost(cost)
                .at(at);
            op.id = [1, 3, 4]
                .contains(&i)
                .then_some(EntryId::from_u128(u128::MAX - i as u128));
            let facts = log.apply(&op, Timestamp::from_micros(1_800_000_000_000_000).unwrap());
            assert_eq!(
                (facts.admitted, facts.refundable),
                (i < 4, i < 3),
                "entry {i}"
            );
        }
        log
    }

    fn reload(log: &Log) -> Log {
        let bytes = log.to_bytes();
        let read = Log::from_bytes(&bytes).unwrap();
        assert_eq!(read.to_bytes(), bytes);
        read
    }

    #[test]
    fn a_shifted_log_is_the_same_at_other_times() {
        const HOUR: i64 = 3_600_000_000;
        let log = log();
        let ends = |log: &Log| [log.oldest(), log.newest(), log.expires_at()];
        for by in [HOUR, -HOUR] {
            let shifted = reload(&log).shifted(by);
            let moved = |at: Option<Timestamp>| {
                at.map(|at| {
                    Timestamp::from_micros(at.as_micros().saturating_add_signed(by)).unwrap()
                })
            };
            assert_eq!(ends(&shifted), ends(&log).map(moved));
            assert_eq!((shifted.len(), shifted.cost()), (log.len(), log.cost()));
            assert_eq!(shifted.shifted(-by).to_bytes(), log.to_bytes());
        }
        // Out of range, times stay at the bound.
        for (by, bound) in [(i64::MIN, Timestamp::EPOCH), (i64::MAX, Timestamp::MAX)] {
            let shifted = reload(&log).shifted(by);
            assert_eq!(ends(&shifted), [Some(bound); 3]);
            reload(&shifted);
        }
    }

    #[test]
    fn a_log_reads_back_and_nonsense_does_not() {
        for log in [Log::new(), log()] {
            let read = reload(&log);
            assert_eq!(
                (SavedLog::from(&read), read.expires_at()),
                (SavedLog::from(&log), log.expires_at())
            );
        }
        let entry = |at, cost, flagged| (at, cost, flagged, None);
        let with_id = |number, flags, admitted, refundable| {
            (5, 1, number | flags, Some((7, admitted, refundable)))
        };
        for (entries, next, is_valid) in [
            (
                vec![
                    entry(5, 1, 1),
                    entry(5, MAX_COST, 2 | MERGED),
                    with_id(3, 0, true, true),
                ],
                4,
                true,
            ),
            (vec![entry(5, 0, 1)], 4, false),
            (vec![entry(5, MAX_COST + 1, 1)], 4, false),
            (
                vec![entry(5, MAX_COST, 1), entry(5, MAX_COST, 2), entry(5, 1, 3)],
                4,
                false,
            ),
            (vec![entry(5, 1, 1), entry(4, 1, 2)], 4, false),
            (vec![entry(u64::MAX, 1, 1)], 4, false),
            (vec![entry(5, 1, 2), entry(5, 1, 2)], 4, false),
            (vec![entry(5, 1, 4)], 4, false),
            (vec![], FIRST_UNUSED_NUMBER, false),
            (
                vec![with_id(1, 0, true, true), with_id(2, 0, true, true)],
                4,
                false,
            ),
            (vec![with_id(1, MERGED, true, true)], 4, false),
            (vec![with_id(1, 0, false, true)], 4, false),
        ] {
            let saved = SavedLog {
                prefix: 7,
                next,
                expires_at: 9,
                entries,
            };
            assert_eq!(read(&saved).is_some(), is_valid, "{saved:?}");
        }
    }

    #[test]
    fn a_full_log_takes_at_most_twelve_bytes_an_entry() {
        let policy = policy!("4503599627370496/30d, 4503599627370496/60d~1s");
        let mut log = Log::new();
        // Among the entries are gaps of a month, and merged entries.
        for (i, gap) in (0..1_000).zip([1, 250_000, 5_000_000, 3_600_000_000].iter().cycle()) {
            let at = log
                .newest()
                .map_or(1_700_000_000_000_000, Timestamp::as_micros)
                + gap;
            let at = Timestamp::from_micros(at).unwrap();
            let _ = log.apply(&Op::record("", &policy).with_cost(i % 9_999 + 1).at(at), at);
        }
        let bytes = log.to_bytes().len();
        let len = log.len();
        assert!(
            len > 900 && bytes <= 40 + 9 * len,
            "{bytes} bytes of {len} entries"
        );
    }

    #[test]
    fn damaged_bytes_are_an_error() {
        let bytes = log().to_bytes();
        let later = [&[VERSION + 1], &bytes[1..]].concat();
        let longer = [&bytes[..], &[0]].concat();
        let shorter = (0..bytes.len()).map(|len| bytes[..len].to_vec());
        for damaged in shorter.chain([later, longer, vec![0xFF; 64]]) {
            let error = Log::from_bytes(&damaged).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{damaged:?}");
        }
    }

    proptest! {
        #[test]
        fn whatever_reads_back_can_be_used(
            changes in vec((any::<usize>(), any::<u8>()), 0..4),
            random in vec(any::<u8>(), 0..100),
            steps in vec((0..4_000_000_000_u64, 1..=MAX_COST), 1..20),
        ) {
            let _ = Log::from_bytes(&random);
            let _ = Log::from_bytes(&[&[VERSION], &random[..]].concat());
            let mut bytes = log().to_bytes();
            let len = bytes.len();
            changes.into_iter().for_each(|(i, byte)| bytes[i % len] = byte);
            let Ok(mut log) = Log::from_bytes(&bytes) else { return Ok(()) };
            let policy = policy!("9/1m, 4503599627370496/2h~1m");
            let mut at = log.newest().unwrap_or_default();
            for (micros, cost) in steps {
                at = at.saturating_add(Duration::from_micros(micros));
                let op = Op::record("", &policy).with_cost(cost).at(at);
                log.apply(&op, at).verify(&op).unwrap();
                prop_assert_eq!(SavedLog::from(&reload(&log)), SavedLog::from(&log));
            }
        }
    }
}
