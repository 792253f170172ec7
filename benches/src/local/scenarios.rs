//! The scenarios of one operation in memory.

use std::time::Duration;

use anyhow::Result;
use serde::Deserialize;

use super::floor::Floor;
use super::library::Contestant;
use super::ours::{Async, Cached, Dyn, Now, Read, Sliding};
use super::peers::{Governor, GovernorFoldhash, Limitador, Throttlecrab, Trypema};
use super::workload::{Order, Requested, Workload};
use crate::record::Figures;
use crate::turns::{self, Case, Effort};

/// One operation, as declared. The first contestant is this library.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// `group/op`.
    pub name: String,
    /// The workload, as the table describes it.
    pub about: String,
    /// The names of contestants, or of groups of them.
    who: Vec<String>,
    workload: Workload,
    /// The workload with which the first contestant is compared.
    plain: Option<Workload>,
}

/// A contestant of one scenario, which is filled in the first run.
pub struct Timed {
    /// Its name.
    pub who: &'static str,
    /// Runs this many operations, asserts each answer, and returns the duration.
    pub run: Box<dyn FnMut(u64) -> Duration>,
    /// The number of operations in a turn; `None` if a turn takes a fixed time.
    pub(crate) operations: Option<u64>,
}

/// This library and its peers, in the order of the columns.
pub(crate) const PEERS: [Contestant; 6] = [
    Contestant::of::<Now>(),
    Contestant::of::<Governor>(),
    Contestant::of::<Trypema<1>>(),
    Contestant::of::<Trypema<100>>(),
    Contestant::of::<Limitador>(),
    Contestant::of::<Throttlecrab>(),
];
/// Other ways to call this library.
pub(crate) const FORMS: [Contestant; 3] =
    [Contestant::of::<Read>(), Contestant::of::<Async>(), Contestant::of::<Dyn>()];
/// The minimum work of every exact log.
pub(crate) const FLOOR: Contestant = Contestant::of::<Floor>();
pub(crate) const FOLDHASH: Contestant = Contestant::of::<GovernorFoldhash>();
pub(crate) const CACHED: Contestant = Contestant::of::<Cached>();
/// The name of the first contestant with the workload with which it is compared.
pub(crate) const PLAIN: &str = "plain";

/// Returns the contestants with a name.
fn named(name: &str) -> Vec<Contestant> {
    match name {
        "peers" => PEERS.into(),
        "forms" => FORMS.into(),
        "sliding" => vec![Contestant::of::<Sliding>()],
        _ => {
            let all = PEERS.into_iter().chain(FORMS).chain([FLOOR, CACHED]);
            all.filter(|contestant| contestant.name == name).collect()
        }
    }
}

impl Scenario {
    /// Whether it has a contestant or a group with this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.who.iter().any(|who| who == name)
    }

    /// Returns all contestants.
    #[must_use]
    pub fn timed(&self, effort: &Effort) -> Vec<Timed> {
        let requested =
            |workload: &Workload| Requested::new(Workload { keys: workload.keys.min(effort.keys), ..workload.clone() });
        let contestants: Vec<Contestant> = self.who.iter().flat_map(|name| named(name)).collect();
        let own = requested(&self.workload);
        let mut all: Vec<Timed> = contestants.iter().map(|contestant| timed(*contestant, own.clone())).collect();
        if let Some(plain) = &self.plain {
            all.push(timed(Contestant { name: PLAIN, ..contestants[0] }, requested(plain)));
        }
        all
    }
}

fn timed(contestant: Contestant, requested: Requested) -> Timed {
    let (threads, keys) = (requested.workload.threads, requested.workload.keys);
    let operations = (requested.workload.order == Order::Fresh).then_some(keys as u64);
    let mut prepared = None;
    let run = move |count| (prepared.get_or_insert_with(|| (contestant.prepare)(&requested)).run)(threads, count);
    Timed { who: contestant.name, run: Box::new(run), operations }
}

/// Measures contestants in turns. Returns nanoseconds per operation.
pub(crate) fn in_turns(timed: &mut [Timed], effort: &Effort) -> Result<Figures> {
    let long = timed.iter().any(|timed| timed.operations.is_some());
    let rounds = if long { effort.rounds.isqrt() / 2 + 1 } else { effort.rounds };
    let mut cases = Vec::new();
    for timed in timed {
        let count = operations(timed, effort.turn);
        let run = &mut timed.run;
        let turn = move || Ok(vec![("ns", run(count).as_nanos() as f64 / count as f64)]);
        cases.push(Case { who: timed.who, turn: Box::new(turn) });
    }
    turns::measure(&mut cases, |round| round >= rounds)
}

/// Returns the number of operations in a turn. Measuring it also warms up.
fn operations(timed: &mut Timed, turn: Duration) -> u64 {
    if let Some(fixed) = timed.operations {
        return fixed;
    }
    let mut count = 64;
    loop {
        let elapsed = (timed.run)(count);
        if elapsed >= turn / 4 {
            return ((count as f64 * turn.as_secs_f64() / elapsed.as_secs_f64()) as u64).max(1);
        }
        count *= 4;
    }
}
