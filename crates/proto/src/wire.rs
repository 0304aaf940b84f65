//! What crosses the network, as specified in docs/wire.md, and views of inner packets.
//!
//! ```text
//! inner packet ───┬─► symbol ─► source datagram ─┐
//! stream frames ──┘     └─────► coded datagram ──┴─► QUIC DATAGRAM frame
//! hello, welcome, path name ─────────────────► control fragments
//!
//! inner packet ──────────────────────────────► GENEVE over UDP
//! ```
//!
//! Everything here parses foreign bytes: nothing panics or over-allocates. [`ALPN`] is the version.

mod binding;
mod control;
mod datagram;
mod geneve;
mod inner;
mod leg;
mod media;
mod part;
mod predecessor;
mod rtp;
mod socks;
mod speedtest;
mod srt;
mod stamp;
mod stream;
mod symbol;

pub use binding::Binding;
pub use control::fields::{TENANT_MAX, WELCOME_NETWORKS_MAX};
pub use control::{
    Control, ControlError, Hello, MAX_CONTROL_MESSAGE, PlayerReport, Reason, Role, TenantAnchor,
    Welcome,
};
pub use datagram::{
    CODED_HEADER, Coded, Datagram, DatagramError, Feedback, LaneReport, MAX_FEEDBACK_LANES,
    SOURCE_HEADER, SourceDatagram,
};
pub use geneve::{
    GENEVE_HELLO, GENEVE_OPTION_CLASS, GENEVE_OVERHEAD, GENEVE_PORT, GENEVE_VNI_MAX, Geneve,
    GeneveContent, GeneveError, GeneveHello, GeneveSequence,
};
pub use inner::{InnerPacket, protocol};
pub use leg::{Detached, LEG_FRAMES_HEADER, LegFrames, LegMessage, LegRoom, PASSED_HEADER, Passed};
pub use media::{is_ice, is_quic_long, is_rtcp, mpeg_ts_packets};
pub use part::{PART_HEADER, Part};
pub use predecessor::{
    PREDECESSOR_DISTANCE_MAX, PREDECESSOR_HEADER, predecessor_prefix, split_predecessor,
};
pub use rtp::RtpHeader;
pub use socks::{SOCKS_MESSAGE_MAX, SOCKS_VERSION, SocksConnect, SocksGreeting, SocksReply};
pub use speedtest::{
    LOAD_HEADER, LOAD_OVERHEAD, Load, LoadCounts, LoadDirection, Speedtest, TEST_PATHS_MAX,
    TestBounds, TestId, TestRefusal, TestWord,
};
pub use srt::SrtHeader;
pub use stamp::{STAMP_HEADER, Stamp, split_stamp};
pub use stream::{
    ACKNOWLEDGED_RANGES_MAX, Acknowledged, Data, Destination, EARLY_CREDIT, Open, ResetCode,
    SESSION_CREDIT, STREAM_CREDIT, STREAM_TAG, StreamFrame, StreamFrameError, StreamFrames,
    StreamId, StreamPriority, StreamsEpoch, StreamsOffer, VARINT_MAX, put_varint,
};
pub use symbol::{FragmentPosition, MAX_SYMBOL_BODY, SYMBOL_HEADER, Symbol};

/// The application protocol (RFC 7301), which names the version of this format.
pub const ALPN: &[u8] = b"roadweave/1";
