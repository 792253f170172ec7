//! The flaws, one in each line.

use Change::{
    Before, Clock, Code, CountedAlike, Entries, Facts, Finds, InOneCell, Inherits, IsDue, Limits, Log, Marks, Merged,
    Merging, MergingLimits, ResetEntries, ResetFacts, Resolution, Settled, SettledFacts, Settles, Together,
};
use Phase::{Cancel, Cases, Contention, Forgetting, Handles, LongLog, Several, StoreClock};
use Sentence::*;
use limiter_core::store::{LogKey, Mode, Op, Outcome, Usage};
use limiter_core::{Counting, EntryId, Limit, MAX_COST, Name, PerLimit, Policy, Window};
use limiter_testkit::ReferenceEntry as Entry;
use limiter_testkit::conformance::{Phase, Sentence};
use limiter_testkit::reference::merging::{Append, Rules, TEN_MINUTES, longer};
use limiter_testkit::reference::{age, cap, log_facts};

use super::call::{FlawedCall, time};
use super::{Change, Flaw, joint};

const HOUR: u64 = 3_600_000_000;
const SECOND: u64 = 1_000_000;

/// Changes each limit, which is the `i`-th.
fn limits(policy: &Policy, change: impl Fn(usize, u64, u64) -> (u64, u64)) -> Policy {
    let limit = |(i, of): (usize, &Limit)| {
        let (max, window) = change(i, of.max(), of.window().as_micros());
        let limit = Limit::with_window(max, Window::from_micros(window).unwrap_or(Window::MAX)).unwrap();
        of.resolution().and_then(|resolution| limit.with_resolution(resolution).ok()).unwrap_or(limit)
    };
    Policy::new(policy.limits().iter().enumerate().map(limit)).unwrap().with_counting(policy.counting())
}

/// Returns the policy with a last limit that nothing exceeds.
fn without_the_last(policy: &Policy) -> Policy {
    let last = policy.limits().len() - 1;
    limits(policy, |i, max, window| (if i == last && i > 0 { MAX_COST } else { max }, window))
}

fn text(key: &[u8]) -> String {
    String::from_utf8_lossy(key).into_owned()
}

/// Returns a key that is read as a number.
fn number(key: &[u8]) -> Vec<u8> {
    text(key).trim().parse::<f64>().map_or_else(|_| key.to_vec(), |number| number.to_string().into_bytes())
}

fn longest(policy: &Policy) -> u64 {
    policy.longest_window().as_micros()
}

fn shortest(policy: &Policy) -> u64 {
    policy.limits().iter().map(|limit| limit.window().as_micros()).min().unwrap()
}

fn first_window(policy: &Policy) -> u64 {
    policy.limits()[0].window().as_micros()
}

fn receipt_window(call: &FlawedCall<'_>) -> u64 {
    call.op.receipt_window().as_micros()
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

/// Returns the marks that an append takes, with others after this number of cells.
fn inherit(marks: [bool; 2], cells: u64, after: u64, others: [bool; 2]) -> [bool; 2] {
    if cells == after { others } else { (Rules::CONTRACT.inherits)(marks, cells) }
}

fn due(append: &Append<'_>, u: &Entry, limits: &[Limit], ages: &[u64]) -> bool {
    append.is_new(u) || append.has_crossed(u, limits, ages)
}

/// Returns the cell of an entry, with cells that begin early or late: 1 is right.
fn cell(entry: &Entry, early: u64, resolution: u64) -> u64 {
    (entry.at.as_micros() + early).saturating_sub(1) / resolution
}

fn join(v: &Entry, u: &Entry) -> Entry {
    (Rules::CONTRACT.merged)(v, u)
}

fn default<'a>(op: &Op<'a>) -> &'a Policy {
    op.limiter_policy.unwrap_or(op.policy)
}

fn cuts_ages_to32_bits(c: &mut FlawedCall<'_>) {
    let now = c.now();
    c.log.iter_mut().for_each(|entry| entry.at = time(now.as_micros() - u64::from(age(entry, now) as u32)));
}

fn has_one_time_for_all_logs(c: &mut FlawedCall<'_>) {
    c.shared.time = c.shared.time.max(c.given());
    c.hold(c.shared.time);
}

fn counts_at_the_given_time(c: &mut FlawedCall<'_>) {
    c.step_back(true);
    c.facts.log.usage = c.described(&c.log, time(c.given())).usage;
}

fn keeps_ids_at_the_given_time(c: &FlawedCall<'_>, e: &Entry) -> bool {
    let clamped_by = e.at.as_micros().saturating_sub(c.appended_by(e.name).1);
    c.within(e, receipt_window(c).saturating_sub(clamped_by))
}

fn settles_at_the_receipts_time(c: &mut FlawedCall<'_>) {
    c.facts.log = c.described(&c.log, c.log.last().map_or(c.now(), |entry| entry.at));
}

fn shares_ids_across_keys(c: &mut FlawedCall<'_>) {
    c.remember_if(c.appended());
    c.shared.ghosts.append(&mut c.memory.ghosts);
}

fn frees_the_oldest_first(c: &mut FlawedCall<'_>) {
    let policy = limits(c.op.policy, |_, _, window| (MAX_COST, window));
    let of_oldest = log_facts(&c.log, &policy, 1, c.now()).usage;
    let mut oldest = of_oldest.iter();
    c.facts.log.usage = c.facts.log.usage.map(|usage| Usage { used: usage.used, ..*oldest.next().unwrap() });
}

fn record_appends_only_if_it_fits(c: &mut FlawedCall<'_>) {
    let fits = c.fits(c.op.policy, c.op.cost);
    c.op.mode = if c.is(Mode::Record) && !fits { Mode::Peek } else { c.op.mode };
}

fn merges_ties(c: &mut FlawedCall<'_>) {
    let new = c.log.last().copied().filter(|_| c.appended());
    c.log.retain(|e| new.is_none_or(|new| e.name == new.name || (e.at, e.admitted) != (new.at, new.admitted)));
}

fn retains_the_smaller_max(c: &mut FlawedCall<'_>) {
    c.drop(c.window(), c.op.policy.largest_max().min(c.default().largest_max()));
}

fn repeats_the_verdict_of_now(c: &mut FlawedCall<'_>) {
    c.facts.admitted = if c.repeated() { c.fits(c.op.policy, c.op.cost) } else { c.facts.admitted };
}

fn repeats_the_usage_of_then(c: &mut FlawedCall<'_>) {
    if let Outcome::Repeated(entry) = c.facts.outcome {
        let then = c.appended_by(entry.id).2;
        c.facts.log.usage = c.facts.log.usage.map(|usage| Usage { used: then, ..usage });
    }
}

fn leaves_the_id_to_the_older_entry(c: &mut FlawedCall<'_>) {
    let had_it = |e: &Entry| c.before.iter().any(|old| old.name == e.name && old.id == c.op.id);
    c.log.iter_mut().filter(|e| had_it(e)).for_each(|e| e.id = c.op.id);
}

fn hides_the_newest_entry(c: &mut FlawedCall<'_>) {
    let counts = c.facts.log.usage.iter().any(|usage| usage.used > 0);
    c.facts.log.newest = c.facts.log.newest.filter(|_| counts);
}

fn hides_its_ids(c: &mut FlawedCall<'_>) {
    let number = c.number;
    c.change_id(|id| id ^ number);
}

fn gives_receipts_for_what_fits_then(c: &mut FlawedCall<'_>) {
    c.facts.refundable |= c.appended() && c.facts.admitted && c.fits(c.default(), 0);
}

fn clears_marks_under_exact_limits(c: &mut FlawedCall<'_>) {
    let clears = !c.op.has_resolution();
    c.change_new(|e| e.marks = e.marks.map(|mark| mark && !clears));
}

fn takes_marks_of_dropped_entries(c: &mut FlawedCall<'_>) {
    let [own, before] = Rules::CONTRACT.marks_after(c.before.last(), c.now());
    c.change_new(|e| e.marks = [e.marks[0] || own, e.marks[1] || before]);
}

fn merges_before_it_drops(c: &mut FlawedCall<'_>) {
    let (new, merges) = (c.fresh(), c.appended() && c.op.has_resolution());
    c.log = if merges { c.before.iter().copied().chain([new]).collect() } else { c.log.clone() };
    c.merge_if(merges);
    c.drop_if(merges);
}

fn merges_no_attempts(op: &Op<'_>) -> Vec<Limit> {
    (Rules::CONTRACT.limits)(op).into_iter().filter(|_| op.policy.counting() == Counting::Admitted).collect()
}

fn names_entries_by_count(c: &mut FlawedCall<'_>) {
    c.rename(c.op.id.map(EntryId::as_u128).or(Some(c.before.len() as u128)));
}

fn settles_under_the_default_name(c: &mut FlawedCall<'_>) {
    let log = LogKey::new(Name::new("conformance"), c.op.log.key);
    c.op.log = if c.store.entries(log).is_empty() { c.op.log } else { log };
    c.before = c.store.entries(c.op.log);
    c.log = c.before.clone();
}

fn keeps_refunded_ids(c: &mut FlawedCall<'_>) {
    c.memory.ghosts.extend(c.named().filter(|_| c.facts.admitted && c.cost == 0));
}

fn refunds_to_zero(c: &mut FlawedCall<'_>) {
    c.undo_if(c.cost == 0);
    c.change(|e, cost| e.cost = cost);
}

fn settles_with_the_policys_cap(c: &mut FlawedCall<'_>) {
    cap(&mut c.log, if c.facts.admitted { c.op.policy.largest_max() } else { u64::MAX });
}

fn settles_with_the_usage_of_one_limit(c: &mut FlawedCall<'_>) {
    c.facts.log.usage = c.facts.log.usage.map(|_| c.facts.log.usage[0]);
}

fn after_whole_seconds(c: &mut FlawedCall<'_>) {
    c.expire(true, at(c) + (c.window() / SECOND * SECOND).max(c.window() % SECOND));
}

fn loses_costs_beyond_the_largest(v: &Entry, u: &Entry) -> Entry {
    if u.cost + v.cost > MAX_COST { Entry { id: None, ..*u } } else { join(v, u) }
}

fn repeats_under_an_exact_policy(c: &FlawedCall<'_>, e: &Entry) -> bool {
    c.within(e, if c.op.policy.has_resolution() { receipt_window(c) } else { c.window() })
}

fn shares_marks_across_names(c: &mut FlawedCall<'_>) {
    c.shared.time |= u64::from(c.op.keep);
    let is_marked = c.shared.time > 0;
    c.change_new(|e| e.marks[0] |= is_marked);
}

fn hides_its_entries_from_a_status(c: &mut FlawedCall<'_>) {
    let shown = if c.op.is_status { Vec::new() } else { c.log.clone() };
    c.facts.log = c.described(&shown, c.now());
}

fn shares_times_of_equal_windows(c: &mut FlawedCall<'_>) {
    let limits = c.op.policy.limits();
    let first = |limit: &Limit| limits.iter().position(|other| other.window() == limit.window()).unwrap();
    let usage: Vec<Usage> = limits.iter().map(|limit| c.facts.log.usage[first(limit)]).collect();
    c.facts.log.usage = PerLimit::from_slice(&usage).unwrap();
}

fn renews_nothing_under_a_resolution(c: &mut FlawedCall<'_>) {
    let first = c.before.first().map(|entry| entry.at.as_micros()).filter(|_| c.op.has_resolution());
    c.expire(true, if first.is_some() { c.memory.time } else { c.memory.until });
    c.memory.time = c.memory.until;
}

fn repeats_for_ten_minutes(c: &FlawedCall<'_>, e: &Entry) -> bool {
    c.within(e, if c.op.has_resolution() { TEN_MINUTES } else { c.window() })
}

fn trims_only_what_it_admits(c: &mut FlawedCall<'_>) {
    c.drop(if c.is_denied() { u64::MAX } else { c.window() }, c.max());
}

fn own<'a>(append: &Append<'a>) -> &'a [Limit] {
    append.op.policy.limits()
}

fn alike(append: &Append<'_>, v: &Entry, u: &Entry) -> bool {
    append.counts_alike(&append.limits, v, u)
}

/// Stores without a flaw.
pub(crate) static RIGHT: &[Flaw] = &[(Cases, L1, "None", Code), (Cancel, C1, "NoneInSteps", Code)];

pub(crate) static FLAWS: &[Flaw] = &[
    (Cases, T1, "TruncatesToMilliseconds", Before(|c| c.shift(|at| at / 1_000 * 1_000))),
    (Cases, T1, "CutsAgesTo32Bits", Before(cuts_ages_to32_bits)),
    (StoreClock, T2, "ReadsTheClockTwice", Code),
    (StoreClock, T4, "StopsItsClock", Clock(|at| at / HOUR * HOUR)),
    (StoreClock, T4, "TellsMilliseconds", Clock(|at| at / 1_000)),
    (StoreClock, T4, "IsAnHourAhead", Clock(|at| at + HOUR)),
    (Cases, T3, "LetsTimeRunBack", Before(|c| c.step_back(true))),
    (Cases, T3, "LetsTimeRunBackOnceExpired", Before(|c| c.step_back(c.log.len() == 1 && c.window() == 1))),
    (Cases, T3, "SettlesBackInTime", SettledFacts(|c| c.facts.log.now = time(c.given()))),
    (Cases, T3, "LetsPeeksHoldTime", Before(|c| c.hold(if c.is(Mode::Peek) { c.given() } else { 0 }))),
    (Cases, T3, "KeepsTheTimeOfRemovedEntries", Before(|c| c.hold(c.before.last().map_or(0, |e| e.at.as_micros())))),
    (Cases, T3, "HasOneTimeForAllLogs", Before(has_one_time_for_all_logs)),
    (Cases, T3, "CountsAtTheGivenTime", Facts(counts_at_the_given_time)),
    (Cases, T3, "RepeatsAtTheGivenTime", Finds(|c, e| c.within(e, receipt_window(c) + c.clamped_by()))),
    (Cases, T3, "KeepsIdsAtTheGivenTime", Finds(keeps_ids_at_the_given_time)),
    (Cases, T3, "TrimsAtTheGivenTime", Entries(|c| c.drop(c.window() + c.clamped_by(), c.max()))),
    (Cases, T3, "SettlesAtTheGivenTime", Settles(|c| c.valid_for(c.valid() + c.clamped_by()))),
    (Cases, T3, "SettlesAtTheReceiptsTime", SettledFacts(settles_at_the_receipts_time)),
    (StoreClock, T3, "LetsTheStoresClockRunBack", Before(|c| c.step_back(c.on_clock()))),
    (Cancel, T5, "BlocksItsThread", Code),
    (Cases, L1, "MixesUpKeys", Log(|name, key| (name.into(), text(key).into()))),
    (Cases, L1, "CutsKeys", Log(|name, key| (name.into(), key[..key.len().min(255)].into()))),
    (Cases, L1, "IgnoresCaseOfKeys", Log(|name, key| (name.into(), key.to_ascii_lowercase()))),
    (Cases, L1, "TrimsKeys", Log(|name, key| (name.into(), key.trim_ascii_end().into()))),
    (Cases, L1, "EndsKeysAtNul", Log(|name, key| (name.into(), key.split(|b| *b == 0).next().unwrap().into()))),
    (Cases, L1, "ReadsKeysAsNumbers", Log(|name, key| (name.into(), number(key)))),
    (Cases, L1, "IgnoresNames", Log(|_, key| ("all".into(), key.into()))),
    (Cases, L1, "JoinsNamesAndKeys", Log(|name, key| ("all".into(), [name.as_bytes(), b":", key].concat()))),
    (Cases, L1, "SharesTheEmptyKey", Log(|name, key| (if key.is_empty() { "all" } else { name }.into(), key.into()))),
    (Cases, L1, "IgnoresCaseOfNames", Log(|name, key| (name.to_lowercase(), key.into()))),
    (Cases, L1, "SharesIdsAcrossKeys", Entries(shares_ids_across_keys)),
    (Cases, L2, "CountsWhatIsAgedTheWindow", Limits(|p| limits(p, |_, max, window| (max, window + 1)))),
    (Cases, L2, "ForgetsAMicrosecondEarly", Limits(|p| limits(p, |_, max, window| (max, (window - 1).max(1))))),
    (Cases, L3, "IgnoresWeights", Before(|c| c.op.cost = 1)),
    (Cases, L3, "ForgetsTheLastLimit", Limits(without_the_last)),
    (Cases, L3, "CutsCostsTo32Bits", Before(|c| c.op.cost = u64::from(c.op.cost as u32))),
    (Cases, L3, "FreesTheOldestFirst", Facts(frees_the_oldest_first)),
    (Cases, L4, "TrimsWhenItPeeks", Entries(|c| c.drop_if(c.is(Mode::Peek)))),
    (Cases, L4, "AppendsDenied", Limits(|p| p.clone().with_counting(Counting::Attempts))),
    (Cases, L4, "PeekAppends", Entries(|c| c.log.extend(c.is(Mode::Peek).then(|| c.fresh())))),
    (Cases, L4, "RecordAppendsOnlyIfItFits", Before(record_appends_only_if_it_fits)),
    (Cases, L4, "DropsTheAttemptsThatAreDenied", Limits(|p| p.clone().with_counting(Counting::Admitted))),
    (Cases, L5, "MergesTies", Entries(merges_ties)),
    (Cases, L7, "NeverTrims", Entries(|c| c.drop(u64::MAX, u64::MAX))),
    (Cases, L7, "NeverCaps", Entries(|c| c.drop(c.window(), u64::MAX))),
    (Cases, L7, "CapsOneTooMany", Entries(|c| c.drop(c.window(), c.max() - 1))),
    (Cases, L7, "CapsOneTooFew", Entries(|c| c.drop(c.window(), c.max() + 1))),
    (Cases, L7, "CapsByTheFirstMaximum", Entries(|c| c.drop(c.window(), c.op.policy.limits()[0].max()))),
    (Cases, L7, "CapsWithoutTheNewest", Entries(|c| c.drop(c.window(), c.max() + c.op.cost))),
    (Cases, L7, "RetainsTheOwnMax", Entries(|c| c.drop(c.window(), c.op.policy.largest_max()))),
    (Cases, L7, "RetainsTheSmallerMax", Entries(retains_the_smaller_max)),
    (Cases, L6, "TrimsOneTooLate", Entries(|c| c.drop(c.window() + 1, c.max()))),
    (Cases, L6, "TrimsByTheShortestWindow", Entries(|c| c.drop(shortest(c.op.policy), c.max()))),
    (Cases, L6, "TrimsByTheFirstWindow", Entries(|c| c.drop(first_window(c.op.policy), c.max()))),
    (Cases, L6, "RetainsForTheOwnPolicy", Entries(|c| c.drop(longest(c.op.policy), c.op.policy.largest_max()))),
    (Cases, L6, "RetainsForTheDefaultPolicy", Entries(|c| c.drop(longest(c.default()), c.default().largest_max()))),
    (Cases, L6, "RetainsTheOwnWindow", Entries(|c| c.drop(longest(c.op.policy), c.max()))),
    (Cases, L6, "TrimsOnlyWhatItAdmits", Entries(trims_only_what_it_admits)),
    (Cases, L8, "TrimsWhenItDenies", Entries(|c| c.drop_if(c.is_denied()))),
    (Cases, L8, "TrimsWhenItRepeats", Entries(|c| c.drop_if(c.repeated()))),
    (Cases, L8, "TrimsWhenItSettles", Settled(|c| c.drop_if(true))),
    (Cases, L9, "IgnoresIds", Before(|c| c.op.id = None)),
    (Cases, L9, "IgnoresTheIdZero", Before(|c| c.op.id = c.op.id.filter(|id| id.as_u128() != 0))),
    (StoreClock, L9, "IgnoresIdsAtTheStoresClock", Before(|c| c.op.id = c.op.id.filter(|_| !c.on_clock()))),
    (Cases, L9, "ComparesHalfOfIds", Before(|c| c.change_id(|id| u128::from(id as u64)))),
    (Cases, L9, "ComparesAllButOneBitOfIds", Before(|c| c.change_id(|id| id << 1))),
    (Cases, L9, "RepeatsTheVerdictOfNow", Facts(repeats_the_verdict_of_now)),
    (Cases, L9, "RepeatsTheUsageOfThen", Facts(repeats_the_usage_of_then)),
    (Cases, L9, "RepeatsForEver", Finds(|c, e| c.within(e, u64::MAX))),
    (Cases, L9, "RepeatsOneTooLate", Finds(|c, e| c.within(e, c.window() + 1))),
    (Cases, L9, "RepeatsInTheOwnWindow", Finds(|c, e| c.within(e, longest(c.op.policy)))),
    (Cases, L9, "RepeatsOnlyTheSameMode", Finds(|c, e| c.repeats(e) && c.appended_by(e.name).0 == c.op.mode)),
    (Cases, L9, "RepeatsOnlyTheSameCost", Finds(|c, e| c.repeats(e) && e.cost == c.op.cost)),
    (Cases, L9, "SettlesWithoutTheVerdict", Settled(|c| c.change(|e, _| (e.admitted, e.refundable) = (false, false)))),
    (Cases, L9, "LeavesTheIdToTheOlderEntry", Entries(leaves_the_id_to_the_older_entry)),
    (Cases, L10, "LeavesIdsOfDenials", Facts(|c| c.remember_if(c.is_denied() && !c.appended()))),
    (Cases, L11, "HidesTheNewestEntry", Facts(hides_the_newest_entry)),
    (Cases, L11, "HidesItsEntriesFromAStatus", Facts(hides_its_entries_from_a_status)),
    (Cases, L11, "SharesTimesOfEqualWindows", Facts(shares_times_of_equal_windows)),
    (Cases, L11, "DescribesTheLogBefore", Facts(|c| c.facts.log = c.described(&c.before, c.now()))),
    (Contention, L12, "ChecksThenAdds", Code),
    (Contention, L12, "FindsThenSettles", Code),
    (Contention, L12, "SettlesInTwoSteps", Code),
    (Contention, L12, "ResetsInTwoSteps", Code),
    (Handles, L12, "HidesItsLock", Code),
    (Handles, L12, "HidesItsLogs", Code),
    (Handles, L12, "HidesItsDenials", Code),
    (Handles, L12, "HidesItsIds", Before(hides_its_ids)),
    (Handles, L12, "OpeningClears", Code),
    (Cases, L13, "NamesEntriesByTheirIds", Entries(|c| c.rename(c.op.id.map(EntryId::as_u128)))),
    (LongLog, L14, "CountsEntriesIn8Bits", Entries(|c| c.log = c.log.split_off(c.log.len() >> 8))),
    (LongLog, L14, "CountsIn16Bits", Code),
    (LongLog, L14, "ReadsAPage", Facts(|c| c.facts.log = c.described(&c.log[..c.log.len().min(1_000)], c.now()))),
    (Cases, L15, "GivesReceiptsForAll", Facts(|c| c.facts.refundable = true)),
    (Cases, L15, "GivesReceiptsForRecords", Facts(|c| c.facts.refundable |= c.is(Mode::Record))),
    (Cases, L15, "GivesReceiptsForDenials", Facts(|c| c.facts.refundable |= c.is_denied())),
    (Cases, L15, "GivesReceiptsByTheOwnPolicy", Facts(|c| c.facts.refundable = c.facts.admitted)),
    (Cases, L15, "GivesReceiptsWhenItRepeats", Facts(|c| c.facts.refundable |= c.repeated() && c.facts.admitted)),
    (Cases, L15, "GivesReceiptsForWhatFitsThen", Facts(gives_receipts_for_what_fits_then)),
    (Cases, M1, "MarksNothing", Marks(|_| false)),
    (Cases, M1, "MarksNoPermits", Marks(|op| op.id.is_some() && op.has_resolution())),
    (Cases, M1, "MarksNoIds", Marks(|op| op.keep && op.has_resolution())),
    (Cases, M1, "MarksUnderExactLimits", Marks(|op| op.keep || op.id.is_some())),
    (Cases, M1, "MarksByTheOwnPolicy", Marks(|op| op.is_named() && op.policy.has_resolution())),
    (Cases, M1, "MarksByTheDefaultPolicy", Marks(|op| op.is_named() && default(op).has_resolution())),
    (Cases, M1, "CopiesNoMarks", Inherits(|marks, cells| inherit(marks, cells, 0, [false; 2]))),
    (Cases, M1, "MarksOneCell", Inherits(|marks, cells| inherit(marks, cells, 1, [false; 2]))),
    (Cases, M1, "MarksThreeCells", Inherits(|[a, b], cells| inherit([a, b], cells, 1, [false, a || b]))),
    (Cases, M1, "CopiesMarksToTheNextCell", Inherits(|marks, cells| inherit(marks, cells, 1, marks))),
    (Cases, M1, "ClearsNoMarks", Inherits(|marks, cells| inherit(marks, cells, cells.max(2), marks))),
    (Cases, M1, "SkipsACellWithoutEntries", Inherits(|[a, b], cells| inherit([a, b], cells, 2, [false, a]))),
    (Cases, M1, "ClearsMarksUnderExactLimits", Entries(clears_marks_under_exact_limits)),
    (Cases, M1, "TakesMarksOfDroppedEntries", Entries(takes_marks_of_dropped_entries)),
    (Cases, M1, "TakesTheOlderMarks", Merged(|v, u| Entry { marks: v.marks, ..join(v, u) })),
    (Cases, M2, "MergesBeforeItDrops", Entries(merges_before_it_drops)),
    (Cases, M1, "SharesMarksAcrossNames", Entries(shares_marks_across_names)),
    (Cases, M2, "MergesWhenItRepeats", Entries(|c| c.merge_if(c.repeated()))),
    (Cases, M2, "MergesWhenItPeeks", Entries(|c| c.merge_if(c.is(Mode::Peek)))),
    (Cases, M2, "MergesNoAttempts", MergingLimits(merges_no_attempts)),
    (Cases, M2, "MergesOnlyWhatItAdmitted", CountedAlike(|a, v, u| v.admitted && u.admitted && alike(a, v, u))),
    (Cases, M3, "MergesWheneverItCan", IsDue(|_, _| true)),
    (Cases, M3, "MergesOnlyTheNewEntry", IsDue(|a, u| due(a, u, &[], &[]))),
    (Cases, M3, "MissesTheEndsOfWindows", IsDue(|a, u| due(a, u, &[], &[TEN_MINUTES]))),
    (Cases, M3, "MissesTheEndsOfTheDefaultPolicy", IsDue(|a, u| due(a, u, own(a), &[TEN_MINUTES]))),
    (Cases, M3, "MissesTenMinutes", IsDue(|a, u| due(a, u, &a.limits, &[]))),
    (Cases, M4, "KeepsMarkedLogsApart", Merging(|r| r.apart = u64::MAX)),
    (Cases, M4, "KeepsApartAMicrosecondTooLong", Merging(|r| r.apart += 1)),
    (Cases, M4, "KeepsApartAMicrosecondTooShort", Merging(|r| r.apart -= 1)),
    (Cases, M4, "TakesCellsFromTheEntry", InOneCell(|_, v, u, p| u.at.micros_since(v.at) < p)),
    (Cases, M4, "TakesCellsFromNow", InOneCell(|a, v, u, p| age(u, a.now) / p == age(v, a.now) / p)),
    (Cases, M4, "EndsCellsAMicrosecondEarly", InOneCell(|_, v, u, p| cell(u, 2, p) == cell(v, 2, p))),
    (Cases, M4, "EndsCellsAMicrosecondLate", InOneCell(|_, v, u, p| cell(u, 0, p) == cell(v, 0, p))),
    (Cases, M4, "TakesTheLargestResolution", Resolution(|a, age| longer(&a.limits, age).max())),
    (Cases, M4, "NeverTakesALongerResolution", Resolution(|a, _| longer(&a.limits, 0).min())),
    (Cases, M4, "MergesWhatAnExactLimitCounts", Resolution(|a, age| longer(&a.limits, age).filter(|p| *p > 0).min())),
    (Cases, M4, "MergesByTheOwnPolicy", MergingLimits(|op| op.policy.limits().to_vec())),
    (Cases, M4, "TakesTheResolutionOfTheOwnPolicy", Resolution(|a, age| longer(own(a), age).min())),
    (Cases, M4, "TakesTheResolutionOfTheDefaultPolicy", Resolution(|a, age| longer(default(a.op).limits(), age).min())),
    (Cases, M5, "MergesAcrossEnds", CountedAlike(|_, _, _| true)),
    (Cases, M5, "MergesAcrossEndsOfTheDefaultPolicy", CountedAlike(|a, v, u| a.counts_alike(own(a), v, u))),
    (Cases, M6, "TakesTheOlderTime", Merged(|v, u| Entry { at: v.at, ..join(v, u) })),
    (Cases, M6, "TakesTheNewerCost", Merged(|v, u| Entry { cost: u.cost, ..join(v, u) })),
    (Cases, M6, "WrapsMergedCosts", Merged(|v, u| Entry { cost: (u.cost + v.cost - 1) % MAX_COST + 1, ..join(v, u) })),
    (Cases, M6, "LosesCostsBeyondTheLargest", Merged(loses_costs_beyond_the_largest)),
    (Cases, M6, "KeepsTheIdsOfMergedEntries", Merged(|v, u| Entry { id: u.id.or(v.id), ..join(v, u) })),
    (Cases, M6, "KeepsTheReceiptsOfMergedEntries", Merging(|r| r.keeps_names = true)),
    (Cases, M7, "RepeatsForTheWholeWindow", Finds(|c, e| c.within(e, c.window()))),
    (Cases, M7, "RepeatsUnderAnExactPolicy", Finds(repeats_under_an_exact_policy)),
    (Cases, M7, "RepeatsForTenMinutes", Finds(repeats_for_ten_minutes)),
    (Cases, M7, "RefundsForTheLongerWindow", Settles(|c| c.valid_for(c.valid().max(longest(c.op.policy))))),
    (Cases, M7, "GivesReceiptsForMergedEntries", Code),
    (Several, A1, "SaysLogsGoTogetherAndCannot", Together(|_| None)),
    (Several, A2, "ChangesOneLogAfterTheOther", Together(joint::one_by_one_if_admitted)),
    (Several, A4, "LetsAdvisoryOperationsDeny", Together(|joint| joint.change(|op| op.is_advisory = false))),
    (Several, A5, "ChargesWhatFitsIfAnotherDenies", Together(joint::one_by_one)),
    (Several, A5, "KeepsNoCharge", Together(|joint| joint.change(|op| op.keeps_charge = false))),
    (Several, A5, "DropsTheAttemptThatDenies", Together(joint::nothing_if_denied)),
    (Several, A6, "LooksAtRepetitions", Together(joint::repeats_nothing_if_denied)),
    (Cases, S1, "NamesEntriesByCount", Entries(names_entries_by_count)),
    (Cases, S1, "RefundsANeighbour", Settles(|c| c.find(c.named().and(c.before.first().copied())))),
    (Cases, S1, "RefundsByTimeAlone", Settles(|c| c.find(c.before.iter().copied().find(|e| e.at == c.receipt.at())))),
    (Cases, S1, "RefundsByIdAlone", Entries(|c| c.rename(c.op.id.map(EntryId::as_u128)))),
    (Cases, S1, "SettlesOnAnyKey", Code),
    (Cases, S1, "SettlesUnderTheDefaultName", Settles(settles_under_the_default_name)),
    (StoreClock, S1, "SettlesNothingAtTheStoresClock", Settles(|c| c.find_nothing_if(c.on_clock()))),
    (Cases, S2, "IgnoresSettlements", Settled(|c| c.undo_if(c.cost > 0))),
    (Cases, S2, "SettlesAnew", Settled(|c| c.put_behind(c.now()))),
    (Cases, S2, "SettlesAtTheEnd", Settled(|c| c.put_behind(c.receipt.at()))),
    (Cases, S2, "SettlesWithoutTheId", Settled(|c| c.change(|e, _| e.id = None))),
    (Cases, S2, "SettlesToTheDifference", Settles(|c| c.cost += c.cost.min(1) * c.named().map_or(0, |e| e.cost - 1))),
    (Cases, S3, "KeepsRefundedIds", Settled(keeps_refunded_ids)),
    (Cases, S3, "RefundsToZero", Settled(refunds_to_zero)),
    (Cases, S4, "RefundsTwice", Settles(|c| c.find(c.named().or(c.before.last().copied())))),
    (Cases, S4, "RefundsWhatHasLeft", Settles(|c| c.valid_for(u64::MAX))),
    (Cases, S4, "RefundsAtTheEndOfTheWindow", Settles(|c| c.valid_for(c.valid() + 1))),
    (Cases, S4, "RefundsInTheSettlementsWindow", Settles(|c| c.valid_for(longest(c.op.policy)))),
    (Cases, S4, "AlwaysApplies", SettledFacts(|c| c.facts.admitted = true)),
    (Cases, S5, "SettlesWithoutCap", Settled(uncap)),
    (Cases, S5, "SettlesWithThePolicysCap", Settled(settles_with_the_policys_cap)),
    (Cases, S6, "RefusesLargeSettlements", SettledFacts(|c| c.fails = c.cost > c.op.policy.largest_max())),
    (Cases, S6, "CutsLargeSettlements", Settles(|c| c.cost = c.cost.min(c.op.policy.largest_max()))),
    (Cases, S7, "SettlesWithTheUsageBefore", SettledFacts(|c| c.facts.log = c.described(&c.before, c.now()))),
    (Cases, S7, "SettlesWithTheUsageOfOneLimit", SettledFacts(settles_with_the_usage_of_one_limit)),
    (Cases, S7, "DoesNotApplyTheSameCost", Settles(|c| c.find_nothing_if(c.named().is_some_and(|e| e.cost == c.cost)))),
    (Cases, S8, "ResetLeavesAnEntry", ResetEntries(|c| c.log = c.before[..c.before.len() / 2].to_vec())),
    (Cases, S8, "ResetKeepsIds", ResetFacts(|c| c.memory.ghosts = c.before.clone())),
    (Cases, S8, "ResetAlwaysFinds", ResetFacts(|c| c.facts.admitted = true)),
    (Cases, S8, "ResetNeverFinds", ResetFacts(|c| c.facts.admitted = false)),
    (Cases, S8, "ResetsAllKeys", Code),
    (Forgetting, F1, "ByTheFirstWindow", Facts(|c| c.expire(true, at(c) + first_window(c.op.policy)))),
    (Forgetting, F1, "ByTheOwnWindow", Facts(|c| c.expire(true, at(c) + longest(c.op.policy)))),
    (Forgetting, F1, "ByTheDefaultWindow", Facts(|c| c.expire(true, at(c) + longest(c.default())))),
    (Forgetting, F1, "AfterWholeSeconds", Facts(after_whole_seconds)),
    (Forgetting, F1, "AfterWholeMillis", Facts(|c| c.expire(true, (at(c) + c.window()) / 1_000 * 1_000))),
    (
        Forgetting,
        F1,
        "AfterTheFirstAppend",
        Facts(|c| c.expire(true, c.log.first().map_or(0, |e| e.at.as_micros()) + c.window())),
    ),
    (Forgetting, F1, "AfterTheLastOperation", Facts(|c| c.expire_if(true, c.op.policy))),
    (Forgetting, F1, "AfterAPeek", Facts(|c| c.expire_if(c.is(Mode::Peek), c.op.policy))),
    (Forgetting, F1, "AfterASettlement", SettledFacts(|c| c.expire_if(true, c.op.policy))),
    (Forgetting, F1, "WindowAfterTheClock", Facts(|c| c.expire(true, c.clock + c.window()))),
    (Forgetting, F1, "RenewsNothingUnderAResolution", Facts(renews_nothing_under_a_resolution)),
    (Forgetting, F1, "ForgetsEarlyWithATimer", Facts(|c| c.expire(true, (at(c) + c.window()) / 1_000 * 1_000))),
    (Forgetting, F1, "ForgetsWhenThereAreMany", Code),
    (Forgetting, F1, "SweepsInTwoSteps", Code),
    (Forgetting, F1, "SweepsInTwoPolls", Code),
    (Forgetting, F1, "SweepLeavesIds", Code),
    (Forgetting, L1, "ExpiresAllNames", Code),
    (Forgetting, L1, "SweepsAllNames", Code),
    (Forgetting, F2, "GivenTimesAsItsOwn", Facts(|c| c.expire(false, at(c) + c.window()))),
    (Forgetting, F2, "GivenTimesAfterTheWindow", Facts(|c| c.expire(false, c.clock + c.window()))),
    (Forgetting, F2, "SweepsGivenTimes", Code),
    (Cases, E1, "DeniesByError", Facts(|c| c.fails = !c.facts.admitted)),
    (Cases, E1, "SettlesNothingByError", SettledFacts(|c| c.fails = !c.facts.admitted)),
    (Cases, E1, "ResetsNothingByError", ResetFacts(|c| c.fails = !c.facts.admitted)),
    (Cases, E2, "AppliesWhatItDoesNotDecideAtOnce", Code),
    (Cases, E2, "DecidesAtOnceWithoutChecks", Code),
    (Cases, E2, "IsPendingAtOnce", Code),
    (Cancel, C1, "CapsAfterAPause", Settled(uncap)),
    (Cancel, C1, "LeavesHalfASettlement", Code),
    (Cancel, C1, "LeavesHalfAReset", Code),
    (Cancel, C1, "LeavesARefundWithoutItsId", Code),
    (Cancel, C1, "LeavesAnEntryWithoutItsId", Code),
    (Cancel, C1, "LeavesAnAppendWithoutItsExpiry", Code),
    (Cancel, C2, "LeavesItsLock", Code),
    (Cancel, T5, "BlocksWhenContended", Code),
];
