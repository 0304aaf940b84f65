//! Video that became useless because its encoder restarted with a later frame.
//!
//! Identified by RTP timestamp, so that the notice may come before or after the packets.

use std::collections::VecDeque;
use std::time::Duration;

use roadweave_proto::Instant;
use roadweave_proto::wire::{InnerPacket, RtpHeader};
use serde::{Deserialize, Serialize};

/// All packets of an RTP stream before a frame that needs none of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Superseded {
    /// The stream's source (RFC 3550 section 5.1).
    pub ssrc: u32,
    /// The RTP timestamp of that frame, which may wrap.
    pub timestamp: u32,
}

impl Superseded {
    fn covers(self, ssrc: u32, timestamp: u32) -> bool {
        let is_older = (timestamp.wrapping_sub(self.timestamp) as i32) < 0;
        ssrc == self.ssrc && is_older
    }

    pub(super) fn covers_packet(self, packet: &[u8]) -> bool {
        rtp_of(packet).is_some_and(|header| self.covers(header.ssrc, header.timestamp))
    }
}

fn rtp_of(packet: &[u8]) -> Option<RtpHeader> {
    RtpHeader::of(&InnerPacket::parse(packet).ok()?)
}

#[derive(Debug, Default)]
pub(super) struct RecentlySuperseded {
    words: VecDeque<(Instant, Superseded)>,
}

impl RecentlySuperseded {
    pub(super) fn note(&mut self, now: Instant, superseded: Superseded) {
        self.words.retain(|(_, known)| known.ssrc != superseded.ssrc);
        if self.words.len() >= WORDS_MAX {
            self.words.pop_front();
        }
        self.words.push_back((now, superseded));
    }

    pub(super) fn covers(&mut self, now: Instant, packet: &[u8]) -> bool {
        while self.words.front().is_some_and(|(since, _)| now.since(*since) >= LASTS) {
            self.words.pop_front();
        }
        if self.words.is_empty() {
            return false;
        }
        let covers = |RtpHeader { ssrc, timestamp, .. }: RtpHeader| {
            self.words.iter().any(|(_, superseded)| superseded.covers(ssrc, timestamp))
        };
        rtp_of(packet).is_some_and(covers)
    }
}

/// How long a notice covers packets that come in; a wrong one does no more harm.
const LASTS: Duration = Duration::from_millis(100);
const WORDS_MAX: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn older_is_by_the_wrapping_clock_of_one_stream() {
        let superseded = Superseded { ssrc: 7, timestamp: 100 };
        for (ssrc, timestamp, expected) in [
            (7, 99, true),
            (7, 100, false),
            (7, 101, false),
            (7, 0, true),
            (7, u32::MAX, true),
            (7, 100 + (1 << 30), false),
            (8, 99, false),
        ] {
            assert_eq!(superseded.covers(ssrc, timestamp), expected, "{ssrc}, {timestamp}");
        }
    }

    #[test]
    fn memory_is_bounded_and_the_newest_word_of_a_stream_counts() {
        let mut words = RecentlySuperseded::default();
        for ssrc in 0..1_000 {
            words.note(Instant::ZERO, Superseded { ssrc, timestamp: 1 });
        }
        assert_eq!(words.words.len(), WORDS_MAX);
        words.note(Instant::ZERO, Superseded { ssrc: 999, timestamp: 2 });
        assert_eq!(
            words.words.back(),
            Some(&(Instant::ZERO, Superseded { ssrc: 999, timestamp: 2 }))
        );
        assert_eq!(words.words.len(), WORDS_MAX);
    }
}
