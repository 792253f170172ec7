//! Sequences of operations: as data, with the answers they must get, and put to a store.

pub(super) mod blame;
pub(super) mod case;
pub(super) mod plan;
pub(super) mod planner;
pub(super) mod put;
pub(super) mod replay;
pub(super) mod reply;
pub(super) mod story;
