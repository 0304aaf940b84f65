//! The fuzz targets' handling of libFuzzer's bytes, and the initial inputs.
//!
//! ```text
//! seeds, kept/TARGET.hex > corpus/TARGET > libFuzzer > fuzz_targets/TARGET.rs > run(bytes)
//! ```
//!
//! | target | module | checks, beside not panicking |
//! |---|---|---|
//! | `coding_decoder` | [`decoder`] | memory bounded, everything counted, nothing delivered twice |
//! | `coding_hostile` | [`hostile`] | packets that no false one touches are delivered in time, and correct |
//! | `wire_datagram` | [`datagram`] | a parsed datagram is written back byte for byte |
//! | `wire_control` | [`control`] | a parsed message reads back the same |
//! | `wire_inner` | [`inner`] | views stay within the packet |
//! | `wire_geneve` | [`geneve`] | a parsed packet reads back the same |
//! | `wire_stream` | [`stream`] | parsed frames read back the same |
//! | `wire_socks` | [`socks`] | a message ends where it says, and reads the same alone |
//! | `media_boxes` | [`media`] | pieces change nothing, and the end is within its bound |
//! | `media_http` | [`media`] | pieces change nothing |
//! | `fleet_frames` | [`fleet`] | a parsed message reads back the same, and both ends continue |
//! | `fleet_documents` | [`fleet`] | files are verified or ignored |
//!
//! The targets of `coding` read their bytes as a script: a byte selects an operation, and its
//! arguments follow, big-endian. A script that ends early is a shorter script, so every input is
//! valid.

pub mod control;
pub mod datagram;
pub mod decoder;
pub mod fleet;
pub mod geneve;
pub mod hostile;
pub mod inner;
pub mod media;
#[allow(missing_docs, dead_code, reason = "written for the tests of the coding crate")]
#[path = "../../crates/coding/tests/it/reference/model.rs"]
mod model;
pub mod socks;
pub mod stream;

/// The initial inputs of the search, by target: `(target, inputs)`.
pub fn seeds() -> [(&'static str, Vec<Vec<u8>>); 12] {
    [
        ("coding_decoder", decoder::seeds()),
        ("coding_hostile", hostile::seeds()),
        ("wire_datagram", datagram::seeds()),
        ("wire_control", control::seeds()),
        ("wire_inner", inner::seeds()),
        ("wire_geneve", geneve::seeds()),
        ("wire_stream", stream::seeds()),
        ("wire_socks", socks::seeds()),
        ("media_boxes", media::box_seeds()),
        ("media_http", media::http_seeds()),
        ("fleet_frames", fleet::frame_seeds()),
        ("fleet_documents", fleet::document_seeds()),
    ]
}

/// The next `length` bytes of a script, or as many as are left.
fn take<'a>(script: &mut &'a [u8], length: u8) -> &'a [u8] {
    script.split_off(..usize::from(length).min(script.len())).unwrap_or_default()
}
