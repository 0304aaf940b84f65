//! What a server or a proxy does, and what an anchor does, of what is the same for both.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use roadweave_identity::PublicKey;
use roadweave_proto::Instant;
use roadweave_tunnel::{
    Anchor, DrainReason, Learned, Peer, Peers, PeersChange, ProxyTenant, Server, ServerEvent,
    SessionFigures, TenantId,
};

use super::super::STATE_INTERVAL;
use super::{Serving, Tables};
use crate::StateFile;

/// The only tenant of an anchor with one device.
pub(in crate::driver) const TENANT: TenantId = TenantId(0);
/// Over how long the clients of a proxy that drains are asked to go.
pub(in crate::driver) const DRAIN_OVER: Duration = Duration::from_secs(60);

/// A node that others come to.
pub(in crate::driver) trait Serves {
    /// Puts other clients, and at an anchor other proxies, in the place of those before, and
    /// returns the former ones, for somebody to drop who has the time.
    fn replace(
        &mut self,
        now: Instant,
        change: PeersChange,
        proxies: Vec<(PublicKey, Peer)>,
        tables: &Tables,
    ) -> Vec<Arc<Peers>>;

    /// Lets nobody in by these keys any more, and ends what they have.
    fn revoke(&mut self, now: Instant, keys: Vec<PublicKey>, tables: &Tables);

    /// Whether nothing is left of what those have that were let in before.
    fn is_settled(&self) -> bool;

    /// Lets go of all clients and takes no new ones, or takes them again, for the controller.
    fn set_drained(&mut self, now: Instant, drained: bool);

    /// The tenants of a proxy with their anchors; the first of two with one name counts.
    fn set_anchors(&mut self, now: Instant, anchors: Vec<ProxyTenant>);

    /// An anchor of a proxy is at these addresses now.
    fn set_anchor_addresses(&mut self, anchor: PublicKey, addresses: Vec<SocketAddr>);

    /// Whether the leg of a proxy to an anchor is up.
    fn is_leg_up(&self, anchor: PublicKey) -> bool;

    /// Whether a client has a session, or may have one.
    fn has_session(&self, key: &PublicKey) -> bool;

    /// How many sessions there are, or attached clients.
    fn sessions(&self) -> usize;

    /// What sessions have carried so far, of `most` of them.
    fn figures(&self, most: usize) -> Vec<SessionFigures>;

    /// How far a proxy is from the anchors of its tenants, by their names.
    fn anchor_round_trips(&self) -> Vec<(String, Duration)>;
}

impl Serves for Server {
    fn replace(
        &mut self,
        _: Instant,
        change: PeersChange,
        _: Vec<(PublicKey, Peer)>,
        _: &Tables,
    ) -> Vec<Arc<Peers>> {
        vec![self.replace_peers(change)]
    }

    fn revoke(&mut self, _: Instant, keys: Vec<PublicKey>, _: &Tables) {
        self.revoke(keys);
    }

    fn is_settled(&self) -> bool {
        self.is_settled()
    }

    fn set_drained(&mut self, now: Instant, drained: bool) {
        match drained {
            true => self.drain(now, DrainReason::Controller, DRAIN_OVER),
            false => self.undrain(DrainReason::Controller),
        }
    }

    fn set_anchors(&mut self, now: Instant, anchors: Vec<ProxyTenant>) {
        self.set_tenants(now, anchors);
    }

    fn set_anchor_addresses(&mut self, anchor: PublicKey, addresses: Vec<SocketAddr>) {
        self.set_anchor_addresses(anchor, addresses);
    }

    fn is_leg_up(&self, anchor: PublicKey) -> bool {
        self.is_leg_up(anchor)
    }

    fn has_session(&self, key: &PublicKey) -> bool {
        self.has_session(key)
    }

    fn sessions(&self) -> usize {
        self.sessions()
    }

    fn figures(&self, most: usize) -> Vec<SessionFigures> {
        self.figures(most)
    }

    fn anchor_round_trips(&self) -> Vec<(String, Duration)> {
        self.anchor_round_trips()
    }
}

impl Serves for Anchor {
    fn replace(
        &mut self,
        now: Instant,
        change: PeersChange,
        proxies: Vec<(PublicKey, Peer)>,
        tables: &Tables,
    ) -> Vec<Arc<Peers>> {
        let mut former: Vec<Arc<Peers>> =
            self.replace_devices(now, TENANT, change).into_iter().collect();
        if let Some(table) = &tables.proxies {
            let change = Peers::after(&table.peers(), proxies);
            former.push(self.replace_proxies(now, change));
        }
        former
    }

    /// Revokes `keys`: the bindings of devices end, and the legs of proxies.
    fn revoke(&mut self, now: Instant, keys: Vec<PublicKey>, tables: &Tables) {
        tables.for_each(|table| table.revoke(keys.iter().copied()));
        self.on_time_of_day(now);
    }

    fn is_settled(&self) -> bool {
        true
    }

    /// Its proxies are drained, and clients go with them.
    fn set_drained(&mut self, _: Instant, _: bool) {}

    fn set_anchors(&mut self, _: Instant, _: Vec<ProxyTenant>) {}

    fn set_anchor_addresses(&mut self, _: PublicKey, _: Vec<SocketAddr>) {}

    fn is_leg_up(&self, _: PublicKey) -> bool {
        false
    }

    /// An anchor does not hear of it when a client leaves its proxy.
    fn has_session(&self, _: &PublicKey) -> bool {
        true
    }

    fn sessions(&self) -> usize {
        self.attached()
    }

    fn figures(&self, _: usize) -> Vec<SessionFigures> {
        Vec::new()
    }

    fn anchor_round_trips(&self) -> Vec<(String, Duration)> {
        Vec::new()
    }
}

/// A server whose strategies learn of the clients' networks.
pub(in crate::driver) trait Learns {
    /// Asks the next session what it has learned.
    fn ask_learned(&mut self);

    /// Asks all of them, before the end.
    fn ask_all_learned(&mut self);

    /// What was learned, as far as sessions were asked.
    fn learned(&self) -> Learned;

    /// Takes up what was learned in an earlier life.
    fn restore(&mut self, learned: Learned);
}

impl Learns for Server {
    fn ask_learned(&mut self) {
        self.ask_learned();
    }

    fn ask_all_learned(&mut self) {
        self.ask_all_learned();
    }

    fn learned(&self) -> Learned {
        self.learned()
    }

    fn restore(&mut self, learned: Learned) {
        self.restore(learned);
    }
}

/// What the strategies of a server's sessions have learned, on the disk.
pub(in crate::driver) struct LearnedFile {
    file: StateFile,
    next: Instant,
}

impl LearnedFile {
    /// Gives `server` what an earlier life of it has learned.
    pub(in crate::driver) fn restore(mut file: StateFile, server: &mut impl Learns) -> Self {
        server.restore(file.read());
        Self { file, next: Instant::ZERO + STATE_INTERVAL }
    }

    /// Gathers it, some sessions at a time, and writes it when that is due.
    pub(in crate::driver) fn tell_time_of_day(&mut self, now: Instant, server: &mut impl Learns) {
        server.ask_learned();
        if self.next <= now {
            self.next = now + STATE_INTERVAL;
            self.file.write(&server.learned());
        }
    }

    /// Gathers and writes all of it.
    pub(in crate::driver) fn write_last(&mut self, server: &mut impl Learns) {
        server.ask_all_learned();
        self.file.write_last(&server.learned());
    }
}

impl Serving {
    /// Tells what has happened at a server or a proxy, as `poll` has it.
    pub(in crate::driver) fn tell_events(
        &mut self,
        now: Instant,
        mut poll: impl FnMut() -> Option<ServerEvent>,
    ) {
        while let Some(event) = poll() {
            match event {
                ServerEvent::Joined { peer, key, .. } => {
                    self.absent.on_joined(&key);
                    if self.may_tell(now, key, &peer) {
                        tracing::info!(peer, %key, event = "joined", "joined");
                    }
                }
                ServerEvent::Left { peer, key, reason } => {
                    if self.may_tell(now, key, &peer) {
                        tracing::info!(peer, reason, event = "left", "left");
                    }
                    self.absent.on_left(now, key, peer, reason);
                }
                ServerEvent::Leg { told } => tracing::warn!("{told}"),
                ServerEvent::Refused { reason } => tracing::warn!("refused {reason}"),
            }
        }
    }
}
