//! The tests of the testkit, in one program.

mod clock;
mod conformance;
mod flawed;
mod flaws;
mod texts;
mod worst_window;
