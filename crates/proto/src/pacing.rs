//! How fast packets follow one another.

use serde::{Deserialize, Serialize};

/// What holds back a path's packets, beside its congestion window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pacing {
    /// A window may leave in half a round trip. For a stream that leaves room on average: its
    /// frames come as bursts, and a congestion control knows no more of the path than the stream
    /// has shown it.
    #[default]
    Window,
    /// The rate of the congestion control, which keeps the queue of a path short that is used to
    /// the full.
    Rate,
    /// The rate of the congestion control, and nothing beyond its window either, however little it
    /// may have seen of the path. For comparison with what others publish.
    Controller,
}

impl Pacing {
    /// All ways of pacing.
    pub const ALL: [Self; 3] = [Self::Window, Self::Rate, Self::Controller];
}
