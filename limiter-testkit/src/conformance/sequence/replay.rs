//! Replays a plan on a store.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use limiter_core::{BoxFuture, ErrorKind, SharedStore, Timestamp, WindowStore};

use super::Plan;
use super::call_result::{CallResult, StoreResult, agrees};
use super::caller::{Caller, Route, StoreKeys};
use super::transcript;
use crate::conformance::sentence::Sentence::{self, E1, E2, L2, L3, L4, L5, L9, L11, L15, S1, S2, S4, S6, S7, S8, T3};

/// A wrong result from a store, or another failed check. [`Display`](fmt::Display) prints every call up to it.
#[derive(Clone, Debug)]
pub struct Mismatch {
    /// The name of the failing case. Empty for a plan without a name.
    pub(crate) title: String,
    /// The number of the wrong call.
    pub call: usize,
    /// The step of the case that the call belongs to.
    pub(crate) step: usize,
    /// The sentences that the result suggests, or that the case checks.
    pub(crate) citations: Vec<Sentence>,
    pub(crate) transcript: String,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.title.is_empty() {
            writeln!(f, "{}", self.title)?;
        }
        for citation in &self.citations {
            writeln!(f, "{citation}")?;
        }
        f.write_str(self.transcript.trim_end())
    }
}

impl std::error::Error for Mismatch {}

impl Mismatch {
    /// Returns a failed check of these sentences, without a call.
    pub(crate) fn new(title: impl Into<String>, citations: &[Sentence], transcript: impl Into<String>) -> Self {
        let (title, transcript) = (title.into(), transcript.into());
        Self { title, call: 0, step: 0, citations: citations.to_vec(), transcript }
    }

    pub(crate) fn titled(self, title: impl Into<String>) -> Self {
        Self { title: title.into(), ..self }
    }

    /// Adds a circumstance to the title. The mismatch then cites these sentences first.
    pub(crate) fn under(mut self, circumstance: &str, citations: &[Sentence]) -> Self {
        self.title += circumstance;
        self.citations.splice(0..0, citations.iter().copied());
        self
    }
}

/// A function that makes the store sweep.
pub(crate) type Sweep = Arc<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>;

/// The settings of a replay.
pub(crate) struct Replay<'a> {
    /// Handles of one store, used in turn.
    pub(crate) handles: &'a [SharedStore],
    pub(crate) store_keys: &'a StoreKeys,
    /// Which handle and which route come first.
    pub(crate) turn: usize,
    /// Makes the store sweep before each call.
    pub(crate) sweep: Option<&'a Sweep>,
    /// Opens another handle, which makes the calls from this one on.
    pub(crate) late: Option<(usize, BoxFuture<'a, SharedStore>)>,
}

impl<'a> Replay<'a> {
    pub(crate) fn new(handles: &'a [SharedStore], store_keys: &'a StoreKeys) -> Self {
        Self { handles, store_keys, turn: 0, sweep: None, late: None }
    }

    /// Makes all calls one after another and compares every field of every result.
    ///
    /// After a mismatch, resets all logs of the plan.
    pub(crate) async fn run(mut self, plan: &Plan) -> Result<(), Mismatch> {
        let mut caller = Caller::new(self.store_keys, salt());
        let mut opened = None;
        for number in 0..plan.calls.len() {
            if let Some(sweep) = self.sweep {
                sweep().await;
            }
            if let Some((_, late)) = self.late.take_if(|(first, _)| *first == number) {
                opened = Some(late.await);
            }
            let turn = self.turn + number;
            let store = opened.as_ref().unwrap_or(&self.handles[turn % self.handles.len()]);
            let got = caller.call_planned(store, plan, number, Route::in_turn(turn)).await;
            if !agrees(&plan.calls[number].expected, &got) {
                for log in plan.logs() {
                    _ = store.reset(self.store_keys.log(log)).await;
                }
                return Err(mismatch(plan, number, &got));
            }
        }
        Ok(())
    }
}

/// Returns the mismatch of a wrong result.
pub(crate) fn mismatch(plan: &Plan, call: usize, got: &StoreResult) -> Mismatch {
    let (step, citations) = (plan.calls[call].step, suggested(&plan.calls[call].expected, got));
    Mismatch { call, step, ..Mismatch::new("", &citations, transcript::of_call(plan, call, got)) }
}

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
fn suggested(expected: &CallResult, got: &StoreResult) -> Vec<Sentence> {
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

/// Returns a number that no other sequence uses.
pub(crate) fn salt() -> u128 {
    let random = RandomState::new();
    u128::from(random.hash_one(0)) << 64 | u128::from(random.hash_one(1))
}

/// Makes the calls of `plan` on `store` one after another and compares every field of every result. The case's key `k` becomes
/// `keys(k)`, which must be unused with every name.
///
/// Stores choose different entry ids. Receipts therefore compare equal if both or neither exist, their times and
/// windows agree, and they name the entry of the same call.
///
/// # Errors
/// Returns the first [`Mismatch`].
pub async fn replay<S>(store: &Arc<S>, plan: &Plan, keys: impl Fn(u8) -> Vec<u8>) -> Result<(), Mismatch>
where
    S: WindowStore + ?Sized,
{
    let (handles, store_keys): ([SharedStore; 1], _) =
        ([Arc::new(Arc::clone(store))], StoreKeys::new(plan.logs(), keys));
    Replay::new(&handles, &store_keys).run(plan).await
}

/// Like [`replay`], for a store that needs no runtime, on keys that start with `prefix`.
///
/// # Errors
/// As [`replay`].
pub fn replay_blocking<S>(store: &Arc<S>, plan: &Plan, prefix: &str) -> Result<(), Mismatch>
where
    S: WindowStore + ?Sized,
{
    futures::executor::block_on(replay(store, plan, |key| format!("{prefix}/{key}").into_bytes()))
}
