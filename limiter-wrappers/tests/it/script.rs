//! Scripts of calls and faults, in virtual time: tokio's clock is paused, and every store reads it.

use std::time::Duration;

use limiter_core::store::Op;
use limiter_core::{Clock, Counting, Decision, Error, Limiter, Policy, SyncStore, Timestamp, WindowStore, WithClock};
use limiter_memory::MemoryStore;
use limiter_wrappers::Stack;
use tokio::time::{Instant, sleep};

use crate::faulty::Does;

/// Tokio's clock, and by how many seconds it is wrong.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Virtual(pub(crate) Instant, pub(crate) i64);

impl Clock for Virtual {
    fn now(&self) -> Timestamp {
        let micros = 1_700_000_000_000_000 + self.0.elapsed().as_micros() as u64;
        Timestamp::from_micros_saturating(micros.saturating_add_signed(self.1 * 1_000_000))
    }
}

/// Returns a stack without guards.
pub(crate) fn bare<S>(store: S) -> Stack<S> {
    Stack::new(store).timeout(Duration::MAX).failure_threshold(u32::MAX).cached_keys(0)
}

pub(crate) type Memory = WithClock<MemoryStore, Virtual>;
pub(crate) type Server = testbed::Faulty<Memory>;

/// A limiter `t` on wrappers around a server.
pub(crate) struct Scene<S: WindowStore> {
    pub(crate) clock: Virtual,
    pub(crate) server: Server,
    pub(crate) limiter: Limiter<S>,
}

impl<S: WindowStore> Scene<S> {
    /// `policy` ends in ` attempts` if it counts them.
    pub(crate) fn new(policy: &str, wrap: impl FnOnce(Server) -> S) -> Self {
        let clock = Virtual(Instant::now(), 0);
        let limits: Policy = policy.trim_end_matches(" attempts").parse().unwrap();
        let policy = if policy.ends_with("attempts") { limits.with_counting(Counting::Attempts) } else { limits };
        let server = testbed::Faulty::new(WithClock::new(MemoryStore::new(), clock));
        Self { limiter: Limiter::new("t", policy, wrap(server.clone())), clock, server }
    }

    /// Returns the units that the server counts, beyond the maximum too.
    pub(crate) fn used(&self, key: &str, at: Timestamp) -> u64 {
        let peek = Op::peek(key, self.limiter.policy()).with_name("t".into()).at(at);
        self.server.store().apply_now(&peek).log.usage[0].used
    }

    /// Plays a script: steps with their results. An error must contain the text. Times are in milliseconds, those that a caller gives
    /// in seconds.
    ///
    /// Three capitals say what the server does with a peek, a record and any other call: answer (`A`), answer late (`L`), refuse
    /// (`R`), lose the answer (`X`), hang (`H`) or say that the log is damaged (`C`). `III` answers without waiting. `ask` answers
    /// what is unknown here.
    pub(crate) async fn play(&self, script: &str, ask: impl Fn(&str) -> String) {
        let (mut permits, mut calls) = (Vec::new(), 0);
        for step in script.split(", ") {
            let (call, expected) = step.split_once(" =").unwrap_or((step, ""));
            let expected = expected.trim();
            let words: Vec<&str> = call.split(' ').collect();
            let n = |index: usize| words[index].parse::<u64>().unwrap();
            let time = |index| Timestamp::from_micros_saturating(n(index) * 1_000_000);
            let verdict = |decision: Decision| if decision.allowed() { "" } else { "denied" }.to_owned();
            let found: Result<String, Error> = match words[..] {
                ["acquire", key, _, ref options @ ..] => {
                    sleep(Duration::from_millis(1)).await;
                    let acquire = self.limiter.acquire(key).cost(n(2));
                    let decided = match options {
                        ["at", _] => acquire.at(time(4)).await,
                        ["id", _] => acquire.idempotency_key(u128::from(n(4))).await,
                        ["by", policy] => acquire.policy(&policy.parse().unwrap()).await,
                        _ => acquire.await,
                    };
                    permits.extend(decided.iter().filter_map(Decision::receipt).map(|receipt| (key, receipt)));
                    decided.map(verdict)
                }
                ["peek", key] => self.limiter.peek(key).await.map(verdict),
                ["record", key] => self.limiter.record(key).await.map(verdict),
                ["settle", ..] => {
                    let (key, receipt) = permits[n(1) as usize];
                    self.limiter.settle(key, receipt, n(2)).await.map(|settled| settled.applied().to_string())
                }
                ["reset", key] => self.limiter.reset(key).await.map(|existed| existed.to_string()),
                ["shown", key] => self
                    .limiter
                    .peek(key)
                    .await
                    .map(|decision| format!("{} {:?}", decision.used(), decision.retry_after().unwrap_or_default())),
                ["used", key] => Ok(self.used(key, self.clock.now()).to_string()),
                ["used", key, "at", _] => Ok(self.used(key, time(3)).to_string()),
                ["sent"] => {
                    let mut records = self.server.replayed();
                    records.dedup();
                    Ok(records.join(" ").replace("record ", ""))
                }
                ["calls"] => Ok((self.server.calls() - std::mem::replace(&mut calls, self.server.calls())).to_string()),
                ["now"] => Ok(self.clock.0.elapsed().as_millis().to_string()),
                ["wait", _] => (sleep(Duration::from_millis(n(1))).await, Ok(String::new())).1,
                ["unblock", key] => {
                    let key = Op::peek(key, self.limiter.policy()).with_name("t".into()).log;
                    Ok(self.server.store().reset_now(key).to_string())
                }
                ["down", node] => {
                    let node = format!("@{node}");
                    let fails = move |key: &[u8]| key.ends_with(node.as_bytes());
                    self.server.rule(move |_, log| if fails(log.key) { Does::Refuse } else { Does::Answer });
                    Ok(String::new())
                }
                [rule] if rule.len() == 3 && rule.bytes().all(|byte| byte.is_ascii_uppercase()) => {
                    self.server.decide_immediately(rule == "III");
                    let does = |n: usize| match rule.as_bytes()[n] {
                        b'C' => Does::Corrupt,
                        b'H' => Does::Hang,
                        b'L' => Does::AnswerLate,
                        b'R' => Does::Refuse,
                        b'X' => Does::LoseAnswer,
                        _ => Does::Answer,
                    };
                    let (peek, record, other) = (does(0), does(1), does(2));
                    self.server.rule(move |verb, _| match verb {
                        "peek" => peek,
                        "record" => record,
                        _ => other,
                    });
                    Ok(String::new())
                }
                _ => Ok(ask(call)),
            };
            let is_expected = match &found {
                Ok(found) => found == expected,
                Err(error) => !expected.is_empty() && format!("{} {error}", error.kind()).contains(expected),
            };
            assert!(is_expected, "{step}: found {found:?}, in {script}");
        }
    }
}
