//! The Markdown that `RESULTS-REDIS.md` is.

use std::fmt::Write;

use super::contestants::{Gcra, Noop, Ours};
use super::server_time::Row;
use crate::report::{heading, table};

/// All that was measured in one run.
#[derive(Debug, Default)]
pub struct Results {
    /// The server.
    pub version: String,
    /// The server's time.
    pub rows: Vec<Row>,
}

impl Results {
    /// All tables.
    #[must_use]
    pub fn markdown(&self) -> String {
        let mut out = String::new();
        self.server_time(&mut out);
        self.goals(&mut out);
        out
    }

    fn server_time(&self, out: &mut String) {
        let text = "What `INFO commandstats` says of `EVALSHA`, in microseconds, the script's own commands included: medians of \
             alternating turns, and the median, first and third quarter of the ratios of each round. GCRA is the algorithm \
             of redis_rate, which keeps one number a key and spreads a limit evenly rather than bounding every window.";
        heading(out, "The server's time a decision", text);
        let ratio = format!("{} to {}", Ours::NAME, Gcra::NAME);
        table(out, &["what"], &[Ours::NAME, Gcra::NAME, Noop::NAME, &ratio, "entries a key"]);
        for row in &self.rows {
            let Row { name, about, ours, gcra, noop, ratio, entries, .. } = row;
            let (median, low, high) = (ratio.median, ratio.low, ratio.high);
            let _ = write!(out, "| `{name}`: {about} | **{ours:.2}** | {gcra:.2} | {noop:.2} ");
            let _ = writeln!(out, "| {median:.2} ({low:.2} to {high:.2}) | {entries} |");
        }
    }

    fn goals(&self, out: &mut String) {
        heading(out, "Goals", "What the project set itself, and this run.");
        table(out, &["the server's time, to GCRA's"], &["at most", "measured", ""]);
        for row in &self.rows {
            let Some(goal) = row.goal else { continue };
            let met = if row.ratio.median <= goal { "met" } else { "**missed**" };
            let _ = writeln!(out, "| {} | {goal} | {:.2} | {met} |", row.about, row.ratio.median);
        }
    }
}
