//! A chain of our table, and helpers for rules.

use ipnet::IpNet;
use roadweave_proto::DropReason;

pub(crate) struct Chain {
    pub(super) name: &'static str,
    pub(super) hook: Option<&'static str>,
    pub(super) rules: Vec<String>,
}

impl Chain {
    pub(super) fn plain(name: &'static str, rules: Vec<String>) -> Self {
        Self { name, hook: None, rules }
    }

    pub(crate) fn base(name: &'static str, hook: &'static str, rules: Vec<String>) -> Self {
        Self { name, hook: Some(hook), rules }
    }
}

/// "add" is first, so that "delete" finds a table; a file is one transaction.
pub(crate) fn begin(table: &str) -> String {
    format!("add table inet {table}\ndelete table inet {table}\ntable inet {table} {{\n")
}

pub(crate) fn counter_from(name: &str, count: u64) -> String {
    format!("  counter {name} {{ packets {count} bytes 0 }}\n")
}

pub(crate) fn end(mut text: String, chains: &[Chain]) -> (String, usize) {
    for Chain { name, hook, rules } in chains {
        text += &format!("  chain {name} {{\n");
        if let Some(hook) = hook {
            text += &format!("    type {hook}; policy accept;\n");
        }
        rules.iter().for_each(|rule| text += &format!("    {rule}\n"));
        text += "  }\n";
    }
    (text + "}\n", chains.iter().map(|chain| chain.rules.len()).sum())
}

pub(super) fn sets_of(prefixes: &[IpNet], name: &str) -> Vec<(&'static str, String)> {
    let families = [(true, 4), (false, 6)].into_iter();
    let families = families.filter(|(ipv4, _)| has_family(prefixes, *ipv4));
    families.map(|(ipv4, number)| (family(ipv4), format!("{name}{number}"))).collect()
}

pub(crate) fn set_mark(what: &str, (mark, mask): (u32, u32)) -> String {
    format!("{what} set {what} & {:#x} | {mark:#x}", !mask)
}

pub(super) fn has_family(prefixes: &[IpNet], ipv4: bool) -> bool {
    prefixes.iter().any(|prefix| prefix.addr().is_ipv4() == ipv4)
}

pub(super) fn family(ipv4: bool) -> &'static str {
    if ipv4 { "ip" } else { "ip6" }
}

pub(crate) fn counter(reason: DropReason) -> String {
    reason.name().replace('-', "_")
}

pub(crate) fn count_and_drop(reason: DropReason) -> String {
    format!("counter name \"{}\" drop", counter(reason))
}
