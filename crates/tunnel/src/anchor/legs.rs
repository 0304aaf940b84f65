//! The legs of an anchor: their connections, messages and packets.

use std::sync::Arc;
use std::time::Duration;

use roadweave_identity::PublicKey;
use roadweave_proto::wire::{Binding, Detached, LegMessage, Passed, STREAM_TAG, StreamsOffer};
use roadweave_proto::{DropReason, Instant};
use roadweave_quic::{Connection, ConnectionId, EndpointEvent, Event, TransportConfig};

use super::{Anchor, AnchorEvent};
use crate::bindings::{At, Attach, Attached, DeviceId};
use crate::leg::{FromLeg, LegEnd};
use crate::peers::Peer;
use crate::proxy::LEG_IDLE_MAX;
use crate::rate::Direction;
use crate::server::refusals;
use crate::session::check_inner;

#[derive(Debug)]
pub(super) struct Leg {
    pub(super) proxy: PublicKey,
    pub(super) name: String,
    pub(super) end: LegEnd,
}

#[derive(Debug)]
struct Place {
    device: DeviceId,
    peer: Arc<Peer>,
    former: Option<At>,
}

impl Anchor {
    pub(super) fn pump_endpoint(&mut self, now: Instant) {
        while let Some(event) = self.endpoint.poll_event() {
            match event {
                EndpointEvent::Incoming(id) => {
                    self.begin(now, id);
                    self.pump(now, id);
                }
                EndpointEvent::Refused { remote, key, why } => {
                    let what = format!(" with the key {key}: {why}");
                    let kind = refusals::kind_of_refusal(why);
                    let reason = self.refusals.count(now, kind, what, remote);
                    self.events.extend(reason.map(|reason| AnchorEvent::Refused { reason }));
                }
                EndpointEvent::HandshakeFailed { remote, reason } => {
                    let kind = refusals::kind_of_failure(&reason);
                    let reason = self.refusals.count(now, kind, format!(": {reason}"), remote);
                    self.events.extend(reason.map(|reason| AnchorEvent::Refused { reason }));
                }
            }
        }
    }

    fn begin(&mut self, now: Instant, id: ConnectionId) {
        if self.legs.contains_key(&id) {
            return;
        }
        let Some(proxy) = self.endpoint.connection(id).and_then(Connection::peer) else { return };
        let of_proxy = self.legs.iter().filter(|(_, leg)| leg.proxy == proxy);
        let of_proxy: Vec<ConnectionId> = of_proxy.map(|(id, _)| *id).collect();
        // Dropping a leg that is forgotten or closing does no harm.
        if of_proxy.len() >= LEGS_PER_PROXY_MAX
            && let Some(oldest) = of_proxy.first()
        {
            self.end_leg(now, *oldest, "the proxy has begun newer ones");
        }
        let Some(peer) = self.proxies.get(&proxy) else {
            return self.end_leg(now, id, "this proxy is not let in any more");
        };
        let (name, key) = (peer.name.clone(), proxy);
        self.events.push_back(AnchorEvent::LegUp { proxy: name.clone(), key });
        self.start(now, id, Leg { proxy, name, end: LegEnd::new(self.leg_rate) });
    }

    pub(super) fn start(&mut self, now: Instant, id: ConnectionId, leg: Leg) {
        self.legs.insert(id, leg);
        self.checks.retain(|_, checks| checks.full_at() > now);
    }

    pub(super) fn pump(&mut self, now: Instant, id: ConnectionId) {
        while let Some(event) = self.endpoint.connection_mut(id).and_then(Connection::poll_event) {
            match event {
                // This comes before the endpoint's event.
                Event::Connected { .. } => self.begin(now, id),
                Event::Received { datagram, .. } => {
                    let Some(leg) = self.legs.get_mut(&id) else { continue };
                    match leg.end.handle_datagram(now, datagram) {
                        Some(FromLeg::Passed(passed)) => self.on_passed(now, id, passed),
                        Some(FromLeg::Room(room)) => {
                            self.on_room(now, At { leg: id, handle: room.handle }, room);
                        }
                        Some(FromLeg::Frames(_)) => leg.end.drops.count(DropReason::UnknownMessage),
                        None => {}
                    }
                }
                Event::Acknowledged { token, .. } => {
                    self.legs.get_mut(&id).into_iter().for_each(|it| it.end.on_acknowledged(token));
                }
                Event::Lost { token, .. } => {
                    self.legs.get_mut(&id).into_iter().for_each(|it| it.end.on_lost(token));
                }
                Event::Message(message) => self.on_message(now, id, LegMessage::parse(message)),
                Event::Closed(reason) => self.forget_leg(now, id, &reason.to_string()),
                _ => {}
            }
        }
        if self.legs.contains_key(&id) {
            self.touched.insert(id);
        }
    }

    pub(super) fn on_message(
        &mut self,
        now: Instant,
        id: ConnectionId,
        message: Result<LegMessage, roadweave_proto::wire::ControlError>,
    ) {
        let Some(leg) = self.legs.get_mut(&id) else { return };
        match message {
            Ok(LegMessage::Attach { handle, device, binding, streams }) => {
                let device = PublicKey::from_bytes(device);
                self.on_attach(now, At { leg: id, handle }, device, (binding, streams));
            }
            Ok(LegMessage::Detach { handle }) => {
                let at = At { leg: id, handle };
                let sender = self.bindings.sender(now, at);
                self.bindings.detach(at);
                if let Some(device) = sender {
                    self.leave_streams(now, &device);
                }
            }
            Ok(_) => leg.end.drops.count(DropReason::UnknownMessage),
            Err(error) => leg.end.drops.count(error.into()),
        }
    }

    fn on_attach(
        &mut self,
        now: Instant,
        at: At,
        device: PublicKey,
        (binding, streams): (Binding, Option<StreamsOffer>),
    ) {
        let message = match self.try_attach(now, at, device, binding) {
            Ok(Place { device, peer, former }) => {
                if let Some(former) = former.filter(|former| former.leg != at.leg) {
                    self.send_detached(now, former, Detached::Superseded);
                }
                let all = self.streams.as_mut();
                let streams = all.and_then(|all| all.attach(now, (device, at), &peer, streams));
                LegMessage::Attached { handle: at.handle, streams }
            }
            Err((why, newest)) => {
                self.refusals.count_silently(why.name());
                LegMessage::Detached { handle: at.handle, why, newest }
            }
        };
        self.send(now, at.leg, &message);
    }

    fn try_attach(
        &mut self,
        now: Instant,
        at: At,
        device: PublicKey,
        binding: Binding,
    ) -> Result<Place, (Detached, Option<Box<Binding>>)> {
        let Some(tenant) = self.by_name.get(&binding.tenant).copied() else {
            return Err((Detached::Unknown, None));
        };
        let table = &self.tenants[usize::from(tenant.0)].devices;
        let peer = roadweave_identity::PeerPolicy::check(&**table, &device).ok();
        let Some(peer) = peer.and_then(|()| table.get(&device)) else {
            return Err((Detached::Unknown, None));
        };
        let Some(leg) = self.legs.get(&at.leg) else { return Err((Detached::Other, None)) };
        let checks = self.checks.entry(leg.proxy).or_default();
        if !checks.take(now, CHECK_INTERVAL, CHECK_INTERVAL * CHECKS_AT_ONCE) {
            return Err((Detached::Busy, None));
        }
        let (id, proxy) = ((tenant, device), leg.name.clone());
        let attach = Attach { at, device: id, proxy: leg.proxy, binding };
        match self.bindings.attach(now, attach) {
            Attached::Yes { former } => {
                let name = peer.name.clone();
                self.events.push_back(AnchorEvent::Attached { device: name, key: device, proxy });
                Ok(Place { device: id, peer, former })
            }
            Attached::No(why, newest) => Err((why, newest.map(Box::new))),
        }
    }

    pub(super) fn on_passed(&mut self, now: Instant, id: ConnectionId, passed: Passed) {
        let Passed { handle, packet } = passed;
        let Some(leg) = self.legs.get_mut(&id) else { return };
        let sender = self.bindings.sender(now, At { leg: id, handle });
        let Some((tenant, device)) = sender else {
            return leg.end.drops.count(DropReason::Unbound);
        };
        let place = usize::from(tenant.0);
        let account = &mut self.accounts[place];
        if packet.first() == Some(&STREAM_TAG) {
            return match &mut self.streams {
                Some(all) => all.take(((tenant, device), At { leg: id, handle }), packet, account),
                None => account.drop(DropReason::MalformedInner),
            };
        }
        let table = &self.tenants[place];
        let Some(peer) = table.devices.get(&device) else {
            return account.drop(DropReason::UnknownPeer);
        };
        // The proxy has checked it as well, but is not trusted to.
        let destination = match check_inner(&packet, Some(&peer.addresses), &[]) {
            Ok(destination) => destination,
            Err(reason) => return account.drop(reason),
        };
        if !account.allows(now, Direction::Up, packet.len()) {
            return;
        }
        if table.devices.route(destination).is_some() {
            return match table.clients_reach_clients {
                true => self.pass_down(now, tenant, destination, &packet),
                false => account.drop(DropReason::NoRoute),
            };
        }
        if !self.inboxes[place].push(packet) {
            account.drop(DropReason::DeviceFull);
        }
    }

    pub(super) fn send_detached(&mut self, now: Instant, at: At, why: Detached) {
        let message = LegMessage::Detached { handle: at.handle, why, newest: None };
        self.send(now, at.leg, &message);
    }

    fn send(&mut self, now: Instant, id: ConnectionId, message: &LegMessage) {
        if let Some(connection) = self.endpoint.connection_mut(id) {
            if let Err(error) = connection.send_message(message.to_bytes()) {
                tracing::debug!(%error, "cannot notify a proxy of an attachment");
            }
            connection.flush(now);
        }
    }

    pub(super) fn end_leg(&mut self, now: Instant, id: ConnectionId, reason: &str) {
        if let Some(connection) = self.endpoint.connection_mut(id) {
            connection.close(now, 0, reason);
        }
        self.forget_leg(now, id, reason);
    }

    fn forget_leg(&mut self, now: Instant, id: ConnectionId, reason: &str) {
        self.touched.remove(&id);
        let Some(mut leg) = self.legs.remove(&id) else { return };
        leg.end.clear(&mut self.accounts);
        self.bindings.detach_leg(id);
        let left = self.streams.as_ref().map_or_else(Vec::new, |all| all.by_leg(id));
        left.iter().for_each(|device| self.leave_streams(now, device));
        self.drops.merge(&leg.end.drops);
        let (proxy, reason) = (leg.name, reason.to_owned());
        self.events.push_back(AnchorEvent::LegDown { proxy, reason });
    }
}

pub(super) fn transport(config: &TransportConfig) -> TransportConfig {
    TransportConfig { max_paths: 1, idle_timeout: LEG_IDLE_MAX, ..config.clone() }
}

const LEGS_PER_PROXY_MAX: usize = 4;
/// Checks of bindings in a row: all clients of a proxy that comes up. Signatures are costly, and
/// the holder of a proxy's key may send as many as its legs carry, over any number of legs.
const CHECKS_AT_ONCE: u32 = 8192;
/// The sustained interval of checks: a tenth of a core for each proxy.
const CHECK_INTERVAL: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests;
