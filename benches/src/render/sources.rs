//! Finds measured figures in documents that are neither rendered nor link to their row.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Units of measurements. Bounds that the code sets are in other units, such as KiB, s and min.
const UNITS: [&str; 10] = [
    "ns", "µs", "ms", "bytes", "KB", "MB", "GB", "%", "ppm", "times",
];

/// Returns the figures without a source in `others` and in the README of each folder of a workspace, as text to print. `set` lists
/// figures that the code sets, with the beginnings of their documents' paths. A default needs no entry if its line contains that word.
///
/// # Errors
/// If a document cannot be read.
pub fn unsourced(workspace: &Path, others: &[&str], set: &[(&str, &str)]) -> Result<Vec<String>> {
    let mut documents: Vec<PathBuf> = others.iter().map(|path| workspace.join(path)).collect();
    for folder in fs::read_dir(workspace)? {
        let path = folder?.path();
        let readme = path.join("README.md");
        if path.file_name().is_some_and(|name| name != "benches") && readme.exists() {
            documents.push(readme);
        }
    }
    let mut found = Vec::new();
    for path in documents {
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let path = path.strip_prefix(workspace)?;
        let of_document: Vec<_> = set
            .iter()
            .filter(|(document, _)| path.starts_with(document))
            .collect();
        for line in prose(&text) {
            let is_stated = |figure: &String| {
                line.contains("RESULTS")
                    || line.to_lowercase().contains("default")
                    || of_document.iter().any(|(_, set)| set == figure)
            };
            let figures = figures(&line).into_iter().filter(|each| !is_stated(each));
            found.extend(figures.map(|figure| format!("{}: {figure}: {line}", path.display())));
        }
    }
    Ok(found)
}

/// Returns the lines outside rendered sections and blocks of code, without code in the line.
fn prose(text: &str) -> Vec<String> {
    let mut is_code = false;
    let mut is_rendered = false;
    let mut lines = Vec::new();
    for line in text.lines() {
        is_rendered |= line.contains(": rendered by");
        is_code ^= line.trim_start().starts_with("```");
        if !is_code && !is_rendered {
            lines.push(line.split('`').step_by(2).collect());
        }
        is_rendered &= !line.starts_with("<!-- end of");
    }
    lines
}

/// Returns the numbers that a unit follows.
fn figures(line: &str) -> Vec<String> {
    let words: Vec<&str> = line
        .split(|c: char| c.is_whitespace() || "|()".contains(c))
        .map(|word| word.trim_matches(|c: char| !c.is_alphanumeric() && c != '%'))
        .filter(|word| !word.is_empty())
        .collect();
    let is_number = |word: &str| word.starts_with(|c: char| c.is_ascii_digit());
    words
        .windows(2)
        .filter(|pair| is_number(pair[0]) && UNITS.contains(&pair[1]))
        .map(|pair| pair.join(" "))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_without_a_source_is_found() {
        let text = "It takes 15.9 ns, or `20 ns`.\n<!-- speed: rendered by x -->\n| 3 ns |\n<!-- end of speed -->\n```\n4 ns\n```\n(2 %)\n";
        let found: Vec<_> = prose(text).iter().flat_map(|line| figures(line)).collect();
        assert_eq!(found, ["15.9 ns", "2 %"]);
    }
}
