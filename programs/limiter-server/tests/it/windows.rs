//! Whether a client saw more admissions in a window than a limit allows.

use std::time::Duration;

use limiter_testkit::worst_window;

/// When an admitted request was made, and when its answer came. The server decided between the two.
pub(crate) type Admission = (Duration, Duration);

/// Asserts that at most `max` requests were both made and admitted within any `window`.
pub(crate) fn assert_windows(admissions: Vec<Admission>, max: u64, window: Duration) {
    let admissions = admissions
        .into_iter()
        .map(|(sent, returned)| limiter_testkit::Admission {
            sent,
            returned,
            cost: 1,
        });
    let worst = worst_window(admissions, window);
    assert!(worst <= max, "{worst} of at most {max} within {window:?}");
}
