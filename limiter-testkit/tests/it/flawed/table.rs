//! The flaws.

use std::sync::LazyLock;

use Change::{
    Clock, Code, Expiry, Facts, GivenExpiry, Log, Op, Settlement, SettlementFacts, Together,
};
use Phase::{Cancel, Cases, Contention, Forgetting, Handles, LongLog, Several, StoreClock};
use Sentence::*;
use limiter_core::store::{At, EntryId, Mode};
use limiter_core::{Policy, Receipt, Window};
use limiter_testkit::conformance::{Phase, Sentence};

use super::{Change, Flaw, joint};

const HOUR: u64 = 3_600_000_000;
const SECOND: u64 = 1_000_000;

fn text(key: &[u8]) -> String {
    String::from_utf8_lossy(key).into_owned()
}

/// Returns a key that is read as a number.
fn number(key: &[u8]) -> Vec<u8> {
    let number = text(key).trim().parse::<f64>();
    number.map_or_else(|_| key.to_vec(), |number| number.to_string().into_bytes())
}

fn longest(policy: &Policy) -> u64 {
    policy.longest_window().as_micros()
}

fn window(e: &super::Expiry<'_>) -> u64 {
    e.op.retention().window.as_micros()
}

/// Returns a time after an append, and otherwise the time from before.
fn if_appended(e: &super::Expiry<'_>, until: u64) -> u64 {
    if e.appended { until } else { e.right }
}

/// Returns the end of the operation's own window if the store renews the expiry, and otherwise the right time.
fn renewed_if(e: &super::Expiry<'_>, condition: bool) -> u64 {
    if condition {
        e.clock + longest(e.op.policy)
    } else {
        e.right
    }
}

/// Stores without a flaw.
pub(crate) static RIGHT: &[Flaw] = &[(Cases, L1, "None", Code), (Cancel, C1, "NoneInSteps", Code)];

pub(crate) static FLAWS: LazyLock<Vec<Flaw>> = LazyLock::new(|| {
    vec![
        (StoreClock, T2, "ReadsTheClockTwice", Code),
        (
            StoreClock,
            T4,
            "StopsItsClock",
            Clock(|at| at / HOUR * HOUR),
        ),
        (StoreClock, T4, "TellsMilliseconds", Clock(|at| at / 1_000)),
        (StoreClock, T4, "IsAnHourAhead", Clock(|at| at + HOUR)),
        (
            StoreClock,
            T3,
            "LetsTheStoresClockRunBack",
            Facts(|f| f.log.now = f.log.clock),
        ),
        (
            StoreClock,
            T3,
            "WaitsFromTheNewestEntry",
            Facts(|f| f.log.clock = f.log.now),
        ),
        (
            StoreClock,
            T3,
            "SettlesFromTheNewestEntry",
            SettlementFacts(|f| f.log.clock = f.log.now),
        ),
        (
            StoreClock,
            L9,
            "IgnoresIdsAtTheStoresClock",
            Op(|op, _| op.id = op.id.filter(|_| op.at != At::StoreClock)),
        ),
        (
            StoreClock,
            S1,
            "SettlesNothingAtTheStoresClock",
            Settlement(|s| {
                if s.at == At::StoreClock {
                    s.receipt = Receipt::new(0.into(), s.receipt.at(), s.receipt.window());
                }
            }),
        ),
        (Cancel, T5, "BlocksItsThread", Code),
        (Cancel, T5, "BlocksWhenContended", Code),
        (
            Cases,
            L1,
            "MixesUpKeys",
            Log(|name, key| (name.into(), text(key).into())),
        ),
        (
            Cases,
            L1,
            "CutsKeys",
            Log(|name, key| (name.into(), key[..key.len().min(255)].into())),
        ),
        (
            Cases,
            L1,
            "IgnoresCaseOfKeys",
            Log(|name, key| (name.into(), key.to_ascii_lowercase())),
        ),
        (
            Cases,
            L1,
            "TrimsKeys",
            Log(|name, key| (name.into(), key.trim_ascii_end().into())),
        ),
        (
            Cases,
            L1,
            "EndsKeysAtNul",
            Log(|name, key| (name.into(), key.split(|b| *b == 0).next().unwrap().into())),
        ),
        (
            Cases,
            L1,
            "ReadsKeysAsNumbers",
            Log(|name, key| (name.into(), number(key))),
        ),
        (
            Cases,
            L1,
            "IgnoresNames",
            Log(|_, key| ("all".into(), key.into())),
        ),
        (
            Cases,
            L1,
            "JoinsNamesAndKeys",
            Log(|name, key| ("all".into(), [name.as_bytes(), b":", key].concat())),
        ),
        (
            Cases,
            L1,
            "SharesTheEmptyKey",
            Log(|name, key| (if key.is_empty() { "all" } else { name }.into(), key.into())),
        ),
        (
            Cases,
            L1,
            "IgnoresCaseOfNames",
            Log(|name, key| (name.to_lowercase(), key.into())),
        ),
        (Cases, L3, "IgnoresWeights", Op(|op, _| op.cost = 1)),
        (Cases, L9, "IgnoresIds", Op(|op, _| op.id = None)),
        (
            Cases,
            S4,
            "RefundsWhatHasLeft",
            Settlement(|s| {
                s.receipt = Receipt::new(s.receipt.entry(), s.receipt.at(), Window::MAX);
            }),
        ),
        (Contention, L12, "ChecksThenAdds", Code),
        (Contention, L12, "FindsThenSettles", Code),
        (Contention, L12, "SettlesInTwoSteps", Code),
        (Contention, L12, "ResetsInTwoSteps", Code),
        (Handles, L12, "HidesItsLock", Code),
        (Handles, L12, "HidesItsLogs", Code),
        (Handles, L12, "HidesItsDenials", Code),
        (
            Handles,
            L12,
            "HidesItsIds",
            Op(|op, handle| {
                op.id = op
                    .id
                    .map(|id| EntryId::from_u128(id.as_u128() ^ u128::from(handle)));
            }),
        ),
        (Handles, L12, "OpeningClears", Code),
        (LongLog, L14, "CountsIn16Bits", Code),
        (
            Several,
            A1,
            "AppliesFourTogetherAndNoTwo",
            Together(|store, ops| {
                (ops.len() == 4)
                    .then(|| joint::unchanged(store, ops))
                    .flatten()
            }),
        ),
        (
            Several,
            A1,
            "ChangesALogAndCannot",
            Together(joint::first_alone),
        ),
        (
            Several,
            A2,
            "ChangesOneLogAfterTheOther",
            Together(joint::one_by_one_if_admitted),
        ),
        (
            Several,
            A4,
            "LetsAdvisoryOperationsDeny",
            Together(|store, ops| joint::changed(store, ops, |op| op.is_advisory = false)),
        ),
        (
            Several,
            A5,
            "ChargesWhatFitsIfAnotherDenies",
            Together(joint::one_by_one),
        ),
        (
            Several,
            A5,
            "KeepsNoCharge",
            Together(|store, ops| joint::changed(store, ops, |op| op.keeps_charge = false)),
        ),
        (
            Several,
            A5,
            "DropsTheAttemptThatDenies",
            Together(joint::nothing_if_denied),
        ),
        (
            Several,
            A6,
            "LooksAtRepetitions",
            Together(joint::repeats_nothing_if_denied),
        ),
        (
            Several,
            F1,
            "KeepsTheExpiryOfJointAppends",
            Together(joint::unchanged),
        ),
        (Cases, S1, "RefundsByIdAlone", Code),
        (Cases, S1, "SettlesOnAnyKey", Code),
        (Cases, S1, "SettlesUnderTheDefaultName", Code),
        (Cases, S8, "ResetsAllKeys", Code),
        (
            Forgetting,
            F1,
            "ByTheFirstWindow",
            Expiry(|e| if_appended(e, e.now + e.op.policy.limits()[0].window().as_micros())),
        ),
        (
            Forgetting,
            F1,
            "ByTheOwnWindow",
            Expiry(|e| if_appended(e, e.now + longest(e.op.policy))),
        ),
        (
            Forgetting,
            F1,
            "ByTheDefaultWindow",
            Expiry(|e| {
                if_appended(
                    e,
                    e.now + longest(e.op.limiter_policy.unwrap_or(e.op.policy)),
                )
            }),
        ),
        (
            Forgetting,
            F1,
            "AfterWholeSeconds",
            Expiry(|e| {
                if_appended(
                    e,
                    e.now + (window(e) / SECOND * SECOND).max(window(e) % SECOND),
                )
            }),
        ),
        (
            Forgetting,
            F1,
            "AfterWholeMillis",
            Expiry(|e| if_appended(e, (e.now + window(e)) / 1_000 * 1_000)),
        ),
        (
            Forgetting,
            F1,
            "AfterTheFirstAppend",
            Expiry(|e| if e.before > 0 { e.before } else { e.right }),
        ),
        (
            Forgetting,
            F1,
            "AfterTheLastOperation",
            Expiry(|e| renewed_if(e, true)),
        ),
        (
            Forgetting,
            F1,
            "AfterAPeek",
            Expiry(|e| renewed_if(e, e.op.mode == Mode::Peek)),
        ),
        (
            Forgetting,
            F1,
            "AfterASettlement",
            Expiry(|e| renewed_if(e, e.op.log.key.is_empty())),
        ),
        (
            Forgetting,
            F1,
            "WindowAfterTheClock",
            Expiry(|e| if_appended(e, e.clock + window(e))),
        ),
        (
            Forgetting,
            F1,
            "RenewsNothingUnderAResolution",
            Expiry(|e| {
                if e.before > 0 && e.op.merges() {
                    e.before
                } else {
                    e.right
                }
            }),
        ),
        (
            Forgetting,
            F1,
            "ForgetsEarlyWithATimer",
            Expiry(|e| if_appended(e, (e.now + window(e)) / 1_000 * 1_000)),
        ),
        (Forgetting, F1, "ForgetsWhenThereAreMany", Code),
        (Forgetting, F1, "SweepsInTwoSteps", Code),
        (Forgetting, F1, "SweepsInTwoPolls", Code),
        (Forgetting, F1, "SweepLeavesIds", Code),
        (Forgetting, L1, "ExpiresAllNames", Code),
        (Forgetting, L1, "SweepsAllNames", Code),
        (
            Forgetting,
            F2,
            "GivenTimesAsItsOwn",
            GivenExpiry(|e| e.now + window(e)),
        ),
        (
            Forgetting,
            F2,
            "GivenTimesAfterTheWindow",
            GivenExpiry(|e| e.clock + window(e)),
        ),
        (Forgetting, F2, "SweepsGivenTimes", Code),
        (Cases, E1, "DeniesByError", Code),
        (Cases, E1, "SettlesNothingByError", Code),
        (Cases, E1, "ResetsNothingByError", Code),
        (Cases, E2, "AppliesWhatItDoesNotDecideAtOnce", Code),
        (Cases, E2, "DecidesAtOnceWithoutChecks", Code),
        (Cancel, C1, "LeavesHalfASettlement", Code),
        (Cancel, C1, "LeavesHalfAReset", Code),
        (Cancel, C1, "LeavesARefundWithoutItsId", Code),
        (Cancel, C1, "LeavesAnEntryWithoutItsId", Code),
        (Cancel, C1, "LeavesAnAppendWithoutItsExpiry", Code),
        (Cancel, C2, "LeavesItsLock", Code),
    ]
});
