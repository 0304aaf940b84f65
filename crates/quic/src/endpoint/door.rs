//! What a server that is late does with clients that begin: it turns most of them away, before it
//! spends anything on them.
//!
//! ```text
//! first packet ─► has it lain here for 300 ms? ─ no ──► as ever: HalfOpen
//!                   │ yes: its client has sent it again by now
//!                   └► 16 handshakes begun of late, or 8 of its source? ─ no ─► as ever
//!                        └ yes: the door is shut: the library drops it, without keys or TLS
//! ```
//!
//! A server that is late would stay so if it began more than it can complete, and the keys of a
//! first packet alone are a sixth of what a late server does. So the library is told to begin
//! nothing while such a packet is handed to it: it knows which packets belong to handshakes under
//! way, and these it takes.
//!
//! A handshake takes one of the places for 2 s, by the time at which what is read now had come:
//! what its client has answered within these was handed over. It lives on after that, and nobody
//! is driven out; but whoever is silent, or goes on without ever being done, keeps nobody else out
//! for longer, and a single source has half of the places at most. Whoever wants to use this to
//! keep others away must make the server late first, by more packets than it can read, and then
//! send as many first packets as all others together from many addresses; that is a flood, which
//! is as bad for sessions.

use std::sync::Arc;
use std::time::Duration;

use roadweave_proto::Instant;

use super::Endpoint;
use super::half_open::HalfOpen;
use crate::source::Source;

/// Whether clients may begin with a server.
pub(super) struct Door {
    open: Arc<noq_proto::ServerConfig>,
    shut: Arc<noq_proto::ServerConfig>,
    is_shut: bool,
}

impl Door {
    /// The door of a server with these settings, which is open.
    pub(super) fn new(config: noq_proto::ServerConfig) -> Self {
        let mut shut = config.clone();
        // The library looks at this before anything else, and after it has found no connection.
        shut.max_incoming(0);
        Self { open: Arc::new(config), shut: Arc::new(shut), is_shut: false }
    }

    /// The settings by which clients may begin.
    pub(super) fn open(&self) -> Arc<noq_proto::ServerConfig> {
        self.open.clone()
    }

    fn set(&mut self, quic: &mut noq_proto::Endpoint, shut: bool) {
        if self.is_shut != shut {
            self.is_shut = shut;
            let config = if shut { &self.shut } else { &self.open };
            quic.set_server_config(Some(config.clone()));
        }
    }
}

impl Endpoint {
    /// Opens or shuts the door for a packet that the library will be handed next. Returns whether
    /// it turns away a client that begins with it.
    pub(super) fn set_door(&mut self, now: Instant, source: &Source, packet: &[u8]) -> bool {
        let Some(door) = self.door.as_mut().filter(|_| is_first(packet)) else { return false };
        let received = source.received_by(now);
        let shut =
            now.since(received) > REPEATED_AFTER && has_no_place(&self.half_open, received, source);
        door.set(&mut self.quic, shut);
        shut
    }
}

/// Whether all places are taken, or all that one source may have, at `received`.
fn has_no_place(half_open: &HalfOpen, received: Instant, source: &Source) -> bool {
    let (all, own) = half_open.begun_since(received, PLACE_TIME, source.remote, PLACES);
    all >= PLACES || own >= PLACES_OF_SOURCE
}

/// Whether it may be a client's first packet (RFC 9000 sections 14.1 and 17.2.2; RFC 9000 section
/// 15 for the version).
fn is_first(packet: &[u8]) -> bool {
    let is_initial = packet.first().is_some_and(|first| first & LONG_AND_TYPE == LONG_INITIAL);
    packet.len() >= INITIAL_MIN && is_initial && packet[1..5] == VERSION_1
}

/// A client repeats its first packet that nobody answers for so long: one that lay here as long has
/// a successor by now, if there is still anybody.
const REPEATED_AFTER: Duration = Duration::from_millis(300);
/// Handshakes that may be under way while this end is so late.
const PLACES: usize = 16;
/// How many of them one source may have.
const PLACES_OF_SOURCE: usize = PLACES / 2;
/// For so long a handshake has its place: a client whose network takes half of that for a round
/// trip may have lost a packet and sent it again.
const PLACE_TIME: Duration = Duration::from_secs(2);
const LONG_AND_TYPE: u8 = 0xb0;
const LONG_INITIAL: u8 = 0x80;
const INITIAL_MIN: usize = 1_200;
const VERSION_1: [u8; 4] = [0, 0, 0, 1];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_may_be_a_first_packet_is_taken_for_one() {
        let with = |change: fn(&mut Vec<u8>)| {
            let mut packet = vec![0xc7, 0, 0, 0, 1];
            packet.resize(1_200, 0);
            change(&mut packet);
            is_first(&packet)
        };
        assert!(with(|_| {}));
        // The fixed bit may be greased (RFC 9287).
        assert!(with(|packet| packet[0] = 0x80));
        assert!(!with(|packet| packet[0] = 0xe0), "another packet of a handshake");
        assert!(!with(|packet| packet[0] = 0x40), "of a connection");
        assert!(!with(|packet| packet[4] = 2), "of another version");
        for len in 0..1_200 {
            assert!(!is_first(&[0xc0, 0, 0, 0, 1].repeat(240)[..len]));
        }
    }
}
