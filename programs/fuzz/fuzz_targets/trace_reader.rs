#![no_main]

#[path = "../../limiter-cli/tests/corpus/mod.rs"]
mod properties;

libfuzzer_sys::fuzz_target!(|input: &[u8]| properties::traces(input));
