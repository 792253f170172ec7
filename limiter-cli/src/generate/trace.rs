//! Made-up traces.

use std::io::{self, BufWriter, Write};

use rand::SeedableRng;
use rand_distr::{Distribution, Exp, Zipf};
use rand_pcg::Pcg64Mcg;

/// What a made-up trace is like.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// How many rows.
    pub rows: u64,
    /// From how many keys, at least 1; key 1 is the busiest.
    pub keys: u64,
    /// Rows per second on average, above 0.
    pub rate: f64,
    /// How unequal the keys are: the exponent of Zipf's law, 0 for all alike.
    pub skew: f64,
    /// The same seed makes the same trace.
    pub seed: u64,
}

/// Writes a trace as CSV with the columns `at` and `key`: Poisson arrivals from 1 January 2026 on, keys after Zipf's law.
///
/// # Errors
/// If the shape is out of range, or `out` cannot be written.
pub fn write(shape: Shape, out: impl Write) -> io::Result<()> {
    const START: f64 = 1_767_225_600e6;
    let invalid = |what: &'static str| io::Error::new(io::ErrorKind::InvalidInput, what);
    let keys = Zipf::new(shape.keys as f64, shape.skew)
        .map_err(|_| invalid("expected at least 1 key and a skew of at least 0"))?;
    let gaps = Exp::new(shape.rate / 1e6).ok().filter(|_| shape.rate.is_finite() && shape.rate > 0.0);
    let gaps = gaps.ok_or_else(|| invalid("expected a rate above 0"))?;
    let mut random = Pcg64Mcg::seed_from_u64(shape.seed);
    let mut out = BufWriter::with_capacity(1 << 16, out);
    let mut elapsed = 0.0;
    writeln!(out, "at,key")?;
    for _ in 0..shape.rows {
        elapsed += gaps.sample(&mut random);
        let at = (START + elapsed) as u64;
        writeln!(out, "{}.{:06},client-{}", at / 1_000_000, at % 1_000_000, keys.sample(&mut random) as u64)?;
    }
    out.flush()
}
