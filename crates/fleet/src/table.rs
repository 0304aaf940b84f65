//! Who may connect to a proxy or an anchor, changed by deltas and signed as a whole.
//!
//! ```text
//! controller ─► set: members, gone: keys    pending, bounded
//!            ─► head: version, digest       are the members as the controller says? then in force
//! ```
//!
//! The head's digest covers every member, so that neither a database nor a disk can take one out or
//! bring one back unseen; and each member comes with a chain of its own, so that the controller
//! alone cannot let in a stranger.

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

/// The most members of a table.
const MEMBERS_MAX: usize = 65_536;
/// The most that waits for its head, in changes and in bytes of members.
const PENDING_MAX: usize = MEMBERS_MAX;
const PENDING_BYTES_MAX: usize = 128 * 1024 * 1024;
/// The most bytes of a member: with its head it fits a message.
pub(crate) const MEMBER_BYTES_MAX: usize = 16 * 1024;
/// The most prefixes of one member.
const ADDRESSES_MAX: usize = 32;

/// A box or a proxy that may connect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Member {
    /// Whose statement this is about; the last one of `chain` must be of the same.
    pub key: PublicKey,
    /// What admits it.
    pub chain: Chain,
    /// Its inner addresses and the prefixes behind it.
    pub addresses: Vec<IpNet>,
    /// The most that it may send, and receive, kbit/s.
    #[serde(default)]
    pub rate_kbps: Option<u32>,
    /// After so many seconds without a controller it is not let in any more: its tenant's wish.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offline_max_s: Option<u32>,
}

/// A member as a table holds it, with what is costly to find out of it: once, however often the
/// table changes around it, and however many tables have it. Written as the member itself.
#[derive(Clone, Debug, Deserialize)]
#[serde(from = "Member")]
pub struct Entry {
    member: Member,
    digest: Digest,
    bytes: usize,
    proof: OnceLock<Result<Proof, ChainError>>,
}

impl Entry {
    /// The bytes of the member as JSON.
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

// Tables that share an entry need not look into it.
impl Eq for Entry {}

type Entries = BTreeMap<PublicKey, Arc<Entry>>;

/// What a whole table is signed by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TableHead {
    /// The key of the proxy or anchor that the table is for.
    pub subject: PublicKey,
    /// Tables replace those with lower versions.
    pub version: Version,
    /// How many members there are.
    pub members: u32,
    /// The digest of all of them, by key.
    pub digest: Digest,
}

impl Payload for TableHead {
    const TYPE: &'static str = "application/vnd.roadweave.table+json";
}

/// Part of a change: in force once its head has come.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TableChange {
    /// Forget all former members first: they are not those that this change rests on.
    #[serde(default)]
    pub anew: bool,
    /// Members that are new or not as they were.
    #[serde(default, with = "shared")]
    pub set: Vec<Arc<Entry>>,
    /// Members that are no more.
    #[serde(default)]
    pub gone: Vec<PublicKey>,
    /// With the last part: what all of it must come to.
    #[serde(default)]
    pub head: Option<Signed<TableHead>>,
}

/// Who may connect, as a controller has signed it last.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Table {
    #[serde(with = "as_list")]
    members: Entries,
    /// Kept with the members, so that what is read from a disk proves itself again.
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
    /// The table that the controller signs for: these members.
    pub fn of<E: Into<Arc<Entry>>>(members: impl IntoIterator<Item = E>) -> Self {
        let entries = members.into_iter().map(Into::into);
        let members = entries.map(|entry: Arc<Entry>| (entry.member.key, entry)).collect();
        Self { members, ..Self::default() }
    }

    /// What is to be signed for this table.
    pub fn head_for(&self, subject: PublicKey, version: Version) -> TableHead {
        TableHead {
            subject,
            version,
            members: self.members.len() as u32,
            digest: digest(&self.members),
        }
    }

    /// The version in force.
    pub fn version(&self) -> Option<Version> {
        self.version
    }

    /// How many members there are, whether they are let in or not.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Proves again what was read from a disk.
    ///
    /// # Errors
    /// When the table is not what a controller has signed; nobody is let in by it then.
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

    /// Lets a table of the version in force come again, if those who have signed it count no more.
    /// It stays in force until then.
    pub(crate) fn doubt(&mut self, trust: &Trust) {
        let head = self.head.as_ref();
        if head.is_some_and(|head| head.verify_by(trust.controllers()).is_err()) {
            self.version = None;
        }
    }

    /// Who claims to have signed it.
    pub(crate) fn claimed_keys(&self) -> impl Iterator<Item = PublicKey> {
        self.head.iter().flat_map(Signed::claimed_keys)
    }

    /// Takes part of a change, and returns whether the table is another one now.
    ///
    /// # Errors
    /// When too much waits for its head, or the whole is not what a controller has signed for this
    /// holder of `subject`. The table stays as it was, and what waited is forgotten.
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

    /// Who of the members is let in.
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

    /// What leads from the members of `former` to those of this table.
    pub fn since(&self, former: &Self) -> TableChange {
        let is_new =
            |(key, entry): &(&PublicKey, &Arc<Entry>)| former.members.get(key) != Some(entry);
        let set = self.members.iter().filter(is_new).map(|(_, entry)| entry.clone());
        let gone = former.members.keys().filter(|key| !self.members.contains_key(key)).copied();
        TableChange { set: set.collect(), gone: gone.collect(), ..TableChange::default() }
    }
}

/// Who of a table's members is let in, by key.
#[derive(Debug, Default)]
pub struct Admission<'a> {
    /// The members whose chain holds.
    pub admitted: Vec<(Admitted, &'a Member)>,
    /// The members whose chain does not hold, and those beyond what their delegate may sign for.
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
    // A delegate's own key signs, and does nothing else: a token carries it.
    if who.statement.role == Role::Delegate {
        return Err(Refused::Role);
    }
    if uses.take(&who) { Ok(who) } else { Err(Refused::Uses) }
}

fn digest(members: &Entries) -> Digest {
    Digest::of(members.values().map(|entry| entry.digest.as_bytes().as_slice()))
}

/// Entries that may be shared, as members.
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

/// Members as a list: each names its key itself.
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

/// Why a member of a table is not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Its chain leads to nobody.
    #[error(transparent)]
    Chain(ChainError),
    /// Its chain leads to another.
    #[error("the chain leads to another key")]
    OtherKey,
    /// The key is of something that does not connect here.
    #[error("the key is of something that may not connect here")]
    Role,
    /// Its delegate has signed for too many.
    #[error("the delegate has signed for more keys than it may")]
    Uses,
    /// The member has more prefixes than one box needs.
    #[error("more than {ADDRESSES_MAX} prefixes")]
    Addresses,
}

/// Why a table does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// Nobody who counts has signed the head.
    #[error("the table's head: {0}")]
    Envelope(#[from] EnvelopeError),
    /// The table is for another, older, or of an epoch that no root has begun.
    #[error(transparent)]
    Document(#[from] DocumentError),
    /// The members are not those that were signed for.
    #[error("the table is not the one that the controller has signed")]
    Changed,
    /// A member is larger than one needs to be.
    #[error("a member of the table has more than {MEMBER_BYTES_MAX} bytes")]
    TooLarge,
    /// The table has too many members.
    #[error("the table has more than {MEMBERS_MAX} members")]
    TooMany,
}

#[cfg(test)]
mod tests;
