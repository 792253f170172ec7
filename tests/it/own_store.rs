//! The store of the example `own_store` conforms to the contract, and its logs survive the process.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use exact_limiter::log::LogStore;
use exact_limiter::time::BoxFuture;
use exact_limiter::{Limiter, policy};
use limiter_testkit::conformance::Suite;
use limiter_testkit::conformance_tests;
use tempfile::TempDir;

#[path = "../../examples/own_store.rs"]
#[allow(dead_code, reason = "the example has a main function")]
mod example;

use example::RedbTable;

/// Returns a folder in memory if there is one: these tests are not about the disk.
fn folder() -> TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() {
        tempfile::tempdir_in(memory)
    } else {
        tempfile::tempdir()
    }
    .unwrap()
}

fn path(folder: &TempDir) -> String {
    let path = folder.path().join("limits.redb");
    path.to_str().unwrap().to_owned()
}

conformance_tests!(the_store, Suite::slow(), async |suite| {
    let folder = folder();
    let table = RedbTable::open(&path(&folder)).unwrap();
    let store = Arc::new(LogStore::new(table.clone()));
    let sweep = move || -> BoxFuture<'static, ()> {
        table.sweep().unwrap();
        Box::pin(async {})
    };
    suite.sweep(sweep).run(store).await
});

/// Starts itself again as a child process, which uses up the limit, prints a line and waits to be killed.
#[tokio::test(flavor = "multi_thread")]
async fn limits_are_in_force_after_the_process_was_killed() {
    const CHILD: &str = "OWN_STORE_PATH";
    if let Ok(path) = std::env::var(CHILD) {
        let store = LogStore::new(RedbTable::open(&path).unwrap());
        let search = Limiter::new("search", policy!("3/10m"), store);
        for _ in 0..3 {
            assert!(search.acquire("customer 7").await.unwrap().is_allowed());
        }
        println!("used up");
        std::thread::park();
    }
    let folder = folder();
    let path = path(&folder);
    let this_test = "own_store::limits_are_in_force_after_the_process_was_killed";
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([this_test, "--exact", "--nocapture"])
        .env(CHILD, &path)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("used up")));
    child.kill().unwrap();
    child.wait().unwrap();

    let table = RedbTable::open(&path).unwrap();
    let search = Limiter::new("search", policy!("3/10m"), LogStore::new(table.clone()));
    assert!(!search.acquire("customer 7").await.unwrap().is_allowed());
    table.sweep().unwrap();
    assert_eq!(search.status("customer 7").await.unwrap().used(), 3);
    assert!(search.acquire("customer 8").await.unwrap().is_allowed());
}
