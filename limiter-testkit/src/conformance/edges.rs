//! The ends of every range: keys, costs, times, windows, numbers of limits.

use limiter_core::store::Mode;
use limiter_core::{MAX_COST, Policy, Timestamp, Window};

use super::case::{Case, CaseLimiter, Operation, Step};
use super::strategy::{START, limit, policy};

fn run(mode: Mode, cost: u64) -> Step {
    at(0, mode, cost)
}

fn at(after: i64, mode: Mode, cost: u64) -> Step {
    Step { after, operation: Operation::Run { mode, limiter: 0, key: 0, policy: 0, cost, id: None } }
}

fn settle(receipt: u8, cost: u64) -> Step {
    Step { after: 0, operation: Operation::Settle { receipt, cost, policy: 0 } }
}

fn reset() -> Step {
    Step { after: 0, operation: Operation::Reset { limiter: 0, key: 0 } }
}

fn under(mut step: Step, other: u8) -> Step {
    if let Operation::Run { policy, .. } | Operation::Settle { policy, .. } = &mut step.operation {
        *policy = other;
    }
    step
}

fn on(mut step: Step, other: u8) -> Step {
    if let Operation::Run { key, .. } | Operation::Reset { key, .. } = &mut step.operation {
        *key = other;
    }
    step
}

fn by(mut step: Step, other: u8) -> Step {
    if let Operation::Run { limiter, .. } | Operation::Reset { limiter, .. } = &mut step.operation {
        *limiter = other;
    }
    step
}

fn with_id(mut step: Step, other: u8) -> Step {
    if let Operation::Run { id, .. } = &mut step.operation {
        *id = Some(other);
    }
    step
}

use Mode::{Acquire, Peek, Record};

/// Cases by name.
pub(super) fn cases() -> Vec<(&'static str, Case)> {
    let case = |policies: Vec<Policy>, start, steps: &[Step]| {
        let limiters = vec![CaseLimiter::NONE];
        Case { policies, limiters, start, steps: steps.to_vec() }
    };
    let one = |max, window| vec![policy(&[limit(max, window)], false)];
    let longest = Window::MAX.as_micros();
    let last = Timestamp::MAX.as_micros();
    let eight: Vec<_> = (1..=8).map(|n| limit(n, n * 3)).collect();
    let many_costs = [
        run(Acquire, 0),
        run(Peek, 0),
        run(Record, 0),
        run(Acquire, 6),
        run(Peek, 6),
        run(Acquire, u64::MAX),
        run(Peek, u64::MAX),
        run(Acquire, 5),
        run(Record, u64::MAX),
        run(Peek, 5),
        settle(1, u64::MAX),
        settle(0, u64::MAX),
        settle(1, 2),
    ];
    let full_meter = [run(Record, MAX_COST), run(Acquire, 1), run(Acquire, MAX_COST), settle(0, MAX_COST - 1)];
    let ends =
        [run(Acquire, 1), run(Acquire, 1), at(-1, Acquire, 1), at(2, Acquire, 1), at(9, Acquire, 2), run(Peek, 1)];
    let policy_change = [
        run(Acquire, 3),
        at(4, Acquire, 2),
        under(run(Peek, 1), 1),
        under(at(5, Acquire, 1), 1),
        at(1, Peek, 1),
        under(run(Acquire, 1), 2),
        run(Peek, 1),
        settle(0, 1),
        settle(1, 0),
    ];
    let attempts = [run(Acquire, 2), run(Acquire, 2), run(Acquire, 2), run(Acquire, 1), settle(0, 0), settle(3, 0)];
    let ids = [
        with_id(run(Acquire, 2), 1),
        with_id(at(5, Acquire, 2), 1),
        with_id(at(0, Record, 9), 1),
        settle(0, 0),
        settle(0, 0),
        with_id(at(1, Acquire, 1), 1),
        settle(0, 0),
        with_id(at(20, Acquire, 1), 1),
        with_id(at(9, Record, 9), 2),
        with_id(at(0, Record, 9), 2),
        with_id(at(0, Acquire, 1), 3),
        with_id(at(10, Acquire, 1), 3),
        with_id(at(0, Peek, 1), 3),
    ];
    // Through one limiter whose default policy is the first, under each policy in turn: shorter, longer, smaller, larger.
    let alternating: Vec<Step> = (0..4)
        .flat_map(|_| (0..5).flat_map(|policy| [under(at(3, Acquire, 1), policy), under(at(1, Record, 2), policy)]))
        .flat_map(|step| [step, run(Peek, 1)])
        .chain([settle(0, 0), under(settle(3, 4), 1), at(40, Acquire, 1), run(Peek, 1)])
        .collect();
    let through = |policies: Vec<Policy>, limiters: &[CaseLimiter], steps: &[Step]| Case {
        limiters: limiters.to_vec(),
        ..case(policies, START, steps)
    };
    let default = [CaseLimiter { name: 0, policy: Some(0) }];
    let five = |attempts| {
        let limits = [[limit(6, 30)], [limit(6, 5)], [limit(6, 90)], [limit(2, 30)], [limit(20, 30)]];
        limits.map(|limits| policy(&limits, attempts)).to_vec()
    };
    let hour = vec![policy(&[limit(3, 10), limit(100, 3_600)], false), policy(&[limit(50, 10)], false)];
    let gold = [
        run(Acquire, 1),
        run(Acquire, 2),
        under(at(20, Acquire, 1), 1),
        run(Peek, 1),
        under(run(Acquire, 49), 1),
        under(run(Acquire, 1), 1),
        run(Peek, 1),
        under(at(10, Record, 60), 1),
        run(Peek, 1),
        at(3_570, Peek, 1),
        at(20, Peek, 1),
        at(11, Acquire, 1),
    ];
    let repeated = [
        with_id(run(Acquire, 1), 1),
        under(with_id(at(20, Acquire, 1), 1), 1),
        under(run(Peek, 1), 1),
        run(Peek, 1),
        under(with_id(at(3_579, Record, 1), 1), 1),
        under(with_id(at(1, Record, 1), 1), 1),
        settle(0, 2),
        settle(4, 2),
        run(Peek, 1),
    ];
    let two = [CaseLimiter { name: 0, policy: Some(0) }, CaseLimiter { name: 1, policy: Some(1) }];
    let names = [
        run(Acquire, 2),
        by(under(run(Acquire, 1), 1), 1),
        by(under(run(Peek, 1), 1), 1),
        run(Peek, 1),
        with_id(run(Acquire, 1), 1),
        by(with_id(under(run(Acquire, 1), 1), 1), 1),
        settle(0, 0),
        by(under(run(Peek, 1), 1), 1),
        settle(1, 2),
        run(Peek, 1),
        reset(),
        by(under(run(Peek, 1), 1), 1),
        by(reset(), 1),
        by(reset(), 1),
    ];
    let three = [on(run(Acquire, 1), 0), on(run(Acquire, 1), 1), on(run(Acquire, 1), 2)];
    vec![
        ("costs", case(one(5, 10), START, &many_costs)),
        ("costs counting attempts", case(vec![policy(&[limit(5, 10)], true)], START, &many_costs)),
        ("a full meter", case(one(MAX_COST, 10), START, &full_meter)),
        ("the shortest window", case(one(1, 1), START, &ends)),
        ("the longest window", case(one(3, longest), START, &ends)),
        ("the longest window at the beginning of time", case(one(3, longest), 0, &ends)),
        ("the beginning of time", case(one(3, 10), 0, &ends)),
        ("the end of time", case(one(3, 10), last - 5, &ends)),
        ("the longest window at the end of time", case(one(3, longest), last, &ends)),
        ("eight limits", case(vec![policy(&eight, false)], START, &[ends, ends].concat())),
        ("eight limits counting attempts", case(vec![policy(&eight, true)], START, &[ends, ends].concat())),
        ("another policy on a key", case([one(5, 10), one(2, 5), one(4, 100)].concat(), START, &policy_change)),
        ("dropped attempts", case(vec![policy(&[limit(3, 10)], true)], START, &attempts)),
        ("ids", case(one(3, 10), START, &ids)),
        ("ids counting attempts", case(vec![policy(&[limit(3, 10)], true)], START, &ids)),
        ("several keys", case(one(1, 10), START, &[three, three].concat())),
        ("another policy keeps what the default counts", through(hour.clone(), &default, &gold)),
        ("an id is repeated under another policy", through(hour.clone(), &default, &repeated)),
        ("alternating policies", through(five(false), &default, &alternating)),
        ("alternating policies counting attempts", through(five(true), &default, &alternating)),
        ("alternating policies without a limiter", case(five(false), START, &alternating)),
        ("two limiters on one key", through([one(3, 10), one(2, 100)].concat(), &two, &names)),
    ]
}

/// Keys that a store might confuse with one another or with something of its own.
pub(super) fn keys(prefix: &str) -> Vec<[Vec<u8>; 3]> {
    let key = |end: &[u8]| [prefix.as_bytes(), end].concat();
    let long = vec![b'k'; 1 << 20];
    let other = [&long[1..], b"!"].concat();
    vec![
        [key(b""), key(b":"), key(b"::")],
        [key(b"{a}"), key(b"{a}b"), key(b"{}{a}")],
        [key(b"\0"), key(b"\0\0"), key(b"\xff\xfe\r\n")],
        [key(b"\xff"), key(b"\xfe"), key("\u{fffd}".as_bytes())],
        [key(b"A"), key(b"a"), key("a\u{308}".as_bytes())],
        [key(b"*"), key(b"?"), key(b"[a]")],
        [key(&long), key(&long[1..]), key(&other)],
    ]
}
