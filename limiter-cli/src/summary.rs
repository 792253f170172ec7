//! What a replay came to, in numbers.

mod print;
mod tally;

pub use print::print;
pub use tally::{Busy, KeyCount, Streak, Summary};
