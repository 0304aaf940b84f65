//! Any bytes as an inner packet, and as a symbol.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| roadweave_fuzz::inner::run(data));
