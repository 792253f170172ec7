//! The calls whose futures are dropped.

use limiter_core::policy;

use crate::conformance::cases::script::{Script, script};

/// A case in which one call is dropped. Later calls must find the log as it was before that call, or as it is after
/// it.
pub(super) struct DroppedCall {
    pub(super) script: Script,
    /// The step whose future is dropped.
    pub(super) step: usize,
}

/// Builds the log before every dropped call: three entries, one with an id.
fn before(name: &'static str, attempts: bool) -> Script {
    let limits =
        if attempts { policy!("9/10us").with_counting(limiter_core::Counting::Attempts) } else { policy!("9/10us") };
    let script = script(name, &[], limits).record(1).called("a").record(2).id(1).called("b").record(3).called("c");
    script.policy(policy!("4503599627370496/10us"))
}

/// Checks everything that the dropped call can change.
fn after(script: Script) -> Script {
    let script = script.peek(1).record(1).key(1).record(1).id(2).peek(1).under(1).settle("a", 2).refund("b");
    script.record(1).id(1).settle("c", 1).peek(1).under(1).peek(1).key(1).reset().peek(1)
}

pub(super) fn cases() -> Vec<DroppedCall> {
    let dropped = |script: Script| DroppedCall { step: script.case.steps.len() - 1, script: after(script) };
    vec![
        dropped(before("a record", false).record(1)),
        dropped(before("a record with an id", false).record(1).id(2)),
        dropped(before("a record that drops the others", false).record(9).id(2)),
        dropped(before("an acquire", false).acquire(3).id(2)),
        dropped(before("an attempt that is denied", true).acquire(8).id(2)),
        dropped(before("a repetition", false).record(1).id(1)),
        dropped(before("a peek", false).peek(1)),
        dropped(before("a settlement", false).settle("a", 5)),
        dropped(before("a settlement that drops the others", false).settle("c", u64::MAX)),
        dropped(before("a refund", false).refund("b")),
        dropped(before("a reset", false).reset()),
    ]
}
