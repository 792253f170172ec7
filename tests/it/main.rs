//! The tests of the facade, in one program.

mod known_bugs;
mod own_store;
