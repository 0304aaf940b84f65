//! The plan of a fleet: the documents that boxes, proxies and anchors are to hold.
//!
//! ```text
//! Fleet: records ─────────────┐
//! Proxies: health, load ──────┼─► Planning ─► drafts that say something new ─► Draft::sign
//! Rollouts: outcomes, time ───┤
//! Documents: signed before ───┘
//! ```
//!
//! Neither I/O nor a clock: equal input gives equal drafts. The owner stores and sends them.

mod configurations;
mod distances;
mod proxies;
mod rollouts;
mod tables;

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;
use roadweave_identity::{Identity, PublicKey};

pub use self::configurations::toml_text;
use self::configurations::{Layers, Made};
pub use self::proxies::{Offers, Proxies};
pub use self::rollouts::{Rollouts, Turned};
pub use self::tables::Tables;
use crate::chain::Chain;
use crate::digest::Digest;
use crate::document::{Anchor, Anchors, Body, Candidates, Configuration, Document, Kind, Version};
use crate::envelope::{Envelope, EnvelopeError, Signed};
use crate::frame::Outcome;
use crate::inner::gateway_of;
use crate::name::Name;
use crate::records::{
    Config, Device, DeviceState, Egress, Lock, Pool, Proxy, ProxyRole, ProxyState, Rollout, Tenant,
    Token,
};
use crate::table::Table;

/// The tenant and the name of a record.
pub type RecordId = (String, String);

const ANCHORS_OF_TENANT_MAX: usize = 4;

/// The documents signed last.
pub type Documents = BTreeMap<(PublicKey, Kind), Written>;

/// The records that a fleet is planned from.
#[derive(Clone, Debug, Default)]
pub struct Fleet {
    /// Each under its name twice.
    pub tenants: BTreeMap<RecordId, Tenant>,
    /// The boxes.
    pub devices: BTreeMap<RecordId, Device>,
    /// The proxies and anchors.
    pub proxies: BTreeMap<RecordId, Proxy>,
    /// The pools of proxies.
    pub pools: BTreeMap<RecordId, Pool>,
    /// The tokens.
    pub tokens: BTreeMap<RecordId, Token>,
    /// The roll-outs.
    pub rollouts: BTreeMap<RecordId, Rollout>,
    /// The configurations of roll-outs.
    pub configs: BTreeMap<RecordId, Config>,
    /// Whether the trust list names approvers, without whom no configuration counts.
    pub asks_approval: bool,
}

impl Fleet {
    /// The admitted boxes.
    pub fn active(&self) -> impl Iterator<Item = (&RecordId, &Device, PublicKey)> {
        let active = self.devices.iter().filter(|(_, it)| it.state == DeviceState::Active);
        active.filter_map(|(id, it)| Some((id, it, it.public_key.parse().ok()?)))
    }

    /// The admitted proxies and anchors.
    pub fn gates(&self) -> impl Iterator<Item = (&RecordId, &Proxy, PublicKey)> {
        let there = self.proxies.iter().filter(|(_, it)| it.state != ProxyState::Revoked);
        there.filter_map(|(id, it)| Some((id, it, it.settings.public_key.parse().ok()?)))
    }

    fn tenant(&self, tenant: &str) -> Option<&Tenant> {
        self.tenants.get(&(tenant.to_owned(), tenant.to_owned()))
    }

    fn asks_approval(&self, tenant: &str) -> bool {
        let lock = self.tenant(tenant).map(|it| it.settings.lock).unwrap_or_default();
        self.asks_approval || lock == Lock::Config
    }

    fn config_of(&self, id: &RecordId, rollout: &Rollout) -> Option<&Config> {
        self.configs.get(&(id.0.clone(), rollout.settings.config.clone()))
    }

    fn waits(&self, id: &RecordId, rollout: &Rollout) -> bool {
        let is_signed = |config: &Config| config.settings.signature.is_some();
        self.asks_approval(&id.0) && !self.config_of(id, rollout).is_some_and(is_signed)
    }

    fn pool_of(&self, id: &RecordId, pool: Option<String>) -> Option<&Pool> {
        self.pools.get(&(id.0.clone(), pool?))
    }

    fn served(&self, id: &RecordId, proxy: &Proxy) -> BTreeSet<String> {
        let pool = self.pool_of(id, proxy.settings.pool.clone());
        let others = pool.into_iter().flat_map(|pool| pool.settings.tenants.iter().cloned());
        others.chain([id.0.clone()]).collect()
    }
}

/// A document as signed.
#[derive(Clone, Debug)]
pub struct Written {
    /// Its version.
    pub version: Version,
    /// [`Draft::digest`].
    pub digest: Digest,
    /// [`Draft::about`].
    pub about: String,
    /// Its outcome at the member, if known.
    pub outcome: Option<Outcome>,
}

/// A document to be signed.
#[derive(Debug)]
pub struct Draft {
    /// The key of its reader.
    pub key: PublicKey,
    /// Equal if two documents say the same.
    pub digest: Digest,
    /// The names of its sources, comma-separated.
    pub about: String,
    content: Content,
}

#[derive(Debug)]
enum Content {
    Configuration(Configuration),
    Candidates(Candidates),
    Anchors(Anchors),
    Table(Table),
}

impl Draft {
    /// Its reader and its kind.
    pub fn of(&self) -> (PublicKey, Kind) {
        let kind = match self.content {
            Content::Configuration(_) => Kind::Configuration,
            Content::Candidates(_) => Kind::Candidates,
            Content::Anchors(_) => Kind::Anchors,
            Content::Table(_) => Kind::Table,
        };
        (self.key, kind)
    }

    /// The table, if it is one.
    pub fn table(&self) -> Option<&Table> {
        match &self.content {
            Content::Table(table) => Some(table),
            _ => None,
        }
    }

    /// The document as signed with this version.
    pub fn written(&self, version: Version) -> Written {
        Written { version, digest: self.digest, about: self.about.clone(), outcome: None }
    }

    /// The signed document; the signed head of a table.
    pub fn sign(&self, controller: &Identity, version: Version) -> Result<Envelope, EnvelopeError> {
        match &self.content {
            Content::Configuration(body) => self.document(body, controller, version),
            Content::Candidates(body) => self.document(body, controller, version),
            Content::Anchors(body) => self.document(body, controller, version),
            Content::Table(table) => {
                Ok(Signed::sign(&table.head_for(self.key, version), controller)?.into_envelope())
            }
        }
    }

    fn document<B: Body + Clone>(
        &self,
        body: &B,
        controller: &Identity,
        version: Version,
    ) -> Result<Envelope, EnvelopeError> {
        let document = Document { subject: self.key, version, body: body.clone() };
        Ok(Signed::sign(&document, controller)?.into_envelope())
    }
}

/// Makes the documents that differ from the signed ones, or are of a later epoch.
#[derive(Clone, Copy, Debug)]
pub struct Planning<'a> {
    /// The records.
    pub fleet: &'a Fleet,
    /// The documents signed before.
    pub documents: &'a Documents,
    /// The epoch of new documents.
    pub epoch: u64,
}

impl<'a> Planning<'a> {
    fn is_new(&self, of: (PublicKey, Kind), digest: Digest) -> bool {
        let before = self.documents.get(&of);
        before.is_none_or(|it| it.digest != digest || it.version.epoch < self.epoch)
    }

    fn new_ones(&self, drafts: impl Iterator<Item = Draft>) -> Vec<Draft> {
        drafts.filter(|draft| self.is_new(draft.of(), draft.digest)).collect()
    }

    /// The configurations of all boxes. A box that has lost its own gets an empty one.
    pub fn configurations(&self, rollouts: &Rollouts) -> Vec<Draft> {
        let mut tenants: BTreeMap<&str, Layers<'_>> = BTreeMap::new();
        let mut made: BTreeMap<Vec<&RecordId>, Option<Made>> = BTreeMap::new();
        let mut drafts = Vec::new();
        for (id, device, key) in self.fleet.active() {
            let layers = tenants.entry(&id.0).or_insert_with(|| Layers::of(self.fleet, &id.0));
            let mut layers = layers.offered(rollouts, device, key);
            let asks_approval = self.fleet.asks_approval(&id.0);
            if asks_approval {
                // An approval covers a whole text, so only the narrowest counts.
                layers = layers.split_off(layers.len().saturating_sub(1));
            }
            let of = (key, Kind::Configuration);
            // An empty configuration would lack approval: the box keeps the one it has.
            if layers.is_empty() && (asks_approval || !self.documents.contains_key(&of)) {
                continue;
            }
            let ids = layers.iter().map(|(id, _)| *id).collect();
            let made = made.entry(ids).or_insert_with(|| Made::of(&layers));
            if let Some(Made { body, about, digest }) = made
                && self.is_new(of, *digest)
            {
                let content = Content::Configuration(body.clone());
                drafts.push(Draft { key, digest: *digest, about: about.clone(), content });
            }
        }
        drafts
    }

    /// The lists of proxies of all boxes. `current` gives the proxy of a box, or `None` to leave it
    /// out. A box without any proxy to offer keeps its list.
    pub fn candidates(
        &self,
        offers: &Offers,
        current: impl Fn(&RecordId, &PublicKey) -> Option<Option<PublicKey>>,
    ) -> Vec<Draft> {
        let draft = |(id, device, key): (&RecordId, &Device, PublicKey)| {
            let list = offers.list(self.fleet, (id, device, key), current(id, &key)?);
            let (list, digest) = list?;
            Some(Draft { key, digest, about: String::new(), content: Content::Candidates(list) })
        };
        self.new_ones(self.fleet.active().filter_map(draft))
    }

    /// The tables of all proxies and anchors.
    pub fn tables(&self, tables: &mut Tables) -> Vec<Draft> {
        tables.refresh(self.fleet);
        self.new_ones(self.fleet.gates().map(|(id, gate, key)| {
            let table = tables.of(self.fleet, id, gate);
            let (digest, about) = (table.digest(), String::new());
            Draft { key, digest, about, content: Content::Table(table) }
        }))
    }

    /// The anchors for all proxies. A tenant's first anchor stays the first while it accepts boxes.
    pub fn anchors(&self) -> Vec<Draft> {
        let before = self.first_anchors();
        let draft = |(id, proxy, key): (&RecordId, &Proxy, PublicKey)| {
            let (mut anchors, mut about) = (Vec::new(), Vec::new());
            for tenant in self.fleet.served(id, proxy) {
                let mut of_tenant = self.anchors_of(&tenant, before.get(&*tenant).copied());
                of_tenant.truncate(ANCHORS_OF_TENANT_MAX);
                about.extend(of_tenant.first().map(|(id, _)| format!("{tenant}/{id}")));
                anchors.extend(of_tenant.into_iter().map(|(_, anchor)| anchor));
            }
            let said = serde_json::to_string(&anchors).ok()?;
            let digest = Digest::of([said.as_bytes()]);
            let content = Content::Anchors(Anchors { anchors });
            Some(Draft { key, digest, about: about.join(","), content })
        };
        let proxies = self.fleet.gates().filter(|(_, it, _)| it.settings.role == ProxyRole::Proxy);
        self.new_ones(proxies.filter_map(draft))
    }

    /// The tenants with more anchors than proxies are sent, and how many more.
    pub fn anchors_left_out(&self) -> BTreeMap<String, usize> {
        let left_out = self.fleet.tenants.keys().map(|(tenant, _)| {
            let of_tenant = self.anchors_of(tenant, None).len();
            (tenant.clone(), of_tenant.saturating_sub(ANCHORS_OF_TENANT_MAX))
        });
        left_out.filter(|(_, count)| *count > 0).collect()
    }

    fn first_anchors(&self) -> BTreeMap<&str, &str> {
        let gates = self.fleet.gates();
        let signed = gates.filter_map(|(.., key)| self.documents.get(&(key, Kind::Anchors)));
        let pairs = signed.flat_map(|signed| signed.about.split(','));
        pairs.filter_map(|pair| pair.split_once('/')).collect()
    }

    /// A tenant's anchors by name; accepting ones first, led by `first`, whose change ends flows.
    fn anchors_of(&self, tenant: &str, first: Option<&str>) -> Vec<(&'a str, Anchor)> {
        let record = self.fleet.tenant(tenant);
        let record = record.filter(|it| it.settings.egress == Egress::Anchor);
        let (Some(record), Ok(name)) = (record, tenant.parse::<Name>()) else { return Vec::new() };
        let rate_kbps = record.settings.limits.rate_mbps.map(|rate| rate.saturating_mul(1_000));
        let gateways: Vec<IpNet> = record.settings.prefixes.iter().filter_map(gateway_of).collect();
        let of_tenant = self
            .fleet
            .gates()
            .filter(|(id, it, _)| id.0 == tenant && it.settings.role == ProxyRole::Anchor);
        let anchor = |(id, it, _): (&'a RecordId, &Proxy, _)| {
            let (tenant, chain) = (name.clone(), chain(it.statement.as_deref())?);
            let addresses = it.settings.addresses.iter().map(ToString::to_string).collect();
            let rank = (it.state != ProxyState::Active, Some(&*id.1) != first);
            let gateways = gateways.clone();
            Some((rank, (&*id.1, Anchor { tenant, chain, addresses, rate_kbps, gateways })))
        };
        let mut found: Vec<_> = of_tenant.filter_map(anchor).collect();
        found.sort_by_key(|(rank, _)| *rank);
        found.into_iter().map(|(_, anchor)| anchor).collect()
    }
}

fn chain(statement: Option<&str>) -> Option<Chain> {
    serde_json::from_str(statement?).ok()
}

#[cfg(test)]
mod tests;
