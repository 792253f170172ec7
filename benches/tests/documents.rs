//! The committed documents match the committed figures.

use std::fs;
use std::path::Path;

use limiter_benches::documents;

#[test]
fn the_documents_agree_with_the_figures() {
    let workspace = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let documents = documents::all(workspace).expect("the records can be read");
    for document in &documents {
        let committed = fs::read_to_string(workspace.join(document.path)).expect("the document can be read");
        let path = document.path;
        assert!(committed == document.text, "{path} differs: cargo run --release -p limiter-benches -- --render");
    }
    assert_eq!(documents.len(), 9);
}
