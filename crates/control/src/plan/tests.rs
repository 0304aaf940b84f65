//! From records and reports to signed documents at members, over real sockets.

mod approvals;
mod faults;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use roadweave_fleet::{
    Agent, AgentEvent, Down, Join, JoinToken, Joining, Role, Up, VerifiedServer, encode,
};
use roadweave_identity::PublicKey;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;

use super::*;
use crate::model::{
    Config, Device, Pool, PoolSettings, Proxy, ProxyState, Rollout, RolloutState, Scope, Tenant,
    Token, TokenRole, TokenSettings,
};
use crate::store::tests::{on_both_with, runtime, sqlite};
use crate::store::{Stored, proxy_status};
use crate::streams::tests::{Port, TestClient, eventually, identity};

struct TestMember {
    agent: Agent,
    client: TestClient,
    at: u64,
    events: Vec<AgentEvent>,
}

impl TestMember {
    async fn join(port: &Port, seed: u8, role: Role, token: &JoinToken, address: &str) -> Self {
        let key = identity(seed).public_key();
        let name = format!("member-{seed}").parse().unwrap();
        let how = Joining { token: token.clone(), name, chain: None };
        let mut agent = Agent::joining(Instant::ZERO, key, role, "1.0", how);
        agent.listens_at(vec![address.to_owned()]);
        agent.on_stream_up(Instant::ZERO);
        let client = port.client(seed).await.unwrap();
        let mut member = Self { agent, client, at: 0, events: Vec::new() };
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
        self.client = port.client(seed).await.unwrap();
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
        let frame = self.client.next().await;
        let frame = frame.unwrap_or_else(|| panic!("the stream has ended: {:?}", self.events));
        self.agent.handle_frame(self.now(), frame);
        self.events.extend(std::iter::from_fn(|| self.agent.poll_event()));
        self.send().await;
    }

    async fn send(&mut self) {
        while let Some(frame) = self.agent.poll_frame() {
            self.client.tls.write_all(&encode(&frame).unwrap()).await.unwrap();
        }
        self.client.tls.flush().await.unwrap();
    }

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
        self.agent.persisted().configuration_in_force().1
    }

    fn admitted(&self) -> Vec<(PublicKey, usize)> {
        admitted(&self.agent)
    }
}

fn admitted(agent: &Agent) -> Vec<(PublicKey, usize)> {
    let admission = agent.admission();
    admission.admitted.iter().map(|(_, it)| (it.key, it.addresses.len())).collect()
}

async fn rest(members: &mut [TestMember], millis: u64) {
    for member in members {
        member.rest(millis).await;
    }
}

async fn boxes(port: &Port, count: u8) -> Vec<TestMember> {
    let mut boxes = Vec::new();
    for seed in 1..=count {
        boxes.push(TestMember::device(port, seed).await);
    }
    boxes
}

fn planner(port: &Port, mailboxes: &Arc<Mailboxes>) -> Planner {
    Planner::new(port.app.clone(), mailboxes.clone())
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
    let (site, region) = (id.to_owned(), id.to_owned());
    let settings = PoolSettings { site, region, ..PoolSettings::default() };
    port.insert(Pool { id: id.to_owned(), settings }).await;
}

async fn roll_out(port: &Port, number: i64, scope: Scope, body: Value, waves: &[u32]) {
    let id = format!("{scope}-{number}");
    let settings = json!({ "scope": scope, "body": body });
    let config = json!({ "id": id, "number": number, "author": "test", "settings": settings });
    port.insert::<Config>(serde_json::from_value(config).unwrap()).await;
    let settings = json!({ "config": id, "waves": waves, "rest_s": 3_600 });
    let rollout = json!({ "id": id, "wave": 0, "wave_since_ms": 0, "settings": settings });
    port.insert::<Rollout>(serde_json::from_value(rollout).unwrap()).await;
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

async fn leave_at_anchor(port: &Port) {
    port.update("tram", |tram: &mut Tenant| {
        tram.settings.egress = roadweave_fleet::records::Egress::Anchor;
        tram.settings.limits.rate_mbps = Some(40);
    })
    .await;
}

#[test]
fn a_box_and_its_proxies_hear_of_each_other() {
    on_both_with(Port::new, |port| async move {
        pool(&port, "fra").await;
        pool(&port, "ber").await;
        let mut fra = TestMember::new(&port, 20, Role::Proxy, Some("fra"), "192.0.2.1:4433").await;
        let _ber = TestMember::new(&port, 21, Role::Proxy, Some("ber"), "").await;
        let mut device = TestMember::new(&port, 1, Role::Box, Some("fra"), "").await;
        device.until("two proxies", |it| it.proxies().len() == 2).await;
        let mut change = port.change().await;
        let stored = change.get::<Device>("tram", "member-1").await.unwrap();
        let of_box = change.get::<Token>("tram", &stored.record.token.unwrap()).await.unwrap();
        change.remove(&of_box).await.unwrap();
        port.commit(change).await;
        let distance = |it: &TestMember| it.lists().next().unwrap()[0].to_anchor_us;
        assert_eq!(distance(&device), 0);
        fra.agent.on_anchors([("tram".parse().unwrap(), Duration::from_millis(9))]);
        fra.send().await;
        device.until("the distance from the anchor", |it| distance(it) == 9_000).await;
        let servers = device.lists().next().unwrap().iter();
        let addresses: BTreeSet<SocketAddr> =
            servers.map(|server| server.addresses[0].parse().unwrap()).collect();
        let expected = ["192.0.2.1:4433", "127.0.0.1:4433"].map(|text| text.parse().unwrap());
        assert_eq!(addresses, expected.into());
        let key = identity(1).public_key();
        fra.until("the box", |it| it.admitted() == [(key, 1)]).await;
        let _second = TestMember::device(&port, 2).await;
        fra.until("both boxes", |it| it.admitted().len() == 2).await;
        port.revoke(2).await;
        let revoked = AgentEvent::Revoked(vec![identity(2).public_key()]);
        fra.until("revoked", |it| it.events.contains(&revoked)).await;
        assert_eq!(fra.admitted(), [(key, 1)]);
        let batches = fra.events.iter().filter(|it| matches!(it, AgentEvent::Revoked(_))).count();
        (0..batches).for_each(|_| fra.agent.on_revoked());
        fra.send().await;
        eventually("confirmed", async || {
            let all =
                proxy_status::confirmations(&port.app.store, "tram", 1, now_ms()).await.unwrap();
            all.confirmed == ["member-20"]
        })
        .await;
        assert_eq!(device.agent.persisted().trust().revocations().head().serial, 0);
        port.update("member-20", |it: &mut Proxy| it.state = ProxyState::Draining).await;
        fra.until("drained", |it| it.events.contains(&AgentEvent::Drain(true))).await;
        device.until("one proxy", |it| it.proxies() == ["member-21"]).await;
        port.update("member-20", |it: &mut Proxy| it.state = ProxyState::Active).await;
        fra.until("taken back", |it| it.events.contains(&AgentEvent::Drain(false))).await;
        device.until("both proxies", |it| it.proxies().len() == 2).await;
        assert_eq!(device.proxies(), ["member-20", "member-21"], "its region's first");
    });
}

#[test]
fn a_planner_that_has_missed_lines_brings_what_they_were_about() {
    runtime().block_on(async {
        let port = Port::new(sqlite().await).await;
        let mut device = TestMember::device(&port, 1).await;
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
    on_both_with(Port::new, |port| async move {
        let of_anchor = token(&port, TokenRole::Anchor, 1, None).await;
        let mut wrong = port.client(9).await.unwrap();
        let (secret, tenant) = (of_anchor.secret, of_anchor.tenant.clone());
        let (role, name, chain, addresses) = (Role::Proxy, "x".parse().unwrap(), None, vec![]);
        wrong.send(&Up::Join(Join { secret, tenant, role, name, chain, addresses })).await;
        let Some(Down::Refused { reason, retry: false }) = wrong.receive().await else { panic!() };
        assert_eq!(reason, "the token is for anchors");
        let mut anchor = TestMember::join(&port, 30, Role::Anchor, &of_anchor, "").await;
        let mut proxy = TestMember::new(&port, 20, Role::Proxy, None, "192.0.2.1:1").await;
        let _device = TestMember::device(&port, 1).await;
        anchor.until("proxy and box", |it| it.admitted().len() == 2).await;
        proxy.until("the box", |it| it.admitted().len() == 1).await;
        leave_at_anchor(&port).await;
        let names_anchor = |event: &AgentEvent| match event {
            AgentEvent::Anchors(all) => all.iter().any(|it| {
                let is_limited = it.rate_kbps == Some(40_000);
                let is_named = it.gateways == ["10.7.0.1/24".parse().unwrap()];
                // Where an anchor listens by default.
                it.anchor.addresses == ["127.0.0.1:4434"] && is_limited && is_named
            }),
            _ => false,
        };
        proxy.until("the anchor", |it| it.events.iter().any(names_anchor)).await;
    });
}
