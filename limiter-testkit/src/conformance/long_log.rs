//! A log with a very large number of entries. The oracle would be too slow, so this module computes the answers.

use std::time::Instant;

use limiter_core::store::{Mode, Op, Settlement};
use limiter_core::{MAX_COST, Name, Policy, Receipt, SharedStore, Timestamp, WindowStore as _};

use super::generated::strategy::{START, limit, policy, resolved};
use super::sentence::Citation;
use super::sentence::Sentence::{L3, L5, L6, L14, M3, S2, S3};
use super::sequence::caller::{Route, decided};
use super::suite::failure::{Finding, Findings};
use super::suite::run::{Run, reset_all};

/// Nothing leaves this window.
const WINDOW: u64 = 1 << 40;

/// Returns the cost of an entry. Costs vary.
fn cost(i: u64) -> u64 {
    1 + i % 3
}

/// Returns the sum of the first `count` costs.
fn sum(count: u64) -> u64 {
    let (whole, rest) = (count / 3, count % 3);
    6 * whole + rest * (rest + 1) / 2
}

pub(crate) async fn run(run: &mut Run<'_>, findings: &mut Findings) {
    let mut long = LongLog { store: run.store().clone(), key: run.new_key(), calls: 0, len: 0 };
    let (most, start) = (run.settings.sizes.long_log, Instant::now());
    let mut result = Ok(());
    while result.is_ok() && long.len < most && start.elapsed() < run.settings.sizes.long_log_time {
        result = long.append().await;
    }
    if result.is_ok() {
        result = long.settle_and_trim().await;
    }
    reset_all(&long.store, &[long.op(&under(MAX_COST, WINDOW)).log]).await;
    run.report.longest_log = run.report.longest_log.max(long.len);
    run.count(long.calls);
    if let Err((citation, text)) = result {
        let title = format!("a log of {} entries", long.len);
        findings.push(Finding::new(title, &[L14.nth(1), citation], text));
    }
}

fn under(max: u64, window: u64) -> Policy {
    Policy::from(limit(max, window))
}

type Checked<T = ()> = Result<T, (Citation, String)>;

/// The fields of a decision that are compared: `used`, `retry_after`, `refill_after` and `reset_after`.
type Fields = (u64, Option<u64>, u64, u64);

/// A log whose entry `i` has the time `START + i` and the cost [`cost`]`(i)`.
struct LongLog {
    store: SharedStore,
    key: String,
    calls: u64,
    len: u64,
}

impl LongLog {
    fn op<'a>(&'a self, policy: &'a Policy) -> Op<'a> {
        Op::record(&self.key, policy).with_name(Name::new("conformance"))
    }

    /// Records or peeks `at` microseconds after the start, and compares the decision.
    async fn check(
        &mut self,
        (mode, cost, policy, at): (Mode, u64, Policy, u64),
        citation: Citation,
        expected: Fields,
    ) -> Checked<Option<Receipt>> {
        self.calls += 1;
        let mut op = self.op(&policy).with_cost(cost).at(Timestamp::from_micros_saturating(START + at));
        op.mode = mode;
        let failed = |error| (L14.into(), format!("the store returned the error {error:?}"));
        let (decision, _) = decided(&self.store, op, Route::in_turn(self.calls as usize)).await.map_err(failed)?;
        let micros = |duration: std::time::Duration| duration.as_micros() as u64;
        let got = (
            decision.used(),
            decision.retry_after().map(micros),
            micros(decision.refill_after()),
            micros(decision.reset_after()),
        );
        if got == expected && decision.allowed() == expected.1.is_none() {
            return Ok(decision.receipt());
        }
        let text = format!(
            "a {mode:?} of {cost} under {policy}: used, retry_after, refill_after and reset_after\nexpected {expected:?}\n\
             got      {got:?}, allowed: {}",
            decision.allowed()
        );
        Err((citation, text))
    }

    async fn append(&mut self) -> Checked {
        let i = self.len;
        let expected = (sum(i + 1), None, WINDOW - i, WINDOW);
        self.check((Mode::Record, cost(i), under(MAX_COST, WINDOW), i), L5.nth(1), expected).await?;
        self.len = i + 1;
        if !self.len.is_power_of_two() && !self.len.is_multiple_of(10_000) {
            return Ok(());
        }
        // Under a window that covers only the newer half, and at a cost that waits for the first third.
        let (len, half, third) = (self.len, (self.len / 2).max(1), i / 3);
        let expected = (sum(len) - sum(len - half), None, 1, half);
        self.check((Mode::Peek, 1, under(MAX_COST, half), i), L3.nth(1), expected).await?;
        let expected = (sum(len), Some(WINDOW - (i - third)), WINDOW - i, WINDOW);
        self.check((Mode::Peek, sum(third + 1), under(sum(len), WINDOW), i), L3.nth(1), expected).await?;
        Ok(())
    }

    /// Settles and refunds the newest entry, then drops the older half by age, and merges the younger half.
    async fn settle_and_trim(&mut self) -> Checked {
        let (i, half) = (self.len, (self.len / 2).max(1));
        let expected = (sum(i) + 5, None, WINDOW - i, WINDOW);
        let receipt = self.check((Mode::Record, 5, under(MAX_COST, WINDOW), i), L5.nth(1), expected).await?;
        let receipt = receipt.ok_or((L5.nth(1), "a record returned no receipt".to_owned()))?;
        self.settle(receipt, 9, sum(i) + 9, S2.nth(1)).await?;
        self.settle(receipt, 0, sum(i), S3.nth(1)).await?;
        // Appended one microsecond after the newest entry, so one entry less than half is young enough.
        let used = sum(i) - sum(i + 1 - half) + 1;
        let expected = (used, None, if half > 1 { 1 } else { half }, half);
        self.check((Mode::Record, 1, under(MAX_COST, half), i), L6.nth(1), expected).await?;
        let expected = (used, None, if half > 1 { WINDOW - (half - 1) } else { WINDOW }, WINDOW);
        self.check((Mode::Peek, 1, under(MAX_COST, WINDOW), i), L6.nth(1), expected).await?;
        // All entries leave the exact limit's window together, and merge within cells of 100 microseconds.
        let merging = policy(&[limit(MAX_COST, half), resolved(limit(MAX_COST, WINDOW), 100)], false);
        let first = ((i + 1 - half) / 100 * 100 + 99).min(i);
        let expected = (used + 1, None, WINDOW - (i + half - first), WINDOW);
        self.check((Mode::Record, 1, merging, i + half), M3.nth(1), expected).await?;
        Ok(())
    }

    async fn settle(&mut self, receipt: Receipt, cost: u64, used: u64, citation: Citation) -> Checked {
        let policy = under(MAX_COST, WINDOW);
        let settlement = Settlement::new(self.op(&policy).log, &policy, receipt, cost);
        let result = self.store.settle(settlement.at(Timestamp::from_micros_saturating(START + self.len))).await;
        self.calls += 1;
        let got = result.map(|facts| (facts.applied, facts.log.usage.first().map(|usage| usage.used)));
        if matches!(got, Ok((true, Some(found))) if found == used) {
            return Ok(());
        }
        Err((
            citation,
            format!("a settlement of the newest entry to {cost}: expected applied, used {used}, got {got:?}"),
        ))
    }
}
