//! Which changes reload a configuration.

use std::fs::{self, create_dir, remove_dir_all, rename, write};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use limiter_server::config::Config;
use limiter_server::reload;
use tokio::sync::mpsc;
use tokio::time::timeout;

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

/// A case: its name, how the folder is made, the path of the configuration, and steps, each with the domains after it.
type Case = (&'static str, Step, &'static str, &'static [(Step, &'static str)]);

const CASES: &[Case] = &[
    (
        "a file is written again",
        |dir| file(dir.join("a.yaml"), "a"),
        "a.yaml",
        &[(|dir| file(dir.join("a.yaml"), "b"), "b"), (|dir| file(dir.join("a.yaml"), "c"), "c")],
    ),
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
            (|dir| rename(dir.join("b.yml"), dir.join("c.yml")).unwrap(), "b"),
        ],
    ),
    (
        "a volume of Kubernetes",
        |dir| {
            create_dir(dir.join("..1")).unwrap();
            file(dir.join("..1/a.yaml"), "a");
            symlink("..1", dir.join("..data")).unwrap();
            symlink("..data/a.yaml", dir.join("a.yaml")).unwrap();
        },
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
        |dir| {
            create_dir(dir.join("..1")).unwrap();
            file(dir.join("..1/a.yaml"), "a");
            symlink("..1", dir.join("..data")).unwrap();
            symlink("..data/a.yaml", dir.join("a.yaml")).unwrap();
        },
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
        "a folder is replaced",
        |dir| {
            create_dir(dir.join("conf.d")).unwrap();
            file(dir.join("conf.d/a.yaml"), "a");
        },
        "conf.d",
        &[
            (
                |dir| {
                    rename(dir.join("conf.d"), dir.join("old")).unwrap();
                    create_dir(dir.join("conf.d")).unwrap();
                    file(dir.join("conf.d/a.yaml"), "b");
                },
                "b",
            ),
            (|dir| file(dir.join("conf.d/a.yaml"), "c"), "c"),
        ],
    ),
    (
        "errors change nothing",
        |dir| file(dir.join("a.yaml"), "a"),
        "a.yaml",
        &[(
            |dir| {
                file(dir.join("a.yaml"), "b\nextra: 1");
                // Longer than the time for which files must stay unchanged.
                std::thread::sleep(Duration::from_millis(500));
                file(dir.join("a.yaml"), "c");
            },
            "c",
        )],
    ),
    (
        "SIGHUP",
        |dir| file(dir.join("a.yaml"), "a"),
        "a.yaml",
        &[(
            |_| {
                let sent = Command::new("kill").args(["-HUP", &std::process::id().to_string()]).status().unwrap();
                assert!(sent.success());
            },
            "a",
        )],
    ),
];

#[tokio::test]
async fn changes_are_applied() {
    for (name, make, path, steps) in CASES {
        let dir = tempfile::tempdir().unwrap();
        make(dir.path());
        let path = dir.path().join(path);
        let config = Config::read(&path).unwrap();
        let (applied, mut configs) = mpsc::unbounded_channel();
        let watching = reload::watch(path, &config, move |config| _ = applied.send(config)).unwrap();
        let watching = tokio::spawn(watching);
        for (step, expected) in *steps {
            step(dir.path());
            let changed = async {
                while let Some(config) = configs.recv().await {
                    let domains: Vec<_> = config.domains.iter().map(|domain| &*domain.name).collect();
                    assert_ne!(domains, ["b\nextra: 1"]);
                    if domains.join(" ") == *expected {
                        return;
                    }
                }
            };
            timeout(Duration::from_secs(30), changed)
                .await
                .unwrap_or_else(|_| panic!("{name}: no reload to {expected}"));
        }
        watching.abort();
    }
}
