//! Which changes reload a configuration.

use std::fs::{rename, write};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use limiter_core::{Limiter, policy};
use limiter_memory::MemoryStore;
use limiter_server::proto::Code;
use limiter_server::reload;
use limiter_server::rules::RuleSet;
use limiter_server::service::{Headers, Service};
use limiter_server::store::Store;
use tempfile::TempDir;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::ask::{decided, rows};
use crate::client::PATIENCE;
use crate::config::domains;
use crate::windows::assert_windows;

/// Commands of a shell: how a folder begins, the path of the configuration, and changes, each with the domains after it.
const CASES: &str = "
    file a a.yaml => a.yaml
        file b new; mv new a.yaml => b
        rm a.yaml; file c a.yaml => c
    file a a.yaml => .
        file b b.yml => a b
        rm a.yaml => b
        mv b.yml c.yml => b
    // A volume of Kubernetes, and one file of it.
    mkdir ..1; file a ..1/a.yaml; ln -s ..1 ..data; ln -s ..data/a.yaml a.yaml => .
        mkdir ..2; file b ..2/a.yaml; ln -s ..2 new; mv -T new ..data; rm -r ..1 => b
        file c ..2/a.yaml => c
    mkdir ..1; file a ..1/a.yaml; ln -s ..1 ..data; ln -s ..data/a.yaml a.yaml => a.yaml
        mkdir ..2; file b ..2/a.yaml; ln -s ..2 new; mv -T new ..data => b
    // A link above the folder.
    mkdir -p v1/d v2/d; file a v1/d/a.yaml; file b v2/d/a.yaml; ln -s v1 current => current/d
        ln -s v2 new; mv -T new current => b
        file c v2/d/a.yaml => c
        ln -s v1 new; mv -T new current => a
    // Another file of the folder never stays the same, until the folder ends.
    file a a.yaml; (i=0; while echo $((i += 1)) >busy.txt; do sleep 0.02; done) 2>/dev/null & => .
        file b a.yaml => b
";

/// Runs commands of a shell in a folder. `file TEXT PATH` writes a configuration of this domain.
fn run(commands: &str, folder: &Path) {
    let commands = format!("file() {{ echo domain: $1 >$2; }}; {commands}");
    let mut shell = Command::new("sh");
    let ended = shell.args(["-ec", &commands]).current_dir(folder).status();
    assert!(ended.unwrap().success(), "{commands}");
}

/// Serves a configuration in memory, and reloads it.
fn watched(path: &Path) -> (Arc<Service>, JoinSet<()>) {
    let store = Store::over(Arc::new(MemoryStore::new()));
    let rules = RuleSet::read(path, store.shared(), None).unwrap();
    let service = Arc::new(Service::new(rules, store, Headers::default()));
    let mut background = JoinSet::new();
    background.spawn(reload::watch(path.to_owned(), Arc::clone(&service)).unwrap());
    (service, background)
}

#[tokio::test]
async fn changes_are_applied() {
    let mut case: Option<(TempDir, Arc<Service>, JoinSet<()>)> = None;
    for line in CASES.lines() {
        for (commands, expected) in rows(line) {
            if !line.starts_with("        ") {
                let dir = tempfile::tempdir().unwrap();
                run(commands, dir.path());
                let (service, background) = watched(&dir.path().join(expected));
                case = Some((dir, service, background));
                continue;
            }
            let (dir, service, _) = case.as_ref().unwrap();
            let before = service.rules();
            run(commands, dir.path());
            let changed = async {
                while Arc::ptr_eq(&before, &service.rules())
                    || domains(&service.rules()).join(" ") != expected
                {
                    sleep(Duration::from_millis(10)).await;
                }
            };
            let changed = timeout(PATIENCE, changed).await;
            changed.unwrap_or_else(|_| panic!("no reload after {commands}"));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_under_way_are_decided_and_no_window_exceeds_its_limit() {
    const REQUESTS_PER_SECOND: u32 = 10_000;
    const FOR: Duration = Duration::from_secs(3);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("limits.yaml");
    // The limit of `steady` stays; all else changes.
    let text = |version: u64| {
        let others: String = (0..1_000)
            .map(|i| format!("- {{key: v{version}, value: {i}}}\n"))
            .collect();
        let limit = |max| format!("rate_limit: {{policy: {max}/500ms}}");
        let steady = limit(100);
        let changing = limit(50 + 50 * (version % 2));
        format!(
            "domain: d\ndescriptors:\n- {{key: steady, {steady}}}\n- {{key: changing, {changing}}}\n{others}"
        )
    };
    write(&path, text(0)).unwrap();
    let (service, mut background) = watched(&path);
    let first = service.rules();
    background.spawn(async move {
        for version in 1.. {
            let new = path.with_extension("new");
            write(&new, text(version)).unwrap();
            rename(new, &path).unwrap();
            sleep(Duration::from_millis(350)).await;
        }
    });

    // By the store's own clock: on a busy machine, its rate may differ from that of `Instant` by some microseconds in a window.
    let clock = Limiter::new("clock", policy!("1/1s"), service.store().shared().clone());
    let mut clients = JoinSet::new();
    for key in ["steady", "changing"] {
        let service = Arc::clone(&service);
        let clock = clock.clone();
        clients.spawn(async move {
            let now =
                async || Duration::from_micros(clock.status(key).await.unwrap().at().as_micros());
            let request = decided(&format!("{key}=ann"));
            let mut admissions = Vec::new();
            let mut requests = 0;
            let mut pace = tokio::time::interval(Duration::from_millis(1));
            let end = Instant::now() + FOR;
            while Instant::now() < end {
                pace.tick().await;
                for _ in 0..REQUESTS_PER_SECOND / 2 / 1_000 {
                    let made = now().await;
                    let answer = service
                        .decide(&request, None)
                        .await
                        .expect("a request failed");
                    requests += 1;
                    assert!(answer.statuses[0].current_limit.is_some(), "no rule");
                    if answer.overall_code() == Code::Ok {
                        admissions.push((made, now().await));
                    }
                }
            }
            (admissions, requests)
        });
    }
    let mut requests = 0;
    for (admissions, count) in clients.join_all().await {
        requests += count;
        assert!(
            admissions.len() > 100,
            "only {} of {count} admitted",
            admissions.len()
        );
        assert_windows(admissions, 100, Duration::from_millis(500));
    }
    println!("{requests} requests");
    assert!(!Arc::ptr_eq(&first, &service.rules()), "no reload");
}
