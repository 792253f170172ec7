//! The program `limiter`.
fn main() {}
