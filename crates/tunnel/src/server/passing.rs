//! The server as a proxy: its sessions and the legs to the anchors of their tenants.
//!
//! ```text
//! hello ─► is the tenant's anchor reached? ─► welcome, with the anchor ─► binding ─► attachment
//! ```

use std::net::SocketAddr;

use ipnet::IpNet;
use roadweave_identity::PublicKey;
use roadweave_proto::wire::{Binding, Control, Detached, Hello, InnerPacket, Reason, TenantAnchor};
use roadweave_proto::{DropReason, Instant};
use roadweave_quic::ConnectionId;

use super::{Direction, Joined, Server, ServerEvent};
use crate::peers::Peer;
use crate::proxy::{LegEvent, ProxyTenant};

impl Server {
    /// Replaces the tenants, if this is a proxy. Sessions of tenants that are gone or have another
    /// anchor end, and so do all that are about to begin: clients return at once and sign for the
    /// present anchor. Changed addresses and rates of tenants apply at once.
    pub fn set_tenants(&mut self, now: Instant, tenants: Vec<ProxyTenant>) {
        let Some(legs) = &self.legs else { return };
        let moved = legs.moved(&tenants);
        if !moved.is_empty() {
            let is_moved = |joined: &Joined| moved.contains(&joined.peer.tenant);
            let ended = self.sessions.all.iter().filter(|(_, joined)| is_moved(joined));
            let begun = self.welcomed.iter().copied().chain(self.standbys.ids());
            let ended: Vec<ConnectionId> = ended.map(|(id, _)| *id).chain(begun).collect();
            for id in ended {
                self.end(now, id, "the anchor of its tenant is another");
            }
        }
        if let Some(legs) = &mut self.legs {
            legs.set_tenants(now, tenants);
        }
    }

    /// Sets the addresses of an anchor, each tried in turn while its leg is not up.
    pub fn set_anchor_addresses(&mut self, anchor: PublicKey, addresses: Vec<SocketAddr>) {
        if let Some(legs) = &mut self.legs {
            legs.set_addresses(anchor, addresses);
        }
    }

    /// Whether the leg to an anchor is up.
    pub fn is_leg_up(&self, anchor: PublicKey) -> bool {
        self.legs.as_ref().is_some_and(|legs| legs.is_up(anchor))
    }

    /// For a proxy the anchor to sign for; the gateways to announce; or why there is no service.
    pub(super) fn anchor_of(
        &self,
        now: Instant,
        peer: &Peer,
    ) -> Result<(Option<TenantAnchor>, &[IpNet]), &'static str> {
        match &self.legs {
            None => Ok((None, &self.config.gateways)),
            Some(legs) => {
                let (anchor, gateways) = legs.anchor_of(now, &peer.tenant)?;
                Ok((Some(anchor), gateways))
            }
        }
    }

    pub(super) fn agree_to_relay(&mut self, id: ConnectionId, hello: &Hello) -> bool {
        let legs = self.legs.as_ref().filter(|_| hello.streams.is_some());
        let relays = legs.is_some_and(|legs| legs.frames.is_some());
        if relays {
            self.relaying.insert(id);
        }
        relays
    }

    pub(super) fn on_binding(&mut self, now: Instant, id: ConnectionId, binding: Binding) {
        let Some(legs) = &mut self.legs else {
            return self.drops.count(DropReason::UnknownMessage);
        };
        if let Err(kind) = legs.bind(now, id, binding) {
            self.shared.refuse(|all| all.count_silently(kind));
        }
    }

    pub(super) fn take_leg_events(&mut self, now: Instant) {
        while let Some(event) = self.legs.as_mut().and_then(|legs| legs.events.pop_front()) {
            match event {
                LegEvent::Down(id, packet) => self.hand_down(now, id, &packet),
                LegEvent::Newest(id, newest) => self.send_control(id, &Control::Binding(newest)),
                LegEvent::Refused(id, why) => {
                    let (reason, why) = match why {
                        Detached::Superseded => {
                            ("the client has a newer session elsewhere".into(), Reason::Superseded)
                        }
                        why => {
                            let why = why.name();
                            (format!("the tenant's anchor does not take it: {why}"), Reason::Other)
                        }
                    };
                    self.send_control(id, &Control::Refuse { reason, why });
                }
                LegEvent::Streams(id, streams) => {
                    self.send_control(id, &Control::Streams(streams));
                }
                LegEvent::StreamsOver(id) => self.end(now, id, "the client's streams are over"),
                LegEvent::Frames(id) => _ = self.sessions.touched.insert(id),
                // Packets that it sends here are lost until the leg is back.
                LegEvent::Away(id) => {
                    self.send_control(id, &Control::Move { why: Reason::Other, grace: None });
                }
                LegEvent::StandbysAway => self.end_useless_standbys(now),
                LegEvent::Text(text) => self.events.push_back(ServerEvent::Leg { text }),
            }
        }
    }

    fn end_useless_standbys(&mut self, now: Instant) {
        for key in self.standbys.keys().collect::<Vec<_>>() {
            let why = self.let_in(&key).ok().and_then(|peer| self.anchor_of(now, &peer).err());
            if let (Some(why), Some(id)) = (why, self.standbys.of(&key)) {
                self.end(now, id, why);
            }
        }
    }

    fn hand_down(&mut self, now: Instant, id: ConnectionId, packet: &[u8]) {
        let Some(joined) = self.sessions.all.get_mut(&id) else { return };
        match InnerPacket::parse(packet) {
            Ok(view) => {
                if joined.allows(now, Direction::Down, packet.len()) {
                    joined.session.handle_parsed_inner(now, packet, &view);
                }
                self.sessions.touched.insert(id);
            }
            Err(_) => self.drops.count(DropReason::MalformedInner),
        }
    }

    fn send_control(&mut self, id: ConnectionId, message: &Control) {
        if let Some(connection) = self.endpoint.connection_mut(id)
            && let Err(error) = connection.send_message(message.to_bytes())
        {
            tracing::debug!(%error, "cannot notify a client of its anchor");
        }
        self.sessions.touched.insert(id);
    }
}
