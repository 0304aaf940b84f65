//! The interface that `Serving` needs of a server, a proxy, an anchor, or all shards.

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

/// The only tenant of an anchor with one TUN.
pub(in crate::driver) const TENANT: TenantId = TenantId(0);
/// The period in which clients of a draining server are asked to leave.
pub(in crate::driver) const DRAIN_OVER: Duration = Duration::from_secs(60);

pub(in crate::driver) trait Serves {
    /// Replaces the clients, and the proxies at an anchor. Returns the former tables, to be dropped
    /// where it does not delay packets.
    fn replace(
        &mut self,
        now: Instant,
        change: PeersChange,
        proxies: Vec<(PublicKey, Peer)>,
        tables: &Tables,
    ) -> Vec<Arc<Peers>>;

    /// Blocks these keys and ends their sessions.
    fn revoke(&mut self, now: Instant, keys: Vec<PublicKey>, tables: &Tables);

    /// Whether all sessions affected by earlier changes have ended.
    fn is_settled(&self) -> bool;

    /// Starts or ends draining for the controller.
    fn set_drained(&mut self, now: Instant, drained: bool);

    /// Sets a proxy's tenants; the first of two with the same name counts.
    fn set_anchors(&mut self, now: Instant, anchors: Vec<ProxyTenant>);

    fn set_anchor_addresses(&mut self, anchor: PublicKey, addresses: Vec<SocketAddr>);

    fn is_leg_up(&self, anchor: PublicKey) -> bool;

    fn has_session(&self, key: &PublicKey) -> bool;

    /// The number of sessions, or of attached clients.
    fn sessions(&self) -> usize;

    fn figures(&self, most: usize) -> Vec<SessionFigures>;

    /// A proxy's round trips to its anchors, by tenant.
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

    /// Ends bindings of devices and legs of proxies.
    fn revoke(&mut self, now: Instant, keys: Vec<PublicKey>, tables: &Tables) {
        tables.for_each(|table| table.revoke(keys.iter().copied()));
        self.on_time_of_day(now);
    }

    fn is_settled(&self) -> bool {
        true
    }

    /// Clients leave as their proxies are drained.
    fn set_drained(&mut self, _: Instant, _: bool) {}

    fn set_anchors(&mut self, _: Instant, _: Vec<ProxyTenant>) {}

    fn set_anchor_addresses(&mut self, _: PublicKey, _: Vec<SocketAddr>) {}

    fn is_leg_up(&self, _: PublicKey) -> bool {
        false
    }

    /// An anchor is not notified when a client leaves its proxy.
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

pub(in crate::driver) trait Learns {
    fn ask_learned(&mut self);

    fn ask_all_learned(&mut self);

    fn learned(&self) -> Learned;

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

pub(in crate::driver) struct LearnedFile {
    file: StateFile,
    next: Instant,
}

impl LearnedFile {
    pub(in crate::driver) fn restore(mut file: StateFile, server: &mut impl Learns) -> Self {
        server.restore(file.read());
        Self { file, next: Instant::ZERO + STATE_INTERVAL }
    }

    pub(in crate::driver) fn tell_time_of_day(&mut self, now: Instant, server: &mut impl Learns) {
        server.ask_learned();
        if self.next <= now {
            self.next = now + STATE_INTERVAL;
            self.file.write(&server.learned());
        }
    }

    pub(in crate::driver) fn write_last(&mut self, server: &mut impl Learns) {
        server.ask_all_learned();
        self.file.write_last(&server.learned());
    }
}

impl Serving {
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
