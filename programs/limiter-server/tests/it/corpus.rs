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
        // Also truncated, like a file that is still being written.
        for length in (0..=input.len()).rev().step_by(1 + input.len() / 50) {
            property(&input[..length]);
        }
    }
}

#[test]
fn configs() {
    every_input("configs", properties::configs);
}

#[test]
fn headers() {
    every_input("requests", properties::headers);
}

#[test]
fn messages() {
    every_input("requests", properties::messages);
}

#[test]
fn requests() {
    every_input("requests", properties::requests);
}
