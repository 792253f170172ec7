//! Writes the descriptors of limiter-server's messages, for reflection. After a change of `proto/`, run `cargo run -p generate-protocol`, and
//! change `proto.rs` of limiter-server likewise.

use std::error::Error;
use std::fs;

use prost::Message;

const SERVER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../limiter-server");
const DESCRIPTORS: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../limiter-server/src/proto/descriptors.bin"
);

fn main() -> Result<(), Box<dyn Error>> {
    Ok(fs::write(DESCRIPTORS, generate()?)?)
}

fn generate() -> Result<Vec<u8>, protox::Error> {
    let files = ["envoy/service/ratelimit/v3/rls.proto"];
    let files = protox::compile(files, [format!("{SERVER}/proto")])?;
    Ok(files.encode_to_vec())
}

#[test]
fn the_committed_descriptors_are_those_of_proto() {
    assert!(
        fs::read(DESCRIPTORS).unwrap() == generate().unwrap(),
        "they differ: cargo run -p generate-protocol"
    );
}
