//! A log with a very large number of entries. The oracle would be too slow, so this module computes the answers.

use std::sync::Arc;
use std::time::Instant;

use limiter_core::store::{Mode, Op, Settlement};
use limiter_core::{Decision, Error, MAX_COST, Policy, Receipt, Timestamp, WindowStore};

use crate::conformance::generated::strategy::{START, limit};
use crate::conformance::sentence::Citation;
use crate::conformance::sentence::Sentence::{L3, L5, L6, L14, S2, S3};
use crate::conformance::sequence::caller::{Route, decided};
use crate::conformance::suite::failure::{Finding, Findings};
use crate::conformance::suite::run::{Run, reset_all};

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

pub(crate) async fn run<S: WindowStore + ?Sized>(run: &mut Run<'_, S>, findings: &mut Findings) {
    let mut long = LongLog { store: Arc::clone(run.store()), key: run.new_key(), calls: 0, len: 0 };
    let (most, start) = (run.sizes().long_log, Instant::now());
    let mut result = Ok(());
    while result.is_ok() && long.len < most && start.elapsed() < run.sizes().long_log_time {
        result = long.append().await;
    }
    if result.is_ok() {
        result = long.settle_and_trim().await;
    }
    reset_all(&*long.store, &[long.op(&meter()).log]).await;
    run.report.longest_log = run.report.longest_log.max(long.len);
    run.count(long.calls);
    if let Err((citations, text)) = result {
        findings.push(Finding::new(format!("a log of {} entries", long.len), &citations, text));
    }
}

fn meter() -> Policy {
    Policy::from(limit(MAX_COST, WINDOW))
}

/// The fields of a decision that this module compares.
#[derive(Debug, PartialEq, Eq)]
struct Summary {
    allowed: bool,
    used: u64,
    retry_after: Option<u64>,
    refill_after: u64,
    reset_after: u64,
}

impl From<&Decision> for Summary {
    fn from(decision: &Decision) -> Self {
        let micros = |duration: std::time::Duration| duration.as_micros() as u64;
        Self {
            allowed: decision.allowed(),
            used: decision.used(),
            retry_after: decision.retry_after().map(micros),
            refill_after: micros(decision.refill_after()),
            reset_after: micros(decision.reset_after()),
        }
    }
}

fn peeking(mut op: Op<'_>) -> Op<'_> {
    op.mode = Mode::Peek;
    op
}

type Checked = Result<(), (Vec<Citation>, String)>;

/// A log whose entry `i` has the time `START + i` and the cost [`cost`]`(i)`.
struct LongLog<S: ?Sized> {
    store: Arc<S>,
    key: String,
    calls: u64,
    len: u64,
}

impl<S: WindowStore + ?Sized> LongLog<S> {
    fn op<'a>(&'a self, policy: &'a Policy) -> Op<'a> {
        Op::record(&self.key, policy).with_name("conformance".into())
    }

    fn time(&self, i: u64) -> Timestamp {
        Timestamp::from_micros_saturating(START + i)
    }

    async fn decide(&self, op: Op<'_>, turn: u64) -> Result<Decision, (Vec<Citation>, String)> {
        let way = Route::in_turn(turn as usize);
        let failed = |error: Error| (vec![L14.into()], format!("the store returned the error {error:?}"));
        decided(&self.store, op, way).await.map(|(decision, _)| decision).map_err(failed)
    }

    fn compare(&self, what: &str, citations: &[Citation], expected: &Summary, got: &Decision) -> Checked {
        let got = Summary::from(got);
        if *expected == got {
            return Ok(());
        }
        Err((
            citations.to_vec(),
            format!("{what} on a log of {} entries\nexpected {expected:?}\ngot      {got:?}", self.len),
        ))
    }

    async fn append(&mut self) -> Checked {
        let (i, policy) = (self.len, meter());
        let decision = self.decide(self.op(&policy).with_cost(cost(i)).at(self.time(i)), i).await?;
        (self.calls, self.len) = (self.calls + 1, i + 1);
        let expected = Summary {
            allowed: true,
            used: sum(i + 1),
            retry_after: None,
            refill_after: WINDOW - i,
            reset_after: WINDOW,
        };
        self.compare("a record", &[L14.nth(1), L5.nth(1)], &expected, &decision)?;
        if self.len.is_power_of_two() || self.len.is_multiple_of(10_000) {
            self.peeks().await?;
        }
        Ok(())
    }

    /// Peeks under a window that only the newer half is in, and at a cost that waits for the first third.
    async fn peeks(&mut self) -> Checked {
        let (len, last) = (self.len, self.len - 1);
        let half = (len / 2).max(1);
        let policy = Policy::from(limit(MAX_COST, half));
        let peek = peeking(self.op(&policy).at(self.time(last)));
        let decision = self.decide(peek, 0).await?;
        let expected = Summary {
            allowed: true,
            used: sum(len) - sum(len - half),
            retry_after: None,
            refill_after: 1,
            reset_after: half,
        };
        self.compare("a peek at the newer half", &[L14.nth(1), L3.nth(1)], &expected, &decision)?;

        // The entries up to `third` must leave before the cost fits.
        let third = last / 3;
        let (max, cost) = (sum(len), sum(third + 1));
        let policy = Policy::from(limit(max, WINDOW));
        let peek = peeking(self.op(&policy).with_cost(cost).at(self.time(last)));
        let decision = self.decide(peek, 1).await?;
        let expected = Summary {
            allowed: false,
            used: max,
            retry_after: Some(WINDOW - (last - third)),
            refill_after: WINDOW - last,
            reset_after: WINDOW,
        };
        self.calls += 2;
        self.compare("a peek that does not fit", &[L14.nth(1), L3.nth(1)], &expected, &decision)
    }

    /// Settles and refunds the second newest entry, then drops the older half by age.
    async fn settle_and_trim(&mut self) -> Checked {
        let policy = meter();
        let i = self.len;
        let decision = self.decide(self.op(&policy).with_cost(5).at(self.time(i)), 0).await?;
        let failed = |text: String| (vec![S2.into()], text);
        let receipt = decision.receipt().ok_or_else(|| failed("a record returned no receipt".to_owned()))?;
        self.calls += 1;
        self.settle(receipt, 9, sum(i) + 9, S2.nth(1)).await?;
        self.settle(receipt, 0, sum(i), S3.nth(1)).await?;

        let half = (i / 2).max(1);
        let short = Policy::from(limit(MAX_COST, half));
        // Appended one microsecond after the newest entry, so one entry less than half is young enough.
        let trim = self.decide(self.op(&short).with_cost(1).at(self.time(i)), 1).await?;
        let used = sum(i) - sum(i + 1 - half) + 1;
        let expected = Summary {
            allowed: true,
            used,
            retry_after: None,
            refill_after: if half > 1 { 1 } else { half },
            reset_after: half,
        };
        self.compare("a record under a short window", &[L6.nth(1), L14.nth(1)], &expected, &trim)?;
        let peek = peeking(self.op(&policy).at(self.time(i)));
        let decision = self.decide(peek, 2).await?;
        self.calls += 2;
        let refill_after = if half > 1 { WINDOW - (half - 1) } else { WINDOW };
        let expected = Summary { allowed: true, used, retry_after: None, refill_after, reset_after: WINDOW };
        self.compare("a peek at the remaining entries", &[L6.nth(1), L14.nth(1)], &expected, &decision)
    }

    async fn settle(&mut self, receipt: Receipt, cost: u64, used: u64, citation: Citation) -> Checked {
        let policy = meter();
        let settlement = Settlement::new(self.op(&policy).log, &policy, receipt, cost).at(self.time(self.len));
        let result = self.store.settle(settlement).await;
        self.calls += 1;
        let facts =
            result.map_err(|error| (vec![citation, L14.into()], format!("the store returned the error {error:?}")))?;
        let found = facts.log.usage.first().map(|usage| usage.used);
        if facts.applied && found == Some(used) {
            return Ok(());
        }
        let text = format!(
            "a settlement of the newest of {} entries to {cost}\nexpected applied, used {used}\ngot      applied: {}, used {found:?}",
            self.len + 1,
            facts.applied
        );
        Err((vec![citation, L14.into()], text))
    }
}
