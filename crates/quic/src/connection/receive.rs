//! Everything that comes in: packets, and the library's reports on them.

use bytes::Bytes;
use noq_proto::{ConnectionError, PathAbandonReason, PathEvent};
use noq_proto::{Event as QuicEvent, PathStatus as QuicPathStatus};
use roadweave_proto::{Instant, PathId, peer_text};

use super::upkeep::{ACK_DELAY, FEEDBACK_DELAY};
use super::{Connection, ConnectionPhase, INTERVAL_MAX};
use crate::event::{CloseReason, Event, PathCloseReason};
use crate::gate::{Gate, GateState};
use crate::meter::sent::{Fate, TrackedPayload};
use crate::payload::Payload;
use crate::source::Source;
use crate::tls;
use roadweave_identity::Refusal;

impl Connection {
    pub(crate) fn handle_packet(
        &mut self,
        now: Instant,
        source: &Source,
        bytes: usize,
        event: noq_proto::ConnectionEvent,
    ) {
        let received = source.received_by(now);
        self.signs.on_read_delay(now, now.since(received));
        self.quic.handle_event(event);
        if self.paths.of_source(source).is_none() {
            self.scan_paths(now);
        }
        let path = self.paths.of_source(source);
        let index = path.and_then(|id| self.paths.index(id));
        if let Some(index) = index.filter(|at| self.has_frames(*at)) {
            self.paths.all[index].on_heard(received, bytes);
            self.paths.all[index].ecn.on_heard(source.ecn.is_some());
            self.paths.last_path = path;
        }
        let path = path.or(self.paths.last_path);
        let any_data = self.take_datagrams(now, received, path, bytes);
        self.process(now);
        if matches!(self.phase, ConnectionPhase::Handshake { .. }) {
            self.flush_all(now);
            self.note_proof();
            return;
        }
        // Acknowledgements of data share a packet with the user's feedback, which is due earlier.
        if any_data {
            // Counts from now, not from receipt: each of a batch would be overdue by itself.
            self.timing.acknowledge.get_or_insert(now + ACK_DELAY);
        } else {
            self.want_control_flush(now, FEEDBACK_DELAY);
        }
        self.flush(now);
    }

    /// Until the server has proved its key, everything may be forged: Initial keys follow from the
    /// first packet. A client discards them at its first Handshake packet (RFC 9001 section 4.9.1).
    fn note_proof(&mut self) {
        self.peer.is_proven |=
            self.is_client && tls::peer_key(self.quic.crypto_session()).is_some();
    }

    pub(crate) fn handle_endpoint_reply(
        &mut self,
        now: Instant,
        event: noq_proto::ConnectionEvent,
    ) {
        self.quic.handle_event(event);
        self.want_flush(now);
    }

    pub(crate) fn poll_endpoint_event(&mut self) -> Option<noq_proto::EndpointEvent> {
        self.quic.poll_endpoint_events()
    }

    /// Turns the library's reports into events. Idempotent.
    pub(super) fn process(&mut self, now: Instant) {
        while let Some(event) = self.quic.poll() {
            match event {
                QuicEvent::Connected if !self.is_client => self.on_connected(now),
                QuicEvent::HandshakeConfirmed if self.is_client => self.on_connected(now),
                QuicEvent::ConnectionLost { reason } => self.on_connection_lost(reason),
                QuicEvent::Path(event) => self.on_path_event(now, event),
                _ => {}
            }
        }
        self.take_signals();
        self.finish_rekeying(now);
        self.size_is_stale = true;
    }

    /// Whether frames have come in on a path since the last call. Anybody on the way can write
    /// packets with its connection ID that cannot be decrypted; these say nothing about the path.
    fn has_frames(&mut self, index: usize) -> bool {
        let quic_id = self.paths.all[index].quic_id();
        let Some(stats) = self.quic.path_stats(quic_id) else { return false };
        let before = std::mem::replace(&mut self.paths.all[index].frames_heard, stats.frame_rx);
        before != stats.frame_rx
    }

    /// Notes new paths and addresses: peers open paths and change addresses without notice.
    pub(super) fn scan_paths(&mut self, now: Instant) {
        if self.is_client || self.phase == ConnectionPhase::Closed {
            return;
        }
        for quic_id in self.quic.paths() {
            let Ok(network) = self.quic.network_path(quic_id) else { continue };
            if self.closing.contains(&quic_id) {
                continue;
            }
            match self.paths.by_quic(quic_id).map(|path| path.remote) {
                None => {
                    if let Some(gate) = Gate::of(&self.quic, quic_id) {
                        self.add_path(now, quic_id, None, network.remote(), gate);
                    }
                }
                Some(remote) if remote != network.remote() => {
                    self.on_rebinding(now, quic_id, network.remote());
                }
                Some(_) => {}
            }
        }
        self.confirm_addresses(now);
    }

    /// The library may have replaced the controller, does not report packets sent to the old
    /// address, and sends no data until the new one is validated.
    fn on_rebinding(
        &mut self,
        now: Instant,
        quic_id: noq_proto::PathId,
        remote: std::net::SocketAddr,
    ) {
        let gate = Gate::of(&self.quic, quic_id);
        let answers = self.challenge_answers(quic_id);
        let Some(path) = self.paths.by_quic(quic_id) else { return };
        path.gate.meter().abandon();
        self.take_all_signals();
        let Some(path) = self.paths.by_quic(quic_id) else { return };
        if let Some(gate) = gate {
            path.gate = gate;
        }
        path.gate.meter().start_tracking();
        path.remote = remote;
        path.stats.rebindings += 1;
        path.validated = false;
        path.asked_since = now;
        path.answers_before = Some(answers);
        self.paths.only_open = None;
        self.take_snapshots(now);
        self.want_flush(now);
    }

    fn confirm_addresses(&mut self, now: Instant) {
        for index in 0..self.paths.all.len() {
            let Some(before) = self.paths.all[index].answers_before else { continue };
            let quic_id = self.paths.all[index].quic_id();
            if self.challenge_answers(quic_id) > before {
                self.paths.all[index].answers_before = None;
                self.paths.all[index].validated = true;
                self.take_snapshots(now);
            }
        }
    }

    fn challenge_answers(&mut self, quic_id: noq_proto::PathId) -> u64 {
        self.quic.path_stats(quic_id).map_or(0, |stats| stats.frame_rx.path_response)
    }

    /// Returns whether there was data, which wants feedback. `packet_bytes`: length of the packet.
    fn take_datagrams(
        &mut self,
        now: Instant,
        received: Instant,
        path: Option<PathId>,
        packet_bytes: usize,
    ) -> bool {
        let mut any_data = false;
        while let Some(payload) = self.quic.datagrams().recv() {
            let payload = detached(payload, packet_bytes);
            let Some(id) = path else { continue };
            let Some(index) = self.paths.index(id) else { continue };
            let datagram = match Payload::decode(payload) {
                Some(Payload::Data(datagram)) => {
                    any_data = true;
                    self.note_interval(received);
                    self.paths.all[index].stats.datagrams_received += 1;
                    datagram
                }
                Some(Payload::Feedback(datagram)) => {
                    self.paths.all[index].stats.feedback_received += 1;
                    datagram
                }
                Some(Payload::Fragment(fragment)) => {
                    self.take_fragment(now, fragment);
                    continue;
                }
                None => continue,
            };
            self.events.push_back(Event::Received { path: id, datagram });
        }
        if any_data {
            self.timing.feedback_owed.get_or_insert(received);
            self.signs.on_demand(now);
        }
        any_data
    }

    fn note_interval(&mut self, received: Instant) {
        let timing = &mut self.timing;
        let interval = (received - timing.last_data).min(INTERVAL_MAX);
        timing.data_interval = (timing.data_interval * 7 + interval) / 8;
        timing.last_data = received.max(timing.last_data);
    }

    fn take_signals(&mut self) {
        for index in 0..self.paths.all.len() {
            if self.paths.all[index].gate.take_changed() {
                self.take_signals_of(index);
            }
        }
    }

    fn take_all_signals(&mut self) {
        (0..self.paths.all.len()).for_each(|index| self.take_signals_of(index));
    }

    fn take_signals_of(&mut self, index: usize) {
        self.paths.taken = None;
        let path = &mut self.paths.all[index];
        let id = path.id;
        let signals: Vec<_> = path.gate.meter().take_signals().collect();
        if path.judge_answer() {
            self.paths.snapshots[index].status = path.status();
        }
        for (tracked, fate) in signals {
            self.on_fate(id, Some(tracked), fate);
        }
    }

    pub(super) fn on_fate(&mut self, id: PathId, tracked: Option<TrackedPayload>, fate: Fate) {
        let stats = self.paths.index(id).map(|index| &mut self.paths.all[index].stats);
        match (tracked, fate) {
            (None, _) => {}
            (Some(TrackedPayload::Datagram(token)), Fate::Acknowledged(acknowledged)) => {
                stats.into_iter().for_each(|stats| stats.datagrams_acknowledged += 1);
                self.events.push_back(Event::Acknowledged {
                    path: id,
                    token,
                    sent: acknowledged.sent,
                    bytes: u32::from(acknowledged.bytes),
                    rtt: acknowledged.rtt,
                });
            }
            (Some(TrackedPayload::Datagram(token)), Fate::Lost) => {
                stats.into_iter().for_each(|stats| stats.datagrams_lost += 1);
                self.events.push_back(Event::Lost { path: id, token });
            }
            (Some(TrackedPayload::Fragment(number)), fate) => {
                match fate {
                    Fate::Acknowledged(_) => self.messages.sender.on_acknowledged(number),
                    Fate::Lost => self.messages.sender.on_lost(number),
                }
                self.want_flush(Instant::ZERO);
            }
        }
    }

    fn take_fragment(&mut self, now: Instant, fragment: Bytes) {
        let mut messages = Vec::new();
        let outcome = self.messages.receiver.push(fragment, &mut messages);
        self.events.extend(messages.into_iter().map(Event::Message));
        if let Err(malformed) = outcome {
            self.fail(now, &malformed.to_string());
        }
    }

    fn on_connected(&mut self, now: Instant) {
        if !matches!(self.phase, ConnectionPhase::Handshake { .. }) {
            return;
        }
        let Some(peer) = tls::peer_key(self.quic.crypto_session()) else {
            self.fail(now, "the peer shows no key");
            return;
        };
        self.peer.key = Some(peer);
        self.stats.handshake = Some(now - self.timing.began);
        self.events.push_back(Event::Connected { peer });
        if let Some(path) = self.paths.all.first_mut() {
            path.validated = true;
            path.announced = true;
            path.gate.meter().start_tracking();
            self.events.push_back(Event::PathUsable(path.id));
        }
        self.phase = ConnectionPhase::Open;
        if self.is_client {
            self.start_rekeying(now);
        }
        self.take_snapshots(now);
        self.want_flush(now);
    }

    fn on_path_event(&mut self, now: Instant, event: PathEvent) {
        match event {
            PathEvent::Established { id, .. } => {
                self.scan_paths(now);
                if let Some(path) = self.paths.by_quic(id) {
                    path.validated = true;
                    if !std::mem::replace(&mut path.announced, true) {
                        let id = path.id;
                        self.events.push_back(Event::PathUsable(id));
                    }
                    self.take_snapshots(now);
                }
            }
            PathEvent::Abandoned { id, reason, .. } => {
                let reason = match reason {
                    PathAbandonReason::ApplicationClosed { .. } => PathCloseReason::Requested,
                    PathAbandonReason::RemoteAbandoned { .. } => PathCloseReason::ByPeer,
                    _ => PathCloseReason::Unresponsive,
                };
                self.on_path_closed(now, id, reason);
            }
            PathEvent::Discarded { id, .. } => {
                self.closing.remove(&id);
            }
            PathEvent::RemoteStatus { id, status, .. } => {
                if let Some(path) = self.paths.by_quic(id) {
                    path.standby_by_peer = status == QuicPathStatus::Backup;
                    self.take_snapshots(now);
                }
            }
            _ => {}
        }
    }

    fn on_path_closed(
        &mut self,
        now: Instant,
        quic_id: noq_proto::PathId,
        reason: PathCloseReason,
    ) {
        self.closing.insert(quic_id);
        let Some(index) = self.paths.all.iter().position(|path| path.quic_id() == quic_id) else {
            return;
        };
        self.paths.all[index].gate.meter().abandon();
        self.take_signals_of(index);
        // The library still reports it closed, if no other path can.
        self.paths.all[index].gate.set(GateState::Closed);
        let path = self.paths.all.remove(index);
        self.paths.only_open = None;
        let reason = self
            .unresponsive
            .take_if(|id| *id == path.id)
            .map_or(reason, |_| PathCloseReason::Unresponsive);
        self.events.push_back(Event::PathClosed(path.id, reason));
        self.take_snapshots(now);
        self.want_flush(now);
    }

    fn on_connection_lost(&mut self, reason: ConnectionError) {
        let broken = |close: &noq_proto::ConnectionClose| {
            CloseReason::Protocol(peer_text(close.to_string().as_bytes()))
        };
        let refusal = self.refusal.take();
        let handshaking = self.peer.key.is_none();
        let reason = match reason {
            ConnectionError::TransportError(error) => match refusal {
                Some((got, _)) if self.is_client => CloseReason::WrongServerKey { got },
                refusal => {
                    self.peer.refused = refusal;
                    CloseReason::of_own(&error)
                }
            },
            ConnectionError::ConnectionClosed(close) => {
                let is_forgeable = self.is_client && !self.peer.is_proven;
                match tls::refusal_of(close.error_code) {
                    None if close.error_code
                        == noq_proto::TransportErrorCode::CONNECTION_REFUSED =>
                    {
                        CloseReason::Busy
                    }
                    _ if is_forgeable => CloseReason::Unproven { code: close.error_code.into() },
                    Some(refusal) if self.is_client => CloseReason::Refused(refusal),
                    // A client checks nothing of the server but its key.
                    Some(Refusal::Unknown) => CloseReason::UnexpectedServerKey,
                    _ => broken(&close),
                }
            }
            ConnectionError::ApplicationClosed(close) => CloseReason::ByPeer {
                code: u32::try_from(close.error_code.into_inner()).unwrap_or(u32::MAX),
                reason: peer_text(&close.reason),
            },
            ConnectionError::Reset => CloseReason::Reset,
            ConnectionError::TimedOut if handshaking => CloseReason::HandshakeTimedOut,
            ConnectionError::TimedOut => CloseReason::TimedOut,
            ConnectionError::VersionMismatch => CloseReason::VersionMismatch,
            ConnectionError::LocallyClosed => CloseReason::Local,
            ConnectionError::CidsExhausted => CloseReason::Protocol(reason.to_string()),
        };
        self.on_closed(reason);
    }

    pub(super) fn on_closed(&mut self, reason: CloseReason) {
        if self.phase == ConnectionPhase::Closed {
            return;
        }
        self.take_all_signals();
        self.paths.all.iter().for_each(|path| path.gate.meter().abandon());
        self.take_all_signals();
        while let Some((path, tracked)) = self.outgoing.unsent.pop_front() {
            self.on_fate(path, tracked, Fate::Lost);
        }
        self.phase = ConnectionPhase::Closed;
        self.events.push_back(Event::Closed(reason));
    }

    fn fail(&mut self, now: Instant, why: &str) {
        let code = noq_proto::VarInt::from_u32(PROTOCOL_BROKEN);
        self.quic.close(self.epoch.to_std(now), code, Bytes::copy_from_slice(why.as_bytes()));
        self.on_closed(CloseReason::Protocol(why.to_owned()));
        self.want_flush(now);
    }
}

/// Copies a datagram that is small for its packet, so that a byte cannot hold a whole packet.
fn detached(payload: Bytes, packet_bytes: usize) -> Bytes {
    if payload.len() * 2 < packet_bytes { Bytes::copy_from_slice(&payload) } else { payload }
}

const PROTOCOL_BROKEN: u32 = 0x5257_0001;
