//! The members of a fleet: keys, locations and signed documents.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use roadweave_fleet::{
    Candidate, Chain, JoinToken, Joining, Member, Name, Role, Scope, Secret, Signed, Statement,
};
use roadweave_identity::{Identity, PublicKey};
use roadweave_proto::SplitMix64;

use super::FleetConfig;

const TENANTS: usize = 2;
const SITES: usize = 2;

/// Boxes and proxies by index: boxes first, later boxes at the end.
pub(super) struct Cast {
    pub boxes: usize,
    pub proxies: usize,
    regions: usize,
    seed: u64,
    pub root: Identity,
    pub controller: Identity,
    keys: Vec<PublicKey>,
    by_key: BTreeMap<PublicKey, usize>,
    candidates: Vec<Candidate>,
    tenants: Vec<Name>,
    regions_by_name: Vec<Name>,
    sites: Vec<Name>,
}

impl Cast {
    pub fn new(config: &FleetConfig, joining: usize) -> Self {
        let boxes = config.boxes + joining;
        let everybody = boxes + config.proxies;
        let keys: Vec<PublicKey> =
            (0..everybody).map(|who| identity(config.seed, who as u64).public_key()).collect();
        let mut cast = Self {
            boxes,
            proxies: config.proxies,
            regions: config.regions,
            seed: config.seed,
            root: identity(config.seed, u64::MAX),
            controller: identity(config.seed, u64::MAX - 1),
            by_key: keys.iter().enumerate().map(|(who, key)| (*key, who)).collect(),
            keys,
            candidates: Vec::new(),
            tenants: names("tenant", config.regions * TENANTS),
            regions_by_name: names("region", config.regions),
            sites: names("site", config.regions * SITES),
        };
        cast.candidates = (0..config.proxies).map(|proxy| cast.candidate_of(proxy)).collect();
        cast
    }

    fn candidate_of(&self, proxy: usize) -> Candidate {
        Candidate {
            chain: self.chain(self.boxes + proxy),
            site: self.site(proxy).clone(),
            addresses: vec![format!("192.0.2.{}:443", proxy % 250)],
            to_anchor_us: 2_000,
            last_resort: false,
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

    pub fn region_name(&self, region: usize) -> &Name {
        &self.regions_by_name[region]
    }

    pub fn site(&self, proxy: usize) -> &Name {
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

    pub fn scopes(&self, region: usize) -> Vec<Scope> {
        let tenants = self.served(region).into_iter().flat_map(|region| {
            self.tenants[region * TENANTS..(region + 1) * TENANTS].iter().cloned()
        });
        tenants.map(Scope::Tenant).collect()
    }

    pub fn chain(&self, who: usize) -> Chain {
        let (role, scope, name) = match self.is_box(who) {
            true => (Role::Box, Scope::Tenant(self.tenant(who).clone()), format!("box-{who}")),
            false => (Role::Proxy, Scope::All, format!("proxy-{}", who - self.boxes)),
        };
        let name = name.parse().expect("letters, digits and dashes");
        let key = self.key(who);
        let statement = Statement { key, name, role, scope, tags: BTreeSet::new(), grant: None };
        Chain::new(vec![Signed::sign(&statement, &self.root).expect("a statement is small")])
    }

    pub fn member(&self, who: usize) -> Member {
        let (high, low) = ((who >> 8) as u8, who as u8);
        let address = std::net::Ipv4Addr::new(10, (who >> 16) as u8, high, low);
        Member {
            key: self.key(who),
            chain: self.chain(who),
            addresses: vec![ipnet::IpNet::from(std::net::IpAddr::V4(address))],
            rate_kbps: None,
            offline_max_s: None,
        }
    }

    pub fn candidate(&self, proxy: usize) -> Candidate {
        self.candidates[proxy].clone()
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

    /// Round trip in a half hour: by distance, with random variation.
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
