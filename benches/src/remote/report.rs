//! The Markdown text of `RESULTS-REDIS.md`.

use std::fmt::Write;

use serde::{Deserialize, Serialize};

use super::batch::Batched;
use super::clients::{Load, Served};
use super::contestants::{Gcra, Noop, Ours, Trypema};
use super::group_commit::{Grouped, Side};
use super::memory::Bytes;
use super::server_time::Row;
use super::sizing::Sizing;
use super::sorted_set::SortedSet;
use super::textbook::{Collisions, Lengths, Textbook};
use crate::plot::Bar;
use crate::report::{GOALS, heading, table, verdict};

/// The measurements of one run.
#[derive(Debug, Default, Deserialize, Serialize)]
pub struct Results {
    /// The server's name and version.
    pub version: String,
    /// Server time.
    pub rows: Vec<Row>,
    /// Throughput and latency of clients.
    pub loads: Vec<Load>,
    /// With and without group commit.
    #[serde(default)]
    pub grouped: Vec<Grouped>,
    /// Batches of acquires.
    #[serde(default)]
    pub batches: Vec<Batched>,
    /// Beside the textbook's sorted set.
    #[serde(default)]
    pub textbook: Option<Textbook>,
    /// What a server needs.
    #[serde(default)]
    pub sizing: Vec<Sizing>,
    /// Memory.
    pub bytes: Vec<Bytes>,
}

const SORTED_SETS: [&str; 3] = [Ours::NAME, SortedSet::SCRIPT, SortedSet::TRANSACTION];
const COLUMNS: [&str; 4] = [Ours::NAME, Gcra::NAME, Noop::NAME, Trypema::NAME];

impl Results {
    /// Returns all tables.
    #[must_use]
    pub fn markdown(&self) -> String {
        let mut out = String::new();
        self.server_time(&mut out);
        self.textbook(&mut out);
        self.clients(&mut out);
        self.group_commit(&mut out);
        self.batches(&mut out);
        self.sizing(&mut out);
        self.memory(&mut out);
        self.goals(&mut out);
        out
    }

    /// Returns the groups of the plot. In all of them, shorter is better.
    #[must_use]
    pub fn groups(&self) -> Vec<(String, Vec<Bar>)> {
        let bar = |label: &str, value: f64, shown: String| Bar {
            label: label.to_owned(),
            value,
            shown,
            ours: label == Ours::NAME,
        };
        let server = self.rows.iter().filter(|row| row.goal.is_some()).map(|row| {
            let bars = [(Ours::NAME, row.ours), (Gcra::NAME, row.gcra), (Noop::NAME, row.noop)];
            let bars = bars.map(|(name, value)| bar(name, value, format!("{value:.1} µs")));
            (format!("Server time: {}", row.about), bars.into())
        });
        let clients = self.loads.iter().filter(|load| [1, 128].contains(&load.tasks)).map(|load| {
            let bars = load.served.iter().map(|(who, served)| match served {
                Ok(served) => bar(who, served.half, format!("{:.0} µs", served.half)),
                Err(reason) => bar(who, 0.0, reason.clone()),
            });
            (format!("Median latency of a client: {} concurrent tasks", load.tasks), bars.collect())
        });
        server.chain(clients).collect()
    }

    fn clients(&self, out: &mut String) {
        if self.loads.is_empty() {
            return;
        }
        let text = "Thousands of decisions per second, by the number of tasks that share one connection. \
             Each task has one request in flight. All requests are allowed: 1,000 keys with 1,000,000 per minute each. \
             Medians of alternating turns. In brackets: the median ratio to the limiter, round by round. Clients and \
             server share the processors. trypema counts in buckets of 100 ms.";
        heading(out, "Throughput of clients", text);
        table(out, &["tasks"], &COLUMNS);
        let shown = |s: &Served| match s.who.as_str() {
            Ours::NAME => format!("**{:.1}**", s.rate / 1000.0),
            _ => format!("{:.1} ({:.2})", s.rate / 1000.0, s.ratio),
        };
        self.per_load(out, shown);
        heading(out, "Latency of clients", "Median and 99th percentile in microseconds, from the same turns.");
        table(out, &["tasks"], &COLUMNS);
        self.per_load(out, |s| format!("{:.0}, {:.0}", s.half, s.most));
        let _ = writeln!(
            out,
            "\nlimitador is missing: the Redis storage of version 0.14 compiles only together with its RocksDB \
             storage, and needs OpenSSL."
        );
    }

    fn per_load(&self, out: &mut String, shown: impl Fn(&Served) -> String) {
        for load in &self.loads {
            let cells = COLUMNS.map(|column| match load.served.iter().find(|(who, _)| who == column) {
                Some((_, Ok(served))) => shown(served),
                Some((_, Err(reason))) => reason.clone(),
                None => String::new(),
            });
            let _ = writeln!(out, "| {} | {} |", load.tasks, cells.join(" | "));
        }
    }

    fn sizing(&self, out: &mut String) {
        if self.sizing.is_empty() {
            return;
        }
        let text = "By the entries of a log and the server's `zset-max-listpack-entries` (default: 128), which is the longest log that \
             Redis keeps compact. The processor's time is the server's, and includes reading the request and writing the reply. \
             Decisions per second are what one core does with nothing else to do.";
        heading(out, "Sizing a server", text);
        out.push_str(&self.sizing_table());
    }

    /// Returns the table of what a server needs.
    pub(crate) fn sizing_table(&self) -> String {
        let mut out = String::new();
        let columns = [
            "bytes per entry",
            "script, µs",
            "allowed, µs of processor",
            "denied, µs of processor",
            "decisions per second",
        ];
        table(&mut out, &["entries of a log", "compact up to"], &columns);
        for Sizing { entries, listpack, bytes, script, allowed, denied } in &self.sizing {
            let (each, rate) = (*bytes as f64 / *entries as f64, 1e6 / allowed.max(*denied));
            let _ = writeln!(
                out,
                "| {entries} | {listpack} | {each:.0} | {script:.1} | {allowed:.1} | {denied:.1} | {:.0},000 |",
                rate / 1000.0
            );
        }
        out
    }

    fn group_commit(&self, out: &mut String) {
        if self.grouped.is_empty() {
            return;
        }
        let text = "One hot key, and tasks that share one connection, each with one request in flight. Microseconds of the server's \
             processor time per decision, thousands of decisions per second, and the median and 99th percentile of the latency in \
             microseconds: medians of alternating turns. The ratio is that of the processor time with group commit to that without, \
             round by round. Clients and server share the processors.";
        heading(out, "Group commit", text);
        table(
            out,
            &["decisions", "tasks"],
            &["processor", "with group commit", "ratio", "per second", "with", "latency", "latency with"],
        );
        for Grouped { about, tasks, sides: [without, with], ratio, .. } in &self.grouped {
            let latency = |side: &Side| format!("{:.0}, {:.0}", side.half, side.most);
            let _ = writeln!(
                out,
                "| {about} | {tasks} | {:.2} | **{:.2}** | {ratio:.2} | {:.1} | {:.1} | {} | {} |",
                without.processor,
                with.processor,
                without.rate / 1000.0,
                with.rate / 1000.0,
                latency(without),
                latency(with)
            );
        }
    }

    fn batches(&self, out: &mut String) {
        if self.batches.is_empty() {
            return;
        }
        let text = "One caller, and a batch of acquires of different keys: microseconds per batch, each acquire after the answer to \
             the one before, and with `acquire_many`. Medians of alternating turns, and of the ratios of each round.";
        heading(out, "Batches", text);
        table(out, &["acquires"], &["one by one", "`acquire_many`", "ratio"]);
        for Batched { size, one_by_one, together, ratio } in &self.batches {
            let _ = writeln!(out, "| {size} | {one_by_one:.0} | **{together:.0}** | {ratio:.2} |");
        }
    }

    fn memory(&self, out: &mut String) {
        if self.bytes.is_empty() {
            return;
        }
        let text = "`MEMORY USAGE` of one key with a name of 16 bytes, by the number of admitted units of cost 1.";
        heading(out, "Bytes on the server", text);
        table(out, &["units"], &[Ours::NAME, "per unit", Gcra::NAME]);
        for Bytes { entries, ours, gcra } in &self.bytes {
            let _ = writeln!(out, "| {entries} | {ours} | {:.1} | {gcra} |", *ours as f64 / *entries as f64);
        }
    }

    fn server_time(&self, out: &mut String) {
        if self.rows.is_empty() {
            return;
        }
        let text = "Microseconds per `EVALSHA` in `INFO commandstats`, including the script's commands: \
             medians of alternating turns, and the median and quartiles of the ratios of each round. GCRA is the \
             algorithm of redis_rate. It keeps one number per key and spreads a limit evenly, but does not bound every \
             window. It supports one limit, so in scenarios with two limits it has only the first. The no-op script \
             takes a key and an argument, and returns a number.";
        heading(out, "Server time per decision", text);
        let ratio = format!("{} to {}", Ours::NAME, Gcra::NAME);
        table(out, &["scenario"], &[Ours::NAME, Gcra::NAME, Noop::NAME, &ratio, "entries per key"]);
        for row in &self.rows {
            let Row { name, about, ours, gcra, noop, ratio, entries, .. } = row;
            let (median, low, high) = (ratio.median, ratio.low, ratio.high);
            let _ = write!(out, "| `{name}`: {about} | **{ours:.2}** | {gcra:.2} | {noop:.2} ");
            let _ = writeln!(out, "| {median:.2} ({low:.2} to {high:.2}) | {entries} |");
        }
    }

    fn textbook(&self, out: &mut String) {
        let Some(Textbook { lengths, collisions }) = &self.textbook else { return };
        let text = "Microseconds of server time per decision, by the entries in a log: medians of alternating turns. In brackets: \
             the ratio to the limiter, round by round. The sorted set has the time as the score. A decision trims it by score, \
             counts it, adds a member, and sets the key's time to live. It takes the client's clock, and replies with a verdict \
             alone. `MULTI` adds what it denies too. Its time is that of `MULTI` and `EXEC`, without reading and queueing the \
             commands between them.";
        heading(out, "Beside a sorted set by score", text);
        sorted_sets(out, lengths, |row| &row.spent);
        let text = "The same turns: microseconds of the server's processor time per decision, which include reading requests \
             and writing replies.";
        heading(out, "The server's processor time beside a sorted set", text);
        sorted_sets(out, lengths, |row| &row.processor);
        let Collisions { max, offered, at_once, admitted } = collisions;
        let text = format!(
            "A sorted set whose members are the times holds one member for all requests of a microsecond. {offered} requests \
             come within one window, {at_once} at each microsecond, under a limit of {max}."
        );
        heading(out, "What is admitted if members collide", &text);
        table(out, &["limit"], &SORTED_SETS);
        let cells: Vec<String> = admitted.iter().map(|(_, admitted)| admitted.to_string()).collect();
        let _ = writeln!(out, "| {max} | {} |", cells.join(" | "));
    }

    fn goals(&self, out: &mut String) {
        if self.rows.is_empty() {
            return;
        }
        heading(out, "Goals", GOALS);
        table(out, &["server time relative to GCRA"], &["at most", "measured", ""]);
        for row in &self.rows {
            let Some(goal) = row.goal else { continue };
            let median = row.ratio.median;
            let _ = writeln!(out, "| {} | {goal} | {median:.3} | {} |", row.about, verdict(median, goal));
        }
        for Grouped { about, tasks, ratio, goal, .. } in &self.grouped {
            let Some(goal) = *goal else { continue };
            let what = format!("group commit, {tasks} tasks: {about} (processor time relative to none)");
            let _ = writeln!(out, "| {what} | {goal} | {ratio:.3} | {} |", verdict(*ratio, goal));
        }
    }
}

/// A table by the length of the logs.
fn sorted_sets(out: &mut String, lengths: &[Lengths], values: impl Fn(&Lengths) -> &[(String, f64, f64)]) {
    table(out, &["entries", "decisions"], &SORTED_SETS);
    for row in lengths {
        let cells = values(row).iter().enumerate().map(|(i, (_, median, ratio))| match i {
            0 => format!("**{median:.2}**"),
            _ => format!("{median:.2} ({ratio:.2})"),
        });
        let cells: Vec<String> = cells.collect();
        let decisions = if row.allowed { "allowed" } else { "denied" };
        let _ = writeln!(out, "| {} | {decisions} | {} |", row.entries, cells.join(" | "));
    }
}
