//! The fields of control messages: encoding and checks.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use ipnet::IpNet;

use super::MAX_CONTROL_MESSAGE;
use super::error::ControlError;
use super::values::{PlayerReport, Reason, Role, TenantAnchor};
use crate::wire::stream::{StreamsEpoch, StreamsOffer};
use crate::{Order, Policy, Priority, Promise, Rate, peer_text};

pub(super) const MAX_NETWORKS: usize = 64;
/// Networks of a welcome beside its addresses and gateways; all fit one message.
pub const WELCOME_NETWORKS_MAX: usize = 32;
pub(super) const MAX_TEXT: usize = 256;

pub(super) const FIELD_NAME: u16 = 1;
pub(super) const FIELD_ADDRESS: u16 = 2;
pub(super) const FIELD_MTU: u16 = 3;
pub(super) const FIELD_GATEWAY: u16 = 4;
pub(crate) const FIELD_PATH: u16 = 5;
pub(super) const FIELD_LANE: u16 = 6;
pub(super) const FIELD_ORDER: u16 = 7;
pub(super) const FIELD_POLICY: u16 = 8;
pub(super) const FIELD_AGE: u16 = 9;
pub(super) const FIELD_ROLE: u16 = 10;
pub(super) const FIELD_REASON: u16 = 12;
pub(super) const FIELD_GRACE: u16 = 13;
pub(super) const FIELD_STREAMS: u16 = 21;
pub(super) const FIELD_PLAYER: u16 = 22;
pub(super) const FIELD_BUFFER: u16 = 23;
pub(super) const FIELD_STREAM_FRAMES: u16 = 24;
pub(super) const FIELD_RELAYS: u16 = 25;
pub(super) const FIELD_FRAMES: u16 = 26;
pub(super) const FIELD_EVEN: u16 = 27;
pub(super) const FIELD_UNINSURED: u16 = 28;
pub(super) const FIELD_RATE: u16 = 33;
pub(super) const FIELD_NETWORK: u16 = 34;

pub(super) const REDUNDANCY_ANY: u8 = 255;

pub(super) const ORDER_PASS: u8 = 0;
pub(super) const ORDER_REORDER: u8 = 1;
pub(super) const ORDER_ADAPTIVE: u8 = 2;

pub(super) const ROLE_JOIN: u8 = 0;
pub(super) const ROLE_STANDBY: u8 = 1;
pub(super) const ROLE_PROXY: u8 = 2;

pub(super) const REASON_OTHER: u8 = 0;
pub(super) const REASON_DRAIN: u8 = 1;
pub(super) const REASON_SUPERSEDED: u8 = 2;

/// Bits of the age field.
pub(super) const AGE_EXPIRES: u8 = 1;
pub(super) const AGE_CODED: u8 = 2;
pub(super) const AGE_ACKNOWLEDGE_ON_ALL: u8 = 4;

/// Bits of the field of stream frames: priorities are taken.
pub(super) const FRAMES_PRIORITY: u8 = 1;
pub(super) const FRAMES_EARLY: u8 = 2;

/// The longest name of a tenant, bytes.
pub const TENANT_MAX: usize = 64;

pub(crate) const FIELD_TENANT: u16 = 14;
pub(crate) const FIELD_ANCHOR: u16 = 15;

pub(crate) fn put_field(out: &mut BytesMut, kind: u16, value: &[u8]) {
    out.put_u16(kind);
    out.put_u16(value.len() as u16);
    out.put_slice(value);
}

pub(super) fn put_text(out: &mut BytesMut, kind: u16, text: &str) {
    put_field(out, kind, &text.as_bytes()[..text.floor_char_boundary(MAX_TEXT)]);
}

pub(super) fn put_network(out: &mut BytesMut, kind: u16, network: IpNet) {
    let mut value = match network.addr() {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    value.push(network.prefix_len());
    put_field(out, kind, &value);
}

pub(super) fn put_reason(out: &mut BytesMut, why: Reason) {
    match why {
        Reason::Other => {}
        Reason::Drain => put_field(out, FIELD_REASON, &[REASON_DRAIN]),
        Reason::Superseded => put_field(out, FIELD_REASON, &[REASON_SUPERSEDED]),
    }
}

pub(crate) fn put_streams(out: &mut BytesMut, streams: Option<StreamsOffer>) {
    let Some(StreamsOffer { epoch: StreamsEpoch(number), takes_priorities, takes_early }) = streams
    else {
        return;
    };
    put_field(out, FIELD_STREAMS, &number.to_be_bytes());
    let bit = |is_set: bool, bit: u8| if is_set { bit } else { 0 };
    let bits = bit(takes_priorities, FRAMES_PRIORITY) | bit(takes_early, FRAMES_EARLY);
    if bits != 0 {
        put_field(out, FIELD_STREAM_FRAMES, &[bits]);
    }
}

pub(super) fn put_player(out: &mut BytesMut, report: &PlayerReport) {
    let PlayerReport { lane, player, cached_bytes, cached_frames, bps, milli_fps } = report;
    put_text(out, FIELD_NAME, lane);
    put_field(out, FIELD_PLAYER, &player.to_be_bytes());
    let buffer = [cached_bytes, cached_frames, bps, milli_fps].map(|value| value.to_be_bytes());
    put_field(out, FIELD_BUFFER, buffer.as_flattened());
}

pub(super) fn put_order(out: &mut BytesMut, order: Order) {
    let kind = match order {
        Order::Pass => ORDER_PASS,
        Order::Reorder { .. } => ORDER_REORDER,
        Order::Adaptive { .. } => ORDER_ADAPTIVE,
        Order::Frames { deadline, decode, max_buffer } => {
            // A peer that does not know the field reads the order "pass".
            put_field(out, FIELD_ORDER, &[ORDER_PASS, 0, 0]);
            let times = [deadline, decode, max_buffer].map(order_millis);
            put_field(out, FIELD_FRAMES, times.as_flattened());
            return;
        }
        Order::Even { max_buffer } => {
            put_field(out, FIELD_ORDER, &[ORDER_PASS, 0, 0]);
            put_field(out, FIELD_EVEN, &order_millis(max_buffer));
            return;
        }
    };
    let [high, low] = order_millis(order.max_buffer());
    put_field(out, FIELD_ORDER, &[kind, high, low]);
}

fn order_millis(time: Duration) -> [u8; 2] {
    (time.min(Order::MAX_BUFFER).as_millis() as u16).to_be_bytes()
}

pub(super) fn put_age(out: &mut BytesMut, promise: &Promise) {
    // An age is never zero.
    let millis = promise.age_max.min(Promise::AGE_MAX).as_millis().max(1) as u16;
    let [high, low] = millis.to_be_bytes();
    let bit = |is_set, bit| if is_set { bit } else { 0 };
    let bits = bit(promise.expires, AGE_EXPIRES)
        | bit(promise.coded, AGE_CODED)
        | bit(promise.acknowledge_on_all, AGE_ACKNOWLEDGE_ON_ALL);
    put_field(out, FIELD_AGE, &[high, low, bits]);
}

pub(super) fn put_policy(out: &mut BytesMut, policy: &Policy) {
    let priority = match policy.priority {
        Priority::Primary => 0,
        Priority::Secondary => 1,
        Priority::Backup => 2,
    };
    let weight = policy.weight.clamp(1, Policy::WEIGHT_MAX);
    let redundancy = policy.redundancy_percent.map_or(REDUNDANCY_ANY, |percent| percent.min(100));
    put_field(out, FIELD_POLICY, &[priority, weight, redundancy]);
    if !policy.takes_insurance {
        put_field(out, FIELD_UNINSURED, &[]);
    }
    if let Some(rate) = policy.rate_max {
        put_field(out, FIELD_RATE, &rate.as_bps().to_be_bytes());
    }
}

pub(crate) fn put_tenant(out: &mut BytesMut, tenant: &str) {
    put_field(out, FIELD_TENANT, &tenant.as_bytes()[..tenant.floor_char_boundary(TENANT_MAX)]);
}

/// The name of a tenant. It is signed as it is, so one that logs would escape is refused.
pub(crate) fn tenant(fields: &Fields) -> Result<String, ControlError> {
    let bad = ControlError::BadField(FIELD_TENANT);
    let value = fields.one(FIELD_TENANT)?;
    let text = std::str::from_utf8(value).map_err(|_| bad.clone())?;
    let fits = (1..=TENANT_MAX).contains(&text.len()) && peer_text(text.as_bytes()) == text;
    if fits { Ok(text.to_owned()) } else { Err(bad) }
}

pub(crate) struct Fields(Vec<(u16, Bytes)>);

impl Fields {
    pub(crate) fn parse(mut bytes: Bytes) -> Result<(u8, Self), ControlError> {
        if bytes.len() > MAX_CONTROL_MESSAGE {
            return Err(ControlError::TooLong(bytes.len()));
        }
        if bytes.is_empty() {
            return Err(ControlError::Truncated);
        }
        let kind = bytes.get_u8();
        let mut fields = Vec::new();
        while !bytes.is_empty() {
            if bytes.len() < 4 {
                return Err(ControlError::Truncated);
            }
            let field = bytes.get_u16();
            let length = usize::from(bytes.get_u16());
            if bytes.len() < length {
                return Err(ControlError::Truncated);
            }
            fields.push((field, bytes.split_to(length)));
        }
        Ok((kind, Self(fields)))
    }

    pub(crate) fn all(&self, kind: u16) -> impl Iterator<Item = &Bytes> {
        self.0.iter().filter(move |(found, _)| *found == kind).map(|(_, value)| value)
    }

    pub(crate) fn one(&self, kind: u16) -> Result<&Bytes, ControlError> {
        self.all(kind).next().ok_or(ControlError::MissingField(kind))
    }

    pub(crate) fn array<const N: usize>(&self, kind: u16) -> Result<[u8; N], ControlError> {
        self.one(kind)?.as_ref().try_into().map_err(|_| ControlError::BadField(kind))
    }

    pub(super) fn optional<const N: usize>(
        &self,
        kind: u16,
    ) -> Result<Option<[u8; N]>, ControlError> {
        match self.all(kind).next() {
            Some(_) => self.array(kind).map(Some),
            None => Ok(None),
        }
    }

    pub(super) fn role(&self) -> Result<Role, ControlError> {
        match self.optional(FIELD_ROLE)? {
            None | Some([ROLE_JOIN]) => Ok(Role::Join),
            Some([ROLE_STANDBY]) => Ok(Role::Standby),
            Some([ROLE_PROXY]) => Ok(Role::Proxy),
            // A client that asks for an unknown role gets no session.
            Some(_) => Err(ControlError::BadField(FIELD_ROLE)),
        }
    }

    pub(super) fn reason(&self) -> Result<Reason, ControlError> {
        Ok(match self.optional(FIELD_REASON)?.unwrap_or([REASON_OTHER]) {
            [REASON_DRAIN] => Reason::Drain,
            [REASON_SUPERSEDED] => Reason::Superseded,
            _ => Reason::Other,
        })
    }

    pub(super) fn text(&self, kind: u16) -> Result<String, ControlError> {
        let value = self.one(kind)?;
        let text = std::str::from_utf8(value).map_err(|_| ControlError::BadField(kind))?;
        if text.len() > MAX_TEXT {
            return Err(ControlError::BadField(kind));
        }
        // Texts reach logs and terminals.
        Ok(peer_text(text.as_bytes()))
    }

    /// The sender's offer of streams; unknown bits are ignored.
    pub(crate) fn streams(&self) -> Result<Option<StreamsOffer>, ControlError> {
        let [bits] = self.optional(FIELD_STREAM_FRAMES)?.unwrap_or([0]);
        let takes_priorities = bits & FRAMES_PRIORITY != 0;
        let takes_early = bits & FRAMES_EARLY != 0;
        let epoch = self.optional(FIELD_STREAMS)?;
        let epoch = epoch.map(|value| StreamsEpoch(u64::from_be_bytes(value)));
        Ok(epoch.map(|epoch| StreamsOffer { epoch, takes_priorities, takes_early }))
    }

    pub(super) fn flag(&self, kind: u16) -> bool {
        self.all(kind).next().is_some()
    }

    pub(super) fn player(&self) -> Result<PlayerReport, ControlError> {
        let buffer: [u8; 32] = self.array(FIELD_BUFFER)?;
        let value = |at: usize| {
            let bytes = buffer[at * 8..].first_chunk().expect("there are four");
            u64::from_be_bytes(*bytes)
        };
        Ok(PlayerReport {
            lane: self.text(FIELD_NAME)?,
            player: u64::from_be_bytes(self.array(FIELD_PLAYER)?),
            cached_bytes: value(0),
            cached_frames: value(1),
            bps: value(2),
            milli_fps: value(3),
        })
    }

    pub(super) fn anchor(&self) -> Result<Option<TenantAnchor>, ControlError> {
        if self.all(FIELD_TENANT).next().is_none() {
            return Ok(None);
        }
        Ok(Some(TenantAnchor { tenant: tenant(self)?, key: self.array(FIELD_ANCHOR)? }))
    }

    pub(super) fn promise(&self) -> Result<Promise, ControlError> {
        let order = self.order()?;
        if self.all(FIELD_AGE).next().is_none() {
            return Ok(Promise { order, ..Promise::default() });
        }
        let [age @ .., flags] = self.array::<3>(FIELD_AGE)?;
        let age_max = Duration::from_millis(u16::from_be_bytes(age).into());
        // Bounds what a faulty peer can make this end keep.
        if age_max.is_zero() || age_max > Promise::AGE_MAX {
            return Err(ControlError::BadField(FIELD_AGE));
        }
        let is_set = |bit| flags & bit != 0;
        Ok(Promise {
            order,
            age_max,
            expires: is_set(AGE_EXPIRES),
            coded: is_set(AGE_CODED),
            acknowledge_on_all: is_set(AGE_ACKNOWLEDGE_ON_ALL),
        })
    }

    fn order(&self) -> Result<Order, ControlError> {
        let [kind, wait @ ..] = self.array::<3>(FIELD_ORDER)?;
        let max_buffer = Duration::from_millis(u16::from_be_bytes(wait).into());
        let possible = max_buffer <= Order::MAX_BUFFER;
        match kind {
            ORDER_PASS if max_buffer.is_zero() => Ok(self.newer_order()?.unwrap_or(Order::Pass)),
            ORDER_REORDER if possible => Ok(Order::Reorder { max_buffer }),
            ORDER_ADAPTIVE if possible => Ok(Order::Adaptive { max_buffer }),
            _ => Err(ControlError::BadField(FIELD_ORDER)),
        }
    }

    /// An order in its own field, beside a fallback for older peers.
    fn newer_order(&self) -> Result<Option<Order>, ControlError> {
        match self.optional::<2>(FIELD_EVEN)? {
            Some(wait) => {
                let max_buffer = Duration::from_millis(u16::from_be_bytes(wait).into());
                let possible = max_buffer <= Order::MAX_BUFFER;
                let order = possible.then_some(Order::Even { max_buffer });
                order.map(Some).ok_or(ControlError::BadField(FIELD_EVEN))
            }
            None => self.frames(),
        }
    }

    fn frames(&self) -> Result<Option<Order>, ControlError> {
        let Some(times) = self.optional::<6>(FIELD_FRAMES)? else { return Ok(None) };
        let millis = |at: usize| u16::from_be_bytes([times[at], times[at + 1]]);
        let [deadline, decode, max_buffer] =
            [0, 2, 4].map(|at| Duration::from_millis(millis(at).into()));
        if deadline.max(decode).max(max_buffer) > Order::MAX_BUFFER {
            return Err(ControlError::BadField(FIELD_FRAMES));
        }
        Ok(Some(Order::Frames { deadline, decode, max_buffer }))
    }

    pub(super) fn policy(&self) -> Result<Policy, ControlError> {
        let bad = ControlError::BadField(FIELD_POLICY);
        let [priority, weight, redundancy] = self.array::<3>(FIELD_POLICY)?;
        let priority = match priority {
            0 => Priority::Primary,
            1 => Priority::Secondary,
            2 => Priority::Backup,
            _ => return Err(bad),
        };
        let redundancy_percent = match redundancy {
            0..=100 => Some(redundancy),
            REDUNDANCY_ANY => None,
            _ => return Err(bad),
        };
        if !(1..=Policy::WEIGHT_MAX).contains(&weight) {
            return Err(bad);
        }
        let takes_insurance = self.all(FIELD_UNINSURED).next().is_none();
        let rate_max = match self.optional(FIELD_RATE)?.map(u64::from_be_bytes) {
            Some(bits) if bits < Policy::RATE_KBPS_MIN * 1_000 => {
                return Err(ControlError::BadField(FIELD_RATE));
            }
            bits => bits.map(Rate::from_bps),
        };
        Ok(Policy { priority, weight, redundancy_percent, takes_insurance, rate_max })
    }

    pub(super) fn networks(&self, kind: u16) -> Result<Vec<IpNet>, ControlError> {
        if self.all(kind).count() > MAX_NETWORKS {
            return Err(ControlError::BadField(kind));
        }
        self.all(kind).map(|value| network(value).ok_or(ControlError::BadField(kind))).collect()
    }
}

fn network(value: &[u8]) -> Option<IpNet> {
    let (prefix_len, address) = value.split_last()?;
    let address = match address.len() {
        4 => IpAddr::V4(Ipv4Addr::from(<[u8; 4]>::try_from(address).ok()?)),
        16 => IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(address).ok()?)),
        _ => return None,
    };
    IpNet::new(address, *prefix_len).ok()
}
