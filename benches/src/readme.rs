//! The sections of the workspace README that show figures.

use anyhow::{Context, Result};
use std::fmt::Write;

use crate::libraries::{Governor, Library, Limitador, Now, Throttlecrab, Trypema};
use crate::record::Record;
use crate::report::{Results, table};
use crate::surface::Surface;
use crate::surface::report::readme_table;

/// The scenarios in the second table.
const SHOWN: [&str; 4] = ["hot/allowed", "hot/two_threads", "keys_1M/uniform", "keys_1M/fresh"];

/// The peers in the second table.
const COLUMNS: [&str; 4] = [Governor::NAME, Trypema::<100>::NAME, Limitador::NAME, Throttlecrab::NAME];

/// Returns the README with its speed section rendered from the records. The section lies between two comments.
///
/// # Errors
/// If the README lacks one of the comments.
pub fn with_speed(readme: &str, memory: &Record<Results>, surface: &Record<Surface>) -> Result<String> {
    const BEGIN: &str = "<!-- speed: written by `cargo run --release -p limiter-benches -- --render` -->\n";
    const END: &str = "<!-- end of speed -->";
    let (before, rest) = readme.split_once(BEGIN).with_context(|| format!("the README has no line {BEGIN}"))?;
    let (_, after) = rest.split_once(END).with_context(|| format!("the README has no line {END}"))?;
    Ok(format!("{before}{BEGIN}{}{END}{after}", speed(memory, surface)))
}

fn speed(memory: &Record<Results>, surface: &Record<Surface>) -> String {
    let mut out = format!(
        "\nEach cell: **nanoseconds per decision**, then how many times as long governor takes as shipped, and with this \
         library's hasher. One thread, random keys, medians of one run, measured with {} on: {}.\n\n",
        surface.versions, surface.machine
    );
    readme_table(&mut out, &surface.results);
    out.push_str("\nOne and two threads, all cells:\n\n![Time as a multiple of governor's](docs/bench-surface.svg)\n");
    out.push_str("\nOther workloads, and how many times as long each peer takes:\n\n");
    readme_rows(&mut out, &memory.results);
    out.push('\n');
    out
}

/// The other scenarios: what the surface does not cover.
fn readme_rows(out: &mut String, results: &Results) {
    table(out, &["workload", Now::NAME], &COLUMNS);
    for row in SHOWN.iter().filter_map(|name| results.rows.iter().find(|row| row.name == *name)) {
        let Some(ours) = row.of(Now::NAME) else { continue };
        let _ = write!(out, "| {} | **{ours:.0} ns** |", row.about);
        for peer in COLUMNS {
            let cell = row.of(peer).map(|nanos| format!("{:.1}x", nanos / ours));
            let _ = write!(out, " {} |", cell.unwrap_or_default());
        }
        out.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::{Measured, Row};

    #[test]
    fn the_section_is_replaced_and_the_rest_of_the_readme_stays() {
        let measured = |library: &str, nanos| Measured { library: library.to_owned(), nanos };
        let medians = vec![measured(Now::NAME, 40.0), measured(Governor::NAME, 30.0)];
        let row = Row { name: "hot/allowed".to_owned(), about: "one key".to_owned(), medians };
        let memory = Results { rows: vec![row], ..Results::default() };
        let memory = Record { arguments: String::new(), machine: "M".into(), versions: "V".into(), results: memory };
        let surface = Surface::default();
        let surface = Record { arguments: String::new(), machine: "M".into(), versions: "V".into(), results: surface };
        let readme = "a\n<!-- speed: written by `cargo run --release -p limiter-benches -- --render` -->\nold\n<!-- end of speed -->\nb";
        let text = with_speed(readme, &memory, &surface).unwrap();
        assert!(text.starts_with("a\n<!-- speed") && text.ends_with("<!-- end of speed -->\nb"), "{text}");
        assert!(text.contains("| one key | **40 ns** | 0.8x |"), "{text}");
        assert!(!text.contains("old"), "{text}");
        assert!(with_speed("no comments", &memory, &surface).is_err());
    }
}
