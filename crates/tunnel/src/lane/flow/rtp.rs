//! Tells RTP from what merely looks like it, packet by packet.
//!
//! A UDP flow is RTP when one of its sources has sent four packets whose numbers ascend by little.
//! DNS repeats its flags where RTP counts; QUIC and WireGuard are random where RTP names its
//! source; what else has a version of 2 there is unlikely to count as well. A flow may carry
//! several sources, as the audio and the video of a call do (RFC 8843), and other things between.

use roadweave_proto::wire::RtpHeader;

/// Packets in sequence that make a source.
const PROOF: u8 = 4;
/// How far the numbers of two packets may be apart: some may be lost before they come here.
const STEP_MAX: u16 = 16;
/// Sources that are watched at a time.
const SOURCES: usize = 4;

/// What was seen of RTP in a flow.
#[derive(Debug, Default)]
pub(super) struct RtpDetector {
    /// The one that was heard last is the first.
    sources: [Option<Source>; SOURCES],
    is_rtp: bool,
}

#[derive(Clone, Copy, Debug)]
struct Source {
    ssrc: u32,
    sequence: u16,
    timestamp: u32,
    marker: bool,
    in_sequence: u8,
}

impl RtpDetector {
    /// Whether the flow has turned out to be RTP; it stays so.
    pub(super) fn is_rtp(&self) -> bool {
        self.is_rtp
    }

    /// Whether the newest header continued one of the flow's sources.
    pub(super) fn is_in_sequence(&self) -> bool {
        self.sources[0].is_some_and(|source| source.in_sequence >= PROOF)
    }

    /// Takes what looks like the header of RTP. Returns whether, in RTP, a frame begins here though
    /// no marker ended the one before: its timestamp is another (RFC 3550 section 5.1).
    pub(super) fn on_header(&mut self, header: &RtpHeader) -> bool {
        let known = self
            .sources
            .iter()
            .position(|source| source.is_some_and(|source| source.ssrc == header.ssrc));
        let before = known.and_then(|at| self.sources[at]);
        let mut source = Source {
            ssrc: header.ssrc,
            sequence: header.sequence,
            timestamp: header.timestamp,
            marker: header.marker,
            in_sequence: 1,
        };
        let mut begins_frame = false;
        if let Some(before) = before {
            let step = header.sequence.wrapping_sub(before.sequence);
            source.in_sequence = match step {
                1..=STEP_MAX => before.in_sequence.saturating_add(1),
                // Swapped on the way here.
                _ if step.wrapping_neg() <= STEP_MAX && step != 0 => before.in_sequence,
                _ => 1,
            };
            begins_frame = step == 1 && !before.marker && header.timestamp != before.timestamp;
        }
        self.sources[..=known.unwrap_or(SOURCES - 1)].rotate_right(1);
        self.sources[0] = Some(source);
        self.is_rtp |= source.in_sequence >= PROOF;
        self.is_rtp && begins_frame
    }
}
