//! Stores with exactly one flaw each.

mod forgetful;
mod handles;
mod list_store;
mod rules;
mod settle;
mod sixteen_bit;
mod steps;

use std::sync::Arc;

use limiter_core::{BoxFuture, SharedStore};

pub(crate) use forgetful::{ForgetRule, ForgetfulStore};
pub(crate) use handles::{HandleStore, PrivateState};
pub(crate) use list_store::ListStore;
pub(crate) use sixteen_bit::SixteenBitStore;
pub(crate) use steps::{LeftBehind, Stepwise};

/// Flaws of a store that keeps a list of entries per log.
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

/// A store under test: its handles, and its sweep function.
pub(crate) struct StoreUnderTest {
    pub(crate) handles: Vec<SharedStore>,
    pub(crate) sweep: Option<Arc<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>>,
}

impl StoreUnderTest {
    pub(crate) fn of(store: impl limiter_core::WindowStore) -> Self {
        Self { handles: vec![Arc::new(store)], sweep: None }
    }
}

impl From<Flaw> for StoreUnderTest {
    fn from(flaw: Flaw) -> Self {
        Self::of(ListStore::new(flaw))
    }
}

impl From<ForgetfulStore> for StoreUnderTest {
    fn from(store: ForgetfulStore) -> Self {
        let store = Arc::new(store);
        let sweeper = Arc::clone(&store);
        let sweep = move || -> BoxFuture<'static, ()> {
            sweeper.sweep();
            Box::pin(std::future::ready(()))
        };
        Self { handles: vec![store], sweep: Some(Arc::new(sweep)) }
    }
}

impl From<HandleStore> for StoreUnderTest {
    fn from(store: HandleStore) -> Self {
        let other: SharedStore = Arc::new(store.another());
        Self { handles: vec![Arc::new(store), other], sweep: None }
    }
}

impl From<Stepwise> for StoreUnderTest {
    fn from(store: Stepwise) -> Self {
        Self::of(store)
    }
}
