//! Control messages, reliable and in order.
//!
//! ```text
//! client ── hello ──────────► server
//! client ◄────────── welcome ── server      (or refuse, and the connection closes)
//! client ── path name ──────► server        (for each path, again when one opens)
//! client ── path policy ────► server        (for each path without the default policy; again after a change)
//! client ◄─ binding ───────► proxy         (after the welcome of a proxy; back: the newest known)
//! client ◄─ streams ───────► proxy         (the offers of client and anchor)
//! client ◄─ lane promise ───► server        (for each lane of the sender without the default)
//! client ◄─ player ─────────► server        (the buffer of a player on the sender's side)
//! client ◄──────────── move ── server        (to another server)
//! client ◄─ speed test ─────► server        (see `speedtest.rs`)
//!
//! client ── hello, standby ─► server        (welcomed, and idle until a hello to join)
//!
//! message   kind:1 | fields
//! field     type:2 | length:2 | value       (unknown types are skipped)
//! ```

pub(crate) mod error;
pub(crate) mod fields;
mod values;

use std::net::IpAddr;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use ipnet::IpNet;

pub use self::error::ControlError;
use self::fields::{
    FIELD_ADDRESS, FIELD_ANCHOR, FIELD_GATEWAY, FIELD_GRACE, FIELD_LANE, FIELD_MTU, FIELD_NAME,
    FIELD_NETWORK, FIELD_PATH, FIELD_RELAYS, FIELD_ROLE, Fields, MAX_NETWORKS, ROLE_PROXY,
    ROLE_STANDBY, WELCOME_NETWORKS_MAX, put_age, put_field, put_network, put_order, put_player,
    put_policy, put_reason, put_streams, put_tenant, put_text,
};
pub use self::values::{PlayerReport, Reason, Role, TenantAnchor};
use crate::wire::binding::Binding;
use crate::wire::speedtest::Speedtest;
use crate::wire::stream::StreamsOffer;
use crate::{LaneId, PathId, Policy, Promise};

/// The longest control message, bytes.
pub const MAX_CONTROL_MESSAGE: usize = 4096;
const KIND_HELLO: u8 = 1;
const KIND_WELCOME: u8 = 2;
const KIND_REFUSE: u8 = 3;
const KIND_PATH_NAME: u8 = 4;
const KIND_LANE_PROMISE: u8 = 5;
const KIND_PATH_POLICY: u8 = 6;
const KIND_MOVE: u8 = 7;
const KIND_BINDING: u8 = 8;
const KIND_PLAYER: u8 = 9;
const KIND_STREAMS: u8 = 10;
const KIND_SPEEDTEST: u8 = 11;

/// A control message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Control {
    /// The client asks for a session.
    Hello(Hello),
    /// The server grants it.
    Welcome(Welcome),
    /// The server refuses, with a reason.
    Refuse {
        /// For people, at most 256 bytes.
        reason: String,
        /// For the client.
        why: Reason,
    },
    /// The server asks the client to move to another one: it joins there, and then leaves.
    Move {
        /// The reason.
        why: Reason,
        /// The session lives at least this long; whole milliseconds. Without it the server may end
        /// it at any time.
        grace: Option<Duration>,
    },
    /// The client names the uplink of a path.
    PathName {
        /// The path.
        path: PathId,
        /// The interface it runs over.
        uplink: String,
    },
    /// The client sets how a path may be used, in both directions; the default policy until then.
    PathPolicy {
        /// The path.
        path: PathId,
        /// How it may be used.
        policy: Policy,
    },
    /// The sender promises this about the packets of one of its lanes, until its next such message
    /// for the lane. Before that the default applies.
    LanePromise {
        /// The lane, of the sender's direction.
        lane: LaneId,
        /// The promise; waits and ages in whole milliseconds.
        promise: Promise,
    },
    /// The client is at this proxy, for its tenant's anchor. From the proxy: the anchor's newest
    /// binding of the client, which the client's next one must exceed.
    Binding(Binding),
    /// To a proxy, before the binding: the client's offer of streams with the anchor. From the
    /// proxy: the anchor's offer, if it takes streams.
    Streams(Option<StreamsOffer>),
    /// A player on the sender's side reports its buffer, for the peer's lane (XLINK section 5.2.1).
    Player(PlayerReport),
    /// A message of a speed test.
    Speedtest(Speedtest),
}

/// The client's request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hello {
    /// Its name for logs and statistics, at most 256 bytes.
    pub name: String,
    /// The purpose of the connection.
    pub role: Role,
    /// Its streams with this server, if it opens any; it takes their frames.
    pub streams: Option<StreamsOffer>,
}

/// What the server grants.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Welcome {
    /// The client's inner addresses and the prefixes behind it that the server routes to it.
    pub addresses: Vec<IpNet>,
    /// The server's own inner addresses.
    pub gateways: Vec<IpAddr>,
    /// Networks reached only through the server, its own and those behind other clients.
    pub networks: Vec<IpNet>,
    /// The MTU of both TUN devices, bytes.
    pub mtu: u16,
    /// For a proxy: the anchor that the client signs a binding for.
    pub anchor: Option<TenantAnchor>,
    /// The server's streams with this client, if it takes any.
    pub streams: Option<StreamsOffer>,
    /// Whether the server is a proxy that relays streams to the anchor, if it takes any.
    pub relays: bool,
}

impl Control {
    /// Parses one whole message.
    pub fn parse(bytes: Bytes) -> Result<Self, ControlError> {
        let (kind, fields) = Fields::parse(bytes)?;
        match kind {
            KIND_HELLO => Ok(Self::Hello(Hello {
                name: fields.text(FIELD_NAME)?,
                role: fields.role()?,
                streams: fields.streams()?,
            })),
            KIND_WELCOME => Ok(Self::Welcome(Welcome {
                addresses: fields.networks(FIELD_ADDRESS)?,
                gateways: fields.networks(FIELD_GATEWAY)?.iter().map(IpNet::addr).collect(),
                networks: fields
                    .networks(FIELD_NETWORK)?
                    .into_iter()
                    .take(WELCOME_NETWORKS_MAX)
                    .collect(),
                mtu: u16::from_be_bytes(fields.array(FIELD_MTU)?),
                anchor: fields.anchor()?,
                streams: fields.streams()?,
                relays: fields.flag(FIELD_RELAYS),
            })),
            KIND_REFUSE => {
                Ok(Self::Refuse { reason: fields.text(FIELD_NAME)?, why: fields.reason()? })
            }
            KIND_MOVE => {
                let millis = fields.optional(FIELD_GRACE)?.map(u32::from_be_bytes);
                let grace = millis.map(|millis| Duration::from_millis(millis.into()));
                Ok(Self::Move { why: fields.reason()?, grace })
            }
            KIND_BINDING => Binding::parse(&fields).map(Self::Binding),
            KIND_STREAMS => fields.streams().map(Self::Streams),
            KIND_PLAYER => fields.player().map(Self::Player),
            KIND_SPEEDTEST => Speedtest::parse(&fields).map(Self::Speedtest),
            KIND_PATH_NAME => Ok(Self::PathName {
                path: PathId(u32::from_be_bytes(fields.array(FIELD_PATH)?)),
                uplink: fields.text(FIELD_NAME)?,
            }),
            KIND_PATH_POLICY => Ok(Self::PathPolicy {
                path: PathId(u32::from_be_bytes(fields.array(FIELD_PATH)?)),
                policy: fields.policy()?,
            }),
            KIND_LANE_PROMISE => Ok(Self::LanePromise {
                lane: LaneId(u8::from_be_bytes(fields.array(FIELD_LANE)?)),
                promise: fields.promise()?,
            }),
            other => Err(ControlError::UnknownKind(other)),
        }
    }

    /// The message as bytes. Texts are cut at 256 bytes, lists at 64 addresses or gateways and at
    /// 32 networks.
    pub fn to_bytes(&self) -> Bytes {
        let mut out = BytesMut::from(&[self.kind()][..]);
        match self {
            Self::Hello(hello) => {
                put_text(&mut out, FIELD_NAME, &hello.name);
                match hello.role {
                    Role::Join => {}
                    Role::Standby => put_field(&mut out, FIELD_ROLE, &[ROLE_STANDBY]),
                    Role::Proxy => put_field(&mut out, FIELD_ROLE, &[ROLE_PROXY]),
                }
                put_streams(&mut out, hello.streams);
            }
            Self::Welcome(welcome) => put_welcome(&mut out, welcome),
            Self::Streams(streams) => put_streams(&mut out, *streams),
            Self::Binding(binding) => binding.put(&mut out),
            Self::Player(report) => put_player(&mut out, report),
            Self::Speedtest(speedtest) => speedtest.put(&mut out),
            Self::Refuse { reason, why } => {
                put_text(&mut out, FIELD_NAME, reason);
                put_reason(&mut out, *why);
            }
            Self::Move { why, grace } => {
                put_reason(&mut out, *why);
                if let Some(grace) = grace {
                    let millis = u32::try_from(grace.as_millis()).unwrap_or(u32::MAX);
                    put_field(&mut out, FIELD_GRACE, &millis.to_be_bytes());
                }
            }
            Self::PathName { path, uplink } => {
                put_text(&mut out, FIELD_NAME, uplink);
                put_field(&mut out, FIELD_PATH, &path.0.to_be_bytes());
            }
            Self::PathPolicy { path, policy } => {
                put_field(&mut out, FIELD_PATH, &path.0.to_be_bytes());
                put_policy(&mut out, policy);
            }
            Self::LanePromise { lane, promise } => {
                put_field(&mut out, FIELD_LANE, &[lane.0]);
                put_order(&mut out, promise.order);
                put_age(&mut out, promise);
            }
        }
        out.freeze()
    }

    fn kind(&self) -> u8 {
        match self {
            Self::Hello(_) => KIND_HELLO,
            Self::Welcome(_) => KIND_WELCOME,
            Self::Refuse { .. } => KIND_REFUSE,
            Self::Move { .. } => KIND_MOVE,
            Self::PathName { .. } => KIND_PATH_NAME,
            Self::PathPolicy { .. } => KIND_PATH_POLICY,
            Self::LanePromise { .. } => KIND_LANE_PROMISE,
            Self::Binding(_) => KIND_BINDING,
            Self::Streams(_) => KIND_STREAMS,
            Self::Player(_) => KIND_PLAYER,
            Self::Speedtest(_) => KIND_SPEEDTEST,
        }
    }
}

fn put_welcome(out: &mut BytesMut, welcome: &Welcome) {
    for network in welcome.addresses.iter().take(MAX_NETWORKS) {
        put_network(out, FIELD_ADDRESS, *network);
    }
    put_field(out, FIELD_MTU, &welcome.mtu.to_be_bytes());
    for gateway in welcome.gateways.iter().take(MAX_NETWORKS) {
        put_network(out, FIELD_GATEWAY, IpNet::from(*gateway));
    }
    for network in welcome.networks.iter().take(WELCOME_NETWORKS_MAX) {
        put_network(out, FIELD_NETWORK, *network);
    }
    if let Some(anchor) = &welcome.anchor {
        put_tenant(out, &anchor.tenant);
        put_field(out, FIELD_ANCHOR, &anchor.key);
    }
    put_streams(out, welcome.streams);
    if welcome.relays {
        put_field(out, FIELD_RELAYS, &[]);
    }
}

#[cfg(test)]
mod tests;
