//! Plays a history: processes with the shipped stack, in virtual time on one thread.

mod slots;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::ops::Range;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::thread;
use std::time::Duration;

use anyhow::Context;
use fastrand::Rng;
use futures::future::join_all;
use limiter_core::internal::set_system_clock;
use limiter_core::request::{AllOf, Part};
use limiter_core::{Counting, Error, Limiter, Policy, Receipt, WindowStore};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::clocks::{SYSTEM, system_clock};
use crate::history::{Does, Fault, History, KINDS, Server, Step};
use crate::process::{NAMES, SALT, Stack};
use crate::redis::Redis;
use crate::world::{CALL, Caller, Shared, World};

/// What a run of a history found.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The broken rules. Empty if all is well.
    pub broken: Vec<String>,
    /// The trace, if it was asked for.
    pub trace: String,
}

/// A mistake, which the checker must find: a part of the shipped scripts, and what replaces it.
pub type Mistake = (&'static str, &'static str);

/// Plays the histories of many seeds on all cores, until `most` have failed.
///
/// Returns the first rule that each of those broke.
pub fn play_many(
    seeds: Range<u64>,
    history: impl Fn(u64) -> History + Sync,
    mistake: Option<Mistake>,
    most: usize,
) -> BTreeMap<u64, String> {
    let next = AtomicU64::new(seeds.start);
    let all = Mutex::<BTreeMap<_, _>>::default();
    let work = || loop {
        let seed = next.fetch_add(1, Ordering::Relaxed);
        if seed >= seeds.end {
            break;
        }
        let outcome = history(seed).play(false, mistake);
        let mut failed = all.lock().unwrap();
        failed.extend(outcome.broken.into_iter().next().map(|rule| (seed, rule)));
        let is_stuck = failed.values().any(|rule| rule == STUCK);
        if is_stuck || failed.len() >= most {
            next.store(seeds.end, Ordering::Relaxed);
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    all.into_inner().unwrap()
}

/// A history that takes longer never ends, by the clock of the machine and by its own.
const LONGEST: Duration = Duration::from_secs(60);
const LONGEST_VIRTUAL: Duration = Duration::from_secs(600);
const STUCK: &str = "does not end";

/// A process: its lives, and the stack of the last one.
struct Process {
    stack: Mutex<Stack>,
    lives: Cell<u64>,
    /// Wakes its calls in their order, unlike a `watch`.
    ends: Notify,
}

/// A run of a history.
struct Run {
    world: Shared,
    seed: u64,
    policies: Vec<[Policy; 2]>,
    processes: Vec<Process>,
}

fn policy(text: &str, divisor: u64) -> Policy {
    let (text, counting) = match text.strip_suffix(" attempts") {
        Some(text) => (text, Counting::Attempts),
        None => (text, Counting::Admitted),
    };
    let lower = |limit: &str| {
        let (max, rest) = limit.split_once('/').expect("a limit");
        let max: u64 = max.parse().expect("a maximum");
        format!("{}/{rest}", (max / divisor).max(1))
    };
    let limits: Vec<String> = text.split(", ").map(lower).collect();
    let policy: Policy = limits.join(", ").parse().expect("a policy");
    policy.with_counting(counting)
}

impl History {
    /// Plays the history in virtual time. The same history always does the same. One that does not end is a failure.
    #[must_use]
    pub fn play(&self, is_traced: bool, mistake: Option<Mistake>) -> Outcome {
        let (done, outcome) = mpsc::channel();
        let history = self.clone();
        thread::spawn(move || {
            let mut builder = tokio::runtime::Builder::new_current_thread();
            let builder = builder.enable_time().start_paused(true);
            let runtime = builder.build().expect("a runtime");
            _ = done.send(runtime.block_on(history.run(is_traced, mistake)));
        });
        let outcome = outcome.recv_timeout(LONGEST);
        outcome.unwrap_or_else(|error| Outcome {
            broken: vec![match error {
                RecvTimeoutError::Timeout => STUCK.to_owned(),
                RecvTimeoutError::Disconnected => "panics".to_owned(),
            }],
            trace: String::new(),
        })
    }

    async fn run(&self, is_traced: bool, mistake: Option<Mistake>) -> Outcome {
        SYSTEM.set((Some(Instant::now()), [0; 4]));
        set_system_clock(system_clock);
        let divisor = self.setting.divisor;
        let kinds = self.setting.limiters.map(|kind| &KINDS[kind]);
        let policies =
            kinds.map(|[default, own, _]| [default, own].map(|text| policy(text, divisor)));
        let of_logs = [0, 1].map(|i| (0..4).map(|log| policies[log / 2][i].clone()).collect());
        let key = |log: usize| match (NAMES[log / 2], log % 2) {
            (name, key) if self.setting.server != Server::Redis => format!("{name}:{key}"),
            (name, key) => format!("limiter:1:{{{name}:{key}}}"),
        };
        let redis = Redis::new(mistake);
        let keys = (0..4).map(|log| key(log).into_bytes()).collect();
        let world = World::new(self.setting.clone(), of_logs, keys, redis, is_traced);
        let world = Shared(Arc::new(Mutex::new(world)));
        let mut run = Run {
            world,
            seed: self.seed,
            policies: policies.to_vec(),
            processes: Vec::new(),
        };
        for number in 0..self.setting.processes {
            let stack = Mutex::new(run.start(number, 0));
            run.processes.push(Process {
                stack,
                lives: Cell::new(0),
                ends: Notify::new(),
            });
        }
        run.world.lock().note(|| format!("{:?}", self.setting));
        let steps = self.steps.iter().enumerate();
        let play = async {
            join_all(steps.map(|(number, step)| run.step(number, step))).await;
            run.end().await;
        };
        let is_over = timeout(LONGEST_VIRTUAL, play).await.is_ok();
        let mut world = run.world.lock();
        world.check("history", is_over.then_some(()).context(STUCK));
        Outcome {
            broken: std::mem::take(&mut world.broken),
            trace: world.trace.take().unwrap_or_default(),
        }
    }
}

/// Makes a call, or several that belong together.
async fn call<S: WindowStore + Clone>(
    policies: &[[Policy; 2]],
    limiters: &[Limiter<S>; 2],
    step: &Step,
    (verb, place, key): (u8, usize, u8),
    aim: impl AsyncFnOnce(Receipt),
) -> Result<(), Error> {
    let mut random = step.random(16);
    let limiter = &limiters[place];
    let key = key.to_string();
    let [default, own] = &policies[place];
    let cost = if random.u8(..4) == 0 { 2 } else { 1 };
    let id = (default.check_receipts().is_ok() && random.u8(..4) == 0).then(|| random.u128(..6));
    let is_own = matches!(verb, b'a' | b'p') && random.u8(..6) == 0;
    let acquire = || {
        let acquire = limiter.acquire(&key).cost(cost);
        let acquire = match id {
            Some(id) if verb != b'l' => acquire.idempotency_key(id),
            _ => acquire,
        };
        if is_own { acquire.policy(own) } else { acquire }
    };
    match verb {
        b'a' => drop(acquire().await?),
        b'w' => drop(
            acquire()
                .within(Duration::from_millis(random.u64(..700)))
                .await?,
        ),
        b'k' => drop(limiter.peek(&key).await?),
        b'x' => drop(limiter.reset(&key).await?),
        b'r' => {
            let record = limiter.record(&key).cost(cost);
            let record = match id {
                Some(id) => record.idempotency_key(id),
                None => record,
            };
            drop(record.await?);
        }
        b'l' => {
            let other = limiters[1 - place].acquire(&key).cost(random.u64(1..3));
            let other = Part::from(other);
            let other = if random.bool() {
                other.advisory()
            } else {
                other
            };
            drop(AllOf::new().with(acquire()).with(other).await?);
        }
        b'p' => {
            if let Ok(permit) = acquire().permit().await?.into_result() {
                let pause = sleep(Duration::from_millis(random.u64(..400)));
                match permit.receipt().filter(|_| random.u8(..3) == 0) {
                    Some(receipt) => aim(receipt).await,
                    None => pause.await,
                }
                let cost = random.choice([0, 0, 1, 2, 3]).unwrap_or(0);
                drop(permit.settle(cost).await?);
            }
        }
        _ => {}
    }
    Ok(())
}

impl Run {
    fn start(&self, process: usize, life: u64) -> Stack {
        let seed = Rng::with_seed(self.seed ^ (process as u64) << 32 ^ life << 40).u64(..);
        Stack::new(&self.world, process, (seed, life))
    }

    /// Waits for a step, and does it.
    async fn step(&self, number: usize, step: &Step) {
        let start = self.world.lock().start;
        let at = start + Duration::from_millis(step.at);
        let process = &self.processes[step.process];
        match step.does {
            Does::Fault(fault, length) => {
                if matches!(fault, Fault::Forget | Fault::Failover) {
                    let ago = Duration::from_millis(step.random(2).u64(1..1_000));
                    sleep_until(
                        at.checked_sub(ago)
                            .map_or(start, |copied| copied.max(start)),
                    )
                    .await;
                    self.world.lock().copy(number);
                }
                sleep_until(at).await;
                self.world
                    .lock()
                    .fail(fault, step.process, number, length, &mut step.random(1));
                match fault {
                    Fault::ProcessClock => SYSTEM.with_borrow_mut(|(_, off)| {
                        off[step.process] += step.random(1).i64(-200..200);
                    }),
                    Fault::Restart => self.restart(step).await,
                    _ => {
                        sleep(Duration::from_millis(length)).await;
                    }
                }
            }
            Does::Call(verb, limiter, key) => {
                sleep_until(at).await;
                let log = 2 * limiter + usize::from(key);
                let mut random = step.random(3);
                if random.u8(..3) == 0 {
                    let aim = self.world.lock().aim(step.process, log, &mut random);
                    sleep_until(aim.unwrap_or(at)).await;
                }
                let limiters = process.stack.lock().unwrap().limiters();
                let ends = process.ends.notified();
                let most = if verb == b's' { 6_000 } else { 40 };
                let is_left = random.u8(..8) == 0;
                let leaves = if is_left {
                    random.u64(1..most)
                } else {
                    u64::MAX
                };
                let (id, is_holding) = (random.u128(..), Cell::new(false));
                let call = async {
                    match verb {
                        b's' => {
                            self.hold(
                                step,
                                &limiters[limiter],
                                (log, id, &is_holding),
                                &mut random,
                            )
                            .await
                        }
                        _ => {
                            let aim = async |receipt: Receipt| {
                                let end = receipt.at().as_micros() + receipt.window().as_micros();
                                let aim = self.world.lock().aim_at_clock(step.process, end);
                                sleep_until(aim.unwrap_or_else(Instant::now)).await;
                            };
                            call(&self.policies, &limiters, step, (verb, limiter, key), aim).await
                        }
                    }
                };
                let caller = Caller {
                    number: None,
                    process: step.process,
                };
                let call = SALT.scope(Cell::new(step.salt), CALL.scope(caller, call));
                let is_dropped = tokio::select! {
                    biased;
                    _ = ends => false,
                    result = timeout(Duration::from_millis(leaves), self.unless_paused(step.process, call)) => result.is_err(),
                };
                if is_dropped && is_holding.get() {
                    self.check_given_back(step.process, log, id).await;
                }
            }
        }
    }

    /// Ends a process, often in an orderly way, and starts another one.
    async fn restart(&self, step: &Step) {
        let process = &self.processes[step.process];
        let stack = process.stack.lock().unwrap().clone();
        if step.random(2).bool() {
            let (begun, most) = (Instant::now(), Duration::from_secs(1));
            let left = stack.guarded.flush(most).await;
            let mut world = self.world.lock();
            let is_right = left == 0 || begun.elapsed() >= most;
            let result = is_right
                .then_some(())
                .context("stops flushing before its time");
            world.check(&format!("process {}", step.process), result);
            (0..4).for_each(|log| stack.check_carried(&mut world, log));
        }
        let life = process.lives.get() + 1;
        *process.stack.lock().unwrap() = self.start(step.process, life);
        self.world.lock().processes[step.process].restart();
        process.lives.set(life);
        process.ends.notify_waiters();
    }

    /// Polls a call of a process while that does not stand still.
    async fn unless_paused<T>(&self, process: usize, call: impl Future<Output = T>) -> T {
        let mut call = pin!(call);
        let mut pause = pin!(sleep(Duration::ZERO));
        poll_fn(|context| {
            let paused = self.world.lock().processes[process].paused;
            let Some(end) = paused.filter(|end| *end > Instant::now()) else {
                return call.as_mut().poll(context);
            };
            pause.as_mut().reset(end);
            _ = pause.as_mut().poll(context);
            Poll::Pending
        })
        .await
    }

    /// Checks that a minute after the last step everything is as before.
    async fn end(&self) {
        sleep(Duration::from_secs(60)).await;
        self.world.lock().check_slots();
        for round in 0..2 {
            for (number, process) in self.processes.iter().enumerate() {
                let stack = process.stack.lock().unwrap().clone();
                let guarded = stack.guarded.clone();
                let limiter = Limiter::new("end", self.policies[0][0].clone(), guarded.clone());
                let caller = Caller {
                    number: None,
                    process: number,
                };
                let begun = Instant::now();
                let acquire = limiter.acquire(format!("{round} {number}")).into_future();
                let decision = CALL.scope(caller, acquire).await;
                let is_well = decision.is_ok_and(|decision| decision.is_allowed())
                    && begun.elapsed() < Duration::from_millis(50)
                    && guarded.carried_logs() == 0
                    && (round == 0 || !guarded.in_outage());
                let mut world = self.world.lock();
                let result = is_well
                    .then_some(())
                    .context("is not as before after a minute");
                world.check(&format!("process {number}"), result);
                (0..4).for_each(|log| stack.check_carried(&mut world, log));
            }
            sleep(Duration::from_secs(2)).await;
        }
    }
}
