//! The sender.
//!
//! ```text
//! source ─► pace ─► queue of one ─► limit ─► encoder ─► size ─► payloader ─► stamp ─► RTP, or SRT
//!                                     ▲                                       │ ▲
//!       the tunnel's program ─────────┴───── a key frame is requested ◄───────┴─┴── RTCP
//!                  ▲                                                          │
//!                  └───────── older packets are superseded ◄──────────────────┘
//! ```
//!
//! Probes on pads do the steps named beside elements, in the elements' threads: the limit is set
//! just before a frame enters the encoder, so that it applies to this frame.

mod frames;

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use gstreamer as gst;
use gstreamer::prelude::*;
use roadweave_terminal::exit::BadInput;
use roadweave_terminal::out;

use self::frames::{Frames, Settings};
use crate::encoder::{Encoder, SRT_KEY_FRAME_SECONDS};
use crate::feedback::Feedback;
use crate::network::{PacketKind, Socket};
use crate::options::{self, Address, Codec, Recovery, Source, without_password};
use crate::plugins::{self, make, running_time};
use crate::run::{self, ElementError, End};
use crate::sizing::Packets;
use crate::srt::SrtConnection;
use crate::supersede::Supersede;
use crate::{rtp, source, srt, stamp};

pub fn run(options: options::Send) -> Result<()> {
    if options.recovery == Recovery::Refresh && options.picture.codec != Codec::H264 {
        return Err(BadInput::new("--recovery refresh: only for h264").into());
    }
    if options.srt.is_used() && !matches!(options.to, Address::Srt(_)) {
        let message = "--min-bitrate, --latency, --stream-id, --passphrase-file: only for srt://";
        return Err(BadInput::new(message).into());
    }
    plugins::start()?;
    let pipeline = gst::Pipeline::new();
    let (frames, answers) = build(&pipeline, &options)?;
    let report = |report: &crate::statistics::sent::SenderReport| match options.run.json {
        true => out::json_line(report),
        false => Ok(out::line(report)?),
    };
    let end = run::until_end(&pipeline, options.run.seconds, true, || {
        report(&frames.second(Instant::now(), answers))?;
        if frames.srt_silent() > srt::SILENCE_MOST {
            bail!("{}: the receiver has disconnected", options.to);
        }
        still_there(&frames, &options.source)
    });
    let end = end.map_err(|error| blame(error, &options, frames.has_begun()));
    report(&frames.whole(Instant::now(), answers))?;
    match (end?, &options.source) {
        (End::Source, Source::Camera(_) | Source::Rtsp(_)) => {
            bail!("{}: the camera has disconnected", options.source)
        }
        (End::Source, Source::File(path)) if !frames.has_begun() => {
            Err(BadInput::new(format!("{}: no pictures", path.display())).into())
        }
        _ => Ok(()),
    }
}

/// Attributes an element's error to the source or to the network. If a pipeline never began, its
/// input is bad; if it fails later it may be started again.
fn blame(error: anyhow::Error, options: &options::Send, has_begun: bool) -> anyhow::Error {
    let Some(ElementError { factory, text }) = error.downcast_ref() else { return error };
    let problem = match (factory.as_str(), &options.source) {
        ("srtsink", _) if text.contains(NO_CONNECTION) => {
            format!(
                "{}: no answer; check the address, the passphrase and the stream id",
                options.to
            )
        }
        ("srtsink", _) => format!("{}: the receiver has disconnected: {text}", options.to),
        ("udpsink", _) => format!("{}: {text}", options.to),
        (_, Source::Test) => return error,
        (_, source) => format!("{source}: {}", without_password(text)),
    };
    if has_begun { anyhow!(problem) } else { BadInput::new(problem).into() }
}

fn still_there(frames: &Frames, source: &Source) -> Result<()> {
    let silent = frames.since_picture(Instant::now());
    let most = if frames.has_begun() { SILENCE_MOST } else { START_MOST };
    if silent > most {
        return Err(anyhow!("{source}: no picture for {} s", silent.as_secs()));
    }
    Ok(())
}

fn build(pipeline: &gst::Pipeline, options: &options::Send) -> Result<(Arc<Frames>, bool)> {
    let (key_frame_seconds, key_interval) = match (&options.to, options.recovery) {
        (Address::Rtp(..), Recovery::Keyframe) => (None, KEY_FRAME_INTERVAL),
        (Address::Rtp(..), Recovery::Refresh) => (None, Duration::MAX),
        (Address::Srt(_), _) => (Some(SRT_KEY_FRAME_SECONDS), Duration::MAX),
    };
    let encoder = Encoder::new(options.picture, options.recovery, key_frame_seconds)?;
    let target = match &options.to {
        Address::Rtp(host, port) => Some(Socket::towards(host, *port)?),
        Address::Srt(_) => None,
    };
    let is_ipv6 = target.as_ref().is_some_and(|(_, there)| there.is_ipv6());
    let packets = Packets {
        mtu: usize::from(options.mtu),
        around: usize::from(options.overhead) + if is_ipv6 { 40 + 8 } else { 20 + 8 },
    };
    let source = source::build(pipeline, &options.source, options.picture)?;
    let settings = Settings {
        packets,
        fps: options.picture.fps,
        pixels: options.picture.size.pixels(),
        key_interval,
        keeps_frames: options.picture.codec == Codec::H264,
        bitrate_bps: options.bitrate,
    };
    let frames = Arc::new(Frames::new(settings, tunnel(options)?, options.frames.as_deref())?);
    let encoded = encode(pipeline, &source, encoder, &frames)?;
    match (&options.to, target) {
        (Address::Srt(uri), _) => {
            let counted = Arc::clone(&frames);
            let what = (options.picture.codec, options.bitrate);
            let sent = move |bytes| counted.on_packet(bytes, None);
            frames.follow(SrtConnection::new(pipeline, &encoded, uri, what, &options.srt, sent)?);
            Ok((frames, false))
        }
        (_, Some((socket, there))) => {
            let payloader = rtp::payloader(options.picture.codec, options.mtu)?;
            pipeline.add(&payloader)?;
            encoded.link(&payloader)?;
            stamp_packets(&payloader, &frames)?;
            session(pipeline, &payloader, &socket, there, &frames)?;
            Ok((frames, true))
        }
        (Address::Rtp(..), None) => bail!("no address to send to"),
    }
}

fn tunnel(options: &options::Send) -> Result<(Option<Feedback>, Option<Supersede>)> {
    let (Some(socket), Some(lane)) = (&options.feedback, &options.lane) else {
        return Ok((None, None));
    };
    let feedback = Feedback::subscribe(socket.clone(), lane.clone());
    let feedback = feedback.context("cannot start a thread")?;
    // SRT has neither RTP's numbers nor its times.
    let supersede = match &options.to {
        Address::Rtp(..) => Some(Supersede::start(socket.clone(), lane.clone())),
        Address::Srt(_) => None,
    };
    Ok((Some(feedback), supersede.transpose().context("cannot start a thread")?))
}

fn encode(
    pipeline: &gst::Pipeline,
    source: &gst::Element,
    encoder: Encoder,
    frames: &Arc<Frames>,
) -> Result<gst::Element> {
    let queue = make("queue")?;
    for (property, value) in [("max-size-buffers", "1"), ("leaky", "downstream")] {
        plugins::set(&queue, property, value);
    }
    let caps = make("capsfilter")?;
    caps.set_property("caps", encoder.caps());
    let element = encoder.element.clone();
    pipeline.add_many([&queue, &element, &caps])?;
    gst::Element::link_many([source, &queue, &element, &caps])?;

    let paced = Arc::clone(frames);
    buffers(source, "src", move |pad, buffer| paced.on_picture(running_time(pad, buffer)))?;
    let output = element.static_pad("src").context("an encoder without output")?;
    let limited = Arc::clone(frames);
    buffers(&element, "sink", move |pad, buffer| {
        let at = running_time(pad, buffer);
        let Some(frame) = limited.before_encoder(at, age(pad, at)) else { return false };
        encoder.limit(frame.bytes);
        if frame.key {
            output.send_event(rtp::key_frame_event());
        }
        true
    })?;
    let sized = Arc::clone(frames);
    buffers(&element, "src", move |pad, buffer| {
        let is_key = !buffer.flags().contains(gst::BufferFlags::DELTA_UNIT);
        sized.after_encoder(running_time(pad, buffer), buffer.size(), is_key)
    })?;
    post_end(pipeline, &caps)?;
    let asked = Arc::clone(frames);
    // The gate decides when, not the encoder.
    rtp::on_key_frame_asked(&caps, "sink", move || {
        asked.on_key_frame_asked();
        gst::PadProbeReturn::Drop
    })?;
    Ok(caps)
}

/// Posts the end when the last picture has passed `element`: an RTCP session alone may take seconds
/// to end (RFC 3550 section 6.3.7).
fn post_end(pipeline: &gst::Pipeline, element: &gst::Element) -> Result<()> {
    let pad = element.static_pad("src").context("an element without output")?;
    let pipeline = pipeline.downgrade();
    pad.add_probe(gst::PadProbeType::EVENT_DOWNSTREAM, move |_, info| {
        if let Some(gst::PadProbeData::Event(event)) = &info.data
            && event.type_() == gst::EventType::Eos
            && let Some(pipeline) = pipeline.upgrade()
            && let Some(bus) = pipeline.bus()
        {
            // Fails only without a receiver.
            let _ = bus.post(gst::message::Eos::builder().src(&pipeline).build());
        }
        gst::PadProbeReturn::Ok
    });
    Ok(())
}

fn stamp_packets(payloader: &gst::Element, frames: &Arc<Frames>) -> Result<()> {
    let pad = payloader.static_pad("src").context("a payloader without output")?;
    let frames = Arc::clone(frames);
    let kinds = gst::PadProbeType::BUFFER | gst::PadProbeType::BUFFER_LIST;
    pad.add_probe(kinds, move |pad, info| {
        let write = |buffer: &mut gst::BufferRef| {
            let at = running_time(pad, buffer);
            if let Some(stamp) = frames.stamp(at) {
                rtp::write(buffer, stamp);
            }
            frames.on_packet(buffer.size(), rtp::source(buffer));
        };
        match &mut info.data {
            Some(gst::PadProbeData::Buffer(buffer)) => write(buffer.make_mut()),
            Some(gst::PadProbeData::BufferList(list)) => {
                let list = list.make_mut();
                for i in 0..list.len() {
                    list.get_mut(i).into_iter().for_each(write);
                }
            }
            _ => {}
        }
        gst::PadProbeReturn::Ok
    });
    Ok(())
}

fn session(
    pipeline: &gst::Pipeline,
    payloader: &gst::Element,
    socket: &Socket,
    there: std::net::SocketAddr,
    frames: &Arc<Frames>,
) -> Result<()> {
    let bin = make("rtpbin")?;
    plugins::set(&bin, "rtp-profile", "avpf");
    let (rtp_sink, rtcp_sink) = (socket.sink(there)?, socket.sink(there)?);
    let rtcp_source = socket.source()?;
    rtcp_source.set_property("caps", gst::Caps::new_empty_simple("application/x-rtcp"));
    pipeline.add_many([&bin, &rtp_sink, &rtcp_sink, &rtcp_source])?;
    payloader.link_pads(Some("src"), &bin, Some("send_rtp_sink_0"))?;
    bin.link_pads(Some("send_rtp_src_0"), &rtp_sink, Some("sink"))?;
    bin.link_pads(Some("send_rtcp_src_0"), &rtcp_sink, Some("sink"))?;
    rtcp_source.link_pads(Some("src"), &bin, Some("recv_rtcp_sink_0"))?;
    rtp::report_often(&bin);
    let frames = Arc::clone(frames);
    buffers(&rtcp_source, "src", move |_, buffer| {
        PacketKind::of_buffer(buffer) == PacketKind::Rtcp && frames.on_answer(Instant::now())
    })
}

/// Calls `act` for each buffer that passes a pad; drops the buffer if `act` returns `false`.
fn buffers(
    element: &gst::Element,
    pad: &str,
    act: impl Fn(&gst::Pad, &gst::BufferRef) -> bool + Send + Sync + 'static,
) -> Result<()> {
    let pad = element.static_pad(pad).context("an element without that pad")?;
    pad.add_probe(gst::PadProbeType::BUFFER, move |pad, info| match info.buffer() {
        Some(buffer) if !act(pad, buffer) => gst::PadProbeReturn::Drop,
        _ => gst::PadProbeReturn::Ok,
    });
    Ok(())
}

fn age(pad: &gst::Pad, at: Duration) -> Duration {
    let element = pad.parent_element();
    let now = element.and_then(|element| element.current_running_time());
    now.map_or(Duration::ZERO, |now| Duration::from(now).saturating_sub(at))
}

/// For receivers that cannot request a key frame.
const KEY_FRAME_INTERVAL: Duration = Duration::from_secs(10);
/// The library's text for a connection that was never established.
const NO_CONNECTION: &str = "Connection does not exist";
/// A camera without a picture for this long counts as gone.
const SILENCE_MOST: Duration = Duration::from_secs(5);
const START_MOST: Duration = Duration::from_secs(15);
const _: () = assert!(stamp::EXTENSION_BYTES.is_multiple_of(4), "an extension is whole words");
