//! Dependencies against deny.toml where there is no cargo-deny: licences, sources and bans. `make
//! deny` checks advisories, which need a database.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
struct Rules {
    licenses: Licenses,
    bans: Bans,
    sources: Sources,
}

#[derive(Deserialize)]
struct Licenses {
    allow: Vec<String>,
}

#[derive(Deserialize)]
struct Bans {
    deny: Vec<Banned>,
}

#[derive(Deserialize)]
struct Banned {
    #[serde(rename = "crate")]
    name: String,
    /// The crates that may depend on it all the same.
    #[serde(default)]
    wrappers: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Sources {
    allow_registry: Vec<String>,
}

fn rules() -> Rules {
    toml::from_str(include_str!("../../../../deny.toml")).unwrap()
}

impl Rules {
    /// Faults of a package of `cargo metadata`.
    fn faults(&self, package: &Value) -> Vec<String> {
        let name = package["name"].as_str().unwrap();
        let mut faults = Vec::new();
        match package["license"].as_str() {
            Some(license) if self.allows(license) => {}
            license => faults.push(format!("{name}: the licence {license:?} is not allowed")),
        }
        if self.bans.deny.iter().any(|it| it.name == name && it.wrappers.is_empty()) {
            faults.push(format!("{name} is banned"));
        }
        // Our own crates have no source.
        if let Some(source) = package["source"].as_str() {
            let mut allowed = self.sources.allow_registry.iter();
            if !allowed.any(|it| source.strip_prefix("registry+") == Some(it)) {
                faults.push(format!("{name} comes from {source}"));
            }
        }
        faults
    }

    /// Crates that depend on a banned package and may not.
    fn uses(&self, metadata: &Value) -> Vec<String> {
        let names = names(metadata);
        let nodes = metadata["resolve"]["nodes"].as_array().unwrap();
        let mut faults = Vec::new();
        for node in nodes {
            let user = names[node["id"].as_str().unwrap()];
            for used in node["deps"].as_array().unwrap() {
                let used = names[used["pkg"].as_str().unwrap()];
                let banned = self.bans.deny.iter().find(|it| it.name == used);
                if banned.is_some_and(|it| !it.wrappers.iter().any(|name| name == user)) {
                    faults.push(format!("{user} depends on {used}"));
                }
            }
        }
        faults
    }

    /// Whether an expression of licences can be satisfied (SPDX annex D; old crates have `/` for
    /// OR). Parentheses are ignored and OR binds tighter, which allows no more than the standard.
    fn allows(&self, expression: &str) -> bool {
        let plain = expression.replace('/', " OR ").replace(['(', ')'], "");
        let is_allowed = |license: &str| self.licenses.allow.iter().any(|it| it == license);
        plain.split(" AND ").all(|any| any.split(" OR ").any(|it| is_allowed(it.trim())))
    }
}

/// The name of each package by its identifier.
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
        // Packages that are built are present already; those of tools/video may have to be fetched.
        .args(["--filter-platform", &platform])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn every_dependency_has_an_allowed_licence_and_source() {
    let metadata = metadata();
    let packages = metadata["packages"].as_array().unwrap();
    assert!(packages.len() > 50, "{}", packages.len());
    let rules = rules();
    let faults: Vec<String> = packages.iter().flat_map(|package| rules.faults(package)).collect();
    assert!(faults.is_empty(), "{faults:#?}");
    assert_eq!(rules.uses(&metadata), [""; 0]);
    check_what_a_vehicle_carries(&metadata);
    check_that_no_crate_of_the_product_uses_a_tool(&metadata);
    check_that_linux_knows_no_tunnel(&metadata);
}

/// A vehicle's programs have no async runtime and no database.
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
