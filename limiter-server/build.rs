//! Generates the messages of `proto/`: their Rust types, the JSON form of proto3, the gRPC service, and the descriptors for reflection.

use std::error::Error;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::PathBuf;

use prost::Message;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let files = protox::compile(["envoy/service/ratelimit/v3/rls.proto"], ["proto"])?;
    let descriptors = files.encode_to_vec();
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    fs::write(out.join("descriptors.bin"), &descriptors)?;
    pbjson_build::Builder::new().register_descriptors(&descriptors)?.ignore_unknown_fields().build(&[".envoy"])?;
    let types =
        tonic_prost_build::configure().build_client(false).compile_well_known_types(true).include_file("proto.rs");
    types.extern_path(".google.protobuf", "::pbjson_types").compile_fds(files)?;
    // The JSON form belongs into the modules of the types.
    for file in fs::read_dir(&out)? {
        let path = file?.path();
        let Some(package) = path.to_str().and_then(|path| path.strip_suffix(".serde.rs")) else { continue };
        OpenOptions::new().append(true).open(format!("{package}.rs"))?.write_all(&fs::read(&path)?)?;
    }
    Ok(())
}
