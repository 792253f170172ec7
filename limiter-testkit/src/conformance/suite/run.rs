//! A run of the suite.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use limiter_core::WindowStore;

use super::report::{Phase, Report};
use super::settings::{Settings, Sizes, random};
use crate::conformance::sequence::Plan;
use crate::conformance::sequence::caller::StoreKeys;
use crate::conformance::sequence::replay::{Mismatch, Replay, Sweep};
use crate::conformance::spawn::Spawner;

/// The resources of the phases, and the report so far.
pub(crate) struct Run<'a, S: ?Sized> {
    settings: &'a Settings,
    handles: Vec<Arc<S>>,
    /// The phase whose calls are being counted.
    pub(crate) phase: Phase,
    prefix: String,
    keys: AtomicU64,
    pub(crate) report: Report,
}

impl<'a, S: WindowStore + ?Sized> Run<'a, S> {
    pub(crate) fn new(settings: &'a Settings, handles: Vec<Arc<S>>) -> Self {
        let (prefix, report) = (format!("{:016x}", random()), Report::default());
        Self { settings, handles, phase: Phase::Golden, prefix, keys: AtomicU64::new(0), report }
    }

    pub(crate) fn sizes(&self) -> &'a Sizes {
        &self.settings.sizes
    }

    pub(crate) fn seed(&self) -> u64 {
        self.settings.seed
    }

    /// How far the store's clock may be from the system clock; `None` if its epoch differs.
    pub(crate) fn tolerance(&self) -> Option<Duration> {
        self.settings.tolerance
    }

    pub(crate) fn sweep(&self) -> Option<&'a Sweep> {
        self.settings.sweep.as_ref()
    }

    /// Makes the store sweep, if it can.
    pub(crate) async fn sweep_now(&self) {
        if let Some(sweep) = self.sweep() {
            sweep().await;
        }
    }

    pub(crate) fn spawner(&self) -> &'a Spawner {
        &self.settings.spawner
    }

    pub(crate) fn store(&self) -> &Arc<S> {
        &self.handles[0]
    }

    pub(crate) fn handles(&self) -> &[Arc<S>] {
        &self.handles
    }

    /// Counts calls.
    pub(crate) fn count(&mut self, operations: u64) {
        self.report.count(self.phase, operations);
    }

    /// Returns an unused key.
    pub(crate) fn new_key(&self) -> String {
        format!("{}/{}", self.prefix, self.keys.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns a name that no other run uses.
    pub(crate) fn new_name(&self) -> String {
        format!("conformance:{}", self.prefix)
    }

    /// Returns unused keys for a plan.
    pub(crate) fn store_keys(&self, plan: &Plan) -> StoreKeys {
        let key = self.new_key();
        StoreKeys::new(plan, |k| format!("{key}/{k}").into_bytes())
    }

    /// Replays a plan on the store, on unused keys.
    pub(crate) async fn replay(&mut self, plan: &Plan, turn: usize) -> Result<(), Mismatch> {
        self.replay_through(1, plan, turn, None).await
    }

    /// Replays a plan through the first `handles` handles in turn, on unused keys, with a sweep before each call.
    pub(crate) async fn replay_through(
        &mut self,
        handles: usize,
        plan: &Plan,
        turn: usize,
        sweep: Option<&Sweep>,
    ) -> Result<(), Mismatch> {
        let store_keys = self.store_keys(plan);
        self.count(plan.len() as u64);
        Replay { handles: &self.handles[..handles], store_keys: &store_keys, turn, sweep }.run(plan).await
    }
}

/// Resets logs and ignores errors.
pub(crate) async fn reset_all<S: WindowStore + ?Sized>(store: &S, logs: &[limiter_core::store::LogKey<'_>]) {
    for log in logs {
        _ = store.reset(*log).await;
    }
}
