//! Detects live media in a flow.
//!
//! ```text
//! RTP in sequence, SRT in sequence, a transport stream ─► media: real-time, with what goes along with it
//! a check of ICE, a handshake of SRT, RTCP             ─► signalling: real-time until it sends much
//! QUIC's long header                                   ─► QUIC, and never mistaken for media again
//! ```
//!
//! Signalling comes before or beside its media (RTSP). Without media, much data is a transfer.

use roadweave_proto::wire::{self, InnerPacket, RtpHeader, SrtHeader};

use super::rtp::RtpDetector;

/// Sync bytes of a transport stream in a row, 8 bits of evidence each.
const TS_PROOF: usize = 6;
/// SRT packets in sequence: each continues a 32-bit socket, a 31-bit sequence number and a clock.
const SRT_PROOF: u8 = 4;
/// The largest step of SRT sequence numbers: a burst may be lost before.
const SRT_STEP_MAX: u32 = 64;
/// The largest step of SRT clocks, microseconds: keep-alives come every second.
const SRT_PAUSE_MAX: u32 = 2_000_000;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Evidence {
    #[default]
    None,
    Signalling,
    Quic,
}

#[derive(Debug, Default)]
pub(super) struct MediaDetector {
    pub(super) evidence: Evidence,
    pub(super) is_media: bool,
    rtp: RtpDetector,
    srt: SrtDetector,
    ts_packets: usize,
}

impl MediaDetector {
    /// Takes a packet. Returns its RTP header, if any, and whether it begins an unmarked frame.
    pub(super) fn on_packet(&mut self, packet: &InnerPacket<'_>) -> (Option<RtpHeader>, bool) {
        if self.evidence == Evidence::Quic {
            self.is_media = false;
            return (None, false);
        }
        let rtp = RtpHeader::of(packet);
        let begins_frame = rtp.is_some_and(|header| self.rtp.on_header(&header));
        let srt = SrtHeader::of(packet);
        let srt_in_sequence = srt.is_some_and(|header| self.srt.on_header(header));
        let ts_packets = wire::mpeg_ts_packets(packet);
        self.ts_packets = ts_packets.map_or(0, |packets| self.ts_packets.saturating_add(packets));
        self.is_media = rtp.is_some() && self.rtp.is_in_sequence()
            || srt_in_sequence
            || self.ts_packets >= TS_PROOF;
        if srt == Some(SrtHeader::Handshake) || wire::is_ice(packet) || wire::is_rtcp(packet) {
            self.evidence = Evidence::Signalling;
        } else if wire::is_quic_long(packet) && !self.rtp.is_rtp {
            self.evidence = Evidence::Quic;
        }
        (rtp.filter(|_| self.rtp.is_rtp), begins_frame)
    }
}

/// Detects SRT. Data and control alternate, so each packet is compared with the last of its kind.
#[derive(Debug, Default)]
struct SrtDetector {
    data: Option<(SrtHeader, u8)>,
    control: Option<(SrtHeader, u8)>,
}

impl SrtDetector {
    fn on_header(&mut self, header: SrtHeader) -> bool {
        let last = match header {
            SrtHeader::Live { .. } => &mut self.data,
            SrtHeader::Control { .. } => &mut self.control,
            SrtHeader::Handshake => return false,
        };
        let in_sequence = match *last {
            Some((before, count)) if continues(before, header) => count.saturating_add(1),
            _ => 1,
        };
        *last = Some((header, in_sequence));
        in_sequence >= SRT_PROOF
    }
}

fn continues(before: SrtHeader, next: SrtHeader) -> bool {
    let soon = |before: u32, next: u32| next.wrapping_sub(before) <= SRT_PAUSE_MAX;
    match (before, next) {
        (
            SrtHeader::Live { socket, timestamp, sequence },
            SrtHeader::Live { socket: next_socket, timestamp: later, sequence: next },
        ) => {
            let step = next.wrapping_sub(sequence) & 0x7fff_ffff;
            socket == next_socket && soon(timestamp, later) && (1..=SRT_STEP_MAX).contains(&step)
        }
        (
            SrtHeader::Control { socket, timestamp },
            SrtHeader::Control { socket: next, timestamp: later },
        ) => socket == next && soon(timestamp, later) && timestamp != later,
        _ => false,
    }
}
