//! The events of connections.

use bytes::Bytes;
use roadweave_proto::wire::{Control, Reason};
use roadweave_proto::{DropReason, Instant};
use roadweave_quic::{Connection, ConnectionId, Event};
use roadweave_schedule::AcknowledgedDatagram;

use super::Client;
use super::notices::Notice;
use super::race::{After, after};

impl Client {
    pub(super) fn pump(&mut self, now: Instant, id: ConnectionId) {
        while let Some(event) = self.endpoint.connection_mut(id).and_then(Connection::poll_event) {
            if self.race.attempts.contains_key(&id) {
                self.on_attempt_event(now, id, event);
            } else if self.current.as_ref().is_some_and(|current| current.id == id) {
                self.on_session_event(now, event);
            } else if self.standby.owns(id) {
                self.on_standby_event(now, id, event);
            } else if self.leaving.sessions.iter().any(|leaving| leaving.current.id == id) {
                self.on_leaving_event(now, id, event);
            } else if matches!(event, Event::Closed(_)) {
                self.race.replacement.take_if(|replacement| replacement.id == id);
            }
        }
    }

    fn on_session_event(&mut self, now: Instant, event: Event) {
        let Some(current) = &mut self.current else { return };
        match event {
            Event::Received { datagram, .. } => current.session.handle_datagram(now, datagram),
            Event::Acknowledged { path, token, sent, bytes, rtt } => {
                let acknowledged = AcknowledgedDatagram { path, sent, bytes, rtt };
                current.session.on_acknowledged(now, token, &acknowledged);
            }
            Event::Lost { path, token } => current.session.on_lost(now, path, token),
            Event::PathClosed(path, _) => current.session.forget_path(path),
            Event::PathUsable(path) => {
                self.on_path_usable(path);
                if let Some(uplink) = self.name_path(path) {
                    self.notify(now, Notice::Validated { uplink });
                }
                self.apply_policies();
            }
            Event::Message(message) => self.on_message(now, message),
            Event::Closed(reason) => self.leave(now, &reason.to_string(), after(&reason)),
            _ => {}
        }
    }

    fn on_message(&mut self, now: Instant, message: Bytes) {
        let Some(current) = &mut self.current else { return };
        match Control::parse(message) {
            Ok(Control::LanePromise { lane, promise }) => {
                current.session.on_lane_promise(now, lane, promise);
            }
            Ok(Control::Player(report)) => {
                if !current.session.on_player(now, &report) {
                    self.drops.count(DropReason::UnknownMessage);
                }
            }
            Ok(Control::Speedtest(said)) => self.on_speedtest(now, said),
            Ok(Control::Streams(named)) => self.on_far_end(now, named),
            Ok(Control::Binding(newest)) => self.on_newest_binding(&newest),
            Ok(Control::Refuse { reason, why }) => {
                let is_superseded = why == Reason::Superseded;
                let after = if is_superseded { After::Superseded } else { After::Backoff };
                self.leave(now, &format!("refused by the server: {reason}"), after);
            }
            Ok(Control::Move { why, .. }) => self.on_move(now, why),
            Ok(_) => self.drops.count(DropReason::UnknownMessage),
            Err(_) => self.drops.count(DropReason::MalformedMessage),
        }
    }

    pub(super) fn send_control(&mut self, id: ConnectionId, message: &Control) {
        if let Some(connection) = self.endpoint.connection_mut(id)
            && let Err(error) = connection.send_message(message.to_bytes())
        {
            tracing::warn!(%error, "cannot send a control message");
        }
    }

    pub(super) fn close_connection(&mut self, now: Instant, id: ConnectionId, reason: &str) {
        if let Some(connection) = self.endpoint.connection_mut(id) {
            connection.close(now, 0, reason);
        }
    }
}
