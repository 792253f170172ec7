//! Measures each library's admissions in its worst window, with the same load.

use std::thread;
use std::time::{Duration, Instant};

use limiter_core::policy;
use limiter_testkit::worst_window;

use super::libraries::{Library, PEERS};
use crate::record::{Figures, put};

/// The limit is 100 units in any second.
const WINDOW: Duration = Duration::from_secs(1);
const STEP: Duration = Duration::from_millis(5);
/// Windows are judged as shorter by this, in favour of libraries that read the clock later.
const SLACK: Duration = Duration::from_millis(1);

/// Returns the most admitted requests in any window of a second.
pub(crate) fn measure() -> Figures {
    let mut figures = Figures::new();
    for library in &PEERS {
        put(
            &mut figures,
            library.name,
            "boundary",
            worst_window(offer(library), WINDOW - SLACK) as f64,
        );
    }
    figures
}

/// Sends twice the limit just before and just after the end of the first second. Returns when the admitted requests were sent.
/// Their admission was no earlier.
fn offer(library: &Library) -> Vec<Duration> {
    let steps = (158..243)
        .filter(|i| !(198..203).contains(i))
        .map(|i| (STEP * i, 5));
    // The first request opens a fixed window, which ends almost unused.
    let load = [(Duration::ZERO, 1)].into_iter().chain(steps);
    let key = "user:00000000001".to_owned();
    let limiter = (library.limiter)(&policy!("100/1s"));
    let mut admitted = Vec::new();
    let start = Instant::now();
    for (at, count) in load {
        thread::sleep(at.saturating_sub(start.elapsed()));
        let sent = (0..count).map(|_| start.elapsed());
        admitted.extend(sent.filter(|_| limiter.allows(&key)));
    }
    admitted
}
