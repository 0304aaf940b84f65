//! Walks over all routes, which include future ones.

use super::*;
use crate::api::route::{Needs, Route};
use crate::api::routes::routes;

fn filled(route: &Route, tenant: &str) -> String {
    let path = route.path.replace("{tenant}", tenant).replace("{serial}", "1");
    path.replace("{device}", "bus-17").replace("{id}", "something")
}

fn ask<'a>(api: &'a Api, route: &Route, tenant: &str) -> Ask<'a> {
    let ask = api.ask(route.method.as_str(), &filled(route, tenant));
    if route.input.is_some() { ask.json(json!([])) } else { ask }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_role_may_do_what_the_table_says_and_nothing_else() {
    let api = Api::new().await;
    for (at, route) in routes().into_iter().enumerate() {
        let what = format!("{} {}", route.method, route.path);
        // A network for each, to stay below the limits.
        let stranger = ask(&api, &route, "tram").from(&format!("192.0.{at}.1"));
        let stranger = stranger.status().await;
        let open = matches!(route.needs, Needs::Nothing | Needs::Password);
        assert_eq!(stranger == 401, !open, "{what} by a stranger: {stranger}");
        for tenant in ["home", "tram"] {
            for role in ROLES {
                let key = format!("{tenant}-{}", role_name(role));
                let status = ask(&api, &route, tenant).key(&key).status().await;
                let may = match route.needs {
                    Needs::Nothing | Needs::Password | Needs::Authenticated => true,
                    Needs::Role(needed) => role >= needed,
                    Needs::Host(needed) => tenant == "home" && role >= needed,
                };
                assert_eq!(status != 403, may, "{what} by {key}: {status}");
                assert_ne!(status, 401, "{what} by {key}");
                assert_ne!(status, 500, "{what} by {key}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_keys_of_one_tenant_open_nothing_of_another() {
    let api = Api::new().await;
    api.device("bus-17", 1).await;
    let before = api.app.store.latest_change().await.unwrap();
    let mut walked = 0;
    for route in routes().iter().filter(|route| route.path.contains("{tenant}")) {
        let what = format!("{} {}", route.method, route.path);
        for foreign in ["ferry-owner", "home-operator"] {
            let answer = ask(&api, route, "tram").key(foreign).send().await;
            let denied = [403, 404].contains(&answer.status);
            assert!(denied, "{what} by {foreign}: {}", answer.status);
            if matches!(route.needs, Needs::Role(_)) {
                let nobody = ask(&api, route, "nobody").key(foreign).send().await;
                let as_nobody = answer.body.to_string().replace("tram", "nobody");
                assert_eq!(nobody.body.to_string(), as_nobody, "{what}");
            }
            walked += 1;
        }
    }
    assert!(walked > 60, "{walked}");
    assert_eq!(api.app.store.latest_change().await.unwrap(), before);
    let host = api.ask("GET", "/tenants/tram/devices/bus-17").key("home-owner");
    assert_eq!(host.status().await, 200);
    let all = api.ask("GET", "/tenants").key("home-owner").send().await;
    assert_eq!(all.body["items"].as_array().unwrap().len(), 3);
    let own = api.ask("GET", "/tenants").key("tram-owner").send().await;
    assert_eq!(own.body["items"].as_array().unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_for_one_box_opens_that_box_alone() {
    let api = Api::new().await;
    api.device("bus-17", 1).await;
    api.device("bus-18", 2).await;
    let settings = json!({ "role": "crew", "device": "bus-17" });
    let made = api.create("/api-keys", json!({ "id": "link", "settings": settings })).await;
    let secret = made["secret"].as_str().unwrap();
    let session = api.ask("GET", "/sessions/current").key(secret).send().await;
    assert_eq!(session.body["device"], "bus-17");
    for route in routes().iter().filter(|route| matches!(route.needs, Needs::Role(_))) {
        let what = format!("{} {}", route.method, route.path);
        let needs_more = matches!(route.needs, Needs::Role(role) if role > Role::Crew);
        let of_device = route.path.contains("{device}");
        let status = ask(&api, route, "tram").key(secret).status().await;
        assert_eq!(status == 403, needs_more || !of_device, "{what}: {status}");
    }
    for path in ["/tenants", "/tenants/tram/devices/bus-18"] {
        assert_eq!(api.ask("GET", path).key(secret).status().await, 403, "{path}");
    }
    let greedy = json!({ "role": "operator", "device": "bus-17" });
    let refused = api.post("/api-keys", json!({ "id": "more", "settings": greedy }));
    assert_eq!(refused.status().await, 422);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_changes_a_record_asks_which_version_was_seen() {
    let api = Api::new().await;
    for route in routes().iter().filter(|route| route.if_match) {
        let tenant = if matches!(route.needs, Needs::Host(_)) { "home" } else { "tram" };
        let ask = api.ask(route.method.as_str(), &filled(route, tenant));
        let ask = ask.key(&format!("{tenant}-owner"));
        let body = match route.name {
            "replaceUser" => json!({ "role": "viewer" }),
            "replaceRollout" => json!({ "config": "tenant-1" }),
            "replaceProxy" => proxy(9)["settings"].clone(),
            _ => json!({}),
        };
        let ask = if route.input.is_some() { ask.json(body) } else { ask };
        let answer = ask.send().await;
        assert_eq!(answer.status, 428, "{}: {}", route.path, answer.body);
    }
}

pub(super) fn proxy(seed: u8) -> Value {
    let addresses = ["192.0.2.7:4433"];
    let settings = json!({ "role": "proxy", "public_key": key(seed), "addresses": addresses });
    json!({ "id": format!("fra-{seed}"), "settings": settings })
}

#[test]
fn the_committed_description_is_that_of_the_code() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/openapi.json");
    let text = openapi::text(&routes());
    if std::env::var_os("ROADWEAVE_WRITE").is_some() {
        std::fs::write(path, &text).unwrap();
    }
    let committed = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        committed == text,
        "docs/openapi.json is not that of the code; ROADWEAVE_WRITE=1 cargo test --package \
         roadweave-control committed_description writes it"
    );
}

#[test]
fn the_description_names_everything_it_uses() {
    let document: Value = serde_json::from_str(&openapi::text(&routes())).unwrap();
    let schemas = document["components"]["schemas"].as_object().unwrap();
    let text = document.to_string();
    let used = text.split("\"#/components/schemas/").skip(1);
    let used: Vec<&str> = used.map(|rest| rest.split('"').next().unwrap()).collect();
    assert!(used.len() > 80, "{}", used.len());
    for name in used {
        assert!(schemas.contains_key(name), "{name}");
    }
    assert!(!text.contains("argon2"));
    let person = &schemas["Person"]["properties"];
    assert!(person.get("id").is_some() && person.get("password").is_none());
}
