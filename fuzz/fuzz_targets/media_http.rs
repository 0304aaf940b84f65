//! Any bytes as plain HTTP traffic.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| roadweave_fuzz::media::http(data));
