//! Foreign firewalls (Docker, ufw, firewalld, own rules) that drop a server's packets. A packet
//! must pass every base chain of its hook: what one accepts, another may drop. So one chain that
//! drops by default, without a rule for the tunnel, ends all traffic of clients.

use serde_json::{Value, json};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Dropping {
    pub(super) hook: Hook,
    pub(super) family: String,
    pub(super) table: String,
    pub(super) chain: String,
    pub(super) owner: Owner,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hook {
    Input,
    Forward,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    Docker,
    Ufw,
    Firewalld,
    Other,
}

impl Dropping {
    /// The commands that let clients of a server with the device `tun` and the UDP `port` through.
    pub(super) fn mend(&self, tun: &str, port: u16) -> String {
        let Self { hook, family, table, chain, owner } = self;
        let program = if family == "ip6" { "ip6tables" } else { "iptables" };
        match (owner, hook) {
            (Owner::Docker, Hook::Forward) => format!(
                "{program} -I DOCKER-USER -i {tun} -j ACCEPT && \
                 {program} -I DOCKER-USER -o {tun} -j ACCEPT"
            ),
            (Owner::Ufw, Hook::Forward) => {
                format!("ufw route allow in on {tun} && ufw route allow out on {tun}")
            }
            (Owner::Ufw, Hook::Input) => format!("ufw allow {port}/udp"),
            (Owner::Firewalld, Hook::Forward) => format!(
                "firewall-cmd --permanent --zone=trusted --add-interface={tun} && \
                 firewall-cmd --reload"
            ),
            (Owner::Firewalld, Hook::Input) => {
                format!("firewall-cmd --permanent --add-port={port}/udp && firewall-cmd --reload")
            }
            (Owner::Other, Hook::Forward) => format!(
                "nft insert rule {family} {table} {chain} iifname {tun} accept && \
                 nft insert rule {family} {table} {chain} oifname {tun} accept"
            ),
            (Owner::Docker | Owner::Other, Hook::Input) => {
                format!("nft insert rule {family} {table} {chain} udp dport {port} accept")
            }
        }
    }
}

/// Foreign chains that drop packets to the UDP `port` or through `tun`, from libnftables-json(5).
pub(super) fn dropping(ruleset: &Value, tun: &str, port: u16) -> Vec<Dropping> {
    let objects = ruleset["nftables"].as_array().map(Vec::as_slice).unwrap_or_default();
    objects.iter().filter_map(|object| one(objects, &object["chain"], tun, port)).collect()
}

fn one(objects: &[Value], chain: &Value, tun: &str, port: u16) -> Option<Dropping> {
    let hook = match chain["hook"].as_str()? {
        "input" => Hook::Input,
        "forward" => Hook::Forward,
        _ => return None,
    };
    let word = |name: &str| Some(chain.get(name)?.as_str()?.to_owned());
    let (family, table, name) = (word("family")?, word("table")?, word("name")?);
    let is_here = |of: &&Value| of["family"] == *family && of["table"] == *table;
    let rules = || objects.iter().map(|object| &object["rule"]).filter(is_here);
    let last = rules().rfind(|rule| rule["chain"] == *name);
    let is_dropping = chain["policy"] == "drop" || last.is_some_and(drops_all);
    let lets_through = |rule: &Value| match hook {
        Hook::Input => passes(rule, |matched| is_port(matched, port)),
        Hook::Forward => passes(rule, |matched| is_interface(matched, tun)),
    };
    let is_ours = table.starts_with("roadweave_");
    if is_ours || !["ip", "ip6", "inet"].contains(&&*family) {
        return None;
    }
    if !is_dropping || rules().any(lets_through) {
        return None;
    }
    let chains = objects.iter().map(|object| &object["chain"]).filter(is_here);
    let names: Vec<&str> = chains.filter_map(|chain| chain["name"].as_str()).collect();
    let has_chain = |begin: &str| names.iter().any(|name| name.starts_with(begin));
    let owner = match () {
        () if table == "firewalld" => Owner::Firewalld,
        () if has_chain("ufw-") || has_chain("ufw6-") => Owner::Ufw,
        () if has_chain("DOCKER-USER") => Owner::Docker,
        () => Owner::Other,
    };
    Some(Dropping { hook, family, table, chain: name, owner })
}

fn statements(rule: &Value) -> &[Value] {
    rule["expr"].as_array().map(Vec::as_slice).unwrap_or_default()
}

fn has(statement: &Value, names: &[&str]) -> bool {
    names.iter().any(|name| statement.get(name).is_some())
}

fn drops_all(rule: &Value) -> bool {
    let plain = |it: &Value| has(it, &["counter", "log", "drop", "reject"]);
    let all = statements(rule);
    all.iter().all(plain) && all.iter().any(|it| has(it, &["drop", "reject"]))
}

/// Whether a rule accepts a packet that `is_it` matches, or hands it to another chain or a map.
fn passes(rule: &Value, is_it: impl Fn(&Value) -> bool) -> bool {
    let all = statements(rule);
    let is_match = |it: &Value| it["match"]["op"] == "==" && is_it(&it["match"]);
    let is_map = |it: &Value| is_it(&json!({ "left": it["vmap"]["key"], "right": "@map" }));
    let is_let_on = all.iter().any(|it| has(it, &["accept", "jump", "goto"]));
    all.iter().any(is_map) || all.iter().any(is_match) && is_let_on
}

/// The elements of a named set are not listed, so it may contain anything.
fn is_named_set(right: &Value) -> bool {
    right.as_str().is_some_and(|name| name.starts_with('@'))
}

fn is_interface(matched: &Value, tun: &str) -> bool {
    let key = matched["left"]["meta"]["key"].as_str().unwrap_or_default();
    let is_name = ["iifname", "oifname", "iif", "oif"].contains(&key);
    let right = &matched["right"];
    let is_it = |name: &Value| match name.as_str().and_then(|name| name.strip_suffix('*')) {
        Some(begin) => tun.starts_with(begin),
        None => name == tun,
    };
    let among = right["set"].as_array().is_some_and(|set| set.iter().any(is_it));
    is_name && (is_it(right) || among || is_named_set(right))
}

fn is_port(matched: &Value, port: u16) -> bool {
    let left = &matched["left"]["payload"];
    let is_destination = left["field"] == "dport" && left["protocol"] != "tcp";
    is_destination && (is_in(&matched["right"], port) || is_named_set(&matched["right"]))
}

fn is_in(right: &Value, port: u16) -> bool {
    if let Some(set) = right["set"].as_array() {
        return set.iter().any(|it| it["set"].is_null() && is_in(it, port));
    }
    let bounds = match right["range"].as_array().map(Vec::as_slice) {
        Some([low, high]) => (low.as_u64(), high.as_u64()),
        _ => (right.as_u64(), right.as_u64()),
    };
    matches!(bounds, (Some(low), Some(high)) if (low..=high).contains(&port.into()))
}
