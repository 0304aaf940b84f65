//! Applications at both ends of the tunnel.
//!
//! ```text
//! poll_timeout ─► poll_transmit ─► (direction, inner packet) ─► World ─► handle_arrival ─► report
//! ```
//!
//! An application plays both of its ends: it says when it wants to send, gives out inner packets,
//! takes those that came out of the tunnel (only its own, told by their port), and reports in the
//! end. It does no I/O and reads no clock. [`TrafficSpec`] says which application to make.

mod bulk;
mod constant;
mod requests;
mod tcp;
mod video;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use roadweave_emulate::Direction;
use roadweave_proto::{Instant, Rate};
use roadweave_tunnel::{EncoderTarget, Superseded};
use serde::Serialize;

use crate::video::h264::AccessUnit;
use crate::video::quality::StreamLog;
use crate::video::quality::{Percentiles, Player, packet_delays};

pub use bulk::{Bulk, BulkReport, BulkTraffic, fairness};
pub use constant::ConstantTraffic;
pub use requests::{App, RequestReport, RequestTraffic};
pub use tcp::{Tcp, TcpReport, TcpTraffic};
pub use video::{FrameSource, VideoReport, VideoTraffic};

/// An application at both ends.
pub trait Traffic: std::fmt::Debug + Send {
    /// The port of its packets at both ends.
    fn port(&self) -> u16;

    /// When [`Traffic::poll_transmit`] has something to send, or something else is due; `None` when
    /// nothing is unless a packet arrives.
    fn poll_timeout(&self) -> Option<Instant>;

    /// The end that it sends its video from, if it wants to know what its encoder should do
    /// ([`Traffic::set_target`]) before it sends at `now`.
    fn wants_target(&self, _now: Instant) -> Option<Direction> {
        None
    }

    /// What an encoder should do now. If it begins anew with its next frame, what is older of its
    /// video.
    fn set_target(&mut self, _target: EncoderTarget) -> Option<Superseded> {
        None
    }

    /// The next inner packet that is to leave at `now`, and the end it leaves from. Call it until
    /// it returns `None`: at [`Traffic::poll_timeout`], and after packets have arrived.
    fn poll_transmit(&mut self, now: Instant) -> Option<(Direction, Bytes)>;

    /// An inner packet of this application has come out at the end of `direction`.
    fn handle_arrival(&mut self, now: Instant, direction: Direction, packet: &Bytes);

    /// What has become of it. `end`: when the observation ended.
    fn report(&self, end: Instant) -> TrafficReport;
}

/// Which application to make.
#[derive(Clone, Debug, PartialEq)]
pub struct TrafficSpec {
    /// What it is called in reports.
    pub name: String,
    /// The way of its data.
    pub direction: Direction,
    /// Its port; different for each application of a scenario.
    pub port: u16,
    /// When it begins, after the start of the stream.
    pub begin: Duration,
    /// How long it lasts.
    pub lasting: Duration,
    /// What the application does.
    pub kind: TrafficKind,
}

/// What an application does.
#[derive(Clone, Debug, PartialEq)]
pub enum TrafficKind {
    /// H.264 as RTP (RFC 6184); all packets of a frame leave at once.
    Video {
        /// The coded pictures.
        frames: FrameSource,
        /// How they are shown.
        player: Player,
    },
    /// Packets of one size at even intervals.
    Constant {
        /// The rate of inner packets, headers included.
        rate: Rate,
        /// The size of an inner packet, bytes, headers included, 36..=65,535.
        packet_bytes: usize,
    },
    /// Requests and responses (RAVEN section 5.2), whatever the direction.
    Requests(App),
    /// A bulk transfer over QUIC.
    Bulk(Bulk),
    /// A transfer over TCP.
    Tcp(Tcp),
}

impl TrafficSpec {
    /// A synthetic video of `bitrate` from the vehicle, for `lasting`, called `video`.
    pub fn video(bitrate: Rate, lasting: Duration) -> Self {
        Self {
            name: "video".into(),
            direction: Direction::Up,
            port: FIRST_PORT,
            begin: Duration::ZERO,
            lasting,
            kind: TrafficKind::Video {
                frames: FrameSource::Synthetic { bitrate },
                player: Player::default(),
            },
        }
    }

    /// The video of these coded pictures, one after the other until `lasting` is over.
    pub fn clip(units: Arc<[AccessUnit]>, lasting: Duration) -> Self {
        let kind =
            TrafficKind::Video { frames: FrameSource::Clip(units), player: Player::default() };
        Self { kind, ..Self::video(Rate::ZERO, lasting) }
    }

    /// Whether it is a video.
    pub fn is_video(&self) -> bool {
        matches!(self.kind, TrafficKind::Video { .. })
    }

    /// The application, with its stream beginning at `start`; `seed` decides all that is random in
    /// it.
    pub fn build(&self, start: Instant, seed: u64) -> Box<dyn Traffic> {
        match &self.kind {
            TrafficKind::Video { frames, player } => {
                Box::new(VideoTraffic::new(self, frames.clone(), player.clone(), start, seed))
            }
            TrafficKind::Constant { rate, packet_bytes } => {
                Box::new(ConstantTraffic::new(self, *rate, *packet_bytes, start))
            }
            TrafficKind::Requests(app) => Box::new(RequestTraffic::new(self, *app, start, seed)),
            TrafficKind::Bulk(bulk) => Box::new(BulkTraffic::new(self, *bulk, start, seed)),
            TrafficKind::Tcp(tcp) => Box::new(TcpTraffic::new(self, *tcp, start, seed)),
        }
    }
}

/// What became of an application.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TrafficReport {
    /// Its name.
    pub name: String,
    /// Inner packets sent, both ways.
    pub sent_packets: u64,
    /// Bytes of the inner packets sent, both ways.
    pub sent_bytes: u64,
    /// Inner packets that arrived, each once.
    pub arrived_packets: u64,
    /// Packets that arrived again, or that this application never sent.
    pub unexpected_packets: u64,
    /// Delay of the packets that arrived.
    pub delay_ms: Percentiles,
    /// By how much the delays of two packets differ that were sent one after the other (RFC 3393),
    /// without its sign; absent where nobody waits for single packets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay_variation_ms: Option<Percentiles>,
    /// What only this kind of application knows.
    #[serde(flatten, skip_serializing_if = "Detail::is_hidden")]
    pub detail: Detail,
}

/// What only one kind of application knows.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Detail {
    /// Nothing.
    #[default]
    #[serde(skip)]
    None,
    /// Packets that nobody waits for: when each was sent and when it arrived.
    #[serde(skip)]
    Stream(Stream),
    /// A video.
    #[serde(skip)]
    Video(Box<VideoReport>),
    /// Requests and responses.
    Requests(RequestReport),
    /// A bulk transfer.
    Bulk(Box<BulkReport>),
    /// A transfer over TCP.
    Tcp(Box<TcpReport>),
}

/// When packets were sent and when they arrived.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stream {
    /// Send times, and frames if there are any.
    pub log: StreamLog,
    /// One entry per packet of the log.
    pub arrivals: Vec<Option<Instant>>,
}

impl Stream {
    /// The delays of the packets that arrived, ascending.
    pub fn delays(&self) -> Vec<Duration> {
        packet_delays(&self.log, &self.arrivals)
    }

    /// By how much the delays of neighbours differ that both arrived, ascending.
    pub fn delay_variations(&self) -> Vec<Duration> {
        let packets = self.log.packets.iter().zip(&self.arrivals);
        let delays: Vec<_> =
            packets.map(|(sent, arrival)| Some(arrival.as_ref()?.since(*sent))).collect();
        let neighbours = delays.windows(2).filter_map(|pair| Some(pair[0]?.abs_diff(pair[1]?)));
        let mut variations: Vec<_> = neighbours.collect();
        variations.sort_unstable();
        variations
    }

    /// Notes the arrival of packet `index`; `false` when it had arrived before or was never sent.
    pub fn note_arrival(&mut self, now: Instant, index: usize) -> bool {
        match self.arrivals.get_mut(index) {
            Some(arrival @ None) => {
                *arrival = Some(now);
                true
            }
            _ => false,
        }
    }
}

impl Detail {
    /// Whether it holds nothing for people to read.
    fn is_hidden(&self) -> bool {
        matches!(self, Self::None | Self::Stream(_) | Self::Video(_))
    }
}

impl TrafficReport {
    /// When its packets were sent and when they arrived, for those applications that know.
    pub fn stream(&self) -> Option<&Stream> {
        match &self.detail {
            Detail::Stream(stream) => Some(stream),
            Detail::Video(video) => Some(&video.stream),
            Detail::Bulk(bulk) => Some(&bulk.stream),
            Detail::Tcp(tcp) => Some(&tcp.stream),
            Detail::None | Detail::Requests(_) => None,
        }
    }
}

/// The port of a scenario's first application.
pub const FIRST_PORT: u16 = 5_000;

#[cfg(test)]
mod tests;
