//! The committed documents match the committed figures.

use std::fs;
use std::path::Path;

use limiter_benches::render;

#[test]
fn the_documents_agree_with_the_figures() {
    let workspace = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let documents = render::all(workspace).expect("the records can be read");
    for (path, text) in &documents {
        let committed = fs::read_to_string(workspace.join(path)).expect("the document can be read");
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
