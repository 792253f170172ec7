//! The committed documents match the committed figures.

use std::fs;
use std::path::Path;

use limiter_benches::LIBRARY;
use limiter_benches::render::sources;

#[test]
fn the_documents_agree_with_the_figures() {
    for (path, text) in LIBRARY.documents().expect("the records can be read") {
        let file = Path::new(LIBRARY.workspace).join(path);
        let committed = fs::read_to_string(file).expect("the document can be read");
        assert!(
            committed == text,
            "{path} differs: cargo run --release -p {} -- --render",
            LIBRARY.package
        );
        assert!(
            !text.contains("---:|\n\n"),
            "{path} has a table without rows"
        );
    }
}

/// Figures that the code sets, with their documents.
const SET: [(&str, &str); 9] = [
    ("docs/operations.md", "100 µs"),
    ("docs/operations.md", "100 ms"),
    ("docs/operations.md", "500 ms"),
    ("limiter-log", "255 bytes"),
    ("limiter-log", "100 times"),
    ("limiter-postgres", "300 ms"),
    ("limiter-redis", "256 bytes"),
    ("limiter-redis", "300 bytes"),
    ("limiter-tower", "700 ms"),
];

#[test]
fn every_figure_is_rendered_or_links_to_its_row() {
    let others = ["README.md", "docs/operations.md"];
    let found = sources::unsourced(Path::new(LIBRARY.workspace), &others, &SET);
    let found = found.expect("the documents can be read");
    assert!(
        found.is_empty(),
        "figures that are neither rendered nor link to a row of RESULTS*.md:\n{}",
        found.join("\n")
    );
}
