//! Any bytes as the boxes of a video.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| roadweave_fuzz::media::boxes(data));
