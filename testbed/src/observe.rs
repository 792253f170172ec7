//! Faults, seen by the callers of several stores.

use std::io;
use std::time::Duration;

use futures::future::{join_all, try_join_all};
use limiter_core::{Error, Limiter, Policy, SharedStore, policy};
use limiter_testkit::poll_times;
use tokio::runtime::Handle;
use tokio::task::block_in_place;
use tokio::time::{Instant, sleep};

use crate::subject::{Attempt, Seen, Subject, usual};

/// The maximum of the limit that must hold.
const MAX: u64 = 10;
/// Never reached.
const PLENTY: Policy = policy!("100000/10m");
/// How many units of the limit are used before the fault.
const BEFORE: u64 = 3;
/// How long the calls go on.
const LENGTH: Duration = Duration::from_secs(1);
/// The time within which the server decides again after a fault.
const RECOVERY: Duration = Duration::from_secs(4);
/// The number of concurrent calls that it must then admit.
const CONCURRENT: u64 = 4;
/// The pause between two calls.
const PAUSE: Duration = Duration::from_millis(10);

/// The results of one store's callers during a fault.
#[derive(Clone, Debug)]
pub struct Observed {
    /// The most frequent outcome during the fault.
    pub during: Seen,
    /// The broken promises. Empty for a correct store.
    pub violations: Vec<String>,
}

/// Runs stores through faults, all at the same time, and checks their promises:
///
/// - Each call ends within the store's bound and a second, and most within the bound: with a decision or a retryable error.
/// - The server decides again within 4 s after the last fault, without new stores.
/// - Each idempotency key counts after all calls have been repeated: once, or at most twice with a local store.
/// - Without one, admitted calls count, and no call counts twice, and no dropped call counts.
/// - No window admits more than [`Subject::most`], or once more if a fault `loses_data`.
///
/// `inject` calls its argument for a second of calls: while the server has a fault, and as often as there are faults. It returns
/// the URL past any proxy, to which `direct` connects a store that checks the logs, with timeouts that a busy machine does not
/// reach. Call it in a multi-threaded tokio runtime.
pub async fn observe(
    subjects: &[Subject],
    loses_data: bool,
    inject: impl FnOnce(&mut dyn FnMut()) -> io::Result<String>,
    direct: impl AsyncFnOnce(String) -> SharedStore,
) -> io::Result<Vec<Observed>> {
    let mut runs = try_join_all(subjects.iter().map(Run::before))
        .await
        .map_err(io::Error::other)?;
    let mut during = || {
        let until = Instant::now() + LENGTH;
        Handle::current().block_on(join_all(runs.iter_mut().map(|run| run.during(until))));
    };
    let url = block_in_place(|| inject(&mut during))?;
    let direct = direct(url).await;
    Ok(join_all(runs.into_iter().map(|run| run.after(&direct, loses_data))).await)
}

/// Waits until the store admits concurrent requests that the server then counts.
async fn recovered(subject: &Subject, server: &Limiter) -> Result<(), String> {
    let limiter = Limiter::new(subject.name, PLENTY, subject.store.clone());
    let counted = async || server.peek("fresh").await.map_or(0, |it| it.used());
    eventually(async || {
        let before = counted().await;
        let calls = (0..CONCURRENT).map(|_| subject.call(limiter.acquire("fresh")));
        let calls = join_all(calls).await;
        let is_allowed = calls.iter().all(Attempt::is_allowed);
        (is_allowed && counted().await >= before + CONCURRENT)
            .then_some(())
            .ok_or_else(|| format!("the server does not decide again within {RECOVERY:?}"))
    })
    .await
}

/// Repeats failed calls for as long as a recovery may take. Returns the last failure.
async fn eventually<E>(mut attempt: impl AsyncFnMut() -> Result<(), E>) -> Result<(), E> {
    let until = Instant::now() + RECOVERY;
    loop {
        match attempt().await {
            Err(_) if Instant::now() < until => sleep(PAUSE).await,
            done => return done,
        }
    }
}

/// One store on its way through the faults.
struct Run<'a> {
    subject: &'a Subject,
    /// Limiters on the store: the first reaches its maximum soon, the second never.
    limited: Limiter,
    plenty: Limiter,
    /// The admitted units of `limited`.
    admitted: u64,
    /// The calls of `plenty` without an idempotency key, and as many with one, from 0, and as many that are dropped.
    calls: u64,
    /// How many of those without one were admitted.
    counted: u64,
    during: Vec<Attempt>,
    violations: Vec<String>,
}

impl<'a> Run<'a> {
    /// Uses a part of the limit.
    async fn before(subject: &'a Subject) -> Result<Self, String> {
        let limiter = |policy: Policy| Limiter::new(subject.name, policy, subject.store.clone());
        let limited = limiter(policy!("10/10m"));
        let plenty = limiter(PLENTY);
        for _ in 0..BEFORE {
            let call = async || subject.call(limited.acquire("limited")).await.admitted();
            let admitted = eventually(call).await;
            admitted.map_err(|outcome| format!("{} before the fault: {outcome}", subject.name))?;
        }
        Ok(Self {
            subject,
            limited,
            plenty,
            admitted: BEFORE,
            calls: 0,
            counted: 0,
            during: Vec::new(),
            violations: Vec::new(),
        })
    }

    async fn during(&mut self, until: Instant) {
        while Instant::now() < until {
            let polls = 1 + self.calls as usize % 8;
            let subject = self.subject;
            let with_id = self.plenty.acquire("ids");
            let with_id = with_id.idempotency_key(u128::from(self.calls));
            let (limited, with_id, without, _) = tokio::join!(
                subject.call(self.limited.acquire("limited")),
                subject.call(with_id),
                subject.call(self.plenty.acquire("calls")),
                poll_times(polls, subject.call(self.plenty.acquire("dropped"))),
            );
            self.admitted += u64::from(limited.is_allowed());
            self.calls += 1;
            self.counted += u64::from(without.is_allowed());
            self.during.extend([with_id, without]);
            for call in [limited, with_id, without] {
                self.violations.extend(match call.outcome {
                    Seen::Never => Some(format!("a call did not end within {:?}", call.took)),
                    Seen::Err(kind) if !Error::new(kind, "").is_retryable() => {
                        Some(format!("a call failed as {kind:?}"))
                    }
                    _ => None,
                });
            }
            sleep(PAUSE).await;
        }
    }

    async fn after(mut self, direct: &SharedStore, loses_data: bool) -> Observed {
        let (during, took) = usual(&self.during).unwrap_or((Seen::Never, Duration::MAX));
        if took > self.subject.bound {
            self.violations.push(format!("calls usually take {took:?}"));
        }
        let server = Limiter::new(self.subject.name, PLENTY, direct.clone());
        let mut checked = recovered(self.subject, &server).await;
        if checked.is_ok() {
            checked = self.check_logs(&server, loses_data).await;
        }
        self.violations.extend(checked.err());
        Observed {
            during,
            violations: self.violations,
        }
    }

    /// Checks the counts after the fault. Returns a violation that makes further checks pointless.
    async fn check_logs(&mut self, server: &Limiter, loses_data: bool) -> Result<(), String> {
        let subject = self.subject;
        let calls = self.calls;
        for id in 0..calls {
            let repeat = async || {
                let acquire = self.plenty.acquire("ids").idempotency_key(u128::from(id));
                subject.call(acquire).await.admitted()
            };
            let repeated = eventually(repeat).await;
            repeated.map_err(|outcome| format!("the repetition of a call ends: {outcome}"))?;
        }
        for _ in 0..10 * MAX {
            let call = subject.call(self.limited.acquire("limited")).await;
            match call.outcome {
                Seen::Ok(true) => self.admitted += 1,
                Seen::Ok(false) => break,
                _ => sleep(PAUSE).await,
            }
        }
        let most = subject
            .most
            .map(|times| (times + u64::from(loses_data)) * MAX);
        if most.is_some_and(|most| self.admitted > most) {
            let violation = format!("a window of {MAX} admitted {}", self.admitted);
            self.violations.push(violation);
        }
        // Without a promise, admitted calls need not count; a fallback's decision may also count in the server.
        let counted = self.counted;
        let least = if loses_data || subject.most.is_none() {
            0
        } else {
            counted
        };
        let most = calls * subject.most.unwrap_or(1);
        let about = format!("{calls} calls, {counted} of them admitted,");
        for (key, range, what) in [
            ("ids", calls..=most, format!("{calls} idempotency keys")),
            ("calls", least..=most, about),
            ("dropped", 0..=most, format!("{calls} dropped calls")),
            (
                "limited",
                MAX..=u64::MAX,
                format!("after a denial, {MAX} units"),
            ),
        ] {
            // A store may still merge.
            let used = eventually(async || match server.peek(key).await {
                Ok(decision) if range.contains(&decision.used()) => Ok(()),
                Ok(decision) => Err(decision.used().to_string()),
                Err(error) => Err(error.to_string()),
            });
            let wrong = used.await.err();
            self.violations
                .extend(wrong.map(|used| format!("{what} count {used} times")));
        }
        Ok(())
    }
}
