//! Random traces.

use std::io::{self, BufWriter, Write};

use rand::SeedableRng;
use rand_distr::{Distribution, Exp, Zipf};
use rand_pcg::Pcg64Mcg;

/// The parameters of a random trace.
#[derive(Clone, Copy, Debug)]
pub struct TraceSpec {
    /// The number of rows.
    pub rows: u64,
    /// The number of keys, at least 1. Key 1 is the busiest.
    pub keys: u64,
    /// The average number of rows per second, above 0.
    pub rate: f64,
    /// The skew of the keys: the exponent of Zipf's law; 0 is uniform.
    pub skew: f64,
    /// The random seed. The same seed gives the same trace.
    pub seed: u64,
}

/// Writes a trace as CSV with the columns `at` and `key`: Poisson arrivals from 1 January 2026, and keys by Zipf's
/// law.
///
/// # Errors
/// If a parameter is out of range, or if `out` cannot be written.
pub fn write(spec: TraceSpec, out: impl Write) -> io::Result<()> {
    const START: f64 = 1_767_225_600e6;
    let invalid = |what: &'static str| io::Error::new(io::ErrorKind::InvalidInput, what);
    let keys = Zipf::new(spec.keys as f64, spec.skew)
        .map_err(|_| invalid("expected at least 1 key and a skew of at least 0"))?;
    let gaps = Exp::new(spec.rate / 1e6).ok().filter(|_| spec.rate.is_finite() && spec.rate > 0.0);
    let gaps = gaps.ok_or_else(|| invalid("expected a rate above 0"))?;
    let mut random = Pcg64Mcg::seed_from_u64(spec.seed);
    let mut out = BufWriter::with_capacity(1 << 16, out);
    let mut elapsed = 0.0;
    writeln!(out, "at,key")?;
    for _ in 0..spec.rows {
        elapsed += gaps.sample(&mut random);
        let at = (START + elapsed) as u64;
        writeln!(out, "{}.{:06},client-{}", at / 1_000_000, at % 1_000_000, keys.sample(&mut random) as u64)?;
    }
    out.flush()
}
