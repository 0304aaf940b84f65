//! Any sequence of source and coded packets, true, false or broken.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| roadweave_fuzz::decoder::run(data));
