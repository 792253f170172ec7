//! The sections of the workspace README that show figures.

use anyhow::{Context, Result};
use std::fmt::Write;

use crate::libraries::{Governor, Library, Limitador, Now, Throttlecrab, Trypema};
use crate::record::Record;
use crate::report::{PEERS, Results, table};

/// The scenarios in the table.
const SHOWN: [&str; 9] = [
    "hot/allowed",
    "hot/denied",
    "hot/two_threads",
    "keys_1024/allowed",
    "keys_1024/two_threads",
    "keys_10k/dozens",
    "keys_100k/dozens",
    "keys_1M/uniform",
    "keys_1M/fresh",
];

/// The peers in the table.
const COLUMNS: [&str; 4] = [Governor::NAME, Trypema::<100>::NAME, Limitador::NAME, Throttlecrab::NAME];

/// Returns the README with its speed section rendered from a record. The section lies between two comments.
///
/// # Errors
/// If the README lacks one of the comments.
pub fn with_speed(readme: &str, record: &Record<Results>) -> Result<String> {
    const BEGIN: &str = "<!-- speed: written by `cargo run --release -p limiter-benches -- --render` -->\n";
    const END: &str = "<!-- end of speed -->";
    let (before, rest) = readme.split_once(BEGIN).with_context(|| format!("the README has no line {BEGIN}"))?;
    let (_, after) = rest.split_once(END).with_context(|| format!("the README has no line {END}"))?;
    Ok(format!("{before}{BEGIN}{}{END}{after}", speed(record)))
}

fn speed(record: &Record<Results>) -> String {
    let results = &record.results;
    let mut out = format!(
        "\nNanoseconds per decision in memory, and the ratio of each peer's time to it in the same run. All \
             figures are medians.\n\
         Measured with {} on: {}.\n\n",
        record.versions, record.machine
    );
    table(&mut out, &["workload", Now::NAME], &COLUMNS);
    for row in SHOWN.iter().filter_map(|name| results.rows.iter().find(|row| row.name == *name)) {
        let Some(ours) = row.of(Now::NAME) else { continue };
        let _ = write!(out, "| {} | **{ours:.0} ns** |", row.about);
        for peer in COLUMNS {
            let cell = row.of(peer).map(|nanos| format!("{:.1}x", nanos / ours));
            let _ = write!(out, " {} |", cell.unwrap_or_default());
        }
        out.push('\n');
    }
    let mut faster: Vec<String> = Vec::new();
    for row in &results.rows {
        let Some(ours) = row.of(Now::NAME) else { continue };
        for peer in PEERS {
            if let Some(nanos) = row.of(peer).filter(|nanos| *nanos < ours) {
                faster.push(format!("- {}: {peer} takes {:.2} times as long as limiter.\n", row.about, nanos / ours));
            }
        }
    }
    match faster.as_slice() {
        [] => out.push_str("\nNo peer was faster in a measured workload.\n"),
        _ => {
            let _ = write!(out, "\nWhere a peer is faster:\n\n{}", faster.concat());
        }
    }
    out.push('\n');
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::{Measured, Row};

    #[test]
    fn a_faster_peer_is_named_and_the_rest_of_the_readme_stays() {
        let measured = |library: &str, nanos| Measured { library: library.to_owned(), nanos };
        let medians = vec![measured(Now::NAME, 40.0), measured(Governor::NAME, 30.0)];
        let row = Row { name: "hot/allowed".to_owned(), about: "one key".to_owned(), medians };
        let results = Results { rows: vec![row], ..Results::default() };
        let record = Record { arguments: String::new(), machine: "M".into(), versions: "V".into(), results };
        let readme = "a\n<!-- speed: written by `cargo run --release -p limiter-benches -- --render` -->\nold\n<!-- end of speed -->\nb";
        let text = with_speed(readme, &record).unwrap();
        assert!(text.starts_with("a\n<!-- speed") && text.ends_with("<!-- end of speed -->\nb"), "{text}");
        assert!(text.contains("- one key: governor takes 0.75 times as long as limiter."), "{text}");
        assert!(!text.contains("old"), "{text}");
        assert!(with_speed("no comments", &record).is_err());
    }
}
