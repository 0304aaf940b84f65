//! Requests and responses of passengers: speech, music, recommendations.
//!
//! ```text
//! speech       ▂▂▂▂▂▂▂▂ 100 ms of audio each ▏request ──► ◄── text               1 s later again
//! music        ▏switch ──► ◄── ▏play ──► ◄── first notes                         every 5 s
//! recommender  ▏query ──► ◄── places                                             after about 20 s
//!              ├──── response time ────┤
//! ```
//!
//! The patterns are RAVEN's; sizes that the paper does not give are assumed. Instead of TCP, a
//! message is a few UDP packets, each acknowledged and retransmitted after a doubling timeout: as
//! with TCP, a request waits for its slowest packet, but there is no congestion control.
//!
//! Source: RAVEN section 5.2.

mod message;

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use roadweave_emulate::{Direction, Random};
use roadweave_proto::Instant;
use serde::{Deserialize, Serialize};

use self::message::{Header, Incoming, MessageKind, Outgoing};
use super::{Base, Detail, Traffic, TrafficReport, TrafficSpec};
use crate::inner;
use crate::video::quality::Percentiles;

roadweave_proto::named! {
    /// An interactive application.
    App {
        /// Utterances of one to four seconds; after 100 ms of silence the text is requested.
        Speech = "speech",
        /// A new song every 5 s, which takes two round trips.
        Music = "music",
        /// Queries after pauses of 20 s with a deviation of 3.7 s.
        Recommender = "recommender",
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RequestReport {
    /// Requests that were answered or timed out.
    pub asked: u64,
    pub answered: u64,
    /// Time from a request to its last answer, of answered requests.
    pub response_ms: Percentiles,
    /// Response times of answered requests, ascending.
    #[serde(skip)]
    pub responses: Vec<Duration>,
}

#[derive(Debug)]
pub struct RequestTraffic {
    base: Base,
    app: App,
    random: Random,
    end: Instant,
    next_request: Instant,
    number: u32,
    current: Option<PendingRequest>,
    acknowledgements: VecDeque<(Direction, Header)>,
    responses: Vec<Duration>,
    asked: u64,
    sent_packets: usize,
    delays: Vec<Duration>,
}

#[derive(Debug)]
struct PendingRequest {
    began: Instant,
    asked: Instant,
    turn: u8,
    up: Outgoing,
    up_arrived: Incoming,
    down: Option<Outgoing>,
    down_arrived: Incoming,
}

impl RequestTraffic {
    pub fn new(spec: &TrafficSpec, app: App, start: Instant, seed: u64) -> Self {
        let begin = start + spec.begin;
        Self {
            base: Base::of(spec),
            app,
            random: Random::new(seed),
            end: begin + spec.lasting,
            next_request: begin,
            number: 0,
            current: None,
            acknowledgements: VecDeque::new(),
            responses: Vec::new(),
            asked: 0,
            sent_packets: 0,
            delays: Vec::new(),
        }
    }

    fn begin(&mut self, now: Instant) {
        self.number += 1;
        let up = match self.app {
            App::Speech => Outgoing::speech(now, spoken(&mut self.random)),
            App::Music | App::Recommender => Outgoing::message(now, self.app.turn(0).0),
        };
        self.current = Some(PendingRequest {
            began: now,
            asked: up.complete_at(),
            turn: 0,
            up,
            up_arrived: Incoming::default(),
            down: None,
            down_arrived: Incoming::default(),
        });
    }

    fn end_request(&mut self, now: Instant, answered: bool) {
        let Some(request) = self.current.take() else { return };
        self.asked += 1;
        if answered {
            self.responses.push(now.since(request.asked));
        }
        self.next_request = self.app.next_after(now, request.began, &mut self.random);
    }

    fn keep_up(&mut self, now: Instant) {
        let over = |request: &PendingRequest| now >= request.asked + REQUEST_TIMEOUT;
        if self.current.as_ref().is_some_and(over) {
            self.end_request(now, false);
        }
        if self.current.is_none() && now >= self.next_request && now < self.end {
            self.begin(now);
        }
    }

    fn on_data(&mut self, now: Instant, direction: Direction, header: Header) {
        let acknowledgement = Header { kind: MessageKind::Acknowledgement, ..header };
        self.acknowledgements.push_back((direction.opposite(), acknowledgement));
        let number = self.number;
        let Some(request) = self.current.as_mut().filter(|_| header.request == number) else {
            return;
        };
        if header.turn != request.turn {
            return;
        }
        let incoming = match direction {
            Direction::Up => &mut request.up_arrived,
            Direction::Down => &mut request.down_arrived,
        };
        if !incoming.handle(&header) {
            return;
        }
        match direction {
            Direction::Up => {
                let (_, answer) = self.app.turn(request.turn);
                request.down = Some(Outgoing::message(now, answer));
            }
            Direction::Down if request.turn + 1 == self.app.turns() => self.end_request(now, true),
            Direction::Down => {
                request.turn += 1;
                request.up = Outgoing::message(now, self.app.turn(request.turn).0);
                (request.up_arrived, request.down_arrived) = Default::default();
                request.down = None;
            }
        }
    }

    fn on_acknowledgement(&mut self, direction: Direction, header: Header) {
        let number = self.number;
        let Some(request) = self.current.as_mut() else { return };
        if header.request != number || header.turn != request.turn {
            return;
        }
        match direction {
            Direction::Up => request.down.iter_mut().for_each(|down| down.settle(header.index)),
            Direction::Down => request.up.settle(header.index),
        }
    }

    fn next_packet(&mut self, now: Instant) -> Option<(Direction, Header, usize)> {
        if let Some((direction, header)) = self.acknowledgements.pop_front() {
            return Some((direction, header, Header::LEN));
        }
        let (number, request) = (self.number, self.current.as_mut()?);
        let turn = request.turn;
        let up = request.up.poll(now).map(|packet| (Direction::Up, packet));
        let down = || Some((Direction::Down, request.down.as_mut()?.poll(now)?));
        let (direction, (index, count, bytes)) = up.or_else(down)?;
        let header =
            Header { kind: MessageKind::Data, turn, index, count, request: number, sent: now };
        Some((direction, header, bytes))
    }
}

impl Traffic for RequestTraffic {
    fn port(&self) -> u16 {
        self.base.port
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let Some(request) = &self.current else {
            return (self.next_request < self.end).then_some(self.next_request);
        };
        let down = request.down.as_ref().and_then(Outgoing::poll_timeout);
        [request.up.poll_timeout(), down, Some(request.asked + REQUEST_TIMEOUT)]
            .into_iter()
            .flatten()
            .min()
    }

    fn poll_transmit(&mut self, now: Instant) -> Option<(Direction, Bytes)> {
        self.keep_up(now);
        let (direction, header, bytes) = self.next_packet(now)?;
        let packet = inner::udp(direction, self.base.port, &header.to_payload(bytes));
        self.sent_packets += 1;
        self.base.sent_bytes += packet.len() as u64;
        Some((direction, packet))
    }

    fn handle_arrival(&mut self, now: Instant, direction: Direction, packet: &Bytes) {
        let header = Header::parse(&inner::payload(packet));
        self.base.count(header.is_some());
        let Some(header) = header else { return };
        match header.kind {
            MessageKind::Data => {
                self.delays.push(now.since(header.sent));
                self.on_data(now, direction, header);
            }
            MessageKind::Acknowledgement => self.on_acknowledgement(direction, header),
        }
    }

    fn report(&self, end: Instant) -> TrafficReport {
        let mut responses = self.responses.clone();
        responses.sort_unstable();
        let mut delays = self.delays.clone();
        delays.sort_unstable();
        let over = |request: &PendingRequest| end >= request.asked + REQUEST_TIMEOUT;
        let detail = Detail::Requests(RequestReport {
            asked: self.asked + u64::from(self.current.as_ref().is_some_and(over)),
            answered: responses.len() as u64,
            response_ms: Percentiles::of_sorted(&responses),
            responses,
        });
        self.base.report(self.sent_packets, &delays, detail)
    }
}

impl App {
    fn turns(self) -> u8 {
        match self {
            Self::Music => 2,
            Self::Speech | Self::Recommender => 1,
        }
    }

    fn next_after(self, now: Instant, began: Instant, random: &mut Random) -> Instant {
        match self {
            Self::Speech => now + SPEECH_PAUSE,
            Self::Music => now.max(began + MUSIC_INTERVAL),
            Self::Recommender => {
                let (mean, deviation) = RECOMMENDER_PAUSE_SECONDS;
                let pause = random.normal_around(mean, deviation).max(1.0);
                now + Duration::from_secs_f64(pause)
            }
        }
    }

    /// Sizes of the message (speech has its own) and the answer of a turn, bytes.
    fn turn(self, turn: u8) -> (usize, usize) {
        match (self, turn) {
            (Self::Speech, _) => (0, 200),
            (Self::Music, 0) => (200, 1_000),
            (Self::Music, _) => (200, 16_000),
            (Self::Recommender, _) => (500, 8_000),
        }
    }
}

fn spoken(random: &mut Random) -> u32 {
    let seconds = SPEECH_SECONDS.0 + random.unit() * SPEECH_SECONDS.1;
    (seconds / CHUNK.as_secs_f64()).round() as u32
}

/// RAVEN section 5.2.
const CHUNK: Duration = Duration::from_millis(100);
/// Minimum duration of an utterance, and its range above the minimum; assumed.
const SPEECH_SECONDS: (f64, f64) = (1.0, 3.0);
/// Assumed.
const SPEECH_PAUSE: Duration = Duration::from_secs(1);
const MUSIC_INTERVAL: Duration = Duration::from_secs(5);
/// Mean and deviation of the pause between two queries (RAVEN section 5.2).
const RECOMMENDER_PAUSE_SECONDS: (f64, f64) = (20.0, 3.7);
/// Assumed.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
