//! A log's saved form.

use std::collections::HashMap;

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

impl Log {
    /// Returns the log as bytes. Logs with equal bytes are in the same state.
    ///
    /// The format begins with its version. It takes 13 to 37 bytes, and for each entry 3 to 9 bytes if entries are at most a month
    /// apart and cost less than 16,384, and 17 more with an idempotency key.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let ids = self.ids.iter();
        let ids: HashMap<_, _> = ids.map(|(id, to)| (to.number, (id, to))).collect();
        let mut bytes = vec![VERSION];
        bytes.extend(self.prefix.to_be_bytes());
        for number in [self.expires_at.as_micros(), self.next, self.len() as u64] {
            write_number(&mut bytes, number);
        }
        let mut last = 0;
        let mut before = 0;
        for (i, entry) in self.entries.iter().enumerate() {
            let at = entry.at.as_micros();
            let number = entry.number();
            let id = ids.get(&number).filter(|_| !entry.is_merged());
            let flags = u64::from(entry.is_merged()) << 1 | u64::from(id.is_some());
            write_number(&mut bytes, at - last);
            write_number(&mut bytes, self.cost_of(i));
            write_number(&mut bytes, (number - before) << 2 | flags);
            if let Some((id, original)) = id {
                bytes.extend(id.as_u128().to_be_bytes());
                let verdict = u8::from(original.admitted) << 1 | u8::from(original.refundable);
                bytes.push(u8::from(original.is_renewed) << 2 | verdict);
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
            Some((&VERSION, mut rest)) => read(&mut rest)
                .filter(|_| rest.is_empty())
                .ok_or_else(|| corrupt("the saved log is damaged".into())),
            Some((version, _)) => Err(corrupt(format!(
                "the saved log has the version {version}, expected {VERSION}"
            ))),
            None => Err(corrupt("the saved log is empty".into())),
        }
    }
}

/// Appends a number in groups of seven bits, the lowest first.
fn write_number(bytes: &mut Vec<u8>, mut number: u64) {
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

/// Returns the log at the front of the bytes. `None` if there is none.
fn read(bytes: &mut &[u8]) -> Option<Log> {
    let mut log = Log::with_ids(u64::from_be_bytes(array(bytes)?), 0);
    log.expires_at = Timestamp::from_micros(number(bytes)?).ok()?;
    let [next, count] = [number(bytes)?, number(bytes)?];
    let mut at = 0_u64;
    let mut last = 0_u64;
    for _ in 0..count {
        at = at.checked_add(number(bytes)?)?;
        let cost = number(bytes)?;
        let flags = number(bytes)?;
        last = last.checked_add(flags >> 2)?;
        if !(log.next..next).contains(&last) || !(1..=MAX_COST).contains(&cost) {
            return None;
        }
        log.next = last;
        log.append(Timestamp::from_micros(at).ok()?, cost);
        let is_merged = flags & 2 > 0;
        if is_merged {
            log.entries.back_mut()?.flagged |= MERGED;
        }
        if flags & 1 > 0 {
            let id = EntryId::from_u128(u128::from_be_bytes(array(bytes)?));
            let [original_flags] = array(bytes)?;
            let verdict = original_flags & 3;
            let original = Original {
                number: last,
                admitted: verdict & 2 > 0,
                refundable: verdict & 1 > 0,
                is_renewed: original_flags & 4 > 0,
            };
            // Only an entry that was admitted is refundable.
            let is_valid = original_flags < 8 && verdict != 1 && !is_merged;
            if !is_valid || log.ids.insert(id, original).is_some() {
                return None;
            }
        }
        if log.cost() > MOST_COST {
            return None;
        }
    }
    (next < FIRST_UNUSED_NUMBER).then_some(Log { next, ..log })
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
        const START: u64 = 1_700_000_000_000_000;
        let mut log = Log::new();
        let [policy, default] = [policy!("9/1h"), policy!("4/1h")];
        let entries = [(0, 1), (0, 2), (9, 1), (1_000_000, 3), (1_000_000, 3)];
        for (i, (at, cost)) in entries.into_iter().enumerate() {
            let op = Op::record("", &policy).with_limiter_policy(&default);
            let at = Timestamp::from_micros_saturating(START + at);
            let mut op = op.with_cost(cost).at(at);
            op.id = [1, 3, 4]
                .contains(&i)
                .then_some(EntryId::from_u128(u128::MAX - i as u128));
            let facts = log.apply(&op, Timestamp::from_micros_saturating(START + (1 << 40)));
            assert_eq!((facts.admitted, facts.refundable), (i < 4, i < 3), "{i}");
        }
        log
    }

    /// A step in time, a cost, a step in numbers with flags, and an id with its verdict.
    type RawEntry = (u64, u64, u64, Option<(u128, u8)>);

    fn raw(next: u64, entries: &[RawEntry]) -> Vec<u8> {
        let mut bytes = [&[VERSION][..], &[7; 8]].concat();
        let head = [9, next, entries.len() as u64];
        head.into_iter()
            .for_each(|number| write_number(&mut bytes, number));
        for (step, cost, number, id) in entries {
            for number in [*step, *cost, *number] {
                write_number(&mut bytes, number);
            }
            if let Some((id, verdict)) = id {
                bytes.extend(id.to_be_bytes());
                bytes.push(*verdict);
            }
        }
        bytes
    }

    fn reload(log: &Log) -> Log {
        let bytes = log.to_bytes();
        let read = Log::from_bytes(&bytes).unwrap();
        assert_eq!(read.to_bytes(), bytes);
        read
    }

    #[test]
    fn a_log_reads_back_and_nonsense_does_not() {
        for log in [Log::new(), log()] {
            let read = reload(&log);
            assert_eq!(format!("{read:?}"), format!("{log:?}"));
            assert_eq!(read.expires_at(), log.expires_at());
        }
        let plain = |step, cost, number: u64| (step, cost, number << 2, None);
        let merged = |cost| (0, cost, 1 << 2 | 2, None);
        let with_id = |flags: u64, verdict| (5, 1, 1 << 2 | flags | 1, Some((7, verdict)));
        let large = plain(5, MAX_COST, 1);
        let valid = [plain(5, 1, 1), merged(MAX_COST), with_id(0, 3)];
        assert!(Log::from_bytes(&raw(4, &valid)).is_ok());
        assert!(Log::from_bytes(&raw(FIRST_UNUSED_NUMBER, &[])).is_err());
        for entries in [
            vec![plain(5, 0, 1)],
            vec![plain(5, MAX_COST + 1, 1)],
            vec![large, large, plain(5, 1, 1)],
            vec![plain(u64::MAX, 1, 1)],
            vec![plain(5, 1, 2), plain(0, 1, 0)],
            vec![plain(5, 1, 4)],
            vec![with_id(0, 3), with_id(0, 3)],
            vec![with_id(2, 3)],
            vec![with_id(0, 1)],
            // After this largest number of an entry, the next one would be 0.
            [vec![plain(1, 1, (1 << 62) - 1); 4], vec![plain(1, 1, 3)]].concat(),
        ] {
            let bytes = raw(4, &entries);
            let error = Log::from_bytes(&bytes).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{entries:?}");
        }
    }

    #[test]
    fn a_full_log_takes_at_most_twelve_bytes_an_entry() {
        let policy = policy!("4503599627370496/30d, 4503599627370496/60d~1s");
        let mut log = Log::new();
        let mut at = Timestamp::from_micros_saturating(1_700_000_000_000_000);
        // Among the entries are gaps of a month, and merged entries.
        for (i, gap) in (0..1_000).zip([1, 250_000, 5_000_000, 3_600_000_000].iter().cycle()) {
            at = at.saturating_add(Duration::from_micros(*gap));
            let _ = log.apply(&Op::record("", &policy).with_cost(i % 9_999 + 1).at(at), at);
        }
        let [bytes, len] = [log.to_bytes().len(), log.len()];
        assert!(
            len > 900 && bytes <= 40 + 9 * len,
            "{bytes} bytes, {len} entries"
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
                prop_assert_eq!(format!("{:?}", reload(&log)), format!("{log:?}"));
            }
        }
    }
}
