//! The settings of a session, and which of them may change.

use std::mem::discriminant;

use ipnet::IpNet;

use crate::lane::{LANES_MAX, LaneConfig, NamesUplink};

/// The default limit of a session's memory, bytes: both directions at 190 Mbit/s, the rate for
/// which encoders and decoders are made.
pub const MEMORY_MAX: usize = 64 << 20;

/// The settings of a session.
#[derive(Clone, Debug)]
pub struct SessionConfig {
    /// The sending lanes, 1 to [`LANES_MAX`]; packets without a matching rule go to the last.
    pub lanes: Vec<LaneConfig>,
    /// Source addresses that the peer may use; `None` for all.
    pub peer_sources: Option<Vec<IpNet>>,
    /// The lane for frames of streams, if both ends support them; it carries nothing else.
    pub streams: Option<LaneConfig>,
    /// Memory limit of all lanes in both directions, bytes; the oldest data is dropped beyond it.
    pub memory_max: usize,
    /// Seeds the generator of coefficient seeds.
    pub seed: u64,
}

/// Why a session cannot be made.
pub type SessionError = SetError;

/// Why lanes cannot be made or changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SetError {
    /// There is no such lane.
    #[error("there is no lane \"{lane}\"; there are: {known}")]
    Lane {
        /// The name that was given.
        lane: String,
        /// The existing names.
        known: String,
    },
    /// No lane, or more than [`LANES_MAX`].
    #[error("a session has 1 to {LANES_MAX} lanes, not {0}")]
    Lanes(usize),
    /// The strategy cannot be used here.
    #[error(transparent)]
    Strategy(#[from] NamesUplink),
}

pub(super) fn needs_flows(lanes: &[LaneConfig]) -> bool {
    lanes.iter().any(|lane| lane.rtp_frames || lane.rule.classes.is_some())
}

pub(crate) fn find_lane(lanes: &[LaneConfig], name: &str) -> Result<usize, SetError> {
    lanes.iter().position(|lane| lane.name == name).ok_or_else(|| {
        let known: Vec<&str> = lanes.iter().map(|lane| lane.name.as_str()).collect();
        SetError::Lane { lane: name.to_owned(), known: known.join(", ") }
    })
}

/// Whether `new` lanes can replace `old` ones: the peer knows numbers and kinds of order.
pub(super) fn are_alike(old: &[LaneConfig], new: &[LaneConfig]) -> bool {
    let marks = |lane: &LaneConfig| (lane.name.clone(), discriminant(&lane.order));
    old.iter().map(marks).eq(new.iter().map(marks))
}
