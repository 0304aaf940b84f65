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

use ipnet::IpNet;
use roadweave_identity::PublicKey;
use serde::{Deserialize, Serialize};

use crate::chain::{Admitted, Chain, ChainError};
use crate::digest::Digest;
use crate::document::{DocumentError, Version, check_version};
use crate::envelope::{EnvelopeError, Payload, Signed};
use crate::trust::Trust;

/// The most members of a table.
const MEMBERS_MAX: usize = 65_536;
/// The most changes that wait for their head.
const PENDING_MAX: usize = MEMBERS_MAX;
/// The most prefixes of one member.
const ADDRESSES_MAX: usize = 32;

/// One who may connect.
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
}

impl Member {
    fn digest(&self) -> Digest {
        let bytes = serde_json::to_vec(self).unwrap_or_default();
        Digest::of([bytes.as_slice()])
    }
}

/// What a whole table is signed by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TableHead {
    /// For whom it is.
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
    #[serde(default)]
    pub set: Vec<Member>,
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
    members: BTreeMap<PublicKey, Member>,
    /// Kept with the members, so that what is read from a disk proves itself again.
    head: Option<Signed<TableHead>>,
    #[serde(skip)]
    version: Option<Version>,
    #[serde(skip)]
    pending: Option<BTreeMap<PublicKey, Option<Member>>>,
    #[serde(skip)]
    anew: bool,
}

impl Table {
    /// The table that the controller signs for: these members.
    pub fn of(members: impl IntoIterator<Item = Member>) -> Self {
        let members = members.into_iter().map(|member| (member.key, member)).collect();
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
    /// When it is not what a controller has signed; nobody is let in by it then.
    pub fn check(&mut self, trust: &Trust, subject: PublicKey) -> Result<(), TableError> {
        let Some(signed) = &self.head else {
            return match self.members.is_empty() {
                true => Ok(()),
                false => Err(TableError::Changed),
            };
        };
        let (head, _) = signed.verify_by(trust.controllers())?;
        if head.subject != subject {
            return Err(DocumentError::OtherSubject.into());
        }
        if head.members as usize != self.members.len() || head.digest != digest(&self.members) {
            return Err(TableError::Changed);
        }
        self.version = Some(head.version);
        Ok(())
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
            self.pending = None;
            self.anew = true;
        }
        let pending = self.pending.get_or_insert_default();
        pending.extend(change.set.into_iter().map(|member| (member.key, Some(member))));
        pending.extend(change.gone.into_iter().map(|key| (key, None)));
        if pending.len() > PENDING_MAX {
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
        let mut members = if self.anew { BTreeMap::new() } else { self.members.clone() };
        for (key, member) in self.pending.take().unwrap_or_default() {
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
        (self.pending, self.anew) = (None, false);
    }

    /// Who of the members is let in.
    pub fn admission(&self, trust: &Trust) -> Admission<'_> {
        let mut uses: BTreeMap<PublicKey, u32> = BTreeMap::new();
        let mut admission = Admission::default();
        for member in self.members.values() {
            match admit(member, trust, &mut uses) {
                Ok(who) => admission.admitted.push((who, member)),
                Err(why) => admission.refused.push((member.key, why)),
            }
        }
        admission
    }

    /// What leads from the members of `former` to those of this table.
    pub fn since(&self, former: &Self) -> TableChange {
        let set = self.members.values().filter(|m| former.members.get(&m.key) != Some(m)).cloned();
        let gone = former.members.keys().filter(|key| !self.members.contains_key(key)).copied();
        TableChange { set: set.collect(), gone: gone.collect(), ..TableChange::default() }
    }
}

/// Who of a table's members is let in, by key.
#[derive(Debug, Default)]
pub struct Admission<'a> {
    /// Those whose chain holds.
    pub admitted: Vec<(Admitted, &'a Member)>,
    /// Those whose chain does not, and those beyond what their delegate may sign for.
    pub refused: Vec<(PublicKey, Refused)>,
}

fn admit(
    member: &Member,
    trust: &Trust,
    uses: &mut BTreeMap<PublicKey, u32>,
) -> Result<Admitted, Refused> {
    if member.addresses.len() > ADDRESSES_MAX {
        return Err(Refused::Addresses);
    }
    let who = member.chain.verify(trust).map_err(Refused::Chain)?;
    if who.statement.key != member.key {
        return Err(Refused::OtherKey);
    }
    if let Some(issuer) = &who.issuer {
        let used = uses.entry(issuer.key).or_default();
        *used += 1;
        if issuer.uses.is_some_and(|most| *used > most) {
            return Err(Refused::Uses);
        }
    }
    Ok(who)
}

fn digest(members: &BTreeMap<PublicKey, Member>) -> Digest {
    let each: Vec<Digest> = members.values().map(Member::digest).collect();
    Digest::of(each.iter().map(|digest| digest.as_bytes().as_slice()))
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
    /// Its delegate has signed for too many.
    #[error("the delegate has signed for more keys than it may")]
    Uses,
    /// It has more prefixes than one box needs.
    #[error("more than {ADDRESSES_MAX} prefixes")]
    Addresses,
}

/// Why a table does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// Nobody who counts has signed the head.
    #[error("the table's head: {0}")]
    Envelope(#[from] EnvelopeError),
    /// It is for another, older, or of an epoch that no root has begun.
    #[error(transparent)]
    Document(#[from] DocumentError),
    /// The members are not those that were signed for.
    #[error("the table is not the one that the controller has signed")]
    Changed,
    /// There are too many.
    #[error("the table has more than {MEMBERS_MAX} members")]
    TooMany,
}

#[cfg(test)]
mod tests;
