//! A run of the suite.

use std::sync::atomic::{AtomicU64, Ordering};

use limiter_core::{BoxFuture, SharedStore, WindowStore as _};

use super::failure::{Finding, Findings};
use super::report::{Phase, Report};
use super::settings::{Settings, random};
use crate::conformance::script::{self, Planning, Script};
use crate::conformance::sequence::Plan;
use crate::conformance::sequence::caller::StoreKeys;
use crate::conformance::sequence::replay::{Mismatch, Replay};

/// The resources of the phases, and the report so far.
pub(crate) struct Run<'a> {
    pub(crate) settings: &'a Settings,
    pub(crate) handles: Vec<SharedStore>,
    /// Opens another handle.
    pub(crate) late: Option<BoxFuture<'a, SharedStore>>,
    /// The phase whose calls are being counted.
    pub(crate) phase: Phase,
    prefix: String,
    keys: AtomicU64,
    pub(crate) report: Report,
}

impl<'a> Run<'a> {
    pub(crate) fn new(
        settings: &'a Settings,
        handles: Vec<SharedStore>,
        late: Option<BoxFuture<'a, SharedStore>>,
    ) -> Self {
        let (prefix, report) = (format!("{:016x}", random()), Report::default());
        Self { settings, handles, late, phase: Phase::Golden, prefix, keys: AtomicU64::new(0), report }
    }

    /// Makes the store sweep, if it can.
    pub(crate) async fn sweep_now(&self) {
        if let Some(sweep) = self.settings.sweep.as_ref() {
            sweep().await;
        }
    }

    pub(crate) fn store(&self) -> &SharedStore {
        &self.handles[0]
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
        let store_keys = self.store_keys(plan);
        self.count(plan.len() as u64);
        Replay { turn, ..Replay::new(&self.handles[..1], &store_keys) }.run(plan).await
    }

    /// Returns the scripts of a text, and reports a text with mistakes.
    pub(crate) fn scripts(&self, text: &str, findings: &mut Findings) -> Vec<Script> {
        script::parse(text).unwrap_or_else(|text| {
            findings.push(Finding::new("a script of the suite", &[], text));
            Vec::new()
        })
    }

    /// Returns the scripts at given times with their plans, and reports a script with mistakes.
    pub(crate) fn planned(&self, planning: Planning, findings: &mut Findings) -> &'static [(Script, Plan)] {
        script::planned(planning).as_ref().map_or_else(
            |text| {
                findings.push(Finding::new("a script of the suite", &[], text));
                &[][..]
            },
            Vec::as_slice,
        )
    }

    /// Replays a script at given times. In the phase [`Handles`](Phase::Handles) the handles take turns, and `late` opens
    /// another one for the calls from some call on. Returns the number of calls.
    pub(crate) async fn replay_script(
        &self,
        (script, plan): &(Script, Plan),
        late: Option<(usize, BoxFuture<'_, SharedStore>)>,
        turn: usize,
        sweeps: bool,
    ) -> Result<u64, Finding> {
        let handles = if self.phase == Phase::Handles { &self.handles[..] } else { &self.handles[..1] };
        let (store_keys, sweep) = (self.store_keys(plan), self.settings.sweep.as_ref().filter(|_| sweeps));
        let replay = Replay { handles, store_keys: &store_keys, turn, sweep, late };
        replay.run(plan).await.map_err(|mismatch| script.finding(mismatch))?;
        Ok(plan.len() as u64)
    }

    /// Counts the calls of a script, or reports what is wrong. A script without calls did not run.
    pub(crate) fn count_script(&mut self, result: Result<u64, Finding>, findings: &mut Findings) {
        match result {
            Ok(calls) => {
                self.count(calls);
                self.report.cases += u64::from(calls > 0);
            }
            Err(finding) => {
                self.count(1);
                findings.push(finding);
            }
        }
    }
}

/// Resets logs and ignores errors.
pub(crate) async fn reset_all(store: &SharedStore, logs: &[limiter_core::store::LogKey<'_>]) {
    for log in logs {
        _ = store.reset(*log).await;
    }
}
