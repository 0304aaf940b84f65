//! A false packet damages only packets in its range.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| roadweave_fuzz::hostile::run(data));
