//! From drafts of documents to signed ones.

use std::collections::{BTreeMap, BTreeSet};

use roadweave_fleet::{
    Anchor, Anchors, Body, Candidates, Chain, Configuration, Digest, Document, Envelope, Kind,
    ProxyView, Signed, Table, TableHead, Version,
};
use roadweave_identity::{Identity, PublicKey};

use super::fleet::{Fleet, RecordId};
use super::placement::{self, Offer};
use super::rollouts::name;
use super::texts::Wanted;
use crate::model::{Egress, ProxyRole, ProxyState, word};
use crate::store::StoredDocument;

pub(super) struct Draft {
    pub(super) key: PublicKey,
    pub(super) digest: String,
    pub(super) about: String,
    pub(super) content: Content,
}

pub(super) enum Content {
    Configuration(Configuration),
    Candidates(Candidates),
    Anchors(Anchors),
    Table(Table),
}

impl Draft {
    pub(super) fn of(&self) -> (PublicKey, Kind) {
        let kind = match self.content {
            Content::Configuration(_) => Kind::Configuration,
            Content::Candidates(_) => Kind::Candidates,
            Content::Anchors(_) => Kind::Anchors,
            Content::Table(_) => Kind::Table,
        };
        (self.key, kind)
    }

    /// The configuration of a box. If none is wanted, a box that `had` one gets an empty one.
    pub(super) fn configuration(key: PublicKey, wanted: Option<Wanted>, had: bool) -> Option<Self> {
        let nothing = Configuration { text: String::new(), approval: None };
        let wanted = wanted.or_else(|| had.then(|| Wanted { about: vec![], body: nothing }))?;
        let said = serde_json::to_string(&wanted.body).ok()?;
        let names: Vec<String> = wanted.about.iter().map(name).collect();
        let about = names.join(",");
        // Bringing a configuration again makes a box that failed with it retry.
        let digest = Digest::of([said.as_bytes(), about.as_bytes()]).into();
        Some(Self { key, digest, about, content: Content::Configuration(wanted.body) })
    }

    /// Whether the draft differs from the signed document, or has a later epoch.
    pub(super) fn is_other(&self, before: Option<&StoredDocument>, epoch: i64) -> bool {
        before.is_none_or(|before| before.digest != self.digest || before.epoch < epoch)
    }

    pub(super) fn sign(
        &self,
        controller: &Identity,
        epoch: i64,
        number: i64,
    ) -> Option<StoredDocument> {
        let version = Version { epoch: epoch.unsigned_abs(), number: number.unsigned_abs() };
        let signed = match &self.content {
            Content::Configuration(body) => document(self.key, version, body.clone(), controller),
            Content::Candidates(body) => document(self.key, version, body.clone(), controller),
            Content::Anchors(body) => document(self.key, version, body.clone(), controller),
            Content::Table(table) => {
                let head = Signed::sign(&table.head_for(self.key, version), controller);
                head.ok().and_then(|head| serde_json::to_string(&head).ok())
            }
        };
        let (key, kind) = self.of();
        let Some(envelope) = signed else {
            tracing::error!(%key, ?kind, "a document is too large and is not sent");
            return None;
        };
        Some(StoredDocument {
            public_key: key.to_string(),
            kind: word(&kind),
            epoch,
            number,
            digest: self.digest.clone(),
            about: self.about.clone(),
            envelope,
            outcome: String::new(),
        })
    }
}

fn document<B: Body>(
    subject: PublicKey,
    version: Version,
    body: B,
    controller: &Identity,
) -> Option<String> {
    let signed = Signed::sign(&Document { subject, version, body }, controller).ok()?;
    serde_json::to_string(&signed.into_envelope()).ok()
}

pub(super) fn candidates(
    fleet: &Fleet,
    offers: &[Offer],
    placed: &BTreeMap<RecordId, PublicKey>,
    drafts: &mut Vec<Draft>,
) {
    let views: Vec<ProxyView> = offers.iter().map(|offer| offer.view.clone()).collect();
    for (id, device, key) in fleet.active() {
        let current = placed.get(id).copied();
        let list = placement::list(fleet, offers, &views, (id, device, key), current);
        let Some((list, digest)) = list else { continue };
        let (digest, about) = (digest.into(), String::new());
        drafts.push(Draft { key, digest, about, content: Content::Candidates(list) });
    }
}

/// The name of each tenant's first anchor.
pub(super) type First = BTreeMap<String, String>;

/// The first anchors by the signed documents of [`Kind::Anchors`].
pub(super) fn first<'a>(papers: impl Iterator<Item = &'a StoredDocument>) -> First {
    let pairs = papers.flat_map(|paper| paper.about.split(','));
    let pair = |pair: &str| pair.split_once('/').map(|(a, b)| (a.to_owned(), b.to_owned()));
    pairs.filter_map(pair).collect()
}

/// The anchors for all proxies. A tenant's first anchor stays the first while it accepts boxes.
pub(super) fn anchors(fleet: &Fleet, before: &First, drafts: &mut Vec<Draft>) {
    for (id, proxy, key) in fleet.gates() {
        if proxy.settings.role != ProxyRole::Proxy {
            continue;
        }
        let (mut anchors, mut about) = (Vec::new(), Vec::new());
        for tenant in fleet.served(id, proxy) {
            let of_tenant = of_tenant(fleet, &tenant, before.get(&tenant));
            about.extend(of_tenant.first().map(|(id, _)| format!("{tenant}/{id}")));
            anchors.extend(of_tenant.into_iter().map(|(_, anchor)| anchor));
        }
        let Ok(said) = serde_json::to_string(&anchors) else { continue };
        let digest = Digest::of([said.as_bytes()]).into();
        let content = Content::Anchors(Anchors { anchors });
        drafts.push(Draft { key, digest, about: about.join(","), content });
    }
}

/// A tenant's anchors by name: those that accept boxes first, and of these `first`. Changing the
/// first anchor ends inner flows.
fn of_tenant(fleet: &Fleet, tenant: &str, first: Option<&String>) -> Vec<(String, Anchor)> {
    let record = fleet.tenants.get(&(tenant.to_owned(), tenant.to_owned()));
    let Some(record) = record.filter(|it| it.settings.egress == Egress::Anchor) else {
        return Vec::new();
    };
    let rate_kbps = record.settings.limits.rate_mbps.map(|rate| rate.saturating_mul(1_000));
    let is_anchor = |id: &RecordId, role: ProxyRole| id.0 == tenant && role == ProxyRole::Anchor;
    let mut found: Vec<((bool, bool), (String, Anchor))> = Vec::new();
    for (id, anchor, _) in fleet.gates() {
        let chain = anchor.statement.as_deref().and_then(|text| serde_json::from_str(text).ok());
        let (Some(chain), Ok(tenant)) = (chain, tenant.parse()) else { continue };
        if is_anchor(id, anchor.settings.role) {
            let addresses = anchor.settings.addresses.iter().map(ToString::to_string).collect();
            let rank = (anchor.state != ProxyState::Active, Some(&id.1) != first);
            let anchor = Anchor { tenant, chain, addresses, rate_kbps };
            found.push((rank, (id.1.clone(), anchor)));
        }
    }
    found.sort_by_key(|(rank, _)| *rank);
    found.into_iter().map(|(_, anchor)| anchor).collect()
}

pub(crate) fn opened(paper: &StoredDocument) -> Option<(Version, Envelope)> {
    let envelope = serde_json::from_str(&paper.envelope).ok()?;
    Some((version(paper), envelope))
}

pub(crate) fn version(paper: &StoredDocument) -> Version {
    Version { epoch: paper.epoch.unsigned_abs(), number: paper.number.unsigned_abs() }
}

/// The reader of a document, and its kind.
pub(super) fn of(paper: &StoredDocument) -> Option<(PublicKey, Kind)> {
    Some((paper.public_key.parse().ok()?, kind(&paper.kind)?))
}

pub(super) fn head(paper: &StoredDocument) -> Option<Signed<TableHead>> {
    serde_json::from_str(&paper.envelope).ok()
}

pub(crate) fn kind(text: &str) -> Option<Kind> {
    serde_json::from_value(text.into()).ok()
}

pub(super) fn chain(statement: Option<&str>) -> Option<Chain> {
    serde_json::from_str(statement?).ok()
}

pub(super) type Served = BTreeSet<String>;
