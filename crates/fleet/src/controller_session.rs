//! The controller's side of one stream: sends what is missing at the other end.
//!
//! ```text
//! store ──► Published (trust, revocations), documents, table ──┐
//!                                                              ▼
//! peer ──► have ──────────────────────────────► what of it is missing ──► frames
//!      ──► join, reports, samples ─────────────► events
//! ```
//!
//! It holds no private key: everything was signed before.

mod sending;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use roadweave_identity::PublicKey;
use roadweave_proto::Instant;

use self::sending::{TableSending, revocation_frames};
use crate::chain::Chain;
use crate::document::{Kind, Version};
use crate::envelope::{Envelope, Signed};
use crate::frame::{Down, HeldVersions, Join, Report, Sample, Up};
use crate::name::Name;
use crate::revocation::{Head, Revocation, Revocations};
use crate::table::{Table, TableHead};
use crate::trust::TrustList;

const EVENTS_MAX: usize = 1_024;
const SURPLUS_MAX: usize = 65_536;
/// Messages that a peer may send at once, and per second after that.
const BURST: u32 = 1_000;
const PER_SECOND: u32 = 20;
const FRAMES_MAX: usize = 4_096;
const JOIN_ADDRESSES_MAX: usize = 8;
const TEXT_MAX: usize = 500;

/// What all peers get.
#[derive(Clone, Debug)]
pub struct Published {
    /// All lists of trust, in order: a root in each signs the next, so a peer may need every one.
    pub trust: Vec<PublishedTrust>,
    /// The revoked keys.
    pub revocations: Revocations,
    /// Their signed head.
    pub head: Signed<Head>,
}

/// One list of trust.
#[derive(Clone, Debug)]
pub struct PublishedTrust {
    /// Its number, higher than those before.
    pub number: u64,
    /// The list.
    pub list: Signed<TrustList>,
}

/// A table for one peer.
#[derive(Clone, Debug)]
pub struct PublishedTable {
    /// Its version.
    pub version: Version,
    /// The members.
    pub table: Table,
    /// The signed head of the table.
    pub head: Signed<TableHead>,
}

/// An event for the driver of a controller session.
#[derive(Clone, Debug, PartialEq)]
pub enum ControllerSessionEvent {
    /// A new key asks to join, with at most 8 addresses: [`ControllerSession::welcome`] or
    /// [`ControllerSession::refuse`] it.
    Join(Join),
    /// What the peer holds, for the store.
    Have(HeldVersions),
    /// The outcome of a document.
    Report(Report),
    /// All revocations up to this head are in force at the peer, if its chain is the same.
    Revoked(Head),
    /// The peer reports a newer document than the store's: the store is an older copy, or it lies.
    Ahead {
        /// The document's kind.
        kind: Kind,
        /// The version that the peer reports.
        held: Version,
    },
    /// Revocations that the peer holds and the store does not.
    Surplus(Vec<Revocation>, Signed<Head>),
    /// Samples.
    Samples(Vec<Sample>),
    /// A proxy's round trips to anchors of any tenants, microseconds; at most [`Up::ANCHORS_MAX`].
    Anchors(BTreeMap<Name, u32>),
    /// A text for a person, without control characters.
    Text(String),
    /// The stream must end.
    End(&'static str),
}

/// One stream of a controller.
#[derive(Debug)]
pub struct ControllerSession {
    peer: PublicKey,
    issuers: Vec<PublicKey>,
    is_member: bool,
    published: Arc<Published>,
    /// What the peer holds, as reported and as sent since.
    had: Option<HeldVersions>,
    /// Once on a stream, since a list that could not be used does not get better.
    sent_trust: u64,
    desired: BTreeMap<Kind, (Version, Envelope)>,
    table: Option<Arc<PublishedTable>>,
    sending: Option<TableSending>,
    drained: Option<bool>,
    surplus: Vec<Revocation>,
    frames: VecDeque<Down>,
    events: VecDeque<ControllerSessionEvent>,
    allowance: u32,
    allowance_at: Instant,
    ended: bool,
}

impl ControllerSession {
    /// Creates the session of a stream that the holder of `peer` has opened.
    pub fn new(now: Instant, peer: PublicKey, is_member: bool, published: Arc<Published>) -> Self {
        Self {
            peer,
            issuers: Vec::new(),
            is_member,
            published,
            had: None,
            sent_trust: 0,
            desired: BTreeMap::new(),
            table: None,
            sending: None,
            drained: None,
            surplus: Vec::new(),
            frames: VecDeque::new(),
            events: VecDeque::new(),
            allowance: BURST,
            allowance_at: now,
            ended: false,
        }
    }

    /// The peer's key.
    pub fn peer(&self) -> PublicKey {
        self.peer
    }

    /// What the peer holds, once it has reported.
    pub fn had(&self) -> Option<&HeldVersions> {
        self.had.as_ref()
    }

    /// Handles a message of the peer.
    pub fn handle_frame(&mut self, now: Instant, frame: Up) {
        if self.ended {
            return;
        }
        if !self.allows(now) {
            return self.end("it sends too many messages");
        }
        match frame {
            Up::Join(mut join) => {
                join.addresses.truncate(JOIN_ADDRESSES_MAX);
                self.push_event(ControllerSessionEvent::Join(join));
            }
            Up::Alive if self.frames.len() < FRAMES_MAX => self.frames.push_back(Down::Alive),
            Up::Alive => self.end("it does not read what is sent to it"),
            _ if !self.is_member => self.end("it does not belong to the fleet"),
            Up::Have(have) => self.on_have(have),
            Up::Report(report) => self.push_event(ControllerSessionEvent::Report(report)),
            Up::Revoked { head } => self.push_event(ControllerSessionEvent::Revoked(head)),
            Up::Surplus { entries, head } => self.on_surplus(entries, head),
            Up::Samples { samples } => self.push_event(ControllerSessionEvent::Samples(samples)),
            Up::Anchors { round_trips } => {
                let some = round_trips.into_iter().take(Up::ANCHORS_MAX);
                self.push_event(ControllerSessionEvent::Anchors(some.collect()));
            }
            Up::Event { text } => {
                let shown = text.chars().filter(|c| !c.is_control()).take(TEXT_MAX).collect();
                self.push_event(ControllerSessionEvent::Text(shown));
            }
        }
    }

    /// Admits the peer to the fleet.
    pub fn welcome(&mut self, chain: Chain, tenant: Name) {
        self.is_member = true;
        self.frames.push_back(Down::Welcome { chain, tenant });
    }

    /// Sets the delegates in the peer's chain: a revocation of one ends the stream.
    pub fn signed_by(&mut self, issuers: Vec<PublicKey>) {
        self.issuers = issuers;
        self.send_published();
    }

    /// Refuses the peer's request.
    pub fn refuse(&mut self, reason: &str, retry: bool) {
        self.frames.push_back(Down::Refused { reason: reason.to_owned(), retry });
    }

    /// Sets what all peers get; a revoked peer gets nothing more.
    pub fn publish(&mut self, published: Arc<Published>) {
        self.published = published;
        self.send_published();
    }

    /// Sets a document that the peer is to hold.
    pub fn desire(&mut self, kind: Kind, version: Version, document: Envelope) {
        let newest = self.desired.get(&kind).is_none_or(|(held, _)| *held < version);
        if newest && !self.ended {
            self.desired.insert(kind, (version, document));
            self.send_desired(kind);
        }
    }

    /// The version of the table that the peer has or is being sent, the base of the next change.
    pub fn table_version(&self) -> Option<Version> {
        let sent = self.table.as_ref().map(|table| table.version);
        sent.or_else(|| self.had.as_ref()?.documents.get(&Kind::Table).copied())
    }

    /// Sets the table that the peer is to hold. With `former`, the one of
    /// [`ControllerSession::table_version`], only the difference is sent.
    pub fn desire_table(&mut self, table: Arc<PublishedTable>, former: Option<&PublishedTable>) {
        let held = self.table_version();
        self.table = Some(table.clone());
        if self.ended || self.had.is_none() || held >= Some(table.version) {
            return;
        }
        let is_midway = self.sending.is_some();
        let former = former.filter(|former| Some(former.version) == held && !is_midway);
        self.sending = Some(TableSending::new(&table, former.map(|former| &former.table)));
    }

    /// Asks the peer for frequent samples.
    pub fn watch(&mut self, lease: Duration) {
        let lease_ms = u32::try_from(lease.as_millis()).unwrap_or(u32::MAX);
        self.frames.push_back(Down::Watch { lease_ms });
    }

    /// Asks the peer to end its sessions and take no new ones, or, with `false`, to take them.
    pub fn drain(&mut self, drained: bool) {
        self.drained = Some(drained);
        self.send_drained();
    }

    /// The next frame to send.
    pub fn poll_frame(&mut self) -> Option<Down> {
        if let Some(frame) = self.frames.pop_front() {
            return Some(frame);
        }
        let frame = self.sending.as_mut()?.next();
        if frame.is_none() {
            self.sending = None;
        }
        frame
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<ControllerSessionEvent> {
        self.events.pop_front()
    }

    fn allows(&mut self, now: Instant) -> bool {
        let seconds = (now - self.allowance_at).as_secs() as u32;
        if seconds > 0 {
            self.allowance_at += Duration::from_secs(seconds.into());
            let more = PER_SECOND.saturating_mul(seconds);
            self.allowance = self.allowance.saturating_add(more).min(BURST);
        }
        let allows = self.allowance > 0;
        self.allowance = self.allowance.saturating_sub(1);
        allows
    }

    fn on_have(&mut self, have: HeldVersions) {
        // The peer has restarted, or could not use what was sent.
        (self.sending, self.had) = (None, Some(have.clone()));
        self.frames.retain(|frame| !matches!(frame, Down::Revoke { .. }));
        self.push_event(ControllerSessionEvent::Have(have));
        self.send_published();
        if self.ended {
            return;
        }
        self.send_drained();
        let kinds: Vec<Kind> = self.desired.keys().copied().collect();
        kinds.into_iter().for_each(|kind| self.send_desired(kind));
        if let Some(table) = self.table.take() {
            let held = self.table_version();
            self.table = Some(table.clone());
            if held < Some(table.version) {
                self.sending = Some(TableSending::new(&table, None));
            }
        }
    }

    fn send_published(&mut self) {
        let is_revoked = |key: &PublicKey| self.published.revocations.is_revoked(key);
        if !self.ended && is_revoked(&self.peer) {
            return self.end("its key was revoked");
        }
        if !self.ended && self.issuers.iter().any(is_revoked) {
            return self.end("a delegate that has signed for it was revoked");
        }
        let Some(had) = &mut self.had else { return };
        let published = &self.published;
        // First, because they may name the signers of the rest.
        let from = had.trust.max(self.sent_trust);
        for trust in published.trust.iter().filter(|trust| trust.number > from) {
            self.frames.push_back(Down::Trust { list: trust.list.clone() });
            self.sent_trust = trust.number;
        }
        let (ours, theirs) = (published.revocations.head(), had.revocations);
        if theirs == ours {
            return;
        }
        // All entries for another epoch or a forked chain: the peer compares.
        let is_of_ours = published.revocations.includes(theirs.serial, &theirs.hash);
        let after = if theirs.epoch == ours.epoch && is_of_ours { theirs.serial } else { 0 };
        let entries = published.revocations.entries(after);
        self.frames.extend(revocation_frames(entries, &published.head));
        had.revocations = ours;
    }

    fn send_drained(&mut self) {
        let (Some(had), Some(drained)) = (&mut self.had, self.drained) else { return };
        // A peer that reports no such state does not know [`Down::Undrain`].
        if self.ended || had.drained.unwrap_or_default() == drained {
            return;
        }
        had.drained = Some(drained).filter(|_| had.drained.is_some());
        self.frames.retain(|frame| !matches!(frame, Down::Drain | Down::Undrain));
        self.frames.push_back(if drained { Down::Drain } else { Down::Undrain });
    }

    fn send_desired(&mut self, kind: Kind) {
        let (Some(had), Some((version, document))) = (&mut self.had, self.desired.get(&kind))
        else {
            return;
        };
        let held = had.documents.get(&kind).copied();
        if held >= Some(*version) {
            if let Some(held) = held.filter(|held| held > version) {
                self.push_event(ControllerSessionEvent::Ahead { kind, held });
            }
            return;
        }
        had.documents.insert(kind, *version);
        self.frames.retain(|frame| !matches!(frame, Down::Desired { kind: k, .. } if *k == kind));
        self.frames.push_back(Down::Desired { kind, document: document.clone() });
    }

    fn on_surplus(&mut self, entries: Vec<Revocation>, head: Option<Signed<Head>>) {
        self.surplus.extend(entries);
        if self.surplus.len() > SURPLUS_MAX {
            return self.end("it returns more revocations than there can be");
        }
        if let Some(head) = head {
            let entries = std::mem::take(&mut self.surplus);
            self.push_event(ControllerSessionEvent::Surplus(entries, head));
        }
    }

    fn end(&mut self, why: &'static str) {
        self.ended = true;
        self.sending = None;
        self.frames.clear();
        self.refuse(why, false);
        self.push_event(ControllerSessionEvent::End(why));
    }

    fn push_event(&mut self, event: ControllerSessionEvent) {
        if self.events.len() < EVENTS_MAX {
            self.events.push_back(event);
        }
    }
}

#[cfg(test)]
mod tests;
