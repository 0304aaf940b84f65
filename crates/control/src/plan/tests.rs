//! The whole way, over real sockets: people and boxes say something, and other boxes and proxies
//! hold documents that prove themselves. Agents are the fleet's own.

mod approvals;
mod faults;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use roadweave_fleet::{
    Agent, AgentEvent, Down, FrameDecoder, JoinToken, Joining, Role, VerifiedServer, encode,
};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::*;
use crate::model::{
    Config, ConfigSettings, Pool, PoolSettings, Proxy, ProxyState, Rollout, RolloutSettings,
    RolloutState, Scope, TokenRole, TokenSettings,
};
use crate::store::Stored;
use crate::store::tests::{on_both, runtime, sqlite};
use crate::streams::tests::{Client, Port, identity};

/// A box, proxy or anchor with its stream.
struct Member {
    agent: Agent,
    client: Client,
    decoder: FrameDecoder,
    /// The agent's own time: it waits 90 s for nobody here.
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

    /// Its stream ends, and it begins another.
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

    /// Lets its time pass, with session and stream up.
    fn pass(&mut self, seconds: u64) {
        let now = self.now();
        self.agent.on_session(now, true);
        self.at += seconds;
        self.agent.handle_timeout(self.now());
    }

    /// Sends and receives until `done`, 10 s at most.
    async fn until(&mut self, what: &str, done: impl Fn(&Self) -> bool) {
        let end = tokio::time::Instant::now() + Duration::from_secs(10);
        while !done(self) {
            let turned = tokio::time::timeout_at(end, self.turn()).await;
            assert!(turned.is_ok(), "{what}: {:?}", self.events);
        }
    }

    /// Sends and receives for a while, for what must not happen.
    async fn rest(&mut self, span: Duration) {
        let end = tokio::time::Instant::now() + span;
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

    /// The names of the proxies that it may choose among.
    fn proxies(&self) -> BTreeSet<String> {
        let mut lists = self.events.iter().filter_map(|event| match event {
            AgentEvent::Candidates(servers) => Some(servers),
            _ => None,
        });
        let last: &[VerifiedServer] = lists.next_back().map_or(&[], Vec::as_slice);
        last.iter().map(|server| server.name.to_string()).collect()
    }

    /// The one that it is to try first.
    fn first(&self) -> String {
        let mut lists = self.events.iter().filter_map(|event| match event {
            AgentEvent::Candidates(servers) => Some(servers),
            _ => None,
        });
        lists.next_back().unwrap()[0].name.to_string()
    }

    fn text(&self) -> Option<String> {
        self.agent.kept().configuration_in_force().1
    }

    /// The keys that its table lets in, with how many prefixes.
    fn admitted(&self) -> Vec<(PublicKey, usize)> {
        let admission = self.agent.admission();
        admission.admitted.iter().map(|(_, it)| (it.key, it.addresses.len())).collect()
    }
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
    let settings = ConfigSettings {
        scope,
        title: String::new(),
        body: fields.as_object().unwrap().clone(),
        signature: None,
    };
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

async fn rollout(port: &Port, id: &str) -> Stored<Rollout> {
    port.app.store.get("tram", id).await.unwrap()
}

/// Waits for what another task brings about, 10 s at most.
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
        let of_fra = token(&port, TokenRole::Proxy, 1, Some("fra")).await;
        let of_ber = token(&port, TokenRole::Proxy, 1, Some("ber")).await;
        let mut fra = Member::join(&port, 20, Role::Proxy, &of_fra, "192.0.2.1:4433").await;
        let _ber = Member::join(&port, 21, Role::Proxy, &of_ber, "").await;
        let of_box = token(&port, TokenRole::Box, 2, None).await;
        let mut device = Member::join(&port, 1, Role::Box, &of_box, "").await;
        device.until("two proxies", |it| it.proxies().len() == 2).await;
        let servers = device.events.iter().find_map(|event| match event {
            AgentEvent::Candidates(servers) if servers.len() == 2 => Some(servers.clone()),
            _ => None,
        });
        // Where it says to listen, or else where it comes from.
        let addresses: BTreeSet<SocketAddr> =
            servers.unwrap().iter().map(|server| server.addresses[0].parse().unwrap()).collect();
        let expected = ["192.0.2.1:4433", "127.0.0.1:4433"].map(|text| text.parse().unwrap());
        assert_eq!(addresses, expected.into());
        // The proxy lets in the box, at the address that the controller has given it.
        let key = identity(1).public_key();
        fra.until("the box", |it| it.admitted() == [(key, 1)]).await;
        let _second = Member::join(&port, 2, Role::Box, &of_box, "").await;
        fra.until("both boxes", |it| it.admitted().len() == 2).await;
        // What is withdrawn is out of the table, and sessions end at once; the box hears later.
        let gone = identity(2).public_key().to_string();
        let mut change = port.app.store.change(Actor::new("test"), now_ms()).await.unwrap();
        let sign = |serial, previous: &str| Authority::revoke(&gone, serial, previous);
        change.revoke("tram", &gone, "lost", sign).await.unwrap();
        change.commit().await.unwrap();
        port.app.outbox.hint();
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
        // A drained proxy gets no boxes; one that says to be on it would keep it.
        let drained: Stored<Proxy> = port.app.store.get("tram", "member-20").await.unwrap();
        let mut change = port.app.store.change(Actor::new("test"), now_ms()).await.unwrap();
        let draining = Proxy { state: ProxyState::Draining, ..drained.record.clone() };
        change.update(&drained, draining).await.unwrap();
        change.commit().await.unwrap();
        port.app.outbox.hint();
        fra.until("drained", |it| it.events.contains(&AgentEvent::Drain(true))).await;
        device.until("one proxy", |it| it.proxies() == ["member-21".to_owned()].into()).await;
        let drained: Stored<Proxy> = port.app.store.get("tram", "member-20").await.unwrap();
        let mut change = port.app.store.change(Actor::new("test"), now_ms()).await.unwrap();
        let active = Proxy { state: ProxyState::Active, ..drained.record.clone() };
        change.update(&drained, active).await.unwrap();
        change.commit().await.unwrap();
        port.app.outbox.hint();
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
        let of_fra = token(&port, TokenRole::Proxy, 1, Some("fra")).await;
        let of_ber = token(&port, TokenRole::Proxy, 1, Some("ber")).await;
        let mut fra = Member::join(&port, 20, Role::Proxy, &of_fra, "192.0.2.1:4433").await;
        let mut ber = Member::join(&port, 21, Role::Proxy, &of_ber, "192.0.2.2:4433").await;
        let of_box = token(&port, TokenRole::Box, 1, None).await;
        let mut device = Member::join(&port, 1, Role::Box, &of_box, "").await;
        let told = |it: &Member| {
            let lists = it.events.iter().rev().filter_map(|event| match event {
                AgentEvent::Candidates(servers) if servers.len() == 2 => Some(servers),
                _ => None,
            });
            let of = |server: &VerifiedServer| (server.name.to_string(), server.to_anchor_us);
            lists.take(1).flatten().map(of).collect::<BTreeMap<_, _>>()
        };
        let expected = |fra, ber| {
            BTreeMap::from([("member-20".to_owned(), fra), ("member-21".to_owned(), ber)])
        };
        device.until("nobody has measured it", |it| told(it) == expected(0, 0)).await;
        // A tenant that it does not serve is none of its business.
        let ms = Duration::from_millis;
        let of = |name: &str, millis| (name.parse().unwrap(), ms(millis));
        fra.agent.on_anchors([of("tram", 9), of("stranger", 1)]);
        fra.send().await;
        device.until("the other is no nearer", |it| told(it) == expected(9_000, 9_000)).await;
        ber.agent.on_anchors([of("tram", 40)]);
        ber.send().await;
        device.until("both", |it| told(it) == expected(9_000, 40_000)).await;
        // What wavers makes no new list, and a new stream says it again.
        let lists = |it: &Member| {
            it.events.iter().filter(|event| matches!(event, AgentEvent::Candidates(_))).count()
        };
        let before = lists(&device);
        fra.agent.on_anchors([of("tram", 10)]);
        fra.reconnect(&port, 20).await;
        device.rest(Duration::from_secs(3)).await;
        assert_eq!(told(&device), expected(9_000, 40_000));
        assert_eq!(lists(&device), before, "{:?}", device.events);
    });
}

#[test]
fn a_planner_that_has_missed_lines_brings_what_they_were_about() {
    runtime().block_on(async {
        let port = Port::new(sqlite().await).await;
        let of_box = token(&port, TokenRole::Box, 1, None).await;
        let mut device = Member::join(&port, 1, Role::Box, &of_box, "").await;
        device.rest(Duration::from_millis(300)).await;
        port.planner.abort();
        // Another replica plans, whose words do not reach this one's streams.
        let (app, silent) = (&port.app, Arc::new(Mailboxes::default()));
        let planner = |mailboxes: &Arc<Mailboxes>| {
            let of = (app.store.clone(), app.authority.clone(), app.outbox.clone());
            let mut planner =
                Planner::new(of.0, of.1, of.2, app.metrics.clone(), mailboxes.clone());
            (planner.leads, planner.leads_until_ms) = (true, now_ms() + LEASE_MS);
            planner
        };
        roll_out(&port, 1, Scope::Tenant, json!({ "lanes": [] }), &[100]).await;
        planner(&silent).turn(Some(Vec::new())).await.unwrap();
        device.rest(Duration::from_millis(300)).await;
        assert_eq!(device.text(), None);
        planner(&port.mailboxes).turn(None).await.unwrap();
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
        let (role, name) = (Role::Proxy, "x".parse().unwrap());
        let asks = roadweave_fleet::Up::Join {
            secret,
            tenant,
            role,
            name,
            chain: None,
            addresses: vec![],
        };
        wrong.send(&asks).await;
        let Some(Down::Refused { reason, retry: false }) = wrong.receive().await else { panic!() };
        assert_eq!(reason, "the token is for anchors");
        let mut anchor = Member::join(&port, 30, Role::Anchor, &of_anchor, "192.0.2.9:1").await;
        let of_proxy = token(&port, TokenRole::Proxy, 1, None).await;
        let mut proxy = Member::join(&port, 20, Role::Proxy, &of_proxy, "192.0.2.1:1").await;
        let of_box = token(&port, TokenRole::Box, 1, None).await;
        let _device = Member::join(&port, 1, Role::Box, &of_box, "").await;
        anchor.until("proxy and box", |it| it.admitted().len() == 2).await;
        proxy.until("the box", |it| it.admitted().len() == 1).await;
        // Where the tenant leaves at its anchor, its proxies are told.
        let tram: Stored<crate::model::Tenant> = port.app.store.get("tram", "tram").await.unwrap();
        let mut with_anchor = tram.record.clone();
        with_anchor.settings.egress = crate::model::Egress::Anchor;
        with_anchor.settings.limits.rate_mbps = Some(40);
        let mut change = port.app.store.change(Actor::new("test"), now_ms()).await.unwrap();
        change.update(&tram, with_anchor).await.unwrap();
        change.commit().await.unwrap();
        port.app.outbox.hint();
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
        let of_box = token(&port, TokenRole::Box, 4, None).await;
        let mut boxes = Vec::new();
        for seed in 1..=4 {
            boxes.push(Member::join(&port, seed, Role::Box, &of_box, "").await);
        }
        roll_out(&port, 1, Scope::Tenant, json!({ "lanes": [] }), &[25, 100]).await;
        eventually("the first wave", async || {
            for device in &mut boxes {
                device.rest(Duration::from_millis(50)).await;
            }
            boxes.iter().any(|it| it.text().is_some())
        })
        .await;
        for device in &mut boxes {
            device.rest(Duration::from_millis(300)).await;
        }
        let first: Vec<usize> = (0..4).filter(|at| boxes[*at].text().is_some()).collect();
        assert_eq!(first.len(), 1, "a quarter of four");
        assert_eq!(boxes[first[0]].text().as_deref(), Some("lanes = []\n"));
        // It holds for 90 s there, and the others follow.
        boxes[first[0]].pass(120);
        for device in &mut boxes {
            device.send().await;
            device.until("the second wave", |it| it.text().is_some()).await;
            device.pass(120);
            device.send().await;
        }
        eventually("done", async || {
            rollout(&port, "tenant-1").await.record.settings.state == RolloutState::Done
        })
        .await;
        // Another planner finds all as it is.
        port.planner.abort();
        let signed = port.app.metrics.documents.get();
        let of = (&port.app.store, &port.app.authority, &port.app.outbox);
        let metrics = Arc::clone(&port.app.metrics);
        let mailboxes = Arc::new(Mailboxes::default());
        let planner =
            Planner::new(of.0.clone(), of.1.clone(), of.2.clone(), metrics, Arc::clone(&mailboxes));
        let mut planner = planner;
        planner.leads = true;
        planner.leads_until_ms = now_ms() + LEASE_MS;
        planner.turn(Some(Vec::new())).await.unwrap();
        assert_eq!(port.app.metrics.documents.get(), signed);
    });
}

#[test]
fn a_roll_out_that_fails_stops_by_itself_and_a_person_takes_it_back() {
    runtime().block_on(async {
        let port = Port::new(sqlite().await).await;
        let of_box = token(&port, TokenRole::Box, 2, None).await;
        let mut boxes = Vec::new();
        for seed in 1..=2 {
            boxes.push(Member::join(&port, seed, Role::Box, &of_box, "").await);
        }
        roll_out(&port, 1, Scope::Tenant, json!({ "good": true }), &[100]).await;
        for device in &mut boxes {
            device.until("the good one", |it| it.text().is_some()).await;
            device.pass(120);
            device.send().await;
        }
        roll_out(&port, 2, Scope::Tenant, json!({ "good": false }), &[50, 100]).await;
        let has_bad = |it: &Member| it.text().is_some_and(|text| text.contains("false"));
        eventually("a box has it", async || {
            for device in &mut boxes {
                device.rest(Duration::from_millis(50)).await;
            }
            boxes.iter().any(has_bad)
        })
        .await;
        let struck = boxes.iter().position(has_bad).unwrap();
        let version = boxes[struck].agent.kept().on_trial().unwrap();
        let now = boxes[struck].now();
        boxes[struck].agent.refuse(now, version, "line 1: what is this?");
        boxes[struck].send().await;
        eventually("stopped", async || {
            rollout(&port, "tenant-2").await.record.settings.state == RolloutState::Paused
        })
        .await;
        let why = rollout(&port, "tenant-2").await.record.why.unwrap();
        assert!(why.contains("1 of 1 boxes"), "{why}");
        for device in &mut boxes {
            device.rest(Duration::from_millis(300)).await;
            assert_eq!(device.text().as_deref(), Some("good = true\n"));
        }
        // It goes on only when a person says so.
        let stopped = rollout(&port, "tenant-2").await;
        let mut record = stopped.record.clone();
        record.settings.state = RolloutState::Running;
        let mut change = port.app.store.change(Actor::new("test"), now_ms()).await.unwrap();
        change.update(&stopped, record).await.unwrap();
        change.commit().await.unwrap();
        port.app.outbox.hint();
        let state = async || rollout(&port, "tenant-2").await.record;
        eventually("goes on", async || state().await.why.is_none()).await;
        let mut change = port.app.store.change(Actor::new("test"), now_ms()).await.unwrap();
        let running = rollout(&port, "tenant-2").await;
        let mut record = running.record.clone();
        record.settings.state = RolloutState::Aborted;
        change.update(&running, record).await.unwrap();
        change.commit().await.unwrap();
        port.app.outbox.hint();
        for device in &mut boxes {
            device.rest(Duration::from_millis(500)).await;
            assert_eq!(device.text().as_deref(), Some("good = true\n"));
        }
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
            let of_proxy = token(&port, TokenRole::Proxy, 1, Some(id)).await;
            proxies.push(Member::join(&port, 20 + seed, Role::Proxy, &of_proxy, "").await);
            let of_box = token(&port, TokenRole::Box, 1, Some(id)).await;
            boxes.push(Member::join(&port, seed, Role::Box, &of_box, "").await);
        }
        for (seed, device) in (1..).zip(&mut boxes) {
            device.until("three proxies", |it| it.proxies().len() == 3).await;
            assert_eq!(device.first(), format!("member-{}", 20 + seed));
            let store = &port.app.store;
            let stored: Stored<crate::model::Device> =
                store.get("tram", &format!("member-{seed}")).await.unwrap();
            let of_box: Stored<crate::model::Token> =
                store.get("tram", &stored.record.token.unwrap()).await.unwrap();
            let mut change = store.change(Actor::new("test"), now_ms()).await.unwrap();
            change.remove(&of_box).await.unwrap();
            change.commit().await.unwrap();
            port.app.outbox.hint();
        }
        // All lists are made anew.
        let of_proxy = token(&port, TokenRole::Proxy, 1, Some("fra")).await;
        proxies.push(Member::join(&port, 30, Role::Proxy, &of_proxy, "").await);
        for (seed, device) in (1..).zip(&mut boxes) {
            device.until("four proxies", |it| it.proxies().len() == 4).await;
            let own = [format!("member-{}", 20 + seed), "member-30".to_owned()];
            let of_region = if seed == 1 { &own[..] } else { &own[..1] };
            assert!(of_region.contains(&device.first()), "{seed}: {}", device.first());
        }
    });
}
