//! Lanes: classes of inner traffic and their treatment.

use std::ops::RangeInclusive;

use ipnet::IpNet;
use roadweave_proto::wire::protocol;
use roadweave_proto::{Order, Pacing};
use roadweave_tunnel::{FlowClass, LANES_MAX, LaneConfig, LaneRule, Strategy, default_lanes};
use serde::{Deserialize, Serialize};

use crate::Fault;
use crate::strategy::StrategyName;
use crate::values::{Within, networks, validate_networks};

/// A class of inner traffic.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LaneFields {
    /// A lane's name in statistics.
    pub name: String,
    /// A name of [the list](configuration.md#strategies).
    pub strategy: StrategyName,
    /// The packet delay that the applications need, more than half the round trip; a packet counts
    /// as lost by the probe timeout, or sooner if its repair would miss the deadline.
    pub deadline_ms: Within<1, 60_000>,
    /// The age at which a packet is no longer sent, repaired or delivered, see
    /// configuration.md#packets-that-expire. Default: by strategy.
    pub expire_after_ms: Option<Within<1, 10_000>>,
    /// The most bytes that wait for a free window.
    pub queue_max_bytes: Within<10_000, 1_000_000_000>,
    /// The order of delivery, see configuration.md#the-order-of-packets.
    pub ordering: Ordering,
    /// The longest that a packet waits for earlier ones, or with `even` for its time.
    pub max_buffer_ms: Within<1, 10_000>,
    /// With `frames`, the time to decode a frame, less than `deadline_ms`.
    pub decode_ms: Within<0, 10_000>,
    /// Lanes with a smaller number are sent first, equal ones take turns.
    pub rank: Within<0, 7>,
    /// What limits sending, see configuration.md#how-a-lane-is-paced.
    pub pacing: Pacing,
    /// Whether RTP timestamps and marker bits delimit video frames: they end encode ranges, and
    /// under overload `xnc` and `lola` drop whole frames.
    pub rtp_frames: bool,
    /// Whether a slow path carries only what faster ones would not deliver earlier, for packets
    /// that keep their order; for `xnc`.
    pub patient: bool,
    /// Coded packets sent before a loss is known, percent of the lane's bytes; for `xnc`, see
    /// configuration.md#insurance.
    pub insurance_percent: Within<0, 100>,
    /// The packets it takes; without conditions, all that no earlier lane takes.
    #[serde(rename = "match")]
    pub rule: MatchFields,
}

impl Default for LaneFields {
    fn default() -> Self {
        let lane = LaneConfig::new("default", Strategy::xnc());
        Self {
            name: lane.name,
            strategy: lane.strategy.into(),
            deadline_ms: Within::of(lane.deadline.as_millis() as i64),
            expire_after_ms: None,
            queue_max_bytes: Within::of(lane.queue_bytes_max as i64),
            ordering: Ordering::Pass,
            max_buffer_ms: Within::of(Order::DEFAULT_BUFFER.as_millis() as i64),
            decode_ms: Within::of(Order::DEFAULT_DECODE.as_millis() as i64),
            rank: Within::of(lane.rank as i64),
            pacing: lane.pacing,
            rtp_frames: lane.rtp_frames,
            patient: lane.patient,
            insurance_percent: Within::of(lane.insurance_percent.into()),
            rule: MatchFields::default(),
        }
    }
}

/// The order that a lane guarantees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ordering {
    /// None: packets leave as they come.
    #[default]
    Pass,
    /// All packets in order; late ones are discarded.
    Reorder,
    /// Each flow in order, as long as waiting pays.
    ReorderAdaptive,
    /// Each video's frames complete and in order, until the next one is due.
    Frames,
    /// Each packet with the same delay after it was sent.
    Even,
}

/// The conditions of a lane.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MatchFields {
    /// Kinds of flows, see configuration.md#without-lanes; empty: all.
    pub classes: Vec<FlowClass>,
    /// Transport protocols; empty: all.
    pub protocols: Vec<Protocol>,
    /// Differentiated services code points; empty: all.
    pub dscp: Vec<Within<0, 63>>,
    /// Source addresses or prefixes; empty: all.
    #[serde(deserialize_with = "networks")]
    pub source: Vec<IpNet>,
    /// Destination addresses or prefixes; empty: all.
    #[serde(deserialize_with = "networks")]
    pub destination: Vec<IpNet>,
    /// A port or `[first, last]`, source or destination. Default: any.
    pub ports: Option<Ports>,
    /// The same, source only. Default: any.
    pub source_ports: Option<Ports>,
    /// The same, destination only. Default: any.
    pub destination_ports: Option<Ports>,
}

/// Ports of TCP and UDP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "write a port, or [first, last]; ports go from 0 to 65535")]
pub enum Ports {
    /// One port.
    One(u16),
    /// The first and the last port.
    Range([u16; 2]),
}

impl Ports {
    pub(crate) fn range(self) -> RangeInclusive<u16> {
        match self {
            Self::One(port) => port..=port,
            Self::Range([first, last]) => first..=last,
        }
    }
}

/// A transport protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// ICMP, of IPv4 and IPv6.
    Icmp,
}

impl LaneFields {
    fn order(&self) -> Order {
        let max_buffer = self.max_buffer_ms.millis();
        match self.ordering {
            Ordering::Pass => Order::Pass,
            Ordering::Reorder => Order::Reorder { max_buffer },
            Ordering::ReorderAdaptive => Order::Adaptive { max_buffer },
            Ordering::Even => Order::Even { max_buffer },
            Ordering::Frames => Order::Frames {
                deadline: self.deadline_ms.millis(),
                decode: self.decode_ms.millis(),
                max_buffer,
            },
        }
    }

    /// Converts it.
    pub fn to_config(&self) -> LaneConfig {
        let numbers = |protocol: &Protocol| match protocol {
            Protocol::Tcp => vec![protocol::TCP],
            Protocol::Udp => vec![protocol::UDP],
            Protocol::Icmp => vec![protocol::ICMP, protocol::ICMPV6],
        };
        fn listed<V>(list: Vec<V>) -> Option<Vec<V>> {
            (!list.is_empty()).then_some(list)
        }
        LaneConfig {
            name: self.name.clone(),
            rule: LaneRule {
                classes: listed(self.rule.classes.clone()),
                protocols: listed(self.rule.protocols.iter().flat_map(numbers).collect()),
                dscp: listed(self.rule.dscp.iter().map(|code| code.get() as u8).collect()),
                source: listed(self.rule.source.clone()),
                destination: listed(self.rule.destination.clone()),
                ports: self.rule.ports.map(Ports::range),
                source_ports: self.rule.source_ports.map(Ports::range),
                destination_ports: self.rule.destination_ports.map(Ports::range),
            },
            rank: self.rank.get() as u8,
            pacing: self.pacing,
            order: self.order(),
            strategy: self.strategy.get().clone(),
            deadline: self.deadline_ms.millis(),
            expire_after: self.expire_after_ms.map(Within::millis),
            queue_bytes_max: self.queue_max_bytes.get() as usize,
            rtp_frames: self.rtp_frames,
            patient: self.patient || self.strategy.patient,
            insurance_percent: match self.insurance_percent.get() {
                0 => self.strategy.insurance_percent,
                percent => percent as u8,
            },
        }
    }
}

/// The lanes of a file, or [`default_lanes`] if it has none.
pub fn lane_configs(lanes: &[LaneFields]) -> Vec<LaneConfig> {
    match lanes {
        [] => default_lanes(),
        lanes => lanes.iter().map(LaneFields::to_config).collect(),
    }
}

/// The names of lanes in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneNames {
    /// The name of the list of tables.
    pub table: &'static str,
    /// The prefix of a lane's conditions: `match.`, or none.
    pub rule: &'static str,
}

impl LaneNames {
    /// In configuration files.
    pub const PRODUCT: Self = Self { table: "lanes", rule: "match." };
    /// In scenarios.
    pub const SCENARIO: Self = Self { table: "lane", rule: "" };
}

/// Validates what the types of single lanes cannot.
pub fn validate_lanes(names: LaneNames, lanes: &[LaneFields]) -> Result<(), Fault> {
    let LaneNames { table, rule: prefix } = names;
    if lanes.len() > LANES_MAX {
        let message = format!("{} lanes are configured, {LANES_MAX} are possible", lanes.len());
        return Err(Fault::new(format!("{table}.{LANES_MAX}"), message));
    }
    for (position, lane) in lanes.iter().enumerate() {
        let fault = |field: &str, message: String| {
            Err(Fault::new(format!("{table}.{position}.{field}"), message))
        };
        let name = &lane.name;
        if lanes[..position].iter().any(|other| other.name == *name) {
            return fault(
                "name",
                format!("two lanes are called \"{name}\"; give each its own name"),
            );
        }
        let (deadline, decode) = (lane.deadline_ms.get(), lane.decode_ms.get());
        if lane.ordering == Ordering::Frames && decode >= deadline {
            let message = format!(
                "lane \"{name}\": decode_ms = {decode} leaves nothing of deadline_ms = {deadline}, \
                 so that no frame would be waited for; write less"
            );
            return fault("decode_ms", message);
        }
        let of_xnc =
            [("insurance_percent", lane.insurance_percent.get() > 0), ("patient", lane.patient)];
        let strategy = lane.strategy.get();
        if let Some((field, _)) = of_xnc.iter().find(|(_, is_set)| *is_set && !strategy.codes()) {
            let message = format!(
                "lane \"{name}\": strategy \"{strategy}\" has no {field}; leave {field} out, or \
                 take \"xnc\""
            );
            return fault(field, message);
        }
        let rule = &lane.rule;
        for (field, ports) in [
            ("ports", rule.ports),
            ("source_ports", rule.source_ports),
            ("destination_ports", rule.destination_ports),
        ] {
            let field = format!("{prefix}{field}");
            if let Some(Ports::Range([first, last])) = ports
                && first > last
            {
                let message = format!(
                    "lane \"{name}\": {field} = [{first}, {last}] is empty; write the lower port first"
                );
                return fault(&field, message);
            }
        }
        for (field, networks) in [("source", &rule.source), ("destination", &rule.destination)] {
            validate_networks(&format!("{table}.{position}.{prefix}{field}"), networks)?;
        }
    }
    Ok(())
}

pub(crate) fn validate_served_lanes(lanes: &[LaneFields]) -> Result<(), Fault> {
    validate_lanes(LaneNames::PRODUCT, lanes)?;
    validate_deadlines(lanes)?;
    for (position, lane) in lanes.iter().enumerate() {
        if lane.strategy.get().uplink().is_some() {
            let message = format!(
                "lane \"{}\": strategy = \"{}\" is for clients, since a server has no uplinks; \
                 write \"xnc\" or \"minrtt\"",
                lane.name,
                lane.strategy.get()
            );
            return Err(Fault::new(format!("lanes.{position}.strategy"), message));
        }
    }
    Ok(())
}

/// Validates that late packets can still be repaired: deadlines are within the expiry.
pub fn validate_deadlines(lanes: &[LaneFields]) -> Result<(), Fault> {
    for (position, lane) in lanes.iter().enumerate() {
        let expiry_ms = lane.to_config().keeps_for().as_millis();
        if i128::from(lane.deadline_ms.get()) > expiry_ms as i128 {
            let message = format!(
                "lane \"{}\": deadline_ms = {} is above expire_after_ms = {expiry_ms}, so that nothing \
                 would be repaired in time; write a deadline of at most that, or a longer expiry",
                lane.name,
                lane.deadline_ms.get()
            );
            return Err(Fault::new(format!("lanes.{position}.deadline_ms"), message));
        }
    }
    Ok(())
}
