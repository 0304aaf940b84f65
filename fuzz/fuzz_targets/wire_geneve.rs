//! Any bytes as a packet of GENEVE.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| roadweave_fuzz::geneve::run(data));
