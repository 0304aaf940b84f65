//! The controller's side of one stream: sends what is missing at the other end, and no more.
//!
//! ```text
//! store ──► Published (trust, revocations), documents, table ──┐
//!                                                              ▼
//! peer ──► have ──────────────────────────────► what of it is missing ──► frames
//!      ──► join, reports, samples ─────────────► events
//! ```
//!
//! It holds no private key: whatever it sends was signed before.

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
use crate::frame::{Down, HeldVersions, Report, Sample, Up};
use crate::name::Name;
use crate::revocation::{Head, Revocation, Revocations};
use crate::statement::Role;
use crate::table::{Table, TableHead};
use crate::token::Secret;
use crate::trust::TrustList;

/// The most events that wait for the driver; it takes them after every call.
const EVENTS_MAX: usize = 1_024;
/// The most entries that a peer may hand back.
const SURPLUS_MAX: usize = 65_536;
/// Messages that a peer may send at once, and in each second after that.
const BURST: u32 = 1_000;
const PER_SECOND: u32 = 20;
/// Answers that wait for a peer that does not read.
const FRAMES_MAX: usize = 4_096;
/// The most addresses of a new proxy or anchor.
const JOIN_ADDRESSES_MAX: usize = 8;
/// The most characters of a text that comes from a peer.
const TEXT_MAX: usize = 500;

/// What all peers are told.
#[derive(Clone, Debug)]
pub struct Published {
    /// Whom to trust, from the first list to the last: each is signed by a root that the one before
    /// names, so a peer that was away for long must hear all of them.
    pub trust: Vec<PublishedTrust>,
    /// The withdrawn keys.
    pub revocations: Revocations,
    /// What their end is signed by.
    pub head: Signed<Head>,
}

/// One list of trust.
#[derive(Clone, Debug)]
pub struct PublishedTrust {
    /// Its number; those before it are lower.
    pub number: u64,
    /// The list.
    pub list: Signed<TrustList>,
}

/// A table as one peer is to have it.
#[derive(Clone, Debug)]
pub struct PublishedTable {
    /// Its version.
    pub version: Version,
    /// The members.
    pub table: Table,
    /// The signed head of the table.
    pub head: Signed<TableHead>,
}

/// What the driver of a desk must do or know.
#[derive(Clone, Debug, PartialEq)]
pub enum DeskEvent {
    /// A new key asks to belong to the fleet: answer by [`Desk::welcome`] or [`Desk::refuse`].
    Join {
        /// The secret by which it asks.
        secret: Secret,
        /// The tenant of its token.
        tenant: Name,
        /// The role that it would have.
        role: Role,
        /// The name that it would like.
        name: Name,
        /// What a delegate has said of it.
        chain: Option<Chain>,
        /// The addresses at which it says to listen; at most 8.
        addresses: Vec<String>,
    },
    /// What the peer has, for the store.
    Have(HeldVersions),
    /// What became of a document.
    Report(Report),
    /// All revocations up to this end are in force at the peer, if it is one of the same chain.
    Revoked(Head),
    /// The peer holds a document that is newer than the one that it is to have: the store is older
    /// than what was sent once, or the peer does not tell the truth.
    Ahead {
        /// The document's kind.
        kind: Kind,
        /// The version that the peer says to hold.
        held: Version,
    },
    /// The peer holds revocations that the store does not.
    Surplus(Vec<Revocation>, Signed<Head>),
    /// Figures.
    Samples(Vec<Sample>),
    /// The round trips of a proxy to the anchors of its tenants, microseconds: what it says, of
    /// whichever tenants it likes; at most [`Up::ANCHORS_MAX`].
    Anchors(BTreeMap<Name, u32>),
    /// Something that a person should know; fit to be shown.
    Text(String),
    /// The stream must end.
    End(&'static str),
}

/// One stream of a controller.
#[derive(Debug)]
pub struct Desk {
    peer: PublicKey,
    /// The delegates that have signed for it.
    issuers: Vec<PublicKey>,
    /// Whether the store knows it: strangers may ask to join and nothing else.
    is_member: bool,
    published: Arc<Published>,
    /// What the peer has, as it said and as was sent since; `None` before it said so.
    had: Option<HeldVersions>,
    /// The last list of trust that was sent: once on a stream, for what could not be used does not
    /// get better, and what was taken is on its way to be told.
    sent_trust: u64,
    desired: BTreeMap<Kind, (Version, Envelope)>,
    table: Option<Arc<PublishedTable>>,
    sending: Option<TableSending>,
    /// Whether the peer is to have no sessions, once the driver has said so.
    drained: Option<bool>,
    surplus: Vec<Revocation>,
    frames: VecDeque<Down>,
    events: VecDeque<DeskEvent>,
    allowance: u32,
    allowance_at: Instant,
    ended: bool,
}

impl Desk {
    /// The desk of the stream that the holder of `peer` has opened.
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

    /// The key of the peer at the other end of the stream.
    pub fn peer(&self) -> PublicKey {
        self.peer
    }

    /// What the peer has, once it said so.
    pub fn had(&self) -> Option<&HeldVersions> {
        self.had.as_ref()
    }

    /// Takes a message of the peer.
    pub fn handle_frame(&mut self, now: Instant, frame: Up) {
        if self.ended {
            return;
        }
        if !self.allows(now) {
            return self.end("it sends more messages than anybody needs to");
        }
        match frame {
            Up::Join { secret, tenant, role, name, chain, mut addresses } => {
                addresses.truncate(JOIN_ADDRESSES_MAX);
                self.tell(DeskEvent::Join { secret, tenant, role, name, chain, addresses });
            }
            Up::Alive if self.frames.len() < FRAMES_MAX => self.frames.push_back(Down::Alive),
            Up::Alive => self.end("it does not read what is sent to it"),
            _ if !self.is_member => self.end("it does not belong to the fleet"),
            Up::Have(have) => self.on_have(have),
            Up::Report(report) => self.tell(DeskEvent::Report(report)),
            Up::Revoked { head } => self.tell(DeskEvent::Revoked(head)),
            Up::Surplus { entries, head } => self.on_surplus(entries, head),
            Up::Samples { samples } => self.tell(DeskEvent::Samples(samples)),
            Up::Anchors { round_trips } => {
                let some = round_trips.into_iter().take(Up::ANCHORS_MAX);
                self.tell(DeskEvent::Anchors(some.collect()));
            }
            Up::Event { text } => {
                let shown = text.chars().filter(|c| !c.is_control()).take(TEXT_MAX).collect();
                self.tell(DeskEvent::Text(shown));
            }
        }
    }

    /// The peer belongs to the fleet from now on.
    pub fn welcome(&mut self, chain: Chain, tenant: Name) {
        self.is_member = true;
        self.frames.push_back(Down::Welcome { chain, tenant });
    }

    /// The peer is there by the word of these delegates, and not beyond one of them.
    pub fn signed_by(&mut self, issuers: Vec<PublicKey>) {
        self.issuers = issuers;
        self.send_published();
    }

    /// The peer may not join.
    pub fn refuse(&mut self, reason: &str, retry: bool) {
        self.frames.push_back(Down::Refused { reason: reason.to_owned(), retry });
    }

    /// What all peers are told is another. A peer that is withdrawn itself is told no more.
    pub fn publish(&mut self, published: Arc<Published>) {
        self.published = published;
        self.send_published();
    }

    /// A document is to hold at the peer.
    pub fn desire(&mut self, kind: Kind, version: Version, document: Envelope) {
        let newest = self.desired.get(&kind).is_none_or(|(held, _)| *held < version);
        if newest && !self.ended {
            self.desired.insert(kind, (version, document));
            self.send_desired(kind);
        }
    }

    /// The version of the table that the peer has or is being sent, by which the driver finds the
    /// table to start from.
    pub fn table_version(&self) -> Option<Version> {
        let sent = self.table.as_ref().map(|table| table.version);
        sent.or_else(|| self.had.as_ref()?.documents.get(&Kind::Table).copied())
    }

    /// A table is to hold at the peer. `former` is the one of [`Desk::table_version`], if the
    /// driver still has it: then only what differs is sent.
    pub fn desire_table(&mut self, table: Arc<PublishedTable>, former: Option<&PublishedTable>) {
        let held = self.table_version();
        self.table = Some(table.clone());
        // Before the peer said what it has, nothing is sent.
        if self.ended || self.had.is_none() || held >= Some(table.version) {
            return;
        }
        let is_midway = self.sending.is_some();
        let former = former.filter(|former| Some(former.version) == held && !is_midway);
        self.sending = Some(TableSending::new(&table, former.map(|former| &former.table)));
    }

    /// Somebody watches the peer.
    pub fn watch(&mut self, lease: Duration) {
        let lease_ms = u32::try_from(lease.as_millis()).unwrap_or(u32::MAX);
        self.frames.push_back(Down::Watch { lease_ms });
    }

    /// The peer is to let go of its sessions and take no new ones, or to take them again, if it is
    /// `false`; it is told if it has said something else.
    pub fn drain(&mut self, drained: bool) {
        self.drained = Some(drained);
        self.send_drained();
    }

    /// What is to be sent next.
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

    /// What the driver must do or know.
    pub fn poll_event(&mut self) -> Option<DeskEvent> {
        self.events.pop_front()
    }

    /// Whether the peer is within what it may send.
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
        // It has started anew, or could not use what was sent; what still waits is sent again.
        (self.sending, self.had) = (None, Some(have.clone()));
        self.frames.retain(|frame| !matches!(frame, Down::Revoke { .. }));
        self.tell(DeskEvent::Have(have));
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
        // First, because the rest may be signed by whom they name.
        let from = had.trust.max(self.sent_trust);
        for trust in published.trust.iter().filter(|trust| trust.number > from) {
            self.frames.push_back(Down::Trust { list: trust.list.clone() });
            self.sent_trust = trust.number;
        }
        let (ours, theirs) = (published.revocations.head(), had.revocations);
        if theirs == ours {
            return;
        }
        // Of another epoch, or where the chain has forked, all: the peer compares.
        let is_of_ours = published.revocations.includes(theirs.serial, &theirs.hash);
        let after = if theirs.epoch == ours.epoch && is_of_ours { theirs.serial } else { 0 };
        let entries = published.revocations.entries(after);
        self.frames.extend(revocation_frames(entries, &published.head));
        had.revocations = ours;
    }

    fn send_drained(&mut self) {
        let (Some(had), Some(drained)) = (&mut self.had, self.drained) else { return };
        // Who does not say what it is cannot be told that it is over.
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
                self.tell(DeskEvent::Ahead { kind, held });
            }
            return;
        }
        had.documents.insert(kind, *version);
        // A former one that still waits is of no use.
        self.frames.retain(|frame| !matches!(frame, Down::Desired { kind: k, .. } if *k == kind));
        self.frames.push_back(Down::Desired { kind, document: document.clone() });
    }

    fn on_surplus(&mut self, entries: Vec<Revocation>, head: Option<Signed<Head>>) {
        self.surplus.extend(entries);
        if self.surplus.len() > SURPLUS_MAX {
            return self.end("it hands back more revocations than there can be");
        }
        if let Some(head) = head {
            let entries = std::mem::take(&mut self.surplus);
            self.tell(DeskEvent::Surplus(entries, head));
        }
    }

    fn end(&mut self, why: &'static str) {
        self.ended = true;
        self.sending = None;
        self.frames.clear();
        self.refuse(why, false);
        self.tell(DeskEvent::End(why));
    }

    fn tell(&mut self, event: DeskEvent) {
        if self.events.len() < EVENTS_MAX {
            self.events.push_back(event);
        }
    }
}

#[cfg(test)]
mod tests;
