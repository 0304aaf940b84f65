//! The sans-IO heart of Roadweave: sessions of lanes over a carrier, the client and the server.
//!
//! ```text
//! out: TUN > inner packet > lane > schedule > source or coded datagram > quic path > uplink socket
//! in:  uplink socket > quic > decode > reorder > TUN
//!      acknowledgements and feedback > loss detection > recovery > schedule
//! ```
//!
//! Start with [`Session`], the same on both sides. [`Client`] keeps one up over the available
//! uplinks; [`Server`] holds the sessions of many clients and finds the one for each returning
//! packet. [`Router`] is a session over GENEVE, also the same on both sides. Time is an argument,
//! bytes move through buffers: the lab and the product run this code, byte for byte.

mod anchor;
mod bindings;
mod carrier;
mod client;
mod figure;
mod geneve;
mod lane;
mod learned;
mod leg;
mod node;
mod observe;
mod peers;
mod players;
mod proxy;
mod queue;
mod rate;
mod router;
mod server;
mod session;
mod status;
mod streams;
#[cfg(test)]
mod testing;
mod uplink;
mod usage;

pub use anchor::{Anchor, AnchorConfig, AnchorEvent, AnchorStatus, AnchorTenant};
pub use carrier::{Carrier, SendError};
pub use client::{
    CANDIDATES_MAX, Candidate, CandidatePlace, CandidateReport, Client, ClientConfig, ClientError,
    ClientEvent, LoadReport, Notice, PairReport, PairState, Portal, SPEEDTEST_MAX, SpeedtestError,
    SpeedtestPlan, SpeedtestReport, SpeedtestRow, SpeedtestState, UplinkReport, admit,
};
pub use figure::{Column, Figure, Metric, count, delays, flag, gauge};
pub use geneve::{LinkCounters, RouterLink, RouterPeer};
pub use lane::{
    DatagramContent, EncoderTarget, FlowClass, Keeps, LANES_MAX, LaneConfig, LaneDatagram,
    LaneRule, MakeRecovery, MakeScheduler, MemoryStats, NamesUplink, OrderStats, ReceiveStats,
    STRATEGIES, SendStats, Strategy, StrategyEntry, Superseded, UnknownStrategy, default_lanes,
};
pub use learned::Learned;
pub use leg::{LegStatus, TenantId, TenantStats};
pub use node::{Io, MemoryIo, Node, RecvMeta, deliver, flush, turn};
pub use observe::{PacketEvent, PacketStep};
pub use peers::{Peer, PeerTable, Peers, PeersChange};
pub use proxy::{LEG_SOCKET, ProxyConfig, ProxyStatus, ProxyTenant, TENANTS_MAX};
pub use roadweave_recovery::Qoe;
pub use router::{
    LinkStatus, ROUTER_LINKS_MAX, Router, RouterConfig, RouterError, RouterEvent, RouterStatus,
};
pub use server::{
    DRAIN_MAX, DrainReason, Forwarded, MisroutedPacket, MisroutedQueue, RoundTrips, Server,
    ServerConfig, ServerEvent, SessionFigures, SharedState, SpeedtestLimits, Tally, Totals,
};
pub use session::{
    LaneStats, LoadStats, MEMORY_MAX, Session, SessionConfig, SessionError, SessionStats, SetError,
};
pub use status::{PathStatusReport, SessionStatus};
pub use streams::{EndsStreams, StreamsConfig, StreamsOwner};
pub use uplink::{CapPeriod, Caps, UplinkPolicy};
pub use usage::{BILLING_DAY_MAX, Carried, Usage};
