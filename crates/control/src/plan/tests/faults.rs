//! What may go wrong while documents are planned: databases, clocks and controllers.

use super::*;
use crate::plan::placement::Proxies;
use crate::store::ProxyStatus;
use roadweave_fleet::HealthState;

/// The controller that plans dies, and after its lease another one plans, which reaches the same
/// streams.
async fn succeed(port: &Port) {
    port.planner.abort();
    while !port.planner.is_finished() {
        tokio::task::yield_now().await;
    }
    let over = "UPDATE counter SET value = 0 WHERE name = 'planner'";
    assert_eq!(port.world.tamper(over).await, 1);
    let app = &port.app;
    let of = (app.store.clone(), app.authority.clone(), app.outbox.clone());
    let planner = Planner::new(of.0, of.1, of.2, app.metrics.clone(), port.mailboxes.clone());
    tokio::spawn(planner.run());
}

#[test]
fn a_roll_out_goes_on_where_it_was_after_its_controller_died() {
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
        port.planner.abort();
        // Nobody plans while the box confirms.
        let first = boxes.iter().position(|it| it.text().is_some()).unwrap();
        boxes[first].pass(120);
        boxes[first].send().await;
        let confirmed = boxes[first].agent.kept().taken()[&Kind::Configuration];
        boxes[first].rest(Duration::from_secs(1)).await;
        let having = |boxes: &[Member]| boxes.iter().filter(|it| it.text().is_some()).count();
        assert_eq!(having(&boxes), 1, "half a roll-out stays half a roll-out");
        succeed(&port).await;
        eventually("the second wave", async || {
            for device in &mut boxes {
                device.rest(Duration::from_millis(50)).await;
            }
            having(&boxes) == 4
        })
        .await;
        let still = boxes[first].agent.kept().taken()[&Kind::Configuration];
        assert_eq!(still, confirmed, "who had it is not given it again");
    });
}

/// The table of `proxy` as its own agent has it once it starts anew.
async fn admitted_anew(proxy: &Member) -> Vec<(PublicKey, usize)> {
    let text = serde_json::to_string(proxy.agent.kept()).unwrap();
    let kept = serde_json::from_str(&text).unwrap();
    let key = identity(20).public_key();
    let agent = Agent::restore(Instant::ZERO, key, Role::Proxy, "1.0", kept);
    let admission = agent.admission();
    admission.admitted.iter().map(|(_, it)| (it.key, it.addresses.len())).collect()
}

#[test]
fn a_box_whose_row_was_deleted_is_out_once_it_is_read_and_no_other_is() {
    on_both(|world| async move {
        let port = Port::new(world).await;
        let of_proxy = token(&port, TokenRole::Proxy, 1, None).await;
        let mut proxy = Member::join(&port, 20, Role::Proxy, &of_proxy, "192.0.2.1:1").await;
        let of_box = token(&port, TokenRole::Box, 2, None).await;
        let _one = Member::join(&port, 1, Role::Box, &of_box, "").await;
        let _two = Member::join(&port, 2, Role::Box, &of_box, "").await;
        proxy.until("both", |it| it.admitted().len() == 2).await;
        port.planner.abort();
        let gone = identity(1).public_key();
        for table in ["address", "report", "session", "sample", "device"] {
            let column = if table == "device" { "id" } else { "device" };
            let whose = "SELECT id FROM device WHERE public_key";
            let sql = format!("DELETE FROM {table} WHERE {column} IN ({whose} = '{gone}')");
            port.world.tamper(&sql).await;
        }
        succeed(&port).await;
        let left = [(identity(2).public_key(), 1)];
        proxy.until("one", |it| it.admitted() == left).await;
        assert_eq!(admitted_anew(&proxy).await, left, "also after a restart");
        // It is a stranger like any other.
        let mut again = port.client(1).await.unwrap();
        again.send(&roadweave_fleet::Up::Have(roadweave_fleet::HeldVersions::default())).await;
        let end = again.receive().await;
        assert!(matches!(end, Some(Down::Refused { retry: false, .. })), "{end:?}");
    });
}

#[test]
fn a_revocation_that_was_deleted_comes_back_from_a_proxy() {
    on_both(|world| async move {
        let port = Port::new(world).await;
        let of_proxy = token(&port, TokenRole::Proxy, 1, None).await;
        let mut proxy = Member::join(&port, 20, Role::Proxy, &of_proxy, "192.0.2.1:1").await;
        let gone = identity(1).public_key();
        let mut change = port.app.store.change(Actor::new("test"), now_ms()).await.unwrap();
        let sign = |serial, previous: &str| Authority::revoke(&gone.to_string(), serial, previous);
        change.revoke("tram", &gone.to_string(), "stolen", sign).await.unwrap();
        change.commit().await.unwrap();
        port.app.outbox.hint();
        proxy.until("revoked", |it| it.agent.kept().trust().is_revoked(&gone)).await;
        assert_eq!(port.world.tamper("DELETE FROM revocation").await, 1);
        // Who has seen it gives its number to no other.
        let mut change = port.app.store.change(Actor::new("test"), now_ms()).await.unwrap();
        let other = identity(2).public_key().to_string();
        let sign = |serial, previous: &str| Authority::revoke(&other, serial, previous);
        let refused = change.revoke("tram", &other, "lost", sign).await;
        assert!(matches!(refused, Err(StoreError::Older(_))), "{refused:?}");
        drop(change);
        // A controller that has not seen it knows nothing of it, until the proxy comes.
        let port = port.afresh().await.unwrap();
        let known = async || !port.app.store.revocations(None, 0, 9).await.unwrap().is_empty();
        assert!(!known().await);
        proxy.reconnect(&port, 20).await;
        eventually("it is back", async || {
            proxy.rest(Duration::from_millis(50)).await;
            known().await
        })
        .await;
        assert!(proxy.agent.kept().trust().is_revoked(&gone), "it was never forgotten");
        let refused = async || match port.client(1).await {
            Err(_) => true,
            Ok(mut client) => client.tls.read(&mut [0]).await.is_err(),
        };
        eventually("its key is refused again", refused).await;
    });
}

#[test]
fn what_was_taken_out_of_the_chain_of_revocations_is_not_signed_over() {
    on_both(|world| async move {
        let port = Port::new(world).await;
        for seed in 1..=3 {
            let gone = identity(seed).public_key().to_string();
            let mut change = port.app.store.change(Actor::new("test"), now_ms()).await.unwrap();
            let sign = |serial, previous: &str| Authority::revoke(&gone, serial, previous);
            change.revoke("tram", &gone, "lost", sign).await.unwrap();
            change.commit().await.unwrap();
        }
        port.world.tamper("DELETE FROM revocation WHERE serial = 2").await;
        let error = port.again().await.err().unwrap();
        assert!(error.to_string().contains("were altered"), "{error}");
    });
}

#[test]
fn an_anchor_that_is_drained_gives_way_to_the_tenants_other_one() {
    runtime().block_on(async {
        let port = Port::new(sqlite().await).await;
        let tram: Stored<crate::model::Tenant> = port.app.store.get("tram", "tram").await.unwrap();
        let mut with_anchor = tram.record.clone();
        with_anchor.settings.egress = crate::model::Egress::Anchor;
        let mut change = port.app.store.change(Actor::new("test"), now_ms()).await.unwrap();
        change.update(&tram, with_anchor).await.unwrap();
        change.commit().await.unwrap();
        let of_anchor = token(&port, TokenRole::Anchor, 2, None).await;
        let _one = Member::join(&port, 31, Role::Anchor, &of_anchor, "192.0.2.31:1").await;
        let of_proxy = token(&port, TokenRole::Proxy, 1, None).await;
        let mut proxy = Member::join(&port, 20, Role::Proxy, &of_proxy, "192.0.2.1:1").await;
        // A proxy leads a tenant to the first of its anchors.
        let names = |it: &Member| {
            let mut told = it.events.iter().rev().filter_map(|event| match event {
                AgentEvent::Anchors(all) => Some(all.iter().map(|it| it.anchor.name.to_string())),
                _ => None,
            });
            told.next().map(Iterator::collect::<Vec<_>>).unwrap_or_default()
        };
        proxy.until("an anchor", |it| names(it) == ["member-31"]).await;
        // One that joins later takes nothing from it, though its name comes first.
        let _two = Member::join(&port, 30, Role::Anchor, &of_anchor, "192.0.2.30:1").await;
        proxy.until("two anchors", |it| names(it).len() == 2).await;
        assert_eq!(names(&proxy), ["member-31", "member-30"]);
        let turn = async |state| {
            let anchor: Stored<Proxy> = port.app.store.get("tram", "member-31").await.unwrap();
            let mut change = port.app.store.change(Actor::new("test"), now_ms()).await.unwrap();
            change.update(&anchor, Proxy { state, ..anchor.record.clone() }).await.unwrap();
            change.commit().await.unwrap();
            port.app.outbox.hint();
        };
        turn(ProxyState::Draining).await;
        proxy.until("the other", |it| names(it) == ["member-30", "member-31"]).await;
        // Nor does the one that was first, once it takes boxes again: a new name tells that the
        // controller has planned anew.
        turn(ProxyState::Active).await;
        let of_anchor = token(&port, TokenRole::Anchor, 1, None).await;
        let _three = Member::join(&port, 29, Role::Anchor, &of_anchor, "192.0.2.29:1").await;
        proxy.until("three anchors", |it| names(it).len() == 3).await;
        assert_eq!(names(&proxy)[0], "member-30");
    });
}

fn status(proxy: &str, seen_ms: i64) -> ProxyStatus {
    ProxyStatus {
        tenant: "tram".to_owned(),
        proxy: proxy.to_owned(),
        connected: true,
        seen_ms,
        serial: 0,
        hash: String::new(),
        stream: String::new(),
        load: None,
        sessions: 0,
        software: String::new(),
        witnessed_ms: 0,
        anchors: BTreeMap::new(),
    }
}

#[test]
fn a_proxy_on_a_replica_with_another_clock_is_not_taken_for_dead() {
    const NOW: i64 = 1_800_000_000_000;
    for ahead_ms in [-3_600_000, 3_600_000] {
        let mut fleet = Fleet::default();
        for (id, seed) in [("fra-1", 20), ("fra-2", 21)] {
            let settings = crate::model::ProxySettings {
                title: String::new(),
                role: crate::model::ProxyRole::Proxy,
                public_key: identity(seed).public_key().to_string(),
                addresses: vec!["192.0.2.7:4433".parse().unwrap()],
                pool: None,
                devices_max: None,
            };
            let (id, state, delegates) = (id.to_owned(), ProxyState::Active, Vec::new());
            let record = ("tram".to_owned(), id.clone());
            let proxy = Proxy { id, state, statement: None, delegates, settings };
            fleet.proxies.insert(record, proxy);
        }
        let mut proxies = Proxies::new(Instant::ZERO);
        let mut changed = Vec::new();
        for second in (0..600).step_by(2) {
            let now_ms = NOW + second * 1_000;
            let heard_ms = now_ms - now_ms % 10_000;
            // The second one is gone from the 400th second on.
            let other_ms = heard_ms.min(NOW + 400_000) + ahead_ms;
            let told = [status("fra-1", heard_ms), status("fra-2", other_ms)];
            let now = Instant::from_millis(second.unsigned_abs() * 1_000);
            let news = proxies.look(&fleet, &told, now, now_ms).into_iter();
            changed.extend(news.map(|(key, vital)| (second, key, vital)));
        }
        let dead: Vec<_> =
            changed.iter().filter(|(.., vital)| *vital == HealthState::Dead).collect();
        assert_eq!(dead.len(), 1, "{changed:?}");
        assert_eq!(dead[0].1, identity(21).public_key());
        assert!((425..=440).contains(&dead[0].0), "{changed:?}");
    }
}
