//! A log with a very large number of entries. The reference store would be too slow, so the core's [`Log`] computes the
//! results.

use std::time::Instant;

use limiter_core::store::{Log, LogKey, Mode, Settlement, decide};
use limiter_core::{MAX_COST, Policy, Receipt, Settled, SharedStore, Timestamp, WindowStore as _};

use super::caller::{Route, decided};
use super::mismatch::{Mismatch, columns};
use super::policies::{START, limit, policy, resolved};
use super::sentence::Sentence::L14;
use super::suite::run::{Run, log, op, reset_all};
use crate::answer::Answer;

/// Nothing leaves this window.
const WINDOW: u64 = 1 << 40;

pub(crate) async fn run(run: &mut Run<'_>) {
    let store = run.store().clone();
    let key = run.new_key();
    let mut long = LongLog {
        store,
        key,
        log: Log::new(),
        used: 0,
        calls: 0,
    };
    let most = run.suite.sizes.long_log;
    let start = Instant::now();
    let mut result = Ok(());
    let mut len = 0;
    while result.is_ok() && len < most && start.elapsed() < run.suite.sizes.long_log_time {
        result = long.append(len).await;
        len += 1;
    }
    if result.is_ok() {
        result = long.settle_and_trim(len).await;
    }
    reset_all(&long.store, &[long.log_key()]).await;
    run.count(long.calls);
    run.passed(len);
    if let Err(text) = result {
        run.fail(Mismatch::new(
            format!("a log of {len} entries"),
            &[L14],
            text,
        ));
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
    /// The total cost of all entries.
    used: u64,
    calls: u64,
}

impl LongLog {
    fn log_key(&self) -> LogKey<'_> {
        log(&self.key)
    }

    /// Records or peeks `at` microseconds after the start, and compares the decisions. Returns the receipts of the store and of
    /// the log.
    async fn check(
        &mut self,
        mode: Mode,
        cost: u64,
        policy: Policy,
        at: u64,
    ) -> Result<[Option<Receipt>; 2], String> {
        self.calls += 1;
        let at = Timestamp::from_micros_saturating(START + at);
        let op = op(mode, &self.key, &policy).with_cost(cost).at(at);
        let got = decided(&self.store, op, Route::in_turn(self.calls as usize)).await;
        let (got, _) = got.map_err(|error| format!("the store returned the error {error:?}"))?;
        let expected = decide(&op, self.log.apply(&op, at));
        let answers = [&expected, &got].map(Answer::from);
        if answers[0] == answers[1] {
            return Ok([got.receipt(), expected.receipt()]);
        }
        let start = Timestamp::from_micros_saturating(START);
        Err(format!(
            "a {mode:?} of {cost} under {policy}\n{}",
            columns(start, &answers[0], &answers[1])
        ))
    }

    async fn append(&mut self, i: u64) -> Result<(), String> {
        self.used += 1 + i % 3;
        self.check(Mode::Record, 1 + i % 3, under(MAX_COST, WINDOW), i)
            .await?;
        let len = i + 1;
        if !len.is_power_of_two() && !len.is_multiple_of(10_000) {
            return Ok(());
        }
        // With a full limit, at a cost that waits for the first third; and with a limit that covers only the newer half.
        self.check(Mode::Peek, self.used / 3 + 1, under(self.used, WINDOW), i)
            .await?;
        self.check(Mode::Peek, 1, under(MAX_COST, (len / 2).max(1)), i)
            .await
            .map(drop)
    }

    /// Settles and refunds the newest entry, then drops the older half by age, and merges the younger half.
    async fn settle_and_trim(&mut self, len: u64) -> Result<(), String> {
        let half = (len / 2).max(1);
        let all = under(MAX_COST, WINDOW);
        let receipts = self.check(Mode::Record, 5, all.clone(), len).await?;
        for cost in [9, 0] {
            self.settle(receipts, cost).await?;
        }
        self.check(Mode::Record, 1, under(MAX_COST, half), len)
            .await?;
        self.check(Mode::Peek, 1, all.clone(), len).await?;
        // All entries leave the exact limit's window together, and merge within cells of 100 microseconds.
        let merging = policy(
            &[
                limit(MAX_COST, half),
                resolved(limit(MAX_COST, WINDOW), 100),
            ],
            false,
        );
        self.check(Mode::Record, 1, merging, len + half).await?;
        self.check(Mode::Peek, 1, all, len + half).await.map(drop)
    }

    async fn settle(&mut self, receipts: [Option<Receipt>; 2], cost: u64) -> Result<(), String> {
        let key = self.key.clone();
        let policy = under(MAX_COST, WINDOW);
        let settlement = |receipt: Option<Receipt>| {
            let receipt = receipt.ok_or("a record returned no receipt")?;
            Ok::<_, String>(Settlement::new(log(&key), &policy, receipt, cost).at(receipt.at()))
        };
        let [own, expected] = [settlement(receipts[0])?, settlement(receipts[1])?];
        self.calls += 1;
        let got = self.store.settle(own).await;
        let got = got.map_err(|error| format!("the store returned the error {error:?}"))?;
        let expected = self.log.settle(&expected, expected.receipt.at());
        let [expected, got] = [expected, got].map(|facts| {
            let settled = Settled::new(&own, facts);
            (settled.applied(), settled.status().clone())
        });
        let text = || format!("a settlement to {cost}: expected {expected:?}, got {got:?}");
        (expected == got).then_some(()).ok_or_else(text)
    }
}
