//! What a viewer saw.

use std::time::Duration;

/// Results of a viewer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Viewing {
    /// Time from the request of each chunk to its last byte, or to the end if none came.
    pub requests: Vec<Duration>,
    /// Time from the request of each video to its first frame, or until it was left without one.
    pub first_frames: Vec<Duration>,
    /// Samples of the play-time left, ten times a second once a video has begun.
    pub levels: Vec<Duration>,
    /// Total time of stalls after the first playback.
    pub stalled: Duration,
    pub played: Duration,
}

/// Traffic to the vehicle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerTraffic {
    /// Bytes of datagrams sent for the first time.
    pub source: u64,
    /// Number of these datagrams.
    pub datagrams: u64,
    /// Bytes of these datagrams that streams had sent before.
    pub again: u64,
    /// Bytes of retransmitted or coded datagrams.
    pub further: u64,
    pub lost: u64,
    /// Retransmitted or coded datagrams.
    pub further_datagrams: u64,
}

impl ServerTraffic {
    /// The difference to `before`; counters of replaced sessions are lost.
    pub(super) fn since(&self, before: &Self) -> Self {
        Self {
            source: self.source.saturating_sub(before.source),
            datagrams: self.datagrams.saturating_sub(before.datagrams),
            again: self.again.saturating_sub(before.again),
            further: self.further.saturating_sub(before.further),
            lost: self.lost.saturating_sub(before.lost),
            further_datagrams: self.further_datagrams.saturating_sub(before.further_datagrams),
        }
    }
}
