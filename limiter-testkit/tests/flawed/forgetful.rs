//! A store that forgets logs, sometimes too early.

use std::collections::HashMap;
use std::sync::Mutex;

use async_trait::async_trait;
use limiter_core::store::{At, Facts, Log, LogKey, Mode, Op, Outcome, Retention, Settlement, SettlementFacts};
use limiter_core::{Error, Timestamp, WindowStore};

use super::rules::system_micros;

/// When a log is forgotten. Every rule except the first is a flaw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ForgetRule {
    InTime,
    ByTheFirstWindow,
    ByTheOwnWindow,
    ByTheDefaultWindow,
    AfterWholeSeconds,
    AfterTheFirstAppend,
    AfterTheLastOperation,
    AfterAPeek,
    AfterASettlement,
    WindowAfterTheClock,
    GivenTimesAsItsOwn,
    GivenTimesAfterTheWindow,
    GivenTimesWhenItSweeps,
    WhenThereAreMany,
}

/// Holds a log for each key, and the time at which it is forgotten, in microseconds.
#[derive(Debug)]
pub(crate) struct ForgetfulStore {
    rule: ForgetRule,
    logs: Mutex<HashMap<Vec<u8>, (Log, u64)>>,
}

impl ForgetfulStore {
    pub(crate) fn new(rule: ForgetRule) -> Self {
        Self { rule, logs: Mutex::default() }
    }

    pub(crate) fn sweep(&self) {
        let now = system_micros();
        let given_too = self.rule == ForgetRule::GivenTimesWhenItSweeps;
        let is_given = |until: u64| until > now + 30_000_000;
        self.logs.lock().unwrap().retain(|_, (_, until)| *until > now && !(given_too && is_given(*until)));
    }

    fn with<T>(&self, key: LogKey<'_>, change: impl FnOnce(&mut Log, &mut u64, u64) -> T) -> T {
        let (mut logs, now) = (self.logs.lock().unwrap(), system_micros());
        if self.rule == ForgetRule::WhenThereAreMany && logs.len() > 1_000 {
            logs.clear();
        }
        let (log, until) = logs.entry(key.to_bytes()).or_default();
        if !log.is_empty() && *until <= now {
            *log = Log::new();
        }
        let answer = change(log, until, now);
        logs.retain(|_, (log, _)| !log.is_empty());
        answer
    }

    /// Returns how long a log is kept after an operation.
    fn until(&self, op: &Op<'_>, facts: &Facts, log: &Log, (before, now): (u64, u64)) -> u64 {
        let right = log.expires_at().map_or(now, Timestamp::as_micros);
        let appended = matches!(facts.outcome, Outcome::Appended(_));
        let (own, window) = (op.policy.longest_window().as_micros(), op.retention().window.as_micros());
        let first = op.policy.limits()[0].window().as_micros();
        let default = Retention::of(op.limiter_policy.unwrap_or(op.policy)).window.as_micros();
        let at = facts.log.now.as_micros();
        if op.at != At::StoreClock {
            return match self.rule {
                ForgetRule::GivenTimesAsItsOwn if appended => at + window,
                ForgetRule::GivenTimesAfterTheWindow if appended => now + window,
                _ => right,
            };
        }
        match self.rule {
            ForgetRule::AfterAPeek if op.mode == Mode::Peek => now + own,
            ForgetRule::AfterTheLastOperation => now + own,
            _ if !appended => before.max(if before == 0 { right } else { before }),
            ForgetRule::ByTheFirstWindow => at + first,
            ForgetRule::ByTheOwnWindow => at + own,
            ForgetRule::ByTheDefaultWindow => at + default,
            ForgetRule::AfterWholeSeconds => {
                at + window / 1_000_000 * 1_000_000 + if window < 1_000_000 { window } else { 0 }
            }
            ForgetRule::AfterTheFirstAppend if before > now => before,
            ForgetRule::WindowAfterTheClock => now + window,
            _ => right,
        }
    }
}

#[async_trait]
impl WindowStore for ForgetfulStore {
    async fn apply(&self, op: Op<'_>) -> Result<Facts, Error> {
        Ok(self.with(op.log, |log, until, now| {
            let facts = log.apply(&op, Timestamp::from_micros_saturating(now));
            *until = self.until(&op, &facts, log, (*until, now));
            facts
        }))
    }

    async fn settle(&self, settlement: Settlement<'_>) -> Result<SettlementFacts, Error> {
        Ok(self.with(settlement.log, |log, until, now| {
            let facts = log.settle(&settlement, Timestamp::from_micros_saturating(now));
            if self.rule == ForgetRule::AfterASettlement && settlement.at == At::StoreClock {
                *until = now + settlement.policy.longest_window().as_micros();
            }
            facts
        }))
    }

    async fn reset(&self, key: LogKey<'_>) -> Result<bool, Error> {
        Ok(self.with(key, |log, _, _| !std::mem::take(log).is_empty()))
    }
}
