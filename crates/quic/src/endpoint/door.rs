//! A server that reads packets late turns most new clients away before it spends anything on them.
//!
//! ```text
//! first packet ─► has it lain here for 300 ms? ─ no ──► as usual: HalfOpen
//!                   │ yes: its client has sent it again by now
//!                   └► 16 handshakes begun lately, or 8 by its source? ─ no ─► as usual
//!                        └ yes: the door is shut: the library drops it, without keys or TLS
//! ```
//!
//! A server that begins more than it can complete stays late, and the keys of a first packet alone
//! are a sixth of a late server's work. So the library is configured to begin nothing while such a
//! packet is handed to it; it still takes packets of handshakes under way.
//!
//! A handshake holds one of the places for 2 s, by the receipt times of packets. Silent or endless
//! handshakes do not block others for longer, and a single source has at most half of the places.
//! To keep others away an attacker must make the server late, and then send as many first packets
//! as all others together from many addresses; such a flood harms sessions as much.

use std::sync::Arc;
use std::time::Duration;

use roadweave_proto::Instant;

use super::half_open::HalfOpen;
use crate::source::Source;

pub(super) struct Door {
    open: Arc<noq_proto::ServerConfig>,
    shut: Arc<noq_proto::ServerConfig>,
    is_shut: bool,
}

impl Door {
    pub(super) fn new(config: noq_proto::ServerConfig) -> Self {
        let mut shut = config.clone();
        // The library checks this before anything else once it has found no connection.
        shut.max_incoming(0);
        Self { open: Arc::new(config), shut: Arc::new(shut), is_shut: false }
    }

    pub(super) fn open(&self) -> Arc<noq_proto::ServerConfig> {
        self.open.clone()
    }

    /// Returns whether a client that begins with `packet` is turned away.
    pub(super) fn handle_packet(
        &mut self,
        now: Instant,
        source: &Source,
        packet: &[u8],
        half_open: &HalfOpen,
        quic: &mut noq_proto::Endpoint,
    ) -> bool {
        if !is_first(packet) {
            return false;
        }
        let received = source.received_by(now);
        let shut =
            now.since(received) > REPEATED_AFTER && has_no_place(half_open, received, source);
        if self.is_shut != shut {
            self.is_shut = shut;
            let config = if shut { &self.shut } else { &self.open };
            quic.set_server_config(Some(config.clone()));
        }
        shut
    }
}

fn has_no_place(half_open: &HalfOpen, received: Instant, source: &Source) -> bool {
    let (all, own) = half_open.begun_since(received, PLACE_TIME, source.remote, PLACES);
    all >= PLACES || own >= PLACES_OF_SOURCE
}

/// Whether it may be a client's first packet (RFC 9000 sections 14.1, 15 and 17.2.2).
fn is_first(packet: &[u8]) -> bool {
    let is_initial = packet.first().is_some_and(|first| first & LONG_AND_TYPE == LONG_INITIAL);
    packet.len() >= INITIAL_MIN && is_initial && packet[1..5] == VERSION_1
}

/// A client repeats its unanswered first packet after this: an older one has a successor by now.
const REPEATED_AFTER: Duration = Duration::from_millis(300);
const PLACES: usize = 16;
const PLACES_OF_SOURCE: usize = PLACES / 2;
/// A client with a round trip of half of it may have lost a packet and sent it again.
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
        assert!(with(|_| {}) && with(|packet| packet[0] = 0x80));
        assert!(!with(|packet| packet[0] = 0xe0), "another packet of a handshake");
        assert!(!with(|packet| packet[0] = 0x40), "of a connection");
        assert!(!with(|packet| packet[4] = 2), "of another version");
        for len in 0..1_200 {
            assert!(!is_first(&[0xc0, 0, 0, 0, 1].repeat(240)[..len]));
        }
    }
}
