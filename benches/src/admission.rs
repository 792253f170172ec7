//! Measures how much each library admits in its worst window under the same load.

use std::collections::VecDeque;
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::libraries::{Governor, Library, Limitador, Now, Quota, Throttlecrab, Trypema};

/// The limit: 100 units in any second.
const MAX: u32 = 100;
const WINDOW: Duration = Duration::from_secs(1);
const STEP: Duration = Duration::from_millis(5);

/// The numbers of requests that a library admitted.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Admitted {
    /// The library.
    pub library: String,
    /// The most in any window of a second, if twice the limit arrives just before and just after the end of the first
    /// second.
    pub boundary: usize,
    /// The most in any window, if five times the limit arrives evenly for three seconds.
    pub steady: usize,
    /// The total under that load.
    pub steady_total: usize,
}

/// Times since the start, each with a number of requests.
type Load = Vec<(Duration, usize)>;

fn boundary() -> Load {
    // The first request opens a fixed window, which ends almost unused.
    let mut load = vec![(Duration::ZERO, 1)];
    load.extend((158..243).filter(|i| !(198..203).contains(i)).map(|i| (STEP * i, 5)));
    load
}

fn steady() -> Load {
    let per_step = 5 * MAX as usize * STEP.as_millis() as usize / WINDOW.as_millis() as usize;
    (0..600).map(|i| (STEP * i, per_step.max(1))).collect()
}

struct Subject {
    library: &'static str,
    allows: Box<dyn Fn() -> bool>,
    /// When each admitted request was sent. Its admission was no earlier.
    admitted: Vec<Instant>,
}

fn subject<L: Library>() -> Subject {
    let (limiter, key) = (L::with(Quota::new(MAX, WINDOW)), "user:00000000001".to_owned());
    Subject { library: L::NAME, allows: Box::new(move || limiter.allows(&key)), admitted: Vec::new() }
}

fn offer(load: Load) -> Vec<Subject> {
    let mut subjects = vec![
        subject::<Now>(),
        subject::<Governor>(),
        subject::<Trypema<1>>(),
        subject::<Trypema<100>>(),
        subject::<Limitador>(),
        subject::<Throttlecrab>(),
    ];
    let start = Instant::now();
    for (at, count) in load {
        thread::sleep(at.saturating_sub(start.elapsed()));
        for subject in &mut subjects {
            for _ in 0..count {
                let now = Instant::now();
                if (subject.allows)() {
                    subject.admitted.push(now);
                }
            }
        }
    }
    subjects
}

/// Returns the most requests in any window. The window is a millisecond shorter, in favour of libraries that read the
/// clock later.
fn worst_window(admitted: &[Instant]) -> usize {
    let slack = Duration::from_millis(1);
    let mut window = VecDeque::new();
    let mut worst = 0;
    for &at in admitted {
        while window.front().is_some_and(|&first| at.duration_since(first) >= WINDOW - slack) {
            window.pop_front();
        }
        window.push_back(at);
        worst = worst.max(window.len());
    }
    worst
}

/// Runs both loads. Takes five seconds.
#[must_use]
pub fn compare() -> Vec<Admitted> {
    let loads = offer(boundary()).into_iter().zip(offer(steady()));
    let admitted = loads.map(|(boundary, steady)| Admitted {
        library: boundary.library.to_owned(),
        boundary: worst_window(&boundary.admitted),
        steady: worst_window(&steady.admitted),
        steady_total: steady.admitted.len(),
    });
    admitted.collect()
}
