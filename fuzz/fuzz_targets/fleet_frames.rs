//! Any bytes as messages of a fleet's stream.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| roadweave_fuzz::fleet::frames(data));
