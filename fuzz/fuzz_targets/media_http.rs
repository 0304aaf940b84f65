//! Any bytes as what passes by in plain HTTP.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| roadweave_fuzz::media::http(data));
