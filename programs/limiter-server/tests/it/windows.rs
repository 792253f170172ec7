//! Whether a client saw more admissions in a window than a limit allows.

use std::time::Duration;

/// When an admitted request was made, and when its answer came. The server decided between the two.
pub(crate) type Admission = (Duration, Duration);

/// Asserts that at most `max` requests were both made and admitted within any `window`.
pub(crate) fn assert_windows(mut admissions: Vec<Admission>, max: usize, window: Duration) {
    admissions.sort();
    for (i, (made, _)) in admissions.iter().enumerate() {
        let began = admissions[i..]
            .iter()
            .take_while(|(other, _)| *other < *made + window);
        let within = began
            .filter(|(_, answered)| *answered < *made + window)
            .count();
        assert!(within <= max, "{within} of at most {max} within {window:?}");
    }
}
