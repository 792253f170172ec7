//! Leases: what is decided without the store, and when the store is asked.

use limiter_core::store::{JointOp, Op};
use limiter_core::{Policy, SyncStore, WindowStore, policy};
use limiter_testkit::ReferenceStore;

use crate::script::{Build, Scene, bare, step_system_clock};

const ERROR: Build = |stack| stack.denial_cache_capacity(100_000).or_error();
const ONE_PLACE: Build = |stack| stack.denial_cache_capacity(1).or_error();
const OPEN: Build = |stack| stack.denial_cache_capacity(100_000).fail_open();

/// The rule, the policy, the stack and the script. A lease of 10 minutes can be spent for 590,625 ms.
const CASES: [(&str, &str, Build, &str); 25] = [
    (
        "the eighth acquire within a lease takes a block of eight; each next block is twice as large",
        "1000/1h+10m",
        ERROR,
        "burst k 7 = 7, used k = 7, burst k 1 = 1, used k = 16, burst k 8 = 0, used k = 16, burst k 1 = 1, used k = 33, \
         burst k 16 = 0, burst k 33 = 1, used k = 66",
    ),
    (
        "fewer within a lease take none",
        "1000/1h+10m",
        ERROR,
        "burst k 60 1 85715 = 60, used k = 49",
    ),
    (
        "nothing is spent at exactly 63/64 of the lease after sending, and a block that was not used up is followed by half",
        "1000/1h+10m",
        ERROR,
        "burst k 8 = 8, wait 590623, burst k 1 = 0, burst k 1 = 1, used k = 17, burst k 3 = 3, used k = 20, burst k 1 = 1, \
         used k = 29",
    ),
    (
        "a slow reply shortens the block",
        "1000/1h+10m",
        ERROR,
        "burst k 7 = 7, AAL, burst k 1 = 1, AAA, wait 589623, burst k 1 = 0, burst k 1 = 1",
    ),
    (
        "a reply after the end leaves no block",
        "1000/1h+1s",
        ERROR,
        "burst k 7 = 7, AAL, burst k 1 = 1, AAA, used k = 16, burst k 1 = 1, used k = 17",
    ),
    (
        "no block after a round trip of half a lease, until a faster one",
        "1000/1h+1s",
        ERROR,
        "AAL, crowd k 16 = 16, crowd k 16 = 16, AAA, used k = 32, crowd k 16 = 16, used k = 48, crowd k 32 = 32, used k = 112",
    ),
    (
        "the system's clock also ends a block: at its end, or when it steps back",
        "1000/1h+10m",
        ERROR,
        "burst k 8 = 8, clock 590000, burst k 1 = 0, clock 590620, burst k 1 = 0, clock 590625, burst k 1 = 1",
    ),
    (
        "a step back",
        "1000/1h+10m",
        ERROR,
        "burst k 8 = 8, clock -5, burst k 4 = 4, used k = 20",
    ),
    (
        "all but plain acquires go to the store",
        "1000/1h+10m",
        ERROR,
        "burst k 8 = 8, calls = 8, acquire k 1 permit, acquire k 1 id 7, record k, peek k, acquire k 1 by 900/1h+10m, \
         acquire k 1 by 1000/1h, acquire k 1 at 1700000099, calls = 7, used k at 1700000099 = 22, burst k 4 = 0",
    ),
    (
        "a policy that counts attempts takes none",
        "1000/1h+10m attempts",
        ERROR,
        "acquire k 1, acquire k 1, acquire k 1, acquire k 1, acquire k 1, acquire k 1, acquire k 1, acquire k 1, \
         acquire k 1, acquire k 1, calls = 10, used k = 10",
    ),
    (
        "a limit with a lease and one without take no block",
        "1000/1h+10m, 900/1h",
        ERROR,
        "acquire k 1, acquire k 1, acquire k 1, acquire k 1, acquire k 1, acquire k 1, acquire k 1, acquire k 1, \
         acquire k 1, acquire k 1, calls = 10, used k = 10",
    ),
    (
        "the shortest lease counts",
        "1000/1h+10m, 900/1h+1s",
        ERROR,
        "burst k 8 = 8, used k = 16, wait 983, burst k 1 = 0, burst k 1 = 1",
    ),
    (
        "at most half of what remained, and none below eight acquires",
        "40/1h+10m",
        ERROR,
        "burst k 8 = 8, burst k 8 = 0, burst k 1 = 1, used k = 29, burst k 12 = 0, burst k 11 = 11, used k = 40, \
         acquire k 1 = denied",
    ),
    (
        "a small limit at nine a second",
        "60/6400ms+100ms",
        ERROR,
        "burst k 56 1 111 = 56, used k = 56",
    ),
    (
        "whole multiples of the cost",
        "100/1h+10m",
        ERROR,
        "burst k 8 3 = 8, used k = 48, burst k 8 3 = 0, burst k 1 3 = 1, used k = 75, burst k 8 3 = 0, used k = 75",
    ),
    (
        "a higher cost goes to the store, and leaves the block",
        "1000/1h+10m",
        ERROR,
        "burst k 8 = 8, burst k 1 9 = 1, used k = 25, burst k 8 = 0, used k = 25",
    ),
    (
        "refused with a block and admitted without: one decision, two calls",
        "1000/1h+10m",
        ERROR,
        "burst k 7 = 7, take k 990 = true, calls = 7, acquire k 1, calls = 2, used k = 998, acquire k 1, calls = 1",
    ),
    (
        "refused without: cached once, with the wait of the cost alone",
        "1000/1h+10m",
        ERROR,
        "burst k 7 = 7, take k 993 = true, calls = 7, acquire k 1 = denied, calls = 2, acquire k 1 = denied, calls = 0, \
         wait 500, shown k = 1000 4199.492s",
    ),
    (
        "a lost reply is never spent, and a failed request lets the next one ask",
        "1000/1h+10m",
        ERROR,
        "burst k 7 = 7, AAX, acquire k 1 = lost, AAA, used k = 16, burst k 7 = 7, used k = 23, burst k 1 = 1, used k = 40",
    ),
    (
        "one block is asked for at a time; a dropped request lets the next one ask",
        "1000/1h+10m",
        ERROR,
        "burst k 7 = 7, crowd k 5 = 5, used k = 20, burst k 8 = 0, reset k = true, burst k 7 = 7, drop k, burst k 7 = 7, \
         burst k 1 = 1, used k = 31",
    ),
    (
        "a reset drops the block",
        "1000/1h+10m",
        ERROR,
        "burst k 8 = 8, reset k = true, burst k 1 = 1, used k = 1",
    ),
    (
        "an outage: the block is spent, then errors",
        "1000/1h+10m",
        ERROR,
        "burst k 8 = 8, RRR, burst k 8 = 0, acquire k 1 = refused, AAA, used k = 16",
    ),
    (
        "nothing is taken from a stand-in",
        "1000/1h+10m",
        OPEN,
        "burst k 8 = 8, RRR, burst k 8 = 0, acquire k 1, acquire k 1, acquire k 1, acquire k 1, acquire k 1, acquire k 1, \
         acquire k 1, acquire k 1, AAA, used k = 16, burst k 1 = 1",
    ),
    (
        "a block that can be spent keeps its place",
        "1000/1h+10m",
        ONE_PLACE,
        "burst a 8 = 8, burst b 20 = 20, used b = 20, burst a 8 = 0, burst b 8 = 8, used b = 36, burst b 8 = 0",
    ),
    (
        "also from another policy on the same log",
        "1000/1h+10m",
        ERROR,
        "burst k 8 = 8, acquire k 1 by 900/1h+10m, acquire k 1 by 900/1h+10m, used k = 18, calls = 10, burst k 8 = 0, calls = 0",
    ),
];

#[tokio::test(start_paused = true)]
async fn leases_do_what_they_say() {
    for (rule, policy, build, script) in CASES {
        println!("{rule}");
        Scene::new(policy, build).play(script).await;
    }
}

static POLICY: Policy = policy!("1000/1h+10m");

/// Several operations as one, on a store of 1000 units for each key. An upper case letter keeps its charge, `-` makes it advisory.
#[tokio::test(start_paused = true)]
async fn several_operations_are_decided_from_blocks_if_blocks_cover_all() {
    for (rule, steps) in [
        (
            "from blocks, without a call",
            "ab*8 = 8 a16 b16, ab*8 = 0 a16 b16, ab*1 = 1 a33 b33",
        ),
        (
            "one block is short: one call, with a block for that one, and nothing is spent twice",
            "ab*8 = 8 a16 b16, a*1 = 0 a16, ab*7 = 0 a16 b16, ab*1 = 1 a33 b17, b*1 = 0 b17, b*1 = 1 b34",
        ),
        (
            "refused with blocks, all are decided again without",
            "ab*7 = 7 a7 b7, !b990 = 0 b997, ab*1 = 2 a8 b998, ab*2 = 2 a10 b1000, ab*1 = 1 a10 b1000",
        ),
        (
            "a rule that keeps its charge: no blocks are taken, and blocks are spent",
            "Ab*20 = 20 a20 b20, a*8 = 8 a36, b*8 = 8 b36, Ab*8 = 0 a36 b36",
        ),
        (
            "an advisory rule takes no block",
            "a-b*8 = 8 a8 b16, a-b*8 = 8 a16 b24",
        ),
    ] {
        println!("{rule}");
        let remote = testbed::Faulty::<ReferenceStore>::default();
        step_system_clock(0);
        let store = bare(remote.clone())
            .denial_cache_capacity(100)
            .seed(1)
            .or_error();
        for step in steps.split(", ") {
            let (calls, expected) = step.split_once(" = ").unwrap();
            let before = remote.calls();
            if let Some(taken) = calls.strip_prefix('!') {
                let acquire =
                    Op::acquire(&taken[..1], &POLICY).with_cost(taken[1..].parse().unwrap());
                assert!(remote.store().apply_now(&acquire).admitted);
            } else {
                let (keys, times) = calls.split_once('*').unwrap();
                let keys: Vec<String> = keys
                    .chars()
                    .map(|c| c.to_ascii_lowercase().to_string())
                    .collect();
                let mut ops: Vec<JointOp<'_>> = Vec::new();
                for (key, char) in keys.iter().zip(calls.chars()) {
                    match char {
                        '-' => ops.last_mut().unwrap().is_advisory = true,
                        _ => ops.push(JointOp {
                            keeps_charge: char.is_ascii_uppercase(),
                            ..Op::acquire(key, &POLICY).into()
                        }),
                    }
                }
                for _ in 0..times.parse().unwrap() {
                    let facts = store.apply_all(&ops).await.unwrap().unwrap();
                    assert!(
                        facts
                            .iter()
                            .all(|facts| !facts.as_ref().unwrap().refundable)
                    );
                    for (joint, facts) in ops.iter().zip(&facts) {
                        let facts = facts.as_ref().unwrap();
                        facts.verify(&joint.described_by(facts)).unwrap();
                    }
                }
            }
            let mut found = (remote.calls() - before).to_string();
            for key in expected.split(' ').skip(1).map(|text| &text[..1]) {
                let used = remote.store().apply_now(&Op::peek(key, &POLICY)).log.usage[0].used;
                found += &format!(" {key}{used}");
            }
            assert_eq!(found, expected, "{step}, in {steps}");
        }
    }
}
