//! Replays a plan on a store.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use limiter_core::{BoxFuture, SharedStore, WindowStore};

use super::Plan;
use super::call_result::{StoreResult, agrees};
use super::caller::{Caller, Route, StoreKeys};
use super::citations;
use super::transcript;
use crate::conformance::sentence::Sentence;

/// A wrong answer from a store. [`Display`](fmt::Display) prints every call up to it.
#[derive(Clone, Debug)]
pub struct Mismatch {
    /// The number of the wrong call.
    pub call: usize,
    /// The step of the case that the call belongs to.
    pub(crate) step: usize,
    /// The sentences that the answer suggests, or that the case checks.
    pub(crate) citations: Vec<Sentence>,
    pub(crate) transcript: String,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for citation in &self.citations {
            writeln!(f, "{citation}")?;
        }
        f.write_str(&self.transcript)
    }
}

impl std::error::Error for Mismatch {}

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

    /// Makes all calls one after another and compares every field of every answer.
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

/// Returns the mismatch of a wrong answer.
pub(crate) fn mismatch(plan: &Plan, call: usize, got: &StoreResult) -> Mismatch {
    let (step, citations) = (plan.calls[call].step, citations::of(&plan.calls[call].expected, got));
    Mismatch { call, step, citations, transcript: transcript::of_call(plan, call, got) }
}

/// Returns a number that no other sequence uses.
pub(crate) fn salt() -> u128 {
    let random = RandomState::new();
    u128::from(random.hash_one(0)) << 64 | u128::from(random.hash_one(1))
}

/// Makes the calls of `plan` on `store` one after another and compares every field of every answer. The case's key
/// `k` becomes `keys(k)`, which must be unused under every name.
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
    let (handles, store_keys): ([SharedStore; 1], _) = ([Arc::new(Arc::clone(store))], StoreKeys::new(plan, keys));
    Replay::new(&handles, &store_keys).run(plan).await
}

/// Does what [`replay`] does, for a store that needs no runtime, on keys that start with `prefix`.
///
/// # Errors
/// As [`replay`].
pub fn replay_blocking<S>(store: &Arc<S>, plan: &Plan, prefix: &str) -> Result<(), Mismatch>
where
    S: WindowStore + ?Sized,
{
    futures::executor::block_on(replay(store, plan, |key| format!("{prefix}/{key}").into_bytes()))
}
