//! One fault, seen by the callers of several stores.

use std::io;
use std::time::Duration;

use futures::future::join_all;
use limiter_core::{Limiter, SharedStore, policy};
use tokio::task::block_in_place;
use tokio::time::{Instant, sleep};

use crate::scene::Scene;
use crate::subject::{Call, Outcome, Subject, usual};

/// The maximum of the limit that must hold.
const MAX: u64 = 10;
/// How many of its units are used before the fault.
const BEFORE: u64 = 3;
/// How long a fault lasts.
const LENGTH: Duration = Duration::from_millis(1500);
/// The time within which the server decides again after a fault.
const RECOVERY: Duration = Duration::from_secs(4);
/// The number of concurrent calls that it must then admit.
const CONCURRENT: u64 = 4;
/// The pause between two calls.
const PAUSE: Duration = Duration::from_millis(10);

/// What the callers of one store saw of a fault.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Observed {
    /// The subject's name.
    pub subject: &'static str,
    /// The most frequent outcome during the fault.
    pub during: Outcome,
    /// The median time of the calls with that outcome.
    pub usual_time: Duration,
    /// The number of calls during the fault.
    pub calls: usize,
    /// How long after the fault the server decided again.
    pub recovery: Duration,
    /// The broken promises. Empty for a correct store.
    pub violations: Vec<String>,
}

/// Runs stores through one fault, all at the same time, and checks their promises:
///
/// - Each call ends within the store's bound and a second, and most within the bound: with a decision or a retryable error.
/// - The server decides again within 4 s after the fault, without new stores.
/// - Each idempotency key counts exactly once after all calls have been repeated.
/// - Without one, what was admitted counts, and no call counts twice.
/// - No window admits more than [`Subject::most`] says, or once more if the fault loses data.
///
/// `direct` connects a store to [`Scene::direct_url`], with timeouts that a busy machine does not reach. Each fault uses its own
/// names, so a scene may go through several. Takes about 2 s. Call it in a multi-threaded tokio runtime.
///
/// # Errors
/// If the scene cannot begin or end the fault, or if a store does not work before it.
pub async fn observe<X: Scene>(
    scene: &mut X,
    fault: X::Fault,
    subjects: &[Subject],
    direct: impl AsyncFn(String) -> SharedStore,
) -> io::Result<Vec<Observed>> {
    let mut runs: Vec<Run<'_>> = subjects.iter().map(|subject| Run::new(subject, &fault.to_string())).collect();
    let ready = join_all(runs.iter_mut().map(Run::before)).await;
    if let Some(error) = ready.into_iter().find_map(Result::err) {
        return Err(io::Error::other(format!("before {fault}: {error}")));
    }
    block_in_place(|| scene.begin(fault))?;
    let until = Instant::now() + LENGTH;
    join_all(runs.iter_mut().map(|run| run.during(until))).await;
    block_in_place(|| scene.end(fault))?;
    let direct = direct(scene.direct_url()).await;
    let observed = runs.iter_mut().map(|run| run.after(&direct, X::loses_data(fault)));
    Ok(join_all(observed).await)
}

/// Waits until the store admits concurrent requests that the server then counts. Returns how long that took.
pub(super) async fn recovered(subject: &Subject, name: &str, direct: &SharedStore) -> Result<Duration, String> {
    let limiter = Limiter::new(name, policy!("100000/10m"), subject.store.clone());
    let server = Limiter::new(name, policy!("100000/10m"), direct.clone());
    let counted = async || server.peek("fresh").await.map_or(0, |decision| decision.used());
    let begun = Instant::now();
    while begun.elapsed() < RECOVERY {
        let before = counted().await;
        let calls = join_all((0..CONCURRENT).map(|_| subject.call(Box::pin(limiter.acquire("fresh"))))).await;
        if calls.iter().all(Call::allowed) && counted().await >= before + CONCURRENT {
            return Ok(begun.elapsed());
        }
        sleep(PAUSE).await;
    }
    Err(format!("the server does not decide again within {RECOVERY:?}"))
}

/// One store on its way through the fault.
struct Run<'a> {
    subject: &'a Subject,
    name: String,
    /// Limiters on the store: the first reaches its maximum soon, the second never.
    limited: Limiter,
    plenty: Limiter,
    /// The admitted units of `limited`.
    admitted: u64,
    /// Calls of `plenty` without an idempotency key, and how many of them were admitted.
    calls: u64,
    counted: u64,
    /// The number of idempotency keys used, from 0.
    ids: u128,
    during: Vec<Call>,
    violations: Vec<String>,
}

impl<'a> Run<'a> {
    fn new(subject: &'a Subject, fault: &str) -> Self {
        let name = format!("{}, {fault}", subject.name);
        Self {
            subject,
            limited: Limiter::new(&*name, policy!("10/10m"), subject.store.clone()),
            plenty: Limiter::new(&*name, policy!("100000/10m"), subject.store.clone()),
            name,
            admitted: 0,
            calls: 0,
            counted: 0,
            ids: 0,
            during: Vec::new(),
            violations: Vec::new(),
        }
    }

    /// Uses a part of the limit.
    async fn before(&mut self) -> Result<(), String> {
        let until = Instant::now() + RECOVERY;
        while self.admitted < BEFORE {
            match self.subject.within_bound(self.limited.acquire("limited")).await {
                Some(Ok(decision)) if decision.allowed() => self.admitted = decision.used(),
                Some(answer) if Instant::now() > until => return Err(format!("{}: {answer:?}", self.subject.name)),
                None if Instant::now() > until => return Err(format!("{}: a call did not end", self.subject.name)),
                _ => sleep(PAUSE).await,
            }
        }
        Ok(())
    }

    async fn during(&mut self, until: Instant) {
        while Instant::now() < until {
            let (limited, with_id, without) = tokio::join!(
                self.subject.call(Box::pin(self.limited.acquire("limited"))),
                self.subject.call(Box::pin(self.plenty.acquire("ids").id(self.ids))),
                self.subject.call(Box::pin(self.plenty.acquire("calls"))),
            );
            self.admitted += u64::from(limited.allowed());
            self.ids += 1;
            self.calls += 1;
            self.counted += u64::from(without.allowed());
            self.during.extend([with_id, without]);
            for call in [limited, with_id, without] {
                match call.outcome {
                    Outcome::Never => self.violations.push(format!("a call did not end within {:?}", call.took)),
                    Outcome::Err(kind) if !limiter_core::Error::new(kind, "").is_retryable() => {
                        self.violations.push(format!("a call failed as {kind:?}"));
                    }
                    _ => {}
                }
            }
            sleep(PAUSE).await;
        }
    }

    async fn after(&mut self, direct: &SharedStore, loses_data: bool) -> Observed {
        let recovery = recovered(self.subject, &self.name, direct).await;
        if recovery.is_err() {
            return self.observed(recovery);
        }
        let server = Limiter::new(&*self.name, policy!("100000/10m"), direct.clone());
        for id in 0..self.ids {
            self.until_allowed(id).await;
        }
        let expected = u64::try_from(self.ids).unwrap_or(u64::MAX);
        if let Err(used) = used(&server, "ids", expected..=expected).await {
            self.violations.push(format!("{expected} idempotency keys count {used} times"));
        }
        // Without a promise, admitted calls need not count; a decision of a fallback may also count in the server.
        let least = if loses_data || self.subject.most.is_none() { 0 } else { self.counted };
        let most = self.calls * self.subject.most.unwrap_or(1);
        if let Err(used) = used(&server, "calls", least..=most).await {
            self.violations
                .push(format!("{} calls, {} of them admitted, count {used} times", self.calls, self.counted));
        }
        for _ in 0..10 * MAX {
            match self.subject.call(Box::pin(self.limited.acquire("limited"))).await.outcome {
                Outcome::Ok { allowed: true } => self.admitted += 1,
                Outcome::Ok { allowed: false } => break,
                _ => sleep(PAUSE).await,
            }
        }
        let most = self.subject.most.map(|times| (times + u64::from(loses_data)) * MAX);
        if most.is_some_and(|most| self.admitted > most) {
            self.violations.push(format!("a window of {MAX} admitted {}", self.admitted));
        }
        if let Err(used) = used(&server, "limited", MAX..=u64::MAX).await {
            self.violations.push(format!("after a denial {used} of {MAX} are used"));
        }
        self.observed(recovery)
    }

    /// Repeats a call with an idempotency key until it is answered.
    async fn until_allowed(&self, id: u128) {
        let until = Instant::now() + RECOVERY;
        while Instant::now() < until {
            if self.subject.call(Box::pin(self.plenty.acquire("ids").id(id))).await.allowed() {
                return;
            }
            sleep(PAUSE).await;
        }
    }

    fn observed(&mut self, recovery: Result<Duration, String>) -> Observed {
        let (during, usual_time) = usual(&self.during).unwrap_or((Outcome::Never, Duration::MAX));
        let mut violations = std::mem::take(&mut self.violations);
        if usual_time > self.subject.bound {
            violations.push(format!("calls usually take {usual_time:?}"));
        }
        let recovery = recovery.unwrap_or_else(|violation| {
            violations.push(violation);
            RECOVERY
        });
        Observed { subject: self.subject.name, during, usual_time, calls: self.during.len(), recovery, violations }
    }
}

/// Waits until the usage is within the range, because a store may still merge. Returns the usage as the error if it never is.
async fn used(server: &Limiter, key: &str, range: std::ops::RangeInclusive<u64>) -> Result<(), String> {
    let until = Instant::now() + RECOVERY;
    loop {
        let used = server.peek(key).await.map(|decision| decision.used());
        if used.as_ref().is_ok_and(|used| range.contains(used)) {
            return Ok(());
        }
        if Instant::now() > until {
            return Err(used.map_or_else(|error| error.to_string(), |used| used.to_string()));
        }
        sleep(PAUSE).await;
    }
}
