//! A chain of our table, and helpers for rules.

use ipnet::IpNet;
use roadweave_proto::DropReason;

/// A chain; without a hook, other chains go to it.
pub(super) struct Chain {
    pub(super) name: &'static str,
    pub(super) hook: Option<&'static str>,
    pub(super) rules: Vec<String>,
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
