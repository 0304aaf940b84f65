//! Documents on their way from what they are to say to what is signed.

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
use crate::model::{Egress, ProxyRole, ProxyState};
use crate::store::StoredDocument;

/// A document that somebody is to have.
pub(super) struct Draft {
    pub(super) key: PublicKey,
    pub(super) digest: String,
    pub(super) about: String,
    pub(super) content: Content,
}

/// What a document says, by its kind.
pub(super) enum Content {
    Configuration(Configuration),
    Candidates(Candidates),
    Anchors(Anchors),
    Table(Table),
}

impl Draft {
    /// The key that the draft is for, and its kind.
    pub(super) fn of(&self) -> (PublicKey, Kind) {
        let kind = match self.content {
            Content::Configuration(_) => Kind::Configuration,
            Content::Candidates(_) => Kind::Candidates,
            Content::Anchors(_) => Kind::Anchors,
            Content::Table(_) => Kind::Table,
        };
        (self.key, kind)
    }

    /// The configuration of a box that wants it. One that `had` one gets an empty one in its place.
    pub(super) fn configuration(key: PublicKey, wanted: Option<Wanted>, had: bool) -> Option<Self> {
        let nothing = Configuration { text: String::new(), approval: None };
        let wanted = wanted.or_else(|| had.then(|| Wanted { about: vec![], body: nothing }))?;
        let said = serde_json::to_string(&wanted.body).ok()?;
        let names: Vec<String> = wanted.about.iter().map(name).collect();
        let about = names.join(",");
        // A box that failed under it tries again when a person brings it anew.
        let digest = Digest::of([said.as_bytes(), about.as_bytes()]).into();
        Some(Self { key, digest, about, content: Content::Configuration(wanted.body) })
    }

    /// Whether the draft says something else than the document that was signed, or is of a later
    /// epoch.
    pub(super) fn is_other(&self, before: Option<&StoredDocument>, epoch: i64) -> bool {
        before.is_none_or(|before| before.digest != self.digest || before.epoch < epoch)
    }

    /// The document as it is kept and sent; `None` if it is too large to be.
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
            kind: text(kind).to_owned(),
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

/// The lists of proxies of all boxes.
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

/// Which anchor each tenant has first, by name.
pub(super) type First = BTreeMap<String, String>;

/// The first anchor of each tenant, as papers of [`Kind::Anchors`] name it.
pub(super) fn first<'a>(papers: impl Iterator<Item = &'a StoredDocument>) -> First {
    let pairs = papers.flat_map(|paper| paper.about.split(','));
    let pair = |pair: &str| pair.split_once('/').map(|(a, b)| (a.to_owned(), b.to_owned()));
    pairs.filter_map(pair).collect()
}

/// The anchors of all proxies; where a tenant has several, the one that was first stays it while
/// it takes boxes.
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

/// The anchors of a tenant that leaves at them, by name: those first that take boxes, and of these
/// `first`. Inner flows end where another comes first.
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

/// The version and the envelope of a paper.
pub(crate) fn opened(paper: &StoredDocument) -> Option<(Version, Envelope)> {
    let envelope = serde_json::from_str(&paper.envelope).ok()?;
    Some((version(paper), envelope))
}

/// Its version.
pub(crate) fn version(paper: &StoredDocument) -> Version {
    Version { epoch: paper.epoch.unsigned_abs(), number: paper.number.unsigned_abs() }
}

/// The signed head of a paper about a table.
pub(super) fn head(paper: &StoredDocument) -> Option<Signed<TableHead>> {
    serde_json::from_str(&paper.envelope).ok()
}

/// A kind as the database names it.
pub(crate) fn kind(text: &str) -> Option<Kind> {
    KINDS.iter().find(|(_, name)| *name == text).map(|(kind, _)| *kind)
}

/// How the database names a kind.
pub(crate) fn text(kind: Kind) -> &'static str {
    KINDS.iter().find(|(other, _)| *other == kind).map_or("", |(_, name)| name)
}

/// A chain as a record keeps it.
pub(super) fn chain(statement: Option<&str>) -> Option<Chain> {
    serde_json::from_str(statement?).ok()
}

/// The tenants whose boxes may be at a proxy or anchor.
pub(super) type Served = BTreeSet<String>;

const KINDS: [(Kind, &str); 4] = [
    (Kind::Configuration, "configuration"),
    (Kind::Candidates, "candidates"),
    (Kind::Anchors, "anchors"),
    (Kind::Table, "table"),
];
