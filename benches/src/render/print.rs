//! All figures of a record, and whether they meet the goals.

use std::fmt::Write;

use super::table::number;
use crate::declared::Goal;
use crate::record::Record;

/// Returns a record's figures and the goals as Markdown.
pub(crate) fn print(group: &str, record: &Record, goals: &[Goal]) -> String {
    let Record {
        machine,
        versions,
        results,
    } = record;
    let mut out = format!(
        "## {group}: {machine}, with {versions}\n\n| scenario | contestant | figures |\n|---|---|---|\n"
    );
    for (scenario, figures) in results {
        for (who, measures) in figures {
            let measures = measures
                .iter()
                .map(|(measure, figure)| format!("{measure}: {}", number(*figure)));
            let measures: Vec<_> = measures.collect();
            let _ = writeln!(out, "| `{scenario}` | {who} | {} |", measures.join("; "));
        }
    }
    if !goals.is_empty() {
        out += "\n| goal | measured | at most | |\n|---|---:|---:|---|\n";
    }
    for goal in goals {
        let Some(measured) = goal.measured(record) else {
            continue;
        };
        let verdict = if measured <= goal.most {
            "met"
        } else {
            "**missed**"
        };
        let (what, most) = (&goal.what, goal.most);
        let _ = writeln!(
            out,
            "| {what} | {} | {most} | {verdict} |",
            number(measured)
        );
    }
    out
}
