//! Generates the messages of `proto/`: their Rust types, the JSON form of proto3, the gRPC service, and the descriptors for reflection.

use std::env;
use std::error::Error;
use std::path::Path;

use prost::Message;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let files = protox::compile(["envoy/service/ratelimit/v3/rls.proto"], ["proto"])?;
    let descriptors = files.encode_to_vec();
    std::fs::write(Path::new(&env::var("OUT_DIR")?).join("descriptors.bin"), &descriptors)?;
    pbjson_build::Builder::new().register_descriptors(&descriptors)?.ignore_unknown_fields().build(&[".envoy"])?;
    let types = tonic_prost_build::configure().build_client(false).compile_well_known_types(true);
    types.extern_path(".google.protobuf", "::pbjson_types").compile_fds(files)?;
    Ok(())
}
