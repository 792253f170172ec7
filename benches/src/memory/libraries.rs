//! The libraries by name.

use std::hash::RandomState;
use std::sync::Arc;

use limiter_core::{Policy, SharedStore};
use limiter_memory::MemoryStore;
use limiter_wrappers::Stack;

use super::limits::Limits;
use super::ours::{Now, Polled, Remote, Sliding};
use super::peers::{Governor, Limitador, Throttlecrab, Trypema};
use super::requests::Requests;
use crate::declared::memory::Scenario;

/// A library.
#[derive(Clone, Copy)]
pub struct Library {
    pub(crate) name: &'static str,
    /// Whether it keeps a log, so that the window decides how much it holds.
    pub(super) keeps_log: bool,
    /// Whether a used-up quota refills bit by bit, so that a long measurement needs a longer window.
    pub(super) refills: bool,
    /// Returns a limiter with a policy for every key.
    pub(super) limiter: fn(&Policy) -> Box<dyn Limits>,
}

const fn library(name: &'static str, limiter: fn(&Policy) -> Box<dyn Limits>) -> Library {
    Library { name, keeps_log: false, refills: false, limiter }
}

const OURS: Library = Library { keeps_log: true, ..library("limiter", |policy| Box::new(Now::new(policy))) };
const GOVERNOR: Library =
    Library { refills: true, ..library("governor", |policy| Box::new(Governor::<RandomState>::new(policy))) };
/// governor with the hasher that this library uses.
pub(crate) const FOLDHASH: Library = Library {
    refills: true,
    ..library("governor foldhash", |policy| Box::new(Governor::<foldhash::fast::RandomState>::new(policy)))
};
/// This library and its peers, in the order of the columns.
pub(crate) const PEERS: [Library; 6] = [
    OURS,
    GOVERNOR,
    library("trypema 1 ms", |policy| Box::new(Trypema::new(policy, 1))),
    library("trypema 100 ms", |policy| Box::new(Trypema::new(policy, 100))),
    library("limitador", |policy| Box::new(Limitador::new(policy))),
    library("throttlecrab", |policy| Box::new(Throttlecrab::new(policy))),
];
/// Other ways to call this library: as a future, on a store known at compile time, and on one chosen at run time.
pub(crate) const FORMS: [Library; 2] = [
    library("limiter async", |policy| Box::new(Polled::new(policy, MemoryStore::new()))),
    library("limiter dyn", |policy| Box::new(Polled::new(policy, Arc::new(MemoryStore::new()) as SharedStore))),
];
/// This library with the cache of denials, around a store that takes a future for every decision.
pub(crate) const CACHED: Library = library("limiter cached denial", |policy| {
    Box::new(Polled::new(policy, Stack::new(Remote(MemoryStore::new())).cached_keys(1_000_000).or_error()))
});
const SLIDING: Library = library(OURS.name, |policy| Box::new(Sliding::new(policy)));
/// The name of the first contestant with the workload with which it is compared.
pub(crate) const PLAIN: &str = "plain";

/// Returns the libraries with a name.
fn named(name: &str) -> Vec<Library> {
    match name {
        "peers" => PEERS.into(),
        "forms" => FORMS.into(),
        "sliding" => vec![SLIDING],
        _ => PEERS.into_iter().chain([CACHED]).filter(|library| library.name == name).collect(),
    }
}

/// Returns the contestants of a scenario with their requests.
#[must_use]
pub fn contestants(scenario: &Scenario) -> Vec<(&'static str, Library, Requests)> {
    let own = Requests::new(scenario.workload.clone());
    let libraries = scenario.who.iter().flat_map(|name| named(name));
    let mut all: Vec<_> = libraries.map(|library| (library.name, library, own.clone())).collect();
    if let Some(plain) = &scenario.plain {
        all.push((PLAIN, all[0].1, Requests::new(plain.clone())));
    }
    all
}
