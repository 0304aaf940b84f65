//! `roadweave demo`: real video over emulated links, strategy after strategy, and what a viewer saw.

pub mod frame_id;
pub mod h264;
pub mod quality;
pub mod rtp;
