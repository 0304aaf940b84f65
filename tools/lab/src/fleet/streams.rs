//! Streams between members and replicas: connecting, delays, and failures, noticed or not.

use std::time::Duration;

use roadweave_fleet::{Down, FrameDecoder, Up, encode};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::members::FleetMember;
use super::{FleetEvent, FleetWorld};

/// Bytes of opening a stream: TCP and TLS 1.3 with raw keys.
const OPENING: u64 = 3_000;
/// Overhead per message: a TLS record, and two TCP/IPv4 headers with timestamps, one for the ACK.
const ENVELOPING: u64 = 29 + 2 * 52;
const KEEPALIVE_MS: u64 = 60_000;
/// Silence after which a replica drops a stream.
const EXPIRY: Duration = Duration::from_secs(75);

impl FleetMember {
    fn count(&mut self, message: &impl Serialize) -> Vec<u8> {
        let bytes = encode(message).expect("a message of the product fits a frame");
        self.messages += 1;
        self.bytes += bytes.len() as u64 + ENVELOPING;
        bytes
    }

    pub fn traffic(&self) -> u64 {
        let keepalives = 2 * (self.connected_ms / KEEPALIVE_MS);
        self.bytes + self.opened * OPENING + keepalives * (4 + ENVELOPING)
    }
}

impl FleetWorld {
    pub(super) fn connect_after(&mut self, who: usize, span: Duration) {
        self.members[who].attempt += 1;
        let attempt = self.members[who].attempt;
        self.after(span, FleetEvent::Connect { who, attempt });
    }

    fn has_network(&self, who: usize) -> bool {
        match self.roster.is_box(who) {
            true => {
                let ride = &self.rides[who];
                !ride.is_in_garage && !ride.is_cut_off
            }
            false => {
                let model = &self.proxies[who - self.roster.boxes];
                model.is_running() && !model.is_partitioned
            }
        }
    }

    pub(super) fn connect(&mut self, who: usize, attempt: u64) {
        let member = &mut self.members[who];
        if attempt != member.attempt || member.stream.is_some() || !self.has_network(who) {
            return;
        }
        let replica = self.random.below(self.replicas.len());
        let answers = self.replicas[replica].is_up && !self.replicas[replica].is_hung;
        if !answers || self.is_database_away {
            self.members[who].tries += 1;
            let most = 1_000 << self.members[who].tries.min(5);
            let wait = self.between(most / 2, most);
            return self.connect_after(who, wait);
        }
        self.streams += 1;
        let (stream, now) = (self.streams, self.now);
        let member = &mut self.members[who];
        member.stream = Some((replica, stream));
        (member.tries, member.connected_since) = (0, now);
        member.opened += 1;
        self.open_desk(replica, who, stream);
        self.members[who].agent.on_stream_up(now);
        self.flush(who);
    }

    pub(super) fn drop_stream(&mut self, who: usize, again: Option<Duration>) {
        let now = self.now;
        let member = &mut self.members[who];
        if let Some((replica, stream)) = member.stream.take() {
            member.connected_ms += (now - member.connected_since).as_millis() as u64;
            member.agent.on_stream_down(now);
            // A member without a network cannot send a close.
            let span = if self.has_network(who) { Duration::from_millis(20) } else { EXPIRY };
            self.after(span, FleetEvent::Expire { replica, who, stream });
            self.flush(who);
        }
        if let Some(again) = again {
            self.connect_after(who, again);
        }
    }

    pub(super) fn expire_later(&mut self, who: usize) {
        if let Some((replica, stream)) = self.members[who].stream {
            self.after(EXPIRY, FleetEvent::Expire { replica, who, stream });
        }
    }

    pub(super) fn drop_desk(&mut self, replica: usize, who: usize, stream: Option<u64>) {
        let desk = self.replicas[replica].desks.get(&who);
        let Some((held, _)) = desk else { return };
        let is_live = self.members[who].stream == Some((replica, *held));
        let is_frozen = !self.roster.is_box(who) && self.proxies[who - self.roster.boxes].is_frozen;
        // The member returned in time.
        if stream.is_some_and(|stream| stream != *held || (is_live && !is_frozen)) {
            return;
        }
        self.replicas[replica].close(who);
    }

    pub(super) fn send_up(&mut self, who: usize, frames: Vec<Up>) {
        let Some((_, stream)) = self.members[who].stream else { return };
        if frames.is_empty() {
            return;
        }
        let frames = frames.into_iter().map(|frame| self.cross(who, frame)).collect();
        let at = self.now + self.between(10, 80);
        // Streams are ordered.
        let at = at.max(self.members[who].up_until);
        self.members[who].up_until = at;
        self.at(at, FleetEvent::Up { who, stream, frames });
    }

    pub(super) fn send_down(&mut self, who: usize, stream: u64, frames: Vec<Down>) {
        if frames.is_empty() {
            return;
        }
        let frames = frames.into_iter().map(|frame| self.cross(who, frame)).collect();
        let at = self.now + self.between(10, 80);
        let at = at.max(self.members[who].down_until);
        self.members[who].down_until = at;
        self.at(at, FleetEvent::Down { who, stream, frames });
    }

    fn cross<T: Serialize + DeserializeOwned>(&mut self, who: usize, message: T) -> T {
        let bytes = self.members[who].count(&message);
        if !self.config.is_thorough {
            return message;
        }
        let mut decoder = FrameDecoder::default();
        decoder.push(&bytes);
        decoder.poll().expect("it reads what it has written").expect("a whole message")
    }

    pub(super) fn handle_down(&mut self, who: usize, stream: u64, frames: Vec<Down>) {
        if self.members[who].stream.map(|(_, held)| held) != Some(stream) {
            return;
        }
        if !self.roster.is_box(who) {
            let model = &mut self.proxies[who - self.roster.boxes];
            if model.is_frozen {
                return model.backlog.push((stream, frames));
            }
        }
        let now = self.now;
        for frame in frames {
            self.members[who].agent.handle_frame(now, frame);
            // A driver polls after every call.
            self.flush(who);
        }
    }
}
