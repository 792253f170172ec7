//! A log with a very large number of entries. The reference store would be too slow, so the core's [`Log`] computes the
//! results.

use std::time::Instant;

use limiter_core::store::{Log, Mode, Settlement, decide};
use limiter_core::{MAX_COST, Policy, Receipt, Settled, SharedStore, Timestamp, WindowStore as _};

use super::caller::{Route, decided};
use super::mismatch::{Mismatch, columns};
use super::suite::run::{Run, log, op, reset_all};
use crate::DecisionValues;
use crate::policies::{START, limit, policy, resolved};
use crate::sentence::Sentence::L14;

/// Nothing leaves this window.
const WINDOW: u64 = 1 << 40;

pub(crate) async fn run(run: &mut Run<'_>) {
    let mut long = LongLog {
        store: run.store().clone(),
        key: run.new_key(),
        log: Log::new(),
        calls: 0,
    };
    let most = run.suite.sizes.long_log;
    let start = Instant::now();
    let (mut result, mut len, mut used) = (Ok(()), 0, 0);
    while result.is_ok() && len < most && start.elapsed() < run.suite.sizes.long_log_time {
        result = long.append(len, &mut used).await;
        len += 1;
    }
    if result.is_ok() {
        result = long.settle_and_trim(len).await;
    }
    reset_all(&long.store, &[log(&long.key)]).await;
    run.count(long.calls);
    run.passed(len);
    if let Err(text) = result {
        let title = format!("a log of {len} entries");
        run.fail(Mismatch::new(title, &[L14], text));
    }
}

fn under(max: u64, window: u64) -> Policy {
    Policy::from(limit(max, window))
}

/// A log whose entry `i` has the time `START + i`.
struct LongLog {
    store: SharedStore,
    key: String,
    log: Log,
    calls: u64,
}

impl LongLog {
    /// Records or peeks `at` microseconds after the start, and compares the decisions. Returns the receipts of the log and of
    /// the store.
    async fn check(
        &mut self,
        mode: Mode,
        cost: u64,
        policy: &Policy,
        at: u64,
    ) -> Result<[Option<Receipt>; 2], String> {
        self.calls += 1;
        let at = Timestamp::from_micros_saturating(START + at);
        let op = op(mode, &self.key, policy).with_cost(cost).at(at);
        let got = decided(&self.store, op, Route::in_turn(self.calls as usize)).await;
        let (got, _) = got.map_err(|error| format!("the store returned the error {error:?}"))?;
        let both = [decide(&op, self.log.apply(&op, at)), got];
        let [expected, got] = both.each_ref().map(DecisionValues::from);
        if expected == got {
            return Ok(both.map(|decision| decision.receipt()));
        }
        let columns = columns(&expected, &got);
        Err(format!("a {mode:?} of {cost} under {policy}\n{columns}"))
    }

    async fn append(&mut self, i: u64, used: &mut u64) -> Result<(), String> {
        *used += 1 + i % 3;
        let all = under(MAX_COST, WINDOW);
        self.check(Mode::Record, 1 + i % 3, &all, i).await?;
        let len = i + 1;
        if len.is_power_of_two() || len.is_multiple_of(10_000) {
            // With a full limit, at a cost that waits for the first third; and with a limit that covers only the newer half.
            let full = under(*used, WINDOW);
            self.check(Mode::Peek, *used / 3 + 1, &full, i).await?;
            let half = under(MAX_COST, (len / 2).max(1));
            self.check(Mode::Peek, 1, &half, i).await?;
        }
        Ok(())
    }

    /// Settles and refunds the newest entry, then drops the older half by age, and merges the younger half.
    async fn settle_and_trim(&mut self, len: u64) -> Result<(), String> {
        let half = (len / 2).max(1);
        let all = under(MAX_COST, WINDOW);
        let receipts = self.check(Mode::Record, 5, &all, len).await?;
        for cost in [9, 0] {
            self.settle(receipts, &all, cost).await?;
        }
        let younger = limit(MAX_COST, half);
        self.check(Mode::Record, 1, &younger.into(), len).await?;
        self.check(Mode::Peek, 1, &all, len).await?;
        // All entries leave the exact limit's window together, and merge within cells of 100 microseconds.
        let merging = policy(&[younger, resolved(limit(MAX_COST, WINDOW), 100)], false);
        self.check(Mode::Record, 1, &merging, len + half).await?;
        self.check(Mode::Peek, 1, &all, len + half).await.map(drop)
    }

    async fn settle(
        &mut self,
        receipts: [Option<Receipt>; 2],
        policy: &Policy,
        cost: u64,
    ) -> Result<(), String> {
        let [Some(expected), Some(own)] = receipts else {
            return Err("a record returned no receipt".to_owned());
        };
        self.calls += 1;
        let settlement = |receipt: Receipt| {
            Settlement::new(log(&self.key), policy, receipt, cost).at(receipt.at())
        };
        let got = self.store.settle(settlement(own)).await;
        let got = got.map_err(|error| format!("the store returned the error {error:?}"))?;
        let expected = self.log.settle(&settlement(expected), expected.at());
        let [expected, got] = [expected, got].map(|facts| {
            let settled = Settled::new(&settlement(own), facts);
            (settled.applied(), settled.status().clone())
        });
        let text = || format!("a settlement to {cost}: expected {expected:?}, got {got:?}");
        (expected == got).then_some(()).ok_or_else(text)
    }
}
