//! Puts a plan to a store.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use limiter_core::{BoxFuture, WindowStore};

use super::caller::{Caller, Route, StoreKeys};
use super::citations;
use super::plan::Plan;
use super::reply::{Got, agrees};
use super::transcript;
use crate::conformance::sentence::Cite;

/// Where a store's answer is not what it must be. [`Display`](fmt::Display) prints every call up to there.
#[derive(Clone, Debug)]
pub struct Mismatch {
    /// The number of the call that differs.
    pub call: usize,
    /// The step of the case that the call belongs to.
    pub(crate) step: usize,
    /// The sentences that the call is about.
    pub(crate) cites: Vec<Cite>,
    pub(crate) transcript: String,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for cite in &self.cites {
            writeln!(f, "{cite}")?;
        }
        f.write_str(&self.transcript)
    }
}

impl std::error::Error for Mismatch {}

/// A function that makes the store sweep now.
pub(crate) type Sweep = Arc<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>;

/// How a plan is put to a store.
pub(crate) struct Replay<'a, S: ?Sized> {
    /// Handles of one store, used in turn.
    pub(crate) handles: &'a [Arc<S>],
    pub(crate) store_keys: &'a StoreKeys,
    /// Where the turns begin: which handle, and which way to ask, comes first.
    pub(crate) turn: usize,
    /// Makes the store sweep before each call.
    pub(crate) sweep: Option<&'a Sweep>,
}

impl<'a, S: WindowStore + ?Sized> Replay<'a, S> {
    pub(crate) fn new(handles: &'a [Arc<S>], store_keys: &'a StoreKeys) -> Self {
        Self { handles, store_keys, turn: 0, sweep: None }
    }

    /// Puts all calls to the store, one after another, and compares every field of every answer.
    ///
    /// After a mismatch it resets all logs of the plan.
    pub(crate) async fn run(&self, plan: &Plan) -> Result<(), Mismatch> {
        let mut caller = Caller::new(self.store_keys, salt());
        for number in 0..plan.calls.len() {
            if let Some(sweep) = self.sweep {
                sweep().await;
            }
            let turn = self.turn + number;
            let store = &self.handles[turn % self.handles.len()];
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

/// The transcript of a call with a wrong answer.
pub(crate) fn mismatch(plan: &Plan, call: usize, got: &Got) -> Mismatch {
    let (step, cites) = (plan.calls[call].step, citations::cites(plan, call, got));
    Mismatch { call, step, cites, transcript: transcript::of_call(plan, call, got) }
}

/// A number that no other sequence has.
pub(crate) fn salt() -> u128 {
    let random = RandomState::new();
    u128::from(random.hash_one(0)) << 64 | u128::from(random.hash_one(1))
}

/// Puts the calls of `plan` to `store`, one after another, and compares every field of every answer. The case's key `k`
/// becomes the store's key `keys(k)`, which must be new under every name.
///
/// Stores name entries differently: what is compared of a receipt is whether there is one, its time, its window, and which
/// call's entry it names.
///
/// # Errors
/// The first [`Mismatch`].
pub async fn replay<S>(store: &Arc<S>, plan: &Plan, keys: impl Fn(u8) -> Vec<u8>) -> Result<(), Mismatch>
where
    S: WindowStore + ?Sized,
{
    let (handles, store_keys) = ([Arc::clone(store)], StoreKeys::new(plan, keys));
    Replay::new(&handles, &store_keys).run(plan).await
}

/// [`replay`] for a store that needs no runtime, on keys that begin with `prefix`.
///
/// # Errors
/// As [`replay`].
pub fn replay_blocking<S>(store: &Arc<S>, plan: &Plan, prefix: &str) -> Result<(), Mismatch>
where
    S: WindowStore + ?Sized,
{
    futures::executor::block_on(replay(store, plan, |key| format!("{prefix}/{key}").into_bytes()))
}
