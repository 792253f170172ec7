//! Plays a history: processes with the shipped stack, in virtual time on one thread.

use std::cell::RefCell;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use fastrand::Rng;
use futures::future::join_all;
use futures::poll;
use limiter_core::request::{AllOf, Permit};
use limiter_core::store::LogKey;
use limiter_core::{
    BoxFuture, Clock, Counting, Decision, Error, Limiter, Name, Policy, Settled, Timestamp,
    WithClock,
};
use limiter_memory::MemoryStore;
use limiter_redis::{Connection, RedisStore};
use limiter_wrappers::Guarded;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

use crate::Redis;
use crate::history::{Choice, Does, Fault, History, KINDS, Setting, Step, Verb};
use crate::ledger::{Asked, Policies, sum_within};
use crate::network::Link;
use crate::world::{Call, Shared, Tally, World};

type Stack = Limiter<Guarded<RedisStore>>;

/// The call that a task makes, if it makes one, and its process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller {
    pub(crate) number: Option<usize>,
    process: usize,
}

tokio::task_local! {
    pub(crate) static CALL: Caller;
}

thread_local! {
    /// When the history began, and by how many milliseconds each process's system clock is wrong.
    static SYSTEM: RefCell<(Option<Instant>, [i64; 4])> = const { RefCell::new((None, [0; 4])) };
}

/// The system's clock of the process that asks.
fn system_clock() -> SystemTime {
    let process = CALL.try_with(|caller| caller.process).unwrap_or(0);
    SYSTEM.with_borrow(|(start, off)| {
        let passed = start
            .map_or(Duration::ZERO, |start| start.elapsed())
            .as_millis() as i64;
        let since = 1_700_000_000_000 + passed + off[process];
        SystemTime::UNIX_EPOCH + Duration::from_millis(since as u64)
    })
}

/// The clock of a process's local store.
#[derive(Clone, Copy, Debug)]
struct Local(Instant);

impl Clock for Local {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros_saturating((1 << 50) + self.0.elapsed().as_micros() as u64)
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'_, ()> {
        Box::pin(sleep(duration))
    }
}

/// A process: its limiters, and what the checker knows of it.
struct Process {
    limiters: Vec<Stack>,
    /// What it admitted locally, by log, and what it charged locally in all its lives.
    admitted: [Vec<(u64, u64, usize)>; 4],
    charged: [u64; 4],
    /// The units of its blocks that it was granted and has spent, by log.
    granted: [u64; 4],
    spent: [u64; 4],
    lives: watch::Sender<u64>,
}

/// A run of a history.
struct Run {
    world: Shared,
    seed: u64,
    setting: Setting,
    processes: Vec<Mutex<Process>>,
}

/// What a run of a history found.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The broken rules. Empty if all is well.
    pub broken: Vec<String>,
    /// The trace, if it was asked for.
    pub trace: String,
    /// What the run did.
    pub tally: Tally,
}

/// Replaces a part of the shipped scripts, to make a mistake.
pub type Mistake = (&'static str, &'static str);

impl History {
    /// Plays the history in virtual time. The same history always does the same.
    ///
    /// # Panics
    /// If the library does.
    #[must_use]
    pub fn play(&self, is_traced: bool, mistake: Option<Mistake>) -> Outcome {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime");
        runtime.block_on(self.run(is_traced, mistake))
    }

    async fn run(&self, is_traced: bool, mistake: Option<Mistake>) -> Outcome {
        SYSTEM.set((Some(Instant::now()), [0; 4]));
        let setting = self.setting.clone();
        let policies = setting.limiters.map(|kind| {
            let counting = if KINDS[kind].counts_attempts {
                Counting::Attempts
            } else {
                Counting::Admitted
            };
            let policy = |text: &str| {
                let policy: Policy = text.parse().expect("a policy");
                policy.with_counting(counting)
            };
            Policies {
                default: policy(KINDS[kind].policy),
                own: policy(KINDS[kind].own),
            }
        });
        let mut redis = Redis::new();
        redis.make(mistake);
        let keys =
            (0..4).map(|log| format!("limiter:1:{{{}:{}}}", name(log), log % 2).into_bytes());
        let world = World::new(
            setting.clone(),
            policies.to_vec(),
            keys.collect(),
            redis,
            is_traced,
        );
        let world = Shared(Arc::new(Mutex::new(world)));
        let mut run = Run {
            world,
            seed: self.seed,
            setting,
            processes: Vec::new(),
        };
        for number in 0..run.setting.processes {
            let process = Process {
                limiters: run.start(number, 0),
                admitted: Default::default(),
                charged: [0; 4],
                granted: [0; 4],
                spent: [0; 4],
                lives: watch::Sender::new(0),
            };
            run.processes.push(Mutex::new(process));
        }
        run.world.lock().note(|| format!("{:?}", run.setting));
        join_all(
            self.steps
                .iter()
                .enumerate()
                .map(|(number, step)| run.step(number, step)),
        )
        .await;
        run.end().await;
        let mut world = run.world.lock();
        world.tally.worst = world
            .books
            .iter()
            .map(|book| book.worst)
            .fold(0.0, f64::max);
        Outcome {
            broken: std::mem::take(&mut world.broken),
            trace: world.trace.take().unwrap_or_default(),
            tally: std::mem::take(&mut world.tally),
        }
    }
}

/// Returns the name of a log's limiter.
fn name(log: usize) -> &'static str {
    ["first", "second"][log / 2]
}

impl Run {
    /// Starts a process: its stack, and two limiters in front of that.
    fn start(&self, process: usize, life: u64) -> Vec<Stack> {
        let Setting {
            choice,
            response,
            retries,
            timeout,
            threshold,
            cache,
            denial_ttl,
            ..
        } = self.setting;
        let seed = Rng::with_seed(self.seed ^ (process as u64) << 32 ^ life << 40).u64(..);
        let link = Link {
            world: self.world.clone(),
            process,
        };
        let store = RedisStore::builder()
            .seed(seed)
            .response_timeout(response)
            .retries(retries);
        let store = store
            .with_connection(Connection::new(link))
            .expect("a store");
        let stack = Guarded::builder(store)
            .timeout(timeout)
            .failure_threshold(threshold)
            .cooldown(Duration::from_millis(300))
            .denial_cache_capacity(cache)
            .denial_ttl(denial_ttl)
            .system_clock(system_clock)
            .seed(seed);
        let local = || WithClock::new(MemoryStore::new(), Local(self.world.lock().start));
        let stack = match choice {
            Choice::Error => stack.or_error(),
            Choice::Open => stack.fail_open(),
            Choice::Closed => stack.fail_closed(),
            Choice::Local => stack.fallback(local()),
        };
        let policies = self.world.lock().policies.clone();
        let limiter = |(number, policies): (usize, Policies)| {
            Limiter::new(name(2 * number), policies.default, stack.clone())
        };
        policies.into_iter().enumerate().map(limiter).collect()
    }

    /// Waits for a step, and does it.
    async fn step(&self, number: usize, step: &Step) {
        let start = self.world.lock().start;
        let at = start + Duration::from_millis(step.at);
        match step.does {
            Does::Fault(fault, length) => {
                if matches!(fault, Fault::Forget | Fault::Failover) {
                    let ago = Duration::from_millis(step.random(2).u64(1..1_000));
                    sleep_until(
                        at.checked_sub(ago)
                            .map_or(start, |copied| copied.max(start)),
                    )
                    .await;
                    let mut world = self.world.lock();
                    let copy = (number, world.redis.copy(), world.books.clone());
                    world.copies.push(copy);
                }
                sleep_until(at).await;
                self.world
                    .lock()
                    .fail(fault, number, length, &mut step.random(1));
                match fault {
                    Fault::ProcessClock => SYSTEM.with_borrow_mut(|(_, off)| {
                        off[step.process] += step.random(1).i64(-200..200);
                    }),
                    Fault::Restart => self.restart(step.process),
                    _ => {
                        sleep(Duration::from_millis(length)).await;
                        self.world.lock().heal(fault);
                    }
                }
            }
            Does::Call(verb, limiter, key) => {
                sleep_until(at).await;
                let log = 2 * limiter + usize::from(key);
                let count = if verb == Verb::Burst {
                    step.random(9).u64(4..30)
                } else {
                    1
                };
                join_all((0..count).map(|part| async move {
                    sleep(Duration::from_millis(part)).await;
                    let limiters = self.processes[step.process]
                        .lock()
                        .unwrap()
                        .limiters
                        .clone();
                    let mut lives = self.processes[step.process]
                        .lock()
                        .unwrap()
                        .lives
                        .subscribe();
                    tokio::select! {
                        biased;
                        _ = lives.changed() => {}
                        () = self.call(&limiters, step, part, verb, log) => {}
                    }
                }))
                .await;
            }
        }
    }

    /// Ends a process with its calls, and starts it again.
    fn restart(&self, number: usize) {
        let life = *self.processes[number].lock().unwrap().lives.borrow() + 1;
        let limiters = self.start(number, life);
        let mut process = self.processes[number].lock().unwrap();
        process.limiters = limiters;
        self.world.lock().has_heard[number] = false;
        (process.granted, process.spent) = ([0; 4], [0; 4]);
        process.admitted = Default::default();
        process.lives.send_replace(life);
    }

    /// Makes a call, or several that belong together.
    async fn call(&self, limiters: &[Stack], step: &Step, part: u64, verb: Verb, log: usize) {
        let mut random = step.random(16 + part);
        let limiter = &limiters[log / 2];
        let key = [b'0' + (log % 2) as u8];
        let policies = self.world.lock().policies[log / 2].clone();
        let is_plain = verb != Verb::Acquire && verb != Verb::Permit;
        let may_have_id =
            policies.default.check_receipts().is_ok() && verb != Verb::Burst && verb != Verb::All;
        let ask = |log: usize, random: &mut Rng| Asked {
            call: 0,
            process: step.process,
            log,
            cost: if random.u8(..4) == 0 { 2 } else { 1 },
            id: (may_have_id && random.u8(..4) == 0).then(|| random.u128(..6)),
            is_own: !is_plain && random.u8(..6) == 0,
            waits: verb == Verb::Within,
        };
        let mut asked = vec![ask(log, &mut random)];
        if verb == Verb::All {
            asked.push(ask((log + 2) % 4, &mut random));
        }
        if matches!(verb, Verb::Peek | Verb::Reset) {
            asked[0].id = None;
        }
        let Asked {
            cost, id, is_own, ..
        } = asked[0];
        let acquire = || {
            let mut acquire = limiter.acquire(&key).cost(cost);
            if let Some(id) = id {
                acquire = acquire.idempotency_key(id);
            }
            if is_own {
                acquire.policy(&policies.own)
            } else {
                acquire
            }
        };
        let one = |decision: Decision| vec![Said::of(&decision)];
        let text = format!("{verb:?} log {log} cost {cost} id {id:?} own {is_own}");
        match verb {
            Verb::Acquire | Verb::Burst => {
                let acquire = async { acquire().await.map(one) };
                self.watch(step, part, asked, limiter, text, acquire).await;
            }
            Verb::Within => {
                let wait = Duration::from_millis(random.u64(..700));
                let acquire = async { acquire().within(wait).await.map(one) };
                self.watch(step, part, asked, limiter, text, acquire).await;
            }
            Verb::Peek => {
                let peek = async { limiter.peek(&key).await.map(one) };
                asked[0].cost = 1;
                self.watch(step, part, asked, limiter, text, peek).await;
            }
            Verb::Record => {
                let mut record = limiter.record(&key).cost(cost);
                if let Some(id) = id {
                    record = record.idempotency_key(id);
                }
                let record = async {
                    record.await.map(|decision| {
                        vec![Said {
                            is_record: true,
                            ..Said::of(&decision)
                        }]
                    })
                };
                self.watch(step, part, asked, limiter, text, record).await;
            }
            Verb::Reset => {
                self.processes[step.process].lock().unwrap().admitted[log].clear();
                let reset = async { limiter.reset(&key).await.map(|_| Vec::new()) };
                self.watch(step, part, asked, limiter, text, reset).await;
            }
            Verb::All => {
                let other = &limiters[asked[1].log / 2];
                let other_key = [b'0' + (asked[1].log % 2) as u8];
                let all = AllOf::new()
                    .with(acquire())
                    .with(other.acquire(&other_key).cost(asked[1].cost));
                let all = async {
                    all.await.map(|all| {
                        let is_allowed = !all.is_denied();
                        vec![
                            Said {
                                is_allowed,
                                wait: None,
                                appended: is_allowed,
                                is_record: false
                            };
                            2
                        ]
                    })
                };
                self.watch(step, part, asked, limiter, text, all).await;
            }
            Verb::Permit => {
                let mut permit = None;
                let acquire = async {
                    let decision = acquire().permit().await?;
                    let said = one(decision.decision().clone());
                    permit = decision.into_result().ok();
                    Ok(said)
                };
                let call = self.watch(step, part, asked, limiter, text, acquire).await;
                if let Some(permit) = permit {
                    sleep(Duration::from_millis(random.u64(..400))).await;
                    self.settle(
                        step,
                        part,
                        &permit,
                        call,
                        log,
                        random.choice([0, 0, 1, 2, 3]).unwrap_or(0),
                    )
                    .await;
                }
            }
        }
    }

    async fn settle(
        &self,
        step: &Step,
        part: u64,
        permit: &Permit<'_, Guarded<RedisStore>>,
        call: usize,
        log: usize,
        cost: u64,
    ) {
        if permit.receipt().is_none() {
            return;
        }
        let number = self.begin(step, part ^ 0x5e77, Vec::new(), Some((call, cost)));
        let text = format!("call {number}: settle call {call} to {cost}");
        self.world
            .lock()
            .note(|| format!("p{} {text}", step.process));
        let caller = Caller {
            number: Some(number),
            process: step.process,
        };
        let result = CALL.scope(caller, permit.settle(cost).into_future()).await;
        let mut world = self.world.lock();
        world.calls[number].ended = Some(Instant::now());
        world.tally.calls += 1;
        world.note(|| {
            format!(
                "p{} {text}: {:?}",
                step.process,
                result.as_ref().map(Settled::applied)
            )
        });
        let is_local = world.calls[number].replied.is_none();
        let mut process = self.processes[step.process].lock().unwrap();
        if is_local {
            process.charged[log] += cost;
        }
        process.admitted[log].retain_mut(|(_, admitted, of)| {
            *admitted = if *of == call {
                cost.min(*admitted)
            } else {
                *admitted
            };
            *admitted > 0
        });
    }

    fn begin(
        &self,
        step: &Step,
        part: u64,
        asked: Vec<Asked>,
        settles: Option<(usize, u64)>,
    ) -> usize {
        let mut world = self.world.lock();
        let number = world.calls.len();
        let asked = asked
            .into_iter()
            .map(|asked| Asked {
                call: number,
                ..asked
            })
            .collect();
        let has_deadline = world.has_heard[step.process];
        let salt = step.salt ^ part.wrapping_mul(0x2545_f491);
        world.calls.push(Call {
            salt,
            asked,
            settles,
            sent: 0,
            replied: None,
            ended: None,
            has_deadline,
        });
        number
    }

    /// Makes a call, and checks its result. Returns its number.
    async fn watch(
        &self,
        step: &Step,
        part: u64,
        asked: Vec<Asked>,
        limiter: &Stack,
        text: String,
        call: impl Future<Output = Result<Vec<Said>, Error>>,
    ) -> usize {
        let number = self.begin(step, part, asked, None);
        self.world
            .lock()
            .note(|| format!("p{} call {number}: {text}", step.process));
        let caller = Caller {
            number: Some(number),
            process: step.process,
        };
        let guarded = limiter.store();
        let begun = Instant::now();
        let mut call = pin!(CALL.scope(caller, call));
        let is_open = guarded.breakers().iter().any(|(_, is_open)| *is_open);
        let before = guarded.lease_decisions().0;
        // A process that decides by itself does so immediately.
        let first = poll!(&mut call);
        let is_spent = guarded.lease_decisions().0 > before;
        let result = match first {
            std::task::Poll::Ready(result) => result,
            std::task::Poll::Pending => call.await,
        };
        let mut world = self.world.lock();
        world.calls[number].ended = Some(Instant::now());
        world.tally.calls += 1;
        let took = begun.elapsed();
        world.note(|| {
            format!(
                "p{} call {number} after {} ms: {result:?}",
                step.process,
                took.as_millis()
            )
        });
        let attempts =
            (self.setting.response + Duration::from_millis(21)) * (self.setting.retries + 1);
        let bound = Duration::from_millis(720) + 4 * attempts.min(self.setting.timeout);
        if took > bound {
            world.check(&format!("call {number}"), Err(format!("takes {took:?}")));
        }
        if let Ok(said) = &result {
            let mut process = self.processes[step.process].lock().unwrap();
            self.conclude(&mut world, &mut process, number, said, is_spent, is_open);
        }
        number
    }

    /// Checks who decided, and that he may.
    fn conclude(
        &self,
        world: &mut World,
        process: &mut Process,
        number: usize,
        said: &[Said],
        is_spent: bool,
        is_open: bool,
    ) {
        let now = world.now();
        let local = world.start.elapsed().as_micros() as u64;
        let asked = world.calls[number].asked.clone();
        let replied = world.calls[number].replied.clone();
        let was_sent = world.calls[number].sent > 0;
        for (i, (asked, said)) in asked.iter().zip(said).enumerate() {
            let policies = world.policies[asked.log / 2].clone();
            let what = format!("call {number} on log {}", asked.log);
            let result = match &replied {
                Some(wires) => {
                    let Some((wire, wait)) = wires.get(i) else {
                        continue;
                    };
                    if wire.is_granted() && wire.cost > asked.cost {
                        process.granted[asked.log] += wire.cost - asked.cost;
                    }
                    match (said.wait, wait) {
                        // A waiting call's last attempt may be denied from the cache.
                        (Some(said), Some(wait)) if said != *wait && !asked.waits => {
                            Err(format!("waits {said} in place of {wait}"))
                        }
                        _ => Ok(()),
                    }
                }
                None if is_spent && said.is_allowed => {
                    process.spent[asked.log] += asked.cost;
                    match process.spent[asked.log] > process.granted[asked.log] {
                        true => Err("spends more than was granted".to_owned()),
                        false => world.books[asked.log]
                            .spend(&policies.default, (now.line, asked.cost, number)),
                    }
                }
                None if !said.is_allowed && !said.is_record && !was_sent && !is_open => {
                    let tolerance = if self.setting.speed == 1.0 {
                        1_000
                    } else {
                        17_000
                    };
                    let ttl = self.setting.denial_ttl.as_micros() as u64 + 20_000;
                    let mut earlier = now;
                    earlier.clock -= tolerance;
                    world.books[asked.log].repeat(&policies, asked, earlier, ttl)
                }
                None => match (self.setting.choice, said.is_allowed || said.is_record) {
                    (Choice::Open, _) => {
                        world.except("admitted without the store");
                        Ok(())
                    }
                    (Choice::Local, _) => {
                        if said.appended {
                            process.charged[asked.log] += asked.cost;
                        }
                        if said.is_allowed && said.appended && !said.is_record && !asked.is_own {
                            world.except("admitted by a local store");
                            if asked.id.is_some() {
                                // It may repeat an earlier one.
                                let calls = &world.calls;
                                process.admitted[asked.log]
                                    .retain(|(.., of)| calls[*of].asked[0].id != asked.id);
                            }
                            process.admitted[asked.log].push((local, asked.cost, number));
                        }
                        let admitted = &process.admitted[asked.log];
                        let is_over = |limit: &limiter_core::Limit| {
                            sum_within(admitted, limit.window().as_micros(), local) > limit.max()
                        };
                        match policies
                            .default
                            .limits()
                            .iter()
                            .find(|limit| is_over(limit))
                        {
                            Some(limit) => Err(format!("admits more than {limit} locally")),
                            None => Ok(()),
                        }
                    }
                    (_, true) => Err("is admitted by nobody".to_owned()),
                    (Choice::Closed, false) => Ok(()),
                    (Choice::Error, false) => Err("is denied by nobody".to_owned()),
                },
            };
            world.check(&what, result);
            let result = world.books[asked.log].carry(
                &policies.default,
                asked.process,
                process.charged[asked.log],
            );
            world.check(&what, result);
        }
    }

    /// Checks that a minute after the last step everything is as before.
    async fn end(&self) {
        sleep(Duration::from_secs(60)).await;
        for round in 0..2 {
            for (number, process) in self.processes.iter().enumerate() {
                let limiters = process.lock().unwrap().limiters.clone();
                let caller = Caller {
                    number: None,
                    process: number,
                };
                let begun = Instant::now();
                let key = format!("end {round} {number}");
                let decision = CALL
                    .scope(caller, limiters[0].acquire(&key).into_future())
                    .await;
                let guarded = limiters[0].store();
                let is_well = decision.is_ok_and(|decision| decision.is_allowed())
                    && begun.elapsed() < Duration::from_millis(50)
                    && guarded.carried_logs() == 0
                    && (round == 0 || !guarded.in_outage())
                    && guarded
                        .store()
                        .redis_key(LogKey::new(Name::new(name(0)), &*key))
                        .len()
                        > 9;
                let mut world = self.world.lock();
                if !is_well {
                    world.check(
                        &format!("process {number}"),
                        Err("is not as before after a minute".to_owned()),
                    );
                }
                for log in 0..4 {
                    let charged = process.lock().unwrap().charged[log];
                    let policy = world.policies[log / 2].default.clone();
                    let result = world.books[log].carry(&policy, number, charged);
                    world.check(&format!("process {number}"), result);
                }
            }
            sleep(Duration::from_secs(2)).await;
        }
    }
}

/// What a decision says.
#[derive(Clone, Debug)]
struct Said {
    is_allowed: bool,
    wait: Option<u64>,
    appended: bool,
    is_record: bool,
}

impl Said {
    fn of(decision: &Decision) -> Self {
        Self {
            is_allowed: decision.is_allowed(),
            wait: decision.retry_after().map(|wait| wait.as_micros() as u64),
            appended: decision.appended_at() == Some(decision.at()),
            is_record: false,
        }
    }
}
