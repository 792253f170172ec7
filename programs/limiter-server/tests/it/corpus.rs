//! Inputs that caused problems, or might.

#[path = "../corpus/mod.rs"]
mod properties;

use std::path::Path;

fn every_input(folder: &str, property: fn(&[u8])) {
    let corpus = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/corpus"));
    testbed::every_input(&corpus.join(folder), 50, property);
}

#[test]
fn configs() {
    every_input("configs", properties::configs);
}

#[test]
fn messages() {
    every_input("requests", properties::messages);
}

#[test]
fn requests() {
    every_input("requests", properties::requests);
}
