//! Who may connect to a proxy or an anchor, changed by deltas and signed as a whole.
//!
//! ```text
//! controller ─► set: members, gone: keys    pending, bounded
//!            ─► head: version, digest       are the members as the controller says? then in force
//! ```
//!
//! The head's digest covers all members: none is hidden or returns. Chains keep strangers out.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use ipnet::IpNet;
use roadweave_identity::PublicKey;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::chain::{Admitted, Chain, ChainError, Proof, Uses};
use crate::digest::Digest;
use crate::document::{DocumentError, Version, check_version};
use crate::envelope::{EnvelopeError, Payload, Signed};
use crate::statement::Role;
use crate::trust::Trust;

const MEMBERS_MAX: usize = 65_536;
/// The most changes without a head, and their bytes.
const PENDING_MAX: usize = MEMBERS_MAX;
const PENDING_BYTES_MAX: usize = 128 * 1024 * 1024;
/// With its head it fits a message.
pub(crate) const MEMBER_BYTES_MAX: usize = 16 * 1024;
const ADDRESSES_MAX: usize = 32;

/// A box or a proxy that may connect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Member {
    /// Its key, as in the last statement of `chain`.
    pub key: PublicKey,
    /// The chain that admits it.
    pub chain: Chain,
    /// Its inner addresses and the prefixes behind it.
    pub addresses: Vec<IpNet>,
    /// Its limit for each direction, kbit/s.
    pub rate_kbps: Option<u32>,
    /// Seconds without a controller after which it is not let in any more, by its tenant's policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offline_max_s: Option<u32>,
}

/// A member with its digest and proof, computed once and shared among tables.
/// Serialized as the member.
#[derive(Clone, Debug, Deserialize)]
#[serde(from = "Member")]
pub struct Entry {
    member: Member,
    digest: Digest,
    bytes: usize,
    proof: OnceLock<Result<Proof, ChainError>>,
}

impl Entry {
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Serialize for Entry {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.member.serialize(to)
    }
}

impl From<Member> for Entry {
    fn from(member: Member) -> Self {
        let json = serde_json::to_vec(&member).unwrap_or_default();
        let digest = Digest::of([json.as_slice()]);
        Self { member, digest, bytes: json.len(), proof: OnceLock::new() }
    }
}

impl From<Member> for Arc<Entry> {
    fn from(member: Member) -> Self {
        Self::new(member.into())
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.digest == other.digest
    }
}

// Lets `Arc` compare shared entries by address.
impl Eq for Entry {}

type Entries = BTreeMap<PublicKey, Arc<Entry>>;

/// The signed head of a whole table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TableHead {
    /// The key of the proxy or anchor that the table is for.
    pub subject: PublicKey,
    pub version: Version,
    pub members: u32,
    pub digest: Digest,
}

impl Payload for TableHead {
    const TYPE: &'static str = "application/vnd.roadweave.table+json";
}

/// Part of a change: in force once its head has come.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TableChange {
    /// Forget all former members first: the change has no base.
    #[serde(default)]
    pub anew: bool,
    #[serde(default, with = "shared")]
    pub set: Vec<Arc<Entry>>,
    #[serde(default)]
    pub gone: Vec<PublicKey>,
    /// With the last part: the head of the result.
    pub head: Option<Signed<TableHead>>,
}

/// Who may connect, as signed last by a controller.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Table {
    #[serde(with = "as_list")]
    members: Entries,
    /// Kept for verification after a restart.
    head: Option<Signed<TableHead>>,
    #[serde(skip)]
    version: Option<Version>,
    #[serde(skip)]
    pending: BTreeMap<PublicKey, Option<Arc<Entry>>>,
    #[serde(skip)]
    pending_bytes: usize,
    #[serde(skip)]
    anew: bool,
}

impl Table {
    /// The table of these members, to be signed.
    pub fn of<E: Into<Arc<Entry>>>(members: impl IntoIterator<Item = E>) -> Self {
        let entries = members.into_iter().map(Into::into);
        let members = entries.map(|entry: Arc<Entry>| (entry.member.key, entry)).collect();
        Self { members, ..Self::default() }
    }

    /// The head to be signed.
    pub fn head_for(&self, subject: PublicKey, version: Version) -> TableHead {
        TableHead {
            subject,
            version,
            members: self.members.len() as u32,
            digest: digest(&self.members),
        }
    }

    /// The digest of all members.
    pub fn digest(&self) -> Digest {
        digest(&self.members)
    }

    /// The version in force.
    pub fn version(&self) -> Option<Version> {
        self.version
    }

    /// The number of members, admitted or not.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Whether the table has no members.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Verifies a table that was read from a disk.
    pub fn check(&mut self, trust: &Trust, subject: PublicKey) -> Result<(), TableError> {
        let Some(signed) = &self.head else {
            return match self.members.is_empty() {
                true => Ok(()),
                false => Err(TableError::Changed),
            };
        };
        let (head, _) = signed.verify_by(trust.signers())?;
        if head.subject != subject {
            return Err(DocumentError::OtherSubject.into());
        }
        if head.members as usize != self.members.len() || head.digest != digest(&self.members) {
            return Err(TableError::Changed);
        }
        self.version = Some(head.version);
        Ok(())
    }

    /// Lets the version in force come again if its signers are not trusted any more.
    pub(crate) fn doubt(&mut self, trust: &Trust) {
        let head = self.head.as_ref();
        if head.is_some_and(|head| head.verify_by(trust.controllers()).is_err()) {
            self.version = None;
        }
    }

    pub(crate) fn claimed_keys(&self) -> impl Iterator<Item = PublicKey> {
        self.head.iter().flat_map(Signed::claimed_keys)
    }

    /// Takes part of a change, and returns whether the table has changed. After an error the table
    /// is as before, and changes without a head are dropped.
    pub fn change(
        &mut self,
        change: TableChange,
        trust: &Trust,
        subject: PublicKey,
    ) -> Result<bool, TableError> {
        if change.anew {
            self.forget_pending();
            self.anew = true;
        }
        for entry in change.set {
            self.pending_bytes += entry.bytes;
            if entry.bytes > MEMBER_BYTES_MAX {
                self.forget_pending();
                return Err(TableError::TooLarge);
            }
            self.pending.insert(entry.member.key, Some(entry));
        }
        self.pending.extend(change.gone.into_iter().map(|key| (key, None)));
        if self.pending.len() > PENDING_MAX || self.pending_bytes > PENDING_BYTES_MAX {
            self.forget_pending();
            return Err(TableError::TooMany);
        }
        let Some(signed) = change.head else { return Ok(false) };
        let changed = self.settle(&signed, trust, subject);
        self.forget_pending();
        changed.map(|()| true)
    }

    fn settle(
        &mut self,
        signed: &Signed<TableHead>,
        trust: &Trust,
        subject: PublicKey,
    ) -> Result<(), TableError> {
        let (head, _) = signed.verify_by(trust.controllers())?;
        if head.subject != subject {
            return Err(DocumentError::OtherSubject.into());
        }
        check_version(head.version, trust, self.version)?;
        let mut members = if self.anew { Entries::new() } else { self.members.clone() };
        for (key, member) in std::mem::take(&mut self.pending) {
            match member {
                Some(member) => members.insert(key, member),
                None => members.remove(&key),
            };
        }
        if members.len() > MEMBERS_MAX {
            return Err(TableError::TooMany);
        }
        if head.members as usize != members.len() || head.digest != digest(&members) {
            return Err(TableError::Changed);
        }
        (self.members, self.version, self.head) =
            (members, Some(head.version), Some(signed.clone()));
        Ok(())
    }

    fn forget_pending(&mut self) {
        self.pending.clear();
        (self.pending_bytes, self.anew) = (0, false);
    }

    /// Verifies the members.
    pub fn admission(&self, trust: &Trust) -> Admission<'_> {
        let mut uses = Uses::default();
        let mut admission = Admission::default();
        for entry in self.members.values() {
            match admit(entry, trust, &mut uses) {
                Ok(who) => admission.admitted.push((who, &entry.member)),
                Err(why) => admission.refused.push((entry.member.key, why)),
            }
        }
        admission
    }

    /// The change from `former` to this table.
    pub fn since(&self, former: &Self) -> TableChange {
        let is_new =
            |(key, entry): &(&PublicKey, &Arc<Entry>)| former.members.get(key) != Some(entry);
        let set = self.members.iter().filter(is_new).map(|(_, entry)| entry.clone());
        let gone = former.members.keys().filter(|key| !self.members.contains_key(key)).copied();
        TableChange { set: set.collect(), gone: gone.collect(), ..TableChange::default() }
    }
}

/// The members of a table by admission, by key.
#[derive(Debug, Default)]
pub struct Admission<'a> {
    /// The members whose chain holds.
    pub admitted: Vec<(Admitted, &'a Member)>,
    /// The others: the chain does not hold, or is beyond the uses of a delegate.
    pub refused: Vec<(PublicKey, Refused)>,
}

fn admit(entry: &Entry, trust: &Trust, uses: &mut Uses) -> Result<Admitted, Refused> {
    let member = &entry.member;
    if member.addresses.len() > ADDRESSES_MAX {
        return Err(Refused::Addresses);
    }
    let proof = entry.proof.get_or_init(|| member.chain.prove()).as_ref();
    let who = proof.map_err(|error| *error).and_then(|proof| proof.admit(trust));
    let who = who.map_err(Refused::Chain)?;
    if who.statement.key != member.key {
        return Err(Refused::OtherKey);
    }
    // A delegate's key only signs: a token carries it.
    if who.statement.role == Role::Delegate {
        return Err(Refused::Role);
    }
    if uses.take(&who) { Ok(who) } else { Err(Refused::Uses) }
}

fn digest(members: &Entries) -> Digest {
    Digest::of(members.values().map(|entry| entry.digest.as_bytes().as_slice()))
}

mod shared {
    use super::{Arc, Deserialize as _, Deserializer, Entry, Serializer};

    pub(super) fn serialize<S: Serializer>(set: &[Arc<Entry>], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(set.iter().map(AsRef::as_ref))
    }

    pub(super) fn deserialize<'a, D: Deserializer<'a>>(
        from: D,
    ) -> Result<Vec<Arc<Entry>>, D::Error> {
        Ok(Vec::<Entry>::deserialize(from)?.into_iter().map(Arc::new).collect())
    }
}

mod as_list {
    use super::{Deserializer, Entries, Serializer, shared};

    pub(super) fn serialize<S: Serializer>(entries: &Entries, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(entries.values().map(AsRef::as_ref))
    }

    pub(super) fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<Entries, D::Error> {
        let entries = shared::deserialize(from)?;
        Ok(entries.into_iter().map(|entry| (entry.member.key, entry)).collect())
    }
}

/// Why a member is not admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Its chain is not valid.
    #[error(transparent)]
    Chain(ChainError),
    /// Its chain is for another key.
    #[error("the chain leads to another key")]
    OtherKey,
    /// The role does not connect here.
    #[error("the key has a role that may not connect here")]
    Role,
    /// Its delegate has signed for too many.
    #[error("the delegate has signed for more keys than it may")]
    Uses,
    /// It has too many prefixes.
    #[error("more than {ADDRESSES_MAX} prefixes")]
    Addresses,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    #[error("the table's head: {0}")]
    Envelope(#[from] EnvelopeError),
    #[error(transparent)]
    Document(#[from] DocumentError),
    #[error("the table differs from the one that the controller signed")]
    Changed,
    #[error("a member of the table has more than {MEMBER_BYTES_MAX} bytes")]
    TooLarge,
    #[error("the table has more than {MEMBERS_MAX} members")]
    TooMany,
}

#[cfg(test)]
mod tests;
