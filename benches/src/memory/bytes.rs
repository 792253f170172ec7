//! Measures memory.

use limiter_core::{Policy, policy};

use super::libraries::{Library, PEERS};
use super::limits::{Limits, only_limit};
use super::ours::Now;
use super::workload::keys;
use crate::record::{Figures, put};

/// Returns the allocated bytes, including the allocator's overhead.
pub(super) fn allocated() -> f64 {
    // SAFETY: the function has no preconditions.
    let all = unsafe { libc::mallinfo2() };
    (all.uordblks + all.hblkhd) as f64
}

/// The limits whose full logs are measured.
pub(crate) const FULL: [&str; 7] = [
    "1000/1h",
    "1000/1h~1m",
    "100000/1d",
    "100000/1d~10m",
    "1000000/30d",
    "1000000/30d~1h",
    "1000000/30d~6h",
];

/// Measures the bytes per key of all libraries, by the number of requests per key, and of each request after the first.
pub(crate) fn measure() -> Figures {
    let mut figures = Figures::new();
    for library in &PEERS {
        // The others take up to 30 times as long.
        let count = if ["limiter", "governor", "throttlecrab"].contains(&library.name) {
            1_000_000
        } else {
            50_000
        };
        // With 100 entries per key, a tenth of the keys gives the same precision.
        let [one, ten, hundred] = [(1, count), (10, count), (100, count / 10)]
            .map(|(entries, count)| per_key(library, count, entries));
        for (measure, bytes) in [
            ("1", one),
            ("10", ten),
            ("100", hundred),
            ("further", (hundred - one) / 99.0),
        ] {
            put(&mut figures, library.name, measure, bytes);
        }
    }
    figures
}

/// Returns the entries and the bytes of a log whose units are spread over the window, each a request.
pub(crate) fn full_log(policy: &Policy) -> Figures {
    let keys = keys(10);
    let library = Now::new(policy);
    let mut figures = Figures::new();
    let (before, (max, window)) = (allocated(), only_limit(policy));
    keys.iter()
        .for_each(|key| library.append_past(key, max, window));
    put(
        &mut figures,
        PEERS[0].name,
        "bytes",
        (allocated() - before) / keys.len() as f64,
    );
    put(
        &mut figures,
        PEERS[0].name,
        "entries",
        library.entries(&keys[0]) as f64,
    );
    figures
}

fn per_key(library: &Library, count: usize, entries: u32) -> f64 {
    let keys = keys(count);
    let before = allocated();
    let limiter = (library.limiter)(&policy!("1000/1000s"));
    for _ in 0..entries {
        for key in &keys {
            limiter.allows(key);
        }
    }
    (allocated() - before) / count as f64
}
