//! Policies from numbers.

use std::time::Duration;

use limiter_core::{Counting, Limit, Policy, Window};

/// When most cases start: in November 2023.
pub(crate) const START: u64 = 1_700_000_000_000_000;

/// Every resolution, in microseconds.
const RESOLUTIONS: [u64; 13] = {
    let second = 1_000_000;
    let hour = 3_600_000_000;
    let [minute, day] = [60 * second, 24 * hour];
    [
        1,
        10,
        100,
        1_000,
        10_000,
        100_000,
        second,
        10 * second,
        minute,
        10 * minute,
        hour,
        6 * hour,
        day,
    ]
};

const FALLBACK: Limit = match Limit::with_window(1, Window::MIN) {
    Ok(limit) => limit,
    Err(_) => unreachable!(),
};

/// Returns a valid limit. All callers pass valid numbers.
pub(crate) fn limit(max: u64, window: u64) -> Limit {
    let window = Window::from_micros(window).unwrap_or(Window::MIN);
    Limit::with_window(max, window).unwrap_or(FALLBACK)
}

/// Returns the limit with the longest resolution up to `micros` that it may have. Exact for 0.
pub(crate) fn resolved(limit: Limit, micros: u64) -> Limit {
    let longest = micros.min(limit.window().as_micros());
    let resolution = RESOLUTIONS
        .into_iter()
        .rfind(|resolution| *resolution <= longest);
    resolution
        .and_then(|micros| limit.with_resolution(Duration::from_micros(micros)).ok())
        .unwrap_or(limit)
}

/// Returns the limit with the longest lease up to `micros` that it may have. It counts the same window.
pub(crate) fn leased(of: Limit, micros: u64) -> Limit {
    let window = of.window().as_micros();
    let longest = micros.min(window / 2);
    let lease = RESOLUTIONS.into_iter().rfind(|lease| *lease <= longest);
    let leased = lease.and_then(|micros| {
        let stated = limit(of.max(), window - micros);
        let stated = stated.with_lease(Duration::from_micros(micros)).ok()?;
        let resolution = of.resolution();
        resolution.map_or(Some(stated), |resolution| {
            stated.with_resolution(resolution).ok()
        })
    });
    leased.unwrap_or(of)
}

/// Returns limits of which some have a resolution: this fraction of the shortest of their windows. Exact for 0.
pub(crate) fn coarse(limits: &[(Limit, bool)], fraction: u64) -> Vec<Limit> {
    let some = limits.iter().filter(|(_, is_coarse)| *is_coarse);
    let shortest = some.map(|(limit, _)| limit.window().as_micros()).min();
    let part = shortest.and_then(|shortest| shortest.checked_div(fraction));
    let micros = part.map_or(0, |part| part.max(1));
    let each = limits
        .iter()
        .map(|(limit, is_coarse)| resolved(*limit, if *is_coarse { micros } else { 0 }));
    each.collect()
}

pub(crate) fn policy(limits: &[Limit], attempts: bool) -> Policy {
    let counting = if attempts {
        Counting::Attempts
    } else {
        Counting::Admitted
    };
    let policy = Policy::new(limits.iter().copied());
    policy
        .unwrap_or_else(|_| Policy::from(FALLBACK))
        .with_counting(counting)
}
