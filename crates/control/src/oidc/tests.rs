//! Sign-in at an issuer on this machine, good or faulty.

mod issuer;

use issuer::{Issuer, IssuerMode};
use serde_json::{Value, json};

use super::*;
use crate::api::tests::{Api, PASSWORD, TestResponse};
use crate::model::{Person, Role};
use crate::store::tests::{on_both_with, sqlite};

fn settings(issuer: &Issuer) -> Settings {
    Settings {
        issuer: issuer.url(),
        client_id: "roadweave".to_owned(),
        client_secret: Some("open sesame".to_owned()),
        client_secret_file: None,
        url: Some("https://fleet.example.org".to_owned()),
        tenant: "tram".to_owned(),
        groups_claim: "groups".to_owned(),
        scopes: vec!["email".to_owned()],
        roles: [("ops", Role::Operator), ("all", Role::Viewer), ("boss", Role::Owner)]
            .map(|(group, role)| (group.to_owned(), role))
            .into(),
        domains: vec!["example.org".to_owned()],
        authorities: None,
    }
}

struct World {
    api: Api,
    issuer: Issuer,
}

struct Trip {
    url: String,
    cookie: String,
}

impl Trip {
    fn part(&self, name: &str) -> String {
        issuer::part(&self.url, name)
    }
}

impl World {
    async fn new() -> Self {
        Self::on(sqlite().await).await
    }

    async fn on(world: crate::store::tests::World) -> Self {
        let issuer = Issuer::start().await;
        let oidc = Oidc::new(settings(&issuer), Http::new(None).unwrap());
        Self { api: Api::with_issuer(world, oidc).await, issuer }
    }

    async fn begin(&self, body: Value) -> Trip {
        let ask = self.api.ask("POST", "/sessions/oidc").from(&self.issuer.peer());
        let answer = ask.json(body).send().await;
        assert_eq!(answer.status, 201, "{}", answer.body);
        let cookie = set_cookies(&answer).remove(0);
        for part in ["__Host-", "HttpOnly", "Secure", "SameSite=Lax"] {
            assert!(cookie.contains(part), "{cookie}");
        }
        let cookie = cookie.split(';').next().unwrap().to_owned();
        Trip { url: answer.body["url"].as_str().unwrap().to_owned(), cookie }
    }

    async fn come_back(&self, cookie: &str, code: &str, state: &str) -> TestResponse {
        let path = format!("/sessions/oidc/callback?code={code}&state={state}&next=//evil.test");
        let ask = self.api.ask("GET", &path).header("cookie", cookie).from(&self.issuer.peer());
        ask.send().await
    }

    async fn sign_in(&self, change: impl FnOnce(&mut Value) + Send + 'static) -> TestResponse {
        let trip = self.begin(json!({})).await;
        let code = self.issuer.code(&trip.url, change);
        self.come_back(&trip.cookie, &code, &trip.part("state")).await
    }

    async fn session(&self, cookie: &str) -> TestResponse {
        self.api.ask("GET", "/sessions/current").header("cookie", cookie).send().await
    }

    async fn people(&self) -> Vec<Person> {
        let all = crate::store::Filter { limit: 100, ..Default::default() };
        let found = self.api.app.store.list::<Person>("tram", &all).await.unwrap().items;
        found.into_iter().map(|it| it.record).collect()
    }
}

fn set_cookies(answer: &TestResponse) -> Vec<String> {
    let all = answer.headers.get_all("set-cookie").iter();
    all.map(|it| it.to_str().unwrap().to_owned()).collect()
}

fn login(answer: &TestResponse) -> String {
    let all = set_cookies(answer);
    let one = all.iter().find(|it| it.starts_with("__Host-roadweave=")).expect("a login");
    assert!(one.contains("SameSite=Strict"), "{one}");
    one.split(';').next().unwrap().to_owned()
}

#[test]
fn a_person_signs_in_with_the_highest_role_of_their_groups_and_it_is_in_the_log() {
    on_both_with(World::on, |world| async move {
        let answer = world.sign_in(|_| {}).await;
        assert_eq!(answer.status, 303, "{}", answer.body);
        assert_eq!(answer.headers["location"], "/", "wherever it was asked to lead");
        let cookie = login(&answer);
        let who = world.session(&cookie).await;
        assert_eq!((&who.body["role"], &who.body["tenant"]), (&json!("operator"), &json!("tram")));
        let people = world.people().await;
        assert_eq!((people.len(), &*people[0].settings.title), (1, "anna@example.org"));
        let log = world.api.get("/audit").send().await.body;
        let line = &log["items"][0];
        assert_eq!((&line["action"], &line["kind"]), (&json!("create"), &json!("session")));
        assert!(line["actor"].as_str().unwrap().starts_with("tram/person:oidc-"), "{line}");
        let answer = world.sign_in(|claims| claims["groups"] = json!("boss")).await;
        assert_eq!(answer.status, 303);
        assert_eq!(world.session(&cookie).await.body["role"], "owner");
        assert_eq!(world.people().await.len(), 1);
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_has_no_role_does_not_get_in_and_is_out_where_they_were() {
    let world = World::new().await;
    let cookie = login(&world.sign_in(|_| {}).await);
    let nothing: [fn(&mut Value); 5] = [
        |claims| claims["groups"] = json!(["strangers"]),
        |claims| claims["groups"] = json!([]),
        |claims| claims["groups"] = json!({ "ops": true }),
        |claims| claims["email"] = json!("anna@example.org.evil.test"),
        |claims| claims["email_verified"] = json!(false),
    ];
    for change in nothing {
        let answer = world.sign_in(change).await;
        assert_eq!(answer.status, 401, "{}", answer.body);
        assert!(set_cookies(&answer).is_empty());
        assert!(world.people().await.is_empty());
    }
    assert_eq!(world.session(&cookie).await.status, 401);
    let log = world.api.get("/audit?limit=1").send().await.body;
    let line = &log["items"][0];
    assert_eq!((&line["action"], &line["kind"]), (&json!("refuse"), &json!("sign-in")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_issuer_did_not_say_of_this_sign_in_counts_for_nothing() {
    let world = World::new().await;
    let wrong: [fn(&mut Value); 12] = [
        |claims| claims["nonce"] = json!("another"),
        |claims| drop(claims.as_object_mut().unwrap().remove("nonce")),
        |claims| claims["aud"] = json!("another"),
        |claims| claims["aud"] = json!(["roadweave", "another"]),
        |claims| claims["aud"] = json!([]),
        |claims| claims["iss"] = json!("https://evil.test"),
        |claims| claims["iss"] = json!(format!("{}/", claims["iss"].as_str().unwrap())),
        |claims| claims["exp"] = json!(now_ms() / 1000 - 90),
        |claims| claims["iat"] = json!(now_ms() / 1000 + 90),
        |claims| claims["iat"] = json!(now_ms() / 1000 - 900),
        |claims| claims["alg"] = json!("none"),
        |claims| claims["alg"] = json!("HS256"),
    ];
    for (at, change) in wrong.into_iter().enumerate() {
        let answer = world.sign_in(change).await;
        assert_eq!(answer.status, 401, "{at}: {}", answer.body);
        assert!(world.people().await.is_empty(), "{at}");
    }
    for kid in [9, world.issuer.shown()] {
        let change = move |claims: &mut Value| {
            (claims["key"], claims["kid"]) = (json!(9), json!(kid));
        };
        let answer = world.sign_in(change).await;
        assert_eq!(answer.status, 401, "{kid}: {}", answer.body);
        assert!(world.people().await.is_empty(), "{kid}");
    }
    let late = world.sign_in(|claims| claims["exp"] = json!(now_ms() / 1000 - 30)).await;
    assert_eq!(late.status, 303, "{}", late.body);
}

#[test]
fn a_sign_in_counts_once_and_for_the_browser_that_began_it() {
    on_both_with(World::on, |world| async move {
        let (mine, other) = (world.begin(json!({})).await, world.begin(json!({})).await);
        let (code, state) = (world.issuer.code(&mine.url, |_| {}), mine.part("state"));
        let altered = format!("{}A", mine.cookie);
        let plain = "__Host-roadweave-sign-in={}".to_owned();
        for cookie in ["", &*other.cookie, &*altered, &*plain] {
            let answer = world.come_back(cookie, &code, &state).await;
            assert_eq!(answer.status, 401, "{cookie}: {}", answer.body);
        }
        assert_eq!(world.come_back(&mine.cookie, &code, &other.part("state")).await.status, 401);
        assert!(world.people().await.is_empty());
        assert_eq!(world.come_back(&mine.cookie, &code, &state).await.status, 303);
        let stolen = world.issuer.code(&world.begin(json!({})).await.url, |_| {});
        let answer = world.come_back(&other.cookie, &stolen, &other.part("state")).await;
        assert_eq!(answer.status, 401, "{}", answer.body);
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sign_in_takes_at_most_10_minutes() {
    let world = World::new().await;
    for (passed_ms, status) in [(570_000, 303), (600_000, 401), (86_400_000, 401)] {
        let trip = world.begin(json!({})).await;
        let (name, sealed) = trip.cookie.split_once('=').unwrap();
        let store = &world.api.app.store;
        let text = store.keys.decrypt("sign in", sealed).unwrap();
        let mut pending: Pending = serde_json::from_str(&text).unwrap();
        pending.until_ms -= passed_ms;
        let sealed = store.keys.encrypt("sign in", &serde_json::to_string(&pending).unwrap());
        let code = world.issuer.code(&trip.url, |_| {});
        let cookie = format!("{name}={sealed}");
        let answer = world.come_back(&cookie, &code, &trip.part("state")).await;
        assert_eq!(answer.status, status, "{passed_ms}: {}", answer.body);
        if status == 401 {
            assert!(answer.body["detail"].as_str().unwrap().contains("10 minutes ago"));
        }
    }
}

#[test]
fn any_replica_ends_what_another_began_and_a_sign_in_counts_once_among_them() {
    on_both_with(World::on, |first| async move {
        let oidc = Oidc::new(settings(&first.issuer), Http::new(None).unwrap());
        let second = first.api.replica(Some(oidc)).await;
        let second = World { api: second, issuer: first.issuer.clone() };
        let trip = first.begin(json!({})).await;
        let (code, state) = (first.issuer.code(&trip.url, |_| {}), trip.part("state"));
        let answer = second.come_back(&trip.cookie, &code, &state).await;
        assert_eq!(answer.status, 303, "{}", answer.body);
        let who = first.session(&login(&answer)).await;
        assert_eq!((who.status, &who.body["role"]), (200, &json!("operator")));
        let code = first.issuer.code(&trip.url, |_| {});
        for world in [&first, &second] {
            let again = world.come_back(&trip.cookie, &code, &state).await;
            let why = again.body["detail"].as_str().unwrap();
            assert!(again.status == 401 && why.contains("used before"), "{}", again.body);
        }
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn logins_of_an_issuer_that_is_not_set_any_more_count_no_more() {
    let world = World::new().await;
    world.api.person("tram", "ben", Role::Owner).await;
    let ben = world.api.log_in("tram", "ben").await;
    let anna = login(&world.sign_in(|_| {}).await);
    let is = settings(&world.issuer);
    let roles = [("boss".to_owned(), Role::Owner)].into();
    let shorter = is.issuer[..is.issuer.len() - 1].to_owned();
    let longer = format!("{}0", is.issuer);
    for (oidc, status) in [
        (Some(is.clone()), 200),
        (Some(Settings { client_id: "another".to_owned(), roles, ..is.clone() }), 200),
        (Some(Settings { tenant: "ferry".to_owned(), ..is.clone() }), 401),
        (Some(Settings { issuer: shorter, ..is.clone() }), 401),
        (Some(Settings { issuer: longer, ..is }), 401),
        (None, 401),
    ] {
        let settings_text = format!("{oidc:?}");
        let oidc = oidc.map(|it| Oidc::new(it, Http::new(None).unwrap()));
        let api = world.api.replica(oidc).await;
        let who = |cookie: &str| api.ask("GET", "/sessions/current").header("cookie", cookie);
        assert_eq!(who(&anna).status().await, status, "{settings_text}");
        assert_eq!(who(&ben).status().await, 200, "{settings_text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_waits_on_its_own_machine_and_nowhere_else() {
    let world = World::new().await;
    let trip = world.begin(json!({ "loopback_port": 40_123 })).await;
    assert!(trip.url.contains("prompt=login"), "{}", trip.url);
    assert!(!world.begin(json!({})).await.url.contains("prompt="));
    assert_eq!(trip.part("redirect_uri"), "http://127.0.0.1:40123/callback");
    for bad in [json!({ "loopback_port": 80 }), json!({ "redirect": "https://evil.test" })] {
        assert_eq!(world.api.ask("POST", "/sessions/oidc").json(bad).status().await, 422);
    }
    let (code, state) = (world.issuer.code(&trip.url, |_| {}), trip.part("state"));
    assert_eq!(world.come_back(&trip.cookie, &code, &state).await.status, 401);
    let body = json!({ "code": code, "state": state });
    let redeem = |cookie: &str| {
        let ask = world.api.ask("POST", "/sessions/oidc/code").json(body.clone());
        ask.header("cookie", cookie).send()
    };
    assert_eq!(redeem("").await.status, 401);
    let answer = redeem(&trip.cookie).await;
    assert_eq!((answer.status, &answer.body["role"]), (201, &json!("operator")));
    login(&answer);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bad_or_absent_issuer_does_not_block_passwords() {
    for mode in [
        IssuerMode::Gone,
        IssuerMode::Silent,
        IssuerMode::Endless,
        IssuerMode::OtherName,
        IssuerMode::Elsewhere,
    ] {
        let world = World::new().await;
        world.api.person("tram", "ben", Role::Owner).await;
        world.issuer.set(mode);
        let begin = world.api.ask("POST", "/sessions/oidc").json(json!({}));
        let (begun, _) = tokio::join!(begin.send(), world.api.log_in("tram", "ben"));
        assert_eq!(begun.status, 502, "{mode:?}: {}", begun.body);
        world.issuer.set(IssuerMode::Good);
        tokio::time::sleep(std::time::Duration::from_millis(3_100)).await;
        assert_eq!(world.sign_in(|_| {}).await.status, 303, "{mode:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_issuer_may_change_its_keys() {
    let world = World::new().await;
    assert_eq!(world.sign_in(|_| {}).await.status, 303);
    world.issuer.rotate();
    let end = tokio::time::Instant::now() + std::time::Duration::from_secs(30);
    while world.sign_in(|_| {}).await.status != 303 {
        assert!(tokio::time::Instant::now() < end, "its new keys are not asked for");
        tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_issuer_says_of_a_person_is_not_changed_here() {
    let world = World::new().await;
    world.api.person("tram", "ben", Role::Owner).await;
    assert_eq!(world.sign_in(|claims| claims["groups"] = json!(["boss"])).await.status, 303);
    let id = world.people().await.iter().find(|it| it.subject.is_some()).unwrap().id.clone();
    let path = format!("/users/{id}");
    let seen = world.api.get(&path).send().await;
    assert!(seen.body["subject"].as_str().unwrap().ends_with(" anna"), "{}", seen.body);
    let changed = world.api.put(&path, &seen.etag(), json!({ "role": "viewer" })).status().await;
    assert_eq!(changed, 409);
    let password = world.api.ask("PUT", &format!("/tenants/tram{path}/password"));
    let password = password.key("tram-owner").json(json!({ "password": PASSWORD }));
    assert_eq!(password.status().await, 409);
    for password in ["", PASSWORD] {
        let body = json!({ "tenant": "tram", "user": id, "password": password });
        assert_eq!(world.api.ask("POST", "/sessions").json(body).status().await, 401);
    }
    assert_eq!(world.api.delete("/users/ben", "*").status().await, 409);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_an_issuer_there_is_nothing_to_begin() {
    let api = Api::new().await;
    assert_eq!(api.ask("POST", "/sessions/oidc").json(json!({})).status().await, 404);
    assert_eq!(api.ask("GET", "/sessions/oidc/callback?code=1&state=2").status().await, 404);
}
