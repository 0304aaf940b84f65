//! Hostile surroundings: off-path attackers beside links, captive portals, unusable servers.
//!
//! ```text
//! client ─► link up ─┬─► the server at the address ─────────────► link down ─► client
//!                    ├─► an observer reads it, and forges ─────────────────────► client
//!                    ├─► a portal, instead of any server ───────► link down ─► client
//!                    └─► a server that refuses or has another key ► link down ─► client
//! ```
//!
//! All randomness comes from the link's seed.

use std::net::{IpAddr, SocketAddr};

use bytes::Bytes;
use roadweave_emulate::Random;
use roadweave_emulate::forge::{Eavesdropper, stateless_reset};
use roadweave_proto::{Instant, UplinkId};
use roadweave_quic::{Epoch, Outbox};
use roadweave_tunnel::{Io, Node as _, RecvMeta, Server, turn};

use super::config::{Hostility, OtherServer, WorldConfig, WorldError};
use super::ends;

#[derive(Debug)]
pub(super) enum Neighbour {
    Server { server: Box<Server>, due: Option<Instant>, touched: bool },
    OtherVersion,
    Silent,
}

impl Neighbour {
    pub(super) fn new(
        epoch: Epoch,
        world: &WorldConfig,
        kind: OtherServer,
    ) -> Result<Self, WorldError> {
        Ok(match kind {
            OtherServer::Refuses | OtherServer::WrongKey => {
                let server = Box::new(ends::other_server(epoch, world, kind)?);
                Self::Server { server, due: None, touched: true }
            }
            OtherServer::OtherVersion => Self::OtherVersion,
            OtherServer::Silent => Self::Silent,
        })
    }

    pub(super) fn handle_packet(
        &mut self,
        now: Instant,
        remote: SocketAddr,
        to: SocketAddr,
        packet: &[u8],
    ) -> Option<Vec<u8>> {
        match self {
            Self::Server { server, touched, .. } => {
                let socket = UplinkId(0);
                let meta =
                    RecvMeta { socket, remote, local: Some(to.ip()), ecn: None, received: None };
                server.handle_packet(now, &meta, packet);
                *touched = true;
                None
            }
            Self::OtherVersion => {
                Some(Eavesdropper::of(packet)?.version_negotiation(&[0x0a0a_0a0a, 0x6b33_43cf]))
            }
            Self::Silent => None,
        }
    }

    pub(super) fn flush(&mut self, now: Instant, send: impl FnMut(SocketAddr, IpAddr, &[u8])) {
        let Self::Server { server, due, touched } = self else { return };
        if !std::mem::take(touched) && due.is_none_or(|due| now < due) {
            return;
        }
        turn(&mut **server, &mut NeighbourIo { now, send });
        while server.poll_event().is_some() {}
        *due = server.poll_timeout();
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        match self {
            Self::Server { due, .. } => *due,
            _ => None,
        }
    }
}

struct NeighbourIo<F> {
    now: Instant,
    send: F,
}

impl<F: FnMut(SocketAddr, IpAddr, &[u8])> Io for NeighbourIo<F> {
    fn now(&self) -> Instant {
        self.now
    }

    fn deliver(&mut self, packets: &mut dyn Iterator<Item = Bytes>) {
        packets.for_each(drop);
    }

    fn transmit(&mut self, packets: &Outbox) {
        for (route, packet) in packets.packets() {
            let from = route.source.unwrap_or(super::SERVER.ip());
            (self.send)(route.destination, from, packet);
        }
    }
}

#[derive(Debug)]
pub(super) struct Hostile {
    pub(super) kind: Hostility,
    random: Random,
    eavesdropper: Option<Eavesdropper>,
    passed: u32,
}

impl Hostile {
    pub(super) fn new(kind: Hostility) -> Self {
        let seed = match kind {
            Hostility::Stranger(stranger) => stranger.seed,
            _ => 0,
        };
        Self { kind, random: Random::new(seed), eavesdropper: None, passed: 0 }
    }

    pub(super) fn lets_pass(&mut self, packet: &[u8]) -> bool {
        if let Some(eavesdropper) = Eavesdropper::of(packet) {
            self.eavesdropper = Some(eavesdropper);
            self.passed = 0;
        }
        let is_handshake = packet.first().is_some_and(|first| first & 0x80 != 0);
        let most = match self.kind {
            Hostility::Stranger(_) | Hostility::Portal => return true,
            Hostility::HandshakesOnly => 0,
            Hostility::FirstPackets(most) => most,
        };
        self.passed += u32::from(!is_handshake);
        is_handshake || self.passed <= most
    }

    pub(super) fn forged(&mut self) -> Vec<Vec<u8>> {
        let Hostility::Stranger(stranger) = self.kind else { return Vec::new() };
        let Some(eavesdropper) = self.eavesdropper.clone() else { return Vec::new() };
        let mut forged = Vec::new();
        if self.random.chance(stranger.close) {
            let code = CODES[self.random.below(CODES.len())];
            forged.push(eavesdropper.close(code, b"no\njoined server=me"));
        }
        if self.random.chance(stranger.frames) {
            let length = 1 + self.random.below(200);
            let frames: Vec<u8> = (0..length).map(|_| self.random.bits() as u8).collect();
            forged.push(eavesdropper.initial(self.random.bits() as u8, &frames));
        }
        if self.random.chance(stranger.versions) {
            let count = self.random.below(8);
            // Not version 1.
            let versions: Vec<u32> =
                (0..count).map(|_| self.random.bits() as u32 | 0x0100_0000).collect();
            forged.push(eavesdropper.version_negotiation(&versions));
        }
        if self.random.chance(stranger.retry) {
            let token: Vec<u8> =
                (0..self.random.below(200)).map(|_| self.random.bits() as u8).collect();
            forged.push(eavesdropper.retry(&token));
        }
        if self.random.chance(stranger.reset) {
            forged.push(stateless_reset(|| self.random.bits()));
        }
        forged
    }
}

/// Codes of forged closes: those for a refused key, and others.
const CODES: [u64; 8] = [0x130, 0x130, 0x12d, 0x12c, 0x131, 0x178, 0x2, 0xa];
