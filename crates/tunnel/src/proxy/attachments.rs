//! The attachments of a proxy's sessions at their anchors.
//!
//! ```text
//! begun ─► bound: the client has signed ─► attach is sent ─► attached ─► superseded ─ 3 s ─► refused
//!             ▲ the leg came up again, or the client signs again │ refused
//!             └───────────────────────────────────────────────────┘
//! ```
//!
//! Packets wait for the anchor's answer (`held.rs`): an `attach` may be lost, or fail because the
//! client has signed for a later one before. A client that is still here 3 s after it was
//! superseded does not know it, because another box has its key: it is refused, so that it rests.

use std::time::Duration;

use roadweave_identity::PublicKey;
use roadweave_proto::wire::{Binding, Detached, LegMessage, Passed};
use roadweave_proto::{DropReason, Instant, TokenBucket};
use roadweave_quic::ConnectionId;

use super::held::{ALL_BYTES_MAX, Held};
use super::relay::Relay;
use super::{LegEvent, Legs};
use crate::leg::{Accounts, FromLeg, TenantId};
use crate::rate::Direction;

#[derive(Debug)]
pub(super) struct Attachment {
    pub(super) leg: usize,
    pub(super) tenant: TenantId,
    device: PublicKey,
    binding: Option<Binding>,
    pub(super) handle: Option<u32>,
    answer: AnchorAnswer,
    held: Held,
    pub(super) relay: Relay,
    bindings: TokenBucket,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AnchorAnswer {
    Nothing,
    Attached,
    /// The client is at another proxy since then; its packets here are forwarded for a while.
    Superseded(Instant),
}

impl Attachment {
    pub(super) fn on_leg_down(&mut self, accounts: &mut Accounts) {
        (self.handle, self.answer) = (None, AnchorAnswer::Nothing);
        let account = &mut accounts[usize::from(self.tenant.0)];
        (0..self.relay.reset()).for_each(|_| account.drop(DropReason::LegAway));
    }

    pub(super) fn is_answered(&self) -> bool {
        self.answer != AnchorAnswer::Nothing
    }

    pub(super) fn is_attached(&self) -> bool {
        self.answer == AnchorAnswer::Attached
    }
}

impl Legs {
    /// If the anchor does not answer this is reported at once: the session may be a former standby.
    pub(crate) fn begin(&mut self, now: Instant, id: ConnectionId, tenant: &str, key: PublicKey) {
        let Some(tenant) = self.by_name.get(tenant).copied() else { return };
        let leg = self.tenants[usize::from(tenant.0)].leg;
        if self.legs[leg].is_away(now) {
            self.events.push_back(LegEvent::Away(id));
        }
        let attachment = Attachment {
            leg,
            tenant,
            device: key,
            binding: None,
            handle: None,
            answer: AnchorAnswer::Nothing,
            held: Held::default(),
            relay: Relay::default(),
            bindings: TokenBucket::default(),
        };
        self.attachments.insert(id, attachment);
    }

    pub(crate) fn end(&mut self, now: Instant, session: ConnectionId) {
        let Some(mut attachment) = self.attachments.remove(&session) else { return };
        self.held_bytes -= attachment.held.bytes;
        let account = &mut self.accounts[usize::from(attachment.tenant.0)];
        while attachment.held.pop().is_some() {
            account.drop(DropReason::Unbound);
        }
        let leg = &mut self.legs[attachment.leg];
        if let Some(handle) = attachment.handle {
            leg.handles.remove(&handle);
            if let Some(connection) = leg.up().and_then(|id| self.endpoint.connection_mut(id)) {
                // If there is no room for it, the anchor learns it when the client is elsewhere.
                let _ = connection.send_message(LegMessage::Detach { handle }.to_bytes());
                connection.flush(now);
            }
        }
    }

    /// Refuses bindings for another proxy, anchor or tenant, and too many, and returns the kind of
    /// refusal. The anchor verifies the signature.
    pub(crate) fn bind(
        &mut self,
        now: Instant,
        session: ConnectionId,
        binding: Binding,
    ) -> Result<(), &'static str> {
        let Some(attachment) = self.attachments.get_mut(&session) else {
            return Err("binding-without-session");
        };
        let (leg, tenant) = (attachment.leg, &self.tenants[usize::from(attachment.tenant.0)]);
        let is_ours = binding.tenant == tenant.name
            && binding.anchor == *self.legs[leg].anchor.as_bytes()
            && binding.proxy == *self.key.as_bytes();
        if !is_ours {
            return Err("foreign-binding");
        }
        let burst = BINDING_INTERVAL * BINDINGS_AT_ONCE;
        if !attachment.bindings.take(now, BINDING_INTERVAL, burst) {
            return Err("too-many-bindings");
        }
        attachment.binding = Some(binding);
        // A leg that comes up attaches all sessions.
        if self.legs[leg].up().is_some() {
            self.legs[leg].unsent.push_back(session);
        }
        self.attach_unsent(now, leg);
        Ok(())
    }

    pub(crate) fn pass(&mut self, now: Instant, session: ConnectionId, packet: &[u8]) {
        let Some(attachment) = self.attachments.get_mut(&session) else { return };
        let tenant = attachment.tenant;
        let account = &mut self.accounts[usize::from(tenant.0)];
        let leg = &mut self.legs[attachment.leg];
        match attachment.handle {
            Some(handle) if attachment.answer != AnchorAnswer::Nothing => {
                if account.allows(now, Direction::Up, packet.len()) {
                    leg.end.push(now, tenant, handle, packet, &mut self.accounts);
                }
            }
            _ if leg.is_away(now) => account.drop(DropReason::LegAway),
            _ if self.held_bytes >= ALL_BYTES_MAX => account.drop(DropReason::Unbound),
            _ => {
                let held = &mut attachment.held;
                let before = held.bytes;
                (0..held.push(now, packet)).for_each(|_| account.drop(DropReason::Unbound));
                self.held_bytes = self.held_bytes + held.bytes - before;
                if before == 0 {
                    self.due.extend(held.due().map(|at| (at, session)));
                }
            }
        }
    }

    fn release(&mut self, now: Instant, session: ConnectionId) {
        let Some(attachment) = self.attachments.get_mut(&session) else { return };
        let Some(handle) = attachment.handle else { return };
        self.held_bytes -= attachment.held.bytes;
        let (tenant, place) = (attachment.tenant, usize::from(attachment.tenant.0));
        let leg = &mut self.legs[attachment.leg];
        while let Some(packet) = attachment.held.pop() {
            if self.accounts[place].allows(now, Direction::Up, packet.len()) {
                leg.end.push(now, tenant, handle, &packet, &mut self.accounts);
            }
        }
    }

    /// Drops what was kept too long, and refuses clients that are elsewhere and do not know.
    pub(super) fn tend_attachments(&mut self, now: Instant) {
        while let Some((at, session)) = self.due.first().copied()
            && at <= now
        {
            self.due.pop_first();
            let Some(attachment) = self.attachments.get_mut(&session) else { continue };
            let before = attachment.held.bytes;
            let account = &mut self.accounts[usize::from(attachment.tenant.0)];
            (0..attachment.held.expire(now)).for_each(|_| account.drop(DropReason::Unbound));
            self.held_bytes = self.held_bytes + attachment.held.bytes - before;
            self.due.extend(attachment.held.due().map(|at| (at, session)));
            if let AnchorAnswer::Superseded(since) = attachment.answer
                && now >= since + SUPERSEDED_STAYS
            {
                if let Some(handle) = attachment.handle {
                    self.legs[attachment.leg].handles.remove(&handle);
                }
                attachment.on_leg_down(&mut self.accounts);
                *self.refusals.entry(Detached::Superseded.name()).or_default() += 1;
                self.events.push_back(LegEvent::Refused(session, Detached::Superseded));
            }
        }
    }

    pub(super) fn on_datagram(&mut self, now: Instant, at: usize, datagram: FromLeg) {
        let leg = &mut self.legs[at];
        let handle = match &datagram {
            FromLeg::Passed(passed) => passed.handle,
            FromLeg::Frames(frames) => frames.handle,
            FromLeg::Room(_) => return leg.end.drops.count(DropReason::UnknownMessage),
        };
        let Some(session) = leg.handles.get(&handle).copied() else {
            return leg.end.drops.count(DropReason::Unbound);
        };
        let Some(attachment) = self.attachments.get_mut(&session) else { return };
        let account = &mut self.accounts[usize::from(attachment.tenant.0)];
        match datagram {
            FromLeg::Passed(Passed { packet, .. }) => {
                if account.allows(now, Direction::Down, packet.len()) {
                    self.events.push_back(LegEvent::Down(session, packet));
                }
            }
            FromLeg::Frames(frames) => match attachment.relay.push(frames) {
                Ok(()) => self.events.push_back(LegEvent::Frames(session)),
                Err(reason) => account.drop(reason),
            },
            FromLeg::Room(_) => {}
        }
    }

    pub(super) fn on_leg_message(&mut self, now: Instant, at: usize, message: LegMessage) {
        match message {
            LegMessage::Attached { handle, streams } => {
                let session = self.legs[at].handles.get(&handle).copied();
                if let Some(session) = session
                    && let Some(attachment) = self.attachments.get_mut(&session)
                {
                    attachment.answer = AnchorAnswer::Attached;
                    self.events.extend(attachment.relay.on_far_end(session, streams));
                    self.release(now, session);
                }
            }
            LegMessage::Detached { handle, why, newest } => {
                self.on_detached(now, (at, handle), why, newest);
            }
            LegMessage::Attach { .. } | LegMessage::Detach { .. } => {
                self.legs[at].end.drops.count(DropReason::UnknownMessage);
            }
        }
        self.attach_unsent(now, at);
    }

    fn on_detached(
        &mut self,
        now: Instant,
        (at, handle): (usize, u32),
        why: Detached,
        newest: Option<Box<Binding>>,
    ) {
        // An attachment that was renewed meanwhile has another handle.
        let Some(session) = self.legs[at].handles.get(&handle).copied() else { return };
        if let Some(attachment) = self.attachments.get_mut(&session) {
            // The binding is void: it is not sent again.
            attachment.binding = None;
            if why == Detached::Superseded {
                attachment.answer = AnchorAnswer::Superseded(now);
                self.due.insert((now + SUPERSEDED_STAYS, session));
                return;
            }
            attachment.on_leg_down(&mut self.accounts);
        }
        self.legs[at].handles.remove(&handle);
        *self.refusals.entry(why.name()).or_default() += 1;
        self.events.push_back(match (why, newest) {
            (Detached::Old, Some(newest)) => LegEvent::Newest(session, *newest),
            (why, _) => LegEvent::Refused(session, why),
        });
    }

    pub(super) fn on_leg_down(&mut self, at: usize) {
        for attachment in self.attachments.values_mut().filter(|it| it.leg == at) {
            attachment.on_leg_down(&mut self.accounts);
        }
    }

    pub(super) fn attach_all(&mut self, now: Instant, at: usize) {
        let bound = self.attachments.iter().filter(|(_, it)| it.leg == at && it.binding.is_some());
        self.legs[at].unsent = bound.map(|(session, _)| *session).collect();
        self.attach_unsent(now, at);
    }

    pub(super) fn attach_unsent(&mut self, now: Instant, at: usize) {
        let leg = &mut self.legs[at];
        let Some(connection) = leg.up().and_then(|id| self.endpoint.connection_mut(id)) else {
            return;
        };
        while let Some(session) = leg.unsent.front().copied() {
            let attachment = self.attachments.get_mut(&session);
            if let Some(attachment) = attachment
                && let Some(binding) = &attachment.binding
            {
                let handle = leg.next_handle;
                let device = *attachment.device.as_bytes();
                let (binding, streams) = (binding.clone(), attachment.relay.client);
                let attach = LegMessage::Attach { handle, device, binding, streams };
                if connection.send_message(attach.to_bytes()).is_err() {
                    break;
                }
                leg.next_handle = leg.next_handle.wrapping_add(1);
                if let Some(before) = attachment.handle {
                    leg.handles.remove(&before);
                    attachment.on_leg_down(&mut self.accounts);
                }
                (attachment.handle, attachment.answer) = (Some(handle), AnchorAnswer::Nothing);
                leg.handles.insert(handle, session);
            }
            leg.unsent.pop_front();
        }
        connection.flush(now);
    }
}

/// How long a client that is elsewhere may stay: longer than it listens to its former session.
const SUPERSEDED_STAYS: Duration = Duration::from_secs(3);
/// One per attempt, and one more if the anchor has a newer one.
const BINDINGS_AT_ONCE: u32 = 8;
const BINDING_INTERVAL: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests;
