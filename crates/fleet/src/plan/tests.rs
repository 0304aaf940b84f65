use roadweave_proto::Instant;
use serde_json::{Value, json};

use super::*;
use crate::placement::HealthState;
use crate::records::{ProxyStatus, RolloutState, Scope, TenantSettings};
use crate::statement::Role;
use crate::testing::{at, chain, key, statement};

#[derive(Default)]
struct World {
    fleet: Fleet,
    documents: Documents,
    rollouts: Rollouts,
    version: Version,
}

fn id(name: impl ToString) -> RecordId {
    ("north".to_owned(), name.to_string())
}

fn status(seed: u8) -> ProxyStatus {
    let (tenant, proxy) = id(seed);
    ProxyStatus { tenant, proxy, ..ProxyStatus::default() }
}

impl World {
    fn new(boxes: u8, proxies: &[u8]) -> Self {
        let mut world = Self::default();
        for seed in 1..=boxes {
            let statement = chain(&[(1, &statement(seed, Role::Box))]);
            let statement = serde_json::to_string(&statement).unwrap();
            let device = json!({
                "id": seed.to_string(), "public_key": key(seed), "state": "active",
                "addresses": [], "token": null, "statement": statement, "settings": {},
            });
            let device = serde_json::from_value(device).unwrap();
            world.fleet.devices.insert(id(seed), device);
        }
        proxies.iter().for_each(|seed| world.gate(*seed, ProxyRole::Proxy));
        world
    }

    fn gate(&mut self, seed: u8, role: ProxyRole) {
        let statement = chain(&[(1, &statement(seed, Role::Proxy))]);
        let proxy = json!({
            "id": seed.to_string(),
            "state": "active",
            "statement": serde_json::to_string(&statement).unwrap(),
            "settings": { "role": role, "public_key": key(seed), "addresses": [] },
        });
        self.fleet.proxies.insert(id(seed), serde_json::from_value(proxy).unwrap());
    }

    fn set_tenant(&mut self, name: &str, settings: TenantSettings) {
        let tenant = Tenant { id: name.to_owned(), host: false, settings };
        self.fleet.tenants.insert((name.to_owned(), name.to_owned()), tenant);
    }

    fn planning(&self) -> Planning<'_> {
        Planning { fleet: &self.fleet, documents: &self.documents, epoch: 0 }
    }

    fn write(&mut self, drafts: &[Draft]) {
        self.version.number += 1;
        let written = drafts.iter().map(|draft| (draft.of(), draft.written(self.version)));
        self.documents.extend(written);
    }

    fn roll_out(&mut self, number: i64, body: &Value, waves: &[u32]) {
        let settings = json!({ "body": body });
        let config = json!({ "id": "", "number": number, "author": "", "settings": settings });
        let settings = json!({ "config": number.to_string(), "waves": waves });
        let rollout = json!({ "id": "", "wave": 0, "wave_since_ms": 0, "settings": settings });
        self.fleet.configs.insert(id(number), serde_json::from_value(config).unwrap());
        self.fleet.rollouts.insert(id(number), serde_json::from_value(rollout).unwrap());
    }

    /// The anchors that the first proxy is sent, which counts as done.
    fn send_anchors(&mut self) -> Vec<Anchor> {
        let drafts = self.planning().anchors();
        let Content::Anchors(list) = &drafts[0].content else { panic!("{drafts:?}") };
        let anchors = list.anchors.clone();
        self.write(&drafts);
        anchors
    }

    fn device(&mut self, seed: u8) -> &mut Device {
        self.fleet.devices.get_mut(&id(seed)).unwrap()
    }

    fn rollout(&mut self, number: i64) -> &mut Rollout {
        self.fleet.rollouts.get_mut(&id(number)).unwrap()
    }

    fn turn(&mut self) -> BTreeMap<PublicKey, String> {
        self.rollouts.refresh(&self.fleet, &self.documents, BTreeMap::new(), at(0));
        self.fleet.rollouts.extend(self.rollouts.turn(&self.fleet, at(0), 0).records);
        let drafts = self.planning().configurations(&self.rollouts);
        self.write(&drafts);
        let text = |draft: Draft| match draft.content {
            Content::Configuration(it) => (draft.key, it.text),
            _ => unreachable!("a configuration"),
        };
        drafts.into_iter().map(text).collect()
    }

    fn hear(&mut self, key: PublicKey, outcome: Outcome) {
        let written = self.documents.get_mut(&(key, Kind::Configuration)).unwrap();
        written.outcome = Some(outcome);
        self.rollouts.hear(&key, written);
    }
}

fn keys(anchors: &[Anchor]) -> Vec<PublicKey> {
    anchors.iter().map(|it| it.chain.claimed().unwrap().key).collect()
}

#[test]
fn a_roll_out_that_fails_stops_by_itself_and_an_operator_takes_it_back() {
    let mut world = World::new(2, &[]);
    world.roll_out(1, &json!({ "good": true }), &[100]);
    let all = world.turn();
    let good = "good = true\n".to_owned();
    assert_eq!(all, [(key(1), good.clone()), (key(2), good.clone())].into());
    all.keys().for_each(|key| world.hear(*key, Outcome::Confirmed));
    assert!(world.turn().is_empty());
    assert_eq!(world.rollout(1).settings.state, RolloutState::Done);
    world.roll_out(2, &json!({ "good": false }), &[50, 100]);
    let (struck, text) = world.turn().pop_first().unwrap();
    assert_eq!(text, "good = false\n");
    world.hear(struck, Outcome::Refused { why: "line 1: what is this?".to_owned() });
    assert!(world.turn().is_empty(), "no other box gets it");
    assert_eq!(world.rollout(2).settings.state, RolloutState::Paused);
    let why = world.rollout(2).why.clone().unwrap();
    assert!(why.contains("1 of 1 boxes"), "{why}");
    world.rollout(2).settings.state = RolloutState::Running;
    assert!(world.turn().is_empty());
    assert_eq!(world.rollout(2).why, None, "it goes on");
    world.rollout(2).settings.state = RolloutState::Aborted;
    assert_eq!(world.turn(), [(struck, good)].into());
}

#[test]
fn an_anchor_that_is_drained_gives_way_to_the_tenants_other_one() {
    let mut world = World::new(0, &[20]);
    world.set_tenant("north", TenantSettings { egress: Egress::Anchor, ..Default::default() });
    let anchors = |world: &mut World| keys(&world.send_anchors());
    world.gate(31, ProxyRole::Anchor);
    assert_eq!(anchors(&mut world), [key(31)]);
    world.gate(30, ProxyRole::Anchor);
    assert_eq!(anchors(&mut world), [key(31), key(30)]);
    world.fleet.proxies.get_mut(&id(31)).unwrap().state = ProxyState::Draining;
    assert_eq!(anchors(&mut world), [key(30), key(31)]);
    world.fleet.proxies.get_mut(&id(31)).unwrap().state = ProxyState::Active;
    world.gate(29, ProxyRole::Anchor);
    assert_eq!(anchors(&mut world), [key(30), key(29), key(31)]);
}

#[test]
fn a_proxy_is_sent_a_few_anchors_of_a_tenant_and_the_others_are_counted() {
    let mut world = World::new(0, &[20]);
    world.set_tenant("north", TenantSettings { egress: Egress::Anchor, ..Default::default() });
    (30..34).for_each(|seed| world.gate(seed, ProxyRole::Anchor));
    assert_eq!(world.planning().anchors_left_out(), BTreeMap::new());
    (34..36).for_each(|seed| world.gate(seed, ProxyRole::Anchor));
    world.fleet.proxies.get_mut(&id(30)).unwrap().state = ProxyState::Draining;
    assert_eq!(keys(&world.send_anchors()), [31, 32, 33, 34].map(key));
    assert_eq!(world.planning().anchors_left_out(), [("north".to_owned(), 2)].into());
}

#[test]
fn a_proxy_knows_the_anchors_addresses_in_the_networks_of_its_tenant_alone() {
    let mut world = World::new(0, &[20]);
    world.gate(30, ProxyRole::Anchor);
    let set = |world: &mut World, name: &str, prefixes: &[&str]| {
        let prefixes = prefixes.iter().map(|it| it.parse().unwrap()).collect();
        let settings = TenantSettings { egress: Egress::Anchor, prefixes, ..Default::default() };
        world.set_tenant(name, settings);
    };
    let gateways = |world: &mut World| -> Vec<String> {
        let anchors = world.send_anchors();
        anchors.iter().flat_map(|it| &it.gateways).map(ToString::to_string).collect()
    };
    set(&mut world, "north", &["10.7.0.0/24", "fd07::/64"]);
    set(&mut world, "south", &["10.8.0.0/24"]);
    assert_eq!(gateways(&mut world), ["10.7.0.1/24", "fd07::1/64"]);
    assert!(world.planning().anchors().is_empty(), "nothing new");
    set(&mut world, "north", &["10.9.0.0/16"]);
    assert_eq!(gateways(&mut world), ["10.9.0.1/16"]);
}

#[test]
fn a_proxy_that_has_not_measured_is_no_nearer_to_the_anchor_than_others() {
    let world = World::new(1, &[20, 21]);
    let mut proxies = Proxies::new(at(0));
    let mut distances = |reports: &[(u8, u32)]| -> BTreeMap<PublicKey, u32> {
        let report = |(seed, micros): &(u8, u32)| {
            // A report about a tenant that it does not serve does not count.
            let anchors = [("north".to_owned(), *micros), ("stranger".to_owned(), 90_000)].into();
            ProxyStatus { anchors, ..status(*seed) }
        };
        let reports: Vec<_> = reports.iter().map(report).collect();
        proxies.look(&world.fleet, &reports, at(0), 0);
        let drafts = world.planning().candidates(&proxies.offers(&world.fleet), |_, _| Some(None));
        let Content::Candidates(list) = &drafts[0].content else { panic!("{drafts:?}") };
        let of = |it: &crate::Candidate| (it.chain.claimed().unwrap().key, it.to_anchor_us);
        list.proxies.iter().map(of).collect()
    };
    assert_eq!(distances(&[]), [(key(20), 0), (key(21), 0)].into());
    assert_eq!(distances(&[(20, 9_000)]), [(key(20), 9_000), (key(21), 9_000)].into());
    assert_eq!(distances(&[(21, 40_000)]), [(key(20), 9_000), (key(21), 40_000)].into());
}

#[test]
fn a_proxy_on_a_replica_with_another_clock_is_not_taken_for_dead() {
    const NOW: i64 = 1_800_000_000_000;
    for ahead_ms in [-3_600_000, 3_600_000] {
        let world = World::new(0, &[20, 21]);
        let mut proxies = Proxies::new(Instant::ZERO);
        let mut changed = Vec::new();
        for second in (0..600).step_by(2) {
            let now_ms = NOW + second * 1_000;
            let heard_ms = now_ms - now_ms % 10_000;
            let other_ms = heard_ms.min(NOW + 400_000) + ahead_ms;
            let reports = [(20, heard_ms), (21, other_ms)]
                .map(|(seed, seen_ms)| ProxyStatus { seen_ms, ..status(seed) });
            let turned = proxies.look(&world.fleet, &reports, at(second.unsigned_abs()), now_ms);
            changed.extend(turned.into_iter().map(|(key, vital)| (second, key, vital)));
        }
        let dead: Vec<_> =
            changed.iter().filter(|(.., vital)| *vital == HealthState::Dead).collect();
        assert_eq!(dead.len(), 1, "{changed:?}");
        assert_eq!(dead[0].1, key(21));
        assert!((425..=440).contains(&dead[0].0), "{changed:?}");
    }
}

#[test]
fn a_table_has_a_box_as_it_is_now_and_none_that_was_revoked() {
    let mut world = World::new(2, &[20]);
    let mut tables = Tables::default();
    let trust = crate::Trust::pinned(key(1), key(9));
    let mut members = |world: &World| -> BTreeMap<PublicKey, (usize, Option<u32>)> {
        let drafts = world.planning().tables(&mut tables);
        let admission = drafts[0].table().expect("a table").admission(&trust);
        let of = |it: &crate::Member| (it.key, (it.addresses.len(), it.offline_max_s));
        admission.admitted.iter().map(|(_, it)| of(it)).collect()
    };
    assert_eq!(members(&world), [(key(1), (0, None)), (key(2), (0, None))].into());
    world.device(1).settings.prefixes = vec!["10.9.0.0/24".parse().unwrap()];
    assert_eq!(members(&world), [(key(1), (1, None)), (key(2), (0, None))].into());
    world.set_tenant("north", TenantSettings { offline_max_s: Some(60), ..Default::default() });
    assert_eq!(members(&world), [(key(1), (1, Some(60))), (key(2), (0, Some(60)))].into());
    world.device(1).state = DeviceState::Revoked;
    assert_eq!(members(&world), [(key(2), (0, Some(60)))].into());
}

#[test]
fn a_box_has_the_configuration_of_its_own_tags_and_none_once_it_is_revoked() {
    let mut world = World::new(3, &[]);
    world.roll_out(1, &json!({ "mtu": 1400 }), &[100]);
    world.roll_out(2, &json!({ "lanes": [] }), &[100]);
    let tram = || vec!["tram".to_owned()];
    world.fleet.configs.get_mut(&id(2)).unwrap().settings.scope = Scope::Tag("tram".to_owned());
    world.device(1).settings.tags = tram();
    let [wide, both] = ["mtu = 1400\n", "lanes = []\nmtu = 1400\n"].map(str::to_owned);
    let first = [(key(1), both.clone()), (key(2), wide.clone()), (key(3), wide.clone())];
    assert_eq!(world.turn(), first.into());
    (1..=3).for_each(|seed| world.hear(key(seed), Outcome::Confirmed));
    assert!(world.turn().is_empty());
    world.device(1).settings.tags.clear();
    world.device(2).settings.tags = tram();
    world.device(3).settings.tags = tram();
    world.device(3).state = DeviceState::Revoked;
    assert_eq!(world.turn(), [(key(1), wide), (key(2), both)].into());
}
