//! During a fault, the database has no more backends than the pool has connections; afterwards, the same stores decide again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use limiter_core::store::{JointOp, Log, LogKey, Op};
use limiter_core::{Decision, Error, ErrorKind, Limiter, Name, Policy, WindowStore, policy};
use limiter_log::{Change, New, Table, stored_key};
use limiter_postgres::{PostgresStore, PostgresTable, PostgresUrl};
use testbed::postgres::{LOCKED_TABLE, NO_STANDBY, READ_ONLY, TERMINATE};
use testbed::server::{PgBouncer, Postgres};
use testbed::{Network, Proxy};
use tokio::time::{Instant, advance, pause, resume, sleep};
use tokio_postgres::{NoTls, connect};

use crate::{SERVER, acquire, client, eventually, opened, patient, run, shortly, store};

const KEYS: [&str; 5] = ["0", "1", "2", "3", "4"];
static POLICY: Policy = policy!("1000000/1h");

/// Returns the URL of a server behind a proxy.
fn through(proxy: &Proxy, server: &Postgres) -> String {
    let [server_address, proxy_address] =
        [server.address(), proxy.address()].map(|a| a.to_string());
    server.url().replace(&server_address, &proxy_address)
}

#[tokio::test(flavor = "multi_thread")]
async fn no_fault_takes_more_backends_than_the_pool_has_connections() {
    const POOL: i64 = 3;
    let server = Postgres::start().unwrap();
    let faulty = client(&server).await;
    let watching = client(&server).await;
    let search = Arc::new(opened(&format!("{}?pool={POOL}", server.url())));
    for key in KEYS {
        eventually(async || acquire(&search, key).await).await;
    }
    // How many calls one caller makes in a time.
    let throughput = async || {
        let start = Instant::now();
        let mut calls = 0;
        while start.elapsed() < Duration::from_millis(300) {
            calls += u64::from(acquire(&search, KEYS[0]).await.is_ok());
        }
        calls
    };
    let before = throughput().await;
    let row = stored_key(LogKey::new(Name::new("search"), KEYS[0]));
    let row = String::from_utf8(row).unwrap();
    let lock = format!("BEGIN; SELECT FROM limiter_logs WHERE key = '{row}' FOR UPDATE");
    for ([begin, end], kind) in [
        ([&*lock, "ROLLBACK"], ErrorKind::Timeout),
        (LOCKED_TABLE, ErrorKind::Timeout),
        (NO_STANDBY, ErrorKind::Timeout),
        (READ_ONLY, ErrorKind::Unavailable),
    ] {
        let decided = Arc::new([const { AtomicU64::new(0) }; 2]);
        run(&faulty, begin).await;
        let start = Instant::now();
        let mut most = 0;
        for call in 0.. {
            if start.elapsed() > Duration::from_secs(3) {
                break;
            }
            let search = search.clone();
            let decided = decided.clone();
            tokio::spawn(async move {
                let key = KEYS[call % KEYS.len()];
                let is_decided = acquire(&search, key).await.is_ok();
                decided[usize::from(is_decided)].fetch_add(1, SeqCst);
            });
            let backends =
                "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'limiter'";
            let backends = watching.query_one(backends, &[]).await.unwrap();
            most = most.max(backends.get::<_, i64>(0));
            sleep(Duration::from_millis(10)).await;
        }
        // On a busy machine, some connections are made too late to see why they fail.
        eventually(async || match search.acquire(KEYS[0]).await {
            Err(error) if error.kind() == kind => Ok(()),
            other => Err(other),
        })
        .await;
        if begin == lock {
            eventually(async || acquire(&search, KEYS[1]).await).await;
        }
        // Requests that wait for a lock are cancelled.
        let waiting = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
        let cancelled = async || match watching.query(waiting, &[]).await.unwrap().len() {
            0 => Ok(()),
            waiting => Err(waiting),
        };
        eventually(cancelled).await;
        run(&faulty, end).await;
        assert!((1..=POOL).contains(&most), "{begin}: {most} backends");
        let [failed, decided] = decided.each_ref().map(|count| count.load(SeqCst));
        let is_right = failed > 0 && (decided < failed || begin == lock);
        assert!(is_right, "{begin}: {failed} failed, {decided} decided");
        // Afterwards, calls are decided as before.
        for key in KEYS {
            eventually(async || acquire(&search, key).await).await;
        }
        eventually(async || match throughput().await {
            calls if calls * 3 >= before => Ok(()),
            calls => Err(format!("{calls} of {before} calls")),
        })
        .await;
    }
}

fn is_unavailable(result: Result<Decision, Error>) -> Result<(), String> {
    match result {
        Err(error) if error.kind() == ErrorKind::Unavailable => Ok(()),
        other => Err(format!("{other:?}")),
    }
}

/// The address leads to a primary that is demoted, and then to the new one.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_to_a_server_that_only_reads_leaves_the_pool() {
    let [old, new] = [Postgres::start().unwrap(), Postgres::start().unwrap()];
    let proxy = Proxy::start(old.address()).unwrap();
    let search = patient(&(through(&proxy, &old) + "?connect_timeout=50"));
    eventually(async || acquire(&search, "a").await).await;
    run(&client(&old).await, READ_ONLY[0]).await;
    eventually(async || is_unavailable(search.acquire("a").await)).await;
    proxy.redirect(new.address());
    eventually(async || acquire(&search, "a").await).await;
    assert!(search.acquire("a").await.is_ok());
}

#[tokio::test]
async fn a_missing_table_is_created_and_an_old_one_swept() {
    let server = Postgres::start().unwrap();
    let open = || {
        let url: PostgresUrl = server.url().parse().unwrap();
        url.open().unwrap().timeout(crate::TIMEOUT)
    };
    let tables = [(); 10].map(|()| open());
    let [first, second, ..] = &tables;
    let text = "(create it with PostgresTable::create or limiter_postgres::SCHEMA)";
    for error in [first.sweep().await.err(), first.scan(&[]).await.err()] {
        let error = error.unwrap();
        assert_eq!(error.kind(), ErrorKind::Configuration);
        assert!(error.to_string().ends_with(text), "{error}");
    }
    let created = tables.iter().map(PostgresTable::create);
    for created in futures_util::future::join_all(created).await {
        created.unwrap();
    }
    let rows = "INSERT INTO limiter_logs SELECT int4send(i), '', now() + interval '1h' * (-1) ^ i FROM generate_series(1, 2500) i";
    run(&client(&server).await, rows).await;
    let deleted = (first.sweep().await.unwrap(), second.sweep().await.unwrap());
    assert_eq!(deleted, (1250, 0));
}

#[tokio::test]
async fn one_process_sweeps_for_all() {
    let server = Postgres::start().unwrap();
    let admin = client(&server).await;
    let processes = [(); 2].map(|()| patient(&server.url()));
    for search in &processes {
        assert!(search.acquire("a").await.unwrap().is_allowed());
    }
    let expired =
        "INSERT INTO limiter_logs SELECT int4send(i), '', now() FROM generate_series(1, 10) i";
    run(&admin, expired).await;
    let left = async || {
        let left = "SELECT count(*) FROM limiter_logs WHERE expires_at <= now() AND key > ''";
        admin.query_one(left, &[]).await.unwrap().get::<_, i64>(0)
    };
    // A process that is still at work when a minute passes misses it.
    let minute = async || {
        pause();
        advance(Duration::from_secs(61)).await;
        resume();
        sleep(Duration::from_millis(500)).await;
    };
    // A different process sweeps.
    let claim = "INSERT INTO limiter_logs VALUES ('', '', now() + interval '50s')";
    run(&admin, claim).await;
    minute().await;
    assert_eq!(left().await, 10);
    // It has ended; then, the server's clock was wrong.
    for end in ["now()", "now() + interval '9 years'"] {
        let end = format!("UPDATE limiter_logs SET expires_at = {end} WHERE key = ''");
        run(&admin, &end).await;
        let mut minutes = 0;
        while left().await > 0 {
            assert!(minutes < 100, "{end}");
            minutes += 1;
            minute().await;
        }
        run(&admin, expired).await;
        assert!(processes[0].acquire("a").await.unwrap().is_allowed());
    }
    let page = processes[0].store().table().scan(&[]).await.unwrap();
    assert_eq!((page.0.len(), page.1), (1, None));
}

/// A change that begins late must not find a key absent again that other processes have used meanwhile.
#[tokio::test]
async fn a_late_change_is_compared_with_what_came_meanwhile() {
    let store = store(&SERVER.url());
    let table = store.table();
    let keys = ["late", "later"].map(|key| stored_key(LogKey::new(Name::new("search"), key)));
    let loaded = table.load(&keys).await.unwrap();
    assert_eq!(loaded.logs, [None, None]);
    let policy = policy!("1/100ms");
    let op = Op::acquire("late", &policy).with_name(Name::new("search"));
    assert!(store.apply(op).await.unwrap().admitted);
    sleep(Duration::from_millis(150)).await;
    table.sweep().await.unwrap();
    let change = |key: &Vec<u8>| Change {
        key: key.clone(),
        old: None,
        new: New::Saved {
            log: Log::new().to_bytes(),
            expires_at: loaded.now,
        },
    };
    let until = loaded.now.saturating_add(Duration::from_secs(60));
    for (key, until, is_saved) in [(0, until, false), (1, loaded.now, false), (1, until, true)] {
        let changes = vec![change(&keys[key])];
        assert_eq!(table.swap(changes, until).await.unwrap(), is_saved, "{key}");
    }
}

/// Each statement spoils the connections of the pool, or what they rely on.
#[tokio::test(flavor = "multi_thread")]
async fn a_spoiled_connection_and_a_dropped_table_cost_no_call() {
    let server = Postgres::start().unwrap();
    let other = client(&server).await;
    let bouncer = PgBouncer::start(&server, "session").unwrap();
    for (url, pool) in [(server.url(), 1), (bouncer.url(), 1), (server.url(), 4)] {
        let search = patient(&format!("{url}?pool={pool}&connect_timeout=50"));
        for fault in [
            TERMINATE,
            "DROP TABLE limiter_logs",
            "TRUNCATE limiter_logs",
        ] {
            eventually(async || acquire(&search, "a").await).await;
            // Uses all connections.
            let all = KEYS.map(|key| search.acquire(key).into_future());
            let all = futures_util::future::join_all(all).await;
            assert!(all.iter().all(Result::is_ok), "{all:?}");
            run(&other, fault).await;
            for _ in 0..4 {
                let decided = search.acquire("a").await;
                assert!(decided.is_ok(), "{fault}, {pool} connections: {decided:?}");
            }
        }
    }
}

/// A cancellation that arrives late hits the next request of the connection, and its call must not pay for it.
#[tokio::test]
async fn a_foreign_cancellation_costs_no_call() {
    let server = Postgres::start().unwrap();
    let [locking, other] = [client(&server).await, client(&server).await];
    let search = patient(&server.url());
    assert!(search.acquire("a").await.unwrap().is_allowed());
    // Loads wait for the first lock, saves for the second.
    for lock in ["", "IN EXCLUSIVE MODE"] {
        let lock = format!("BEGIN; LOCK TABLE limiter_logs {lock}");
        run(&locking, &lock).await;
        let waiting =
            "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
        let cancel = eventually(
            async || match other.query(waiting, &[]).await.unwrap().len() {
                0 => Err("no request waits"),
                _ => Ok(()),
            },
        );
        let cancel = async {
            cancel.await;
            run(&locking, "ROLLBACK").await;
        };
        let (decision, ()) = tokio::join!(search.acquire("a").into_future(), cancel);
        assert!(decision.unwrap().is_allowed(), "{lock}");
    }
}

/// The connection of a cancellation must not be closed before the cancellation has arrived: Debian's version would crash.
#[tokio::test(flavor = "multi_thread")]
async fn pgbouncer_survives_a_cancellation_and_serves_others() {
    let server = Postgres::start().unwrap();
    let locking = client(&server).await;
    for mode in ["session", "transaction"] {
        let bouncer = PgBouncer::start(&server, mode).unwrap();
        let (other, connection) = connect(&bouncer.url(), NoTls).await.unwrap();
        tokio::spawn(connection);
        let search = opened(&bouncer.url());
        for _ in 0..3 {
            eventually(async || acquire(&search, "a").await).await;
            run(&locking, "BEGIN; LOCK TABLE limiter_logs").await;
            let error = search.acquire("a").await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
            let waiting = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
            eventually(async || match other.query(waiting, &[]).await {
                Ok(rows) if rows.is_empty() => Ok(()),
                other => Err(other),
            })
            .await;
            run(&locking, "ROLLBACK").await;
        }
        eventually(async || acquire(&search, "a").await).await;
    }
}

/// Two processes have all connections of a `PgBouncer` that pools by session, and do not need them.
#[tokio::test]
async fn a_third_process_finds_a_connection_once_the_others_are_idle() {
    let server = Postgres::start().unwrap();
    let bouncer = PgBouncer::start(&server, "session").unwrap();
    let url = bouncer.url() + "?pool=10&connect_timeout=50";
    let busy = [(); 2].map(|()| patient(&url));
    for search in &busy {
        let keys = Vec::from_iter((0..20).map(|key| key.to_string()));
        let all = keys.iter().map(|key| search.acquire(key).into_future());
        let all = futures_util::future::join_all(all).await;
        assert!(all.iter().all(Result::is_ok), "{all:?}");
    }
    let third = opened(&url);
    let error = third.acquire("a").await.unwrap_err();
    let text = "Postgres: no response within 500ms, while connecting (1 of 10)";
    assert!(error.to_string().ends_with(text), "{error}");
    pause();
    advance(Duration::from_secs(31)).await;
    resume();
    eventually(async || acquire(&third, "a").await).await;
}

/// Statements that one connection prepared, another does not have.
#[tokio::test(flavor = "multi_thread")]
async fn pgbouncer_that_pools_by_transaction_costs_no_call_and_its_server_is_an_outage() {
    let mut server = Postgres::start().unwrap();
    let bouncer = PgBouncer::start(&server, "transaction").unwrap();
    let url = bouncer.url() + "?connect_timeout=50";
    let processes = [(); 2].map(|()| patient(&url));
    for round in 0..20 {
        let calls = processes
            .each_ref()
            .map(|search| KEYS.map(|key| search.acquire(key).into_future()));
        for decision in futures_util::future::join_all(calls.into_iter().flatten()).await {
            let used = decision.unwrap().used();
            assert!(
                (2 * round + 1..=2 * round + 2).contains(&used),
                "{round}: {used}"
            );
        }
        joint(processes[round as usize % 2].store(), ["x", "y"])
            .await
            .unwrap();
    }
    // PgBouncer keeps requests for a while before it gives up.
    let search = opened(&bouncer.url());
    eventually(async || acquire(&search, "a").await).await;
    server.kill();
    eventually(async || is_unavailable(search.acquire("a").await)).await;
    server.restart().unwrap();
    eventually(async || acquire(&search, "a").await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_with_few_connections_serves_many_callers() {
    let server = Postgres::start().unwrap();
    let other = client(&server).await;
    eventually(async || acquire(&opened(&server.url()), "a").await).await;
    let role = "CREATE ROLE app LOGIN CONNECTION LIMIT 3; GRANT ALL ON limiter_logs TO app";
    run(&other, role).await;
    let url = server.url().replace("limiter:", "app:");
    let table = url.parse::<PostgresUrl>().unwrap().open().unwrap();
    // Less than the pause after the server refused a connection.
    let store = PostgresStore::new(table.timeout(Duration::from_secs(5)));
    let search = Arc::new(Limiter::new("search", POLICY.clone(), store));
    let task = |task: usize| {
        let search = search.clone();
        tokio::spawn(async move {
            for call in 0..100 {
                let key = format!("{task}/{call}");
                assert!(search.acquire(&key).await.unwrap().is_allowed());
            }
        })
    };
    for task in Vec::from_iter((0..16).map(task)) {
        task.await.unwrap();
    }
}

async fn joint(store: &PostgresStore, keys: [&str; 2]) -> Result<(), Error> {
    let ops = keys.map(|key| JointOp::from(Op::acquire(key, &POLICY)));
    store.apply_all(&ops).await.map(drop)
}

/// A round trip of 80 ms, and callers that leave after 300 ms: more than a call takes, and less than connecting takes.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_network_decides() {
    let proxy = Proxy::start(SERVER.address()).unwrap();
    proxy.set(Network::Latency(Duration::from_millis(40)));
    let search = opened(&through(&proxy, &SERVER));
    for _ in 0..5 {
        eventually(async || acquire(&search, "slow").await).await;
        eventually(async || shortly(joint(search.store(), ["slow 1", "slow 2"])).await).await;
    }
}

/// Connecting fails later than the call.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_does_not_wait_for_a_failure_to_connect_names_the_one_before() {
    let proxy = Proxy::start(SERVER.address()).unwrap();
    proxy.set(Network::Latency(Duration::from_millis(300)));
    let search = opened(&through(&proxy, &SERVER).replace("limiter:", "nobody:"));
    let reason = "(connecting failed before: db error: FATAL: role \"nobody\" does not exist)";
    eventually(async || match search.acquire("late").await {
        Err(error) if error.to_string().ends_with(reason) => Ok(()),
        other => Err(other),
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_is_silent_or_only_reads_leaves_time_for_the_next() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let standby = Postgres::start().unwrap();
    run(&client(&standby).await, READ_ONLY[0]).await;
    let hosts = [
        silent.local_addr().unwrap(),
        standby.address(),
        SERVER.address(),
    ];
    let hosts = hosts.map(|host| host.to_string()).join(",");
    let search = patient(&format!(
        "postgres://limiter@{hosts}/postgres?connect_timeout=1"
    ));
    eventually(async || acquire(&search, "hosts").await).await;
    assert!(search.acquire("hosts").await.unwrap().used() >= 2);
}

/// Two processes, with calls on a busy key, on the key and another, and on two others in both orders.
#[tokio::test(flavor = "multi_thread")]
async fn joint_calls_keep_their_share_and_do_not_deadlock() {
    let server = Postgres::start().unwrap();
    let stores = [(); 2].map(|()| Arc::new(store(&server.url())));
    joint(&stores[0], ["busy", "a"]).await.unwrap();
    let until = Instant::now() + Duration::from_secs(3);
    let task = |task: usize| {
        let store = stores[task % 2].clone();
        tokio::spawn(async move {
            let mut count = 0_u64;
            let own = task.to_string();
            while Instant::now() < until {
                match task {
                    0..16 => drop(store.apply(Op::acquire("busy", &POLICY)).await.unwrap()),
                    16..22 => joint(&store, ["busy", &own]).await.unwrap(),
                    _ => joint(&store, [["a", "b"], ["b", "a"]][task / 2 % 2])
                        .await
                        .unwrap(),
                }
                count += 1;
            }
            count
        })
    };
    let mut counts = Vec::new();
    for task in Vec::from_iter((0..26).map(task)) {
        counts.push(task.await.unwrap());
    }
    let mean = |counts: &[u64]| counts.iter().sum::<u64>() / counts.len() as u64;
    assert!(
        mean(&counts[16..22]) * 3 >= mean(&counts[..16]),
        "{counts:?}"
    );
    assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
    let deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = 'postgres'";
    let deadlocks = client(&server)
        .await
        .query_one(deadlocks, &[])
        .await
        .unwrap();
    assert_eq!(deadlocks.get::<_, i64>(0), 0);
}
