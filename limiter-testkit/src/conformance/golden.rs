//! The golden traces.

use std::fmt::Write;

use limiter_core::store::{At, Mode};
use limiter_core::{Policy, Timestamp, WindowStore};

use crate::answer::fields::Fields;
use crate::conformance::sequence::Plan;
use crate::conformance::sequence::call_result::{CallResult, StoreResult};
use crate::conformance::sequence::caller::{Caller, Route};
use crate::conformance::sequence::case::{Case, CaseLimiter, Operation, Place, Step};
use crate::conformance::sequence::citations;
use crate::conformance::sequence::replay::{Mismatch, salt};
use crate::conformance::sequence::transcript::columns;
use crate::conformance::suite::failure::{Finding, Findings};
use crate::conformance::suite::run::{Run, reset_all};
use crate::golden::{self, Row, RowAnswer, Trace};

pub(crate) async fn run<S: WindowStore + ?Sized>(run: &mut Run<'_, S>, findings: &mut Findings) {
    for trace in golden::traces() {
        let title = format!("golden trace \"{}\"", trace.name);
        match replay_trace(run, trace).await {
            Ok(rows) => run.report.golden_rows += rows,
            Err(GoldenFailure::Row(finding)) => findings.push(*finding),
            Err(GoldenFailure::Testkit(text)) => findings.push(Finding::new(title, &[], text)),
        }
    }
}

enum GoldenFailure {
    Row(Box<Finding>),
    Testkit(String),
}

impl From<String> for GoldenFailure {
    fn from(text: String) -> Self {
        Self::Testkit(text)
    }
}

async fn replay_trace<S: WindowStore + ?Sized>(run: &mut Run<'_, S>, trace: &Trace) -> Result<u64, GoldenFailure> {
    let case = case(trace).map_err(|e| e.to_string())?;
    let plan = Plan::of(&case)?;
    let (store_keys, store) = (run.store_keys(&plan), run.store());
    let mut caller = Caller::new(&store_keys, salt());
    let mut wrong = None;
    for (number, row) in trace.rows.iter().enumerate() {
        let call = &plan.calls[number].call;
        let at = At::Given(call.at().unwrap_or_default());
        let got = caller.call(store, &plan, number, call, at, Route::Limiter).await;
        if !agrees(row, &got) {
            wrong = Some((number, got));
            break;
        }
    }
    let logs: Vec<_> = plan.logs().into_iter().map(|log| store_keys.log(log)).collect();
    reset_all(&**store, &logs).await;
    run.count((trace.rows.len() + logs.len()) as u64);
    match wrong {
        None => Ok(trace.rows.len() as u64),
        Some((number, got)) => {
            let title = format!("golden trace \"{}\"", trace.name);
            let citations = citations::probable_citations(&plan, number, &got);
            let transcript = transcript(trace, number, &got);
            let mismatch = Mismatch { call: number, step: number, citations: citations.clone(), transcript };
            Err(GoldenFailure::Row(Box::new(Finding::about(title, &citations, mismatch))))
        }
    }
}

/// Returns the trace as a case with one call per row, in order.
fn case(trace: &Trace) -> Result<Case, limiter_core::Error> {
    let mut policies: Vec<Policy> = vec![trace.policy()?];
    let mut steps = Vec::new();
    let mut before = 0;
    for row in trace.rows {
        let mut policy = 0;
        if let Some(own) = row.own_policy()? {
            policy = policies.len() as u8;
            policies.push(own);
        }
        let on = Place { limiter: row.limiter as u8, key: 0 };
        let operation = Operation::Run { mode: row.mode, on, policy, cost: row.cost, id: None };
        steps.push(Step { after: row.at as i64 - before, operation });
        before = row.at as i64;
    }
    let limiters = [0, 1].map(|name| CaseLimiter { name, policy: Some(0) }).to_vec();
    Ok(Case { policies, limiters, start: 0, steps })
}

fn agrees(row: &Row, got: &StoreResult) -> bool {
    match (row.answer, got) {
        (Some(answer), Ok(CallResult::Decided(decided))) => {
            let used: Vec<u64> = decided.answer.status.limits.iter().map(|limit| limit.used).collect();
            RowAnswer::from(&decided.answer) == answer && (row.used_each.is_empty() || used == row.used_each)
        }
        (None, Err(error)) => error.kind() == limiter_core::ErrorKind::CostExceedsLimit,
        _ => false,
    }
}

fn fields(answer: &RowAnswer, used_each: &[u64]) -> Fields {
    let retry = answer.retry_after.map_or_else(|| "none".to_owned(), |retry| retry.to_string());
    let mut fields: Fields = [
        ("allowed", answer.allowed.to_string()),
        ("limit", answer.limit.to_string()),
        ("used", answer.used.to_string()),
        ("remaining", answer.remaining.to_string()),
        ("retry_after", retry),
        ("refill_after", answer.refill_after.to_string()),
        ("reset_after", answer.reset_after.to_string()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .to_vec();
    if !used_each.is_empty() {
        fields.push(("used of each limit".to_owned(), format!("{used_each:?}")));
    }
    fields
}

/// Prints the whole trace with the differing row marked, and both answers to that row.
fn transcript(trace: &Trace, wrong: usize, got: &StoreResult) -> String {
    let of = trace.policy().map(|policy| policy.to_string()).unwrap_or_default();
    let mut text = format!("{of}, counting {:?}; times in \u{b5}s\n", trace.counting);
    for (number, row) in trace.rows.iter().enumerate() {
        let mark = if number == wrong { ">" } else { " " };
        let _ = writeln!(text, "{mark} {number:>2}. {:>12}  {}: {}", row.at, describe(row), expected(row));
    }
    let row = &trace.rows[wrong];
    let right = match &row.answer {
        Some(answer) => fields(answer, row.used_each),
        None => vec![("error".to_owned(), "CostExceedsLimit".to_owned())],
    };
    match got {
        Ok(CallResult::Decided(decided)) => {
            let used: Vec<u64> = decided.answer.status.limits.iter().map(|limit| limit.used).collect();
            let used = if row.used_each.is_empty() { &[] } else { &used[..] };
            text + &columns(&right, &fields(&RowAnswer::from(&decided.answer), used))
        }
        Ok(reply) => text + &columns(&right, &reply.fields(Timestamp::EPOCH)),
        Err(error) => format!("{text}{}the store returned the error {error:?}", columns(&right, &Fields::new())),
    }
}

fn describe(row: &Row) -> String {
    let verb = match row.mode {
        Mode::Acquire => "acquire",
        Mode::Peek => "peek",
        Mode::Record => "record",
    };
    let own = row.own_policy().ok().flatten().map(|policy| format!(" under {policy}")).unwrap_or_default();
    let limiter = if row.limiter > 0 { " through another limiter" } else { "" };
    format!("{verb} {}{own}{limiter}", row.cost)
}

fn expected(row: &Row) -> String {
    let Some(answer) = row.answer else { return "an error".to_owned() };
    let used = format!("used {} of {}", answer.used, answer.limit);
    match (answer.allowed, answer.retry_after) {
        (true, _) => format!("allowed, {used}"),
        (false, Some(retry)) => format!("denied, {used}, retry after {retry}"),
        (false, None) => format!("not allowed, {used}"),
    }
}
