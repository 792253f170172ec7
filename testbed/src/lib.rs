//! Servers that fail on command, and the behaviour of stores during the failures. For the tests of this workspace.
//!
//! - [`server::Server`] and [`server::Cluster`] run real Redis servers, and [`server::Postgres`] a Postgres server.
//! - [`Proxy`] stands between a store and any TCP server, and delays, holds, cuts or resets the traffic.
//! - [`RedisFault`], [`ClusterFault`] and [`PostgresFault`] make a real server fail.
//! - [`observe`] runs several stores through faults and reports their callers' results, and every broken promise.
//! - [`write_certificates`] makes files for TLS.
//! - [`Faulty`] is a store in process that fails by rule.
//!
//! Tests that assert times share a test program with no others, and hold [`alone`].
#![forbid(unsafe_code)]

mod certificates;
mod cluster;
mod faulty;
mod observe;
mod postgres;
mod proxy;
mod redis;
pub mod server;
mod subject;

use std::fs;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

pub use certificates::write_certificates;
pub use cluster::ClusterFault;
pub use faulty::{Does, Faulty};
pub use observe::{Observed, observe};
pub use postgres::{PostgresFault, PostgresScene};
pub use proxy::{Network, Proxy};
pub use redis::{RedisFault, RedisScene};
pub use subject::{Seen, Subject};

/// Waits until no other test of this program holds the guard. Every test of a program that asserts times must call it.
#[must_use = "other tests run as soon as the guard is dropped"]
pub fn alone() -> impl Sized {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Asserts a property of each file of a folder, and of about this many of its beginnings, as of a file that is still being written.
pub fn every_input(folder: &Path, beginnings: usize, property: fn(&[u8])) {
    let files = fs::read_dir(folder).unwrap();
    let mut files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 15, "only {} inputs", files.len());
    for path in files {
        let input = fs::read(&path).unwrap();
        println!("{}", path.display());
        for length in (0..=input.len())
            .rev()
            .step_by(1 + input.len() / beginnings)
        {
            property(&input[..length]);
        }
    }
}

/// Returns `true` if the tests run in full, as `scripts/test --all` does: with more seeds, and for longer.
pub fn test_all() -> bool {
    std::env::var_os("LIMITER_TEST_ALL").is_some()
}
