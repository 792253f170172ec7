//! Settings of the server and of the role, tables that others made, and proxies.

use std::net::SocketAddr;
use std::sync::Arc;

use futures_util::FutureExt;
use limiter_core::store::StoredKey;
use limiter_core::{ErrorKind, Limiter, policy};
use limiter_postgres::{PostgresStore, PostgresUrl};
use testbed::server::Postgres;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};

use crate::{SERVER, TIMEOUT, client, eventually, run, store};

/// Calls of two processes on new keys, on a key of all tasks and across several, with sweeps. None fails, and the window admits its maximum.
#[tokio::test(flavor = "multi_thread")]
async fn no_setting_of_the_role_costs_a_call() {
    let server = Postgres::start().unwrap();
    let admin = client(&server).await;
    let settings = [
        "default_transaction_isolation = 'serializable'",
        "statement_timeout = 1",
        "lock_timeout = 1",
        "idle_in_transaction_session_timeout = 1",
        "bytea_output = 'escape'",
        "client_encoding = 'LATIN1'",
        "DateStyle = 'German, DMY'",
        "TimeZone = 'Asia/Kathmandu'",
        "standard_conforming_strings = off",
        "row_security = off",
        r#"search_path = 'o"schéma', public"#,
    ];
    run(&admin, r#"CREATE SCHEMA "o""schéma""#).await;
    for setting in settings {
        run(&admin, &format!("ALTER ROLE limiter SET {setting}")).await;
    }
    let stores = [(); 2].map(|()| Arc::new(store(&server.url())));
    let task = |task: usize| {
        let store = Arc::clone(&stores[task % 2]);
        tokio::spawn(async move {
            let search = Limiter::new("search", policy!("100/1h"), Arc::clone(&store));
            let mut admitted = 0;
            for call in 0..80 {
                let own = format!("{task}/{call}");
                assert!(search.acquire(&own).await.unwrap().is_allowed());
                let shared = search.acquire("shared").await.unwrap();
                admitted += u64::from(shared.is_allowed());
                if call % 10 == task {
                    store.table().sweep().await.unwrap();
                }
            }
            admitted
        })
    };
    let mut admitted = 0;
    for task in Vec::from_iter((0..8).map(task)) {
        admitted += task.await.unwrap();
    }
    assert_eq!(admitted, 100);
}

/// A server that plans for an empty table would read all rows, until the next `ANALYZE`.
#[tokio::test]
async fn a_table_that_was_empty_is_not_read_row_by_row() {
    let server = Postgres::start().unwrap();
    let admin = client(&server).await;
    let url: PostgresUrl = format!("{}?pool=1", server.url()).parse().unwrap();
    let table = url.open().unwrap().timeout(TIMEOUT);
    table.create().await.unwrap();
    run(&admin, "VACUUM ANALYZE limiter_logs").await;
    let search = Limiter::new("search", policy!("1000/1h"), PostgresStore::new(table));
    for call in 0..20 {
        let decision = search.acquire(&(call % 2).to_string()).await.unwrap();
        assert!(decision.is_allowed());
    }
    search.store().table().sweep().await.unwrap();
    // Postgres counts a session's scans when it is idle or has ended.
    drop(search);
    let scans =
        "SELECT seq_scan FROM pg_stat_user_tables WHERE relname = 'limiter_logs' AND n_tup_upd > 0";
    let scans = eventually(async || admin.query_one(scans, &[]).await).await;
    // The one that built the index.
    assert_eq!(scans.get::<_, i64>(0), 1);
}

/// During a rolling upgrade, servers of a later format write beside this one. Their keys begin with the format's number.
#[tokio::test]
async fn rows_of_a_later_format_are_neither_read_nor_changed_and_are_swept() {
    let server = Postgres::start().unwrap();
    let admin = client(&server).await;
    let store = store(&server.url());
    let search = Limiter::new("search", policy!("3/1h"), store);
    let table = search.store().table();
    let rows = async || {
        let rows = "SELECT key, log FROM limiter_logs WHERE key > '\\x02' AND key < '\\x03'";
        let rows = admin.query(rows, &[]).await.unwrap();
        let rows = rows.iter().map(|row| (row.get(0), row.get(1)));
        rows.collect::<Vec<(Vec<u8>, Vec<u8>)>>()
    };
    // A server of each format has admitted one.
    assert!(search.acquire("a").await.unwrap().is_allowed());
    let later = "INSERT INTO limiter_logs SELECT '\\x02' || key, '\\x02' || substring(log from 2), expires_at FROM limiter_logs";
    run(&admin, later).await;
    let before = rows().await;
    assert_eq!(before.len(), 1);
    for used in 2..=3 {
        assert_eq!(search.acquire("a").await.unwrap().used(), used);
    }
    assert!(search.acquire("a").await.unwrap().is_denied());
    let keys = table.scan(&[]).await.unwrap().0;
    let keys = keys.iter().map(|live| (&*live.name, &live.key));
    let own = StoredKey::Known(b"a"[..].into());
    assert_eq!(Vec::from_iter(keys), [("search", &own)]);
    assert!(search.reset("a").await.unwrap());
    table.sweep().await.unwrap();
    assert_eq!(rows().await, before);
    run(&admin, "UPDATE limiter_logs SET expires_at = now()").await;
    assert_eq!(table.sweep().await.unwrap(), 2);
    assert_eq!(rows().await, []);
}

/// Each case is what a migration made of the table, and how it is mended. A store that was open before notices both.
#[tokio::test]
async fn a_table_of_another_shape_is_a_mistake_until_it_is_mended() {
    let server = Postgres::start().unwrap();
    let admin = client(&server).await;
    let open = || {
        let url: PostgresUrl = format!("{}?pool=1", server.url()).parse().unwrap();
        let table = url.open().unwrap().timeout(TIMEOUT);
        Limiter::new("search", policy!("1000/1h"), PostgresStore::new(table))
    };
    let before = open();
    before.store().table().create().await.unwrap();
    let alter = "ALTER TABLE limiter_logs";
    for [change, mend] in [
        // Without it, two processes would both insert a key.
        ["DROP CONSTRAINT limiter_logs_pkey", "ADD PRIMARY KEY (key)"],
        [
            "ALTER log TYPE text USING encode(log, 'hex')",
            "ALTER log TYPE bytea USING decode(log, 'hex')",
        ],
        [
            "RENAME expires_at TO expires",
            "RENAME expires TO expires_at",
        ],
        ["ADD owner int NOT NULL", "DROP owner"],
    ] {
        assert!(before.acquire(change).await.is_ok());
        run(&admin, &format!("TRUNCATE limiter_logs; {alter} {change}")).await;
        for search in [&before, &open(), &before] {
            let error = search.acquire(change).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Configuration, "{change}: {error}");
        }
        run(&admin, &format!("{alter} {mend}")).await;
        for used in 1..=2 {
            let decision = before.acquire(change).await.unwrap();
            assert_eq!(decision.used(), used, "{change}");
        }
    }
}

/// Forwards connections that set no options, and refuses others.
async fn proxy_without_options(server: SocketAddr, refusal: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let mut client = listener.accept().await.unwrap().0;
            let mut startup = vec![0; 4];
            client.read_exact(&mut startup).await.unwrap();
            let len = u32::from_be_bytes(startup[..].try_into().unwrap());
            startup.resize(len as usize, 0);
            client.read_exact(&mut startup[4..]).await.unwrap();
            if startup.windows(8).any(|name| name == b"options\0") {
                let text = format!("SFATAL\0VFATAL\0C08P01\0M{refusal}\0\0");
                let len = (text.len() + 4) as u32;
                let error = [b"E", &len.to_be_bytes()[..], text.as_bytes()].concat();
                client.write_all(&error).await.unwrap();
                continue;
            }
            tokio::spawn(async move {
                let mut server = TcpStream::connect(server).await.unwrap();
                server.write_all(&startup).await.unwrap();
                let _ = copy_bidirectional(&mut client, &mut server).await;
            });
        }
    });
    address
}

#[tokio::test]
async fn a_proxy_that_takes_no_options_serves_a_url_without_them() {
    // RDS Proxy, PgBouncer, and PgBouncer from version 1.20.
    for refusal in [
        "Feature not supported: RDS Proxy currently doesn\u{2019}t support command-line options.",
        "unsupported startup parameter: options",
        "unsupported options startup parameter: only '-c config=val' and '--config=val' are allowed",
    ] {
        let proxy = proxy_without_options(SERVER.address(), refusal).await;
        let url = SERVER.url();
        let url = url.replace(&SERVER.address().to_string(), &proxy.to_string());
        assert!(store(&url).table().scan(&[]).await.is_ok(), "{refusal}");
        let url = format!("{url}?options=-csearch_path%3Dpublic");
        let table = url.parse::<PostgresUrl>().unwrap().open().unwrap();
        let error = table.timeout(TIMEOUT).scan(&[]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Configuration);
        let error = error.to_string();
        assert!(error.ends_with("set it with ALTER ROLE)"), "{error}");
    }
}

#[test]
fn a_call_outside_a_runtime_is_a_mistake_that_is_named() {
    let url: PostgresUrl = "postgres://nowhere".parse().unwrap();
    let store = PostgresStore::new(url.open().unwrap());
    let search = Limiter::new("search", policy!("9/1h"), store);
    let error = search.acquire("a").into_future().now_or_never();
    let error = error.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Configuration);
    assert!(error.to_string().contains("Tokio"), "{error}");
}
