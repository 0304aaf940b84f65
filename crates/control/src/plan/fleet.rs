//! The records of the database in memory, updated by the outbox.

use std::collections::{BTreeMap, BTreeSet};

use roadweave_identity::PublicKey;

use crate::model::{
    Config, Device, DeviceState, Lock, Pool, Proxy, ProxyState, Rollout, Tenant, Token,
};
use crate::store::{Changed, Record, Store, StoreError, Stored};

/// Tenant and name of a record.
pub type RecordId = (String, String);

#[derive(Debug, Default)]
pub struct Fleet {
    pub(super) tenants: BTreeMap<RecordId, Tenant>,
    pub(super) devices: BTreeMap<RecordId, Device>,
    pub(super) proxies: BTreeMap<RecordId, Proxy>,
    pub(super) pools: BTreeMap<RecordId, Pool>,
    pub(super) tokens: BTreeMap<RecordId, Token>,
    pub(super) rollouts: BTreeMap<RecordId, Stored<Rollout>>,
    pub(super) configs: BTreeMap<RecordId, Config>,
    /// Whether the trust list names approvers, without whom no configuration counts.
    pub(super) asks_approval: bool,
}

#[derive(Debug, Default)]
pub struct Stale {
    devices: BTreeSet<RecordId>,
    others: BTreeSet<String>,
}

impl Stale {
    pub fn all() -> Self {
        let all = ["device", "tenant", "proxy", "pool", "token", "roll-out"];
        Self { devices: BTreeSet::new(), others: all.map(str::to_owned).into() }
    }

    /// Takes a change; whether documents depend on it.
    pub fn take(&mut self, line: &Changed) -> bool {
        match &*line.kind {
            "device" if !self.others.contains("device") => {
                self.devices.insert((line.tenant.clone(), line.subject.clone()));
                if self.devices.len() > DEVICES_MAX {
                    self.others.insert("device".to_owned());
                }
                true
            }
            "device" => true,
            "configuration" => {
                self.others.extend(["configuration", "roll-out"].map(str::to_owned));
                true
            }
            "tenant" | "proxy" | "pool" | "token" | "roll-out" => {
                self.others.insert(line.kind.clone());
                true
            }
            _ => false,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.devices.is_empty() && self.others.is_empty()
    }
}

impl Fleet {
    /// Reads the stale records; after an error `stale` is unchanged.
    pub async fn refresh(&mut self, store: &Store, stale: &mut Stale) -> Result<(), StoreError> {
        let has = |kind: &str| stale.others.contains(kind);
        if has("device") {
            self.devices = all(store).await?;
        } else {
            for id in &stale.devices {
                match store.get::<Device>(&id.0, &id.1).await {
                    Ok(found) => _ = self.devices.insert(id.clone(), found.record),
                    Err(StoreError::NotFound { .. } | StoreError::Altered { .. }) => {
                        self.devices.remove(id);
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        if has("tenant") {
            self.tenants = all(store).await?;
        }
        if has("proxy") {
            self.proxies = all(store).await?;
        }
        if has("pool") {
            self.pools = all(store).await?;
        }
        if has("token") {
            self.tokens = all(store).await?;
        }
        if has("configuration") {
            self.configs.clear();
        }
        if has("roll-out") {
            let found = store.all::<Rollout>(RECORDS_MAX).await?;
            let id_of = |it: &Stored<Rollout>| (it.tenant.clone(), it.record.id.clone());
            self.rollouts = found.into_iter().map(|it| (id_of(&it), it)).collect();
            self.read_configs(store).await?;
        }
        *stale = Stale::default();
        Ok(())
    }

    async fn read_configs(&mut self, store: &Store) -> Result<(), StoreError> {
        let wanted = self.rollouts.values();
        let wanted = wanted.map(|it| (it.tenant.clone(), it.record.settings.config.clone()));
        let wanted: BTreeSet<RecordId> = wanted.collect();
        self.configs.retain(|id, _| wanted.contains(id));
        for id in wanted {
            if self.configs.contains_key(&id) {
                continue;
            }
            match store.get::<Config>(&id.0, &id.1).await {
                Ok(found) => _ = self.configs.insert(id, found.record),
                Err(StoreError::NotFound { .. } | StoreError::Altered { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// The lock of a tenant, which decides on the signatures that its boxes need.
    pub(super) fn lock(&self, tenant: &str) -> Lock {
        let tenant = self.tenants.get(&(tenant.to_owned(), tenant.to_owned()));
        match self.asks_approval {
            true => Lock::Config,
            false => tenant.map(|it| it.settings.lock).unwrap_or_default(),
        }
    }

    pub(super) fn waits(&self, id: &RecordId, rollout: &Rollout) -> bool {
        let config = (id.0.clone(), rollout.settings.config.clone());
        let is_signed = |config: &Config| config.settings.signature.is_some();
        self.lock(&id.0) == Lock::Config && !self.configs.get(&config).is_some_and(is_signed)
    }

    pub(super) fn active(&self) -> impl Iterator<Item = (&RecordId, &Device, PublicKey)> {
        let active = self.devices.iter().filter(|(_, it)| it.state == DeviceState::Active);
        active.filter_map(|(id, it)| Some((id, it, it.public_key.parse().ok()?)))
    }

    pub(super) fn gates(&self) -> impl Iterator<Item = (&RecordId, &Proxy, PublicKey)> {
        let there = self.proxies.iter().filter(|(_, it)| it.state != ProxyState::Revoked);
        there.filter_map(|(id, it)| Some((id, it, it.settings.public_key.parse().ok()?)))
    }

    pub fn key_of(&self, kind: &str, id: &RecordId) -> Option<PublicKey> {
        match kind {
            "device" => self.devices.get(id)?.public_key.parse().ok(),
            _ => self.proxies.get(id)?.settings.public_key.parse().ok(),
        }
    }

    pub fn is_draining(&self, id: &RecordId) -> bool {
        self.proxies.get(id).is_some_and(|proxy| proxy.state == ProxyState::Draining)
    }

    pub(super) fn pool_of(&self, id: &RecordId, proxy: &Proxy) -> Option<&Pool> {
        self.pools.get(&(id.0.clone(), proxy.settings.pool.clone()?))
    }

    pub(super) fn served(&self, id: &RecordId, proxy: &Proxy) -> BTreeSet<String> {
        let others = self.pool_of(id, proxy).map(|pool| pool.settings.tenants.clone());
        others.into_iter().flatten().chain([id.0.clone()]).collect()
    }
}

async fn all<R: Record>(store: &Store) -> Result<BTreeMap<RecordId, R>, StoreError> {
    let found = store.all::<R>(RECORDS_MAX).await?;
    let id_of = |it: &Stored<R>| (it.tenant.clone(), it.record.id().to_owned());
    Ok(found.into_iter().map(|it| (id_of(&it), it.record)).collect())
}

/// Beyond so many stale boxes, all are read.
const DEVICES_MAX: usize = 64;
const RECORDS_MAX: u32 = 1_000_000;
