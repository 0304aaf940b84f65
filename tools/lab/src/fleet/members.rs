//! Boxes and proxies of a fleet: an agent each, and its stream to a replica.

use std::time::Duration;

use roadweave_fleet::{Agent, Down, FrameDecoder, PersistedState, Role, Up, encode};
use roadweave_proto::Instant;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::agenda::{Agenda, FleetEvent};
use super::roster::Roster;

/// Bytes of opening a stream: TCP and TLS 1.3 with raw keys.
const OPENING: u64 = 3_000;
/// Overhead per message: a TLS record, and two TCP/IPv4 headers with timestamps, one for the ACK.
const ENVELOPING: u64 = 29 + 2 * 52;
const KEEPALIVE_MS: u64 = 60_000;
const SOFTWARE: &str = "1.0.0";

pub(super) struct FleetMember {
    pub agent: Agent,
    /// The replica at the other end, and the number of the stream.
    pub stream: Option<(usize, u64)>,
    pub attempt: u64,
    pub tries: u32,
    timeout: Option<Instant>,
    connected_since: Instant,
    up_until: Instant,
    down_until: Instant,
    /// Streams opened, messages with their bytes, and time with a stream in ms.
    opened: u64,
    pub messages: u64,
    bytes: u64,
    connected_ms: u64,
    is_thorough: bool,
}

impl FleetMember {
    pub fn new(agent: Agent, is_thorough: bool) -> Self {
        Self {
            agent,
            stream: None,
            attempt: 0,
            tries: 0,
            timeout: None,
            connected_since: Instant::ZERO,
            up_until: Instant::ZERO,
            down_until: Instant::ZERO,
            opened: 0,
            messages: 0,
            bytes: 0,
            connected_ms: 0,
            is_thorough,
        }
    }

    /// Gives the member its signed place in the fleet.
    pub fn enrol(&mut self, roster: &Roster, who: usize) {
        let (chain, tenant) = (roster.chain(who), roster.tenant(who).clone());
        self.agent.on_stream_up(Instant::ZERO);
        self.agent.handle_frame(Instant::ZERO, Down::Welcome { chain, tenant });
        self.agent.on_stream_down(Instant::ZERO);
        while self.agent.poll_frame().is_some() {}
        while self.agent.poll_event().is_some() {}
    }

    pub fn restart(&mut self, roster: &Roster, now: Instant, who: usize) {
        let persisted = self.agent.persisted();
        let persisted: PersistedState = match self.is_thorough {
            true => {
                let text = serde_json::to_string(persisted).expect("it is written as JSON");
                serde_json::from_str(&text).expect("it reads what it has written")
            }
            false => persisted.clone(),
        };
        self.agent = Agent::restore(now, roster.key(who), role(roster, who), SOFTWARE, persisted);
    }

    pub fn connect_after(&mut self, agenda: &mut Agenda, who: usize, span: Duration) {
        self.attempt += 1;
        agenda.after(span, FleetEvent::Connect { who, attempt: self.attempt });
    }

    pub fn on_stream_up(&mut self, now: Instant, replica: usize, stream: u64) {
        self.stream = Some((replica, stream));
        (self.tries, self.connected_since) = (0, now);
        self.opened += 1;
        self.agent.on_stream_up(now);
    }

    /// Ends the stream, if there is one, and returns it.
    pub fn on_stream_down(&mut self, now: Instant) -> Option<(usize, u64)> {
        let ended = self.stream.take()?;
        self.connected_ms += (now - self.connected_since).as_millis() as u64;
        self.agent.on_stream_down(now);
        Some(ended)
    }

    pub fn handle_timeout(&mut self, now: Instant) {
        self.timeout = None;
        self.agent.handle_timeout(now);
    }

    /// Sends what the agent has to send, and plans its timeout.
    pub fn send(&mut self, agenda: &mut Agenda, who: usize) {
        let frames: Vec<Up> = std::iter::from_fn(|| self.agent.poll_frame()).collect();
        if let Some(at) = self.agent.poll_timeout()
            && self.timeout.is_none_or(|set| at < set)
        {
            self.timeout = Some(at);
            agenda.at(at, FleetEvent::Timeout { who });
        }
        let Some((_, stream)) = self.stream.filter(|_| !frames.is_empty()) else { return };
        let frames = frames.into_iter().map(|frame| self.cross(frame)).collect();
        // Streams are ordered.
        self.up_until = self.up_until.max(agenda.now + agenda.between(10, 80));
        agenda.at(self.up_until, FleetEvent::Up { who, stream, frames });
    }

    /// Frames of a replica on their way to the member.
    pub fn send_down(&mut self, agenda: &mut Agenda, who: usize, stream: u64, frames: Vec<Down>) {
        if frames.is_empty() {
            return;
        }
        let frames = frames.into_iter().map(|frame| self.cross(frame)).collect();
        self.down_until = self.down_until.max(agenda.now + agenda.between(10, 80));
        agenda.at(self.down_until, FleetEvent::Down { who, stream, frames });
    }

    /// Bytes of all streams until `now`, with headers and keep-alives.
    pub fn traffic(&self, now: Instant) -> u64 {
        let open = self.stream.map_or(0, |_| (now - self.connected_since).as_millis() as u64);
        let keepalives = 2 * ((self.connected_ms + open) / KEEPALIVE_MS);
        self.bytes + self.opened * OPENING + keepalives * (4 + ENVELOPING)
    }

    fn cross<T: Serialize + DeserializeOwned>(&mut self, message: T) -> T {
        let bytes = encode(&message).expect("a message of the product fits a frame");
        self.messages += 1;
        self.bytes += bytes.len() as u64 + ENVELOPING;
        if !self.is_thorough {
            return message;
        }
        let mut decoder = FrameDecoder::default();
        decoder.push(&bytes);
        decoder.poll().expect("it reads what it has written").expect("a whole message")
    }
}

pub(super) fn newcomer(roster: &Roster, now: Instant, who: usize) -> Agent {
    Agent::joining(now, roster.key(who), role(roster, who), SOFTWARE, roster.joining(who))
}

fn role(roster: &Roster, who: usize) -> Role {
    if roster.is_box(who) { Role::Box } else { Role::Proxy }
}
