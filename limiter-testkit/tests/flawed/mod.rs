//! Stores that are right but for one flaw.

mod counted;
mod forgetful;
mod handles;
mod model;
mod rules;
mod settle;
mod steps;

use std::sync::Arc;

use limiter_core::{BoxFuture, SharedStore};

pub(crate) use counted::Counted;
pub(crate) use forgetful::{Forgetful, Forgets};
pub(crate) use handles::{Handled, Keeps};
pub(crate) use model::Model;
pub(crate) use steps::{Leaves, Stepwise};

/// Flaws of a store that holds a list of entries for each log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    None,
    // T1 to T5
    TruncatesToMilliseconds,
    CutsAgesTo32Bits,
    ReadsTheClockTwice,
    StopsItsClock,
    TellsMilliseconds,
    IsAnHourAhead,
    LetsTimeRunBack,
    LetsTimeRunBackOnceExpired,
    SettlesBackInTime,
    LetsPeeksHoldTime,
    KeepsTheTimeOfRemovedEntries,
    HasOneTimeForAllLogs,
    LetsTheStoresClockRunBack,
    BlocksItsThread,
    // L1
    MixesUpKeys,
    CutsKeys,
    IgnoresCaseOfKeys,
    TrimsKeys,
    EndsKeysAtNul,
    ReadsKeysAsNumbers,
    IgnoresNames,
    JoinsNamesAndKeys,
    IgnoresCaseOfNames,
    SharesIdsAcrossKeys,
    // L2 to L5
    CountsWhatIsAgedTheWindow,
    ForgetsAMicrosecondEarly,
    IgnoresWeights,
    ForgetsTheLastLimit,
    CutsCostsTo32Bits,
    FreesTheOldestFirst,
    AppendsDenied,
    PeekAppends,
    RecordAppendsOnlyIfItFits,
    DropsTheAttemptsThatAreDenied,
    MergesTies,
    // L6 to L8
    NeverTrims,
    TrimsOneTooLate,
    TrimsByTheShortestWindow,
    TrimsByTheFirstWindow,
    RetainsForTheOwnPolicy,
    RetainsForTheDefaultPolicy,
    RetainsTheOwnWindow,
    NeverCaps,
    CapsOneTooMany,
    CapsOneTooFew,
    CapsByTheFirstMaximum,
    CapsWithoutTheNewest,
    RetainsTheOwnMax,
    RetainsTheSmallerMax,
    TrimsWhenItPeeks,
    TrimsWhenItDenies,
    TrimsWhenItRepeats,
    TrimsWhenItSettles,
    // L9 and L10
    IgnoresIds,
    IgnoresIdsAtTheStoresClock,
    IgnoresTheIdZero,
    ComparesHalfOfIds,
    ComparesAllButOneBitOfIds,
    RepeatsTheVerdictOfNow,
    RepeatsTheUsageOfThen,
    RepeatsForEver,
    RepeatsOneTooLate,
    RepeatsInTheOwnWindow,
    RepeatsOnlyTheSameMode,
    RepeatsOnlyTheSameCost,
    LeavesIdsOfDenials,
    // L11 to L14
    HidesTheNewestEntry,
    DescribesTheLogBefore,
    ChecksThenAdds,
    NamesEntriesByCount,
    CountsEntriesIn8Bits,
    // Settlements
    RefundsANeighbour,
    RefundsByTimeAlone,
    RefundsByIdAlone,
    SettlesOnAnyKey,
    SettlesUnderTheDefaultName,
    SettlesNothingAtTheStoresClock,
    IgnoresSettlements,
    SettlesAnew,
    SettlesAtTheEnd,
    SettlesWithoutTheId,
    SettlesWithoutTheVerdict,
    SettlesToTheDifference,
    KeepsRefundedIds,
    RefundsToZero,
    RefundsTwice,
    RefundsWhatHasLeft,
    RefundsAtTheEndOfTheWindow,
    RefundsInTheSettlementsWindow,
    SettlesWithoutCap,
    SettlesWithThePolicysCap,
    RefusesLargeSettlements,
    CutsLargeSettlements,
    SettlesWithTheUsageBefore,
    SettlesWithTheUsageOfOneLimit,
    SettlesAtTheReceiptsTime,
    DoesNotApplyTheSameCost,
    AlwaysApplies,
    ResetLeavesAnEntry,
    ResetKeepsIds,
    ResetAlwaysFinds,
    ResetNeverFinds,
    ResetsAllKeys,
    // Errors and deciding at once
    DeniesByError,
    SettlesNothingByError,
    ResetsNothingByError,
    AppliesWhatItDoesNotDecideAtOnce,
    DecidesAtOnceWithoutChecks,
}

/// A store to be tested: its handles, and how it sweeps.
pub(crate) struct Tested {
    pub(crate) handles: Vec<SharedStore>,
    pub(crate) sweep: Option<Arc<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>>,
}

impl Tested {
    pub(crate) fn of(store: impl limiter_core::WindowStore) -> Self {
        Self { handles: vec![Arc::new(store)], sweep: None }
    }
}

impl From<Flaw> for Tested {
    fn from(flaw: Flaw) -> Self {
        Self::of(Model::new(flaw))
    }
}

impl From<Forgetful> for Tested {
    fn from(store: Forgetful) -> Self {
        let store = Arc::new(store);
        let sweeper = Arc::clone(&store);
        let sweep = move || -> BoxFuture<'static, ()> {
            sweeper.sweep();
            Box::pin(std::future::ready(()))
        };
        Self { handles: vec![store], sweep: Some(Arc::new(sweep)) }
    }
}

impl From<Handled> for Tested {
    fn from(store: Handled) -> Self {
        let other: SharedStore = Arc::new(store.another());
        Self { handles: vec![Arc::new(store), other], sweep: None }
    }
}

impl From<Stepwise> for Tested {
    fn from(store: Stepwise) -> Self {
        Self::of(store)
    }
}
