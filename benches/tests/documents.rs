//! The committed documents match the committed figures.

use std::fs;
use std::path::{Path, PathBuf};

use limiter_benches::render;

fn workspace() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

#[test]
fn the_documents_agree_with_the_figures() {
    let documents = render::all(workspace()).expect("the records can be read");
    for (path, text) in &documents {
        let committed =
            fs::read_to_string(workspace().join(path)).expect("the document can be read");
        assert!(
            committed == *text,
            "{path} differs: cargo run --release -p limiter-benches -- --render"
        );
        assert!(
            !text.contains("---:|\n\n"),
            "{path} has a table without rows"
        );
    }
}

/// Units of measurements. Bounds that the code sets are in other units, such as KiB, s and min.
const UNITS: [&str; 10] = [
    "ns", "µs", "ms", "bytes", "KB", "MB", "GB", "%", "ppm", "times",
];

/// Figures in these units that the code sets, with their documents. A default needs no entry if its line contains that word.
const SET: [(&str, &str); 10] = [
    ("docs/operations.md", "100 µs"),
    ("docs/operations.md", "500 ms"),
    ("limiter-cli", "255 bytes"),
    ("limiter-log", "255 bytes"),
    ("limiter-log", "100 times"),
    ("limiter-redis", "256 bytes"),
    ("limiter-redis", "300 bytes"),
    ("limiter-server", "48 times"),
    ("limiter-server", "200 ms"),
    ("limiter-tower", "700 ms"),
];

#[test]
fn every_figure_is_rendered_or_links_to_its_row() {
    let folders = fs::read_dir(workspace()).expect("the workspace can be listed");
    let mut documents: Vec<PathBuf> = folders
        .map(|entry| entry.expect("an entry can be read").path())
        .filter(|path| path.file_name().is_some_and(|name| name != "benches"))
        .map(|path| path.join("README.md"))
        .filter(|path| path.exists())
        .collect();
    documents.extend(["README.md", "docs/operations.md"].map(|path| workspace().join(path)));
    assert!(documents.len() > 8, "{documents:?}");
    let mut found = Vec::new();
    for path in documents {
        let text = fs::read_to_string(&path).expect("the document can be read");
        let path = path.strip_prefix(workspace()).expect("it is there");
        let of_document: Vec<_> = SET
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
    assert!(
        found.is_empty(),
        "figures that are neither rendered nor link to a row of RESULTS*.md:\n{}",
        found.join("\n")
    );
}

/// Returns the lines outside rendered sections and blocks of code, without code in the line.
fn prose(text: &str) -> Vec<String> {
    let (mut is_code, mut is_rendered) = (false, false);
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

#[test]
fn a_figure_without_a_source_is_found() {
    let text = "It takes 15.9 ns, or `20 ns`.\n<!-- speed: rendered by x -->\n| 3 ns |\n<!-- end of speed -->\n```\n4 ns\n```\n(2 %)\n";
    let found: Vec<_> = prose(text).iter().flat_map(|line| figures(line)).collect();
    assert_eq!(found, ["15.9 ns", "2 %"]);
}
