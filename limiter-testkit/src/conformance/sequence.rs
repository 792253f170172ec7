//! Sequences of operations: as data, with the answers they must get, and put to a store.

pub(super) mod caller;
pub(super) mod case;
pub(super) mod citations;
pub(super) mod plan;
pub(super) mod planner;
pub(super) mod replay;
pub(super) mod reply;
pub(super) mod transcript;
