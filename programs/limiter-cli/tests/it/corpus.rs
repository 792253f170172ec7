//! Inputs that caused problems, or might.

#[path = "../corpus/mod.rs"]
mod properties;

use std::fs;
use std::path::Path;

fn every_input(folder: &str, property: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/corpus")
        .join(folder);
    let mut inputs: Vec<_> = fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    inputs.sort();
    assert!(
        inputs.len() >= 15,
        "only {} inputs in {}",
        inputs.len(),
        folder.display()
    );
    for path in inputs {
        let input = fs::read(&path).unwrap();
        println!("{}", path.display());
        property(&input);
        // Also truncated, like a file that is still being written.
        for length in 0..input.len().min(400) {
            property(&input[..length]);
        }
    }
}

#[test]
fn limits() {
    every_input("limits", properties::limits);
}

#[test]
fn traces() {
    every_input("traces", properties::traces);
}
