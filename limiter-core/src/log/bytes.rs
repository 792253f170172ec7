//! The byte format of a saved log, version 3. A *number* is an unsigned integer in LEB128.
//!
//! | bytes | content |
//! |---|---|
//! | 1 | the version, 3 |
//! | 8 | the upper half of the entry ids, little-endian |
//! | number | the lower half of the next entry's id |
//! | number | when the log expires |
//! | number | the number of entries, each of which is: |
//! | – number | its time minus that of the previous entry |
//! | – number | the lower half of its id minus that of the previous entry |
//! | – number | 32 times its cost; plus 8 and 16 for its [marks](super::MARKS); plus its kind: 1 if it is merged, or, if it has an idempotency key, 2 if it was denied, 3 if it was admitted, and 4 if it is refundable, too |
//! | – 16 or 0 | the idempotency key, little-endian |
//! | 4 | CRC-32 (IEEE 802.3) of all preceding bytes, little-endian |

use std::collections::HashMap;

use super::{Log, MARKS, MERGED, Original};
use crate::bounds::MAX_COST;
use crate::error::{Error, ErrorKind};
use crate::op::EntryId;
use crate::time::Timestamp;

const VERSION: u8 = 3;

/// No log costs as much: without its oldest entry, it costs less than [`MAX_COST`]. Sums of more could overflow.
const MOST_COST: u64 = 2 * MAX_COST;

/// No log gets as far, and whatever is read can append more numbers than time suffices for.
const FIRST_UNUSED_NUMBER: u64 = MERGED / 2;

/// The kinds of entries, in the lowest three bits of a cost.
const PLAIN: u64 = 0;
const IS_MERGED: u64 = 1;
const DENIED_ID: u64 = 2;
const ADMITTED_ID: u64 = 3;
const REFUNDABLE_ID: u64 = 4;
/// How far the marks of an entry are shifted to be the next two bits.
const MARKS_SHIFT: u32 = MARKS.trailing_zeros() - 3;

impl Log {
    /// Encodes the log, for [`from_bytes`](Self::from_bytes). An idempotency key takes 16 bytes, any other field 1 to 10.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(32 + 8 * self.entries.len());
        out.push(VERSION);
        out.extend_from_slice(&self.prefix.to_le_bytes());
        push(&mut out, self.next);
        push(&mut out, self.expires_at.as_micros());
        push(&mut out, self.entries.len() as u64);
        let ids: HashMap<_, _> = self.ids.iter().map(|(id, original)| (original.number, (id, original))).collect();
        let (mut at, mut number) = (Timestamp::EPOCH, 0);
        for (i, entry) in self.entries.iter().enumerate() {
            push(&mut out, entry.at.micros_since(at));
            push(&mut out, entry.number().wrapping_sub(number));
            (at, number) = (entry.at, entry.number());
            let id = ids.get(&number).filter(|_| !entry.is_merged());
            let kind = match id {
                Some((_, Original { refundable: true, .. })) => REFUNDABLE_ID,
                Some((_, Original { admitted: true, .. })) => ADMITTED_ID,
                Some(_) => DENIED_ID,
                None if entry.is_merged() => IS_MERGED,
                None => PLAIN,
            };
            push(&mut out, self.cost_of(i) << 5 | (entry.flags() & MARKS) >> MARKS_SHIFT | kind);
            if let Some((id, _)) = id {
                out.extend_from_slice(&id.as_u128().to_le_bytes());
            }
        }
        out.extend_from_slice(&crc32(&out).to_le_bytes());
        out
    }

    /// Decodes a log that [`to_bytes`](Self::to_bytes) encoded.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if the bytes are damaged, truncated, too long, or of another version.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Error> {
        let damaged = |what| Error::new(ErrorKind::Corrupt, format!("the saved log is damaged: {what}"));
        if let Some(version) = bytes.first().filter(|version| **version != VERSION) {
            let text = format!("the saved log has version {version}, expected {VERSION}");
            return Err(Error::new(ErrorKind::Corrupt, text));
        }
        let (content, sum) = bytes.split_last_chunk().ok_or_else(|| damaged("it is too short to hold a checksum"))?;
        if crc32(content) != u32::from_le_bytes(*sum) {
            return Err(damaged("its checksum does not match its content"));
        }
        read(&content[1..]).ok_or_else(|| damaged("its checksum matches, but its content is malformed"))
    }
}

fn read(mut bytes: &[u8]) -> Option<Log> {
    let bytes = &mut bytes;
    let prefix = u64::from_le_bytes(*take(bytes)?);
    let next = number(bytes)?;
    let expires_at = Timestamp::from_micros(number(bytes)?).ok()?;
    let count = usize::try_from(number(bytes)?).ok().filter(|count| *count <= bytes.len())?;
    let mut log = Log::with_ids(prefix, 0);
    log.expires_at = expires_at;
    log.entries.reserve(count);
    let mut at = 0_u64;
    for i in 0..count {
        at = at.checked_add(number(bytes)?)?;
        let step = number(bytes)?.checked_sub(u64::from(i > 0))?;
        log.next = log.next.checked_add(step).filter(|next| *next < MERGED)?;
        let word = number(bytes)?;
        let cost = Some(word >> 5).filter(|cost| (1..=MAX_COST).contains(cost))?;
        let (kind, marks) = (word & 7, (word & 24) << MARKS_SHIFT);
        let merged = if kind == IS_MERGED { MERGED } else { 0 };
        let number = log.append(Timestamp::from_micros(at).ok()?, cost, marks | merged).number();
        if log.cost() > MOST_COST {
            return None;
        }
        if kind >= DENIED_ID {
            let id = EntryId::from_u128(u128::from_le_bytes(*take(bytes)?));
            let (admitted, refundable) = (kind >= ADMITTED_ID, kind == REFUNDABLE_ID);
            if kind > REFUNDABLE_ID || log.ids.insert(id, Original { number, admitted, refundable }).is_some() {
                return None;
            }
        }
    }
    (log.next <= next && next < FIRST_UNUSED_NUMBER && bytes.is_empty()).then_some(Log { next, ..log })
}

fn take<'a, const N: usize>(bytes: &mut &'a [u8]) -> Option<&'a [u8; N]> {
    let (taken, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(taken)
}

fn push(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn number(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let [byte] = *take(bytes)?;
        let part = u64::from(byte & 0x7f);
        number |= part.checked_shl(shift).filter(|shifted| shifted >> shift == part)?;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |sum, byte| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| if sum & 1 > 0 { sum >> 1 ^ 0xedb8_8320 } else { sum >> 1 })
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
        for (i, (at, cost)) in [(0, 1), (0, 2), (9, 1), (1_000_000, 3), (1_000_000, 3)].into_iter().enumerate() {
            let at = Timestamp::from_micros(1_700_000_000_000_000 + at).unwrap();
            let mut op = Op::record("", &policy).with_limiter_policy(&default).with_cost(cost).at(at);
            op.id = [1, 3, 4].contains(&i).then_some(EntryId::from_u128(u128::MAX - i as u128));
            let facts = log.apply(&op, Timestamp::from_micros(1_800_000_000_000_000).unwrap());
            assert_eq!((facts.admitted, facts.refundable), (i < 4, i < 3), "entry {i}");
        }
        log
    }

    #[test]
    fn the_checksum_is_the_usual_one() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
    }

    #[test]
    fn a_log_reads_back() {
        for log in [Log::new(), log()] {
            let bytes = log.to_bytes();
            let read = Log::from_bytes(&bytes).unwrap();
            assert_eq!((&read, read.to_bytes(), read.expires_at()), (&log, bytes, log.expires_at()));
        }
    }

    #[test]
    fn damage_is_rejected() {
        let bytes = log().to_bytes();
        let kind = |bytes: &[u8]| Log::from_bytes(bytes).map_err(|error| error.kind());
        for bit in 0..8 * bytes.len() {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(kind(&damaged), Err(ErrorKind::Corrupt), "bit {bit}");
        }
        for len in 0..bytes.len() {
            assert_eq!(kind(&bytes[..len]), Err(ErrorKind::Corrupt), "cut to {len}");
            assert_eq!(kind(&[&bytes[..], &bytes[..=len]].concat()), Err(ErrorKind::Corrupt));
        }
        let mut other = bytes;
        other[0] = 1;
        assert_eq!(Log::from_bytes(&other).unwrap_err().to_string(), "the saved log has version 1, expected 3");
    }

    fn with_sum(content: &[u8]) -> Vec<u8> {
        [content, &crc32(content).to_le_bytes()[..]].concat()
    }

    proptest! {
        #[test]
        fn whatever_reads_back_can_be_used(
            changes in vec((any::<usize>(), any::<u8>()), 0..4),
            steps in vec((0..4_000_000_000_u64, 1..=MAX_COST, any::<bool>()), 1..20),
        ) {
            let mut content = log().to_bytes();
            content.truncate(content.len() - 4);
            for (i, byte) in changes {
                let i = 1 + i % (content.len() - 1);
                content[i] = byte;
            }
            let Ok(mut log) = Log::from_bytes(&with_sum(&content)) else { return Ok(()) };
            let (policy, mut at) = (policy!("9/1m~1s, 4503599627370496/2h~1m"), log.newest().unwrap_or_default());
            for (micros, cost, keep) in steps {
                at = at.saturating_add(Duration::from_micros(micros));
                let mut op = Op::record("", &policy).with_cost(cost).at(at);
                op.keep = keep;
                log.apply(&op, at).verify(&op).unwrap();
                prop_assert_eq!(&Log::from_bytes(&log.to_bytes()).unwrap(), &log);
            }
        }
    }

    #[test]
    fn a_right_checksum_does_not_make_nonsense_right() {
        let head = |count: u8| [&[VERSION, 0, 0, 0, 0, 0, 0, 0, 0, 9, 0][..], &[count]].concat();
        let entry = [5, 1, 32 | 8];
        assert!(Log::from_bytes(&with_sum(&[head(1), entry.to_vec()].concat())).is_ok());
        for (what, content) in [
            ("fewer entries", [head(2), entry.to_vec()].concat()),
            ("more entries", [head(0), entry.to_vec()].concat()),
            ("a cost of 0", [head(1), vec![5, 1, 1]].concat()),
            ("one number twice", [head(2), entry.to_vec(), vec![0, 0, 32]].concat()),
            ("a number that is too long", [head(1), vec![0xff; 11]].concat()),
            (
                "a time that is too late",
                [head(1), vec![0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 1, 32]].concat(),
            ),
            ("one id twice", [head(2), vec![5, 1, 35], vec![7; 16], vec![5, 1, 35], vec![7; 16]].concat()),
            ("a kind of entry that does not exist", [head(1), vec![5, 1, 37], vec![7; 16]].concat()),
            (
                "a number with a mark",
                [head(1), vec![5, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f, 32]].concat(),
            ),
            ("no number left", [&[VERSION, 0, 0, 0, 0, 0, 0, 0, 0][..], &[0xff; 8], &[0x3f, 0, 0]].concat()),
            ("a cost that no log reaches", [head(3), [&[5, 1][..], &[0x80; 8], &[2]].concat().repeat(3)].concat()),
            ("a huge count", [head(0xff), vec![0xff, 0xff, 0x7f]].concat()),
        ] {
            assert_eq!(Log::from_bytes(&with_sum(&content)).unwrap_err().kind(), ErrorKind::Corrupt, "{what}");
        }
    }
}
