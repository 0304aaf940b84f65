//! The records of the database in memory, updated by the outbox.

use std::collections::{BTreeMap, BTreeSet};

use roadweave_fleet::{Fleet, RecordId};

use crate::model::{Config, Device, Record, Rollout};
use crate::store::{Changed, Store, StoreError, Stored};

#[derive(Debug, Default)]
pub struct Records {
    pub fleet: Fleet,
    pub rollouts: BTreeMap<RecordId, Stored<Rollout>>,
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
    pub fn take(&mut self, change: &Changed) -> bool {
        let kinds: &[&str] = match &*change.kind {
            "device" if !self.has("device") => {
                self.devices.insert((change.tenant.clone(), change.subject.clone()));
                if self.devices.len() > DEVICES_MAX { &["device"] } else { &[] }
            }
            "configuration" => &["configuration", "roll-out"],
            kind @ ("device" | "tenant" | "proxy" | "pool" | "token" | "roll-out") => &[kind],
            _ => return false,
        };
        self.others.extend(kinds.iter().map(ToString::to_string));
        true
    }

    pub fn is_empty(&self) -> bool {
        self.devices.is_empty() && self.others.is_empty()
    }

    fn has(&self, kind: &str) -> bool {
        self.others.contains(kind)
    }
}

impl Records {
    /// After an error `stale` is unchanged.
    pub async fn refresh(&mut self, store: &Store, stale: &mut Stale) -> Result<(), StoreError> {
        let fleet = &mut self.fleet;
        if stale.has("device") {
            fleet.devices = all(store).await?;
        } else {
            for id in &stale.devices {
                match whole(store.get::<Device>(&id.0, &id.1).await)? {
                    Some(device) => _ = fleet.devices.insert(id.clone(), device),
                    None => _ = fleet.devices.remove(id),
                }
            }
        }
        if stale.has("tenant") {
            fleet.tenants = all(store).await?;
        }
        if stale.has("proxy") {
            fleet.proxies = all(store).await?;
        }
        if stale.has("pool") {
            fleet.pools = all(store).await?;
        }
        if stale.has("token") {
            fleet.tokens = all(store).await?;
        }
        if stale.has("configuration") {
            fleet.configs.clear();
        }
        if stale.has("roll-out") {
            let rollouts = store.all::<Rollout>(RECORDS_MAX).await?.into_iter();
            let id_of = |it: &Stored<Rollout>| (it.tenant.clone(), it.record.id.clone());
            self.rollouts = rollouts.map(|it| (id_of(&it), it)).collect();
            let records = self.rollouts.iter();
            fleet.rollouts = records.map(|(id, it)| (id.clone(), it.record.clone())).collect();
            read_configs(fleet, store).await?;
        }
        *stale = Stale::default();
        Ok(())
    }
}

async fn read_configs(fleet: &mut Fleet, store: &Store) -> Result<(), StoreError> {
    let wanted = fleet.rollouts.iter();
    let wanted = wanted.map(|((tenant, _), it)| (tenant.clone(), it.settings.config.clone()));
    let wanted: BTreeSet<RecordId> = wanted.collect();
    fleet.configs.retain(|id, _| wanted.contains(id));
    for id in wanted {
        if !fleet.configs.contains_key(&id)
            && let Some(config) = whole(store.get::<Config>(&id.0, &id.1).await)?
        {
            fleet.configs.insert(id, config);
        }
    }
    Ok(())
}

fn whole<R>(found: Result<Stored<R>, StoreError>) -> Result<Option<R>, StoreError> {
    match found {
        Ok(found) => Ok(Some(found.record)),
        Err(StoreError::NotFound { .. } | StoreError::Altered { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

async fn all<R: Record>(store: &Store) -> Result<BTreeMap<RecordId, R>, StoreError> {
    let found = store.all::<R>(RECORDS_MAX).await?;
    let id_of = |it: &Stored<R>| (it.tenant.clone(), it.record.id().to_owned());
    Ok(found.into_iter().map(|it| (id_of(&it), it.record)).collect())
}

const DEVICES_MAX: usize = 64;
const RECORDS_MAX: u32 = 1_000_000;
