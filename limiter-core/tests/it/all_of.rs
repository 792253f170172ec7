//! One decision over several limiters.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Waker};

use futures::executor::block_on;
use limiter_core::request::{AllOf, JointDecision, Part, PartDecision, PartOutcome, Undecided};
use limiter_core::{Counting, Error, ErrorKind, Limiter, Permit, SharedStore, Timestamp, policy};
use limiter_testkit::ReferenceStore;

use crate::slow_store::SlowStore;

/// The stores of each case: one answers without waiting, one needs a future, and one makes several calls as one.
fn stores() -> [SharedStore; 3] {
    let prompt = SlowStore {
        tries: true,
        waits: Some([0, 0]),
        ..SlowStore::default()
    };
    [Arc::new(prompt), Arc::new(SlowStore::default()), joining()]
}

fn joining() -> Arc<SlowStore> {
    Arc::new(SlowStore {
        joins: true,
        ..SlowStore::default()
    })
}

/// Two limiters, of 5 and of 2 units an hour.
fn limiters(store: &SharedStore) -> (Limiter, Limiter) {
    (
        Limiter::new("five", policy!("5/1h"), store.clone()),
        Limiter::new("two", policy!("2/1h"), store.clone()),
    )
}

fn failing() -> Limiter {
    let store = SlowStore {
        fails: true,
        ..SlowStore::default()
    };
    Limiter::new("failing", policy!("9/1h"), Arc::new(store))
}

fn used<const N: usize>(limiters: [&Limiter; N]) -> [u64; N] {
    limiters.map(|limiter| block_on(limiter.status("k")).unwrap().used())
}

fn all<'a, const N: usize>(parts: [Part<'a, SharedStore>; N]) -> AllOf<'a> {
    parts.into_iter().fold(AllOf::new(), AllOf::with)
}

/// An acquire of the key `k`.
fn take(limiter: &Limiter, cost: u64) -> Part<'_, SharedStore> {
    limiter.acquire("k").cost(cost).into()
}

/// Makes the calls as middleware does, which leaves errors where they are.
fn made<'a>(calls: AllOf<'a>) -> JointDecision<'a> {
    block_on(Undecided::from(calls).decide())
}

fn decided<'a>(calls: AllOf<'a>) -> Result<JointDecision<'a>, Error> {
    block_on(calls.into_future())
}

/// Whether all calls admit. A failure is none.
fn admits(calls: AllOf<'_>) -> bool {
    !decided(calls).unwrap().is_denied()
}

/// Calls on one store after the other, until a line is empty. Of each line: the calls; whether the whole admits and what became of each
/// call; the usage of each log afterwards; and the round trips to a store that makes several calls as one.
///
/// A call is a limiter, its key if that is not `k`, its cost if that is not 1, and its options.
const CASES: &str = "
five 2 & two & short => admits charged charged charged; 2 1 1; 1
two => admits charged; 2; 1
five 2 & two & short => denies used-2 denied denied; 2 2 1; 1
two 2 & five => denies denied used-2; 2 2; 1

five & broken & two => denies used-0 unavailable used-0; 0 - 0; 1
five & broken open & two => admits charged unavailable charged; 1 - 1; 1
five & two 3 open => denies used-1 cost_exceeds_limit; 1 1; 1
five & coarse id open => denies used-1 needs_exact_limit; 1 0; 1
five & two/j 3 & two 3 & five/r record 0 => denies used-1 cost_exceeds_limit cost_exceeds_limit invalid_cost; 1 0 1 0; 1
broken record & five/j => denies unavailable used-0; - 0; 2
broken & five/j keep => denies unavailable charged; - 1; 1

two => admits charged; 1; 1
coarse advisory & two 2 & five keep => denies used-0 denied charged; 0 1 1; 1
coarse advisory & two/j 2 & five keep & broken advisory => admits charged charged charged unavailable; 1 2 2 -; 2
coarse advisory 2 & two/i 2 => admits denied charged; 1 2; 1

five record 4 & two & two status => admits charged charged used-1; 4 1 1; 2
five record 9 & two & two status => admits charged charged used-2; 5 2 2; 2
five record 9 & two & two status => denies used-5 denied used-2; 5 2 2; 2
five peek 2 & two/j => denies denied used-0; 5 0; 1

coarse & two 2 => admits charged charged; 1 2; 1
coarse & two => denies used-1 denied; 1 2; 1
coarse & five => admits charged charged; 2 1; 1
coarse & five => denies denied used-1; 2 1; 1

five id & two 2 => admits charged charged; 1 2; 1
five id & two => denies charged denied; 1 2; 1
two & five id 5 => denies denied charged; 2 1; 1
two & five id 2 record => denies denied used-1; 2 1; 1

attempts 2 & two id => admits charged charged; 2 1; 1
attempts & two id => denies denied charged; 2 1; 1

two & far & five => admits charged charged charged; 1 1 1; 1
two 2 & far & five => denies denied used-1 used-1; 1 1 1; 1
far 9 & two => denies denied used-1; 1 1; 1

attempts & five => admits charged charged; 1 1; 1
attempts 2 & five => denies denied used-1; 2 1; 1
two 2 & attempts/z => admits charged charged; 2 1; 1
two & attempts/z => denies denied used-1; 2 1; 1
five & attempts & two => denies used-1 denied denied; 1 2 2; 1
five/b early & two/b => admits charged charged; 0 1; 2
five/c early & two/c early => admits charged charged; 0 0; 1
five & attempts keep & two 2 => denies used-1 denied denied; 1 2 2; 1

five & two & five 2 => admits charged charged charged; 3 1 3; 1
five 2 & two & five => denies denied used-1 denied; 3 1 3; 1
five 3 & two & five 3 => denies cost_exceeds_limit used-1 cost_exceeds_limit; 3 1 3; 1
five & five keep => admits charged charged; 5 5; 2
five & five => denies denied denied; 5 5; 1
five/b id & five/b id => admits charged charged; 2 2; 1
five/b id & five/b id => admits charged charged; 2 2; 1
five/c id & five/c & two/c => admits charged charged charged; 2 2 1; 2
five/d own & five/d own 2 & two/d => admits charged charged charged; 3 3 1; 2
five/d own 2 & five/d own & two/d => denies used-3 denied used-1; 3 3 1; 4
five/e record 4 & five/e record 4 & two/e => admits charged charged charged; 5 5 1; 1
two/f peek & two/f peek 2 => admits used-0 used-0; 0 0; 1
two/f peek & two/f => admits used-0 charged; 1 1; 2
two/f & two/f peek => denies used-1 denied; 1 1; 3
coarse/g & coarse/g => admits charged charged; 2 2; 1
five/h advisory 2 & five/h advisory & five/h 2 => admits charged charged charged; 5 5 5; 2
attempts/i & attempts/i => admits charged charged; 2 2; 1
attempts/j 2 & attempts/j => denies cost_exceeds_limit cost_exceeds_limit; 0 0; 0
five/m & five/m & broken open => admits charged charged unavailable; 2 2 -; 1
";

fn limiter(name: &str, store: &SharedStore, far: &SharedStore) -> Limiter {
    let policy = match name {
        "five" => policy!("5/1h"),
        "two" => policy!("2/1h"),
        "short" => policy!("1/1m"),
        "coarse" => policy!("2/1h~1m"),
        "attempts" => policy!("2/1h").with_counting(Counting::Attempts),
        "far" => return Limiter::new(name, policy!("9/1h"), far.clone()),
        _ => return failing(),
    };
    Limiter::new(name, policy, store.clone())
}

/// Returns the key and the call that these words mean.
fn part<'a>(limiter: &'a Limiter, words: &'a str) -> (&'a str, Part<'a, SharedStore>) {
    let (log, options) = words.split_once(' ').unwrap_or((words, ""));
    let (_, key) = log.split_once('/').unwrap_or((log, "k"));
    let has = |option| options.split(' ').any(|word| word == option);
    let cost = options.split(' ').find_map(|word| word.parse().ok());
    let cost = cost.unwrap_or(1);
    let acquire = limiter.acquire(key).cost(cost);
    let mut part: Part<'_, _> = match () {
        () if has("record") => limiter.record(key).cost(cost).into(),
        () if has("peek") => limiter.peek(key).cost(cost).into(),
        () if has("status") => limiter.status(key).into(),
        () if has("id") => acquire.idempotency_key(7).into(),
        () if has("early") => acquire.at(Timestamp::EPOCH).into(),
        () => acquire.into(),
    };
    if has("advisory") {
        part = part.advisory();
    }
    if has("keep") {
        part = part.keep_charge();
    }
    if has("own") {
        part = part.own_entry();
    }
    if has("open") {
        part = part.fail_open();
    }
    (key, part)
}

fn outcome(part: &PartDecision<'_, SharedStore>) -> String {
    match part.outcome() {
        PartOutcome::Charged(_) => "charged".to_owned(),
        PartOutcome::Denied(_) => "denied".to_owned(),
        PartOutcome::Uncharged(status) => format!("used-{}", status.used()),
        PartOutcome::Failed(error) => error.kind().to_string(),
    }
}

#[test]
fn all_are_charged_or_none_in_as_few_round_trips_as_the_store_allows() {
    for scenario in CASES.trim().split("\n\n") {
        let joining = joining();
        let [prompt, slow, _] = stores();
        for (store, counts) in [(prompt, false), (slow, false), (joining.clone(), true)] {
            let far: SharedStore = Arc::new(SlowStore::default());
            for line in scenario.lines() {
                let (calls, expected) = line.split_once(" => ").unwrap();
                let name = |words: &str| words.split(['/', ' ']).next().unwrap().to_owned();
                let limiters = calls
                    .split(" & ")
                    .map(|call| limiter(&name(call), &store, &far));
                let limiters: Vec<Limiter> = limiters.collect();
                let parts = limiters.iter().zip(calls.split(" & "));
                let parts = parts.map(|(limiter, call)| part(limiter, call));
                let (keys, parts): (Vec<_>, Vec<_>) = parts.unzip();
                let all = parts.into_iter().fold(AllOf::new(), AllOf::with);
                joining.calls.store(0, Ordering::Relaxed);
                let decided = made(all);
                let trips = joining.calls.load(Ordering::Relaxed);
                let verdict = if decided.is_denied() {
                    "denies"
                } else {
                    "admits"
                };
                let outcomes = (0..keys.len()).map(|call| outcome(decided.part(call).unwrap()));
                let outcomes: Vec<_> = outcomes.collect();
                let used = limiters.iter().zip(keys).map(|(limiter, key)| {
                    let status = block_on(limiter.status(key).into_future());
                    status.map_or("-".to_owned(), |status| status.used().to_string())
                });
                let used: Vec<_> = used.collect();
                let found = format!("{verdict} {}; {}", outcomes.join(" "), used.join(" "));
                let round_trips = expected.rsplit("; ").next().unwrap();
                let trips = if counts {
                    trips.to_string()
                } else {
                    round_trips.to_owned()
                };
                assert_eq!(format!("{found}; {trips}"), expected, "{calls}");
            }
        }
    }
}

#[test]
fn the_denial_has_the_longest_wait_and_the_first_error_is_returned() {
    for store in stores() {
        let (five, _) = limiters(&store);
        let two = Limiter::new("two\n", policy!("2/1h"), store.clone());
        let short = Limiter::new("short", policy!("1/1s"), store.clone());
        let calls = || all([take(&five, 2), take(&two, 2), take(&short, 1)]);
        assert!(admits(calls()));
        let second = decided(calls()).unwrap();
        let wait = second.retry_after().unwrap();
        assert!(wait.as_secs() >= 3_590, "the second limiter's");
        let denied = second.into_result().unwrap_err();
        assert_eq!(denied.retry_after(), wait);
        let text = denied.to_string();
        let start = "two\\n: the limit 2/1h is exceeded; retry after 3";
        assert!(text.starts_with(start), "{text}");
        let broken = failing();
        let calls = || all([take(&two, 1), take(&broken, 1), take(&five, 6)]);
        let error = decided(calls()).unwrap_err();
        let found = (error.kind(), error.limiter_name());
        assert_eq!(found, (ErrorKind::Unavailable, Some("failing")));
        assert_eq!(made(calls()).retry_after(), None);
    }
}

#[test]
#[cfg(feature = "tokio")]
fn a_store_that_is_late_fails_and_the_others_are_refunded() {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().build().unwrap();
    for store in stores() {
        let (five, two) = limiters(&store);
        let hanging = SlowStore {
            waits: Some([u32::MAX, 0]),
            ..SlowStore::default()
        };
        let late = Limiter::new("late", policy!("9/1h"), Arc::new(hanging) as SharedStore);
        let calls = || {
            let calls = all([take(&five, 1), take(&late, 1), take(&two, 1)]);
            calls.timeout(std::time::Duration::from_millis(50))
        };
        let error = runtime.block_on(calls().into_future()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout);
        assert_eq!(used([&five, &two]), [0; 2]);
        // Without a runtime there is no timeout, so a store must not wait.
        let error = decided(calls()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Configuration);
    }
}

#[test]
fn calls_with_a_given_time_are_refunded_and_settled_at_that_time() {
    let at = Timestamp::from_micros_saturating(100_000_000);
    for store in stores() {
        let (five, two) = limiters(&store);
        let used =
            || [&five, &two].map(|limiter| block_on(limiter.status("k").at(at)).unwrap().used());
        let calls = |cost| {
            let first = five.acquire("k").cost(5).at(at).into();
            all([first, two.acquire("k").cost(cost).at(at).into()])
        };
        assert!(block_on(two.acquire("k").at(at)).unwrap().is_allowed());
        assert!(!admits(calls(2)));
        assert_eq!(used(), [0, 1]);
        let charges = decided(calls(1)).unwrap().into_result().unwrap();
        let settled = block_on(charges[0].settle(3).into_future());
        assert!(settled.unwrap().applied());
        assert_eq!(used(), [3, 2]);
    }
}

#[test]
fn charges_are_settled_refunded_and_moved_into_a_task() {
    for store in stores() {
        let (five, two) = limiters(&store);
        let gold = policy!("50/1h");
        let gold = |cost| take(&two, cost).policy(&gold).own_entry();
        let calls = all([take(&five, 3), gold(2), gold(20), five.peek("k").into()]);
        let calls = Undecided::from(calls.refundable()).into_owned();
        let mut all_of = block_on(calls.decide()).into_owned();
        let permit = all_of.parts()[1].permit().unwrap();
        assert_eq!(permit.key(), b"k");
        assert_eq!(permit.decision().remaining(), 48);
        // The limiter's policy does not admit 20 units, so their charge stays.
        for (place, cost, settles) in [(1, 1, true), (2, 7, false), (0, 0, true)] {
            let part = all_of.part_mut(place).unwrap();
            assert_eq!(block_on(part.settle(cost)).unwrap(), settles);
        }
        assert_eq!(all_of.parts()[1].status().unwrap().remaining(), 29);
        let has_permit = |part: &PartDecision<'_, _>| part.permit().is_some();
        let permits: Vec<bool> = all_of.parts().iter().map(has_permit).collect();
        assert_eq!(permits, [false, false, true, false]);
        assert_eq!(used([&five, &two]), [0, 2]);
        let kept = Part::from(five.acquire("j")).keep_charge();
        let mut both = made(all([take(&five, 1), kept]));
        block_on(both.refund());
        let rest: Vec<_> = both
            .parts()
            .iter()
            .filter_map(PartDecision::permit)
            .collect();
        let keys: Vec<&[u8]> = rest.iter().map(Permit::key).collect();
        assert_eq!((keys, used([&five])), (vec![&b"j"[..]], [0]));
    }
}

#[test]
fn synchronous_stores_decide_without_a_future() {
    let store = Arc::new(ReferenceStore::new());
    let limiter = |name, policy| Limiter::new(name, policy, Arc::clone(&store));
    let five = limiter("five", policy!("5/1h"));
    let two = limiter("two", policy!("2/1h"));
    let calls = |cost| {
        let first = AllOf::new().with(five.acquire("k"));
        first.with(two.acquire("k").cost(cost)).now()
    };
    let charges = calls(1).unwrap().into_result().unwrap();
    assert!(charges[0].refund().now().unwrap().applied());
    assert!(calls(2).unwrap().is_denied());
    let error = calls(3).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::CostExceedsLimit);
    let used = [five, two].map(|limiter| limiter.status("k").now().unwrap().used());
    assert_eq!(used, [0, 1]);
}

/// One call after the other, together, on two logs of which each is one operation, with two separate calls on each log, and with calls on
/// one log that all differ. Each of those is compared with few others.
#[test]
fn a_thousand_calls_take_as_many_round_trips_as_few() {
    for (joins, logs, kind, round_trips) in [
        (false, 1_000, "alike", 1_000),
        (true, 1_000, "alike", 1),
        (false, 2, "alike", 2),
        (true, 2, "alike", 1),
        (true, 500, "separate", 2),
        (true, 1, "timed", 1_000),
    ] {
        let slow = Arc::new(SlowStore {
            joins,
            waits: Some([0, 0]),
            ..SlowStore::default()
        });
        let many = Limiter::new("many", policy!("1000/1h"), slow.clone() as SharedStore);
        let call = |n: u64| match (many.acquire(n % logs), kind) {
            (call, "separate") => Part::from(call).own_entry(),
            (call, "timed") => call.at(Timestamp::from_micros_saturating(n)).into(),
            (call, _) => call.into(),
        };
        let calls = (0..1_000).fold(AllOf::new(), |calls, n| calls.with(call(n)));
        assert!(admits(calls));
        let calls = slow.calls.load(Ordering::Relaxed);
        assert_eq!(calls, round_trips, "{joins}, {logs} logs, {kind}");
        let compared = slow.identities.load(Ordering::Relaxed);
        assert!(compared < 100_000, "{compared} of 1,000,000 for {kind}");
    }
}

/// Dropping a decision is as dropping a single acquire: what was charged by then stays, and no limit is exceeded.
#[test]
fn ten_thousand_aborted_decisions_leave_what_was_charged_by_then() {
    // A hundred calls on each of a hundred keys.
    const EACH: u64 = 100;
    // By the polls before the drop: the first call waits for one poll, and so does the second. A joint call waits once.
    for (joins, polls, left) in [
        (false, 1, [0, 0]),
        (false, 2, [10_000, 0]),
        (false, 3, [10_000, 10_000]),
        (true, 1, [0, 0]),
        (true, 2, [10_000, 10_000]),
    ] {
        let slow = SlowStore {
            joins,
            ..SlowStore::default()
        };
        let store: SharedStore = Arc::new(slow);
        let limiters =
            ["first", "second"].map(|name| Limiter::new(name, policy!("100/1h"), store.clone()));
        for n in 0..EACH * 100 {
            let [first, second] = limiters.each_ref().map(|limiter| limiter.acquire(n / EACH));
            let mut both = pin!(AllOf::new().with(first).with(second).into_future());
            for _ in 0..polls {
                let _ = both.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            }
        }
        let used = |limiter: &Limiter, key| block_on(limiter.status(key)).unwrap().used();
        let total = |limiter| (0..100_u64).map(|key| used(limiter, key)).sum::<u64>();
        assert_eq!(
            limiters.each_ref().map(total),
            left,
            "{joins}, {polls} polls"
        );
        let next = block_on(limiters[0].acquire(0_u64)).unwrap();
        assert_eq!(next.is_allowed(), left[0] == 0, "never above the maximum");
    }
}
