//! Typical use of the interface, and attacks of strangers.

use std::time::{Duration, Instant};

use roadweave_fleet::{Chain, JoinToken, Trust};

use super::resumed::Watch;
use super::walks::proxy;
use super::*;
use crate::model::DeviceState;
use crate::store::tests::postgres::Postgres;
use crate::store::tests::{enrolment, postgres, report, status};
use crate::store::{Note, ProxyStatus, Sample, Store, note, revocation};

#[test]
fn a_record_is_made_seen_changed_and_removed() {
    on_both_with(Api::on, |api| async move {
        let made = api.post("/pools", json!({ "id": "north", "settings": { "site": "fra" } }));
        let made = made.send().await;
        assert_eq!((made.status, &*made.etag()), (201, "\"1\""));
        let again = api.post("/pools", json!({ "id": "north", "settings": {} })).send().await;
        assert_eq!(again.status, 409, "{}", again.body);
        let seen = api.get("/pools/north").send().await;
        assert_eq!(seen.body["settings"]["site"], "fra");
        let known = api.get("/pools/north").header("if-none-match", "\"1\"").status().await;
        assert_eq!(known, 304);
        let changed = api.put("/pools/north", "\"1\"", json!({ "site": "ams" })).send().await;
        assert_eq!((changed.status, &*changed.etag()), (200, "\"2\""));
        let late = api.put("/pools/north", "\"1\"", json!({ "site": "par" })).send().await;
        assert_eq!(late.status, 412, "{}", late.body);
        for (etag, status) in [("\"1\"", 412), ("seven", 400), ("\"2\"", 204)] {
            assert_eq!(api.delete("/pools/north", etag).status().await, status, "{etag}");
        }
        assert_eq!(api.get("/pools/north").status().await, 404);
        let log = api.get("/audit?limit=3").send().await;
        let actions = log.body["items"].as_array().unwrap().iter().map(|line| &line["action"]);
        assert_eq!(actions.collect::<Vec<_>>(), ["delete", "update", "create"]);
        assert_eq!(log.body["items"][0]["actor"], "tram/key:tram-owner");
        assert_eq!(log.body["items"][1]["before"]["settings"]["site"], "fra");
        assert_eq!(api.get("/audit-check").send().await.body["good"], true);
    });
}

#[test]
fn lists_go_on_by_cursors_and_refuse_what_is_none() {
    on_both_with(Api::on, |api| async move {
        for seed in 1..=5 {
            let settings = json!({ "tags": [if seed % 2 == 0 { "even" } else { "odd" }] });
            let (id, public_key) = (format!("bus-{seed}"), key(seed));
            let body = json!({ "id": id, "public_key": public_key, "settings": settings });
            api.create("/devices", body).await;
        }
        let (mut seen, mut path) = (Vec::new(), "/devices?limit=2".to_owned());
        loop {
            let page = api.get(&path).send().await.body;
            let items = page["items"].as_array().unwrap().clone();
            seen.extend(items.iter().map(|it| it["id"].as_str().unwrap().to_owned()));
            let Some(next) = page["next"].as_str() else { break };
            path = format!("/devices?limit=2&cursor={next}");
        }
        assert_eq!(seen, ["bus-1", "bus-2", "bus-3", "bus-4", "bus-5"]);
        let odd = api.get("/devices?tag=odd").send().await.body;
        assert_eq!(odd["items"].as_array().unwrap().len(), 3);
        for none in ["tag=o%25", "state=revoked"] {
            let found = api.get(&format!("/devices?{none}")).send().await.body;
            assert_eq!(found["items"], json!([]), "{none}");
        }
        for (path, status) in [
            ("/devices?cursor=%25", 400),
            ("/devices?limit=x", 400),
            ("/devices?colour=red", 400),
            ("/pools?state=active", 400),
            ("/pools?tag=odd", 400),
            ("/devices?limit=4000000", 200),
            ("/devices?tag=%25", 200),
        ] {
            assert_eq!(api.get(path).status().await, status, "{path}");
        }
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_read_or_cannot_be_is_a_problem() {
    let api = Api::new().await;
    let raw = |body: &str, kind: &str| {
        let ask = api.ask("POST", "/tenants/tram/pools").key("tram-owner");
        let mut ask = ask.header("content-type", kind);
        ask.body = Some(body.to_owned());
        ask.send()
    };
    let json_type = "application/json; charset=utf-8";
    for (body, kind, status) in [
        ("{", json_type, 400),
        ("{}", "text/plain", 415),
        (&*"x".repeat(70_000), json_type, 413),
        (&*"[".repeat(60_000), json_type, 422),
    ] {
        assert_eq!(raw(body, kind).await.status, status, "{kind}");
    }
    let refused = raw(r#"{"id":"a","settings":{"colour":1}}"#, json_type).await;
    assert_eq!(refused.status, 422);
    assert!(refused.body["detail"].as_str().unwrap().contains("colour"));
    for id in ["", "A", "a b", "../x", "-a", &"a".repeat(64)] {
        let body = json!({ "id": id, "settings": {} });
        assert_eq!(api.post("/pools", body).status().await, 422, "{id}");
    }
    assert_eq!(api.ask("GET", "/nothing").status().await, 404);
    assert_eq!(api.ask("PATCH", "/tenants/tram").key("tram-owner").status().await, 405);
    for path in ["/revocations/x", &format!("/devices/{}", "a".repeat(200)), "/devices/%00"] {
        assert_eq!(api.get(path).status().await, 404, "{path}");
    }
    let body = json!({ "id": "x", "public_key": "AAAA" });
    api.refuses("/devices", body, 422, "public_key: not a key").await;
}

#[test]
fn a_repeated_post_acts_once_and_answers_the_same() {
    on_both_with(Api::on, |api| async move {
        let ask = |name: &str, once: &str| {
            let body = json!({ "id": name, "settings": { "uses": 1 } });
            api.post("/tokens", body).header("idempotency-key", once).send()
        };
        let first = ask("one", "a").await;
        let again = ask("one", "a").await;
        assert_eq!((first.status, again.status), (201, 201));
        assert_eq!(first.body, again.body);
        assert_eq!(again.headers["idempotency-replayed"], "true");
        assert_eq!(ask("two", "a").await.status, 422);
        assert_eq!(ask("one", "b").await.status, 409);
        assert_eq!(ask("one", "b").await.status, 409);
        assert_eq!(ask("one", &"x".repeat(200)).await.status, 400);
        let body = json!({ "id": "one", "settings": { "uses": 1 } });
        let other = api.post_in("ferry", "/tokens", body).header("idempotency-key", "a");
        let other = other.send().await;
        assert_ne!(other.body["join"], first.body["join"]);
        let tokens = api.get("/tokens").send().await.body;
        assert_eq!(tokens["items"].as_array().unwrap().len(), 1);
        assert!(!tokens.to_string().contains("hash"));
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_person_logs_in_and_out() {
    let api = Api::new().await;
    api.person("tram", "anna", Role::Owner).await;
    let try_password = |tenant: &str, user: &str, password: &str| {
        let body = json!({ "tenant": tenant, "user": user, "password": password });
        api.ask("POST", "/sessions").json(body).send()
    };
    let wrong = try_password("tram", "anna", "wrong").await;
    assert_eq!(wrong.status, 401);
    for (tenant, user) in [("tram", "eve"), ("ferry", "anna")] {
        assert_eq!(try_password(tenant, user, PASSWORD).await.body, wrong.body, "{user}");
    }
    let right = try_password("tram", "anna", PASSWORD).await;
    assert_eq!(right.status, 201);
    let cookie = right.headers["set-cookie"].to_str().unwrap().to_owned();
    for part in ["__Host-roadweave=", "; Secure", "; HttpOnly", "; SameSite=Strict", "Path=/"] {
        assert!(cookie.contains(part), "{cookie}");
    }
    let cookie = cookie.split(';').next().unwrap().to_owned();
    let me = |cookie: &str| {
        api.ask("GET", "/sessions/current").header("cookie", format!("x=1; {cookie}")).send()
    };
    let session = me(&cookie).await;
    assert_eq!((session.status, &session.body["name"]), (200, &json!("person:anna")));
    let foreign = api.ask("POST", "/tenants/tram/pools").header("cookie", &*cookie);
    let foreign = foreign.json(json!({ "id": "x", "settings": {} }));
    let foreign = foreign.header("sec-fetch-site", "cross-site").status().await;
    assert_eq!(foreign, 403);
    let out = api.ask("DELETE", "/sessions/current").header("cookie", &*cookie).send().await;
    assert_eq!(out.status, 204);
    assert!(out.headers["set-cookie"].to_str().unwrap().contains("Max-Age=0"));
    assert_eq!(me(&cookie).await.status, 401);
    let cookie = api.log_in("tram", "anna").await;
    let body = json!({ "password": "another long password" });
    let set = api.ask("PUT", "/tenants/tram/users/anna/password").key("tram-owner").json(body);
    assert_eq!(set.status().await, 204);
    assert_eq!(me(&cookie).await.status, 401);
    assert_eq!(try_password("tram", "anna", PASSWORD).await.status, 401);
    let users = api.get("/users").send().await.body.to_string();
    assert!(!users.contains("argon2") && users.contains("anna"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_tries_passwords_is_slowed_down_by_address_and_by_name() {
    let api = Api::new().await;
    let body = |user: &str| json!({ "tenant": "tram", "user": user, "password": "x" });
    let mut refused = 0;
    for at in 0..15 {
        let ask = api.ask("POST", "/sessions").json(body(&format!("user-{at}")));
        refused += u32::from(ask.from("198.51.100.1").status().await == 429);
    }
    assert_eq!(refused, 5);
    let later = Instant::now() + Duration::from_secs(3600);
    while api.app.limits.names.take("tram/anna".to_owned(), later) {}
    let ask = api.ask("POST", "/sessions").json(body("anna")).from("203.0.113.1");
    let others = api.ask("POST", "/sessions").json(body("ben")).from("203.0.113.1");
    assert_eq!((ask.status().await, others.status().await), (429, 401));
    assert_eq!(api.get("/devices").status().await, 200);
    let mut refused = 0;
    for at in 0..70 {
        let ask = api.ask("GET", "/tenants/tram/devices").key(&format!("guess-{at}"));
        refused += u32::from(ask.from("198.51.100.2").status().await == 429);
    }
    assert!((8..=10).contains(&refused), "{refused}");
    let text = api.app.metrics.text();
    assert!(text.contains(r#"roadweave_controller_refused_total{reason="login-rate"} "#));
    assert!(text.contains("roadweave_controller_request_seconds_bucket"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_has_expired_and_one_that_was_removed_open_nothing() {
    let api = Api::new().await;
    for (id, expires, status) in [("old", now_ms() - 1, 401), ("new", now_ms() + 60_000, 200)] {
        let settings = json!({ "role": "viewer", "expires_ms": expires });
        let made = api.create("/api-keys", json!({ "id": id, "settings": settings })).await;
        let secret = made["secret"].as_str().unwrap();
        let seen = || api.ask("GET", "/tenants/tram/devices").key(secret).status();
        assert_eq!(seen().await, status, "{id}");
        assert_eq!(api.delete(&format!("/api-keys/{id}"), "*").status().await, 204);
        assert_eq!(seen().await, 401);
    }
}

#[test]
fn a_tenant_goes_with_a_line_for_each_and_its_name_is_not_given_again() {
    on_both_with(Api::on, |api| async move {
        let make = || {
            let body = json!({ "id": "bank", "owner": "ben", "password": PASSWORD });
            api.ask("POST", "/tenants").key("home-owner").json(body).send()
        };
        assert_eq!(make().await.status, 201);
        let key = api.ask("POST", "/tenants/bank/api-keys").key("home-owner");
        let key = key.json(json!({ "id": "ci", "settings": { "role": "viewer" } }));
        assert_eq!(key.status().await, 201);
        let gone = api.ask("DELETE", "/tenants/bank").key("home-owner").header("if-match", "*");
        assert_eq!(gone.status().await, 204);
        let log = api.ask("GET", "/tenants/bank/audit?limit=3").key("home-owner").send().await;
        let lines = log.body["items"].as_array().unwrap().iter();
        let lines: Vec<_> = lines.map(|it| (&it["action"], &it["subject"])).collect();
        let deleted = ["bank", "ci", "ben"].map(|it| (json!("delete"), json!(it)));
        assert_eq!(lines, deleted.each_ref().map(|(action, subject)| (action, subject)));
        let again = make().await;
        assert_eq!(again.status, 409, "{}", again.body);
        assert!(again.body["detail"].as_str().unwrap().contains("audit log"), "{}", again.body);
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_owner_stays() {
    let api = Api::new().await;
    api.person("tram", "anna", Role::Owner).await;
    let demote = || api.put("/users/anna", "*", json!({ "role": "viewer" })).status();
    let remove = || api.delete("/users/anna", "*").status();
    assert_eq!((demote().await, remove().await), (409, 409));
    let body = json!({ "id": "ben", "password": PASSWORD, "settings": { "role": "owner" } });
    api.create("/users", body).await;
    assert_eq!((demote().await, remove().await), (200, 204));
}

#[test]
fn a_tenant_hears_of_those_proxies_alone_that_serve_it() {
    on_both_with(Api::on, |api| async move {
        let home = |path: &str, body: Value| api.post_in("home", path, body).status();
        for (pool, tenants) in [("all", json!(["tram"])), ("own", json!(["ferry"]))] {
            let body = json!({ "id": pool, "settings": { "tenants": tenants } });
            assert_eq!(home("/pools", body).await, 201);
        }
        for (seed, pool) in [(11, json!("all")), (12, json!("own")), (13, Value::Null)] {
            let mut body = proxy(seed);
            body["settings"]["pool"] = pool;
            assert_eq!(home("/proxies", body).await, 201);
        }
        api.create("/proxies", proxy(14)).await;
        api.device("bus-17", 1).await;
        api.revoke("/devices/bus-17").await;
        let seen = api.ask("GET", "/tenants/tram/revocations/1").key("tram-viewer").send().await;
        let summary = "0 of 2; fra-11 has never connected; fra-14 has never connected";
        assert_eq!(seen.body["summary"], summary);
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_brings_a_box_in_whose_chain_leads_to_the_root() {
    let api = Api::new().await;
    let body = json!({ "settings": { "uses": 2, "tags": ["night"], "approval": true } });
    let made = api.create("/tokens", body).await;
    let token: JoinToken = made["join"].as_str().unwrap().parse().unwrap();
    assert_eq!(token.addresses, ["fleet.example.org:443"]);
    let enrolment = enrolment(&String::from(token.secret), 1);
    let App { store, authority, .. } = &*api.app;
    let device = enrolment.admit_box(store, now_ms(), authority).await.unwrap();
    assert_eq!((device.record.state, device.record.statement), (DeviceState::Pending, None));
    let path = format!("/devices/{}/approve", device.record.id);
    let approved = api.post(&path, json!({})).send().await;
    assert_eq!(approved.body["state"], "active");
    let chain: Chain = serde_json::from_str(approved.body["statement"].as_str().unwrap()).unwrap();
    let admitted = chain.verify(&Trust::pinned(token.root, token.controller)).unwrap();
    assert_eq!(admitted.statement.key.to_string(), key(1));
    assert_eq!(admitted.statement.tags.len(), 1);
}

fn status_of(proxy: &str, hash: &str, silent_ms: i64, connected: bool) -> ProxyStatus {
    let (seen_ms, hash) = (now_ms() - silent_ms, hash.to_owned());
    let (serial, load) = (i64::from(!hash.is_empty()), Some(100));
    ProxyStatus { connected, seen_ms, serial, hash, load, ..status(proxy) }
}

#[test]
fn a_revocation_says_who_has_confirmed_it() {
    on_both_with(Api::on, |api| async move {
        for seed in 11..=13 {
            api.create("/proxies", proxy(seed)).await;
        }
        api.device("bus-17", 1).await;
        let store = Arc::clone(&api.app.store);
        let keep = async |store: &Store, status| {
            note::store(store, &[Note::Status(status)], now_ms()).await.unwrap();
        };
        keep(&store, status_of("fra-11", "", 0, true)).await;
        keep(&store, status_of("fra-12", "", 40_000, false)).await;
        let late = tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(150)).await;
            let made = loop {
                match revocation::list(&store, None, 0, 1).await.unwrap().pop() {
                    Some(made) => break made,
                    None => tokio::time::sleep(Duration::from_millis(20)).await,
                }
            };
            keep(&store, status_of("fra-11", &made.hash, 0, true)).await;
        });
        let begun = Instant::now();
        let revoked = api.post("/devices/bus-17/revoke", json!({ "reason": "stolen" }));
        let revoked = revoked.send().await;
        assert_eq!(revoked.status, 200, "{}", revoked.body);
        let took = begun.elapsed();
        assert!(took > Duration::from_millis(100) && took < Duration::from_secs(2), "{took:?}");
        late.await.unwrap();
        let summary = "1 of 3; fra-12 unreachable for 40 s; fra-13 has never connected";
        assert_eq!(revoked.body["summary"], summary);
        assert_eq!(revoked.body["revocation"]["serial"], 1);
        assert_eq!(revoked.body["revocation"]["reason"], "stolen");
        let entry = revoked.body["revocation"]["entry"].as_str().unwrap();
        assert!(entry.contains(&key(1)) && !entry.contains("stolen"), "{entry}");
        let device = api.get("/devices/bus-17").send().await.body;
        assert_eq!((&device["state"], &device["addresses"]), (&json!("revoked"), &json!([])));
        let again = api.post("/devices/bus-17/revoke", json!({ "reason": "stolen" })).send().await;
        assert_eq!(again.body["revocation"], revoked.body["revocation"]);
        let back = api.post("/devices", json!({ "id": "back", "public_key": key(1) }));
        assert_eq!(back.status().await, 409);
        let next = api.create("/devices", json!({ "id": "next", "public_key": key(2) })).await;
        assert_eq!(next["addresses"], json!(["10.7.0.2"]));
        assert_eq!(api.post("/devices/bus-17/approve", json!({})).status().await, 409);
        let seen = api.get("/revocations/1").send().await;
        assert_eq!(seen.body["summary"], summary);
        let foreign = api.ask("GET", "/tenants/ferry/revocations/1").key("ferry-owner");
        assert_eq!(foreign.status().await, 404);
        let status = api.get("/proxy-status").send().await.body;
        assert_eq!(status["items"][0]["load"], 100);
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_of_others_and_of_the_controller_cannot_be_revoked() {
    let api = Api::new().await;
    api.device("bus-17", 1).await;
    for (tenant, seed, status) in [
        ("ferry", 1, 403),
        ("ferry", 99, 403),
        ("home", 7, 403),
        ("home", 8, 403),
        ("home", 99, 200),
        ("tram", 1, 200),
    ] {
        let ask = api.ask("POST", &format!("/tenants/{tenant}/revocations"));
        let ask = ask.key(&format!("{tenant}-operator"));
        let ask = ask.json(json!({ "public_key": key(seed), "reason": "x" }));
        assert_eq!(ask.status().await, status, "{seed} by {tenant}");
    }
    let settings = json!({ "tenants": ["tram"] });
    let share = |tenant: &str| {
        let ask = api.ask("POST", &format!("/tenants/{tenant}/pools"));
        let ask = ask.key(&format!("{tenant}-operator"));
        ask.json(json!({ "id": "all", "settings": settings })).status()
    };
    assert_eq!((share("ferry").await, share("home").await), (403, 201));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn configurations_are_numbered_and_never_change() {
    let api = Api::new().await;
    let make = |scope: Value| {
        api.post("/configs", json!({ "scope": scope, "body": { "mtu": 1400 } })).send()
    };
    let names = [
        make(json!("tenant")).await.body["id"].clone(),
        make(json!("tenant")).await.body["id"].clone(),
        make(json!({ "tag": "night" })).await.body["id"].clone(),
    ];
    assert_eq!(names, ["tenant-1", "tenant-2", "tag-night-1"]);
    assert_eq!(make(json!({ "tag": "Night" })).await.status, 422);
    let put = api.put("/configs/tenant-1", "*", json!({})).status().await;
    assert_eq!(put, 405);
    let of = api.get("/configs?scope=tenant").send().await.body;
    assert_eq!(of["items"].as_array().unwrap().len(), 2);
    let roll = |id: &str, config: &str, waves: Value| {
        let settings = json!({ "config": config, "waves": waves });
        api.post("/rollouts", json!({ "id": id, "settings": settings })).status()
    };
    assert_eq!(roll("a", "tenant-2", json!([5, 25, 100])).await, 201);
    assert_eq!(roll("b", "tenant-9", json!([100])).await, 409);
    assert_eq!(roll("c", "tenant-2", json!([25, 5, 100])).await, 422);
    let abort = json!({ "config": "tenant-2", "waves": [100], "state": "aborted" });
    assert_eq!(api.put("/rollouts/a", "\"1\"", abort).status().await, 200);
    let again = json!({ "config": "tenant-2", "waves": [100], "state": "running" });
    assert_eq!(api.put("/rollouts/a", "\"2\"", again).status().await, 409);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_watches_hears_of_the_own_tenants_changes_and_goes_on_where_it_ended() {
    let api = Api::new().await;
    api.follow().await;
    let mut watch = Watch::new(&api).await;
    let ferry = api.post_in("ferry", "/pools", json!({ "id": "secret", "settings": {} }));
    assert_eq!(ferry.status().await, 201);
    api.pool("north").await;
    watch.pool("north").await;
    watch.cut();
    for id in ["south", "west"] {
        api.pool(id).await;
        watch.pool(id).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_cut_off_before_the_first_change_hears_of_it_all_the_same() {
    let api = Api::new().await;
    let mut watch = Watch::new(&api).await;
    let state = watch.any().await;
    assert!(state.contains("event: state"), "{state}");
    watch.cut();
    api.pool("north").await;
    watch.pool("north").await;
}

async fn any_event(body: &mut Body) -> String {
    let frame = tokio::time::timeout(Duration::from_secs(60), body.frame());
    let frame = frame.await.unwrap().unwrap().unwrap();
    String::from_utf8(frame.into_data().unwrap().to_vec()).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_watches_a_box_hears_of_it_alone() {
    let api = Api::new().await;
    tokio::spawn(Arc::clone(&api.app.outbox).follow(Arc::clone(&api.app.store)));
    api.device("bus-1", 31).await;
    api.device("bus-2", 32).await;
    let mut fleet = api.get("/live").response().await.into_body();
    let state = any_event(&mut fleet).await;
    assert!(state.contains("event: state") && state.contains("\"active\":2"), "{state}");
    assert_eq!(api.get("/state").send().await.body["active"], 2);
    assert_eq!(api.get("/devices/nobody/live").status().await, 404);
    let mut stream = api.get("/devices/bus-1/live").response().await.into_body();
    let sample = |device: &str, rtt: f64| {
        let figures = [("lte/rtt_seconds".to_owned(), rtt)].into();
        let sample = Sample { device: device.to_owned(), at_ms: 1, figures };
        crate::outbox::Live { tenant: "tram".to_owned(), sample }
    };
    api.app.outbox.send_figures(sample("bus-2", 0.5));
    api.app.outbox.send_figures(sample("bus-1", 0.25));
    let event = any_event(&mut stream).await;
    assert!(event.contains("event: sample") && event.contains("0.25"), "{event}");
    let notes = ["bus-2", "bus-1"].map(|device| report(device, "", true, 5));
    note::store(&api.app.store, &notes, now_ms()).await.unwrap();
    api.app.outbox.hint();
    let event = any_event(&mut stream).await;
    assert!(event.contains("event: report") && event.contains("bus-1"), "{event}");
}

#[test]
fn a_database_that_is_away_is_a_problem_and_no_wait_and_the_outbox_goes_on_after() {
    let Some(server) = Postgres::start() else { return };
    let server = Arc::new(server);
    runtime().block_on(async {
        let api = Api::on(postgres(Arc::clone(&server)).await).await;
        tokio::spawn(Arc::clone(&api.app.outbox).follow(Arc::clone(&api.app.store)));
        let mut health = api.app.outbox.health();
        let mut changes = api.app.outbox.listen();
        assert_eq!(api.get("/devices").status().await, 200);
        server.down();
        let begun = Instant::now();
        let away = api.get("/devices").send().await;
        assert_eq!(away.status, 503, "{}", away.body);
        assert!(!away.body.to_string().contains("postgres"), "{}", away.body);
        assert!(begun.elapsed() < Duration::from_secs(8));
        health.changed().await.unwrap();
        server.up();
        health.changed().await.unwrap();
        api.pool("north").await;
        let north = async { while changes.recv().await.unwrap().subject != "north" {} };
        tokio::time::timeout(Duration::from_secs(10), north).await.unwrap();
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn machines_ask_without_key_and_hear_nothing_of_tenants() {
    let api = Api::new().await;
    let at = |path: &str| {
        let mut ask = api.ask("GET", "");
        ask.path = path.to_owned();
        ask.send()
    };
    for path in ["/healthz", "/readyz", "/metrics"] {
        let answer = at(path).await;
        assert_eq!(answer.status, 200, "{path}");
        assert!(!answer.body.to_string().contains("tram"), "{path}");
    }
    api.world.store.close().await;
    assert_eq!(at("/readyz").await.status, 503);
    assert_eq!(at("/healthz").await.status, 200);
}
