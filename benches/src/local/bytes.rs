//! Measures memory.

use std::time::Duration;

use super::library::{Contestant, Quota};
use super::scenarios::PEERS;
use super::workload::keys;
use crate::record::Results;

/// Returns the bytes that the allocator has given out, with its own overhead.
pub(super) fn held() -> f64 {
    // SAFETY: the function has no preconditions.
    let all = unsafe { libc::mallinfo2() };
    (all.uordblks + all.hblkhd) as f64
}

/// Measures the bytes per key of all libraries, by the number of requests per key.
pub(crate) fn measure() -> Results {
    let mut results = Results::new();
    for entries in [1, 10, 100] {
        let scenario = results.entry(format!("bytes/{entries}")).or_default();
        for library in PEERS {
            // With 100 entries per key, a tenth of the keys gives the same precision. The others take up to 30 times as long.
            let count = if entries == 100 { 100_000 } else { 1_000_000 };
            let count =
                if ["limiter", "governor", "throttlecrab"].contains(&library.name) { count } else { count / 20 };
            let figures = [("bytes".to_owned(), per_key(library, count, entries))];
            scenario.insert(library.name.to_owned(), figures.into());
        }
    }
    results
}

fn per_key(library: &Contestant, count: usize, entries: u32) -> f64 {
    let keys = keys(count);
    let before = held();
    let allows = (library.connect)(Quota::new(1000, Duration::from_secs(1000)));
    for _ in 0..entries {
        for key in &keys {
            allows(key);
        }
    }
    (held() - before) / count as f64
}
