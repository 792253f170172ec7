//! Counts in memory that survive a restart.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::thread;
use std::time::{Duration, SystemTime};

use limiter_core::{Limiter, Timestamp, policy};
use limiter_memory::MemoryStore;
use limiter_server::run;
use limiter_server::state::State;

use crate::client::{Client, folder, shown, until};
use crate::program::{Program, limited};
use crate::server::{Server, options};

const MAX: usize = 1_100;
const CONFIG: &str = "
domain: d
descriptors:
  - { key: user, rate_limit: { unit: day, requests_per_unit: 1100 } }
";
const REQUEST: &str =
    r#"{"domain": "d", "descriptors": [{"entries": [{"key": "user", "value": "ann"}]}]}"#;

fn start(file: &Path) -> Server {
    Server::start(CONFIG, &["--state", shown(file), "--state-interval", "1h"])
}

/// Starts a server that cannot, and returns its error.
async fn fails(file: &Path) -> String {
    let (_folder, config) = folder(CONFIG);
    let started = run::Server::start(&options(&config, &["--state", shown(file)])).await;
    format!("{:#}", started.unwrap_err())
}

/// Returns how many of these requests are admitted.
fn admitted(server: &Client, requests: usize) -> usize {
    let statuses = (0..requests).map(|_| server.post("/json", REQUEST).0);
    statuses.filter(|status| *status == 200).count()
}

#[test]
fn no_window_exceeds_the_maximum_over_ten_rolling_restarts() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("counts");
    let len = REQUEST.len();
    let head =
        format!("POST /json HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len}");
    let request = format!("{head}\r\n\r\n{REQUEST}");
    let admitted = AtomicUsize::new(0);
    let lost = AtomicUsize::new(0);
    for restart in 1..=10 {
        let server = start(&file);
        let to = server.http;
        let load = || {
            while let Ok(mut stream) = TcpStream::connect(to) {
                let mut answer = String::new();
                let _ = stream.write_all(request.as_bytes());
                let _ = stream.read_to_string(&mut answer);
                match answer.get(9..12) {
                    Some("200") => admitted.fetch_add(1, SeqCst),
                    Some(_) => 0,
                    None => lost.fetch_add(1, SeqCst),
                };
            }
        };
        thread::scope(|scope| {
            (0..3).for_each(|_| _ = scope.spawn(load));
            until("some requests are admitted", || {
                (admitted.load(SeqCst) >= 100 * restart).then_some(())
            });
            server.stop();
        });
    }
    let admitted = admitted.into_inner() + self::admitted(&start(&file), MAX);
    let lost = lost.into_inner();
    assert!(
        admitted <= MAX && admitted + lost >= MAX,
        "{admitted} admitted, {lost} lost"
    );
}

#[test]
fn a_killed_server_forgets_what_it_admitted_since_the_last_save() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("counts");
    let start = |interval| {
        Program::start(
            CONFIG,
            &["--state", shown(&file), "--state-interval", interval],
        )
    };
    let server = start("20ms");
    assert_eq!(admitted(&server, 60), 60);
    // The save after next begins later than the last request.
    let saves = || server.metric("limiter_server_state_saves_total{result=\"success\"}");
    let before = saves().unwrap_or(0.0);
    until("everything is saved", || {
        saves().filter(|saves| *saves >= before + 2.0)
    });
    drop(server);
    let server = start("1h");
    assert_eq!(admitted(&server, 20), 20);
    drop(server);
    // Those 20 are lost.
    assert_eq!(admitted(&start("1h"), MAX), MAX - 60);
}

#[tokio::test]
async fn a_file_that_does_not_load_is_kept_aside_and_its_server_serves() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("counts");
    let saved = |ahead: u64| {
        let state = State::load(&file, MemoryStore::new()).unwrap();
        let now = Timestamp::try_from(SystemTime::now()).unwrap();
        let limiter = Limiter::new("d/user", policy!("5/1d"), Arc::clone(state.store()));
        let _ = limiter
            .record("ann")
            .at(now.saturating_add(Duration::from_secs(ahead)))
            .now()
            .unwrap();
        state.save();
        let bytes = fs::read(&file).unwrap();
        fs::remove_file(&file).unwrap();
        bytes
    };
    let good = saved(0);
    let changed = |i: usize| {
        let mut bytes = good.clone();
        bytes[i] ^= 1;
        bytes
    };
    let refused = file.with_extension("refused");
    let damaged = "the file is damaged; delete it";
    let other = "not of this version; start the version that wrote it";
    let future = "the file is from the future; set the clock";
    for (bytes, expected) in [
        (good.clone(), None),
        (changed(30), Some(damaged)),
        (good[..good.len() - 1].to_vec(), Some(damaged)),
        (changed(21), Some(other)),
        (Vec::new(), Some(other)),
        (saved(3_600), Some(future)),
    ] {
        fs::write(&file, &bytes).unwrap();
        let server = start(&file);
        let text = expected.unwrap_or("Counts start at zero");
        let lines = usize::from(expected.is_some());
        assert_eq!(server.logged(text), lines, "{text}");
        assert_eq!(admitted(&server, 1), 1, "{expected:?}");
        let kept = expected.map(|_| fs::read(&refused).unwrap());
        assert_eq!(kept, expected.map(|_| bytes), "{expected:?}");
        server.stop();
        assert!(fs::read(&file).unwrap().len() > 60, "{expected:?}");
        fs::remove_file(&file).unwrap();
        let _ = fs::remove_file(&refused);
    }
    // A second one replaces no other.
    for (text, aside) in [("one", "refused"), ("two", "refused.2")] {
        fs::write(&file, text).unwrap();
        start(&file).stop();
        let kept = fs::read_to_string(file.with_extension(aside)).unwrap();
        assert_eq!(kept, text);
        fs::remove_file(&file).unwrap();
    }
    let _server = start(&file);
    let errors = fails(&file).await;
    assert!(
        errors.starts_with("--state: ") && errors.contains("in use by another process"),
        "{errors}"
    );
}

#[test]
fn a_save_that_fails_leaves_the_last_file_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("counts");
    start(&file).stop();
    let last = fs::read(&file).unwrap();
    // As on a full disk: no file may grow above some kilobytes.
    let (mut limited, config) = limited("trap '' XFSZ; ulimit -f 8", CONFIG);
    limited
        .args(["--state-interval", "50ms", "--state"])
        .arg(&file);
    let mut server = Program::run(limited, config);
    for user in 0..100 {
        let user = format!("{user}{}", "x".repeat(100));
        assert_eq!(server.ask("user", &user), 200);
    }
    server.until_logged("cannot save the counts");
    assert!(server.end().success());
    let names = fs::read_dir(folder.path()).unwrap();
    let mut names: Vec<_> = names.map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["counts", "counts.lock"]);
    let saved = fs::read(&file).unwrap();
    assert!(saved.starts_with(&last[..20]) && saved.len() < 8_192);
}

/// SIGTERM ends the first server, which is a program.
#[tokio::test]
async fn a_link_stays_a_link_and_its_target_has_the_counts() {
    let folder = tempfile::tempdir().unwrap();
    let [volume, other] = ["volume", "other"].map(|name| folder.path().join(name));
    fs::create_dir(&volume).unwrap();
    fs::create_dir(&other).unwrap();
    let target = volume.join("counts");
    let link = other.join("link");
    symlink("../volume/counts", other.join("inner")).unwrap();
    symlink("inner", &link).unwrap();
    let mut server = Program::start(CONFIG, &["--state", shown(&link)]);
    assert_eq!(admitted(&server, 100), 100);
    // By another path, it is the same file.
    assert!(fails(&target).await.contains("in use by another process"));
    assert!(server.end().success());
    assert!(link.is_symlink() && target.is_file());
    // The next container has only the volume.
    fs::remove_file(&link).unwrap();
    assert_eq!(admitted(&start(&target), MAX), MAX - 100);
}

#[tokio::test]
async fn only_regular_files_are_read_and_written() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("counts");
    // They would block, or never end.
    let make_pipe =
        |path: &Path| assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
    make_pipe(&file);
    let errors = fails(&file).await;
    assert!(errors.contains("expected a regular file"), "{errors}");
    fs::remove_file(&file).unwrap();
    symlink("/dev/zero", &file).unwrap();
    let errors = fails(&file).await;
    assert!(errors.contains("--state: "), "{errors}");
    fs::remove_file(&file).unwrap();
    // What stands in the way of a save is replaced, not written to, and so is the lock.
    let new = folder.path().join("counts.new");
    let lock = folder.path().join("counts.lock");
    let victim = folder.path().join("victim");
    fs::write(&victim, "of value").unwrap();
    let _ = fs::remove_file(&lock);
    symlink(&victim, &lock).unwrap();
    assert!(fails(&file).await.contains("counts.lock"));
    fs::remove_file(&lock).unwrap();
    for in_the_way in ["link", "pipe", "file"] {
        let _ = fs::remove_file(&new);
        match in_the_way {
            "link" => symlink(&victim, &new).unwrap(),
            "pipe" => make_pipe(&new),
            _ => fs::write(&new, "left behind").unwrap(),
        }
        start(&file).stop();
        let saved = fs::symlink_metadata(&file).unwrap();
        assert!(saved.is_file() && !new.exists(), "{in_the_way}");
        assert_eq!(saved.permissions().mode() & 0o777, 0o600, "{in_the_way}");
    }
    assert_eq!(fs::read(&victim).unwrap(), b"of value");
}
