//! What a window admitted, seen from outside.

use std::time::Duration;

use limiter_testkit::{Admission, worst_window};

fn worst(admissions: &[(u64, u64, u64)], window: u64) -> u64 {
    let millis = Duration::from_millis;
    let admission = |&(sent, returned, cost): &(u64, u64, u64)| Admission {
        sent: millis(sent),
        returned: millis(returned),
        cost,
    };
    worst_window(admissions.iter().map(admission), millis(window))
}

#[test]
fn a_window_has_no_end() {
    for (admissions, window, expected) in [
        (&[][..], 10, 0),
        (&[(0, 0, 3), (9, 9, 4)], 10, 7),
        (&[(0, 0, 3), (10, 10, 4)], 10, 4),
        (&[(11, 11, 1), (0, 0, 3), (10, 10, 4), (2, 2, 1)], 10, 6),
        // Sent or returned outside.
        (&[(0, 4, 1), (3, 9, 1), (5, 10, 1), (6, 16, 1)], 10, 2),
        (&[(5, 5, 2), (5, 5, 2), (5, 6, 2)], 1, 4),
        (&[(5, 5, 2), (5, 5, 2), (5, 6, 2)], 2, 6),
    ] {
        assert_eq!(worst(admissions, window), expected, "{admissions:?}");
    }
}
