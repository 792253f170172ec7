//! Tasks at once and sleeping, on whatever runtime the store needs.

pub(super) mod sleep;
pub(super) mod spawn;
