//! What a viewer saw.

use std::time::Duration;

/// What a viewer saw, and what the player waited for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// From the request of each chunk to its last byte.
    pub requests: Vec<Duration>,
    /// Requests that were not answered when the observation ended; their time until then counts.
    pub unanswered: u64,
    /// From the order to play each video to its first frame.
    pub first_frames: Vec<Duration>,
    /// Videos that the viewer gave up before the first frame; the time until then counts.
    pub never_began: u64,
    /// The play-time left, ten times a second once a video has begun.
    pub levels: Vec<Duration>,
    /// How long the picture stood still for want of data after it had begun to move.
    pub stalled: Duration,
    /// How often.
    pub stalls: u64,
    /// How long the picture moved.
    pub played: Duration,
}

/// What was sent to the vehicle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Bytes of datagrams that left for the first time.
    pub source: u64,
    /// Those datagrams.
    pub datagrams: u64,
    /// Of those bytes: of streams, that had been sent before.
    pub again: u64,
    /// Bytes of datagrams that left once more, or were made of others.
    pub further: u64,
    /// Packets that were taken for lost.
    pub lost: u64,
    /// Datagrams that left once more, or were made of others.
    pub further_datagrams: u64,
    /// Bytes that were given to the links.
    pub on_links: u64,
}
