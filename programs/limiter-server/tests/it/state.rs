//! Counts in memory that survive a restart.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use limiter_core::{Limiter, Timestamp, policy};
use limiter_memory::MemoryStore;
use limiter_server::state::State;
use serde_json::{Value, json};

use crate::server::{PATIENCE, PORTS, Server, program, until};

const MAX: usize = 1_100;
const CONFIG: &str = "
domain: d
descriptors:
  - { key: user, rate_limit: { unit: day, requests_per_unit: 1100 } }
";
const REQUEST: &str =
    r#"{"domain": "d", "descriptors": [{"entries": [{"key": "user", "value": "ann"}]}]}"#;

fn start(file: &Path, interval: &str) -> Server {
    let file = file.to_str().unwrap();
    Server::start(CONFIG, &["--state", file, "--state-interval", interval])
}

/// Returns how many of these requests are admitted.
fn admitted(server: &Server, requests: usize) -> usize {
    (0..requests)
        .filter(|_| server.post("/json", REQUEST).0 == 200)
        .count()
}

#[test]
fn no_window_exceeds_the_maximum_over_ten_rolling_restarts() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("counts");
    let mut server = start(&file, "10s");
    let address = Mutex::new(server.http);
    let admitted = AtomicUsize::new(0);
    let lost = AtomicUsize::new(0);
    let done = AtomicBool::new(false);
    let len = REQUEST.len();
    let head =
        format!("POST /json HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len}");
    let request = format!("{head}\r\n\r\n{REQUEST}");
    let began = Instant::now();
    let load = || {
        // A failed test ends as well.
        while !done.load(SeqCst) && began.elapsed() < 8 * PATIENCE {
            let to = *address.lock().unwrap();
            let Ok(mut stream) = TcpStream::connect(to) else {
                thread::yield_now();
                continue;
            };
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
        let threads = [(); 3].map(|()| scope.spawn(load));
        for restart in 1..=10 {
            until("some requests are admitted", || {
                (admitted.load(SeqCst) >= 100 * restart).then_some(())
            });
            server.signal("TERM");
            assert!(server.wait().success());
            server = start(&file, "10s");
            *address.lock().unwrap() = server.http;
        }
        until("the maximum is reached", || {
            match server.post("/json", REQUEST).0 {
                429 => Some(()),
                status => {
                    admitted.fetch_add(usize::from(status == 200), SeqCst);
                    None
                }
            }
        });
        done.store(true, SeqCst);
        threads
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
    });
    let admitted = admitted.load(SeqCst);
    let lost = lost.load(SeqCst);
    assert!(
        admitted <= MAX && admitted + lost >= MAX,
        "{admitted} admitted, {lost} lost"
    );
}

#[test]
fn receipts_outlive_ten_restarts() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("counts");
    let call = |server: &Server, op: &str, fields: Value| {
        let mut body = json!({ "domain": "d", "descriptor": [["user", "ann"]] });
        let fields = fields.as_object().unwrap().clone();
        body.as_object_mut().unwrap().extend(fields);
        let (status, answer) = server.post(&format!("/v1/{op}"), &body.to_string());
        assert_eq!(status, 200, "{answer}");
        answer
    };
    let mut server = start(&file, "1h");
    let slot = call(&server, "acquire", json!({ "id": "slot" }));
    let mut slot = slot["receipt"].clone();
    let reserved = call(&server, "acquire", json!({ "cost": 900 }));
    let reserved = json!({ "receipt": reserved["receipt"], "cost": 20 });
    for restart in 1..=10 {
        server.signal("TERM");
        assert!(server.wait().success());
        server = start(&file, "1h");
        let renewed = call(&server, "renew", json!({ "receipt": slot, "id": "slot" }));
        assert_eq!(renewed["applied"], true, "restart {restart}: {renewed}");
        slot = renewed["receipt"].clone();
    }
    let settled = call(&server, "settle", reserved);
    assert_eq!(
        (&settled["applied"], &settled["used"]),
        (&true.into(), &21.into())
    );
    let refunded = call(&server, "refund", json!({ "receipt": slot }));
    assert_eq!(
        (&refunded["applied"], &refunded["used"]),
        (&true.into(), &20.into())
    );
}

#[test]
fn a_killed_server_forgets_what_it_admitted_since_the_last_save() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("counts");
    let server = start(&file, "20ms");
    assert_eq!(admitted(&server, 60), 60);
    // The save after next begins later than the last request.
    let saves = || server.metric("limiter_server_state_saves_total{result=\"success\"}");
    let before = saves().unwrap_or(0.0);
    until("everything is saved", || {
        saves().filter(|saves| *saves >= before + 2.0)
    });
    drop(server);
    let server = start(&file, "1h");
    assert_eq!(admitted(&server, 20), 20);
    drop(server);
    // Those 20 are lost.
    assert_eq!(admitted(&start(&file, "1h"), MAX), MAX - 60);
}

#[test]
fn a_file_that_does_not_load_is_kept_aside_and_its_server_serves() {
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
    for (bytes, expected) in [
        (good.clone(), None),
        (changed(30), Some("the file is damaged; delete it")),
        (
            good[..good.len() - 1].to_vec(),
            Some("the file is damaged; delete it"),
        ),
        (
            changed(21),
            Some("not of this version; start the version that wrote it"),
        ),
        (Vec::new(), Some("not of this version")),
        (
            saved(3_600),
            Some("the file is from the future; set the clock"),
        ),
    ] {
        fs::write(&file, &bytes).unwrap();
        let mut server = start(&file, "1h");
        let text = expected.unwrap_or("Counts start at zero");
        assert_eq!(
            server.logged(text),
            usize::from(expected.is_some()),
            "{expected:?}"
        );
        assert_eq!(admitted(&server, 1), 1, "{expected:?}");
        let kept = expected.map(|_| fs::read(&refused).unwrap());
        assert_eq!(kept, expected.map(|_| bytes), "{expected:?}");
        server.signal("TERM");
        assert!(server.wait().success());
        assert!(fs::read(&file).unwrap().len() > 60, "{expected:?}");
        fs::remove_file(&file).unwrap();
        let _ = fs::remove_file(&refused);
    }
    // A second one replaces no other.
    for (text, aside) in [("one", "refused"), ("two", "refused.2")] {
        fs::write(&file, text).unwrap();
        drop(start(&file, "1h"));
        assert_eq!(
            fs::read_to_string(file.with_extension(aside)).unwrap(),
            text
        );
    }

    let server = start(&file, "1h");
    let mut second = Command::new(program());
    second
        .arg("--config")
        .arg(server.config())
        .arg("--state")
        .arg(&file);
    let errors = second.output().unwrap().stderr;
    let errors = String::from_utf8_lossy(&errors);
    assert!(
        errors.contains("--state: ") && errors.contains("in use by another process"),
        "{errors}"
    );
}

/// Starts a server that cannot, and returns its errors.
fn fails(file: &Path) -> String {
    let config = file.with_extension("yaml");
    fs::write(&config, CONFIG).unwrap();
    let mut server = Command::new(program());
    server.arg("--config").arg(config).arg("--state").arg(file);
    server.envs(PORTS);
    let out = server.output().unwrap();
    assert_eq!(out.status.code(), Some(1));
    String::from_utf8_lossy(&out.stderr).into_owned()
}

#[test]
fn a_save_that_fails_leaves_the_last_file_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("counts");
    let mut server = start(&file, "1h");
    server.signal("TERM");
    assert!(server.wait().success());
    let last = fs::read(&file).unwrap();
    let config = folder.path().join("limits.yaml");
    fs::write(&config, CONFIG).unwrap();
    let mut command = Command::new("sh");
    // As on a full disk: no file may grow above some kilobytes.
    command.args(["-c", "trap '' XFSZ; ulimit -f 8; exec \"$0\" \"$@\""]);
    command.arg(program()).arg("--config").arg(config);
    command
        .args(["--state-interval", "50ms", "--state"])
        .arg(&file);
    let mut server = Server::run(command, tempfile::tempdir().unwrap());
    for user in 0..100 {
        assert_eq!(
            server.ask("user", &format!("{user}{}", "x".repeat(100))),
            200
        );
    }
    server.until_logged("cannot save the counts");
    server.signal("TERM");
    assert!(server.wait().success());
    let names = fs::read_dir(folder.path()).unwrap();
    let mut names: Vec<_> = names.map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["counts", "counts.lock", "limits.yaml"]);
    let saved = fs::read(&file).unwrap();
    assert!(saved.starts_with(&last[..20]) && saved.len() < 8_192);
}

#[test]
fn a_link_stays_a_link_and_its_target_has_the_counts() {
    let folder = tempfile::tempdir().unwrap();
    let [volume, other] = ["volume", "other"].map(|name| folder.path().join(name));
    fs::create_dir(&volume).unwrap();
    fs::create_dir(&other).unwrap();
    let target = volume.join("counts");
    let link = other.join("link");
    symlink("../volume/counts", other.join("inner")).unwrap();
    symlink("inner", &link).unwrap();
    let mut server = start(&link, "1h");
    assert_eq!(admitted(&server, 100), 100);
    // By another path, it is the same file.
    assert!(fails(&target).contains("in use by another process"));
    server.signal("TERM");
    assert!(server.wait().success());
    assert!(link.is_symlink() && target.is_file());
    // The next container has only the volume.
    fs::remove_file(&link).unwrap();
    let server = start(&target, "1h");
    assert_eq!(admitted(&server, MAX), MAX - 100);
}

#[test]
fn only_regular_files_are_read_and_written() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("counts");
    let is_irregular = |file: &Path| {
        let errors = fails(file);
        assert!(errors.contains("expected a regular file"), "{errors}");
    };
    // They would block, or never end.
    let make_pipe =
        |path: &Path| assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
    make_pipe(&file);
    is_irregular(&file);
    fs::remove_file(&file).unwrap();
    symlink("/dev/zero", &file).unwrap();
    let errors = fails(&file);
    assert!(errors.contains("--state: "), "{errors}");
    fs::remove_file(&file).unwrap();
    // What stands in the way of a save is replaced, not written to, and so is the lock.
    let new = folder.path().join("counts.new");
    let lock = folder.path().join("counts.lock");
    let victim = folder.path().join("victim");
    fs::write(&victim, "of value").unwrap();
    let _ = fs::remove_file(&lock);
    symlink(&victim, &lock).unwrap();
    assert!(fails(&file).contains("counts.lock"));
    fs::remove_file(&lock).unwrap();
    for in_the_way in ["link", "pipe", "file"] {
        let _ = fs::remove_file(&new);
        match in_the_way {
            "link" => symlink(&victim, &new).unwrap(),
            "pipe" => make_pipe(&new),
            _ => fs::write(&new, "left behind").unwrap(),
        }
        let mut server = start(&file, "1h");
        server.signal("TERM");
        assert!(server.wait().success());
        let saved = fs::symlink_metadata(&file).unwrap();
        assert!(saved.is_file() && !new.exists(), "{in_the_way}");
        assert_eq!(saved.permissions().mode() & 0o777, 0o600, "{in_the_way}");
    }
    assert_eq!(fs::read(&victim).unwrap(), b"of value");
}
