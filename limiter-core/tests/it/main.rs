//! The tests of the crate, in one program.

mod all_of;
mod log;
mod permits;
mod requests;
#[cfg(feature = "tokio")]
mod slots;
mod slow_store;
mod waiting;
