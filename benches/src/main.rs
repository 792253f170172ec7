//! Measures the library's contestants in turns, and writes the tables.

fn main() -> anyhow::Result<()> {
    limiter_benches::LIBRARY.run()
}
