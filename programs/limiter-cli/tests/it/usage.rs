//! Messages about wrong usage and other failures, with the exit status.

use crate::common::failure;

/// Each row has arguments, the exit status, and a part of the message.
fn assert_each(rows: &str) {
    for row in rows.lines() {
        let [message, status, args] = row.rsplitn(3, " | ").collect::<Vec<_>>()[..] else {
            panic!("{row}")
        };
        let args: Vec<&str> = args.split(' ').collect();
        let found = failure(&args, "at,key\n0,k\n");
        let status: i32 = status.parse().unwrap();
        assert!(
            found.0 == status && found.1.contains(message),
            "{row}: {found:?}"
        );
    }
}

#[test]
fn wrong_usage_and_failures_are_explained() {
    assert_each(include_str!("../messages/usage.txt"));
    if cfg!(feature = "stores") {
        assert_each(include_str!("../messages/usage_of_stores.txt"));
    }
}
