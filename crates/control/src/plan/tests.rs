//! From records and reports to signed documents at members, over real sockets and with the agents
//! of the fleet crate.

mod approvals;
mod faults;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use roadweave_fleet::{
    Agent, AgentEvent, Down, FrameDecoder, Join, JoinToken, Joining, Role, Up, VerifiedServer,
    encode,
};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::*;
use crate::model::{
    Config, ConfigSettings, Device, Egress, Pool, PoolSettings, Proxy, ProxyState, Rollout,
    RolloutSettings, RolloutState, Scope, Tenant, Token, TokenRole, TokenSettings,
};
use crate::store::Stored;
use crate::store::tests::{on_both, runtime, sqlite};
use crate::streams::tests::{Client, Port, identity};

struct Member {
    agent: Agent,
    client: Client,
    decoder: FrameDecoder,
    /// The agent's clock, seconds.
    at: u64,
    events: Vec<AgentEvent>,
}

impl Member {
    async fn join(port: &Port, seed: u8, role: Role, token: &JoinToken, address: &str) -> Self {
        let key = identity(seed).public_key();
        let name = format!("member-{seed}").parse().unwrap();
        let how = Joining { token: token.clone(), name, chain: None };
        let mut agent = Agent::joining(Instant::ZERO, key, role, "1.0", how);
        agent.listens_at(vec![address.to_owned()]);
        agent.on_stream_up(Instant::ZERO);
        let client = port.client(seed).await.unwrap();
        let (decoder, events) = (FrameDecoder::default(), Vec::new());
        let mut member = Self { agent, client, decoder, at: 0, events };
        member.until("a member", |it| it.agent.is_member()).await;
        member
    }

    async fn new(port: &Port, seed: u8, role: Role, pool: Option<&str>, address: &str) -> Self {
        let of = match role {
            Role::Proxy => TokenRole::Proxy,
            Role::Anchor => TokenRole::Anchor,
            _ => TokenRole::Box,
        };
        Self::join(port, seed, role, &token(port, of, 1, pool).await, address).await
    }

    async fn device(port: &Port, seed: u8) -> Self {
        Self::new(port, seed, Role::Box, None, "").await
    }

    async fn reconnect(&mut self, port: &Port, seed: u8) {
        let now = self.now();
        self.agent.on_stream_down(now);
        (self.client, self.decoder) = (port.client(seed).await.unwrap(), FrameDecoder::default());
        self.agent.on_stream_up(now);
        self.send().await;
    }

    fn now(&self) -> Instant {
        Instant::from_millis(self.at * 1_000)
    }

    /// Lets 120 s pass with session and stream up, after which a configuration counts as good.
    async fn confirm(&mut self) {
        let now = self.now();
        self.agent.on_session(now, true);
        self.at += 120;
        self.agent.handle_timeout(self.now());
        self.send().await;
    }

    /// Sends and receives until `done`, 10 s at most.
    async fn until(&mut self, what: &str, done: impl Fn(&Self) -> bool) {
        let end = tokio::time::Instant::now() + Duration::from_secs(10);
        while !done(self) {
            let turned = tokio::time::timeout_at(end, self.turn()).await;
            assert!(turned.is_ok(), "{what}: {:?}", self.events);
        }
    }

    async fn rest(&mut self, millis: u64) {
        let end = tokio::time::Instant::now() + Duration::from_millis(millis);
        while tokio::time::timeout_at(end, self.turn()).await.is_ok() {}
    }

    async fn turn(&mut self) {
        self.send().await;
        let mut buffer = vec![0; 16_384];
        let length = self.client.tls.read(&mut buffer).await.unwrap();
        assert!(length > 0, "the stream has ended: {:?}", self.events);
        self.decoder.push(&buffer[..length]);
        while let Some(frame) = self.decoder.poll::<Down>().unwrap() {
            let now = self.now();
            self.agent.handle_frame(now, frame);
        }
        self.events.extend(std::iter::from_fn(|| self.agent.poll_event()));
        self.send().await;
    }

    async fn send(&mut self) {
        while let Some(frame) = self.agent.poll_frame() {
            self.client.tls.write_all(&encode(&frame).unwrap()).await.unwrap();
        }
        self.client.tls.flush().await.unwrap();
    }

    /// All lists of proxies that it got, the latest first.
    fn lists(&self) -> impl Iterator<Item = &Vec<VerifiedServer>> {
        self.events.iter().rev().filter_map(|event| match event {
            AgentEvent::Candidates(servers) => Some(servers),
            _ => None,
        })
    }

    fn proxies(&self) -> Vec<String> {
        let last = self.lists().next().into_iter().flatten();
        last.map(|server| server.name.to_string()).collect()
    }

    fn text(&self) -> Option<String> {
        self.agent.kept().configuration_in_force().1
    }

    fn admitted(&self) -> Vec<(PublicKey, usize)> {
        admitted(&self.agent)
    }
}

/// The keys in the table of a proxy or anchor, with their number of prefixes.
fn admitted(agent: &Agent) -> Vec<(PublicKey, usize)> {
    let admission = agent.admission();
    admission.admitted.iter().map(|(_, it)| (it.key, it.addresses.len())).collect()
}

async fn rest(members: &mut [Member], millis: u64) {
    for member in members {
        member.rest(millis).await;
    }
}

async fn boxes(port: &Port, count: u8) -> Vec<Member> {
    let mut boxes = Vec::new();
    for seed in 1..=count {
        boxes.push(Member::device(port, seed).await);
    }
    boxes
}

fn planner(port: &Port, mailboxes: &Arc<Mailboxes>) -> Planner {
    let app = &port.app;
    let of = (app.store.clone(), app.authority.clone(), app.outbox.clone());
    Planner::new(of.0, of.1, of.2, app.metrics.clone(), mailboxes.clone())
}

fn leading(port: &Port, mailboxes: &Arc<Mailboxes>) -> Planner {
    let mut planner = planner(port, mailboxes);
    (planner.leads, planner.leads_until_ms) = (true, now_ms() + LEASE_MS);
    planner
}

async fn token(port: &Port, role: TokenRole, uses: u32, pool: Option<&str>) -> JoinToken {
    let pool = pool.map(str::to_owned);
    port.token_of(TokenSettings { role, uses, pool, ..TokenSettings::default() }).await
}

async fn pool(port: &Port, id: &str) {
    let site = id.to_owned();
    let settings = PoolSettings { site, ..PoolSettings::default() };
    port.insert(Pool { id: id.to_owned(), settings }).await;
}

async fn roll_out(
    port: &Port,
    number: i64,
    scope: Scope,
    fields: serde_json::Value,
    waves: &[u32],
) {
    let id = format!("{scope}-{number}");
    let (title, body) = (String::new(), fields.as_object().unwrap().clone());
    let settings = ConfigSettings { scope, title, body, signature: None };
    port.insert(Config { id: id.clone(), number, author: "test".to_owned(), settings }).await;
    let settings = RolloutSettings {
        config: id.clone(),
        waves: waves.to_vec(),
        rest_s: 3_600,
        refusals_max: 5,
        state: RolloutState::Running,
    };
    let (wave, wave_since_ms, why) = (0, 0, None);
    port.insert(Rollout { id, wave, wave_since_ms, why, settings }).await;
}

async fn rollout(port: &Port, id: &str) -> Rollout {
    let found: Stored<Rollout> = port.app.store.get("tram", id).await.unwrap();
    found.record
}

async fn set(port: &Port, id: &str, state: RolloutState) {
    port.update(id, |it: &mut Rollout| it.settings.state = state).await;
}

async fn reaches(port: &Port, id: &str, state: RolloutState) {
    eventually("a state", async || rollout(port, id).await.settings.state == state).await;
}

/// Lets the tenant leave at its anchor.
async fn leave_at_anchor(port: &Port) {
    port.update("tram", |tram: &mut Tenant| {
        tram.settings.egress = Egress::Anchor;
        tram.settings.limits.rate_mbps = Some(40);
    })
    .await;
}

async fn eventually(what: &str, mut done: impl AsyncFnMut() -> bool) {
    let end = tokio::time::Instant::now() + Duration::from_secs(10);
    while !done().await {
        assert!(tokio::time::Instant::now() < end, "{what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[test]
fn a_box_and_its_proxies_hear_of_each_other() {
    on_both(|world| async move {
        let port = Port::new(world).await;
        pool(&port, "fra").await;
        pool(&port, "ber").await;
        let mut fra = Member::new(&port, 20, Role::Proxy, Some("fra"), "192.0.2.1:4433").await;
        let _ber = Member::new(&port, 21, Role::Proxy, Some("ber"), "").await;
        let mut device = Member::device(&port, 1).await;
        device.until("two proxies", |it| it.proxies().len() == 2).await;
        // The address it listens at, or else the one it connects from.
        let servers = device.lists().next().unwrap().iter();
        let addresses: BTreeSet<SocketAddr> =
            servers.map(|server| server.addresses[0].parse().unwrap()).collect();
        let expected = ["192.0.2.1:4433", "127.0.0.1:4433"].map(|text| text.parse().unwrap());
        assert_eq!(addresses, expected.into());
        let key = identity(1).public_key();
        fra.until("the box", |it| it.admitted() == [(key, 1)]).await;
        let _second = Member::device(&port, 2).await;
        fra.until("both boxes", |it| it.admitted().len() == 2).await;
        // The revoked box leaves the table, and its sessions end at once; boxes hear later.
        port.revoke(2).await;
        let revoked = AgentEvent::Revoked(vec![identity(2).public_key()]);
        fra.until("revoked", |it| it.events.contains(&revoked)).await;
        assert_eq!(fra.admitted(), [(key, 1)]);
        let batches = fra.events.iter().filter(|it| matches!(it, AgentEvent::Revoked(_))).count();
        (0..batches).for_each(|_| fra.agent.on_revoked());
        fra.send().await;
        eventually("confirmed", async || {
            let all = port.app.store.confirmations("tram", 1, now_ms()).await.unwrap();
            all.confirmed == ["member-20"]
        })
        .await;
        assert_eq!(device.agent.kept().trust().revocations().head().serial, 0);
        port.update("member-20", |it: &mut Proxy| it.state = ProxyState::Draining).await;
        fra.until("drained", |it| it.events.contains(&AgentEvent::Drain(true))).await;
        device.until("one proxy", |it| it.proxies() == ["member-21"]).await;
        port.update("member-20", |it: &mut Proxy| it.state = ProxyState::Active).await;
        fra.until("taken back", |it| it.events.contains(&AgentEvent::Drain(false))).await;
        device.until("both proxies", |it| it.proxies().len() == 2).await;
    });
}

#[test]
fn boxes_are_told_how_far_each_proxy_is_from_the_anchor_of_their_tenant() {
    on_both(|world| async move {
        let port = Port::new(world).await;
        pool(&port, "fra").await;
        pool(&port, "ber").await;
        let mut fra = Member::new(&port, 20, Role::Proxy, Some("fra"), "192.0.2.1:4433").await;
        let mut ber = Member::new(&port, 21, Role::Proxy, Some("ber"), "192.0.2.2:4433").await;
        let mut device = Member::device(&port, 1).await;
        let told = |it: &Member| {
            let of = |server: &VerifiedServer| (server.name.to_string(), server.to_anchor_us);
            it.lists().take(1).flatten().map(of).collect::<BTreeMap<_, _>>()
        };
        let expected = |fra, ber| {
            BTreeMap::from([("member-20".to_owned(), fra), ("member-21".to_owned(), ber)])
        };
        device.until("nobody has measured it", |it| told(it) == expected(0, 0)).await;
        // A report about a tenant that it does not serve does not count.
        let ms = Duration::from_millis;
        let of = |name: &str, millis| (name.parse().unwrap(), ms(millis));
        fra.agent.on_anchors([of("tram", 9), of("stranger", 1)]);
        fra.send().await;
        device.until("the other is no nearer", |it| told(it) == expected(9_000, 9_000)).await;
        ber.agent.on_anchors([of("tram", 40)]);
        ber.send().await;
        device.until("both", |it| told(it) == expected(9_000, 40_000)).await;
        // A small variation makes no new list, and a new stream repeats the report.
        let before = device.lists().count();
        fra.agent.on_anchors([of("tram", 10)]);
        fra.reconnect(&port, 20).await;
        device.rest(3_000).await;
        assert_eq!(told(&device), expected(9_000, 40_000));
        assert_eq!(device.lists().count(), before, "{:?}", device.events);
    });
}

#[test]
fn a_planner_that_has_missed_lines_brings_what_they_were_about() {
    runtime().block_on(async {
        let port = Port::new(sqlite().await).await;
        let mut device = Member::device(&port, 1).await;
        device.rest(300).await;
        port.planner.abort();
        // Another replica plans, whose mailboxes are not those of this one's streams.
        roll_out(&port, 1, Scope::Tenant, json!({ "lanes": [] }), &[100]).await;
        leading(&port, &Arc::default()).turn(Some(Vec::new())).await.unwrap();
        device.rest(300).await;
        assert_eq!(device.text(), None);
        leading(&port, &port.mailboxes).turn(None).await.unwrap();
        device.until("what was missed", |it| it.text().is_some()).await;
    });
}

#[test]
fn a_token_lets_in_what_it_is_for_and_an_anchor_hears_of_proxies() {
    on_both(|world| async move {
        let port = Port::new(world).await;
        let of_anchor = token(&port, TokenRole::Anchor, 1, None).await;
        let mut wrong = port.client(9).await.unwrap();
        let (secret, tenant) = (of_anchor.secret, of_anchor.tenant.clone());
        let (role, name, chain, addresses) = (Role::Proxy, "x".parse().unwrap(), None, vec![]);
        wrong.send(&Up::Join(Join { secret, tenant, role, name, chain, addresses })).await;
        let Some(Down::Refused { reason, retry: false }) = wrong.receive().await else { panic!() };
        assert_eq!(reason, "the token is for anchors");
        let mut anchor = Member::join(&port, 30, Role::Anchor, &of_anchor, "192.0.2.9:1").await;
        let mut proxy = Member::new(&port, 20, Role::Proxy, None, "192.0.2.1:1").await;
        let _device = Member::device(&port, 1).await;
        anchor.until("proxy and box", |it| it.admitted().len() == 2).await;
        proxy.until("the box", |it| it.admitted().len() == 1).await;
        leave_at_anchor(&port).await;
        let is_told = |event: &AgentEvent| match event {
            AgentEvent::Anchors(all) => all
                .iter()
                .any(|it| it.anchor.addresses == ["192.0.2.9:1"] && it.rate_kbps == Some(40_000)),
            _ => false,
        };
        proxy.until("the anchor", |it| it.events.iter().any(is_told)).await;
    });
}

#[test]
fn a_roll_out_goes_wave_by_wave_and_a_new_planner_signs_nothing_again() {
    on_both(|world| async move {
        let port = Port::new(world).await;
        let mut boxes = boxes(&port, 4).await;
        roll_out(&port, 1, Scope::Tenant, json!({ "lanes": [] }), &[25, 100]).await;
        eventually("the first wave", async || {
            rest(&mut boxes, 50).await;
            boxes.iter().any(|it| it.text().is_some())
        })
        .await;
        rest(&mut boxes, 300).await;
        let first: Vec<usize> = (0..4).filter(|at| boxes[*at].text().is_some()).collect();
        assert_eq!(first.len(), 1, "a quarter of four");
        assert_eq!(boxes[first[0]].text().as_deref(), Some("lanes = []\n"));
        boxes[first[0]].confirm().await;
        for device in &mut boxes {
            device.until("the second wave", |it| it.text().is_some()).await;
            device.confirm().await;
        }
        reaches(&port, "tenant-1", RolloutState::Done).await;
        port.planner.abort();
        let signed = port.app.metrics.documents.get();
        leading(&port, &Arc::default()).turn(Some(Vec::new())).await.unwrap();
        assert_eq!(port.app.metrics.documents.get(), signed);
    });
}

#[test]
fn a_roll_out_that_fails_stops_by_itself_and_a_person_takes_it_back() {
    runtime().block_on(async {
        let port = Port::new(sqlite().await).await;
        let mut boxes = boxes(&port, 2).await;
        roll_out(&port, 1, Scope::Tenant, json!({ "good": true }), &[100]).await;
        for device in &mut boxes {
            device.until("the good one", |it| it.text().is_some()).await;
            device.confirm().await;
        }
        roll_out(&port, 2, Scope::Tenant, json!({ "good": false }), &[50, 100]).await;
        let has_bad = |it: &Member| it.text().is_some_and(|text| text.contains("false"));
        eventually("a box has it", async || {
            rest(&mut boxes, 50).await;
            boxes.iter().any(has_bad)
        })
        .await;
        let struck = boxes.iter().position(has_bad).unwrap();
        let version = boxes[struck].agent.kept().on_trial().unwrap();
        let now = boxes[struck].now();
        boxes[struck].agent.refuse(now, version, "line 1: what is this?");
        boxes[struck].send().await;
        reaches(&port, "tenant-2", RolloutState::Paused).await;
        let why = rollout(&port, "tenant-2").await.why.unwrap();
        assert!(why.contains("1 of 1 boxes"), "{why}");
        let all_good =
            |boxes: &[Member]| boxes.iter().all(|it| it.text().as_deref() == Some("good = true\n"));
        rest(&mut boxes, 300).await;
        assert!(all_good(&boxes));
        set(&port, "tenant-2", RolloutState::Running).await;
        eventually("goes on", async || rollout(&port, "tenant-2").await.why.is_none()).await;
        set(&port, "tenant-2", RolloutState::Aborted).await;
        rest(&mut boxes, 500).await;
        assert!(all_good(&boxes));
    });
}

#[test]
fn a_box_keeps_its_region_when_its_token_is_gone() {
    runtime().block_on(async {
        let port = Port::new(sqlite().await).await;
        let (mut boxes, mut proxies) = (Vec::new(), Vec::new());
        for (id, seed) in [("fra", 1), ("nyc", 2), ("tyo", 3)] {
            let (site, region) = (id.to_owned(), id.to_owned());
            let settings = PoolSettings { site, region, ..PoolSettings::default() };
            port.insert(Pool { id: id.to_owned(), settings }).await;
            proxies.push(Member::new(&port, 20 + seed, Role::Proxy, Some(id), "").await);
            boxes.push(Member::new(&port, seed, Role::Box, Some(id), "").await);
        }
        for (seed, device) in (1..).zip(&mut boxes) {
            device.until("three proxies", |it| it.proxies().len() == 3).await;
            assert_eq!(device.proxies()[0], format!("member-{}", 20 + seed));
            let mut change = port.change().await;
            let stored = change.get::<Device>("tram", &format!("member-{seed}")).await.unwrap();
            let of_box = change.get::<Token>("tram", &stored.record.token.unwrap()).await.unwrap();
            change.remove(&of_box).await.unwrap();
            port.commit(change).await;
        }
        proxies.push(Member::new(&port, 30, Role::Proxy, Some("fra"), "").await);
        for (seed, device) in (1..).zip(&mut boxes) {
            device.until("four proxies", |it| it.proxies().len() == 4).await;
            let own = [format!("member-{}", 20 + seed), "member-30".to_owned()];
            let of_region = if seed == 1 { &own[..] } else { &own[..1] };
            let first = device.proxies().remove(0);
            assert!(of_region.contains(&first), "{seed}: {first}");
        }
    });
}
