//! Stores with exactly one flaw each.

mod call;
mod counting;
mod joint;
mod mutant;
mod table;

use std::sync::Arc;
use std::task::Poll;

use limiter_core::store::{JointFacts, Op};
use limiter_core::{BoxFuture, EntryId, Policy, SharedStore};
use limiter_testkit::ReferenceEntry;
use limiter_testkit::conformance::{Phase, Sentence};
use limiter_testkit::reference::merging::Append;

use call::FlawedCall;
use joint::Joint;
pub(crate) use table::{FLAWS, RIGHT};

/// A phase that always finds the flaw, a sentence that the failure cites, the flaw's name, and what it changes.
pub(crate) type Flaw = (Phase, Sentence, &'static str, Change);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Apply,
    Settle,
    Reset,
}

/// What a flaw changes.
#[derive(Debug)]
pub(crate) enum Change {
    /// Code that asks for the name of the flaw.
    Code,
    /// The log of a call, by its name and its key.
    Log(fn(&str, &[u8]) -> (String, Vec<u8>)),
    /// The policies of a call.
    Limits(fn(&Policy) -> Policy),
    /// The store's clock.
    Clock(fn(u64) -> u64),
    /// An operation before it is applied, the entries afterwards, or the facts.
    Before(fn(&mut FlawedCall<'_>)),
    Entries(fn(&mut FlawedCall<'_>)),
    Facts(fn(&mut FlawedCall<'_>)),
    /// The same of a settlement, and of a reset.
    Settles(fn(&mut FlawedCall<'_>)),
    Settled(fn(&mut FlawedCall<'_>)),
    SettledFacts(fn(&mut FlawedCall<'_>)),
    ResetEntries(fn(&mut FlawedCall<'_>)),
    ResetFacts(fn(&mut FlawedCall<'_>)),
    /// Which entry an operation with an id repeats.
    Finds(fn(&FlawedCall<'_>, &ReferenceEntry) -> bool),
    /// The rules of merging.
    Inputs(fn(&Op<'_>, &mut Append)),
    IsDue(fn(&Append, &ReferenceEntry) -> bool),
    Joins(fn(&Append, &ReferenceEntry, &ReferenceEntry) -> bool),
    Merged(fn(&ReferenceEntry, &ReferenceEntry, EntryId) -> ReferenceEntry),
    /// Several operations as one.
    Together(fn(&Joint<'_>) -> Option<JointFacts>),
}

/// Is pending once.
async fn wait() {
    let mut waited = false;
    std::future::poll_fn(|context| {
        context.waker().wake_by_ref();
        if std::mem::replace(&mut waited, true) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
}

/// A store under test: its handles, one that is opened late, and its sweep.
pub(crate) struct StoreUnderTest {
    pub(crate) handles: Vec<SharedStore>,
    pub(crate) late: Box<dyn FnOnce() -> SharedStore + Send>,
    pub(crate) sweep: Arc<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>,
}

impl StoreUnderTest {
    pub(crate) fn new(flaw: &'static Flaw) -> Self {
        if flaw.2 == "CountsIn16Bits" {
            let store = || -> SharedStore { Arc::new(counting::CountsIn16Bits::default()) };
            return Self {
                handles: vec![store()],
                late: Box::new(store),
                sweep: Arc::new(|| Box::pin(async {})),
            };
        }
        let store = Arc::new(mutant::Mutant::new(flaw));
        let (sweeper, opener) = (Arc::clone(&store), Arc::clone(&store));
        let sweep = move || -> BoxFuture<'static, ()> {
            let sweeper = Arc::clone(&sweeper);
            Box::pin(async move { sweeper.sweep().await })
        };
        let another: SharedStore = Arc::new(store.another(1));
        let late = move || -> SharedStore { Arc::new(opener.another(2)) };
        Self {
            handles: vec![store, another],
            late: Box::new(late),
            sweep: Arc::new(sweep),
        }
    }
}
