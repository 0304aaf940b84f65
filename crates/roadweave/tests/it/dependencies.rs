//! What comes in with dependencies, held against deny.toml where there is no cargo-deny: licences,
//! sources and bans. Advisories need a database and are left to `make deny`.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde::Deserialize;
use serde_json::{Value, json};

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
    /// Who may depend on it all the same.
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
    /// What is wrong with a package of `cargo metadata`.
    fn faults(&self, package: &Value) -> Vec<String> {
        let name = package["name"].as_str().unwrap();
        let mut faults = Vec::new();
        match package["license"].as_str() {
            Some(license) if self.allows(license) => {}
            license => faults.push(format!("{name}: the licence {license:?} is not allowed")),
        }
        let banned = |it: &&Banned| it.name == name && it.wrappers.is_empty();
        if self.bans.deny.iter().any(|it| banned(&it)) {
            faults.push(format!("{name} is banned"));
        }
        // Our own crates have no source.
        if let Some(source) = package["source"].as_str() {
            let registry = source.strip_prefix("registry+");
            if !registry
                .is_some_and(|registry| self.sources.allow_registry.contains(&registry.into()))
            {
                faults.push(format!("{name} comes from {source}"));
            }
        }
        faults
    }

    /// Who depends on a banned package without being one of those who may.
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
    /// OR).
    fn allows(&self, expression: &str) -> bool {
        let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
        let words: Vec<&str> = spaced.split_whitespace().collect();
        let mut words = &words[..];
        let allowed = self.alternatives(&mut words);
        allowed && words.is_empty()
    }

    fn alternatives(&self, words: &mut &[&str]) -> bool {
        let mut allowed = self.conjunction(words);
        while let ["OR", rest @ ..] = words {
            *words = rest;
            allowed |= self.conjunction(words);
        }
        allowed
    }

    fn conjunction(&self, words: &mut &[&str]) -> bool {
        let mut allowed = self.term(words);
        while let ["AND", rest @ ..] = words {
            *words = rest;
            allowed &= self.term(words);
        }
        allowed
    }

    fn term(&self, words: &mut &[&str]) -> bool {
        match words {
            ["(", rest @ ..] => {
                *words = rest;
                let allowed = self.alternatives(words);
                let [")", rest @ ..] = words else { return false };
                *words = rest;
                allowed
            }
            [license, "WITH", exception, rest @ ..] => {
                let whole = format!("{license} WITH {exception}");
                *words = rest;
                self.licenses.allow.contains(&whole)
            }
            [license, rest @ ..] => {
                let license = (*license).to_owned();
                *words = rest;
                self.licenses.allow.contains(&license)
            }
            [] => false,
        }
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
        // What is built is here already; what tools/video needs may have to be fetched.
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
}

#[test]
fn what_a_vehicle_carries_has_no_runtime_and_no_database() {
    let metadata = metadata();
    let names = names(&metadata);
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

#[test]
fn no_crate_of_the_product_uses_a_tool() {
    let metadata = metadata();
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

#[test]
fn who_uses_what_it_may_not_is_found() {
    let metadata = |user: &str| {
        json!({
            "packages": [{ "id": "a", "name": user }, { "id": "b", "name": "tokio" }],
            "resolve": { "nodes": [
                { "id": "a", "deps": [{ "pkg": "b" }] },
                { "id": "b", "deps": [] },
            ] },
        })
    };
    assert_eq!(rules().uses(&metadata("roadweave-tunnel")), ["roadweave-tunnel depends on tokio"]);
    assert_eq!(rules().uses(&metadata("roadweave-control")), [""; 0]);
}

#[test]
fn a_dependency_that_breaks_a_rule_is_found() {
    let registry = "registry+https://github.com/rust-lang/crates.io-index";
    let check = |name: &str, license: Option<&str>, source: Option<&str>, expected: &[&str]| {
        let package = json!({ "name": name, "license": license, "source": source });
        let faults = rules().faults(&package);
        assert_eq!(faults.len(), expected.len(), "{faults:?}");
        for (fault, part) in faults.iter().zip(expected) {
            assert!(fault.contains(part), "{fault}");
        }
    };
    let good = |license| check("good", Some(license), Some(registry), &[]);
    good("MIT");
    good("MIT/Apache-2.0");
    good("Unlicense OR MIT");
    good("(MIT OR GPL-3.0) AND Unicode-3.0");
    check("ours", Some("Apache-2.0"), None, &[]);
    let bad = |license| check("bad", Some(license), Some(registry), &["not allowed"]);
    bad("GPL-3.0");
    bad("MIT AND GPL-3.0");
    bad("Apache-2.0 WITH Some-exception");
    bad("(MIT");
    bad("");
    check("unnamed", None, Some(registry), &["None is not allowed"]);
    check("openssl-sys", Some("MIT"), Some(registry), &["is banned"]);
    let git = "git+https://example.org/x?rev=1#1";
    check("forked", Some("MIT"), Some(git), &["comes from git"]);
    check("foreign", Some("MIT"), Some("registry+https://example.org/index"), &["comes from"]);
}
