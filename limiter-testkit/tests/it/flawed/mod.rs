//! Stores with exactly one flaw each.

mod list_store;
mod log_store;
mod merging;
mod rules;
mod settle;

use std::sync::Arc;
use std::task::Poll;

use limiter_core::{BoxFuture, SharedStore};
use limiter_testkit::conformance::{Phase, Sentence};

pub(crate) use list_store::ListStore;
pub(crate) use log_store::LogStore;

macro_rules! flaws {
    ($(#[$doc:meta])* $name:ident { $($right:ident,)+ } $($phase:ident $sentence:ident: $($flaw:ident)+;)+) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum $name {
            $($right,)+
            $($($flaw,)+)+
        }

        impl $name {
            /// The stores without a flaw.
            pub(crate) const RIGHT: &[Self] = &[$(Self::$right),+];
            /// Each flaw, with a phase that always finds it and a sentence that the failure cites.
            pub(crate) const ALL: &[(Self, Phase, Sentence)] = &[$($((Self::$flaw, Phase::$phase, Sentence::$sentence),)+)+];
        }
    };
}

flaws! {
    /// Flaws of a store that keeps a list of entries per log.
    Flaw { None, }
    Cases T1: TruncatesToMilliseconds CutsAgesTo32Bits;
    StoreClock T2: ReadsTheClockTwice;
    StoreClock T4: StopsItsClock TellsMilliseconds IsAnHourAhead;
    Cases T3: LetsTimeRunBack LetsTimeRunBackOnceExpired SettlesBackInTime LetsPeeksHoldTime
        KeepsTheTimeOfRemovedEntries HasOneTimeForAllLogs CountsAtTheGivenTime RepeatsAtTheGivenTime
        KeepsIdsAtTheGivenTime TrimsAtTheGivenTime SettlesAtTheGivenTime SettlesAtTheReceiptsTime;
    StoreClock T3: LetsTheStoresClockRunBack;
    Cancel T5: BlocksItsThread;
    Cases L1: MixesUpKeys CutsKeys IgnoresCaseOfKeys TrimsKeys EndsKeysAtNul ReadsKeysAsNumbers IgnoresNames
        JoinsNamesAndKeys IgnoresCaseOfNames SharesIdsAcrossKeys;
    Cases L2: CountsWhatIsAgedTheWindow ForgetsAMicrosecondEarly;
    Cases L3: IgnoresWeights ForgetsTheLastLimit CutsCostsTo32Bits FreesTheOldestFirst;
    Cases L4: TrimsWhenItPeeks AppendsDenied PeekAppends RecordAppendsOnlyIfItFits DropsTheAttemptsThatAreDenied;
    Cases L5: MergesTies;
    Cases L7: NeverTrims NeverCaps CapsOneTooMany CapsOneTooFew CapsByTheFirstMaximum CapsWithoutTheNewest
        RetainsTheOwnMax RetainsTheSmallerMax;
    Cases L6: TrimsOneTooLate TrimsByTheShortestWindow TrimsByTheFirstWindow RetainsForTheOwnPolicy
        RetainsForTheDefaultPolicy RetainsTheOwnWindow TrimsOnlyWhatItAdmits;
    Cases L8: TrimsWhenItDenies TrimsWhenItRepeats TrimsWhenItSettles;
    Cases L9: IgnoresIds IgnoresTheIdZero ComparesHalfOfIds ComparesAllButOneBitOfIds RepeatsTheVerdictOfNow
        RepeatsTheUsageOfThen RepeatsForEver RepeatsOneTooLate RepeatsInTheOwnWindow RepeatsOnlyTheSameMode
        RepeatsOnlyTheSameCost SettlesWithoutTheVerdict;
    StoreClock L9: IgnoresIdsAtTheStoresClock;
    Cases L10: LeavesIdsOfDenials;
    Cases L11: HidesTheNewestEntry DescribesTheLogBefore;
    Contention L12: ChecksThenAdds FindsThenSettles;
    Cases L13: NamesEntriesByTheirIds;
    LongLog L14: CountsEntriesIn8Bits;
    Cases L9: LeavesTheIdToTheOlderEntry;
    Cases L15: GivesReceiptsForAll GivesReceiptsForRecords GivesReceiptsForDenials GivesReceiptsByTheOwnPolicy
        GivesReceiptsWhenItRepeats GivesReceiptsForWhatFitsThen;
    Cases M1: MarksNothing MarksNoPermits MarksNoIds MarksUnderExactLimits MarksByTheOwnPolicy MarksByTheDefaultPolicy
        CopiesNoMarks MarksOneCell MarksThreeCells CopiesMarksToTheNextCell ClearsNoMarks SkipsACellWithoutEntries
        ClearsMarksUnderExactLimits TakesMarksOfDroppedEntries TakesTheOlderMarks;
    Cases M2: MergesBeforeItDrops MergesWhenItPeeks MergesNoAttempts MergesOnlyWhatItAdmitted;
    Cases M3: MergesWheneverItCan MergesOnlyTheNewEntry MissesTheEndsOfWindows MissesTheEndsOfTheDefaultPolicy
        MissesTenMinutes;
    Cases M4: KeepsMarkedLogsApart KeepsApartAMicrosecondTooLong KeepsApartAMicrosecondTooShort;
    Cases M4: TakesCellsFromTheEntry TakesCellsFromNow TakesTheLargestResolution NeverTakesALongerResolution
        MergesWhatAnExactLimitCounts MergesByTheOwnPolicy TakesTheResolutionOfTheOwnPolicy
        TakesTheResolutionOfTheDefaultPolicy
        EndsCellsAMicrosecondEarly EndsCellsAMicrosecondLate;
    Cases M5: MergesAcrossEnds MergesAcrossEndsOfTheDefaultPolicy;
    Cases M6: TakesTheOlderTime TakesTheNewerCost WrapsMergedCosts LosesCostsBeyondTheLargest KeepsTheIdsOfMergedEntries
        KeepsTheReceiptsOfMergedEntries;
    Cases M7: RepeatsForTheWholeWindow RepeatsForTenMinutes RefundsForTheLongerWindow GivesReceiptsForMergedEntries;
    Cases S1: NamesEntriesByCount RefundsANeighbour RefundsByTimeAlone RefundsByIdAlone SettlesOnAnyKey
        SettlesUnderTheDefaultName;
    StoreClock S1: SettlesNothingAtTheStoresClock;
    Cases S2: IgnoresSettlements SettlesAnew SettlesAtTheEnd SettlesWithoutTheId SettlesToTheDifference;
    Cases S3: KeepsRefundedIds RefundsToZero;
    Cases S4: RefundsTwice RefundsWhatHasLeft RefundsAtTheEndOfTheWindow RefundsInTheSettlementsWindow AlwaysApplies;
    Cases S5: SettlesWithoutCap SettlesWithThePolicysCap;
    Cancel C1: CapsAfterAPause;
    Cases S6: RefusesLargeSettlements CutsLargeSettlements;
    Cases S7: SettlesWithTheUsageBefore SettlesWithTheUsageOfOneLimit DoesNotApplyTheSameCost;
    Cases S8: ResetLeavesAnEntry ResetKeepsIds ResetAlwaysFinds ResetNeverFinds ResetsAllKeys;
    Cases E1: DeniesByError SettlesNothingByError ResetsNothingByError;
    Cases E2: AppliesWhatItDoesNotDecideAtOnce DecidesAtOnceWithoutChecks;
}

flaws! {
    /// Flaws of a store over [`limiter_core::store::Log`].
    LogFlaw { None, NoneInSteps, }
    LongLog L14: CountsIn16Bits;
    Handles L12: HidesItsLock HidesItsLogs HidesItsDenials HidesItsIds OpeningClears;
    Forgetting F1: ByTheFirstWindow ByTheOwnWindow ByTheDefaultWindow AfterWholeSeconds AfterWholeMillis
        AfterTheFirstAppend AfterTheLastOperation AfterAPeek AfterASettlement WindowAfterTheClock
        ForgetsWhenThereAreMany SweepsInTwoSteps SweepsInTwoPolls SweepLeavesIds;
    Forgetting L1: ExpiresAllNames SweepsAllNames;
    Forgetting F2: GivenTimesAsItsOwn GivenTimesAfterTheWindow SweepsGivenTimes;
    Cancel C1: LeavesHalfASettlement LeavesHalfAReset LeavesAnEntryWithoutItsId LeavesAnAppendWithoutItsExpiry;
    Cancel C2: LeavesItsLock;
    Cancel T5: BlocksWhenContended;
}

/// Is pending once.
async fn wait() {
    let mut waited = false;
    std::future::poll_fn(|context| {
        context.waker().wake_by_ref();
        if std::mem::replace(&mut waited, true) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

/// A store under test: its handles, one that is opened late, and its sweep.
pub(crate) struct StoreUnderTest {
    pub(crate) handles: Vec<SharedStore>,
    pub(crate) late: Option<Box<dyn FnOnce() -> SharedStore + Send>>,
    pub(crate) sweep: Option<Arc<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>>,
}

impl StoreUnderTest {
    pub(crate) fn list(flaw: Flaw) -> Self {
        Self { handles: vec![Arc::new(ListStore::new(flaw))], late: None, sweep: None }
    }

    pub(crate) fn log(flaw: LogFlaw) -> Self {
        let store = Arc::new(LogStore::new(flaw));
        let (sweeper, opener) = (Arc::clone(&store), Arc::clone(&store));
        let sweep = move || -> BoxFuture<'static, ()> {
            let sweeper = Arc::clone(&sweeper);
            Box::pin(async move { sweeper.sweep().await })
        };
        let another: SharedStore = Arc::new(store.another(1));
        let late = move || -> SharedStore { Arc::new(opener.another(2)) };
        Self { handles: vec![store, another], late: Some(Box::new(late)), sweep: Some(Arc::new(sweep)) }
    }
}
