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
use limiter_testkit::conformance::{Phase, Sentence};

pub(crate) use forgetful::ForgetRule;
use forgetful::ForgetfulStore;
use handles::HandleStore;
pub(crate) use handles::PrivateState;
pub(crate) use list_store::ListStore;
pub(crate) use sixteen_bit::SixteenBitStore;
pub(crate) use steps::{LeftBehind, Stepwise};

macro_rules! flaws {
    ($($flaw:ident $phase:ident $sentence:ident,)*) => {
        /// Flaws of a store that keeps a list of entries per log.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Flaw {
            None,
            $($flaw,)*
        }

        impl Flaw {
            /// Each flaw, with a phase that always finds it and the sentence that it breaks.
            pub(crate) const ALL: &[(Self, Phase, Sentence)] = &[$((Self::$flaw, Phase::$phase, Sentence::$sentence),)*];
        }
    };
}

flaws! {
    TruncatesToMilliseconds Cases T1,
    CutsAgesTo32Bits Cases T1,
    ReadsTheClockTwice StoreClock T2,
    StopsItsClock StoreClock T4,
    TellsMilliseconds StoreClock T4,
    IsAnHourAhead StoreClock T4,
    LetsTimeRunBack Cases T3,
    LetsTimeRunBackOnceExpired Cases T3,
    SettlesBackInTime Cases T3,
    LetsPeeksHoldTime Cases T3,
    KeepsTheTimeOfRemovedEntries Cases T3,
    HasOneTimeForAllLogs Cases T3,
    LetsTheStoresClockRunBack StoreClock T3,
    BlocksItsThread Cancel T5,
    MixesUpKeys Cases L1,
    CutsKeys Cases L1,
    IgnoresCaseOfKeys Cases L1,
    TrimsKeys Cases L1,
    EndsKeysAtNul Cases L1,
    ReadsKeysAsNumbers Cases L1,
    IgnoresNames Cases L1,
    JoinsNamesAndKeys Cases L1,
    IgnoresCaseOfNames Cases L1,
    SharesIdsAcrossKeys Cases L1,
    CountsWhatIsAgedTheWindow Cases L2,
    ForgetsAMicrosecondEarly Cases L2,
    IgnoresWeights Cases L3,
    ForgetsTheLastLimit Cases L3,
    CutsCostsTo32Bits Cases L3,
    FreesTheOldestFirst Cases L3,
    AppendsDenied Cases L4,
    PeekAppends Cases L4,
    RecordAppendsOnlyIfItFits Cases L4,
    DropsTheAttemptsThatAreDenied Cases L4,
    MergesTies Cases L5,
    NeverTrims Cases L6,
    TrimsOneTooLate Cases L6,
    TrimsByTheShortestWindow Cases L6,
    TrimsByTheFirstWindow Cases L6,
    RetainsForTheOwnPolicy Cases L6,
    RetainsForTheDefaultPolicy Cases L6,
    RetainsTheOwnWindow Cases L6,
    NeverCaps Cases L7,
    CapsOneTooMany Cases L7,
    CapsOneTooFew Cases L7,
    CapsByTheFirstMaximum Cases L7,
    CapsWithoutTheNewest Cases L7,
    RetainsTheOwnMax Cases L7,
    RetainsTheSmallerMax Cases L7,
    TrimsWhenItPeeks Cases L8,
    TrimsWhenItDenies Cases L8,
    TrimsWhenItRepeats Cases L8,
    TrimsWhenItSettles Cases L8,
    IgnoresIds Cases L9,
    IgnoresIdsAtTheStoresClock StoreClock L9,
    IgnoresTheIdZero Cases L9,
    ComparesHalfOfIds Cases L9,
    ComparesAllButOneBitOfIds Cases L9,
    RepeatsTheVerdictOfNow Cases L9,
    RepeatsTheUsageOfThen Cases L9,
    RepeatsForEver Cases L9,
    RepeatsOneTooLate Cases L9,
    RepeatsInTheOwnWindow Cases L9,
    RepeatsOnlyTheSameMode Cases L9,
    RepeatsOnlyTheSameCost Cases L9,
    LeavesIdsOfDenials Cases L10,
    HidesTheNewestEntry Cases L11,
    DescribesTheLogBefore Cases L11,
    ChecksThenAdds Contention L12,
    NamesEntriesByCount Cases L13,
    CountsEntriesIn8Bits LongLog L14,
    RefundsANeighbour Cases S1,
    RefundsByTimeAlone Cases S1,
    RefundsByIdAlone Cases S1,
    SettlesOnAnyKey Cases S1,
    SettlesUnderTheDefaultName Cases S1,
    SettlesNothingAtTheStoresClock StoreClock S1,
    IgnoresSettlements Cases S2,
    SettlesAnew Cases S2,
    SettlesAtTheEnd Cases S2,
    SettlesWithoutTheId Cases S2,
    SettlesWithoutTheVerdict Cases L9,
    SettlesToTheDifference Cases S2,
    KeepsRefundedIds Cases S3,
    RefundsToZero Cases S3,
    RefundsTwice Cases S4,
    RefundsWhatHasLeft Cases S4,
    RefundsAtTheEndOfTheWindow Cases S4,
    RefundsInTheSettlementsWindow Cases S4,
    SettlesWithoutCap Cases S5,
    SettlesWithThePolicysCap Cases S5,
    RefusesLargeSettlements Cases S6,
    CutsLargeSettlements Cases S6,
    SettlesWithTheUsageBefore Cases S7,
    SettlesWithTheUsageOfOneLimit Cases S7,
    SettlesAtTheReceiptsTime Cases T3,
    DoesNotApplyTheSameCost Cases S7,
    AlwaysApplies Cases S7,
    ResetLeavesAnEntry Cases S8,
    ResetKeepsIds Cases S8,
    ResetAlwaysFinds Cases S8,
    ResetNeverFinds Cases S8,
    ResetsAllKeys Cases S8,
    DeniesByError Cases E1,
    SettlesNothingByError Cases E1,
    ResetsNothingByError Cases E1,
    AppliesWhatItDoesNotDecideAtOnce Cases E2,
    DecidesAtOnceWithoutChecks Cases E2,
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

    pub(crate) fn forgetful(rule: ForgetRule) -> Self {
        let store = Arc::new(ForgetfulStore::new(rule));
        let sweeper = Arc::clone(&store);
        let sweep = move || -> BoxFuture<'static, ()> {
            sweeper.sweep();
            Box::pin(std::future::ready(()))
        };
        Self { handles: vec![store], sweep: Some(Arc::new(sweep)) }
    }

    pub(crate) fn two_handles(private: PrivateState) -> Self {
        let store = HandleStore::new(private);
        let other: SharedStore = Arc::new(store.another());
        Self { handles: vec![Arc::new(store), other], sweep: None }
    }
}
