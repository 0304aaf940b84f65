//! The encoders, and their limits before each frame.
//!
//! x264 accepts a new bit rate and buffer for each frame and keeps to them. The elements of x265
//! and libvpx accept only a bit rate, so their frames follow the target on average.

use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::Result;
use gstreamer as gst;
use gstreamer::prelude::*;

use crate::options::{Codec, Picture, Recovery};
use crate::plugins::{self, set};
use crate::rtp;
use crate::sizing::EncoderRate;

#[derive(Debug)]
pub struct Encoder {
    pub element: gst::Element,
    codec: Codec,
    fps: u32,
    kbps: AtomicU32,
}

impl Encoder {
    /// An encoder without delay; a key frame at least each `key_frame_seconds`, or only on request.
    pub fn new(
        picture: Picture,
        recovery: Recovery,
        key_frame_seconds: Option<u32>,
    ) -> Result<Self> {
        let Picture { codec, fps, .. } = picture;
        let key_frames = key_frame_seconds.map_or(NEVER, |seconds| fps * seconds);
        let element = match codec {
            Codec::H264 => x264(fps, recovery, key_frames)?,
            Codec::H265 => x265(key_frames)?,
            Codec::Vp8 => vp8(key_frames)?,
        };
        Ok(Self { element, codec, fps, kbps: AtomicU32::new(0) })
    }

    pub fn limit(&self, bytes: usize) {
        let EncoderRate { kbps, buffer_ms } = EncoderRate::new(bytes, self.fps);
        if self.kbps.swap(kbps, Ordering::Relaxed) == kbps {
            return;
        }
        match self.codec {
            Codec::H264 => {
                self.element.set_property("vbv-buf-capacity", buffer_ms);
                self.element.set_property("bitrate", kbps);
            }
            Codec::H265 => self.element.set_property("bitrate", kbps.min(X265_KBPS_MAX)),
            Codec::Vp8 => {
                let bps = i32::try_from(u64::from(kbps) * 1000).unwrap_or(i32::MAX);
                self.element.set_property("target-bitrate", bps);
            }
        }
    }

    pub fn caps(&self) -> gst::Caps {
        let other = || gst::Caps::new_empty_simple("video/x-vp8");
        rtp::byte_stream(self.codec).unwrap_or_else(other)
    }
}

fn x264(fps: u32, recovery: Recovery, key_frames: u32) -> Result<gst::Element> {
    let element = plugins::make("x264enc")?;
    set(&element, "speed-preset", "superfast");
    set(&element, "tune", "zerolatency");
    set(&element, "byte-stream", "true");
    // At a change of scene, blocks are encoded again within the frame's size; a key frame would
    // only discard usable content.
    set(&element, "option-string", "scenecut=0");
    let refresh = recovery == Recovery::Refresh;
    element.set_property("intra-refresh", refresh);
    // With refresh, the time of one pass over the picture.
    element.set_property("key-int-max", if refresh { fps } else { key_frames });
    Ok(element)
}

fn x265(key_frames: u32) -> Result<gst::Element> {
    let element = plugins::make("x265enc")?;
    set(&element, "speed-preset", "ultrafast");
    set(&element, "tune", "zerolatency");
    element.set_property("key-int-max", i32::try_from(key_frames).unwrap_or(250));
    Ok(element)
}

fn vp8(key_frames: u32) -> Result<gst::Element> {
    let element = plugins::make("vp8enc")?;
    for (property, value) in [
        ("deadline", "1"),
        ("cpu-used", "8"),
        ("lag-in-frames", "0"),
        ("end-usage", "cbr"),
        // In ms: the minimum that lets it plan.
        ("buffer-size", "100"),
        ("buffer-initial-size", "50"),
        ("buffer-optimal-size", "60"),
        ("undershoot", "100"),
        ("overshoot", "0"),
        // In percent of a frame's share.
        ("max-intra-bitrate", "100"),
        ("threads", "2"),
        ("static-threshold", "1"),
    ] {
        set(&element, property, value);
    }
    element.set_property("keyframe-max-dist", i32::try_from(key_frames).unwrap_or(300));
    Ok(element)
}

/// Frames between two key frames: x264's value for infinity.
const NEVER: u32 = 1 << 30;
/// An SRT receiver cannot request key frames; one that joins late waits, as with belacoder.
pub const SRT_KEY_FRAME_SECONDS: u32 = 2;
/// Maximum of `x265enc`.
const X265_KBPS_MAX: u32 = 102_400;
