//! The Markdown text of `RESULTS.md`.

use std::fmt::Write;

use serde::{Deserialize, Serialize};

use crate::admission::Admitted;
use crate::baselines::{ClockBaseline, LineBaseline, LogBaseline, MapBaseline};
use crate::bytes::{Bytes, ENTRIES};
use crate::cached::Cached;
use crate::flood::{self, Flood, VICTIM_EVERY};
use crate::libraries::{Async, Dyn, Governor, Library, Limitador, Now, Read, Throttlecrab, Trypema};
use crate::measure::Row;
use crate::scenario::PLAIN;

/// The measurements of one run.
#[derive(Debug, Default, Deserialize, Serialize)]
pub struct Results {
    /// Times.
    pub rows: Vec<Row>,
    /// Over-admission.
    pub admitted: Vec<Admitted>,
    /// Memory.
    pub bytes: Vec<Bytes>,
    /// Floods of keys.
    #[serde(default)]
    pub floods: Vec<Flood>,
}

/// The compared libraries, in the order of the columns.
pub const PEERS: [&str; 5] =
    [Governor::NAME, Trypema::<1>::NAME, Trypema::<100>::NAME, Limitador::NAME, Throttlecrab::NAME];

/// A goal and its measurement.
#[derive(Debug)]
pub struct Goal {
    what: &'static str,
    most: f64,
    measured: Option<f64>,
    /// The same ratio for the baseline with a log.
    baseline: Option<f64>,
}

impl Results {
    /// Returns the median of a library in a scenario.
    #[must_use]
    pub fn nanos(&self, scenario: &str, library: &str) -> Option<f64> {
        self.rows.iter().find(|row| row.name == scenario)?.of(library)
    }

    /// Returns the ratio of two cases of a scenario.
    fn ratio(&self, scenario: &str, library: &str, other: &str) -> Option<f64> {
        Some(self.nanos(scenario, library)? / self.nanos(scenario, other)?)
    }

    fn per_key(&self, library: &str, entries: u32) -> Option<f64> {
        let found = self.bytes.iter().find(|bytes| bytes.library == library && bytes.entries == entries);
        found.map(|bytes| bytes.per_key)
    }

    /// Returns all goals.
    #[must_use]
    pub fn all_goals(&self) -> Vec<Goal> {
        let dynamic = || Some(self.nanos("hot/allowed", Dyn::NAME)? - self.nanos("hot/allowed", Now::NAME)?);
        let flood = |who: &str| self.floods.iter().find(|flood| flood.who == who);
        let to_plain = |scenario| self.ratio(scenario, Now::NAME, PLAIN);
        let entries = || Some((self.per_key(Now::NAME, 100)? - self.per_key(Now::NAME, 1)?) / 99.0);
        let keys = || Some(self.per_key(Now::NAME, 1)? / self.per_key(Governor::NAME, 1)?);
        let goal = |what, most, measured| Goal { what, most, measured, baseline: None };
        let to_governor = |what, most, scenario| Goal {
            what,
            most,
            measured: self.ratio(scenario, Now::NAME, Governor::NAME),
            baseline: self.ratio(scenario, LogBaseline::NAME, Governor::NAME),
        };
        vec![
            to_governor("hot key, allowed, to governor", 0.75, "hot/allowed"),
            to_governor("hot key, denied, to governor", 0.75, "hot/denied"),
            to_governor("1,024 keys, to governor", 0.7, "keys_1024/allowed"),
            to_governor("1,000,000 keys, to governor", 0.7, "keys_1M/uniform"),
            to_governor("two threads on one key, to governor", 0.7, "hot/two_threads"),
            to_governor("two threads over 1,024 keys, to governor", 0.75, "keys_1024/two_threads"),
            to_governor("fresh keys, to governor", 0.8, "keys_1M/fresh"),
            goal("future on a known store, to `now()`", 1.1, self.ratio("hot/allowed", Async::NAME, Now::NAME)),
            goal("future on `Arc<dyn WindowStore>`, additional ns to `now()`", 35.0, dynamic()),
            goal("cached denial, ns", 1000.0, self.nanos("denials/one_key", Cached::NAME)),
            goal("limit of 1,000,000 to limit of 10, denied", 1.5, to_plain("limit_1M/denied")),
            goal("limit of 1,000,000 to limit of 10, sliding", 1.5, to_plain("limit_1M/sliding")),
            goal("three windows to one", 1.6, to_plain("windows_3/allowed")),
            goal("cost 1,000 to cost 1", 1.2, to_plain("cost_1000/allowed")),
            goal("bytes per key with one entry, to governor", 1.3, keys()),
            goal("bytes per further entry, up to 100", 8.5, entries()),
            goal("flood, at most 100,000 keys, ns a key", 1000.0, flood(flood::BOUNDED).map(|flood| flood.mean)),
            goal("flood, at most 1,000,000 keys, ns a key", 1000.0, flood(flood::LARGER).map(|flood| flood.mean)),
            goal(
                "flood, at most 100,000 keys, p99.99 in µs",
                20.0,
                flood(flood::BOUNDED).map(|flood| flood.p9999 as f64 / 1e3),
            ),
        ]
    }

    /// Returns all tables.
    #[must_use]
    pub fn markdown(&self) -> String {
        let mut out = String::new();
        self.times(&mut out);
        self.forms(&mut out);
        self.admissions(&mut out);
        self.memory(&mut out);
        self.floods(&mut out);
        self.goals(&mut out);
        out
    }

    fn times(&self, out: &mut String) {
        heading(out, "Nanoseconds per decision", "Medians. In brackets: the ratio to this library's time.");
        table(out, &["scenario", Now::NAME], &PEERS);
        for row in self.rows.iter().filter(|row| PEERS.iter().any(|peer| row.of(peer).is_some())) {
            let Some(ours) = row.of(Now::NAME) else { continue };
            let _ = write!(out, "| `{}`: {} | **{}** |", row.name, row.about, nanos(ours));
            for peer in PEERS {
                let cell = row.of(peer).map(|peer| format!("{} ({:.1})", nanos(peer), peer / ours));
                let _ = write!(out, " {} |", cell.unwrap_or_default());
            }
            out.push('\n');
        }
    }

    fn forms(&self, out: &mut String) {
        let text = "Nanoseconds per decision.\n\n\
             - *limiter*: `limiter.acquire(key).now()`. *limiter read*: the same, reading every field of the \
             decision.\n\
             - *limiter async*: the future of `limiter.acquire(key)` on a store known at compile time. *limiter \
             dyn*: on `Arc<dyn WindowStore>`. *limiter cached denial*: on a `DenialCache` that knows the denial.\n\
             - *plain*: the reference of the scenario: cost 1, one window, or a limit of 10, with the same \
             call.\n\
             - *baseline: clock*: reads the clock. *baseline: hash, line*: hashes the key and updates one cache line.\n\
             - *baseline: clock, map*: reads the clock and updates one number in a `DashMap<String, u64>`.\n\
             - *baseline: clock, table, log*: the work of every exact log, without a decision. It reads the clock, \
             hashes, locks a shard, probes a plain table, compares the key's four oldest entries with the window, \
             writes one entry, and writes as many bytes as a decision has.";
        heading(out, "Variants of this library, and the baselines", text);
        let baselines = [ClockBaseline::NAME, LineBaseline::NAME, MapBaseline::NAME, LogBaseline::NAME];
        let columns = [&[Read::NAME, Async::NAME, Dyn::NAME, Cached::NAME, PLAIN][..], &baselines].concat();
        table(out, &["scenario", Now::NAME], &columns);
        for row in &self.rows {
            let _ = write!(
                out,
                "| `{}`: {} | {} |",
                row.name,
                row.about,
                row.of(Now::NAME).map_or_else(String::new, nanos)
            );
            for column in &columns {
                let _ = write!(out, " {} |", row.of(column).map_or_else(String::new, nanos));
            }
            out.push('\n');
        }
    }

    fn admissions(&self, out: &mut String) {
        let text = "The limit is 100 in any second. All libraries get the same requests in real time. \
             *Around a boundary*: one request, then 200 in the last 0.2 s of the second that it starts, and 200 in the \
             next 0.2 s. *Steady load*: five times the limit for three seconds. A library that admits more than 100 in \
             any window of a second breaks the limit.";
        heading(out, "Admissions in the worst window", text);
        table(out, &["library", "around a boundary", "steady load", "total", "ns, hot key allowed"], &[]);
        for admitted in &self.admitted {
            let Admitted { library, boundary, steady, steady_total } = admitted;
            let time = self.nanos("hot/allowed", library).map_or_else(String::new, nanos);
            let _ = writeln!(out, "| {library} | {boundary} | {steady} | {steady_total} | {time} |");
        }
    }

    fn memory(&self, out: &mut String) {
        let text = "Measured with a counting allocator, including the allocator's overhead. Keys have 16 \
             bytes. Libraries that count instead of keeping a log need no memory for entries.";
        heading(out, "Bytes per key", text);
        table(out, &["library"], &["1 entry", "10 entries", "100 entries", "each further entry"]);
        for library in [Now::NAME].iter().chain(&PEERS) {
            let Some(all) = ENTRIES.iter().map(|&e| self.per_key(library, e)).collect::<Option<Vec<_>>>() else {
                continue;
            };
            let each = (all[2] - all[0]) / 99.0;
            let _ =
                writeln!(out, "| {library} | {:.0} | {:.0} | {:.0} | {:.1} |", all[0], all[1], all[2], each.max(0.0));
        }
    }

    fn floods(&self, out: &mut String) {
        let Some(Flood { keys, .. }) = self.floods.first() else { return };
        let text = format!(
            "{} million keys, each seen once, one after another in one thread. Each call is timed, with the two reads of the clock that \
             this takes. A key that has used up its limit of 100 per hour is asked for after every {VICTIM_EVERY} keys. The loop that \
             waits takes as long for a turn as the fastest call above it: what it shows is the machine's.",
            keys / 1_000_000
        );
        heading(out, "A flood of keys", &text);
        let columns = ["mean, ns", "p99.9, µs", "p99.99, µs", "longest, ms", "MB at the end", "the used-up key"];
        table(out, &["contestant"], &columns);
        for Flood { who, mean, p999, p9999, max, victim_denied, bytes, .. } in &self.floods {
            let micros = |nanos: &u64| *nanos as f64 / 1e3;
            let victim = match victim_denied {
                Some(true) => "stays denied",
                Some(false) => "**was admitted**",
                None => "",
            };
            let (longest, megabytes) = (*max as f64 / 1e6, *bytes as f64 / 1e6);
            let (p999, p9999) = (micros(p999), micros(p9999));
            let _ = writeln!(
                out,
                "| {who} | {mean:.0} | {p999:.1} | {p9999:.1} | {longest:.1} | {megabytes:.1} | {victim} |"
            );
        }
    }

    fn goals(&self, out: &mut String) {
        let text = format!("{GOALS} The last column has the same ratio for *baseline: clock, table, log*.");
        heading(out, "Goals", &text);
        table(out, &["ratio"], &["at most", "measured", "", "baseline"]);
        for Goal { what, most, measured, baseline } in self.all_goals() {
            let Some(measured) = measured else { continue };
            let baseline = baseline.map_or_else(String::new, |baseline| format!("{baseline:.2}"));
            let _ = writeln!(out, "| {what} | {most} | {measured:.2} | {} | {baseline} |", verdict(measured, most));
        }
    }
}

pub(crate) const GOALS: &str = "The goals of the project and the results of this run.";

pub(crate) fn verdict(measured: f64, most: f64) -> &'static str {
    if measured <= most { "met" } else { "**missed**" }
}

pub(crate) fn heading(out: &mut String, title: &str, text: &str) {
    let _ = write!(out, "\n## {title}\n\n{text}\n\n");
}

pub(crate) fn table(out: &mut String, first: &[&str], rest: &[&str]) {
    let columns = [first, rest].concat();
    let rules: String = std::iter::once("---|").chain(std::iter::repeat_n("---:|", columns.len() - 1)).collect();
    let _ = write!(out, "| {} |\n|{rules}\n", columns.join(" | "));
}

pub(crate) fn nanos(nanos: f64) -> String {
    if nanos < 100.0 { format!("{nanos:.1}") } else { format!("{nanos:.0}") }
}
