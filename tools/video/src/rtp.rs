//! Conventions of both ends: payload types, and the extension with the stamp.

use anyhow::{Context as _, Result};
use gstreamer as gst;
use gstreamer::prelude::*;
use gstreamer_rtp::RTPBuffer;

use crate::options::Codec;
use crate::plugins::{make, set, set_if_known};
use crate::stamp::{EXTENSION_BYTES, NUMBER_ID, Stamp, TIME_ID};

/// The payload type of a codec, a dynamic one (RFC 3551 section 3).
pub fn payload_type(codec: Codec) -> u8 {
    match codec {
        Codec::H264 => 96,
        Codec::H265 => 97,
        Codec::Vp8 => 98,
    }
}

pub fn codec(payload_type: u8) -> Option<Codec> {
    [Codec::H264, Codec::H265, Codec::Vp8]
        .into_iter()
        .find(|it| self::payload_type(*it) == payload_type)
}

/// The caps of a payload type, with requests for key frames (RFC 4585 section 6.3.1, RFC 5104
/// section 4.3.1).
pub fn caps(payload_type: u8) -> Option<gst::Caps> {
    let name = match codec(payload_type)? {
        Codec::H264 => "H264",
        Codec::H265 => "H265",
        Codec::Vp8 => "VP8",
    };
    let caps = gst::Caps::builder("application/x-rtp")
        .field("media", "video")
        .field("clock-rate", 90_000_i32)
        .field("encoding-name", name)
        .field("payload", i32::from(payload_type))
        .field("rtcp-fb-nack-pli", true)
        .field("rtcp-fb-ccm-fir", true);
    Some(caps.build())
}

/// A byte stream with one frame per buffer, the only form that can be read from a file; `None` for
/// codecs without one.
pub fn byte_stream(codec: Codec) -> Option<gst::Caps> {
    let name = match codec {
        Codec::H264 => "video/x-h264",
        Codec::H265 => "video/x-h265",
        Codec::Vp8 => return None,
    };
    let caps = gst::Caps::builder(name).field("stream-format", "byte-stream");
    Some(caps.field("alignment", "au").build())
}

pub fn payloader(codec: Codec, mtu: u16) -> Result<gst::Element> {
    let payloader = match codec {
        Codec::H264 => make("rtph264pay")?,
        Codec::H265 => make("rtph265pay")?,
        Codec::Vp8 => make("rtpvp8pay")?,
    };
    payloader.set_property("pt", u32::from(payload_type(codec)));
    payloader.set_property("mtu", u32::from(mtu).saturating_sub(EXTENSION_BYTES as u32));
    if codec != Codec::Vp8 {
        set(&payloader, "aggregate-mode", "zero-latency");
    }
    if codec == Codec::H265 {
        // Parameter sets with each key frame. x264 adds them itself, and `rtph264pay` would also
        // insert them before each slice, where they begin another picture.
        payloader.set_property("config-interval", -1_i32);
    }
    Ok(payloader)
}

/// The elements that join packets to frames and decode them; `damaged` shows incomplete frames.
pub fn decoder(codec: Codec, damaged: bool) -> Result<[gst::Element; 2]> {
    let (unpack, decode) = match codec {
        Codec::H264 => ("rtph264depay", "avdec_h264"),
        Codec::H265 => ("rtph265depay", "avdec_h265"),
        Codec::Vp8 => ("rtpvp8depay", "vp8dec"),
    };
    let (unpack, decode) = (make(unpack)?, make(decode)?);
    set_if_known(&unpack, "request-keyframe", true);
    set_if_known(&unpack, "wait-for-keyframe", !damaged);
    // Frame threads would delay frames.
    if decode.has_property("thread-type") {
        set(&decode, "thread-type", "slice");
    }
    set_if_known(&decode, "output-corrupt", damaged);
    // Broken packets must not end the pipeline.
    set_if_known(&decode, "max-errors", -1_i32);
    set_if_known(&decode, "qos", false);
    Ok([unpack, decode])
}

/// Makes the session of `bin` report a few times a second instead of each five seconds (RFC 3550
/// section 6.2): profiles with feedback have no such minimum (RFC 4585 section 3.4). If two key
/// frames are requested between two reports, the second request waits for the report (section
/// 3.5.2).
pub fn report_often(bin: &gst::Element) {
    let session = bin.emit_by_name::<Option<gst::glib::Object>>("get-internal-session", &[&0_u32]);
    if let Some(session) = session {
        session.set_property("rtcp-min-interval", REPORT_NS);
    }
}

pub fn write(packet: &mut gst::BufferRef, stamp: Stamp) {
    let (time, number) = stamp.to_bytes();
    if let Ok(mut packet) = RTPBuffer::from_buffer_writable(packet) {
        let written = packet.add_extension_onebyte_header(TIME_ID, &time);
        let written =
            written.and_then(|()| packet.add_extension_onebyte_header(NUMBER_ID, &number));
        if written.is_err() {
            tracing::debug!("a packet without a stamp");
        }
    }
}

pub fn source(packet: &gst::BufferRef) -> Option<(u32, u32)> {
    let packet = RTPBuffer::from_buffer_readable(packet).ok()?;
    Some((packet.ssrc(), packet.timestamp()))
}

pub fn read(packet: &gst::BufferRef) -> Option<Stamp> {
    let packet = RTPBuffer::from_buffer_readable(packet).ok()?;
    let time = packet.extension_onebyte_header(TIME_ID, 0)?;
    let number = packet.extension_onebyte_header(NUMBER_ID, 0)?;
    Stamp::from_bytes(time, number)
}

/// Calls `act` when a key frame is requested through a pad; it returns whether to forward that.
pub fn on_key_frame_asked(
    element: &gst::Element,
    pad: &str,
    act: impl Fn() -> gst::PadProbeReturn + Send + Sync + 'static,
) -> Result<()> {
    let pad = element.static_pad(pad).context("an element without that pad")?;
    pad.add_probe(gst::PadProbeType::EVENT_UPSTREAM, move |_, info| {
        match info.event().and_then(|event| event.structure()).is_some_and(|it| it.name() == ASK) {
            true => act(),
            false => gst::PadProbeReturn::Ok,
        }
    });
    Ok(())
}

pub fn ask_for_key_frame(pad: &gst::Pad) {
    pad.push_event(key_frame_event());
}

pub fn key_frame_event() -> gst::Event {
    let ask = gst::Structure::builder(ASK).field("all-headers", true).field("count", 0_u32).build();
    gst::event::CustomUpstream::new(ask)
}

/// About 4 kbit/s.
const REPORT_NS: u64 = 200_000_000;
pub const ASK: &str = "GstForceKeyUnit";
