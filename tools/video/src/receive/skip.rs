//! Makes a jitter buffer resume with a complete key frame ([`super::jump`]).
//!
//! ```text
//! packets ─► jump ─► jitter buffer ─► jump ─► depayloader
//!              └ stand-ins ─►┘          └ drops these and packets before the key frame
//! ```

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context as _, Result};
use gstreamer as gst;
use gstreamer::prelude::*;
use gstreamer_rtp::RTPBuffer;

use super::View;
use super::jump::{InputAction, Jump, JumpPacket, OutputAction};
use super::key_frame::FramePart;
use crate::{network, rtp};

pub fn watch(jitter_buffer: &gst::Element, view: &Arc<View>) -> Result<()> {
    let pad = |name| jitter_buffer.static_pad(name).context("a jitter buffer without that pad");
    let (input, output) = (pad("sink")?, pad("src")?);
    let jump = Arc::new(Mutex::new(Jump::new()));
    input.add_probe(gst::PadProbeType::BUFFER, {
        let (jump, view) = (Arc::clone(&jump), Arc::clone(view));
        move |pad, info| {
            let Some(buffer) = info.buffer() else { return gst::PadProbeReturn::Ok };
            enter(pad, buffer, &jump, &view)
        }
    });
    let kinds = gst::PadProbeType::BUFFER | gst::PadProbeType::EVENT_BOTH;
    let view = Arc::clone(view);
    output.add_probe(kinds, move |_, info| match &mut info.data {
        Some(gst::PadProbeData::Buffer(buffer)) => leave(buffer, &jump),
        Some(gst::PadProbeData::Event(event)) => hear(event, &jump, &view),
        _ => gst::PadProbeReturn::Ok,
    });
    Ok(())
}

fn enter(
    pad: &gst::Pad,
    buffer: &gst::BufferRef,
    jump: &Mutex<Jump>,
    view: &View,
) -> gst::PadProbeReturn {
    let is_stand_in = buffer.flags().contains(gst::BufferFlags::GAP);
    let Some(packet) = read(buffer).filter(|_| !is_stand_in) else {
        return gst::PadProbeReturn::Ok;
    };
    let entry = lock(jump).on_packet(view.began.elapsed(), packet);
    match entry {
        InputAction::Pass => gst::PadProbeReturn::Ok,
        InputAction::Drop => gst::PadProbeReturn::Drop,
        InputAction::Fill(numbers) => {
            view.on_jump(numbers.len());
            fill(pad, buffer, &numbers);
            gst::PadProbeReturn::Ok
        }
    }
}

fn leave(buffer: &mut gst::Buffer, jump: &Mutex<Jump>) -> gst::PadProbeReturn {
    let Some((_, number)) = network::sender(buffer) else { return gst::PadProbeReturn::Ok };
    match lock(jump).on_out(number) {
        OutputAction::Pass => gst::PadProbeReturn::Ok,
        OutputAction::Drop => gst::PadProbeReturn::Drop,
        OutputAction::Resume => {
            // Drops half a frame that has already left the jitter buffer.
            buffer.make_mut().set_flags(gst::BufferFlags::DISCONT);
            gst::PadProbeReturn::Ok
        }
    }
}

fn hear(event: &gst::Event, jump: &Mutex<Jump>, view: &View) -> gst::PadProbeReturn {
    let Some(said) = event.structure() else { return gst::PadProbeReturn::Ok };
    let is_over = match said.name().as_str() {
        LOST => {
            let number = said.get::<u32>("seqnum").ok().and_then(|it| u16::try_from(it).ok());
            number.is_some_and(|number| lock(jump).on_out(number) == OutputAction::Drop)
        }
        rtp::ASK => {
            let is_there = lock(jump).on_key_frame_asked();
            if !is_there {
                view.on_key_frame_request();
            }
            is_there
        }
        _ => false,
    };
    if is_over { gst::PadProbeReturn::Drop } else { gst::PadProbeReturn::Ok }
}

fn read(buffer: &gst::BufferRef) -> Option<JumpPacket> {
    let packet = RTPBuffer::from_buffer_readable(buffer).ok()?;
    let payload_type = packet.payload_type();
    let payload = packet.payload().unwrap_or_default();
    Some(JumpPacket {
        number: packet.seq(),
        timestamp: packet.timestamp(),
        payload_type,
        marker: packet.is_marker(),
        part: FramePart::of(rtp::codec(payload_type)?, payload),
    })
}

/// Gives the jitter buffer an empty packet for each of these numbers, before `packet`.
fn fill(pad: &gst::Pad, packet: &gst::BufferRef, numbers: &[u16]) {
    let mut header = [0; 12];
    if packet.size() < header.len() || packet.copy_to_slice(0, &mut header).is_err() {
        return;
    }
    (header[0], header[1]) = (0x80, header[1] & 0x7f);
    // It considers numbers that far back to be those of a restarted sender.
    let element = pad.parent_element();
    let misorder = |ms: u32| {
        if let Some(element) = &element {
            element.set_property("max-misorder-time", ms);
        }
    };
    misorder(MISORDER_MOST_MS);
    for number in numbers {
        header[2..4].copy_from_slice(&number.to_be_bytes());
        let mut stand_in = gst::Buffer::from_slice(header);
        if let Some(buffer) = stand_in.get_mut() {
            buffer.set_flags(gst::BufferFlags::GAP);
            buffer.set_pts(packet.pts());
            buffer.set_dts(packet.dts());
        }
        // An error returns with the packet itself.
        let _ = pad.chain(stand_in);
    }
    misorder(MISORDER_MS);
}

fn lock(jump: &Mutex<Jump>) -> MutexGuard<'_, Jump> {
    jump.lock().unwrap_or_else(PoisonError::into_inner)
}

const LOST: &str = "GstRTPPacketLost";
/// Its default.
const MISORDER_MS: u32 = 2_000;
/// At the observed packet rate, more than the window of [`super::jump`].
const MISORDER_MOST_MS: u32 = 30_000;
