//! What the fuzz targets do with the bytes that libFuzzer makes, and the bytes that it starts from.
//!
//! ```text
//! seeds, kept/TARGET.hex > corpus/TARGET > libFuzzer > fuzz_targets/TARGET.rs > run(bytes)
//! ```
//!
//! | target | what | beside not panicking |
//! |---|---|---|
//! | `coding_decoder` | [`decoder`] | memory bounded, everything counted, nothing delivered twice |
//! | `coding_hostile` | [`hostile`] | what no false packet touches is delivered in time, and right |
//! | `wire_datagram` | [`datagram`] | what is parsed is written again byte for byte |
//! | `wire_control` | [`control`] | what is parsed reads back the same |
//! | `wire_inner` | [`inner`] | views stay within the packet |
//! | `wire_geneve` | [`geneve`] | what is parsed reads back the same |
//! | `wire_stream` | [`stream`] | what is parsed reads back the same |
//! | `wire_socks` | [`socks`] | a message ends where it says, and says the same by itself |
//! | `media_boxes` | [`media`] | pieces change nothing, and the end is within its bound |
//! | `media_http` | [`media`] | pieces change nothing |
//! | `fleet_frames` | [`fleet`] | what is parsed reads back the same, and both ends go on |
//! | `fleet_documents` | [`fleet`] | what disks hold is proved or left aside |
//!
//! Two targets need more than bytes. They read them as a [`Script`]: a byte that chooses what to
//! do, then its arguments. A script that ends early is a shorter script, so that every input is
//! one.

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
mod script;
pub mod socks;
pub mod stream;

pub use script::{Script, Writer};

/// The inputs that the search starts from, by target: `(target, inputs)`.
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
