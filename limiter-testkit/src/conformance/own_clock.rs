//! Sequences at the store's own clock.
//!
//! The store says at which time each call happened. The oracle is asked at that time, so every field of every answer is
//! compared, however long the calls take. Whether the store told the right time is checked on its own.

mod candidate;
pub(super) mod clock;
pub(super) mod pace;
pub(super) mod session;
