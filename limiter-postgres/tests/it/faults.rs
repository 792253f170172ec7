//! Faults of the server, of the pool and of the data.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use limiter_core::store::LogKey;
use limiter_core::{ErrorKind, Limiter, Name, policy};
use limiter_postgres::{PostgresStore, PostgresTable};
use testbed::server::Postgres;

use crate::{TIMEOUT, pool, store};

/// The table is durable, so what the server confirmed before the kill counts after it.
#[tokio::test(flavor = "multi_thread")]
async fn no_window_admits_more_when_the_server_is_killed_under_load() {
    const MAX: u64 = 2_000;
    let mut server = Postgres::start().unwrap();
    let limiters = [store(&server.url()).await, store(&server.url()).await];
    let limiters =
        limiters.map(|store| Arc::new(Limiter::new("killed", policy!("2000/1h"), store)));
    let admitted = Arc::new(AtomicU64::new(0));
    let call = |i: usize| {
        let limiter = limiters[i % 2].clone();
        let admitted = admitted.clone();
        tokio::spawn(async move {
            let mut errors = Vec::new();
            loop {
                match limiter.acquire("one").await {
                    Ok(decision) if decision.is_allowed() => {
                        _ = admitted.fetch_add(1, Ordering::SeqCst);
                    }
                    Ok(_) => return errors,
                    Err(error) => {
                        errors.push(error.kind());
                        tokio::time::sleep(Duration::from_millis(5)).await;
                    }
                }
            }
        })
    };
    let tasks: Vec<_> = (0..16).map(call).collect();
    let reach = async |count| {
        while admitted.load(Ordering::SeqCst) < count {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, reach(200)).await.unwrap();
    let before = admitted.load(Ordering::SeqCst);
    tokio::task::block_in_place(|| server.restart()).unwrap();
    tokio::time::timeout(TIMEOUT, reach(before + 200))
        .await
        .expect("the stores recover by themselves");
    let mut errors = Vec::new();
    for task in tasks {
        errors.extend(
            tokio::time::timeout(TIMEOUT * 2, task)
                .await
                .unwrap()
                .unwrap(),
        );
    }
    let admitted = admitted.load(Ordering::SeqCst);
    // The lost responses count, at most one batch of each process at each of the few attempts during the kill.
    assert!((MAX - 200..=MAX).contains(&admitted), "{admitted} admitted");
    assert!(
        !errors.is_empty()
            && errors
                .iter()
                .all(|kind| matches!(kind, ErrorKind::Unavailable | ErrorKind::Timeout)),
        "{errors:?}"
    );
}

#[tokio::test]
async fn a_used_up_pool_is_a_timeout_and_then_serves_again() {
    // Its own, because it locks the table.
    let server = Postgres::start().unwrap();
    let pool = pool(&server.url(), 1);
    let table = PostgresTable::new(pool.clone()).timeout(TIMEOUT);
    table.create().await.unwrap();
    let limiter = |table| Limiter::new("pool", policy!("5/1h"), PostgresStore::new(table));
    let search = limiter(table.clone());
    assert!(search.acquire("one").await.unwrap().is_allowed());
    let impatient = limiter(table.timeout(Duration::from_millis(100)));
    let taken = pool.get().await.unwrap();
    let error = impatient.acquire("one").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    drop(taken);
    assert!(search.acquire("one").await.unwrap().is_allowed());
    // A request that hangs is cancelled, and then its connection serves others.
    let client = pool.get().await.unwrap();
    client
        .batch_execute("BEGIN; LOCK TABLE limiter_logs")
        .await
        .unwrap();
    let busy = crate::pool(&server.url(), 1);
    let table = PostgresTable::new(busy.clone()).timeout(Duration::from_millis(300));
    let other = limiter(table);
    assert_eq!(
        other.acquire("one").await.unwrap_err().kind(),
        ErrorKind::Timeout
    );
    // In the transaction, the other client would always see the same.
    let watching = crate::client(&server).await;
    let waiting = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
    let cancelled = async || match watching.query(waiting, &[]).await.unwrap().len() {
        0 => Ok(()),
        waiting => Err(waiting),
    };
    crate::eventually(cancelled).await;
    client.batch_execute("ROLLBACK").await.unwrap();
    crate::eventually(async || crate::acquire(&other, "one").await).await;
    assert_eq!(busy.status().size, 1);
}

#[tokio::test]
async fn a_table_that_is_gone_and_a_damaged_row_are_errors_that_say_what_to_do() {
    let server = Postgres::start().unwrap();
    let pool = pool(&server.url(), 2);
    let table = PostgresTable::new(pool.clone()).timeout(TIMEOUT);
    let search = Limiter::new("search", policy!("5/1h"), PostgresStore::new(table.clone()));
    let error = search.acquire("one").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Configuration);
    assert!(
        error
            .to_string()
            .ends_with("(create it with PostgresTable::create or limiter_postgres::SCHEMA)"),
        "{error}"
    );
    let (first, second) = tokio::join!(table.create(), table.create());
    first.and(second).unwrap();
    assert_eq!(search.acquire("one").await.unwrap().used(), 1);

    let client = pool.get().await.unwrap();
    let key = limiter_log::stored_key(LogKey::new(Name::new("search"), "one"));
    let damage = client
        .execute("UPDATE limiter_logs SET log = 'x' WHERE key = $1", &[&key])
        .await;
    assert_eq!(damage.unwrap(), 1);
    let error = search.acquire("one").await.unwrap_err();
    assert_eq!(
        (error.kind(), error.key()),
        (ErrorKind::Corrupt, Some(&b"one"[..]))
    );
    assert!(search.reset("one").await.unwrap() && !search.reset("one").await.unwrap());
    assert_eq!(search.acquire("one").await.unwrap().used(), 1);

    // Expired logs are deleted, and no others.
    let short = Limiter::new("short", policy!("5/1ms"), PostgresStore::new(table.clone()));
    assert!(short.acquire("one").await.unwrap().is_allowed());
    let rows = "INSERT INTO limiter_logs SELECT int4send(i), '', now() + interval '1h' * (-1) ^ i FROM generate_series(1, 2500) i";
    client.batch_execute(rows).await.unwrap();
    tokio::time::sleep(Duration::from_millis(5)).await;
    assert_eq!(
        (table.sweep().await.unwrap(), table.sweep().await.unwrap()),
        (1251, 0)
    );
}
