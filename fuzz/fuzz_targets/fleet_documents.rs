//! Any bytes as what a fleet keeps on disks and in tokens.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| roadweave_fuzz::fleet::documents(data));
