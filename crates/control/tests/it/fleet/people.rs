//! People, pools, proxies and tags from the command line.

use serde_json::Value;

use crate::fleet::world::World;
use crate::run::CommandRunner as _;

const KEY: &str = "Gb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=";

#[test]
fn an_owner_keeps_people_and_changes_the_first_password() {
    let Some(world) = World::new() else { return };
    assert!(world.log_in(&world.password, &world.fingerprint).status.success());
    let add = ["user", "add", "anna", "--role", "operator", "--title", "Anna"];
    let short = world.with_password(&add, "too short");
    assert_eq!(short.status.code(), Some(2));
    let said =
        String::from_utf8(world.with_password(&add, "correct horse battery").stdout).unwrap();
    assert!(said.contains("anna may log in, as operator"), "{said}");
    assert_eq!(
        world.with_password(&add, "correct horse battery").status.code(),
        Some(1),
        "it is taken"
    );
    let all = world.prints(&["user", "list"]);
    assert!(all.contains("anna") && all.contains("operator") && all.contains("admin"), "{all}");
    assert!(world.prints(&["user", "role", "anna", "owner"]).contains("anna is owner"));
    assert!(world.refused(&["user", "role", "anna", "king"]).contains("operator"));
    assert!(world.prints(&["user", "role", "anna", "viewer"]).contains("viewer"));
    assert!(world.failed(&["user", "remove", "admin"]).contains("last owner"));
    world.prints(&["user", "remove", "anna"]);
    assert!(world.refused(&["user", "remove", "anna"]).contains("anna"));

    let new = "another one that is long";
    assert_eq!(world.with_password(&["user", "password"], "too short").status.code(), Some(2));
    let set = world.with_password(&["user", "password"], new);
    assert!(String::from_utf8(set.stdout).unwrap().contains("the password of admin is set"));
    assert!(world.refused(&["user", "list"]).contains("the login has expired"));
    assert_eq!(world.log_in(&world.password, &world.fingerprint).status.code(), Some(2));
    assert!(world.log_in(new, &world.fingerprint).status.success());
    let secret = world.prints(&["key", "create", "ci", "--role", "owner"]).trim().to_owned();
    let by_key = ["user", "password", "--url", &world.url, "--key", &secret];
    let by_key = [&by_key[..], &["--fingerprint", &world.fingerprint]].concat();
    assert!(world.refused(&by_key).contains("an API key has no password"));
    assert_eq!(world.json(&["logout"]), Value::Null);
}

#[test]
fn pools_proxies_and_tags_are_made_and_changed_where_the_rest_stays() {
    let Some(world) = World::new() else { return };
    assert!(world.log_in(&world.password, &world.fingerprint).status.success());
    let made = ["pool", "set", "fra", "--site", "fra-a", "--region", "eu", "--serves", "ferry"];
    assert!(world.prints(&made).contains("pool fra is made"));
    assert!(world.prints(&["pool", "set", "fra", "--title", "Frankfurt"]).contains("changed"));
    let pool = world.json(&["pool", "list"])[0]["settings"].clone();
    let expected = serde_json::json!({
        "title": "Frankfurt", "region": "eu", "site": "fra-a", "tenants": ["ferry"],
    });
    assert_eq!(pool, expected);
    assert!(
        world
            .failed(&["pool", "set", "fra", "--serves", "x"])
            .contains("only when the pool is created")
    );

    let add = ["proxy", "add", "fra-1", "--public-key", KEY, "--address", "192.0.2.1:4433"];
    world.prints(&[&add[..], &["--pool", "fra"]].concat());
    assert!(world.failed(&["pool", "remove", "fra"]).contains("fra"));
    let moved = world.prints(&["proxy", "set", "fra-1", "--address", "192.0.2.9:4433"]);
    assert!(moved.contains("192.0.2.9:4433") && moved.contains("pool fra"), "{moved}");
    let out = world.json(&["proxy", "set", "fra-1", "--no-pool"]);
    assert_eq!(out["settings"]["addresses"][0], "192.0.2.9:4433");
    assert_eq!(out["settings"]["pool"], Value::Null);
    world.prints(&["pool", "remove", "fra"]);
    assert!(world.refused(&["proxy", "set", "fra-1"]).contains("--address"));

    assert!(world.refused(&["device", "tag", "bus-17"]).contains("--add"));
    assert!(world.refused(&["device", "tag", "bus-17", "--add", "tram"]).contains("bus-17"));
}

#[test]
fn an_error_is_a_problem_where_json_is_asked_for_and_its_kind_is_the_exit_code() {
    let Some(world) = World::new() else { return };
    let of = |said: String| serde_json::from_str::<Value>(&said).unwrap();
    let stranger = of(world.refused(&["device", "list", "--json"]));
    assert_eq!(stranger["type"], "urn:roadweave:problem:usage");
    assert!(stranger["detail"].as_str().unwrap().contains("not logged in"));
    assert!(world.log_in(&world.password, &world.fingerprint).status.success());
    let nobody = of(world.refused(&["device", "approve", "bus-17", "--json"]));
    assert_eq!((&nobody["status"], &nobody["type"]), (&404.into(), &problem("not-found")));
    let again = ["key", "create", "ci", "--json"];
    world.prints(&again);
    let taken = of(world.failed(&again));
    assert_eq!((&taken["status"], &taken["type"]), (&409.into(), &problem("taken")));
    let away = ["device", "list", "--json", "--url", "https://127.0.0.1:1", "--key", "rwk_x"];
    let away = of(world.failed(&[&away[..], &["--tenant", "home"]].concat()));
    assert_eq!(away["type"], problem("failed"));
    assert!(away["detail"].as_str().unwrap().contains("cannot reach 127.0.0.1:1"));
}

fn problem(kind: &str) -> Value {
    format!("urn:roadweave:problem:{kind}").into()
}
