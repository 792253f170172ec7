//! Inputs that caused problems, or might.

#[path = "../corpus/mod.rs"]
mod properties;

use std::path::Path;

fn every_input(folder: &str, property: fn(&[u8])) {
    let corpus = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/corpus"));
    testbed::every_input(&corpus.join(folder), 400, property);
}

#[test]
fn limits() {
    every_input("limits", properties::limits);
}

#[test]
fn traces() {
    every_input("traces", properties::traces);
}
