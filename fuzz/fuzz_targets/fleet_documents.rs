//! Any bytes as files and tokens of a fleet.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| roadweave_fuzz::fleet::documents(data));
