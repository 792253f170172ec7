//! Drops one call and checks the log that it leaves behind.

use std::fmt::{self, Write as _};
use std::sync::Arc;
use std::time::Duration;

use futures::channel::oneshot;
use limiter_core::WindowStore;
use limiter_core::store::At;

use super::dropped::DroppedCall;
use super::histories::{History, histories};
use crate::answer::fields::Fields;
use crate::conformance::sentence::Sentence::{C1, C2};
use crate::conformance::sequence::Plan;
use crate::conformance::sequence::call_result::StoreResult;
use crate::conformance::sequence::caller::{Caller, Route, StoreKeys};
use crate::conformance::sequence::replay::salt;
use crate::conformance::sequence::transcript::columns;
use crate::conformance::sleep::{sleep, within};
use crate::conformance::suite::failure::{Finding, Findings};
use crate::conformance::suite::run::{Run, reset_all};
use crate::poll_times::poll_times;

/// The maximum number of polls before a future is dropped.
const MAX_POLLS: usize = 16;
/// How long a future is polled before it is dropped, if it waits for something else. In microseconds.
const POLL_MICROS: [u64; 6] = [20, 100, 300, 1_000, 3_000, 10_000];
/// The time limit for all later calls together.
const DEADLINE: Duration = Duration::from_secs(5);

/// When a future is dropped.
#[derive(Clone, Copy, Debug)]
enum DropAfter {
    Polls(usize),
    Micros(u64),
}

impl fmt::Display for DropAfter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Polls(1) => f.write_str("1 poll"),
            Self::Polls(polls) => write!(f, "{polls} polls"),
            Self::Micros(micros) => write!(f, "{micros} \u{b5}s"),
        }
    }
}

impl DropAfter {
    /// Polls a future for this long. Returns `None` if it has not finished.
    async fn poll<T>(self, future: impl Future<Output = T>) -> Option<T> {
        match self {
            Self::Micros(micros) => within(Duration::from_micros(micros), future).await,
            Self::Polls(polls) => poll_times(polls, future).await,
        }
    }
}

/// The store stopped answering.
pub(super) struct Hung;

/// Drops the call after 0, 1, 2, … polls until it finishes. If it had to wait, also drops it after several delays.
pub(super) async fn run<S>(run: &mut Run<'_, S>, dropped: &DroppedCall, findings: &mut Findings) -> Result<(), Hung>
where
    S: WindowStore + ?Sized,
{
    let plan = Plan::of(&dropped.script.case).map(Arc::new);
    let (plan, histories) = match plan.and_then(|plan| Ok((plan, histories(dropped)?))) {
        Ok(both) => both,
        Err(text) => {
            findings.push(Finding::new(dropped.script.name, &[], text));
            return Ok(());
        }
    };
    let mut has_waited = false;
    for drop_after in (0..=MAX_POLLS).map(DropAfter::Polls) {
        if once(run, dropped, drop_after, (&plan, &histories), findings).await? {
            break;
        }
        has_waited = matches!(drop_after, DropAfter::Polls(1..));
    }
    for drop_after in POLL_MICROS.map(DropAfter::Micros).into_iter().filter(|_| has_waited) {
        if once(run, dropped, drop_after, (&plan, &histories), findings).await? {
            break;
        }
    }
    Ok(())
}

/// Drops the call once. Returns whether it had already finished.
async fn once<S>(
    run: &mut Run<'_, S>,
    dropped: &DroppedCall,
    drop_after: DropAfter,
    (plan, histories): (&Arc<Plan>, &[History]),
    findings: &mut Findings,
) -> Result<bool, Hung>
where
    S: WindowStore + ?Sized,
{
    let title = format!("{} whose future is dropped after {drop_after}", dropped.script.name);
    let (store_keys, store) = (run.store_keys(plan), Arc::clone(run.store()));
    let mut caller = Caller::new(&store_keys, salt());
    for number in 0..dropped.step {
        _ = caller.call_planned(&store, plan, number, Route::Facts).await;
    }
    let call = plan.calls[dropped.step].call;
    let at = At::Given(call.at().unwrap_or_default());
    let finished = drop_after.poll(caller.call(&store, plan, dropped.step, &call, at, Route::Facts)).await.is_some();

    let later = CallsAfter { store: Arc::clone(&store), plan: Arc::clone(plan), caller, step: dropped.step };
    let (send, receive) = oneshot::channel();
    let task = run.spawner().start(Box::pin(async move { _ = send.send(later.run().await) }));
    run.count(plan.len() as u64);
    let answered = async {
        task.await;
        receive.await
    };
    let Some(Ok(got)) = within(DEADLINE, answered).await else {
        let text = format!("after that, calls on the same key and on another key did not return within {DEADLINE:?}");
        findings.push(Finding::new(title, &[C2.nth(1)], text));
        return Err(Hung);
    };
    // A finished call must have taken effect.
    let possible = if finished { &histories[..1] } else { histories };
    if !possible.iter().any(|history| history.agrees(&got)) {
        findings.push(Finding::new(title, &[C1.nth(1)], transcript(dropped, plan, possible, &got)));
    }
    remove(&store_keys, plan, &store, finished).await;
    Ok(finished)
}

/// The calls after the dropped one.
struct CallsAfter<S: ?Sized> {
    store: Arc<S>,
    plan: Arc<Plan>,
    caller: Caller,
    step: usize,
}

impl<S: WindowStore + ?Sized> CallsAfter<S> {
    async fn run(mut self) -> Vec<StoreResult> {
        let plan = Arc::clone(&self.plan);
        let mut replies = Vec::new();
        for number in self.step + 1..plan.calls.len() {
            // The calls that follow the last step only read the log. They are not part of a history.
            if plan.calls[number].step > plan.calls[number - 1].step {
                replies.push(self.caller.call_planned(&self.store, &plan, number, Route::Facts).await);
            }
        }
        replies
    }
}

/// Resets the logs. Waits first if the dropped call may still arrive.
async fn remove<S>(store_keys: &StoreKeys, plan: &Plan, store: &Arc<S>, finished: bool)
where
    S: WindowStore + ?Sized,
{
    if !finished {
        sleep(Duration::from_millis(1)).await;
    }
    let logs: Vec<_> = plan.logs().into_iter().map(|log| store_keys.log(log)).collect();
    reset_all(&**store, &logs).await;
}

/// Prints the later calls, with the answers of the two likeliest histories beside the store's.
fn transcript(dropped: &DroppedCall, plan: &Plan, possible: &[History], got: &[StoreResult]) -> String {
    let mut text = format!("before: {}\n", calls(plan, 0..dropped.step));
    let _ = writeln!(text, "dropped: {}", calls(plan, dropped.step..dropped.step + 1));
    let _ = writeln!(text, "after: {}", calls(plan, dropped.step + 1..dropped.step + 1 + got.len()));
    for history in [possible.first(), possible.last()].into_iter().flatten() {
        let Some(i) = history.first_difference(got) else { continue };
        let call = plan.describe(&plan.calls[dropped.step + 1 + i].call);
        let _ = writeln!(text, "if {}, then \"{call}\" must return this:", history.what);
        let expected = history.expected[i].as_ref().map(|reply| reply.fields(plan.start)).unwrap_or_default();
        let found: Fields = match &got[i] {
            Ok(reply) => reply.fields(plan.start),
            Err(error) => vec![("error".to_owned(), format!("{error:?}"))],
        };
        text += &columns(&expected, &found);
        if possible.len() == 1 {
            break;
        }
    }
    text + "no other order of these calls explains the store's answers either"
}

fn calls(plan: &Plan, range: std::ops::Range<usize>) -> String {
    plan.calls[range].iter().map(|planned| plan.describe(&planned.call)).collect::<Vec<_>>().join("; ")
}
