//! Any bytes as the payload of a DATAGRAM frame.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| roadweave_fuzz::datagram::run(data));
