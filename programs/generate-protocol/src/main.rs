//! Generates limiter-server's messages from `proto/`: their Rust types, the JSON form of proto3, the gRPC service, and the descriptors for
//! reflection. After a change of `proto/`, run `cargo run -p generate-protocol`.
//!
//! Envoy copies raw header bytes into the entries of descriptors, which the protocol declares as text. So their Rust types hold bytes.

use std::error::Error;
use std::fs;
use std::path::Path;

use prost::Message;
use prost_types::FileDescriptorSet;
use prost_types::field_descriptor_proto::Type;

const ENTRY: &str = ".envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.Entry";
const SERVER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../limiter-server");

/// The committed files, and their contents.
type Generated = [(&'static str, Vec<u8>); 2];

fn main() -> Result<(), Box<dyn Error>> {
    for (file, bytes) in generate()? {
        fs::write(Path::new(SERVER).join(file), bytes)?;
    }
    Ok(())
}

fn generate() -> Result<Generated, Box<dyn Error>> {
    let proto = Path::new(SERVER).join("proto");
    let mut files = protox::compile(["envoy/service/ratelimit/v3/rls.proto"], [proto])?;
    let descriptors = files.encode_to_vec();
    let out = tempfile::tempdir()?;
    pbjson_build::Builder::new()
        .register_descriptors(&descriptors)?
        .exclude([ENTRY])
        .out_dir(out.path())
        .build(&[".envoy"])?;
    entries_hold_bytes(&mut files);
    tonic_prost_build::configure()
        .type_attribute(
            ENTRY,
            "#[derive(serde::Deserialize, serde::Serialize)] #[serde(from = \"crate::object::Object<crate::proto::EntryText>\", into = \"crate::proto::EntryText\")]",
        )
        .build_client(false)
        .compile_well_known_types(true)
        .include_file("proto.rs")
        .extern_path(".google.protobuf", "::pbjson_types")
        .out_dir(out.path())
        .compile_fds(files)?;
    let mut code = String::new();
    for line in fs::read_to_string(out.path().join("proto.rs"))?.lines() {
        match line.trim().strip_prefix("include!(\"") {
            // The JSON form belongs into the modules of the types.
            Some(included) => {
                let package = included.trim_end_matches(".rs\");");
                for suffix in ["rs", "serde.rs"] {
                    let file = out.path().join(format!("{package}.{suffix}"));
                    code += &fs::read_to_string(file)?;
                }
            }
            None => code = code + line + "\n",
        }
    }
    Ok([
        ("src/proto/envoy.rs", code.into_bytes()),
        ("src/proto/descriptors.bin", descriptors),
    ])
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

#[test]
fn the_committed_code_is_what_proto_generates() {
    for (file, bytes) in generate().unwrap() {
        let committed = fs::read(Path::new(SERVER).join(file)).unwrap();
        assert!(
            committed == bytes,
            "{file} differs from what proto/ generates: cargo run -p generate-protocol"
        );
    }
}
