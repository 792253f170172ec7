//! Three real sentinels: a failover under load.

use std::collections::HashMap;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::join_all;
use limiter_core::{ErrorKind, policy};
use limiter_redis::RedisStore;
use tempfile::TempDir;
use testbed::server::Server;

use crate::support::{
    TIMEOUT, assert_temporary, builder, free_port, limited, search, send, size, until, within,
};

/// Kills the sentinel when its standard input closes, which happens when the test process ends for any reason.
const KEEPER: &str = r#""${LIMITER_REDIS_SERVER:-redis-server}" "$0" --sentinel </dev/null >/dev/null 2>&1 & pid=$!
cat >/dev/null; kill -9 $pid 2>/dev/null; wait"#;

/// A sentinel for one test. Dropping it stops it.
pub(crate) struct Sentinel {
    keeper: Child,
    port: u16,
    _dir: TempDir,
}

impl Sentinel {
    fn start(master: u16) -> Self {
        Self::start_with(master, "")
    }

    /// Starts one with more lines of configuration.
    pub(crate) fn start_with(master: u16, lines: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let port = free_port();
        let conf = dir.path().join("sentinel.conf");
        let dir_option = dir.path().display();
        let text = format!(
            "port {port}\nbind 127.0.0.1\nprotected-mode no\ndir {dir_option}\n\
             sentinel monitor m 127.0.0.1 {master} 2\nsentinel down-after-milliseconds m 500\n\
             sentinel failover-timeout m 4000\n{lines}\n"
        );
        std::fs::write(&conf, text).unwrap();
        let mut keeper = Command::new("sh");
        let keeper = keeper
            .args(["-c", KEEPER])
            .arg(conf)
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        Self {
            keeper,
            port,
            _dir: dir,
        }
    }

    /// Returns `true` if its reply about the master has this value.
    async fn says(&self, field: &str, value: &str) -> bool {
        let master: redis::RedisResult<HashMap<String, String>> = async {
            let client = redis::Client::open(format!("redis://127.0.0.1:{}", self.port))?;
            let mut connection = client.get_multiplexed_async_connection().await?;
            let mut asks = redis::cmd("SENTINEL");
            asks.arg(&["MASTER", "m"])
                .query_async(&mut connection)
                .await
        }
        .await;
        master.is_ok_and(|master| master.get(field).is_some_and(|found| found == value))
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        let _ = self.keeper.wait();
    }
}

/// The user and the password of the server and of the sentinels. The server's are the default for sentinels that ask.
#[tokio::test]
async fn sentinels_may_require_a_login() {
    const USER: &str = "user default off\nuser s on >t/1 allchannels +@all";
    let refused = Some("a sentinel, not the server, refuses the login");
    let open = Server::start().unwrap();
    let locked = Server::start().unwrap();
    send(&locked, "CONFIG SET requirepass secret");
    let other = "requirepass other";
    let locks = "requirepass secret";
    let wrong = Some("Password authentication failed");
    for (server, sentinel, login, query, expected) in [
        (&locked, locks, ":secret@", "", None),
        (&locked, "", ":secret@", "", None),
        (&locked, other, ":secret@", "?sentinel_pass=other", None),
        (
            &open,
            USER,
            "",
            "/0?sentinel_user=s&sentinel_pass=t%2F1",
            None,
        ),
        (&locked, other, ":secret@", "", refused),
        (&open, other, "", "", refused),
        (&open, other, "", "?sentinel_pass=secret", refused),
        (&locked, "", ":secret1@", "", wrong),
    ] {
        let case = format!("{sentinel} | {login} | {query}");
        let sentinel = Sentinel::start_with(server.port(), sentinel);
        let port = sentinel.port;
        let accepts = || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok();
        until("it accepts connections", async || accepts()).await;
        let url = format!("redis+sentinel://{login}127.0.0.1:1,127.0.0.1:{port}/m{query}");
        let store = builder().connect(&url).await;
        let Some(expected) = expected else {
            let limiter = search(policy!("9/1h"), store.expect(&case));
            assert!(limiter.acquire("k").await.unwrap().is_allowed(), "{case}");
            continue;
        };
        let error = store.expect_err(&case);
        assert_eq!(error.kind(), ErrorKind::Configuration, "{case}: {error}");
        let text = format!("{error} {error:?}");
        assert!(text.contains(expected), "{case}: {text}");
        assert!(!text.contains("secret"), "{case}: {text}");
        let is_sentinel = text.contains(&format!("127.0.0.1:{port}: "));
        assert_eq!(is_sentinel, Some(expected) == refused, "{case}: {text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_failover_decisions_go_on_with_the_new_master() {
    let mut master = Server::start().unwrap();
    let replica = master.start_replica().unwrap();
    let sentinels: Vec<Sentinel> = (0..3).map(|_| Sentinel::start(master.port())).collect();
    for sentinel in &sentinels {
        for (field, value) in [
            ("num-other-sentinels", "2"),
            ("num-slaves", "1"),
            ("flags", "master"),
        ] {
            until(field, async || sentinel.says(field, value).await).await;
        }
    }
    // A sentinel that does not exist, one that never replies, and the others.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let ports = [1, silent.local_addr().unwrap().port()]
        .into_iter()
        .chain(sentinels.iter().map(|one| one.port));
    let hosts: Vec<String> = ports.map(|port| format!("127.0.0.1:{port}")).collect();
    let url = format!("redis+sentinel://{}/m", hosts.join(","));
    let other = RedisStore::connect(&format!("{url}other")).await;
    assert_temporary(&other.unwrap_err());

    let new = builder().retries(0).connect_lazy(&url).unwrap();
    let new = search(policy!("9/1h"), new);
    let first = join_all((0..16).map(|_| new.status("k"))).await;
    assert!(first.iter().all(Result::is_ok), "{first:?}");

    let stores = [
        RedisStore::connect(&url).await.unwrap(),
        RedisStore::builder().connect_lazy(&url).unwrap(),
    ];
    let limiters = stores.map(|store| Arc::new(search(policy!("4503599627370496/10m"), store)));
    let over = Arc::new(AtomicBool::new(false));
    let load = limiters.iter().cycle().take(16).map(|limiter| {
        let limiter = limiter.clone();
        let over = over.clone();
        tokio::spawn(async move {
            while !over.load(Ordering::Relaxed) {
                if let Err(error) = limiter.record("load").await {
                    assert_temporary(&error);
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        })
    });
    let load: Vec<_> = load.collect();
    for limiter in &limiters {
        until("a decision", async || limiter.record("k").await.is_ok()).await;
    }
    master.kill();
    let port = replica.port().to_string();
    until("two sentinels name the replica", async || {
        let named = sentinels.iter().map(|one| one.says("port", &port));
        let named = join_all(named).await;
        named.iter().filter(|named| **named).count() >= 2
            && replica.info("replication").unwrap().contains("role:master")
    })
    .await;
    for limiter in &limiters {
        let decision = within(Duration::from_secs(1), async {
            loop {
                if let Ok(decision) = limiter.record("k").await {
                    break decision;
                }
            }
        });
        assert!(decision.await.is_allowed());
    }

    // The former master comes back and, ten seconds later, becomes a replica; nobody writes to it.
    master.restart().unwrap();
    if size(false, true) {
        let is_replica = || master.info("replication").unwrap().contains("role:slave");
        until("it becomes a replica", async || is_replica()).await;
    }
    for limiter in &limiters {
        for _ in 0..10 {
            assert!(within(TIMEOUT, limiter.record("k")).await.is_ok());
        }
        let page = limiter.store().scan(None, None, 1_000).await.unwrap();
        assert_eq!(page.keys.len(), 2);
    }
    over.store(true, Ordering::Relaxed);
    for task in load {
        task.await.unwrap();
    }
    let held = limited(&replica, policy!("1000000/1h")).await;
    assert!(held.status("k").await.unwrap().used() >= 22);
}
