//! Any bytes as frames of streams.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| roadweave_fuzz::stream::run(data));
