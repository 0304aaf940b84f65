//! How fast packets follow one another.

use serde::{Deserialize, Serialize};

/// What holds back a path's packets, besides its congestion window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pacing {
    /// A window may leave in half a round trip: for a stream that leaves room on average. Its
    /// frames are bursts, and congestion control knows no more of the path than the stream showed.
    #[default]
    Window,
    /// The rate of the congestion control, which keeps the queue of a full path short.
    Rate,
    /// Strictly the rate and window of the congestion control, however little it knows of the path:
    /// for comparison with published results.
    Controller,
}

impl Pacing {
    /// All ways of pacing.
    pub const ALL: [Self; 3] = [Self::Window, Self::Rate, Self::Controller];
}
