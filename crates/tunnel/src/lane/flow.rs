//! The class of an inner packet's flow, detected from its behaviour.
//!
//! ```text
//! packet ─► 5-tuple ─► Flow: DSCP, media?, bytes in the last seconds ─► FlowClass ─► rules of the lanes
//! ```
//!
//! | class | flows |
//! |---|---|
//! | real-time | UDP that is RTP, SRT or an MPEG transport stream (see `media.rs`), or whose DSCP says that it is voice or video; with it all else of its 5-tuple: STUN, DTLS and RTCP of a call; and what announces it, while it sends little |
//! | interactive | flows of any protocol that send little: name look-ups, time, keystrokes, handshakes, acknowledgements of slow transfers |
//! | tcp | other TCP |
//! | other | all else: QUIC, tunnels, games |
//!
//! "Little" fits a bucket of [`BURST`] bytes that fills at [`RATE`] bytes per second. A flow that
//! empties the bucket has grown; it is small again when the bucket is full.
//!
//! A flow that changes its class changes its lane, and lanes keep no order among themselves. So a
//! grown flow moves after a pause of [`PAUSE`], or after [`PACKETS_TO_MOVE`] packets, of which a
//! few may overtake others. Media moves at once: its receiver sorts packets.

mod media;
mod rtp;

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use roadweave_proto::Instant;
use roadweave_proto::wire::{InnerPacket, RtpHeader, protocol};
use serde::{Deserialize, Serialize};

use media::{Evidence, MediaDetector};

const FLOWS_MAX: usize = 8192;
/// How long a silent flow is remembered: longer than calls on hold stay silent.
const IDLE_MAX: Duration = Duration::from_secs(120);
const BURST: u64 = 16_000;
/// Bytes per second that an interactive flow may send for long: 64 kbit/s, voice without RTP.
const RATE: u64 = 8_000;
/// The pause in which a flow may change its lane: longer than the delays of paths differ.
const PAUSE: Duration = Duration::from_millis(20);
/// Bytes that a flow may send beside media: a call on hold sends little, and more is a transfer.
const BESIDE_MEDIA: u64 = 1 << 18;
const PACKETS_TO_MOVE: u32 = 64;

/// A kind of flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FlowClass {
    /// Calls and live video, over UDP.
    RealTime,
    /// Flows that send little.
    Interactive,
    /// TCP that sends more.
    Tcp,
    /// All else.
    Other,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FlowView {
    pub(crate) class: FlowClass,
    pub(crate) begins_frame: bool,
    pub(crate) rtp: Option<RtpHeader>,
}

#[derive(Debug, Default)]
pub(crate) struct FlowTable {
    flows: HashMap<u64, Flow>,
    /// Each flow once, with a time at or before it was last seen; the front is evicted first.
    ages: VecDeque<(Instant, u64)>,
}

#[derive(Debug, Default)]
struct Flow {
    class: Option<FlowClass>,
    seen: Instant,
    /// Thousandths of bytes that it may send and stay interactive.
    budget: u64,
    has_grown: bool,
    packets_to_move: u32,
    /// Bytes since the last media packet or real-time DSCP; `None` beyond [`BESIDE_MEDIA`].
    beside_media: Option<u64>,
    media: MediaDetector,
}

impl FlowTable {
    pub(crate) fn memory(&self) -> usize {
        self.flows.len() * (size_of::<(u64, Flow)>() + size_of::<(Instant, u64)>()) * 2
    }

    pub(crate) fn on_packet(&mut self, now: Instant, key: u64, view: &InnerPacket<'_>) -> FlowView {
        self.forget(now);
        let flow = self.flows.entry(key).or_insert_with(|| {
            self.ages.push_back((now, key));
            Flow::new(now)
        });
        flow.on_packet(now, view)
    }

    fn forget(&mut self, now: Instant) {
        while let Some((noted, hash)) = self.ages.front().copied()
            && (now.since(noted) > IDLE_MAX || self.flows.len() >= FLOWS_MAX)
        {
            self.ages.pop_front();
            let seen = self.flows.get(&hash).map_or(noted, |flow| flow.seen);
            if seen > noted {
                self.ages.push_back((seen, hash));
            } else {
                self.flows.remove(&hash);
            }
        }
    }
}

impl Flow {
    fn new(now: Instant) -> Self {
        let (budget, packets_to_move) = (BURST * 1000, PACKETS_TO_MOVE);
        Self { seen: now, budget, packets_to_move, ..Self::default() }
    }

    fn on_packet(&mut self, now: Instant, packet: &InnerPacket<'_>) -> FlowView {
        let pause = now.since(self.seen);
        self.seen = now;
        self.spend(pause, packet.payload.len());
        let (rtp, begins_frame) = self.media.on_packet(packet);
        let wanted = self.wanted(packet);
        let class = *self.class.get_or_insert(wanted);
        self.packets_to_move -= 1;
        let moves = pause >= PAUSE || wanted == FlowClass::RealTime || self.packets_to_move == 0;
        if moves || wanted == class {
            (self.class, self.packets_to_move) = (Some(wanted), PACKETS_TO_MOVE);
        }
        FlowView { class: self.class.unwrap_or(wanted), begins_frame, rtp }
    }

    fn spend(&mut self, pause: Duration, bytes: usize) {
        let earned = pause.as_millis().min(1 << 32) as u64 * RATE;
        self.budget = (self.budget + earned).min(BURST * 1000);
        if self.budget == BURST * 1000 {
            self.has_grown = false;
        }
        self.budget = self.budget.saturating_sub(bytes as u64 * 1000);
        self.has_grown |= self.budget == 0;
    }

    fn wanted(&mut self, packet: &InnerPacket<'_>) -> FlowClass {
        let is_tcp = packet.protocol == protocol::TCP;
        let says_so = packet.protocol == protocol::UDP && REAL_TIME_DSCP.contains(&packet.dscp);
        // Packets that a call sends beside its media stay with it.
        self.beside_media = match self.beside_media {
            _ if says_so || self.media.is_media => Some(0),
            before => before.map(|bytes| bytes + packet.payload.len() as u64),
        };
        self.beside_media = self.beside_media.filter(|bytes| *bytes <= BESIDE_MEDIA);
        let announces = self.media.evidence == Evidence::Signalling && !self.has_grown;
        if self.beside_media.is_some() || announces {
            return FlowClass::RealTime;
        }
        if !self.has_grown && !BACKGROUND_DSCP.contains(&packet.dscp) {
            return FlowClass::Interactive;
        }
        if is_tcp { FlowClass::Tcp } else { FlowClass::Other }
    }
}

/// CS4, AF41, AF42, AF43, CS5, VOICE-ADMIT and EF (RFC 4594 section 2.3, RFC 5865, RFC 8837).
const REAL_TIME_DSCP: [u8; 7] = [32, 34, 36, 38, 40, 44, 46];
/// LE and CS1 (RFC 8622).
const BACKGROUND_DSCP: [u8; 2] = [1, 8];

#[cfg(test)]
mod tests;
