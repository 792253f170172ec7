//! Which changes reload a configuration.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use limiter_memory::MemoryStore;
use limiter_server::reload;
use limiter_server::rules::RuleSet;
use limiter_server::service::{Headers, Service};
use limiter_server::store::Store;
use tempfile::TempDir;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::ask::rows;
use crate::client::PATIENCE;
use crate::config::domains;

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
