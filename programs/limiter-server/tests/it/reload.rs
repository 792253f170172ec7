//! Which changes reload a configuration.

use std::fs::{self, create_dir, remove_dir_all, rename, write};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use limiter_core::{Limiter, policy};
use limiter_memory::MemoryStore;
use limiter_server::proto::Code;
use limiter_server::reload;
use limiter_server::rules::RuleSet;
use limiter_server::service::{Headers, Service};
use limiter_server::store::Store;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::answers::request;
use crate::config::domains;
use crate::server::PATIENCE;
use crate::windows::assert_windows;

/// Changes something in a folder.
type Step = fn(&Path);

fn file(path: impl AsRef<Path>, domain: &str) {
    write(path, format!("domain: {domain}\n")).unwrap();
}

/// Points a link to another target in one step, as Kubernetes does.
fn swap(link: &Path, target: &str) {
    let new = link.parent().unwrap().join("new link");
    symlink(target, &new).unwrap();
    rename(new, link).unwrap();
}

/// Mounts a file as Kubernetes does.
fn volume(dir: &Path) {
    create_dir(dir.join("..1")).unwrap();
    file(dir.join("..1/a.yaml"), "a");
    symlink("..1", dir.join("..data")).unwrap();
    symlink("..data/a.yaml", dir.join("a.yaml")).unwrap();
}

/// A case: its name, how the folder is made, the path of the configuration, and steps, each with the domains after it.
type Case = (
    &'static str,
    Step,
    &'static str,
    &'static [(Step, &'static str)],
);

const CASES: &[Case] = &[
    (
        "a file is replaced",
        |dir| file(dir.join("a.yaml"), "a"),
        "a.yaml",
        &[
            (
                |dir| {
                    file(dir.join("new"), "b");
                    rename(dir.join("new"), dir.join("a.yaml")).unwrap();
                },
                "b",
            ),
            (
                |dir| {
                    fs::remove_file(dir.join("a.yaml")).unwrap();
                    file(dir.join("a.yaml"), "c");
                },
                "c",
            ),
        ],
    ),
    (
        "files of a folder",
        |dir| file(dir.join("a.yaml"), "a"),
        "",
        &[
            (|dir| file(dir.join("b.yml"), "b"), "a b"),
            (|dir| fs::remove_file(dir.join("a.yaml")).unwrap(), "b"),
            (
                |dir| rename(dir.join("b.yml"), dir.join("c.yml")).unwrap(),
                "b",
            ),
        ],
    ),
    (
        "a volume of Kubernetes",
        volume,
        "",
        &[
            (
                |dir| {
                    create_dir(dir.join("..2")).unwrap();
                    file(dir.join("..2/a.yaml"), "b");
                    swap(&dir.join("..data"), "..2");
                    remove_dir_all(dir.join("..1")).unwrap();
                },
                "b",
            ),
            (|dir| file(dir.join("..2/a.yaml"), "c"), "c"),
        ],
    ),
    (
        "one file of a volume of Kubernetes",
        volume,
        "a.yaml",
        &[(
            |dir| {
                create_dir(dir.join("..2")).unwrap();
                file(dir.join("..2/a.yaml"), "b");
                swap(&dir.join("..data"), "..2");
            },
            "b",
        )],
    ),
    (
        "a link above the folder",
        |dir| {
            for (version, domain) in [("v1", "a"), ("v2", "b")] {
                fs::create_dir_all(dir.join(version).join("conf.d")).unwrap();
                file(dir.join(version).join("conf.d/a.yaml"), domain);
            }
            symlink("v1", dir.join("current")).unwrap();
        },
        "current/conf.d",
        &[
            (|dir| swap(&dir.join("current"), "v2"), "b"),
            (|dir| file(dir.join("v2/conf.d/a.yaml"), "c"), "c"),
            (|dir| swap(&dir.join("current"), "v1"), "a"),
        ],
    ),
    (
        "another file of the folder never stays the same",
        |dir| {
            file(dir.join("a.yaml"), "a");
            let busy = dir.join("busy.txt");
            // Ends with the folder.
            std::thread::spawn(move || {
                for i in 0.. {
                    if write(&busy, i.to_string()).is_err() {
                        break;
                    }
                    std::thread::sleep(Duration::from_millis(20));
                }
            });
        },
        "",
        &[(|dir| file(dir.join("a.yaml"), "b"), "b")],
    ),
];

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
    for (name, make, path, steps) in CASES {
        let dir = tempfile::tempdir().unwrap();
        make(dir.path());
        let (service, _background) = watched(&dir.path().join(path));
        for (step, expected) in *steps {
            let before = service.rules();
            step(dir.path());
            let changed = async {
                while Arc::ptr_eq(&before, &service.rules())
                    || domains(&service.rules()).join(" ") != *expected
                {
                    sleep(Duration::from_millis(10)).await;
                }
            };
            timeout(PATIENCE, changed)
                .await
                .unwrap_or_else(|_| panic!("{name}: no reload to {expected}"));
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
            let request = request("d", &format!("{key}=ann"), 1);
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
