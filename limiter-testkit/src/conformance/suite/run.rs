//! A run of the suite.

use std::sync::atomic::{AtomicU64, Ordering};

use limiter_core::store::{LogKey, Mode, Op};
use limiter_core::{BoxFuture, Name, Policy, SharedStore, WindowStore as _};

use super::Suite;
use super::report::{Phase, Report};
use crate::conformance::script::{self, Planning, Script};
use crate::conformance::sequence::Plan;
use crate::conformance::sequence::caller::StoreKeys;
use crate::conformance::sequence::replay::{Mismatch, Replay, salt};

/// The resources of the phases, and the report so far.
pub(crate) struct Run<'a> {
    pub(crate) suite: &'a Suite,
    /// All handles in the phase [`Handles`](Phase::Handles), otherwise the first.
    pub(crate) handles: Vec<SharedStore>,
    /// Opens another handle.
    pub(crate) late: Option<BoxFuture<'a, SharedStore>>,
    /// The phase whose calls are being counted.
    pub(crate) phase: Phase,
    prefix: String,
    keys: AtomicU64,
    pub(crate) report: Report,
    /// The errors so far in this phase.
    pub(crate) mismatches: Vec<Mismatch>,
}

impl<'a> Run<'a> {
    pub(crate) fn new(suite: &'a Suite, late: Option<BoxFuture<'a, SharedStore>>) -> Self {
        let (prefix, report) = (format!("{:016x}", salt() as u64), Report::default());
        let (handles, keys, mismatches) = (Vec::new(), AtomicU64::new(0), Vec::new());
        Self { suite, handles, late, phase: Phase::Golden, prefix, keys, report, mismatches }
    }

    /// Makes the store sweep, if it can.
    pub(crate) async fn sweep_now(&self) {
        if let Some(sweep) = self.suite.sweep.as_ref() {
            sweep().await;
        }
    }

    pub(crate) fn store(&self) -> &SharedStore {
        &self.handles[0]
    }

    /// Counts calls.
    pub(crate) fn count(&mut self, calls: u64) {
        self.report.count(self.phase, (0, calls));
    }

    /// Counts checks that passed.
    pub(crate) fn passed(&mut self, checks: u64) {
        self.report.count(self.phase, (checks, 0));
    }

    /// Reports a failing case.
    pub(crate) fn fail(&mut self, mismatch: Mismatch) {
        self.mismatches.push(mismatch);
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
        StoreKeys::new(plan.logs(), |k| format!("{key}/{k}").into_bytes())
    }

    /// Replays a plan on the store, on unused keys.
    pub(crate) async fn replay(&mut self, plan: &Plan, turn: usize) -> Result<(), Mismatch> {
        let store_keys = self.store_keys(plan);
        self.count(plan.calls.len() as u64);
        Replay { turn, ..Replay::new(&self.handles, &store_keys) }.run(plan).await
    }

    /// Returns the scripts of a text, and reports a text with mistakes.
    pub(crate) fn scripts(&mut self, text: &str) -> Vec<Script> {
        let scripts = script::parse(text);
        scripts.map_err(|text| self.fail(Mismatch::new("a script of the suite", &[], text))).unwrap_or_default()
    }

    /// Returns the scripts at given times with their plans, and reports a script with mistakes.
    pub(crate) fn planned(&mut self, planning: Planning) -> &'static [(Script, Plan)] {
        let scripts = script::planned(planning).as_deref();
        scripts.map_err(|text| self.fail(Mismatch::new("a script of the suite", &[], text))).unwrap_or_default()
    }

    /// Replays a script at given times. In the phase [`Handles`](Phase::Handles) the handles take turns, and `late` opens
    /// another one for the calls from some call on. Returns the number of calls.
    pub(crate) async fn replay_script(
        &self,
        (script, plan): &(Script, Plan),
        late: Option<(usize, BoxFuture<'_, SharedStore>)>,
        turn: usize,
        sweeps: bool,
    ) -> Result<u64, Mismatch> {
        let (store_keys, sweep) = (self.store_keys(plan), self.suite.sweep.as_ref().filter(|_| sweeps));
        let replay = Replay { handles: &self.handles, store_keys: &store_keys, turn, sweep, late };
        replay.run(plan).await.map_err(|mismatch| script.cited(mismatch))?;
        Ok(plan.calls.len() as u64)
    }

    /// Counts a script's calls, or reports its errors. A script without calls did not run.
    pub(crate) fn count_script(&mut self, result: Result<u64, Mismatch>) {
        match result {
            Ok(calls) => self.report.count(self.phase, (u64::from(calls > 0), calls)),
            Err(mismatch) => {
                self.count(1);
                self.fail(mismatch);
            }
        }
    }
}

/// Returns a log of the name that most phases use.
pub(crate) fn log(key: &(impl AsRef<[u8]> + ?Sized)) -> LogKey<'_> {
    LogKey::new(Name::new("conformance"), key)
}

/// Returns an operation on a log of that name.
pub(crate) fn op<'a>(mode: Mode, key: &'a (impl AsRef<[u8]> + ?Sized), policy: &'a Policy) -> Op<'a> {
    Op::new(mode, key, policy).with_name(log(key).name)
}

/// Resets logs and ignores errors.
pub(crate) async fn reset_all(store: &SharedStore, logs: &[LogKey<'_>]) {
    for log in logs {
        _ = store.reset(*log).await;
    }
}
