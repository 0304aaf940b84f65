//! Documents for one box, proxy or anchor: versioned, for its key alone, signed by a controller.

use std::collections::BTreeSet;

use ipnet::IpNet;
use roadweave_identity::{Identity, PublicKey};
use serde::{Deserialize, Serialize};

use crate::chain::Chain;
use crate::digest::Digest;
use crate::envelope::{EnvelopeError, Payload, Signed};
use crate::name::Name;
use crate::rollout::plan::Target;
use crate::trust::Trust;

/// The version of a document, in order.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(deny_unknown_fields)]
pub struct Version {
    /// The epoch of the controller, which a root begins.
    pub epoch: u64,
    /// Counts up within the epoch.
    pub number: u64,
}

roadweave_proto::named! {
    /// The kinds of documents; one of each is in force.
    Kind {
        /// The settings of a box.
        Configuration = "configuration",
        /// The proxies that a box may choose among.
        Candidates = "candidates",
        /// The anchors that a proxy uses.
        Anchors = "anchors",
        /// Who may connect to a proxy or an anchor ([`Table`](crate::Table)).
        Table = "table",
    }
}

/// The content of a document.
pub trait Body: Serialize + for<'a> Deserialize<'a> {
    /// The kind of its document.
    const KIND: Kind;
    /// The type in the signature.
    const TYPE: &'static str;
}

/// A document for the holder of one key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Document<B> {
    /// The key of its only reader.
    pub subject: PublicKey,
    /// Higher versions replace lower ones.
    pub version: Version,
    /// The content.
    pub body: B,
}

impl<B: Body> Payload for Document<B> {
    const TYPE: &'static str = B::TYPE;
}

impl<B: Body> Document<B> {
    /// Verifies a document for the holder of `subject`; it must be newer than `held`.
    pub fn open(
        signed: &Signed<Self>,
        trust: &Trust,
        subject: PublicKey,
        held: Option<Version>,
    ) -> Result<Self, DocumentError> {
        let (document, _) = signed.verify_by(trust.controllers())?;
        document.check(trust, subject, held)
    }

    pub(crate) fn open_held(
        signed: &Signed<Self>,
        trust: &Trust,
        subject: PublicKey,
    ) -> Result<Self, DocumentError> {
        let (document, _) = signed.verify_by(trust.signers())?;
        document.check(trust, subject, None)
    }

    fn check(
        self,
        trust: &Trust,
        subject: PublicKey,
        held: Option<Version>,
    ) -> Result<Self, DocumentError> {
        if self.subject != subject {
            return Err(DocumentError::OtherSubject);
        }
        check_version(self.version, trust, held)?;
        Ok(self)
    }
}

pub(crate) fn check_version(
    version: Version,
    trust: &Trust,
    held: Option<Version>,
) -> Result<(), DocumentError> {
    if version.epoch > trust.list().epoch {
        return Err(DocumentError::Epoch(version.epoch));
    }
    match held.filter(|held| version <= *held) {
        Some(held) => Err(DocumentError::Older { version, held }),
        None => Ok(()),
    }
}

/// The settings of a box: fields of its file, as TOML. The file itself wins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Configuration {
    /// The fields, at most [`Configuration::TEXT_MAX`] bytes.
    pub text: String,
    /// The approval of a person, where the list of trust names approvers.
    pub approval: Option<Signed<Approval>>,
}

/// A person's approval of a text, as a version, for boxes. A stolen controller can neither bring
/// back an older text nor use it for other boxes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Approval {
    /// The tenant of the boxes.
    pub tenant: Name,
    /// Which of its boxes.
    pub target: Target,
    /// Counts the approvals for this target; a box takes none below the last.
    pub number: u64,
    /// The digest of the text.
    pub text: Digest,
}

/// The last approved number for each target that a box belongs to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Approvals(Vec<(Target, u64)>);

impl Approvals {
    fn take(&mut self, target: &Target, number: u64) -> bool {
        let Some((_, held)) = self.0.iter_mut().find(|(held, _)| held == target) else {
            self.0.push((target.clone(), number));
            return true;
        };
        let is_newer = number >= *held;
        *held = number.max(*held);
        is_newer
    }
}

impl Payload for Approval {
    const TYPE: &'static str = "application/vnd.roadweave.approval+json";
}

/// A configuration that waits for approval, as handed to the machine with the approver's key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiting {
    /// What to sign.
    pub approval: Approval,
    /// The text of the configuration.
    pub text: String,
}

impl Waiting {
    /// What the person sees before signing: the target and the text.
    pub fn shown(&self) -> String {
        let Approval { tenant, target, number, .. } = &self.approval;
        let whom = match target {
            Target::Tenant => "all boxes".to_owned(),
            Target::Tag(tag) => format!("boxes with the tag {tag}"),
            Target::Device(key) => format!("the box with the key {key}"),
        };
        let text = self.text.chars().filter(|c| !c.is_control() || *c == '\n');
        format!("number {number} for {whom} of {tenant}:\n\n{}", text.collect::<String>())
    }

    /// Signs the approval, if it is for this text.
    pub fn sign(&self, approver: &Identity) -> Result<Signed<Approval>, DocumentError> {
        if self.approval.text != Digest::of([self.text.as_bytes()]) {
            return Err(DocumentError::NotApproved);
        }
        let hides = |c: char| {
            let turns = matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
            turns || c.is_control() && c != '\n' && c != '\t'
        };
        if self.text.contains(hides) {
            return Err(DocumentError::Hidden);
        }
        Ok(Signed::sign(&self.approval, approver)?)
    }
}

impl Configuration {
    /// The longest text, bytes.
    pub const TEXT_MAX: usize = 24 * 1024;

    /// Checks that the box of `tenant` with this key and these tags may use it, given its
    /// approvals.
    pub fn check(
        &self,
        trust: &Trust,
        tenant: &Name,
        (key, tags): (&PublicKey, &BTreeSet<Name>),
        approved: &mut Approvals,
    ) -> Result<(), DocumentError> {
        if self.text.len() > Self::TEXT_MAX {
            return Err(DocumentError::TooLong);
        }
        let approvers = &trust.list().approvers;
        if approvers.is_empty() {
            return Ok(());
        }
        let approval = self.approval.as_ref().ok_or(DocumentError::NotApproved)?;
        let keys = approvers.iter().copied().filter(|key| !trust.is_revoked(key));
        let (approval, _) = approval.verify_by(keys)?;
        let text = Digest::of([self.text.as_bytes()]);
        let is_meant = approval.tenant == *tenant && approval.target.covers(key, tags);
        if !is_meant || approval.text != text {
            return Err(DocumentError::NotApproved);
        }
        match approved.take(&approval.target, approval.number) {
            true => Ok(()),
            false => Err(DocumentError::ApprovedBefore(approval.number)),
        }
    }
}

impl Body for Configuration {
    const KIND: Kind = Kind::Configuration;
    const TYPE: &'static str = "application/vnd.roadweave.configuration+json";
}

/// The proxies that a box may choose among.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Candidates {
    /// At most [`Candidates::MAX`], the best first.
    pub proxies: Vec<Candidate>,
}

/// A proxy that a box may choose.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Candidate {
    /// Proves that it is a proxy of the box's tenant; contains key and name.
    pub chain: Chain,
    /// Its site: standbys are sought at another one.
    pub site: Name,
    /// `host:port` each.
    pub addresses: Vec<String>,
    /// The round trip from it to the tenant's anchor, microseconds.
    pub to_anchor_us: u32,
    /// Whether to choose it only if no other is there.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub last_resort: bool,
}

impl Candidates {
    /// The most candidates.
    pub const MAX: usize = 5;
}

impl Body for Candidates {
    const KIND: Kind = Kind::Candidates;
    const TYPE: &'static str = "application/vnd.roadweave.candidates+json";
}

/// The anchors that a proxy uses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Anchors {
    /// For each tenant those that may serve it; the first that answers is used.
    pub anchors: Vec<Anchor>,
}

/// One anchor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Anchor {
    /// Its tenant.
    pub tenant: Name,
    /// Proves that it is an anchor of that tenant; contains key and name.
    pub chain: Chain,
    /// `host:port` each.
    pub addresses: Vec<String>,
    /// The limit of all boxes of the tenant together through the proxy, for each direction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_kbps: Option<u32>,
    /// The anchor's own inner addresses, each with the length of its network.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gateways: Vec<IpNet>,
}

impl Body for Anchors {
    const KIND: Kind = Kind::Anchors;
    const TYPE: &'static str = "application/vnd.roadweave.anchors+json";
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DocumentError {
    #[error("the document: {0}")]
    Envelope(#[from] EnvelopeError),
    #[error("the document is for another key")]
    OtherSubject,
    #[error("the document has version {version:?}, but {held:?} is held already")]
    Older { version: Version, held: Version },
    #[error("the document has epoch {0}, which no root has started")]
    Epoch(u64),
    #[error("the configuration is longer than {} bytes", Configuration::TEXT_MAX)]
    TooLong,
    #[error("the configuration has characters that hide its content from readers")]
    Hidden,
    #[error("no trusted approver has approved this configuration for this box")]
    NotApproved,
    #[error("the approved configuration is number {0}, but a later one was applied since")]
    ApprovedBefore(u64),
}

#[cfg(test)]
mod tests;
