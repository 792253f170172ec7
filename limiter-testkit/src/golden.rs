//! Worked examples, decided by hand: every backend and every front end gives exactly these answers.

mod text;
mod trace;
mod traces;

pub use trace::{Row, RowAnswer, Trace};
pub use traces::traces;
