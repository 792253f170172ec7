//! The one entry point.

use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::executor::block_on;
use limiter_core::store::{LogKey, Mode, Op};
use limiter_core::{ErrorKind, LimitStatus, Limiter, Name, Timestamp, WindowStore, policy};
use proptest::strategy::{Strategy as _, ValueTree as _};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use super::contention::{Contention, Crowd};
use super::plan::Plan;
use super::replay::{by_facts, replay};
use super::spawn::{Spawner, Task};
use super::{edges, exhaustive, strategy};
use crate::golden::{self, Row, RowAnswer};

/// A part of the suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Phase {
    /// The [golden traces](crate::golden).
    Golden,
    /// The ends of every range: keys, costs, times, windows, numbers of limits; and the store's own clock.
    Edges,
    /// Every short sequence.
    Exhaustive,
    /// Random sequences, shrunk when they fail.
    Random,
    /// Many tasks on one key.
    Contention,
}

impl Phase {
    /// All of them, in the order in which they run.
    pub const ALL: [Self; 5] = [Self::Golden, Self::Edges, Self::Exhaustive, Self::Random, Self::Contention];
}

/// Runs everything that a store must do against a store; see the [module](super).
#[derive(Clone, Debug)]
#[must_use = "a suite does nothing until it runs"]
pub struct Suite {
    phases: Vec<Phase>,
    seed: u64,
    sequences: u64,
    depth: usize,
    crowd: Crowd,
    rounds: u64,
    spawner: Spawner,
}

/// What was run, all of it with the right result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
#[must_use = "a report says how much was checked"]
pub struct Report {
    /// Rows of the golden traces.
    pub golden_rows: u64,
    /// Cases at the ends of ranges.
    pub edge_cases: u64,
    /// Short sequences.
    pub short_sequences: u64,
    /// Random sequences.
    pub random_sequences: u64,
    /// Operations of tasks on one key.
    pub contended: u64,
    /// Operations in all.
    pub operations: u64,
}

/// Where a store broke the contract. Prints as the whole story.
pub struct Failure {
    phase: Phase,
    story: String,
    seed: u64,
}

impl Failure {
    /// The part of the suite that found it.
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.phase
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.phase, self.story)?;
        if self.phase == Phase::Random { write!(f, "\nrepeat with Suite::seed({})", self.seed) } else { Ok(()) }
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl std::error::Error for Failure {}

/// A number that is another in every process.
fn random() -> u64 {
    RandomState::new().hash_one("limiter")
}

impl Suite {
    /// The whole suite, as a store in memory runs it in seconds.
    pub fn new() -> Self {
        Self {
            phases: Phase::ALL.to_vec(),
            seed: random(),
            sequences: 1_000,
            depth: 2,
            crowd: Crowd { tasks: 8, tries: 50 },
            rounds: 5,
            spawner: Spawner::threads(),
        }
    }

    /// Only these parts.
    pub fn phases(mut self, phases: &[Phase]) -> Self {
        self.phases = phases.to_vec();
        self
    }

    /// How many random sequences, 1,000 unless said.
    pub fn sequences(mut self, sequences: u64) -> Self {
        self.sequences = sequences;
        self
    }

    /// The same random sequences again: a [`Failure`] tells the seed.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// How long the short sequences are, of which all are run: 2 unless said, which makes some 4,000; 3 makes 250,000.
    pub fn depth(mut self, depth: usize) -> Self {
        self.depth = depth;
        self
    }

    /// How many tasks meet on a key, how many operations each makes there, and how many times over: 8, 50 and 5 unless
    /// said.
    pub fn contention(mut self, tasks: usize, tries: usize, rounds: u64) -> Self {
        (self.crowd, self.rounds) = (Crowd { tasks, tries }, rounds);
        self
    }

    /// How a task is started, unless said on a thread of its own: `spawn` starts it and returns a future that ends when
    /// the task has. A store that needs its runtime starts tasks there:
    ///
    /// ```
    /// # use limiter_testkit::conformance::Suite;
    /// # let suite =
    /// Suite::new().spawn(|task| Box::pin(async { _ = tokio::spawn(task).await }))
    /// # ;
    /// ```
    pub fn spawn(mut self, spawn: impl Fn(Task) -> Task + Send + Sync + 'static) -> Self {
        self.spawner = Spawner::new(spawn);
        self
    }

    /// Runs the suite on a store.
    ///
    /// Every key begins with a random prefix, so the store may be live and shared; the one exception is the empty key.
    /// Every log is removed in the end, unless the store fails.
    ///
    /// # Errors
    /// The first [`Failure`]; also if a part that was asked for had nothing to run.
    pub async fn run<S: WindowStore + ?Sized>(&self, store: Arc<S>) -> Result<Report, Failure> {
        let keys = Keys { prefix: format!("{:016x}", random()), used: AtomicU64::new(0) };
        let mut run = Run { suite: self, store, keys, report: Report::default() };
        for &phase in &self.phases {
            let before = run.report.operations;
            let result = match phase {
                Phase::Golden => run.golden().await,
                Phase::Edges => run.edges().await,
                Phase::Exhaustive => run.exhaustive().await,
                Phase::Random => run.random().await,
                Phase::Contention => run.contention().await,
            };
            let checked = result.and_then(|()| match run.report.operations - before {
                0 => Err("there was nothing to run".to_owned()),
                _ => Ok(()),
            });
            checked.map_err(|story| Failure { phase, story, seed: self.seed })?;
        }
        Ok(run.report)
    }

    /// [`run`](Self::run) for a store that needs no runtime.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn run_blocking<S: WindowStore + ?Sized>(&self, store: Arc<S>) -> Result<Report, Failure> {
        block_on(self.run(store))
    }
}

impl Default for Suite {
    fn default() -> Self {
        Self::new()
    }
}

/// Hands out new keys.
struct Keys {
    prefix: String,
    used: AtomicU64,
}

impl Keys {
    fn next(&self) -> String {
        format!("{}/{}", self.prefix, self.used.fetch_add(1, Ordering::Relaxed))
    }
}

struct Run<'a, S: ?Sized> {
    suite: &'a Suite,
    store: Arc<S>,
    keys: Keys,
    report: Report,
}

impl<S: WindowStore + ?Sized> Run<'_, S> {
    async fn golden(&mut self) -> Result<(), String> {
        for trace in golden::traces() {
            let policy = trace.policy().map_err(|e| e.to_string())?;
            let limiters = ["conformance", "conformance:1"]
                .map(|name| Limiter::new(name, policy.clone(), Arc::clone(&self.store)));
            let key = self.keys.next();
            for (i, row) in trace.rows.iter().enumerate() {
                let failed = |e: limiter_core::Error| format!("{}, row {i}: {e:?}", trace.name);
                let own = row.own_policy().map_err(failed)?;
                let limiter = &limiters[row.limiter % 2];
                let decision = match run_row(limiter, &key, row, own.as_ref()).await {
                    Ok(decision) => Some(decision),
                    Err(e) if e.kind() == ErrorKind::CostExceedsLimit => None,
                    Err(e) => return Err(failed(e)),
                };
                let used: Vec<u64> = decision
                    .iter()
                    .flat_map(|d| d.limits().iter().map(LimitStatus::used).collect::<Vec<_>>())
                    .collect();
                let answer = decision.as_ref().map(RowAnswer::from);
                if answer != row.answer || (!row.used_each.is_empty() && used != row.used_each) {
                    let (expected, used_each) = (row.answer, row.used_each);
                    return Err(format!(
                        "{}, row {i}: {row:?}\nexpected {expected:?}, used {used_each:?}\ngot      {answer:?}, used {used:?}",
                        trace.name
                    ));
                }
                self.report.golden_rows += 1;
                self.report.operations += 1;
            }
            for limiter in &limiters {
                limiter.reset(&key).await.map_err(|e| format!("reset: {e:?}"))?;
            }
        }
        Ok(())
    }

    async fn edges(&mut self) -> Result<(), String> {
        let cases = edges::cases();
        for (name, case) in &cases {
            let plan = Plan::of(case)?;
            let key = self.keys.next();
            self.replay(&plan, |k| format!("{key}/{k}").into_bytes()).await.map_err(|e| format!("{name}: {e}"))?;
            self.report.edge_cases += 1;
        }
        let several = cases.iter().find(|(name, _)| *name == "several keys");
        let plan = Plan::of(&several.ok_or("no case of several keys")?.1)?;
        let mut names = edges::keys(&self.keys.next());
        names.push([Vec::new(), self.keys.next().into_bytes(), self.keys.next().into_bytes()]);
        for keys in names {
            let shown: Vec<String> =
                keys.iter().map(|key| key[..key.len().min(64)].escape_ascii().to_string()).collect();
            let result = self.replay(&plan, |k| keys[usize::from(k) % 3].clone()).await;
            result.map_err(|e| format!("keys {shown:?}: {e}"))?;
            self.report.edge_cases += 1;
        }
        self.names().await?;
        self.store_clock().await
    }

    /// At the store's clock usage adds up, and time does not run backwards.
    async fn store_clock(&mut self) -> Result<(), String> {
        let limiter = Limiter::new("conformance", policy!("3/1d"), Arc::clone(&self.store));
        let key = self.keys.next();
        let mut before = Timestamp::EPOCH;
        for used in 1..=3 {
            let decision = limiter.acquire(&key).await.map_err(|e| format!("{e:?}"))?;
            if !decision.allowed() || decision.used() != used || decision.at() < before {
                return Err(format!("acquire {used} of 3 a day at the store's time, after {before:?}: {decision:?}"));
            }
            before = decision.at();
            self.report.operations += 1;
        }
        let there_was_one = limiter.reset(&key).await.map_err(|e| format!("{e:?}"))?;
        self.report.edge_cases += 1;
        if there_was_one { Ok(()) } else { Err("reset found no log at the store's time".to_owned()) }
    }

    /// Names and keys that a store might join to the same text.
    async fn names(&mut self) -> Result<(), String> {
        let key = self.keys.next();
        let logs = [
            ("", format!("a:{key}")),
            ("a", key.clone()),
            ("a:", key.clone()),
            ("a", format!(":{key}")),
            ("a%3A", key.clone()),
            ("a}", key.clone()),
            ("a{", key.clone()),
            ("A", key.clone()),
            ("default", key.clone()),
            ("*", key),
        ];
        let policy = policy!("3/1d");
        for (i, (name, key)) in logs.iter().enumerate() {
            let op = Op::acquire(key, &policy).with_name(Name::new(name));
            let decision = by_facts(&*self.store, op).await.map_err(|e| format!("{name:?}, {key:?}: {e:?}"))?;
            if decision.used() != 1 {
                let before = &logs[..i];
                return Err(format!(
                    "the first acquire of key {key:?} under the name {name:?} found {decision:?}, after {before:?}"
                ));
            }
            self.report.operations += 1;
        }
        for (name, key) in &logs {
            let log = LogKey::new(Name::new(name), key);
            if !self.store.reset(log).await.map_err(|e| format!("{e:?}"))? {
                return Err(format!("reset found no log of key {key:?} under the name {name:?}"));
            }
        }
        self.report.edge_cases += 1;
        Ok(())
    }

    async fn exhaustive(&mut self) -> Result<(), String> {
        for policy in exhaustive::policies() {
            for case in exhaustive::sequences(&policy, self.suite.depth) {
                let plan = Plan::of(&case)?;
                let key = self.keys.next().into_bytes();
                self.replay(&plan, |_| key.clone()).await?;
                self.report.short_sequences += 1;
            }
        }
        Ok(())
    }

    async fn random(&mut self) -> Result<(), String> {
        let mut seed = [0; 32];
        seed[..8].copy_from_slice(&self.suite.seed.to_le_bytes());
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
        let mut runner = TestRunner::new_with_rng(Config::default(), rng);
        let (short, long) = (strategy::cases(1..=30), strategy::cases(60..=200));
        for number in 0..self.suite.sequences {
            // A few long ones, for logs that have grown beyond what a store may hold in another form.
            let cases = if number % 20 == 19 { &long } else { &short };
            let mut tree = cases.new_tree(&mut runner).map_err(|e| e.to_string())?;
            let Err(mut story) = self.sequence(&tree.current()).await else {
                self.report.random_sequences += 1;
                continue;
            };
            let mut shrunk = 0;
            while shrunk < 2_000 && tree.simplify() {
                loop {
                    shrunk += 1;
                    match self.sequence(&tree.current()).await {
                        Err(smaller) => story = smaller,
                        Ok(()) if tree.complicate() => continue,
                        Ok(()) => {}
                    }
                    break;
                }
            }
            return Err(format!("sequence {number}, shrunk in {shrunk} steps:\n{story}"));
        }
        Ok(())
    }

    async fn sequence(&mut self, case: &super::Case) -> Result<(), String> {
        let plan = Plan::of(case)?;
        let key = self.keys.next();
        self.replay(&plan, |k| format!("{key}/{k}").into_bytes()).await
    }

    async fn replay(&mut self, plan: &Plan, keys: impl Fn(u8) -> Vec<u8>) -> Result<(), String> {
        self.report.operations += plan.len() as u64;
        replay(&self.store, plan, keys).await.map_err(|mismatch| mismatch.to_string())
    }

    async fn contention(&mut self) -> Result<(), String> {
        let new_key = || self.keys.next().into_bytes();
        let suite = self.suite;
        let contention =
            Contention { store: &self.store, spawner: &suite.spawner, crowd: suite.crowd, new_key: &new_key };
        let mut operations = 0;
        for _ in 0..suite.rounds {
            operations += contention.run().await?;
        }
        self.report.contended += operations;
        self.report.operations += operations;
        Ok(())
    }
}

async fn run_row<S>(
    limiter: &Limiter<Arc<S>>,
    key: &str,
    row: &Row,
    own: Option<&limiter_core::Policy>,
) -> Result<limiter_core::Decision, limiter_core::Error>
where
    S: WindowStore + ?Sized,
{
    let at = Timestamp::from_micros_saturating(row.at);
    macro_rules! call {
        ($verb:ident) => {{
            let request = limiter.$verb(key).cost(row.cost).at(at);
            match own {
                Some(policy) => request.policy(policy).await,
                None => request.await,
            }
        }};
    }
    match row.mode {
        Mode::Acquire => call!(acquire),
        Mode::Peek => call!(peek),
        Mode::Record => call!(record),
    }
}
