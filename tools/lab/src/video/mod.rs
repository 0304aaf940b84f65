//! Real video as inner traffic: packetizing, identifying frames, and measuring quality.
//!
//! ```text
//!   H.264 --h264::Splitter--> access units --rtp::Packetizer--> packets > tunnel > packets
//!                                                                                  |
//!   pictures <--decoder-- Annex B <--rtp::Depacketizer-----------------------------+
//!                                     quality: stalls, frames, delays <------------+
//! ```

pub mod encoder;
pub mod frame_id;
pub mod h264;
pub mod quality;
pub(crate) mod refresh;
pub mod rtp;
pub mod stream_log;
