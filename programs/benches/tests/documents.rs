//! The committed documents match the committed figures.

use std::fs;
use std::path::Path;

use limiter_benches::render::sources;
use service_benches::SERVICES;

#[test]
fn the_documents_agree_with_the_figures() {
    for (path, text) in SERVICES.documents().expect("the records can be read") {
        let file = Path::new(SERVICES.workspace).join(path);
        let committed = fs::read_to_string(file).expect("the document can be read");
        assert!(
            committed == text,
            "{path} differs: cargo run --release -p {} -- --render",
            SERVICES.package
        );
        assert!(
            !text.contains("---:|\n\n"),
            "{path} has a table without rows"
        );
    }
}

/// Figures that the code sets, with their documents.
const SET: [(&str, &str); 3] = [
    ("limiter-cli", "255 bytes"),
    ("limiter-server", "48 times"),
    ("limiter-server", "200 ms"),
];

#[test]
fn every_figure_is_rendered_or_links_to_its_row() {
    let others = ["docs/from-envoy.md", "docs/operations.md"];
    let found = sources::unsourced(Path::new(SERVICES.workspace), &others, &SET);
    let found = found.expect("the documents can be read");
    assert!(
        found.is_empty(),
        "figures that are neither rendered nor link to a row of RESULTS*.md:\n{}",
        found.join("\n")
    );
}
