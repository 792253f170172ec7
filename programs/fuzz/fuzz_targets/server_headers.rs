#![no_main]

#[path = "../../limiter-server/tests/corpus/mod.rs"]
mod properties;

libfuzzer_sys::fuzz_target!(|input: &[u8]| properties::headers(input));
