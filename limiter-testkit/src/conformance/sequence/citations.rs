//! The sentences of the contract that a wrong field suggests.

use limiter_core::{ErrorKind, Timestamp};

use super::call_result::{CallResult, StoreResult};
use crate::conformance::sentence::Sentence;

use Sentence::{E1, E2, L2, L3, L4, L5, L9, L11, L15, S1, S2, S4, S6, S7, S8, T3};

/// Fields of a decision, most telling first.
const DECIDED: &[(&str, &[Sentence])] = &[
    ("at", &[T3]),
    ("outcome", &[L4, L9]),
    ("entry", &[L9]),
    ("allowed", &[L3]),
    ("receipt", &[L5, L15]),
    ("newest entry", &[L11]),
    ("used", &[L2, L11]),
    ("", &[L2]),
];

/// Fields of a settlement, most telling first.
const SETTLED: &[(&str, &[Sentence])] =
    &[("at", &[T3]), ("applied", &[S1, S4]), ("newest entry", &[L11]), ("used", &[S2, S7]), ("", &[S7])];

/// Returns the sentences that the most telling wrong field suggests.
pub(crate) fn of(expected: &CallResult, got: &StoreResult) -> Vec<Sentence> {
    let table = match (expected, got) {
        (_, Err(error)) if error.kind() == ErrorKind::Inconsistent => return vec![L11],
        (CallResult::Refused(_), _) => return vec![E2],
        (CallResult::Settled(_), Err(_)) => return vec![E1, S6],
        (_, Err(_)) => return vec![E1],
        (CallResult::Reset(_) | CallResult::Dropped, Ok(_)) => return vec![S8],
        (CallResult::Settled(_), Ok(_)) => SETTLED,
        (CallResult::Decided(_), Ok(_)) => DECIDED,
    };
    let right = expected.fields(Timestamp::EPOCH);
    let wrong = got.as_ref().map(|got| got.fields(Timestamp::EPOCH)).unwrap_or_default();
    let differs = |field: &str| {
        // If there are several limits, the limit precedes the name of the field.
        let is_it = |name: &str| field.is_empty() || name == field || name.ends_with(&format!(": {field}"));
        right.iter().any(|(name, value)| is_it(name) && wrong.iter().any(|(other, got)| other == name && got != value))
    };
    table.iter().find(|(field, _)| differs(field)).map(|(_, citations)| citations.to_vec()).unwrap_or_default()
}
