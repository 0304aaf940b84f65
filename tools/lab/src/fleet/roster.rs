//! The members of a fleet: keys, locations and signed documents.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use roadweave_fleet::records::{
    Device, DeviceSettings, DeviceState, Pool, PoolSettings, Proxy, ProxyRole, ProxySettings,
    ProxyState,
};
use roadweave_fleet::{
    Chain, JoinToken, Joining, Name, RecordId, Role, Scope, Secret, Signed, Statement,
};
use roadweave_identity::{Identity, PublicKey};
use roadweave_proto::SplitMix64;

use super::FleetConfig;

const TENANTS: usize = 2;
const SITES: usize = 2;

pub(super) struct Roster {
    pub boxes: usize,
    pub proxies: usize,
    regions: usize,
    seed: u64,
    pub root: Identity,
    pub controller: Identity,
    keys: Vec<PublicKey>,
    by_key: BTreeMap<PublicKey, usize>,
    tenants: Vec<Name>,
    sites: Vec<Name>,
}

impl Roster {
    pub fn new(config: &FleetConfig, joining: usize) -> Self {
        let boxes = config.boxes + joining;
        let everybody = boxes + config.proxies;
        let keys: Vec<PublicKey> =
            (0..everybody).map(|who| identity(config.seed, who as u64).public_key()).collect();
        Self {
            boxes,
            proxies: config.proxies,
            regions: config.regions,
            seed: config.seed,
            root: identity(config.seed, u64::MAX),
            controller: identity(config.seed, u64::MAX - 1),
            by_key: keys.iter().enumerate().map(|(who, key)| (*key, who)).collect(),
            keys,
            tenants: names("tenant", config.regions * TENANTS),
            sites: names("site", config.regions * SITES),
        }
    }

    pub fn key(&self, who: usize) -> PublicKey {
        self.keys[who]
    }

    pub fn who(&self, key: &PublicKey) -> Option<usize> {
        self.by_key.get(key).copied()
    }

    pub fn proxy(&self, key: &PublicKey) -> Option<usize> {
        self.who(key)?.checked_sub(self.boxes)
    }

    pub fn is_box(&self, who: usize) -> bool {
        who < self.boxes
    }

    /// Boxes move, but only within their region.
    pub fn region(&self, who: usize) -> usize {
        match self.is_box(who) {
            true => who % self.regions,
            false => (who - self.boxes) % self.regions,
        }
    }

    fn site(&self, proxy: usize) -> &Name {
        let (region, nth) = (proxy % self.regions, proxy / self.regions);
        &self.sites[region * SITES + nth % SITES]
    }

    pub fn tenant(&self, who: usize) -> &Name {
        let (region, nth) = (self.region(who), who / self.regions);
        &self.tenants[region * TENANTS + nth % TENANTS]
    }

    pub fn served(&self, region: usize) -> BTreeSet<usize> {
        [region, (region + 1) % self.regions].into()
    }

    pub fn tenants(&self) -> impl Iterator<Item = String> {
        self.tenants.iter().map(ToString::to_string)
    }

    pub fn id(&self, who: usize) -> RecordId {
        (self.tenant(who).to_string(), self.name(who))
    }

    fn name(&self, who: usize) -> String {
        match self.is_box(who) {
            true => format!("box-{who}"),
            false => format!("proxy-{}", who - self.boxes),
        }
    }

    pub fn chain(&self, who: usize) -> Chain {
        let (role, scope) = match self.is_box(who) {
            true => (Role::Box, Scope::Tenant(self.tenant(who).clone())),
            false => (Role::Proxy, Scope::All),
        };
        let name = self.name(who).parse().expect("letters, digits and dashes");
        let key = self.key(who);
        let statement = Statement { key, name, role, scope, tags: BTreeSet::new(), grant: None };
        Chain::new(vec![Signed::sign(&statement, &self.root).expect("a statement is small")])
    }

    fn statement(&self, who: usize) -> Option<String> {
        serde_json::to_string(&self.chain(who)).ok()
    }

    pub fn device(&self, who: usize) -> Device {
        let (high, low) = ((who >> 8) as u8, who as u8);
        Device {
            id: self.name(who),
            public_key: self.key(who).to_string(),
            state: DeviceState::Active,
            addresses: vec![IpAddr::V4(Ipv4Addr::new(10, (who >> 16) as u8, high, low))],
            token: None,
            pool: Some(self.sites[self.region(who) * SITES].to_string()),
            statement: self.statement(who),
            delegates: Vec::new(),
            settings: DeviceSettings::default(),
        }
    }

    pub fn gate(&self, who: usize) -> Proxy {
        let address = Ipv4Addr::new(192, 0, 2, ((who - self.boxes) % 250) as u8);
        let settings = ProxySettings {
            title: String::new(),
            role: ProxyRole::Proxy,
            public_key: self.key(who).to_string(),
            addresses: vec![(address, 443).into()],
            pool: Some(self.site(who - self.boxes).to_string()),
            devices_max: None,
        };
        let (state, statement) = (ProxyState::Active, self.statement(who));
        Proxy { id: self.name(who), state, statement, delegates: Vec::new(), settings }
    }

    pub fn pools(&self) -> BTreeMap<RecordId, Pool> {
        let of_tenant = |(nth, tenant): (usize, &Name)| {
            let (region, tenant) = (nth / TENANTS, tenant.to_string());
            let served = self.served(region).into_iter();
            let served = served.flat_map(|it| &self.tenants[it * TENANTS..(it + 1) * TENANTS]);
            let tenants: Vec<String> = served.map(ToString::to_string).collect();
            let sites = self.sites[region * SITES..(region + 1) * SITES].iter();
            sites.map(move |site| {
                let (id, region, tenants) = (site.to_string(), region.to_string(), tenants.clone());
                let (title, site) = (String::new(), id.clone());
                let settings = PoolSettings { title, region, site, tenants };
                ((tenant.clone(), id.clone()), Pool { id, settings })
            })
        };
        self.tenants.iter().enumerate().flat_map(of_tenant).collect()
    }

    pub fn joining(&self, who: usize) -> Joining {
        let token = JoinToken {
            addresses: vec!["fleet.example.org:443".to_owned()],
            controller: self.controller.public_key(),
            root: self.root.public_key(),
            tenant: self.tenant(who).clone(),
            secret: Secret::from_bytes([3; 16]),
            delegate: None,
        };
        let name = format!("member-{who}").parse().expect("letters, digits and a dash");
        Joining { token, name, chain: None }
    }

    pub fn round_trip(&self, who: usize, proxy: usize, half_hour: u64) -> Duration {
        let far = if self.region(who) == proxy % self.regions { 0 } else { 40_000 };
        let pair = SplitMix64::word(self.seed ^ who as u64, proxy as u64);
        let now = SplitMix64::word(pair, half_hour);
        Duration::from_micros(25_000 + far + pair % 15_000 + now % 6_000)
    }
}

fn identity(seed: u64, number: u64) -> Identity {
    let mut words = SplitMix64::new(SplitMix64::word(seed, number));
    let mut bytes = [0; 32];
    bytes
        .chunks_exact_mut(8)
        .for_each(|word| word.copy_from_slice(&words.next_u64().to_be_bytes()));
    Identity::from_seed(bytes)
}

fn names(what: &str, count: usize) -> Vec<Name> {
    (0..count).map(|n| format!("{what}-{n}").parse().expect("letters, a dash, digits")).collect()
}
