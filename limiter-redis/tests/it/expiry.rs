//! Every key has a time to live, long enough for its log, and nothing stays once the windows have passed.

use std::time::{Duration, Instant};

use futures::future::join_all;
use limiter_core::store::{EntryId, LogKey, Op, Settlement};
use limiter_core::{Counting, Limiter, Name, Policy, WindowStore, policy};
use testbed::server::Server;

use crate::support::{at, calls, connect, random_below, run, ttl, until};

#[tokio::test]
async fn every_key_expires_and_nothing_stays() {
    let server = Server::start().unwrap();
    let store = connect(&server.url()).await;
    let policies = [
        policy!("3/300ms"),
        policy!("2/100ms, 3/400ms").with_counting(Counting::Attempts),
    ];
    let mut pick = random_below(7);
    for n in 0..2_000_u64 {
        let (key, policy) = (format!("k{}", pick(50)), &policies[pick(2) as usize]);
        let mut op = Op::acquire(&key, policy).with_cost(1 + pick(2));
        if n % 3 == 0 {
            op = op.with_id(u128::from(pick(8_192)));
        }
        if n % 2 == 0 {
            op = op.with_limiter_policy(&policies[0]);
        }
        let decision = run(&store, op).await.unwrap();
        if let Some(receipt) = decision.receipt().filter(|_| n % 5 == 0) {
            let settlement = Settlement::new(op.log, policy, receipt, pick(8));
            store
                .settle(settlement)
                .await
                .unwrap()
                .verify(&settlement)
                .unwrap();
        }
        if n % 500 == 0 {
            for k in 0..50 {
                // -1 is a key without a time to live; -2 is none.
                assert_ne!(
                    ttl(
                        &server,
                        &store,
                        LogKey::new(Name::default(), &format!("k{k}"))
                    ),
                    -1
                );
            }
        }
    }
    until("all keys expire", async || {
        server.command::<i64>(&["DBSIZE"]).unwrap() == 0
    })
    .await;
}

/// Not every append sets the time to live. It must be long enough after each, regardless of earlier appends and refunds.
#[tokio::test]
async fn a_key_lives_as_long_as_its_log_counts() {
    let server = Server::start().unwrap();
    let store = connect(&server.url()).await;
    let policies = [
        "30ms",
        "1s",
        "1001ms",
        "60s",
        "1h",
        "60s~100ms",
        "1s, 1000000/1h~1m",
    ]
    .map(|window| {
        let policy: Policy = format!("1000000/{window}").parse().unwrap();
        (
            Duration::from_micros(policy.longest_window().as_micros()),
            policy,
        )
    });
    let mut random = random_below(11);
    let mut pick = |below: usize| random(below as u64) as usize;
    let mut receipts = Vec::new();
    for n in 0..2_000_u128 {
        let log = LogKey::new(Name::default(), ["one", "other"][pick(2)]);
        // Usually the same policy again.
        let same = 3 + (n / 500) as usize;
        let (window, policy) = &policies[if pick(3) == 0 {
            pick(policies.len())
        } else {
            same
        }];
        let mut op = Op::acquire(log.key, policy).with_cost(1 + pick(2) as u64);
        let mut longest = *window;
        if pick(4) == 0 {
            let (window, default) = &policies[pick(policies.len())];
            op = op.with_limiter_policy(default);
            longest = longest.max(*window);
        }
        if pick(8) == 0 && op.receipt_window().is_some() {
            op = op.with_id(n);
        }
        let begun = Instant::now();
        let decision = run(&store, op).await.unwrap();
        let ttl = ttl(&server, &store, log);
        let least = i64::try_from(longest.saturating_sub(begun.elapsed()).as_millis()).unwrap() - 1;
        // A log may have expired in the meantime.
        assert!(
            ttl >= least || (least < 0 && ttl == -2),
            "{n}: {ttl} ms, expected at least {least} ms"
        );
        assert_ne!(ttl, -1);
        receipts.extend(decision.receipt().map(|receipt| (log, receipt)));
        // The newest entry, or the two newest.
        for _ in 0..pick(3) {
            if let Some((log, receipt)) = receipts.pop() {
                store
                    .settle(Settlement::new(log, policy, receipt, 0))
                    .await
                    .unwrap();
            }
        }
    }
    let set = || calls(&server)["pexpireat"];
    let (begun, before) = (Instant::now(), set());
    for _ in 0..200 {
        assert!(
            run(&store, Op::acquire("third", &policies[3].1))
                .await
                .unwrap()
                .is_allowed()
        );
    }
    // A cell of this window has 2 s.
    let most = 2 + begun.elapsed().as_secs();
    let set = set() - before;
    assert!((1..=most).contains(&set), "set {set} times by 200 appends");
}

/// An operation with a shorter policy must not let Redis forget what the limiter's own policy counts.
#[tokio::test]
async fn a_key_lives_by_the_longer_window_of_the_operation_and_its_limiter() {
    const HOUR: i64 = 3_600_000;
    let server = Server::start().unwrap();
    let limiter = Limiter::new(
        "search",
        policy!("3/1s, 100/1h"),
        connect(&server.url()).await,
    );
    // An eighth more at most, less what a slow machine takes to ask. At a given time, a minute more than the window.
    let expect = |key: &str, least: i64, most: i64| {
        let ttl = ttl(&server, limiter.store(), LogKey::new(limiter.name(), key));
        assert!(
            (least - 20_000..=most).contains(&ttl),
            "{key}: {ttl}, expected {least} to {most}"
        );
    };
    let (second, short, day) = (policy!("1/1s"), policy!("50/1s"), policy!("1000/1d"));
    let receipt = limiter
        .acquire("new")
        .policy(&short)
        .await
        .unwrap()
        .receipt()
        .unwrap();
    assert_eq!(receipt.window(), limiter.policy().longest_window());
    expect("new", HOUR, HOUR * 9 / 8);
    assert!(
        limiter
            .acquire("day")
            .policy(&day)
            .await
            .unwrap()
            .is_allowed()
    );
    expect("day", 24 * HOUR, 27 * HOUR);
    assert!(
        limiter
            .acquire("given")
            .policy(&short)
            .at(at(0))
            .await
            .unwrap()
            .is_allowed()
    );
    expect("given", HOUR + 60_000, HOUR + 60_001);
    let op = Op::acquire("given", &second)
        .at(at(0))
        .with_name(limiter.name());
    limiter.reset("given").await.unwrap();
    limiter.store().apply(op).await.unwrap();
    expect("given", 61_000, 61_001);

    for (key, id) in [("old", None), ("old with an id", Some(7_u128))] {
        assert!(limiter.acquire(key).await.unwrap().is_allowed());
        for n in 0..20 {
            let request = limiter.record(key).policy(&short).cost(1 + n % 2);
            let decision = match id {
                Some(id) => request.idempotency_key(id + u128::from(n)).await.unwrap(),
                None => request.await.unwrap(),
            };
            assert!(decision.appended());
        }
        expect(key, HOUR, HOUR * 9 / 8);
        assert_eq!(
            limiter.status(key).await.unwrap().limits()[1].used(),
            31,
            "{key}"
        );
    }
}

/// The script drops thousands of entries. Meanwhile the window of the new one passes, and Redis removes the key.
#[tokio::test]
async fn an_append_that_outlasts_its_window_decides() {
    const ENTRIES: u64 = 20_000;
    let server = Server::start().unwrap();
    let store = connect(&server.url()).await;
    let (long, short) = (policy!("100000/1h"), policy!("3/1us"));
    for id in [None, Some(7)] {
        let op = Op::record("k", &long);
        for first in (0..ENTRIES).step_by(1_000) {
            let records = (first..first + 1_000).map(|n| run(&store, op.with_id(u128::from(n))));
            assert!(
                join_all(records)
                    .await
                    .into_iter()
                    .all(|done| done.unwrap().appended())
            );
        }
        let mut op = Op::acquire("k", &short);
        op.id = id.map(EntryId::from_u128);
        let decision = run(&store, op).await.unwrap();
        assert!(
            (decision.is_allowed(), decision.used()) == (true, 1),
            "{decision:?}"
        );
        until("the key expires", async || {
            server.command::<i64>(&["DBSIZE"]).unwrap() == 0
        })
        .await;
    }
}
