//! Applications at both ends of the tunnel.
//!
//! ```text
//! poll_timeout ─► poll_transmit ─► (direction, inner packet) ─► World ─► handle_arrival ─► report
//! ```
//!
//! An application implements both of its ends: it schedules itself, emits inner packets, receives
//! packets of its own port that left the tunnel, and reports at the end. It does no I/O and reads
//! no clock. [`TrafficSpec`] selects the application.

mod bulk;
mod call;
mod constant;
mod requests;
mod tcp;
mod video;

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use roadweave_emulate::Direction;
use roadweave_proto::{Instant, Rate};
use roadweave_tunnel::{EncoderTarget, Superseded};
use serde::Serialize;

use crate::video::h264::AccessUnit;
use crate::video::quality::StreamLog;
use crate::video::quality::{Percentiles, Player, packet_delays};

use bulk::BulkTraffic;
pub(crate) use bulk::fairness;
pub use bulk::{Bulk, BulkReport};
pub use call::CallReport;
use call::CallTraffic;
use constant::ConstantTraffic;
pub use requests::App;
use requests::{RequestReport, RequestTraffic};
pub use tcp::TcpReport;
use tcp::TcpTraffic;
pub use video::FrameSource;
pub(crate) use video::VideoReport;
use video::VideoTraffic;

/// An application with both of its ends.
pub trait Traffic: std::fmt::Debug + Send {
    /// The port of its packets at both ends.
    fn port(&self) -> u16;

    /// When [`Traffic::poll_transmit`] or another timer is due; `None`: only after an arrival.
    fn poll_timeout(&self) -> Option<Instant>;

    /// The direction of its video, if its encoder needs [`Traffic::set_target`] to send at `now`.
    fn wants_target(&self, _now: Instant) -> Option<Direction> {
        None
    }

    /// Sets the encoder's target. Returns the superseded video if the encoder restarts.
    fn set_target(&mut self, _target: EncoderTarget) -> Option<Superseded> {
        None
    }

    /// The next inner packet to send at `now`, and its direction. Call it until it returns `None`,
    /// at [`Traffic::poll_timeout`] and after arrivals.
    fn poll_transmit(&mut self, now: Instant) -> Option<(Direction, Bytes)>;

    /// Handles an inner packet that arrived at the end of `direction`.
    fn handle_arrival(&mut self, now: Instant, direction: Direction, packet: &Bytes);

    /// The report; `end`: end of the observation.
    fn report(&self, end: Instant) -> TrafficReport;
}

/// An application and its schedule.
#[derive(Clone, Debug, PartialEq)]
pub struct TrafficSpec {
    pub name: String,
    pub direction: Direction,
    /// Port, unique within a scenario.
    pub port: u16,
    /// When it begins, after the start of the stream.
    pub begin: Duration,
    pub lasting: Duration,
    pub kind: TrafficKind,
}

/// A kind of application.
#[derive(Clone, Debug, PartialEq)]
pub enum TrafficKind {
    /// H.264 over RTP (RFC 6184); all packets of a frame leave at once.
    Video {
        /// Source of coded pictures.
        frames: FrameSource,
        /// Parameters of the viewer's player.
        player: Player,
    },
    /// Packets of constant size and rate.
    Constant {
        /// Rate of inner packets with headers.
        rate: Rate,
        /// Size of an inner packet with headers, bytes, 36..=65,535.
        packet_bytes: usize,
    },
    /// Requests and responses (RAVEN section 5.2); the direction is ignored.
    Requests(App),
    Bulk(Bulk),
    Tcp(Bulk),
    /// A WebRTC call with video of up to this rate.
    Call {
        rate_max: Rate,
    },
}

impl TrafficSpec {
    /// A synthetic video of `bitrate` from the vehicle, named `video`.
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

    /// A video that repeats these coded pictures for the duration `lasting`.
    pub fn clip(units: Arc<[AccessUnit]>, lasting: Duration) -> Self {
        let kind =
            TrafficKind::Video { frames: FrameSource::Clip(units), player: Player::default() };
        Self { kind, ..Self::video(Rate::ZERO, lasting) }
    }

    pub fn is_video(&self) -> bool {
        matches!(self.kind, TrafficKind::Video { .. })
    }

    /// Creates the application; its stream begins at `start`, and `seed` decides its randomness.
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
            TrafficKind::Call { rate_max } => {
                Box::new(CallTraffic::new(self, *rate_max, start, seed))
            }
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct TrafficReport {
    pub name: String,
    /// Inner packets sent, both ways.
    pub sent_packets: u64,
    /// Bytes of the inner packets sent, both ways.
    pub sent_bytes: u64,
    /// Inner packets that arrived, each once.
    pub arrived_packets: u64,
    /// Duplicate packets, and packets that this application did not send.
    pub unexpected_packets: u64,
    pub delay_ms: Percentiles,
    /// Absolute delay difference of consecutive packets (RFC 3393); absent if it does not matter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay_variation_ms: Option<Percentiles>,
    /// Figures of the kind of application.
    #[serde(flatten, skip_serializing_if = "Detail::is_hidden")]
    pub detail: Detail,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Detail {
    #[default]
    #[serde(skip)]
    None,
    /// Times of packets whose delay does not matter to the application.
    #[serde(skip)]
    Stream(DataStream),
    #[serde(skip)]
    Video(Box<VideoReport>),
    Requests(RequestReport),
    Bulk(Box<BulkReport>),
    Tcp(Box<TcpReport>),
    Call(Box<CallReport>),
}

/// Send and arrival times of packets.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DataStream {
    /// Send times, and frames if any.
    pub log: StreamLog,
    /// One entry per packet of the log.
    pub arrivals: Vec<Option<Instant>>,
}

impl DataStream {
    /// Delays of arrived packets, ascending.
    pub fn delays(&self) -> Vec<Duration> {
        packet_delays(&self.log, &self.arrivals)
    }

    /// Absolute delay differences of consecutive arrived packets, ascending.
    pub fn delay_variations(&self) -> Vec<Duration> {
        let packets = self.log.packets.iter().zip(&self.arrivals);
        let delays: Vec<_> =
            packets.map(|(sent, arrival)| Some(arrival.as_ref()?.since(*sent))).collect();
        let neighbours = delays.windows(2).filter_map(|pair| Some(pair[0]?.abs_diff(pair[1]?)));
        let mut variations: Vec<_> = neighbours.collect();
        variations.sort_unstable();
        variations
    }

    fn note_sent(&mut self, now: Instant) {
        self.log.packets.push(now);
        self.arrivals.push(None);
    }

    /// Records the arrival of packet `index`; `false` for a duplicate or an unknown packet.
    fn note_arrival(&mut self, now: Instant, index: usize) -> bool {
        match self.arrivals.get_mut(index) {
            Some(arrival @ None) => {
                *arrival = Some(now);
                true
            }
            _ => false,
        }
    }
}

#[derive(Debug)]
struct Base {
    name: String,
    port: u16,
    direction: Direction,
    sent_bytes: u64,
    arrived: u64,
    unexpected: u64,
}

impl Base {
    fn of(spec: &TrafficSpec) -> Self {
        let (name, port, direction) = (spec.name.clone(), spec.port, spec.direction);
        Self { name, port, direction, sent_bytes: 0, arrived: 0, unexpected: 0 }
    }

    fn count(&mut self, is_expected: bool) -> bool {
        *(if is_expected { &mut self.arrived } else { &mut self.unexpected }) += 1;
        is_expected
    }

    /// `delays` ascend.
    fn report(&self, sent_packets: usize, delays: &[Duration], detail: Detail) -> TrafficReport {
        TrafficReport {
            name: self.name.clone(),
            sent_packets: sent_packets as u64,
            sent_bytes: self.sent_bytes,
            arrived_packets: self.arrived,
            unexpected_packets: self.unexpected,
            delay_ms: Percentiles::of_sorted(delays),
            delay_variation_ms: None,
            detail,
        }
    }
}

/// A transfer with answers: its schedule, and the packets of both directions.
#[derive(Debug)]
struct TwoWay {
    base: Base,
    begin: Instant,
    end: Instant,
    has_begun: bool,
    data: DataStream,
    answers: DataStream,
}

impl TwoWay {
    fn of(spec: &TrafficSpec, start: Instant) -> Self {
        let begin = start + spec.begin;
        Self {
            base: Base::of(spec),
            begin,
            end: begin + spec.lasting,
            has_begun: false,
            data: DataStream::default(),
            answers: DataStream::default(),
        }
    }

    fn stream(&mut self, direction: Direction) -> &mut DataStream {
        if direction == self.base.direction { &mut self.data } else { &mut self.answers }
    }

    /// Records a packet that is sent; returns its number in its direction.
    fn note_sent(&mut self, now: Instant, direction: Direction) -> u64 {
        let stream = self.stream(direction);
        stream.note_sent(now);
        stream.log.packets.len() as u64 - 1
    }

    /// Records a sent packet, and writes the low 16 bits of its number into it.
    fn number(&mut self, now: Instant, direction: Direction, packet: Bytes) -> Bytes {
        let number = self.note_sent(now, direction) as u16;
        self.base.sent_bytes += packet.len() as u64;
        let mut packet = BytesMut::from(packet);
        packet[IDENTIFICATION..IDENTIFICATION + 2].copy_from_slice(&number.to_be_bytes());
        packet.freeze()
    }

    /// Records the arrival of a numbered packet; `false` for a duplicate or an unknown packet.
    fn note_arrival(&mut self, now: Instant, direction: Direction, packet: &[u8]) -> bool {
        let stream = self.stream(direction);
        let Some(half) = packet.get(IDENTIFICATION..).and_then(|it| it.first_chunk()) else {
            return false;
        };
        // The latest packet with these 16 bits.
        let Some(last) = stream.log.packets.len().checked_sub(1) else { return false };
        let behind = usize::from((last as u16).wrapping_sub(u16::from_be_bytes(*half)));
        last.checked_sub(behind).is_some_and(|index| stream.note_arrival(now, index))
    }

    fn is_on(&self, now: Instant) -> bool {
        (self.begin..self.end).contains(&now)
    }

    /// `due`: the timeout of the transfer once it has begun.
    fn poll_timeout(&self, due: Option<Instant>) -> Option<Instant> {
        let due = if self.has_begun { due? } else { self.begin };
        (due < self.end).then_some(due)
    }

    /// Seconds until the transfer was complete, or until `end`.
    fn lasted(&self, completed: Option<Instant>, end: Instant) -> f64 {
        let lasted = completed.unwrap_or(end.min(self.end)).since(self.begin);
        lasted.as_secs_f64().max(f64::MIN_POSITIVE)
    }

    fn report(&self, detail: Detail) -> TrafficReport {
        let sent = self.data.log.packets.len() + self.answers.log.packets.len();
        self.base.report(sent, &self.data.delays(), detail)
    }
}

impl Detail {
    fn is_hidden(&self) -> bool {
        matches!(self, Self::None | Self::Stream(_) | Self::Video(_))
    }
}

impl TrafficReport {
    /// Send and arrival times, if the application records them.
    pub fn stream(&self) -> Option<&DataStream> {
        match &self.detail {
            Detail::Stream(stream) => Some(stream),
            Detail::Video(video) => Some(&video.stream),
            Detail::Bulk(bulk) => Some(&bulk.stream),
            Detail::Tcp(tcp) => Some(&tcp.stream),
            Detail::Call(call) => Some(&call.stream),
            Detail::None | Detail::Requests(_) => None,
        }
    }
}

/// The identification of an IPv4 packet, which has the low bits of its number.
const IDENTIFICATION: usize = 4;
/// The port of a scenario's first application.
pub const FIRST_PORT: u16 = 5_000;

#[cfg(test)]
mod tests;
