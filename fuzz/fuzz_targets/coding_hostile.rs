//! A false packet spoils what it says something about, and nothing else.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| roadweave_fuzz::hostile::run(data));
