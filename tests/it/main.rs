//! The tests of the facade, in one program.

mod known_bugs;
#[cfg(feature = "log")]
mod own_store;
