//! What a viewer saw.

use std::time::Duration;

/// What a viewer saw, and what the player waited for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// From the request of each chunk to its last byte.
    pub requests: Vec<Duration>,
    /// Requests without an answer at the end; their time until then counts.
    pub unanswered: u64,
    /// From the order to play each video to its first frame.
    pub first_frames: Vec<Duration>,
    /// Videos that the viewer gave up before the first frame; the time until then counts.
    pub never_began: u64,
    /// The play-time left, ten times a second once a video has begun.
    pub levels: Vec<Duration>,
    /// Total time of stalls after the picture had begun to move.
    pub stalled: Duration,
    /// Number of stalls.
    pub stalls: u64,
    /// Total time that the picture moved.
    pub played: Duration,
}

/// What was sent to the vehicle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Bytes of datagrams sent for the first time.
    pub source: u64,
    /// Number of these datagrams.
    pub datagrams: u64,
    /// Bytes of these that streams had sent before.
    pub again: u64,
    /// Bytes of datagrams sent again, or coded.
    pub further: u64,
    /// Packets declared lost.
    pub lost: u64,
    /// Datagrams sent again, or coded.
    pub further_datagrams: u64,
    /// Bytes given to the links.
    pub on_links: u64,
}
