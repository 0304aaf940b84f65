//! Lanes: classes of inner traffic, each with its own packet IDs, strategy and deadline.
//!
//! ```text
//! inner packet ─► first lane whose rule matches ─► LaneSender ~~~ network ~~~ LaneReceiver
//! ```

mod copies;
mod eras;
mod fragments;
mod receiver;
mod reorder;
mod sender;
mod strategy;
mod succession;

use std::ops::RangeInclusive;
use std::time::Duration;

use roadweave_types::{LaneId, Order};
use roadweave_wire::InnerPacket;
use serde::{Deserialize, Serialize};

pub use receiver::ReceiveStats;
pub(crate) use receiver::{Delivery, LaneReceiver};
pub(crate) use reorder::HELD_MAX;
pub use reorder::OrderStats;
pub use sender::SendStats;
pub(crate) use sender::{LaneSender, TokenKind};
pub use strategy::{Strategy, UnknownStrategy};

/// The most lanes of a session, in each direction.
pub const LANES_MAX: usize = 8;

/// How one lane treats its packets.
#[derive(Clone, Debug, PartialEq)]
pub struct LaneConfig {
    /// Its name in statistics.
    pub name: String,
    /// Which packets it takes.
    pub rule: LaneRule,
    /// Scheduler and recovery.
    pub strategy: Strategy,
    /// The packet delay that its applications want; it sets the pace of loss detection.
    pub deadline: Duration,
    /// The age after which a packet is neither sent nor repaired (t_expire).
    pub expire_after: Duration,
    /// The most bytes that wait for a free window.
    pub queue_bytes_max: usize,
    /// What is promised about the order of its packets.
    pub order: Order,
    /// Whether RTP's marker bit ends an encode range (CellFusion section 4.4.2).
    pub rtp_frames: bool,
}

impl LaneConfig {
    /// The lane called `name` that takes every packet, with `strategy` and default settings.
    pub fn new(name: impl Into<String>, strategy: Strategy) -> Self {
        Self {
            name: name.into(),
            rule: LaneRule::default(),
            strategy,
            deadline: Duration::from_millis(100),
            expire_after: Duration::from_millis(700),
            queue_bytes_max: 4 << 20,
            order: Order::Pass,
            rtp_frames: true,
        }
    }
}

/// Which packets a lane takes: all conditions must hold; an absent one always does.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LaneRule {
    /// Protocol numbers, such as 17 for UDP.
    pub protocols: Option<Vec<u8>>,
    /// Differentiated services code points, 0..64.
    pub dscp: Option<Vec<u8>>,
    /// Source or destination port of TCP and UDP.
    pub ports: Option<RangeInclusive<u16>>,
}

impl LaneRule {
    /// Whether `packet` belongs here.
    pub fn matches(&self, packet: &InnerPacket<'_>) -> bool {
        let listed = |list: &Option<Vec<u8>>, value| {
            list.as_ref().is_none_or(|values| values.contains(&value))
        };
        let port_matches = self.ports.as_ref().is_none_or(|range| {
            packet.ports().is_some_and(|(source, destination)| {
                range.contains(&source) || range.contains(&destination)
            })
        });
        listed(&self.protocols, packet.protocol) && listed(&self.dscp, packet.dscp) && port_matches
    }
}

/// The lane of `packet`: the first whose rule matches, otherwise the last.
pub(crate) fn classify(lanes: &[LaneConfig], packet: &InnerPacket<'_>) -> LaneId {
    let position = lanes.iter().position(|lane| lane.rule.matches(packet));
    LaneId(position.unwrap_or(lanes.len().saturating_sub(1)) as u8)
}
