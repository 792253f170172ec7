//! The parts of the suite.

pub(super) mod cancel;
pub(super) mod cases;
pub(super) mod contention;
pub(super) mod forgetting;
pub(super) mod generated;
pub(super) mod golden;
pub(super) mod handles;
pub(super) mod long_log;
pub(super) mod store_clock;
