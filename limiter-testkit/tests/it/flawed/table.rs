//! The flaws.

use Change::{Clock, Code, Facts, Log, Op, Settlement, Together};
use Phase::{Cancel, Cases, Contention, Forgetting, Handles, LongLog, Several, StoreClock};
use Sentence::*;
use limiter_core::store::{At, EntryId, Mode};
use limiter_core::{Policy, Receipt, Window};
use limiter_testkit::conformance::{Phase, Sentence};

use super::{Change, Expiry, Flaw, Flawed};

const HOUR: u64 = 3_600_000_000;

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

fn window(e: &Expiry<'_>) -> u64 {
    e.op.retention().window.as_micros()
}

/// A flaw of code that asks for its name.
const fn code(phase: Phase, sentence: Sentence, name: &'static str) -> Flaw {
    flaw(phase, sentence, name, Code)
}

const fn flaw(phase: Phase, sentence: Sentence, name: &'static str, change: Change) -> Flaw {
    Flaw {
        phase,
        sentence,
        name,
        change,
    }
}

const fn clock(sentence: Sentence, name: &'static str, change: Change) -> Flaw {
    flaw(StoreClock, sentence, name, change)
}

/// A flaw that confuses logs.
const fn log(name: &'static str, change: fn(&str, &[u8]) -> (String, Vec<u8>)) -> Flaw {
    flaw(Cases, L1, name, Log(change))
}

const fn together(sentence: Sentence, name: &'static str, change: Change) -> Flaw {
    flaw(Several, sentence, name, change)
}

const fn expiry(sentence: Sentence, name: &'static str, until: fn(&Expiry<'_>) -> u64) -> Flaw {
    flaw(Forgetting, sentence, name, Change::Expiry(until))
}

/// The right store, which applies operations as one.
const ALL: Change = Together(|store, ops| store.together(ops, |_| ()));

/// Stores without a flaw.
pub(crate) static RIGHT: &[Flaw] = &[
    flaw(Cases, L1, "None", ALL),
    code(Cancel, C1, "NoneInSteps"),
];

pub(crate) static FLAWS: &[Flaw] = &[
    clock(T2, "ReadsTheClockTwice", Code),
    clock(T4, "StopsItsClock", Clock(|at| at / HOUR * HOUR)),
    clock(T4, "TellsMilliseconds", Clock(|at| at / 1_000)),
    clock(T4, "IsAnHourAhead", Clock(|at| at + HOUR)),
    clock(T3, "RunsBack", Facts(|f| f.log.now = f.log.clock)),
    clock(T3, "WaitsFromNewest", Facts(|f| f.log.clock = f.log.now)),
    code(Cancel, T5, "BlocksItsThread"),
    code(Cancel, T5, "BlocksWhenContended"),
    log("MixesUpKeys", |name, key| (name.into(), text(key).into())),
    log("CutsKeys", |name, key| {
        (name.into(), key[..key.len().min(255)].into())
    }),
    log("EndsKeysAtNul", |name, key| {
        (name.into(), key.split(|b| *b == 0).next().unwrap().into())
    }),
    log("ReadsKeysAsNumbers", |name, key| (name.into(), number(key))),
    log("IgnoresNames", |_, key| ("all".into(), key.into())),
    log("JoinsNamesAndKeys", |name, key| {
        ("all".into(), [name.as_bytes(), b":", key].concat())
    }),
    log("SharesTheEmptyKey", |name, key| {
        (if key.is_empty() { "all" } else { name }.into(), key.into())
    }),
    flaw(Cases, L3, "IgnoresWeights", Op(|op, _| op.cost = 1)),
    flaw(Cases, L9, "IgnoresIds", Op(|op, _| op.id = None)),
    flaw(
        Cases,
        S4,
        "RefundsWhatHasLeft",
        Settlement(|s| {
            s.receipt = Receipt::new(s.receipt.entry(), s.receipt.at(), Window::MAX);
        }),
    ),
    code(Cases, S1, "SettlesOnAnyKey"),
    code(Cases, S8, "ResetsAllKeys"),
    code(Cases, E1, "DeniesByError"),
    code(Cases, E2, "AppliesWhatItDoesNotDecideAtOnce"),
    code(Cases, E2, "DecidesAtOnceWithoutChecks"),
    code(Contention, L12, "ChecksThenAdds"),
    code(Contention, L12, "FindsThenSettles"),
    code(Contention, L12, "ResetsInTwoSteps"),
    code(Handles, L12, "HidesItsLock"),
    code(Handles, L12, "HidesItsLogs"),
    flaw(
        Handles,
        L12,
        "HidesItsIds",
        Op(|op, handle| {
            let other = |id: EntryId| EntryId::from_u128(id.as_u128() ^ u128::from(handle));
            op.id = op.id.map(other);
        }),
    ),
    code(Handles, L12, "OpeningClears"),
    code(LongLog, L14, "CountsIn16Bits"),
    together(A1, "ChangesALogAndCannot", Together(Flawed::first_alone)),
    together(A2, "ChangesOneAfterTheOther", Together(Flawed::in_turn)),
    together(A5, "ChargesWhatFits", Together(Flawed::one_by_one)),
    together(F1, "KeepsTheExpiryOfJointAppends", ALL),
    expiry(F1, "ByTheOwnWindow", |e| e.now + longest(e.op.policy)),
    expiry(F1, "ByTheDefaultWindow", |e| {
        e.now + longest(e.op.limiter_policy.unwrap_or(e.op.policy))
    }),
    expiry(F1, "AfterWholeMillis", |e| {
        (e.now + window(e)) / 1_000 * 1_000
    }),
    expiry(F1, "AfterTheFirstAppend", |e| {
        if e.before > 0 { e.before } else { e.right }
    }),
    expiry(F1, "AfterAPeek", |e| match e.op.mode {
        Mode::Peek => e.clock.as_micros() + longest(e.op.policy),
        _ => e.right,
    }),
    expiry(F1, "WindowAfterTheClock", |e| {
        e.clock.as_micros() + window(e)
    }),
    code(Forgetting, F1, "ForgetsWhenThereAreMany"),
    code(Forgetting, F1, "SweepsInTwoSteps"),
    code(Forgetting, L1, "SweepsAllNames"),
    expiry(F2, "GivenTimesAsItsOwn", |e| match e.op.at {
        At::Given(_) => e.now + window(e),
        At::StoreClock => e.right,
    }),
    code(Cancel, C1, "LeavesHalfASettlement"),
    code(Cancel, C1, "LeavesAnEntryWithoutItsId"),
    code(Cancel, C1, "LeavesAnAppendWithoutItsExpiry"),
    code(Cancel, C2, "LeavesItsLock"),
];
