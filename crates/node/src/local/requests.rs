//! Requests to a running instance and their answers: types shared by both sides.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use roadweave_tunnel::{EncoderTarget, Qoe, Strategy, StreamsConfig};
use serde::{Deserialize, Serialize};

use crate::modem::ModemFacts;

/// The parameters of `set_strategy`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetStrategy {
    /// The lane's name.
    pub lane: String,
    /// The strategy that the lane follows from its next packet on.
    pub strategy: Strategy,
}

/// The parameters of `tell_modem`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TellModem {
    /// The modem's interface.
    pub uplink: String,
    /// The modem's state.
    pub facts: ModemFacts,
}

/// The parameters of `set_qoe`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetQoe {
    /// The lane's name.
    pub lane: String,
    /// The buffer of the application that the lane feeds.
    pub qoe: Qoe,
}

/// The parameters of `supersede`: earlier video packets are obsolete since a frame that needs none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Supersede {
    /// The name of the video's lane.
    pub lane: String,
    /// The RTP source (SSRC) of the video.
    pub ssrc: u32,
    /// The RTP timestamp of that frame.
    pub timestamp: u32,
}

/// The answer to `supersede`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SupersedeAnswer {
    /// Number of packets dropped.
    pub packets: u64,
}

/// The parameters of `tell_player`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TellPlayer {
    /// The server's lane that carries the player's video.
    #[serde(default = "streams_lane")]
    pub lane: String,
    /// Distinguishes players behind this box.
    #[serde(default)]
    pub player: u64,
    /// The player's buffer.
    pub qoe: Qoe,
}

fn streams_lane() -> String {
    StreamsConfig::LANE.to_owned()
}

/// A subscription topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Topic {
    /// Targets of encoders: [`EncoderWord`].
    Encoder,
}

/// The parameters of `subscribe`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Subscribe {
    /// What to subscribe to.
    pub topic: Topic,
    /// Least time between two updates, milliseconds; intermediate updates are skipped.
    #[serde(default = "shortest_interval")]
    pub interval_ms: u64,
}

impl Subscribe {
    /// The valid intervals, milliseconds.
    pub const INTERVALS_MS: RangeInclusive<u64> = 10..=1000;
}

fn shortest_interval() -> u64 {
    *Subscribe::INTERVALS_MS.start()
}

/// An update of [`Topic::Encoder`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EncoderWord {
    /// Targets by lane; all zero without a session.
    pub lanes: BTreeMap<String, EncoderTarget>,
}

/// The parameters of `begin_speedtest`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BeginSpeedtest {
    /// Uplinks to measure; empty for all.
    #[serde(default)]
    pub uplinks: Vec<String>,
    /// Duration of each direction of each uplink, milliseconds; at most 10,000.
    pub duration_ms: u64,
    /// Limit of the bytes that the whole test may use.
    pub bytes_max: u64,
    /// Whether metered uplinks are measured though they are not named.
    #[serde(default)]
    pub metered: bool,
}

/// The parameters of `drain`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Drain {
    /// Period in which clients are asked to leave, milliseconds; at most a minute. Only the first
    /// request sets it.
    pub over_ms: u64,
}

/// The answer to `drain`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainAnswer {
    /// Number of remaining sessions.
    pub sessions: u64,
}

/// The answer to a successful `reload`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReloadAnswer {
    /// Changed fields that take effect only at the next start.
    pub ignored: Vec<String>,
    /// Changed fields that could not be applied, with the reason.
    pub refused: Vec<(String, String)>,
}

/// The answer to a successful change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum SetAnswer {
    /// The change was made.
    Done(bool),
    /// The change was made by a client, perhaps with a remark.
    Notice {
        /// A remark for the user.
        notice: Option<String>,
    },
}
