//! `roadweave demo`: real video over emulated links, strategy after strategy, and what a viewer saw.

mod charts;
pub mod clip;
mod clock;
pub mod decode;
mod ffmpeg;
pub mod frame_id;
pub mod h264;
pub mod quality;
pub mod report;
pub mod results;
pub mod rtp;
pub mod sink;
mod sockets;
pub mod source;
pub mod stream_log;
pub mod table;
