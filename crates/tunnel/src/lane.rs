//! Lanes: classes of inner traffic, each with its own packet IDs, strategy and deadline.
//!
//! ```text
//! inner packet ─► first lane whose rule matches ─► LaneSender ~~~ network ~~~ LaneReceiver
//! ```

mod ages;
mod arrival_times;
mod copies;
mod cuts;
mod datagram;
mod defaults;
mod encoder;
mod flow;
mod flow_predecessors;
mod fragments;
mod memory;
mod offers;
mod receiver;
mod recovery_history;
mod reorder;
mod sender;
mod sent_flows;
mod shed;
mod strategy;
mod superseded;
mod unfinished;

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use ipnet::IpNet;
use roadweave_proto::wire::InnerPacket;
use roadweave_proto::{LaneId, Order, Pacing};
use roadweave_schedule::SchedulerConfig;
use serde::{Deserialize, Serialize};

pub(crate) use cuts::Reassembly;
pub use datagram::{DatagramContent, LaneDatagram};
pub(crate) use datagram::{DatagramToken, TokenKind};
pub use defaults::default_lanes;
pub(crate) use defaults::patient;
pub use encoder::EncoderTarget;
pub use flow::FlowClass;
pub(crate) use flow::FlowTable;
pub use memory::MemoryStats;
pub use receiver::ReceiveStats;
pub(crate) use receiver::{Arrival, Delivery, LaneReceiver, Opening};
pub(crate) use reorder::HELD_MAX;
pub use reorder::OrderStats;
pub use sender::SendStats;
#[cfg(test)]
pub(crate) use sender::tests::TwoPaths;
pub(crate) use sender::{HeldBack, LaneSender};
pub use strategy::{
    Keeps, MakeRecovery, MakeScheduler, NamesUplink, STRATEGIES, Strategy, StrategyEntry,
    UnknownStrategy,
};
pub use superseded::Superseded;
pub(crate) use unfinished::Unfinished;

/// The most lanes of a session, in each direction.
pub const LANES_MAX: usize = 8;

/// How one lane treats its packets.
#[derive(Clone, Debug, PartialEq)]
pub struct LaneConfig {
    /// Its name in statistics.
    pub name: String,
    /// Which packets the lane takes.
    pub rule: LaneRule,
    /// Lanes with a smaller rank send first; lanes of one rank take turns.
    pub rank: u8,
    /// Scheduler and recovery.
    pub strategy: Strategy,
    /// The packet delay that its applications want; losses are detected early enough for a repair.
    pub deadline: Duration,
    /// The age after which a packet is neither sent, repaired nor delivered (t_expire), at most
    /// [`Promise::AGE_MAX`](roadweave_proto::Promise::AGE_MAX). `None`: the strategy's own age,
    /// which the receiving side does not enforce.
    pub expire_after: Option<Duration>,
    /// The most bytes that wait for a free window.
    pub queue_bytes_max: usize,
    /// What is promised about the order of its packets.
    pub order: Order,
    /// How its packets are paced.
    pub pacing: Pacing,
    /// Whether RTP's marker bit ends an encode range (CellFusion section 4.4.2).
    pub rtp_frames: bool,
    /// Whether a slow path carries only what faster ones would not carry meanwhile. For `xnc`.
    pub patient: bool,
    /// Coded packets that are sent before a loss is known, percent of the lane's bytes. For `xnc`.
    pub insurance_percent: u8,
}

impl LaneConfig {
    /// The lane called `name` that takes every packet, with `strategy` and default settings.
    pub fn new(name: impl Into<String>, strategy: Strategy) -> Self {
        Self {
            name: name.into(),
            rule: LaneRule::default(),
            rank: 0,
            strategy,
            deadline: Duration::from_millis(100),
            expire_after: None,
            queue_bytes_max: 4 << 20,
            order: Order::Pass,
            pacing: Pacing::default(),
            rtp_frames: true,
            patient: false,
            insurance_percent: 0,
        }
    }

    pub(crate) fn for_scheduler(&self) -> SchedulerConfig {
        SchedulerConfig { deadline: self.deadline, patient: self.patient }
    }

    /// How long a packet may wait, and may be needed for a repair after it was sent.
    pub fn keeps_for(&self) -> Duration {
        self.strategy.keeps_for(self.deadline, self.expire_after)
    }
}

/// Which packets a lane takes: all conditions must hold; an absent one always does.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LaneRule {
    /// Kinds of flows.
    pub classes: Option<Vec<FlowClass>>,
    /// Protocol numbers, such as 17 for UDP.
    pub protocols: Option<Vec<u8>>,
    /// Differentiated services code points, 0..64.
    pub dscp: Option<Vec<u8>>,
    /// Networks that the packet comes from; any, if absent.
    pub source: Option<Vec<IpNet>>,
    /// Networks that the packet goes to; any, if absent.
    pub destination: Option<Vec<IpNet>>,
    /// Source or destination port of TCP and UDP.
    pub ports: Option<RangeInclusive<u16>>,
    /// Source port of TCP and UDP.
    pub source_ports: Option<RangeInclusive<u16>>,
    /// Destination port of TCP and UDP.
    pub destination_ports: Option<RangeInclusive<u16>>,
}

impl LaneRule {
    /// The rule that takes all flows of `class`.
    pub fn class(class: FlowClass) -> Self {
        Self { classes: Some(vec![class]), ..Self::default() }
    }

    /// Whether `packet`, of a flow of `class`, belongs here; an unknown class is in no list.
    pub fn matches(&self, packet: &InnerPacket<'_>, class: Option<FlowClass>) -> bool {
        let listed = |all: &Option<Vec<u8>>, it| all.as_ref().is_none_or(|all| all.contains(&it));
        let within =
            |all: &Option<Vec<IpNet>>, it| all.as_ref().is_none_or(|all| contains(all, it));
        let ports = packet.ports();
        let in_range = |range: &Option<RangeInclusive<u16>>, port: fn((u16, u16)) -> [u16; 2]| {
            range.as_ref().is_none_or(|range| {
                ports.is_some_and(|ports| port(ports).iter().any(|port| range.contains(port)))
            })
        };
        self.classes
            .as_ref()
            .is_none_or(|classes| class.is_some_and(|class| classes.contains(&class)))
            && listed(&self.protocols, packet.protocol)
            && listed(&self.dscp, packet.dscp)
            && within(&self.source, packet.source)
            && within(&self.destination, packet.destination)
            && in_range(&self.ports, |(source, destination)| [source, destination])
            && in_range(&self.source_ports, |(source, _)| [source; 2])
            && in_range(&self.destination_ports, |(_, destination)| [destination; 2])
    }
}

pub(crate) fn contains(networks: &[IpNet], address: IpAddr) -> bool {
    networks.iter().any(|network| network.contains(&address))
}

pub(crate) fn classify(
    lanes: &[LaneConfig],
    packet: &InnerPacket<'_>,
    class: Option<FlowClass>,
) -> LaneId {
    let position = lanes.iter().position(|lane| lane.rule.matches(packet, class));
    LaneId(position.unwrap_or(lanes.len().saturating_sub(1)) as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(source: [u8; 4], ports: [u8; 4]) -> Vec<u8> {
        let mut packet = vec![0x45, 0, 0, 24, 0, 0, 0, 0, 64, 6, 0, 0];
        packet.extend(source);
        packet.extend([198, 51, 100, 1]);
        packet.extend(ports);
        packet
    }

    #[test]
    fn all_conditions_of_a_rule_must_hold() {
        let bytes = tcp([10, 0, 0, 1], [0, 80, 0, 81]);
        let packet = InnerPacket::parse(&bytes).expect("well-formed");
        let networks = |network: &str| Some(vec![network.parse().expect("a network")]);
        let check = |rule: LaneRule, expected: bool| {
            let matched = rule.matches(&packet, Some(FlowClass::Tcp));
            assert_eq!(matched, expected, "{rule:?}");
        };
        check(LaneRule::default(), true);
        check(LaneRule { source: networks("10.0.0.0/8"), ..LaneRule::default() }, true);
        check(LaneRule { source: networks("fd00::/8"), ..LaneRule::default() }, false);
        check(LaneRule { destination: networks("10.0.0.0/8"), ..LaneRule::default() }, false);
        check(LaneRule { destination: networks("198.51.100.1/32"), ..LaneRule::default() }, true);
        for (port, either, source, destination) in
            [(80, true, true, false), (81, true, false, true), (82, false, false, false)]
        {
            let ports = Some(port..=port);
            check(LaneRule { ports: ports.clone(), ..LaneRule::default() }, either);
            check(LaneRule { source_ports: ports.clone(), ..LaneRule::default() }, source);
            check(LaneRule { destination_ports: ports, ..LaneRule::default() }, destination);
        }
        check(LaneRule::class(FlowClass::Tcp), true);
        check(LaneRule::class(FlowClass::Other), false);
        let both = LaneRule { source: networks("10.0.0.0/8"), ..LaneRule::class(FlowClass::Other) };
        check(both, false);
        assert!(!LaneRule::class(FlowClass::Tcp).matches(&packet, None));
    }
}
