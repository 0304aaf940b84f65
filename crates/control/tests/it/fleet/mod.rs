//! The command line against a running controller.

mod people;
mod root_elsewhere;
mod world;

use crate::fleet::world::World;
use crate::run::CommandRunner as _;

#[test]
fn an_owner_logs_in_makes_tokens_and_links_and_logs_out() {
    let Some(world) = World::new() else { return };
    assert!(world.refused(&["device", "list"]).contains("not logged in"));
    let wrong = world.log_in("wrong password", &world.fingerprint);
    assert_eq!(wrong.status.code(), Some(2));
    let other = world.log_in(&world.password, &["00"; 32].join(":"));
    assert!(String::from_utf8_lossy(&other.stderr).contains("has another fingerprint"));
    let right = world.log_in(&world.password, &world.fingerprint);
    assert!(right.status.success(), "{}", String::from_utf8_lossy(&right.stderr));

    let shown = world.prints(&["token", "create", "--uses", "3", "--tag", "tram"]);
    assert!(shown.contains("roadweave join rw1_") && shown.contains('█'), "{shown}");
    let made = world.json(&["token", "create"]);
    assert!(made["join"].as_str().unwrap().starts_with("rw1_"));
    assert_eq!(world.json(&["token", "list"]).as_array().unwrap().len(), 2);
    let name = made["token"]["id"].as_str().unwrap();
    world.prints(&["token", "remove", name]);

    let key = "MCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqow";
    let bad = ["proxy", "add", "fra-1", "--public-key", key, "--address", "192.0.2.1:4433"];
    assert!(world.refused(&bad).contains("public_key"));
    let config = world.home.path().join("tram.toml");
    std::fs::write(&config, "[routes]\ninto_tunnel = [\"0.0.0.0/0\"]\n").unwrap();
    let file = config.to_str().unwrap();
    let pushed = world.json(&["config", "push", file, "--tag", "tram", "--wave", "5%"]);
    assert_eq!(pushed["rollout"]["settings"]["waves"], serde_json::json!([5, 100]));
    assert_eq!(pushed["config"]["id"], "tag-tram-1");
    assert!(world.prints(&["rollout", "pause", "tag-tram-1"]).contains("is paused"));
    assert!(world.prints(&["rollout", "list"]).contains("tag-tram-1"));
    std::fs::write(&config, "[routes\n").unwrap();
    assert!(world.refused(&["config", "push", file]).contains("tram.toml"));

    let secret = world.prints(&["key", "create", "ci", "--role", "viewer"]).trim().to_owned();
    let as_key = ["--url", &world.url, "--key", &secret, "--fingerprint", &world.fingerprint];
    world.prints(&[&["device", "list"], &as_key[..]].concat());
    assert!(world.refused(&[&["token", "create"], &as_key[..]].concat()).contains("operator"));
    assert!(world.prints(&["audit", "--check"]).starts_with("valid: "));
    assert!(world.prints(&["audit"]).contains("person:admin"));
    assert!(world.prints(&["status"]).contains("person:admin of home, owner"));
    world.prints(&["logout"]);
    assert!(world.refused(&["device", "list"]).contains("not logged in"));
}

#[test]
fn a_login_is_not_asked_in_place_of_the_controller_that_is_named() {
    let Some(world) = World::new() else { return };
    assert!(world.log_in(&world.password, &world.fingerprint).status.success());
    let elsewhere = "https://production.example:4400";
    for words in [
        &["--url", elsewhere, "device", "list"][..],
        &["--url", elsewhere, "--fingerprint", &world.fingerprint, "device", "list"],
        &["--url", &format!("https://127.0.0.1:{}", world.listens_at.port()), "logout"],
        &["device", "revoke", "bus-17", "--reason", "stolen", "--url", elsewhere],
        &["--fingerprint", &["00"; 32].join(":"), "device", "list"],
        &["--fingerprint", "00:11", "device", "list"],
        &["--url", "", "device", "list"],
    ] {
        let said = world.refused(words);
        let named = ["you are logged in at", "the fingerprint is 32 bytes", "\"\": write https"];
        assert!(named.iter().any(|part| said.contains(part)), "{words:?}: {said}");
    }
    let mut by_environment = world.command(&["device", "list"]);
    let refused = by_environment.env("ROADWEAVE_FLEET_URL", elsewhere).output().unwrap();
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains(elsewhere));
    let bare = world.fingerprint.replace(':', "").to_lowercase();
    world.prints(&["--url", &format!("{}/", world.url), "--fingerprint", &bare, "device", "list"]);
}
