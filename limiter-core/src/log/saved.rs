//! A log's saved form, for serde.

use serde::{Deserialize, Serialize};

use super::{Log, MERGED, Original};
use crate::bounds::MAX_COST;
use crate::error::{Error, ErrorKind};
use crate::op::EntryId;
use crate::time::Timestamp;

/// No valid log costs that much: without its oldest entry, it costs less than [`MAX_COST`]. Sums of more could overflow.
const MOST_COST: u64 = 2 * MAX_COST;

/// No log gets as far, and whatever is read can append more numbers than time suffices for.
const FIRST_UNUSED_NUMBER: u64 = MERGED / 2;

#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(rename = "Log", deny_unknown_fields)]
pub(super) struct SavedLog {
    prefix: u64,
    next: u64,
    expires_at: u64,
    /// Oldest first.
    entries: Vec<SavedEntry>,
}

/// The time, the cost, the number with the flag [`MERGED`], and the idempotency key with its [`Original`] verdict.
type SavedEntry = (u64, u64, u64, Option<(u128, bool, bool)>);

impl From<Log> for SavedLog {
    fn from(log: Log) -> Self {
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

impl TryFrom<SavedLog> for Log {
    type Error = Error;

    fn try_from(saved: SavedLog) -> Result<Self, Error> {
        read(&saved)
            .ok_or_else(|| Error::new(ErrorKind::Corrupt, "the saved log contradicts itself"))
    }
}

fn read(saved: &SavedLog) -> Option<Log> {
    let mut log = Log::with_ids(saved.prefix, 0);
    log.expires_at = Timestamp::from_micros(saved.expires_at).ok()?;
    for &(at, cost, flagged, id) in &saved.entries {
        let (at, number) = (Timestamp::from_micros(at).ok()?, flagged & !MERGED);
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
        serde_json::from_str(&serde_json::to_string(log).unwrap()).unwrap()
    }

    #[test]
    fn a_log_reads_back_and_nonsense_does_not() {
        for log in [Log::new(), log()] {
            let read = reload(&log);
            assert_eq!(
                (SavedLog::from(read.clone()), read.expires_at()),
                (log.clone().into(), log.expires_at())
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
            let read = Log::try_from(saved.clone()).map_err(|error| error.kind());
            assert_eq!(read.is_ok(), is_valid, "{saved:?}");
        }
    }

    proptest! {
        #[test]
        fn whatever_reads_back_can_be_used(
            changes in vec((any::<usize>(), b'0'..=b'9'), 0..4),
            steps in vec((0..4_000_000_000_u64, 1..=MAX_COST), 1..20),
        ) {
            let mut json = serde_json::to_vec(&log()).unwrap();
            let digits: Vec<usize> = (0..json.len()).filter(|i| json[*i].is_ascii_digit()).collect();
            changes.into_iter().for_each(|(i, digit)| json[digits[i % digits.len()]] = digit);
            let Ok(mut log) = serde_json::from_slice::<Log>(&json) else { return Ok(()) };
            let (policy, mut at) = (policy!("9/1m, 4503599627370496/2h~1m"), log.newest().unwrap_or_default());
            for (micros, cost) in steps {
                at = at.saturating_add(Duration::from_micros(micros));
                let op = Op::record("", &policy).with_cost(cost).at(at);
                log.apply(&op, at).verify(&op).unwrap();
                prop_assert_eq!(SavedLog::from(reload(&log)), SavedLog::from(log.clone()));
            }
        }
    }
}
