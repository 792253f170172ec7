//! Generates the messages of `proto/`: their Rust types, the JSON form of proto3, the gRPC service, and the descriptors for reflection.
//!
//! Envoy copies raw header bytes into the entries of descriptors, which the protocol declares as text. So their Rust types hold bytes.

use std::error::Error;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::PathBuf;

use prost::Message;
use prost_types::FileDescriptorSet;
use prost_types::field_descriptor_proto::Type;

const ENTRY: &str = ".envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.Entry";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let mut files = protox::compile(["envoy/service/ratelimit/v3/rls.proto"], ["proto"])?;
    let descriptors = files.encode_to_vec();
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    fs::write(out.join("descriptors.bin"), &descriptors)?;
    pbjson_build::Builder::new()
        .register_descriptors(&descriptors)?
        .exclude([ENTRY])
        .build(&[".envoy"])?;
    entries_hold_bytes(&mut files);
    let types = tonic_prost_build::configure().type_attribute(
        ENTRY,
        "#[derive(serde::Deserialize, serde::Serialize)] #[serde(from = \"crate::proto::EntryText\", into = \"crate::proto::EntryText\")]",
    );
    let types = types
        .build_client(false)
        .compile_well_known_types(true)
        .include_file("proto.rs");
    types
        .extern_path(".google.protobuf", "::pbjson_types")
        .compile_fds(files)?;
    // The JSON form belongs into the modules of the types.
    for file in fs::read_dir(&out)? {
        let path = file?.path();
        let Some(package) = path
            .to_str()
            .and_then(|path| path.strip_suffix(".serde.rs"))
        else {
            continue;
        };
        OpenOptions::new()
            .append(true)
            .open(format!("{package}.rs"))?
            .write_all(&fs::read(&path)?)?;
    }
    Ok(())
}

fn entries_hold_bytes(files: &mut FileDescriptorSet) {
    let messages = files
        .file
        .iter_mut()
        .flat_map(|file| &mut file.message_type);
    let nested = messages
        .filter(|message| message.name() == "RateLimitDescriptor")
        .flat_map(|message| &mut message.nested_type);
    for field in nested
        .filter(|message| message.name() == "Entry")
        .flat_map(|message| &mut message.field)
    {
        field.set_type(Type::Bytes);
    }
}
