//! The libraries by name.

use std::hash::RandomState;
use std::sync::Arc;

use limiter_core::{Policy, SharedStore};
use limiter_memory::MemoryStore;

use super::limits::Limits;
use super::ours::{Now, Polled};
use super::peers::{Governor, limitador, throttlecrab, trypema};
use super::workload::{Requests, Scenario};

/// A library.
#[derive(Clone, Copy)]
pub struct Library {
    /// Its name in the tables.
    pub name: &'static str,
    /// Whether it keeps a log, so that the window decides how much it holds.
    pub(super) keeps_log: bool,
    /// Whether a used-up quota refills bit by bit, so that a long measurement needs a longer window.
    pub(super) refills: bool,
    /// Returns a limiter with a policy for every key.
    pub(super) limiter: fn(&Policy) -> Box<dyn Limits>,
}

const fn library(name: &'static str, limiter: fn(&Policy) -> Box<dyn Limits>) -> Library {
    Library {
        name,
        keeps_log: false,
        refills: false,
        limiter,
    }
}

const OURS: Library = Library {
    keeps_log: true,
    ..library("limiter", |policy| Box::new(Now::new(policy)))
};
const GOVERNOR: Library = Library {
    refills: true,
    ..library("governor", |policy| {
        Box::new(Governor::<RandomState>::new(policy))
    })
};
/// governor with the hasher that this library uses.
pub(crate) const FOLDHASH: Library = Library {
    refills: true,
    ..library("governor foldhash", |policy| {
        Box::new(Governor::<foldhash::fast::RandomState>::new(policy))
    })
};
/// This library and its peers, in the order of the columns.
pub(crate) const PEERS: [Library; 6] = [
    OURS,
    GOVERNOR,
    library("trypema 1 ms", |policy| Box::new(trypema(policy, 1))),
    library("trypema 100 ms", |policy| Box::new(trypema(policy, 100))),
    library("limitador", |policy| Box::new(limitador(policy))),
    library("throttlecrab", |policy| Box::new(throttlecrab(policy))),
];
/// Other ways to call this library: as a future, on a store known at compile time, and on one chosen at run time.
pub(crate) const FORMS: [Library; 2] = [
    library("limiter async", |policy| {
        Box::new(Polled::new(policy, MemoryStore::new()))
    }),
    library("limiter dyn", |policy| {
        Box::new(Polled::new(
            policy,
            Arc::new(MemoryStore::new()) as SharedStore,
        ))
    }),
];

/// Returns the contestants of a scenario, and its requests for each.
pub fn contestants(scenario: &Scenario) -> impl Iterator<Item = (Library, Requests)> {
    let requests = Requests::new(scenario.workload.clone());
    let wanted = |library: &Library| {
        scenario
            .who
            .as_ref()
            .is_none_or(|who| who.iter().any(|who| who == library.name))
    };
    PEERS
        .into_iter()
        .chain(FORMS)
        .filter(wanted)
        .map(move |library| (library, requests.clone()))
}
