//! Scripts of calls and faults, in virtual time: tokio's clock is paused, and every store reads it.
//!
//! Their results are written next to the steps. The testkit's scripts contain only operations, and the reference store decides them.

use std::cell::Cell;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::{Duration, SystemTime};

use futures_util::future::join_all;
use futures_util::poll;

use limiter_core::internal::set_system_clock;
use limiter_core::store::{Mode, Op};
use limiter_core::{
    BoxFuture, Clock, Counting, Decision, Error, Limiter, Policy, SyncStore, Timestamp, WithClock,
};
use limiter_memory::MemoryStore;
use limiter_wrappers::{Guarded, GuardedBuilder, Outage};
pub(crate) use testbed::Does;
use tokio::time::{Instant, sleep};

/// Tokio's clock, and by how many seconds it is wrong.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Virtual(pub(crate) Instant, pub(crate) i64);

impl Clock for Virtual {
    fn now(&self) -> Timestamp {
        let micros = 1_700_000_000_000_000 + self.0.elapsed().as_micros() as u64;
        Timestamp::from_micros_saturating(micros.saturating_add_signed(self.1 * 1_000_000))
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'_, ()> {
        Box::pin(sleep(duration))
    }
}

thread_local! {
    /// When this test's virtual time began, and by how many milliseconds the system's clock is wrong.
    static SYSTEM: Cell<Option<(Instant, i64)>> = const { Cell::new(None) };
}

/// The system's clock, in tests in virtual time the virtual one.
fn system_clock() -> SystemTime {
    let Some((start, off)) = SYSTEM.get() else {
        return SystemTime::now();
    };
    let passed = start.elapsed().as_millis() as i64;
    let since = Duration::from_millis((1_700_000_000_000 + passed + off) as u64);
    SystemTime::UNIX_EPOCH + since
}

/// Begins virtual time if it has not begun, and sets by how many milliseconds the system's clock is wrong.
pub(crate) fn step_system_clock(off: i64) {
    set_system_clock(system_clock);
    let start = SYSTEM.get().map_or_else(Instant::now, |(start, _)| start);
    SYSTEM.set(Some((start, off)));
}

/// A store that fails on command.
pub(crate) type Faulty = testbed::Faulty<MemoryStore>;

/// Returns a stack without guards.
pub(crate) fn bare<S>(store: S) -> GuardedBuilder<S> {
    Guarded::builder(store)
        .timeout(Duration::MAX)
        .failure_threshold(u32::MAX)
        .denial_cache_capacity(0)
}

/// One in virtual time.
pub(crate) type Server = testbed::Faulty<WithClock<MemoryStore, Virtual>>;

/// Sets the guards of a bare stack, and what decides during an outage.
pub(crate) type Build = fn(GuardedBuilder<Server>) -> Guarded<Server>;

/// A limiter `t` on a guarded server.
pub(crate) struct Scene {
    pub(crate) clock: Virtual,
    pub(crate) server: Server,
    pub(crate) limiter: Limiter<Guarded<Server>>,
    /// The outages that were reported since the last look.
    outages: Arc<Mutex<String>>,
}

impl Scene {
    /// `policy` ends in ` attempts` if it counts them.
    pub(crate) fn new(
        policy: &str,
        build: impl FnOnce(GuardedBuilder<Server>) -> Guarded<Server>,
    ) -> Self {
        let clock = Virtual(Instant::now(), 0);
        let limits: Policy = policy.trim_end_matches(" attempts").parse().unwrap();
        let policy = if policy.ends_with("attempts") {
            limits.with_counting(Counting::Attempts)
        } else {
            limits
        };
        let server = Server::new(WithClock::new(MemoryStore::new(), clock));
        let outages = Arc::new(Mutex::new(String::new()));
        let seen = Arc::clone(&outages);
        step_system_clock(0);
        let stack = bare(server.clone());
        let store = build(stack).on_outage(move |outage: Outage<'_>| {
            *seen.lock().unwrap() += &match outage {
                Outage::Began { node, error } => {
                    format!("{} began {} ", node.unwrap_or("-"), error.kind())
                }
                Outage::Ended { node, calls } => format!("{} ended {calls} ", node.unwrap_or("-")),
                _ => String::new(),
            };
        });
        Self {
            limiter: Limiter::new("t", policy, store),
            clock,
            server,
            outages,
        }
    }

    /// Returns the peek of a log in the server.
    fn peek<'a>(&'a self, key: &'a str) -> Op<'a> {
        Op::peek(key, self.limiter.policy()).with_name("t".into())
    }

    /// Returns the units that the server counts, including above the maximum.
    pub(crate) fn used(&self, key: &str, at: Timestamp) -> u64 {
        let facts = self.server.store().apply_now(&self.peek(key).at(at));
        facts.log.usage[0].used
    }

    /// Makes acquires of a cost, each after a pause, which must be admitted without a receipt. Returns how many were not decided at
    /// once. As nobody else changes the log, a unit less remains after each.
    async fn burst(&self, key: &str, count: u64, [cost, pause]: [u64; 2]) -> usize {
        let mut waited = 0;
        let mut remaining = None;
        for _ in 0..count {
            sleep(Duration::from_millis(pause)).await;
            let mut acquire = pin!(self.limiter.acquire(key).cost(cost).into_future());
            let at_once = poll!(acquire.as_mut());
            waited += usize::from(at_once.is_pending());
            let decision = match at_once {
                Poll::Ready(decision) => decision.unwrap(),
                Poll::Pending => acquire.await.unwrap(),
            };
            let is_plain = decision.is_allowed() && decision.receipt().is_none();
            assert!(is_plain, "{decision:?}");
            // With longer pauses, entries may expire.
            if let Some(before) = remaining.filter(|_| pause == 1) {
                assert_eq!(decision.remaining() + cost, before, "{decision:?}");
            }
            remaining = Some(decision.remaining());
        }
        waited
    }

    /// Plays a script: steps with their results. An error must contain the text. Times are in milliseconds, a caller's times
    /// in seconds.
    ///
    /// Three capitals are the server's behaviour for a peek, a record and any other call: answer (`A`), answer late (`L`), refuse
    /// (`R`), lose the answer (`X`), hang (`H`), report a damaged log (`C`) or an unknown user (`M`).
    ///
    /// `crowd` makes acquires at the same time, and reports how many calls that takes. `drop` drops a waiting call.
    /// `burst` makes acquires of an optional cost, after an optional pause, and reports how many were not decided immediately. `take` is
    /// another process, and `clock` sets by how many milliseconds the system's clock is wrong.
    ///
    /// `open` shows the nodes whose breakers are open, and `state` the outages that were reported since the last such step and whether
    /// one goes on. `-` is a node without a name.
    pub(crate) async fn play(&self, script: &str) {
        let store = self.limiter.store();
        let server = &self.server;
        let mut permits = Vec::new();
        let mut calls = 0;
        for step in script.split(", ") {
            let (call, expected) = step.split_once(" =").unwrap_or((step, ""));
            let expected = expected.trim();
            let words: Vec<&str> = call.split(' ').collect();
            let n = |index: usize| words[index].parse::<u64>().unwrap();
            let time = |index| Timestamp::from_micros_saturating(n(index) * 1_000_000);
            let verdict =
                |decision: Decision| if decision.fits() { "" } else { "denied" }.to_owned();
            let before = server.calls();
            let found: Result<String, Error> = match words[..] {
                ["acquire", key, _, ref options @ ..] => {
                    sleep(Duration::from_millis(1)).await;
                    let acquire = self.limiter.acquire(key).cost(n(2));
                    let decided = match options {
                        ["at", _] => acquire.at(time(4)).await,
                        ["permit"] => {
                            let permit = acquire.permit().await;
                            let decided = permit.map(|permit| permit.decision().clone());
                            assert!(decided.iter().all(|decision| decision.receipt().is_some()));
                            decided
                        }
                        ["id", _] => acquire.idempotency_key(u128::from(n(4))).await,
                        ["by", policy] => acquire.policy(&policy.parse().unwrap()).await,
                        _ => acquire.await,
                    };
                    let receipts = decided.iter().filter_map(Decision::receipt);
                    permits.extend(receipts.map(|receipt| (key, receipt)));
                    decided.map(verdict)
                }
                ["burst", key, _, ref options @ ..] => {
                    let option = |i: usize| options.get(i).map_or(1, |text| text.parse().unwrap());
                    let waited = self.burst(key, n(2), [0, 1].map(option)).await;
                    assert!(server.calls() - before >= waited, "{step}");
                    Ok(waited.to_string())
                }
                ["crowd", key, _] => {
                    let crowd = (0..n(2)).map(|_| self.limiter.acquire(key).into_future());
                    for decided in join_all(crowd).await {
                        assert!(decided.unwrap().is_allowed(), "{step}");
                    }
                    Ok((server.calls() - before).to_string())
                }
                ["drop", key] => {
                    let acquire = pin!(self.limiter.acquire(key).into_future());
                    assert!(poll!(acquire).is_pending());
                    Ok(String::new())
                }
                ["take", key, _] => {
                    let mut acquire = self.peek(key).with_cost(n(2));
                    acquire.mode = Mode::Acquire;
                    Ok(server.store().apply_now(&acquire).admitted.to_string())
                }
                ["clock", off] => {
                    step_system_clock(off.parse().unwrap());
                    Ok(String::new())
                }
                ["peek", key] => self.limiter.peek(key).await.map(verdict),
                ["record", key] => self.limiter.record(key).await.map(verdict),
                ["settle", ..] => {
                    let (key, receipt) = permits[n(1) as usize];
                    let settled = self.limiter.settle(key, receipt, n(2)).await;
                    settled.map(|settled| settled.applied().to_string())
                }
                ["reset", key] => {
                    let existed = self.limiter.reset(key).await;
                    existed.map(|existed| existed.to_string())
                }
                ["shown", key] => self.limiter.peek(key).await.map(|decision| {
                    let wait = decision.retry_after().unwrap_or_default();
                    format!("{} {wait:?}", decision.used())
                }),
                ["used", key] => Ok(self.used(key, self.clock.now()).to_string()),
                ["used", key, "at", _] => Ok(self.used(key, time(3)).to_string()),
                ["sent"] => {
                    let mut records = server.replayed();
                    records.dedup();
                    Ok(records.join(" ").replace("record ", ""))
                }
                ["calls"] => Ok((before - std::mem::replace(&mut calls, before)).to_string()),
                ["now"] => Ok(self.clock.0.elapsed().as_millis().to_string()),
                ["wait", _] => {
                    sleep(Duration::from_millis(n(1))).await;
                    Ok(String::new())
                }
                ["unblock", key] => {
                    let log = self.peek(key).log;
                    Ok(server.store().reset_now(log).to_string())
                }
                ["down", node] => {
                    let node = format!("@{node}");
                    server.rule(move |_, log| match log.key.ends_with(node.as_bytes()) {
                        true => Does::Refuse,
                        false => Does::Answer,
                    });
                    Ok(String::new())
                }
                [rule] if rule.len() == 3 && rule.bytes().all(|byte| byte.is_ascii_uppercase()) => {
                    let does: Vec<Does> = rule.bytes().map(does).collect();
                    server.rule(move |verb, _| match verb {
                        "peek" => does[0],
                        "record" => does[1],
                        _ => does[2],
                    });
                    Ok(String::new())
                }
                ["open"] => {
                    let open = store.breakers().into_iter().filter(|(_, is_open)| *is_open);
                    let open = open.map(|(node, _)| node.as_deref().unwrap_or("-").to_owned());
                    let mut open: Vec<_> = open.collect();
                    open.sort();
                    Ok(open.join(" "))
                }
                ["state"] => {
                    let outages = std::mem::take(&mut *self.outages.lock().unwrap());
                    Ok(outages + if store.in_outage() { "out" } else { "well" })
                }
                ["waiting"] => Ok(store.carried_logs().to_string()),
                _ => panic!("{step} is no step"),
            };
            let is_expected = match &found {
                Ok(found) => found == expected,
                Err(error) => {
                    !expected.is_empty() && format!("{} {error}", error.kind()).contains(expected)
                }
            };
            assert!(is_expected, "{step}: found {found:?}, in {script}");
        }
    }
}

/// Returns the behaviour that a letter of a script means.
fn does(letter: u8) -> Does {
    match letter {
        b'C' => Does::Corrupt,
        b'H' => Does::Hang,
        b'L' => Does::AnswerLate,
        b'M' => Does::Misconfigure,
        b'R' => Does::Refuse,
        b'X' => Does::LoseAnswer,
        _ => Does::Answer,
    }
}
