//! Policies from numbers.

use std::time::Duration;

use limiter_core::internal::RESOLUTIONS;
use limiter_core::{Counting, Limit, Policy, Window};

/// When most cases start: in November 2023.
pub(crate) const START: u64 = 1_700_000_000_000_000;

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
    let most = micros.min(limit.window().as_micros());
    let lengths = RESOLUTIONS.iter().map(|(length, _)| *length);
    let longest = lengths.filter(|length| *length <= most).max();
    let resolved = limit.with_resolution(Duration::from_micros(longest.unwrap_or(0)));
    resolved.unwrap_or(limit)
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

/// Writes a policy as a script does.
pub(crate) fn with_counting(policy: &Policy) -> String {
    match policy.counting() {
        Counting::Attempts => format!("{policy} attempts"),
        Counting::Admitted => policy.to_string(),
    }
}
