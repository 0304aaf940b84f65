//! Real video as the tunnel's inner traffic: how it is cut into packets, recognised when it
//! arrives, and judged.
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
pub mod refresh;
pub mod rtp;
pub mod stream_log;
