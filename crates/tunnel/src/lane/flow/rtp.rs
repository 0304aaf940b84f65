//! Detects RTP, packet by packet.
//!
//! A UDP flow is RTP once one of its sources has sent four packets with slowly ascending numbers.
//! DNS, QUIC and WireGuard do not match. A flow may carry several sources (RFC 8843).

use roadweave_proto::wire::RtpHeader;

const PROOF: u8 = 4;
const STEP_MAX: u16 = 16;
const SOURCES: usize = 4;

#[derive(Debug, Default)]
pub(super) struct RtpDetector {
    sources: [Option<RtpSource>; SOURCES],
    pub(super) is_rtp: bool,
}

#[derive(Clone, Copy, Debug)]
struct RtpSource {
    ssrc: u32,
    sequence: u16,
    timestamp: u32,
    marker: bool,
    in_sequence: u8,
}

impl RtpDetector {
    pub(super) fn is_in_sequence(&self) -> bool {
        self.sources[0].is_some_and(|source| source.in_sequence >= PROOF)
    }

    /// Takes a possible RTP header; returns whether its timestamp begins a frame (RFC 3550 5.1).
    pub(super) fn on_header(&mut self, header: &RtpHeader) -> bool {
        let is_it = |it: &Option<RtpSource>| it.is_some_and(|source| source.ssrc == header.ssrc);
        let known = self.sources.iter().position(is_it);
        let before = known.and_then(|at| self.sources[at]);
        let RtpHeader { marker, sequence, timestamp, ssrc } = *header;
        let mut source = RtpSource { ssrc, sequence, timestamp, marker, in_sequence: 1 };
        let mut begins_frame = false;
        if let Some(before) = before {
            let step = sequence.wrapping_sub(before.sequence);
            source.in_sequence = match step {
                1..=STEP_MAX => before.in_sequence.saturating_add(1),
                // Reordered before it came here.
                _ if step.wrapping_neg() <= STEP_MAX && step != 0 => before.in_sequence,
                _ => 1,
            };
            begins_frame = step == 1 && !before.marker && timestamp != before.timestamp;
        }
        self.sources[..=known.unwrap_or(SOURCES - 1)].rotate_right(1);
        self.sources[0] = Some(source);
        self.is_rtp |= source.in_sequence >= PROOF;
        self.is_rtp && begins_frame
    }
}
