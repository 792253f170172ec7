//! A run of the suite.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use limiter_core::store::{LogKey, Mode, Op};
use limiter_core::{BoxFuture, Name, Policy, SharedStore, WindowStore as _};

use super::Suite;
use super::report::{Phase, Report};
use crate::conformance::caller::salt;
use crate::conformance::mismatch::Mismatch;
use crate::script::{self, Script};

/// The resources of the phases, and the report so far.
pub(crate) struct Run<'a> {
    pub(crate) suite: &'a Suite,
    /// All handles in the phase [`Handles`](Phase::Handles), otherwise the first.
    pub(crate) handles: Vec<SharedStore>,
    /// Opens another handle. A lock, so that phases can share the run.
    pub(crate) late: Mutex<Option<BoxFuture<'a, SharedStore>>>,
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
        Self {
            suite,
            handles: Vec::new(),
            late: Mutex::new(late),
            phase: Phase::Golden,
            prefix: format!("{:016x}", salt() as u64),
            keys: AtomicU64::new(0),
            report: Report::default(),
            mismatches: Vec::new(),
        }
    }

    /// Starts a phase.
    pub(crate) fn start(&mut self, phase: Phase, handles: &[SharedStore]) {
        self.phase = phase;
        self.handles = handles.to_vec();
        if phase != Phase::Handles {
            self.handles.truncate(1);
        }
    }

    /// Reports a phase that had nothing to run.
    pub(crate) fn has_checked(&mut self) {
        if !self.mismatches.is_empty() || self.report.calls_of(self.phase) > 0 {
            return;
        }
        let text = match self.phase {
            Phase::Handles => "there is only one handle: pass several to `Suite::run_handles`",
            _ => "nothing to run",
        };
        self.fail(Mismatch::new("nothing was checked", &[], text));
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
        let number = self.keys.fetch_add(1, Ordering::Relaxed);
        format!("{}/{number}", self.prefix)
    }

    /// Returns a name that no other run uses.
    pub(crate) fn new_name(&self) -> String {
        format!("conformance:{}", self.prefix)
    }

    /// Returns the scripts of a text, and reports a text with mistakes.
    pub(crate) fn scripts(&mut self, text: &str) -> Vec<Script> {
        let scripts = script::parse(text);
        scripts
            .map_err(|text| self.fail(Mismatch::new("a script of the suite", &[], text)))
            .unwrap_or_default()
    }

    /// Counts the calls of a script or a sequence, or reports its error. Without calls, it did not run.
    pub(crate) fn check(&mut self, result: Result<u64, Mismatch>) {
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
pub(crate) fn op<'a>(
    mode: Mode,
    key: &'a (impl AsRef<[u8]> + ?Sized),
    policy: &'a Policy,
) -> Op<'a> {
    Op::new(mode, key, policy).with_name(log(key).name)
}

/// Resets logs and ignores errors.
pub(crate) async fn reset_all(store: &SharedStore, logs: &[LogKey<'_>]) {
    for log in logs {
        _ = store.reset(*log).await;
    }
}
