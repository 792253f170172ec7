//! Worked examples decided by hand. Every backend and every front end returns exactly these answers.

mod trace;
mod traces;

pub use trace::{Row, RowAnswer, Trace};
pub use traces::traces;
