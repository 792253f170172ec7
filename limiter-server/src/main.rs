//! The program limiter-server.

fn main() {}
