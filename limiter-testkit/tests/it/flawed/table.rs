//! The flaws, each with the function that it is.

use std::sync::LazyLock;

use Change::{
    Before, Clock, Code, Entries, Facts, Finds, Inputs, IsDue, Joins, Limits, Log, Merged,
    ResetEntries, ResetFacts, Settled, SettledFacts, Settles, Together,
};
use Phase::{Cancel, Cases, Contention, Forgetting, Handles, LongLog, Several, StoreClock};
use Sentence::*;
use limiter_core::store::{LogKey, Mode, Op, Outcome, Usage};
use limiter_core::{Counting, EntryId, Limit, MAX_COST, Name, PerLimit, Policy, Window};
use limiter_testkit::ReferenceEntry as Entry;
use limiter_testkit::conformance::{Phase, Sentence};
use limiter_testkit::reference::merging::{Append, Rules};
use limiter_testkit::reference::{age, cap, log_facts, longest_exact};

use super::call::{FlawedCall, time};
use super::{Change, Flaw, joint};

const HOUR: u64 = 3_600_000_000;
const SECOND: u64 = 1_000_000;

/// Changes each limit, which is the `i`-th.
fn limits(policy: &Policy, change: impl Fn(usize, u64, u64) -> (u64, u64)) -> Policy {
    let limit = |(i, of): (usize, &Limit)| {
        let (max, window) = change(i, of.max(), of.window().as_micros());
        let limit =
            Limit::with_window(max, Window::from_micros(window).unwrap_or(Window::MAX)).unwrap();
        of.resolution()
            .and_then(|resolution| limit.with_resolution(resolution).ok())
            .unwrap_or(limit)
    };
    Policy::new(policy.limits().iter().enumerate().map(limit))
        .unwrap()
        .with_counting(policy.counting())
}

fn text(key: &[u8]) -> String {
    String::from_utf8_lossy(key).into_owned()
}

/// Returns a key that is read as a number.
fn number(key: &[u8]) -> Vec<u8> {
    text(key)
        .trim()
        .parse::<f64>()
        .map_or_else(|_| key.to_vec(), |number| number.to_string().into_bytes())
}

fn longest(policy: &Policy) -> u64 {
    policy.longest_window().as_micros()
}

fn shortest(policy: &Policy) -> u64 {
    policy
        .limits()
        .iter()
        .map(|limit| limit.window().as_micros())
        .min()
        .unwrap()
}

fn first_window(policy: &Policy) -> u64 {
    policy.limits()[0].window().as_micros()
}

fn receipt_window(call: &FlawedCall<'_>) -> u64 {
    call.op.receipt_window().map_or(0, Window::as_micros)
}

/// Returns the time that the facts state.
fn at(call: &FlawedCall<'_>) -> u64 {
    call.facts.log.now.as_micros()
}

/// Brings back the entries that a settlement dropped.
fn uncap(call: &mut FlawedCall<'_>) {
    call.undo_if(call.cost > 0);
    call.change(|entry, cost| entry.cost = cost);
}

/// Returns the cell of an entry, with cells that begin early or late: 1 is right.
fn cell(entry: &Entry, early: u64, r: u64) -> u64 {
    (entry.at.as_micros() + early).saturating_sub(1) / r
}

fn alike(append: &Append, v: &Entry, u: &Entry) -> bool {
    append.counts_alike(&append.limits, v, u)
}

/// Returns whether two entries merge, with other cells.
fn joins(append: &Append, v: &Entry, u: &Entry, cell: impl Fn(&Entry) -> u64) -> bool {
    cell(v) == cell(u) && alike(append, v, u)
}

fn due(append: &Append, u: &Entry) -> bool {
    (Rules::CONTRACT.is_due)(append, u)
}

fn join(v: &Entry, u: &Entry, name: EntryId) -> Entry {
    (Rules::CONTRACT.merged)(v, u, name)
}

fn default<'a>(op: &Op<'a>) -> &'a Policy {
    op.limiter_policy.unwrap_or(op.policy)
}

/// Returns the resolutions of limits, in microseconds.
fn resolutions(limits: &[Limit]) -> impl Iterator<Item = u64> {
    let each = limits.iter().filter_map(Limit::resolution);
    each.map(|resolution| resolution.as_micros() as u64)
}

/// Returns a flaw that changes something by a function.
fn flaw<F>(
    phase: Phase,
    sentence: Sentence,
    name: &'static str,
    kind: fn(F) -> Change,
    function: F,
) -> Flaw {
    (phase, sentence, name, kind(function))
}

/// Stores without a flaw.
pub(crate) static RIGHT: &[Flaw] = &[(Cases, L1, "None", Code), (Cancel, C1, "NoneInSteps", Code)];

pub(crate) static FLAWS: LazyLock<Vec<Flaw>> = LazyLock::new(|| {
    vec![
        flaw(Cases, T1, "TruncatesToMilliseconds", Before, |c| {
            c.shift(|at| at / 1_000 * 1_000);
        }),
        flaw(Cases, T1, "CutsAgesTo32Bits", Before, |c| {
            let now = c.now();
            c.log.iter_mut().for_each(|entry| {
                entry.at = time(now.as_micros() - u64::from(age(entry, now) as u32));
            });
        }),
        (StoreClock, T2, "ReadsTheClockTwice", Code),
        flaw(StoreClock, T4, "StopsItsClock", Clock, |at| {
            at / HOUR * HOUR
        }),
        flaw(StoreClock, T4, "TellsMilliseconds", Clock, |at| at / 1_000),
        flaw(StoreClock, T4, "IsAnHourAhead", Clock, |at| at + HOUR),
        flaw(Cases, T3, "LetsTimeRunBack", Before, |c| c.step_back(true)),
        flaw(Cases, T3, "LetsTimeRunBackOnceExpired", Before, |c| {
            c.step_back(c.log.len() == 1 && c.window() == 1);
        }),
        flaw(Cases, T3, "SettlesBackInTime", SettledFacts, |c| {
            c.facts.log.now = time(c.given());
        }),
        flaw(Cases, T3, "WaitsFromTheGivenTime", Facts, |c| {
            c.facts.log.clock = time(c.given());
        }),
        flaw(StoreClock, T3, "WaitsFromTheNewestEntry", Facts, |c| {
            c.facts.log.clock = c.facts.log.now;
        }),
        flaw(
            StoreClock,
            T3,
            "SettlesFromTheNewestEntry",
            SettledFacts,
            |c| c.facts.log.clock = c.facts.log.now,
        ),
        flaw(Cases, T3, "LetsPeeksHoldTime", Before, |c| {
            c.hold(if c.is(Mode::Peek) { c.given() } else { 0 });
        }),
        flaw(Cases, T3, "KeepsTheTimeOfRemovedEntries", Before, |c| {
            c.hold(c.before.last().map_or(0, |e| e.at.as_micros()));
        }),
        flaw(Cases, T3, "HasOneTimeForAllLogs", Before, |c| {
            c.shared.time = c.shared.time.max(c.given());
            c.hold(c.shared.time);
        }),
        flaw(Cases, T3, "CountsAtTheGivenTime", Facts, |c| {
            c.step_back(true);
            c.facts.log.usage = c.described(&c.log, time(c.given())).usage;
        }),
        flaw(Cases, T3, "RepeatsAtTheGivenTime", Finds, |c, e| {
            c.within(e, receipt_window(c) + c.clamped_by())
        }),
        flaw(Cases, T3, "KeepsIdsAtTheGivenTime", Finds, |c, e| {
            let clamped_by = e.at.as_micros().saturating_sub(c.appended_by(e.name).1);
            c.within(e, receipt_window(c).saturating_sub(clamped_by))
        }),
        flaw(Cases, T3, "TrimsAtTheGivenTime", Entries, |c| {
            c.drop(c.window() + c.clamped_by(), c.max());
        }),
        flaw(Cases, T3, "SettlesAtTheGivenTime", Settles, |c| {
            c.valid_for(c.valid() + c.clamped_by());
        }),
        flaw(Cases, T3, "SettlesAtTheReceiptsTime", SettledFacts, |c| {
            c.facts.log = c.described(&c.log, c.log.last().map_or(c.now(), |entry| entry.at));
        }),
        flaw(StoreClock, T3, "LetsTheStoresClockRunBack", Before, |c| {
            c.step_back(c.on_clock());
        }),
        (Cancel, T5, "BlocksItsThread", Code),
        flaw(Cases, L1, "MixesUpKeys", Log, |name, key| {
            (name.into(), text(key).into())
        }),
        flaw(Cases, L1, "CutsKeys", Log, |name, key| {
            (name.into(), key[..key.len().min(255)].into())
        }),
        flaw(Cases, L1, "IgnoresCaseOfKeys", Log, |name, key| {
            (name.into(), key.to_ascii_lowercase())
        }),
        flaw(Cases, L1, "TrimsKeys", Log, |name, key| {
            (name.into(), key.trim_ascii_end().into())
        }),
        flaw(Cases, L1, "EndsKeysAtNul", Log, |name, key| {
            (name.into(), key.split(|b| *b == 0).next().unwrap().into())
        }),
        flaw(Cases, L1, "ReadsKeysAsNumbers", Log, |name, key| {
            (name.into(), number(key))
        }),
        flaw(Cases, L1, "IgnoresNames", Log, |_, key| {
            ("all".into(), key.into())
        }),
        flaw(Cases, L1, "JoinsNamesAndKeys", Log, |name, key| {
            ("all".into(), [name.as_bytes(), b":", key].concat())
        }),
        flaw(Cases, L1, "SharesTheEmptyKey", Log, |name, key| {
            (if key.is_empty() { "all" } else { name }.into(), key.into())
        }),
        flaw(Cases, L1, "IgnoresCaseOfNames", Log, |name, key| {
            (name.to_lowercase(), key.into())
        }),
        flaw(Cases, L1, "SharesIdsAcrossKeys", Entries, |c| {
            c.remember_if(c.appended());
            c.shared.ghosts.append(&mut c.memory.ghosts);
        }),
        flaw(Cases, L2, "CountsWhatIsAgedTheWindow", Limits, |p| {
            limits(p, |_, max, window| (max, window + 1))
        }),
        flaw(Cases, L2, "ForgetsAMicrosecondEarly", Limits, |p| {
            limits(p, |_, max, window| (max, (window - 1).max(1)))
        }),
        flaw(Cases, L3, "IgnoresWeights", Before, |c| c.op.cost = 1),
        flaw(Cases, L3, "ForgetsTheLastLimit", Limits, |policy| {
            let last = policy.limits().len() - 1;
            limits(policy, |i, max, window| {
                (if i == last && i > 0 { MAX_COST } else { max }, window)
            })
        }),
        flaw(Cases, L3, "CutsCostsTo32Bits", Before, |c| {
            c.op.cost = u64::from(c.op.cost as u32);
        }),
        flaw(Cases, L3, "FreesTheOldestFirst", Facts, |c| {
            let policy = limits(c.op.policy, |_, _, window| (MAX_COST, window));
            let of_oldest = log_facts(&c.log, &policy, 1, [c.now(); 2]).usage;
            let mut oldest = of_oldest.iter();
            c.facts.log.usage = c.facts.log.usage.map(|usage| Usage {
                used: usage.used,
                ..*oldest.next().unwrap()
            });
        }),
        flaw(Cases, L4, "TrimsWhenItPeeks", Entries, |c| {
            c.drop_if(c.is(Mode::Peek));
        }),
        flaw(Cases, L4, "AppendsDenied", Limits, |p| {
            p.clone().with_counting(Counting::Attempts)
        }),
        flaw(Cases, L4, "PeekAppends", Entries, |c| {
            c.log.extend(c.is(Mode::Peek).then(|| c.fresh()));
        }),
        flaw(Cases, L4, "RecordAppendsOnlyIfItFits", Before, |c| {
            let fits = c.fits(c.op.policy, c.op.cost);
            c.op.mode = if c.is(Mode::Record) && !fits {
                Mode::Peek
            } else {
                c.op.mode
            };
        }),
        flaw(Cases, L4, "DropsTheAttemptsThatAreDenied", Limits, |p| {
            p.clone().with_counting(Counting::Admitted)
        }),
        flaw(Cases, L5, "MergesTies", Entries, |c| {
            let new = c.log.last().copied().filter(|_| c.appended());
            c.log.retain(|e| {
                new.is_none_or(|new| {
                    e.name == new.name || (e.at, e.admitted) != (new.at, new.admitted)
                })
            });
        }),
        flaw(Cases, L7, "NeverTrims", Entries, |c| {
            c.drop(u64::MAX, u64::MAX);
        }),
        flaw(Cases, L7, "NeverCaps", Entries, |c| {
            c.drop(c.window(), u64::MAX);
        }),
        flaw(Cases, L7, "CapsOneTooMany", Entries, |c| {
            c.drop(c.window(), c.max() - 1);
        }),
        flaw(Cases, L7, "CapsOneTooFew", Entries, |c| {
            c.drop(c.window(), c.max() + 1);
        }),
        flaw(Cases, L7, "CapsByTheFirstMaximum", Entries, |c| {
            c.drop(c.window(), c.op.policy.limits()[0].max());
        }),
        flaw(Cases, L7, "CapsWithoutTheNewest", Entries, |c| {
            c.drop(c.window(), c.max() + c.op.cost);
        }),
        flaw(Cases, L7, "RetainsTheOwnMax", Entries, |c| {
            c.drop(c.window(), c.op.policy.largest_max());
        }),
        flaw(Cases, L7, "RetainsTheSmallerMax", Entries, |c| {
            c.drop(
                c.window(),
                c.op.policy.largest_max().min(c.default().largest_max()),
            );
        }),
        flaw(Cases, L6, "TrimsOneTooLate", Entries, |c| {
            c.drop(c.window() + 1, c.max());
        }),
        flaw(Cases, L6, "TrimsByTheShortestWindow", Entries, |c| {
            c.drop(shortest(c.op.policy), c.max());
        }),
        flaw(Cases, L6, "TrimsByTheFirstWindow", Entries, |c| {
            c.drop(first_window(c.op.policy), c.max());
        }),
        flaw(Cases, L6, "RetainsForTheOwnPolicy", Entries, |c| {
            c.drop(longest(c.op.policy), c.op.policy.largest_max());
        }),
        flaw(Cases, L6, "RetainsForTheDefaultPolicy", Entries, |c| {
            c.drop(longest(c.default()), c.default().largest_max());
        }),
        flaw(Cases, L6, "RetainsTheOwnWindow", Entries, |c| {
            c.drop(longest(c.op.policy), c.max());
        }),
        flaw(Cases, L6, "TrimsOnlyWhatItAdmits", Entries, |c| {
            c.drop(if c.is_denied() { u64::MAX } else { c.window() }, c.max());
        }),
        flaw(Cases, L8, "TrimsWhenItDenies", Entries, |c| {
            c.drop_if(c.is_denied());
        }),
        flaw(Cases, L8, "TrimsWhenItRepeats", Entries, |c| {
            c.drop_if(c.repeated());
        }),
        flaw(Cases, L8, "TrimsWhenItSettles", Settled, |c| {
            c.drop_if(true);
        }),
        flaw(Cases, L9, "IgnoresIds", Before, |c| c.op.id = None),
        flaw(Cases, L9, "IgnoresTheIdZero", Before, |c| {
            c.op.id = c.op.id.filter(|id| id.as_u128() != 0);
        }),
        flaw(StoreClock, L9, "IgnoresIdsAtTheStoresClock", Before, |c| {
            c.op.id = c.op.id.filter(|_| !c.on_clock());
        }),
        flaw(Cases, L9, "ComparesHalfOfIds", Before, |c| {
            c.change_id(|id| u128::from(id as u64));
        }),
        flaw(Cases, L9, "ComparesAllButOneBitOfIds", Before, |c| {
            c.change_id(|id| id << 1);
        }),
        flaw(Cases, L9, "RepeatsTheVerdictOfNow", Facts, |c| {
            c.facts.admitted = if c.repeated() {
                c.fits(c.op.policy, c.op.cost)
            } else {
                c.facts.admitted
            };
        }),
        flaw(Cases, L9, "RepeatsTheUsageOfThen", Facts, |c| {
            if let Outcome::Repeated(entry) = c.facts.outcome {
                let then = c.appended_by(entry.id).2;
                c.facts.log.usage = c.facts.log.usage.map(|usage| Usage {
                    used: then,
                    ..usage
                });
            }
        }),
        flaw(Cases, L9, "RepeatsForEver", Finds, |c, e| {
            c.within(e, u64::MAX)
        }),
        flaw(Cases, L9, "RepeatsOneTooLate", Finds, |c, e| {
            c.within(e, c.window() + 1)
        }),
        flaw(Cases, L9, "RepeatsInTheOwnWindow", Finds, |c, e| {
            c.within(e, longest(c.op.policy))
        }),
        flaw(Cases, L9, "RepeatsOnlyTheSameMode", Finds, |c, e| {
            c.repeats(e) && c.appended_by(e.name).0 == c.op.mode
        }),
        flaw(Cases, L9, "RepeatsOnlyTheSameCost", Finds, |c, e| {
            c.repeats(e) && e.cost == c.op.cost
        }),
        flaw(Cases, L9, "SettlesWithoutTheVerdict", Settled, |c| {
            c.change(|e, _| (e.admitted, e.refundable) = (false, false));
        }),
        flaw(Cases, L9, "LeavesTheIdToTheOlderEntry", Entries, |c| {
            let had_it = |e: &Entry| {
                c.before
                    .iter()
                    .any(|old| old.name == e.name && old.id == c.op.id)
            };
            c.log
                .iter_mut()
                .filter(|e| had_it(e))
                .for_each(|e| e.id = c.op.id);
        }),
        flaw(Cases, L10, "LeavesIdsOfDenials", Facts, |c| {
            c.remember_if(c.is_denied() && !c.appended());
        }),
        flaw(Cases, L11, "HidesTheNewestEntry", Facts, |c| {
            let counts = c.facts.log.usage.iter().any(|usage| usage.used > 0);
            c.facts.log.newest = c.facts.log.newest.filter(|_| counts);
        }),
        flaw(Cases, L11, "HidesItsEntriesFromAStatus", Facts, |c| {
            let shown = if c.op.is_status {
                Vec::new()
            } else {
                c.log.clone()
            };
            c.facts.log = c.described(&shown, c.now());
        }),
        flaw(Cases, L11, "SharesTimesOfEqualWindows", Facts, |c| {
            let limits = c.op.policy.limits();
            let first = |limit: &Limit| {
                limits
                    .iter()
                    .position(|other| other.window() == limit.window())
                    .unwrap()
            };
            let usage: Vec<Usage> = limits
                .iter()
                .map(|limit| c.facts.log.usage[first(limit)])
                .collect();
            c.facts.log.usage = PerLimit::from_slice(&usage).unwrap();
        }),
        flaw(Cases, L11, "DescribesTheLogBefore", Facts, |c| {
            c.facts.log = c.described(&c.before, c.now());
        }),
        (Contention, L12, "ChecksThenAdds", Code),
        (Contention, L12, "FindsThenSettles", Code),
        (Contention, L12, "SettlesInTwoSteps", Code),
        (Contention, L12, "ResetsInTwoSteps", Code),
        (Handles, L12, "HidesItsLock", Code),
        (Handles, L12, "HidesItsLogs", Code),
        (Handles, L12, "HidesItsDenials", Code),
        flaw(Handles, L12, "HidesItsIds", Before, |c| {
            let number = c.number;
            c.change_id(|id| id ^ number);
        }),
        (Handles, L12, "OpeningClears", Code),
        flaw(Cases, L13, "NamesEntriesByTheirIds", Entries, |c| {
            c.rename(c.op.id.map(EntryId::as_u128));
        }),
        flaw(LongLog, L14, "CountsEntriesIn8Bits", Entries, |c| {
            c.log = c.log.split_off(c.log.len() >> 8);
        }),
        (LongLog, L14, "CountsIn16Bits", Code),
        flaw(LongLog, L14, "ReadsAPage", Facts, |c| {
            c.facts.log = c.described(&c.log[..c.log.len().min(1_000)], c.now());
        }),
        flaw(Cases, L15, "GivesReceiptsForAll", Facts, |c| {
            c.facts.refundable = true;
        }),
        flaw(Cases, L15, "GivesReceiptsForRecords", Facts, |c| {
            c.facts.refundable |= c.is(Mode::Record);
        }),
        flaw(Cases, L15, "GivesReceiptsForDenials", Facts, |c| {
            c.facts.refundable |= c.is_denied();
        }),
        flaw(Cases, L15, "GivesReceiptsByTheOwnPolicy", Facts, |c| {
            c.facts.refundable = c.facts.admitted;
        }),
        flaw(Cases, L15, "GivesReceiptsWhenItRepeats", Facts, |c| {
            c.facts.refundable |= c.repeated() && c.facts.admitted;
        }),
        flaw(Cases, L15, "GivesReceiptsForWhatFitsThen", Facts, |c| {
            c.facts.refundable |= c.appended() && c.facts.admitted && c.fits(c.default(), 0);
        }),
        flaw(Cases, M1, "MergesNothing", Inputs, |_, a| a.r = 0),
        flaw(Cases, M1, "MergesBeforeItDrops", Entries, |c| {
            let (new, merges) = (c.fresh(), c.appended() && c.op.merges());
            c.log = if merges {
                c.before.iter().copied().chain([new]).collect()
            } else {
                c.log.clone()
            };
            c.merge_if(merges);
            c.drop_if(merges);
        }),
        flaw(Cases, M1, "MergesWhenItRepeats", Entries, |c| {
            c.merge_if(c.repeated());
        }),
        flaw(Cases, M1, "MergesWhenItPeeks", Entries, |c| {
            c.merge_if(c.is(Mode::Peek));
        }),
        flaw(Cases, M1, "MergesNoAttempts", Inputs, |op, a| {
            a.r *= u64::from(op.policy.counting() == Counting::Admitted);
        }),
        flaw(Cases, M1, "MergesOnlyWhatItAdmitted", Joins, |a, v, u| {
            v.admitted && u.admitted && joins(a, v, u, |e| cell(e, 1, a.r))
        }),
        flaw(Cases, M1, "TakesCellsFromTheEntry", Joins, |a, v, u| {
            u.at.micros_since(v.at) < a.r && alike(a, v, u)
        }),
        flaw(Cases, M1, "TakesCellsFromNow", Joins, |a, v, u| {
            joins(a, v, u, |e| age(e, a.now) / a.r)
        }),
        flaw(Cases, M1, "EndsCellsAMicrosecondEarly", Joins, |a, v, u| {
            joins(a, v, u, |e| cell(e, 2, a.r))
        }),
        flaw(Cases, M1, "EndsCellsAMicrosecondLate", Joins, |a, v, u| {
            joins(a, v, u, |e| cell(e, 0, a.r))
        }),
        flaw(Cases, M1, "MergesAcrossEnds", Joins, |a, v, u| {
            cell(v, 1, a.r) == cell(u, 1, a.r)
        }),
        flaw(
            Cases,
            M1,
            "MergesAcrossEndsOfTheDefaultPolicy",
            Inputs,
            |op, a| a.limits = op.policy.limits().to_vec(),
        ),
        flaw(Cases, M1, "TakesTheLargestResolution", Inputs, |_, a| {
            a.r = resolutions(&a.limits).max().unwrap_or(0);
        }),
        flaw(
            Cases,
            M1,
            "TakesTheResolutionOfTheOwnPolicy",
            Inputs,
            |op, a| a.r = resolutions(op.policy.limits()).min().unwrap_or(0),
        ),
        flaw(
            Cases,
            M1,
            "TakesTheResolutionOfTheDefaultPolicy",
            Inputs,
            |op, a| a.r = resolutions(default(op).limits()).min().unwrap_or(0),
        ),
        flaw(Cases, M2, "MergesWheneverItCan", IsDue, |_, _| true),
        flaw(Cases, M2, "MergesOnlyTheNewEntry", IsDue, |a, u| {
            u.name == a.new
        }),
        flaw(Cases, M2, "MergesTheNewEntryToo", IsDue, |a, u| {
            due(a, u) || u.name == a.new
        }),
        flaw(
            Cases,
            M2,
            "MergesWhatAnyLimitStopsCounting",
            IsDue,
            |a, u| {
                let mut windows = a.limits.iter().map(|limit| limit.window().as_micros());
                due(a, u) || a.e > 0 && windows.any(|w| age(u, a.n) < w && age(u, a.now) >= w)
            },
        ),
        flaw(Cases, M2, "MergesAllThatIsOldEnough", IsDue, |a, u| {
            due(a, u) || a.e > 0 && age(u, a.now) >= a.e
        }),
        flaw(Cases, M2, "CrossesAMicrosecondEarly", Inputs, |_, a| {
            a.e = a.e.saturating_sub(1).max(a.e.min(1));
        }),
        flaw(Cases, M2, "CrossesAMicrosecondLate", Inputs, |_, a| {
            a.e += a.e.min(1);
        }),
        flaw(Cases, M2, "CrossedAtTheNewestEntry", IsDue, |a, u| {
            due(a, u) || a.e > 0 && age(u, a.n) == a.e
        }),
        flaw(Cases, M2, "TakesTheShortestExactWindow", Inputs, |_, a| {
            let exact = a.limits.iter().filter(|limit| limit.resolution().is_none());
            a.e = exact
                .map(|limit| limit.window().as_micros())
                .min()
                .unwrap_or(0);
        }),
        flaw(Cases, M2, "TakesTheOwnExactWindow", Inputs, |op, a| {
            a.e = longest_exact(op.policy.limits());
        }),
        flaw(Cases, M2, "TakesTheDefaultExactWindow", Inputs, |op, a| {
            a.e = longest_exact(default(op).limits());
        }),
        flaw(Cases, M3, "TakesTheOlderTime", Merged, |v, u, name| Entry {
            at: v.at,
            ..join(v, u, name)
        }),
        flaw(Cases, M3, "TakesTheNewerCost", Merged, |v, u, name| Entry {
            cost: u.cost,
            ..join(v, u, name)
        }),
        flaw(Cases, M3, "WrapsMergedCosts", Merged, |v, u, name| Entry {
            cost: (u.cost + v.cost - 1) % MAX_COST + 1,
            ..join(v, u, name)
        }),
        flaw(
            Cases,
            M3,
            "LosesCostsBeyondTheLargest",
            Merged,
            |v, u, name| {
                if u.cost + v.cost > MAX_COST {
                    Entry { id: None, ..*u }
                } else {
                    join(v, u, name)
                }
            },
        ),
        flaw(
            Cases,
            M3,
            "KeepsTheIdsOfMergedEntries",
            Merged,
            |v, u, name| Entry {
                id: u.id.or(v.id),
                ..join(v, u, name)
            },
        ),
        flaw(
            Cases,
            M3,
            "KeepsTheReceiptsOfMergedEntries",
            Merged,
            |v, u, _| join(v, u, u.name),
        ),
        flaw(Cases, M4, "RepeatsForTheWholeWindow", Finds, |c, e| {
            c.within(e, c.window())
        }),
        flaw(Cases, M4, "RepeatsInTheOwnExactWindow", Finds, |c, e| {
            c.within(e, longest_exact(c.op.policy.limits()))
        }),
        flaw(Cases, M4, "RefundsForTheLongerWindow", Settles, |c| {
            c.valid_for(c.valid().max(longest(c.op.policy)));
        }),
        flaw(Several, A1, "SaysLogsGoTogetherAndCannot", Together, |_| {
            None
        }),
        flaw(
            Several,
            A1,
            "ChangesALogAndCannot",
            Together,
            joint::first_alone,
        ),
        flaw(
            Several,
            A2,
            "ChangesOneLogAfterTheOther",
            Together,
            joint::one_by_one_if_admitted,
        ),
        flaw(
            Several,
            A4,
            "LetsAdvisoryOperationsDeny",
            Together,
            |joint| joint.change(|op| op.is_advisory = false),
        ),
        flaw(
            Several,
            A5,
            "ChargesWhatFitsIfAnotherDenies",
            Together,
            joint::one_by_one,
        ),
        flaw(Several, A5, "KeepsNoCharge", Together, |joint| {
            joint.change(|op| op.keeps_charge = false)
        }),
        flaw(
            Several,
            A5,
            "DropsTheAttemptThatDenies",
            Together,
            joint::nothing_if_denied,
        ),
        flaw(
            Several,
            A6,
            "LooksAtRepetitions",
            Together,
            joint::repeats_nothing_if_denied,
        ),
        flaw(Cases, S1, "NamesEntriesByCount", Entries, |c| {
            c.rename(
                c.op.id
                    .map(EntryId::as_u128)
                    .or(Some(c.before.len() as u128)),
            );
        }),
        flaw(Cases, S1, "RefundsANeighbour", Settles, |c| {
            c.find(c.named().and(c.before.first().copied()));
        }),
        flaw(Cases, S1, "RefundsByTimeAlone", Settles, |c| {
            c.find(c.before.iter().copied().find(|e| e.at == c.receipt.at()));
        }),
        flaw(Cases, S1, "RefundsByIdAlone", Entries, |c| {
            c.rename(c.op.id.map(EntryId::as_u128));
        }),
        (Cases, S1, "SettlesOnAnyKey", Code),
        flaw(Cases, S1, "SettlesUnderTheDefaultName", Settles, |c| {
            let log = LogKey::new(Name::new("conformance"), c.op.log.key);
            c.op.log = if c.store.entries(log).is_empty() {
                c.op.log
            } else {
                log
            };
            c.before = c.store.entries(c.op.log);
            c.log = c.before.clone();
        }),
        flaw(
            StoreClock,
            S1,
            "SettlesNothingAtTheStoresClock",
            Settles,
            |c| c.find_nothing_if(c.on_clock()),
        ),
        flaw(Cases, S2, "IgnoresSettlements", Settled, |c| {
            c.undo_if(c.cost > 0);
        }),
        flaw(Cases, S2, "SettlesAnew", Settled, |c| c.put_behind(c.now())),
        flaw(Cases, S2, "SettlesAtTheEnd", Settled, |c| {
            c.put_behind(c.receipt.at());
        }),
        flaw(Cases, S2, "SettlesWithoutTheId", Settled, |c| {
            c.change(|e, _| e.id = None);
        }),
        flaw(Cases, S2, "SettlesToTheDifference", Settles, |c| {
            c.cost += c.cost.min(1) * c.named().map_or(0, |e| e.cost - 1);
        }),
        flaw(Cases, S3, "KeepsRefundedIds", Settled, |c| {
            c.memory
                .ghosts
                .extend(c.named().filter(|_| c.facts.admitted && c.cost == 0));
        }),
        flaw(Cases, S3, "RefundsToZero", Settled, |c| {
            c.undo_if(c.cost == 0);
            c.change(|e, cost| e.cost = cost);
        }),
        flaw(Cases, S4, "RefundsTwice", Settles, |c| {
            c.find(c.named().or(c.before.last().copied()));
        }),
        flaw(Cases, S4, "RefundsWhatHasLeft", Settles, |c| {
            c.valid_for(u64::MAX);
        }),
        flaw(Cases, S4, "RefundsAtTheEndOfTheWindow", Settles, |c| {
            c.valid_for(c.valid() + 1);
        }),
        flaw(Cases, S4, "RefundsInTheSettlementsWindow", Settles, |c| {
            c.valid_for(longest(c.op.policy));
        }),
        flaw(Cases, S4, "AlwaysApplies", SettledFacts, |c| {
            c.facts.admitted = true;
        }),
        flaw(Cases, S5, "SettlesWithoutCap", Settled, uncap),
        flaw(Cases, S5, "SettlesWithThePolicysCap", Settled, |c| {
            cap(
                &mut c.log,
                if c.facts.admitted {
                    c.op.policy.largest_max()
                } else {
                    u64::MAX
                },
            );
        }),
        flaw(Cases, S6, "RefusesLargeSettlements", SettledFacts, |c| {
            c.fails = c.cost > c.op.policy.largest_max();
        }),
        flaw(Cases, S6, "CutsLargeSettlements", Settles, |c| {
            c.cost = c.cost.min(c.op.policy.largest_max());
        }),
        flaw(Cases, S7, "SettlesWithTheUsageBefore", SettledFacts, |c| {
            c.facts.log = c.described(&c.before, c.now());
        }),
        flaw(
            Cases,
            S7,
            "SettlesWithTheUsageOfOneLimit",
            SettledFacts,
            |c| {
                c.facts.log.usage = c.facts.log.usage.map(|_| c.facts.log.usage[0]);
            },
        ),
        flaw(Cases, S7, "DoesNotApplyTheSameCost", Settles, |c| {
            c.find_nothing_if(c.named().is_some_and(|e| e.cost == c.cost));
        }),
        flaw(Cases, S8, "ResetLeavesAnEntry", ResetEntries, |c| {
            c.log = c.before[..c.before.len() / 2].to_vec();
        }),
        flaw(Cases, S8, "ResetKeepsIds", ResetFacts, |c| {
            c.memory.ghosts = c.before.clone();
        }),
        flaw(Cases, S8, "ResetAlwaysFinds", ResetFacts, |c| {
            c.facts.admitted = true;
        }),
        flaw(Cases, S8, "ResetNeverFinds", ResetFacts, |c| {
            c.facts.admitted = false;
        }),
        (Cases, S8, "ResetsAllKeys", Code),
        flaw(Forgetting, F1, "ByTheFirstWindow", Facts, |c| {
            c.expire(true, at(c) + first_window(c.op.policy));
        }),
        flaw(Forgetting, F1, "ByTheOwnWindow", Facts, |c| {
            c.expire(true, at(c) + longest(c.op.policy));
        }),
        flaw(Forgetting, F1, "ByTheDefaultWindow", Facts, |c| {
            c.expire(true, at(c) + longest(c.default()));
        }),
        flaw(Forgetting, F1, "AfterWholeSeconds", Facts, |c| {
            c.expire(
                true,
                at(c) + (c.window() / SECOND * SECOND).max(c.window() % SECOND),
            );
        }),
        flaw(Forgetting, F1, "AfterWholeMillis", Facts, |c| {
            c.expire(true, (at(c) + c.window()) / 1_000 * 1_000);
        }),
        flaw(Forgetting, F1, "AfterTheFirstAppend", Facts, |c| {
            c.expire(
                true,
                c.log.first().map_or(0, |e| e.at.as_micros()) + c.window(),
            );
        }),
        flaw(Forgetting, F1, "AfterTheLastOperation", Facts, |c| {
            c.expire_if(true, c.op.policy);
        }),
        flaw(Forgetting, F1, "AfterAPeek", Facts, |c| {
            c.expire_if(c.is(Mode::Peek), c.op.policy);
        }),
        flaw(Forgetting, F1, "AfterASettlement", SettledFacts, |c| {
            c.expire_if(true, c.op.policy);
        }),
        flaw(Forgetting, F1, "WindowAfterTheClock", Facts, |c| {
            c.expire(true, c.clock + c.window());
        }),
        flaw(
            Forgetting,
            F1,
            "RenewsNothingUnderAResolution",
            Facts,
            |c| {
                let first = c
                    .before
                    .first()
                    .map(|entry| entry.at.as_micros())
                    .filter(|_| c.op.merges());
                c.expire(
                    true,
                    if first.is_some() {
                        c.memory.time
                    } else {
                        c.memory.until
                    },
                );
                c.memory.time = c.memory.until;
            },
        ),
        flaw(Forgetting, F1, "ForgetsEarlyWithATimer", Facts, |c| {
            c.expire(true, (at(c) + c.window()) / 1_000 * 1_000);
        }),
        (Forgetting, F1, "ForgetsWhenThereAreMany", Code),
        (Forgetting, F1, "SweepsInTwoSteps", Code),
        (Forgetting, F1, "SweepsInTwoPolls", Code),
        (Forgetting, F1, "SweepLeavesIds", Code),
        (Forgetting, L1, "ExpiresAllNames", Code),
        (Forgetting, L1, "SweepsAllNames", Code),
        flaw(Forgetting, F2, "GivenTimesAsItsOwn", Facts, |c| {
            c.expire(false, at(c) + c.window());
        }),
        flaw(Forgetting, F2, "GivenTimesAfterTheWindow", Facts, |c| {
            c.expire(false, c.clock + c.window());
        }),
        (Forgetting, F2, "SweepsGivenTimes", Code),
        flaw(Cases, E1, "DeniesByError", Facts, |c| {
            c.fails = !c.facts.admitted;
        }),
        flaw(Cases, E1, "SettlesNothingByError", SettledFacts, |c| {
            c.fails = !c.facts.admitted;
        }),
        flaw(Cases, E1, "ResetsNothingByError", ResetFacts, |c| {
            c.fails = !c.facts.admitted;
        }),
        (Cases, E2, "AppliesWhatItDoesNotDecideAtOnce", Code),
        (Cases, E2, "DecidesAtOnceWithoutChecks", Code),
        flaw(Cancel, C1, "CapsAfterAPause", Settled, uncap),
        (Cancel, C1, "LeavesHalfASettlement", Code),
        (Cancel, C1, "LeavesHalfAReset", Code),
        (Cancel, C1, "LeavesARefundWithoutItsId", Code),
        (Cancel, C1, "LeavesAnEntryWithoutItsId", Code),
        (Cancel, C1, "LeavesAnAppendWithoutItsExpiry", Code),
        (Cancel, C2, "LeavesItsLock", Code),
        (Cancel, T5, "BlocksWhenContended", Code),
    ]
});
