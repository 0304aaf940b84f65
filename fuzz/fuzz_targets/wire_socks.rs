//! Any bytes as messages of a SOCKS5 client.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| roadweave_fuzz::socks::run(data));
