//! Licences, sources and bans of deny.toml, without cargo-deny. `make deny` checks advisories.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;

const DENY: &str = include_str!("../../../../deny.toml");

fn texts(list: &toml::Value) -> Vec<&str> {
    list.as_array().unwrap().iter().map(|it| it.as_str().unwrap()).collect()
}

/// SPDX annex D; `/` is OR. Ignores parentheses, and OR binds tighter: no laxer than the standard.
fn is_allowed(expression: &str, licences: &[&str]) -> bool {
    let plain = expression.replace('/', " OR ").replace(['(', ')'], "");
    plain.split(" AND ").all(|any| any.split(" OR ").any(|it| licences.contains(&it.trim())))
}

fn names(metadata: &Value) -> BTreeMap<&str, &str> {
    let packages = metadata["packages"].as_array().unwrap();
    packages.iter().map(|it| (it["id"].as_str().unwrap(), it["name"].as_str().unwrap())).collect()
}

fn metadata() -> Value {
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.toml");
    let words = ["metadata", "--format-version", "1", "--locked", "--manifest-path", manifest];
    let platform = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let output = Command::new(env!("CARGO"))
        .args(words)
        .args(["--filter-platform", &platform])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn every_dependency_has_an_allowed_licence_and_source() {
    let rules: toml::Value = toml::from_str(DENY).unwrap();
    let licences = texts(&rules["licenses"]["allow"]);
    let registries = texts(&rules["sources"]["allow-registry"]);
    // Banned packages, with the crates that may depend on them all the same.
    let banned: BTreeMap<&str, Vec<&str>> = rules["bans"]["deny"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| (it["crate"].as_str().unwrap(), it.get("wrappers").map_or(vec![], texts)))
        .collect();
    let metadata = metadata();
    let packages = metadata["packages"].as_array().unwrap();
    assert!(packages.len() > 50, "{}", packages.len());
    let mut faults = Vec::new();
    for package in packages {
        let name = package["name"].as_str().unwrap();
        let license = package["license"].as_str();
        if !license.is_some_and(|it| is_allowed(it, &licences)) {
            faults.push(format!("{name}: the licence {license:?} is not allowed"));
        }
        if banned.get(name).is_some_and(Vec::is_empty) {
            faults.push(format!("{name} is banned"));
        }
        let source = package["source"].as_str();
        let is_known =
            |it: &str| it.strip_prefix("registry+").is_some_and(|it| registries.contains(&it));
        if !source.is_none_or(is_known) {
            faults.push(format!("{name} comes from {source:?}"));
        }
    }
    let names = names(&metadata);
    for node in metadata["resolve"]["nodes"].as_array().unwrap() {
        let user = names[node["id"].as_str().unwrap()];
        for used in node["deps"].as_array().unwrap() {
            let used = names[used["pkg"].as_str().unwrap()];
            if banned.get(used).is_some_and(|wrappers| !wrappers.contains(&user)) {
                faults.push(format!("{user} depends on {used}"));
            }
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
    check_what_a_vehicle_carries(&metadata);
    check_that_no_crate_of_the_product_uses_a_tool(&metadata);
    check_that_linux_knows_no_tunnel(&metadata);
}

fn check_what_a_vehicle_carries(metadata: &Value) {
    let names = names(metadata);
    let nodes = metadata["resolve"]["nodes"].as_array().unwrap();
    let of = |id: &str| nodes.iter().find(|node| node["id"] == id).unwrap();
    let is_root = |id: &&str| ["roadweave", "roadweave-bench"].contains(&names[*id]);
    let mut open: Vec<&str> = names.keys().copied().filter(is_root).collect();
    assert_eq!(open.len(), 2);
    let mut seen = BTreeSet::new();
    while let Some(id) = open.pop() {
        if seen.insert(names[id]) {
            for used in of(id)["deps"].as_array().unwrap() {
                let kinds = used["dep_kinds"].as_array().unwrap();
                if kinds.iter().any(|kind| kind["kind"] != "dev") {
                    open.push(used["pkg"].as_str().unwrap());
                }
            }
        }
    }
    assert!(seen.contains("roadweave-tunnel") && seen.len() > 50, "{seen:?}");
    for heavy in ["tokio", "sqlx", "axum", "hyper", "roadweave-control"] {
        assert!(!seen.contains(heavy), "{heavy}");
    }
}

fn check_that_no_crate_of_the_product_uses_a_tool(metadata: &Value) {
    let tools = format!("{}/tools/", metadata["workspace_root"].as_str().unwrap());
    let is_tool = |path: &Value| path.as_str().is_some_and(|path| path.starts_with(&tools));
    let mut uses = BTreeSet::new();
    for package in metadata["packages"].as_array().unwrap() {
        for used in package["dependencies"].as_array().unwrap() {
            if is_tool(&used["path"]) && !is_tool(&package["manifest_path"]) {
                uses.insert([&package["name"], &used["name"], &used["kind"]].map(Value::as_str));
            }
        }
    }
    // Tests of BBR, which look into it, have flows share a link.
    let expected = ["roadweave-quic", "roadweave-emulate", "dev"].map(Some);
    assert_eq!(uses, BTreeSet::from([expected]));
}

fn check_that_linux_knows_no_tunnel(metadata: &Value) {
    let mut packages = metadata["packages"].as_array().unwrap().iter();
    let linux = packages.find(|it| it["name"] == "roadweave-linux").unwrap();
    let used = linux["dependencies"].as_array().unwrap().iter();
    let ours: Vec<&Value> =
        used.filter(|it| it["path"].is_string()).map(|it| &it["name"]).collect();
    assert_eq!(ours, ["roadweave-proto"]);
}
