//! Any bytes as what a SOCKS5 client says.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| roadweave_fuzz::socks::run(data));
