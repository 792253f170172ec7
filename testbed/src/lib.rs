//! Servers that fail on command, for the tests of this workspace.
//!
//! - [`server::Server`] and [`server::Cluster`] run real Redis servers, and [`server::Postgres`] a Postgres server.
//! - [`Proxy`] stands between a store and any TCP server, and delays, holds, cuts or resets the traffic.
//! - [`postgres`] lists statements that make a Postgres server fail.
//! - [`write_certificates`] makes files for TLS.
//! - [`Faulty`] is a store in process that fails by rule.
#![forbid(unsafe_code)]

mod certificates;
mod faulty;
pub mod postgres;
mod proxy;
pub mod server;

use std::fs;
use std::path::Path;

pub use certificates::write_certificates;
pub use faulty::{Does, Faulty};
pub use proxy::{Network, Proxy};

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
