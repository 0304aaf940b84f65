//! What the sessions of a proxy are at their anchors.
//!
//! ```text
//! begun ─► bound: the client has signed ─► attach is sent ─► attached
//!             ▲ the leg came up anew, or the client signs again │ refused, superseded
//!             └──────────────────────────────────────────────────┘
//! ```
//!
//! Packets may follow an `attach` at once: the anchor reads what comes first first.

use std::time::Duration;

use roadweave_identity::PublicKey;
use roadweave_quic::ConnectionId;
use roadweave_types::{DropReason, Instant};
use roadweave_wire::{Binding, Detached, LegMessage, Passed};

use super::{LegEvent, Legs};
use crate::leg::TenantId;
use crate::server::Direction;

/// A session's attachment.
#[derive(Debug)]
pub(super) struct Attachment {
    pub(super) leg: usize,
    tenant: TenantId,
    device: PublicKey,
    binding: Option<Binding>,
    /// The name that the anchor was told.
    handle: Option<u32>,
    pub(super) is_attached: bool,
    /// When the client may sign as often as ever (the generic cell rate algorithm).
    whole_at: Instant,
}

impl Attachment {
    /// What the anchor was told went with the leg.
    pub(super) fn on_leg_down(&mut self) {
        (self.handle, self.is_attached) = (None, false);
    }
}

/// What a client signed is not for this proxy, or it signs too often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BadBinding(pub(crate) &'static str);

impl Legs {
    /// A session of `device`, a client of `tenant`, has begun.
    pub(crate) fn begin(&mut self, session: ConnectionId, tenant: &str, device: PublicKey) {
        let Some(tenant) = self.by_name.get(tenant).copied() else { return };
        let attachment = Attachment {
            leg: self.tenants[usize::from(tenant.0)].leg,
            tenant,
            device,
            binding: None,
            handle: None,
            is_attached: false,
            whole_at: Instant::ZERO,
        };
        self.attachments.insert(session, attachment);
    }

    /// A session is over.
    pub(crate) fn end(&mut self, now: Instant, session: ConnectionId) {
        let Some(attachment) = self.attachments.remove(&session) else { return };
        let leg = &mut self.legs[attachment.leg];
        if let Some(handle) = attachment.handle {
            leg.handles.remove(&handle);
            if let Some(connection) = leg.up().and_then(|id| self.endpoint.connection_mut(id)) {
                // If it finds no place the anchor learns it when the client is elsewhere.
                let _ = connection.send_message(LegMessage::Detach { handle }.to_bytes());
                connection.flush(now);
            }
        }
    }

    /// The client of a session has signed a binding. Whose signature it is the anchor finds out.
    ///
    /// # Errors
    /// When it is for somebody else, or comes too often.
    pub(crate) fn bind(
        &mut self,
        now: Instant,
        session: ConnectionId,
        binding: Binding,
    ) -> Result<(), BadBinding> {
        let Some(attachment) = self.attachments.get_mut(&session) else {
            return Err(BadBinding("binding-without-session"));
        };
        let (leg, tenant) = (attachment.leg, &self.tenants[usize::from(attachment.tenant.0)]);
        let is_ours = binding.tenant == tenant.name
            && binding.anchor == *self.legs[leg].anchor.as_bytes()
            && binding.proxy == *self.key.as_bytes();
        if !is_ours {
            return Err(BadBinding("foreign-binding"));
        }
        let whole_at = attachment.whole_at.max(now) + BINDING_INTERVAL;
        if whole_at.since(now) > BINDING_INTERVAL * BINDINGS_AT_ONCE {
            return Err(BadBinding("too-many-bindings"));
        }
        attachment.whole_at = whole_at;
        attachment.binding = Some(binding);
        // A leg that comes up tells the anchor of all.
        if self.legs[leg].up().is_some() {
            self.legs[leg].unsent.push_back(session);
        }
        self.attach_unsent(now, leg);
        Ok(())
    }

    /// Passes an inner packet of a session on.
    pub(crate) fn pass(&mut self, now: Instant, session: ConnectionId, packet: &[u8]) {
        let Some(attachment) = self.attachments.get(&session) else { return };
        let tenant = attachment.tenant;
        let account = &mut self.accounts[usize::from(tenant.0)];
        let leg = &mut self.legs[attachment.leg];
        let Some(handle) = attachment.handle else {
            let is_up = leg.up().is_some();
            return account.drop(if is_up { DropReason::Unbound } else { DropReason::LegAway });
        };
        if account.allows(now, Direction::Up, packet.len()) {
            leg.end.push(now, tenant, handle, packet, &mut self.accounts);
        }
    }

    /// An inner packet has come from an anchor.
    pub(super) fn on_passed(&mut self, now: Instant, at: usize, passed: Passed) {
        let Passed { handle, packet } = passed;
        let leg = &mut self.legs[at];
        let Some(session) = leg.handles.get(&handle).copied() else {
            return leg.end.drops.count(DropReason::Unbound);
        };
        let Some(attachment) = self.attachments.get(&session) else { return };
        if self.accounts[usize::from(attachment.tenant.0)].allows(
            now,
            Direction::Down,
            packet.len(),
        ) {
            self.events.push_back(LegEvent::Down(session, packet));
        }
    }

    pub(super) fn on_leg_message(&mut self, now: Instant, at: usize, message: LegMessage) {
        match message {
            LegMessage::Attached { handle } => {
                let session = self.legs[at].handles.get(&handle);
                if let Some(it) = session.and_then(|session| self.attachments.get_mut(session)) {
                    it.is_attached = true;
                }
            }
            LegMessage::Detached { handle, why, newest } => {
                self.on_detached(at, handle, why, newest);
            }
            LegMessage::Attach { .. } | LegMessage::Detach { .. } => {
                self.legs[at].end.drops.count(DropReason::UnknownMessage);
            }
        }
        self.attach_unsent(now, at);
    }

    fn on_detached(&mut self, at: usize, handle: u32, why: Detached, newest: Option<Box<Binding>>) {
        // The handle of an attachment that was begun anew meanwhile is another.
        let Some(session) = self.legs[at].handles.get(&handle).copied() else { return };
        if let Some(attachment) = self.attachments.get_mut(&session) {
            // What was signed is worth nothing any more: it is not told again.
            (attachment.binding, attachment.is_attached) = (None, false);
            // The client has gone elsewhere and leaves by itself; what it still sends here counts
            // for a while, and for how long the anchor knows.
            if why == Detached::Superseded {
                return;
            }
            attachment.handle = None;
        }
        self.legs[at].handles.remove(&handle);
        *self.refusals.entry(why.name()).or_default() += 1;
        self.events.push_back(match (why, newest) {
            (Detached::Old, Some(newest)) => LegEvent::Newest(session, *newest),
            (why, _) => LegEvent::Refused(session, why),
        });
    }

    /// A leg came up: the anchor is told of all that is bound.
    pub(super) fn attach_all(&mut self, now: Instant, at: usize) {
        let bound = self.attachments.iter().filter(|(_, it)| it.leg == at && it.binding.is_some());
        self.legs[at].unsent = bound.map(|(session, _)| *session).collect();
        self.attach_unsent(now, at);
    }

    /// Tells the anchor of those that it has not been told of, as many as there is room for.
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
                let attach = LegMessage::Attach { handle, device, binding: binding.clone() };
                if connection.send_message(attach.to_bytes()).is_err() {
                    break;
                }
                leg.next_handle = leg.next_handle.wrapping_add(1);
                if let Some(before) = attachment.handle.replace(handle) {
                    leg.handles.remove(&before);
                }
                attachment.is_attached = false;
                leg.handles.insert(handle, session);
            }
            leg.unsent.pop_front();
        }
        connection.flush(now);
    }
}

/// Bindings that a client may sign one after the other: one for each attempt, and one more where
/// the anchor knows a newer one.
const BINDINGS_AT_ONCE: u32 = 8;
/// In the long run it may sign one in this time.
const BINDING_INTERVAL: Duration = Duration::from_secs(1);
