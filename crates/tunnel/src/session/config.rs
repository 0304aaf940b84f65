//! How a session treats its packets, and what of it may change while it lives.

use std::mem::discriminant;

use ipnet::IpNet;

use crate::lane::{LANES_MAX, LaneConfig, NamesUplink, Strategy};

/// What a session holds at most unless it is told otherwise, bytes: both directions at 190 Mbit/s,
/// the rate for which encoders and decoders are made.
pub const MEMORY_MAX: usize = 64 << 20;

/// How a session treats its packets.
#[derive(Clone, Debug)]
pub struct SessionConfig {
    /// The lanes of the sending direction, at least one and at most [`LANES_MAX`]; a packet goes to
    /// the first whose rule matches, otherwise to the last.
    pub lanes: Vec<LaneConfig>,
    /// Source addresses that the peer may use; `None` for all.
    pub peer_sources: Option<Vec<IpNet>>,
    /// How the frames of streams are sent, if both ends carry such: a lane behind the others, which
    /// takes nothing else.
    pub streams: Option<LaneConfig>,
    /// The most bytes that it may hold, in all lanes and both directions; the oldest of it goes
    /// when that is used up.
    pub memory_max: usize,
    /// The seed of the coefficients' seeds.
    pub seed: u64,
}

impl SessionConfig {
    /// One lane for everything, with `strategy`.
    pub fn new(strategy: Strategy, seed: u64) -> Self {
        let lanes = vec![LaneConfig::new("default", strategy)];
        Self { lanes, peer_sources: None, streams: None, memory_max: MEMORY_MAX, seed }
    }
}

/// Why no session can be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SessionError {
    /// No lane, or more than [`LANES_MAX`].
    #[error("a session has 1 to {LANES_MAX} lanes, not {0}")]
    Lanes(usize),
    /// The strategy of a lane cannot be used here.
    #[error(transparent)]
    Strategy(#[from] NamesUplink),
}

/// Why a lane was not changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SetError {
    /// There is no such lane.
    #[error("there is no lane \"{lane}\"; there are: {known}")]
    Lane {
        /// The name that was given.
        lane: String,
        /// The names that there are.
        known: String,
    },
    /// No lane, or more than [`LANES_MAX`].
    #[error("a session has 1 to {LANES_MAX} lanes, not {0}")]
    Lanes(usize),
    /// The strategy cannot be used here.
    #[error(transparent)]
    Strategy(#[from] NamesUplink),
}

/// Whether a lane asks what the flows are.
pub(super) fn needs_flows(lanes: &[LaneConfig]) -> bool {
    lanes.iter().any(|lane| lane.rtp_frames || lane.rule.classes.is_some())
}

/// The place of the lane called `name`.
pub(crate) fn find_lane(lanes: &[LaneConfig], name: &str) -> Result<usize, SetError> {
    lanes.iter().position(|lane| lane.name == name).ok_or_else(|| {
        let known: Vec<&str> = lanes.iter().map(|lane| lane.name.as_str()).collect();
        SetError::Lane { lane: name.to_owned(), known: known.join(", ") }
    })
}

/// Whether `new` lanes can take the place of `old` ones while packets are under way: the peer knows
/// them by their numbers, and how they keep their order from their first packet on.
pub(super) fn are_alike(old: &[LaneConfig], new: &[LaneConfig]) -> bool {
    let marks = |lane: &LaneConfig| (lane.name.clone(), discriminant(&lane.order));
    old.iter().map(marks).eq(new.iter().map(marks))
}
