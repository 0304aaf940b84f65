//! Sets of interfaces and networks, and the rules that match them.

use ipnet::IpNet;

use super::chain::sets_of;
use crate::{Excluded, Interface};

pub(super) fn set(name: &str, kind: &str, elements: Vec<String>) -> String {
    if elements.is_empty() {
        return String::new();
    }
    let flags = if kind.starts_with("ipv") { " flags interval;" } else { "" };
    let elements = elements.join(", ");
    format!("  set {name} {{ type {kind};{flags} elements = {{ {elements} }}; }}\n")
}

pub(super) fn inside_sets(inside: &[Interface]) -> String {
    let (named, odd): (Vec<_>, Vec<_>) =
        inside.iter().partition(|interface| is_quotable(&interface.name));
    let named = named.iter().map(|interface| format!("\"{}\"", interface.name)).collect();
    let odd = odd.iter().map(|it| it.index.to_string()).collect();
    set("inside", "ifname", named) + &set("inside_odd", "iface_index", odd)
}

pub(super) fn excluded_sets(Excluded { destinations, .. }: &Excluded) -> String {
    let set = |name, kind, ipv4| set(name, kind, of_family(destinations, ipv4));
    set("excluded4", "ipv4_addr", true) + &set("excluded6", "ipv6_addr", false)
}

pub(super) fn matches_excluded(excluded: &Excluded) -> impl Iterator<Item = String> {
    let sets = sets_of(&excluded.destinations, "excluded").into_iter();
    let sets = sets.map(|(family, set)| format!("{family} daddr @{set}"));
    let marked = |(mark, mask): &(u32, u32)| format!("meta mark & {mask:#x} == {mark:#x}");
    sets.chain(excluded.marks.iter().map(marked))
}

/// With `not`, matches all others. `side`: `iif` or `oif`.
pub(super) fn matches_inside(
    inside: &[Interface],
    side: &'static str,
    not: &'static str,
) -> impl Iterator<Item = String> {
    let named = inside.iter().any(|interface| is_quotable(&interface.name));
    let odd = inside.iter().any(|interface| !is_quotable(&interface.name));
    let name = named.then(|| format!("{side}name {not}@inside"));
    name.into_iter().chain(odd.then(|| format!("{side} {not}@inside_odd")))
}

/// Whether nft reads `"name"` as exactly this name. Linux allows nearly any byte in one.
pub(crate) fn is_quotable(name: &str) -> bool {
    name.bytes().all(|byte| byte.is_ascii_graphic() && !b"\"*\\$".contains(&byte))
}

/// The networks of one family, adjacent ones joined: nft refuses overlapping intervals.
pub(super) fn of_family(prefixes: &[IpNet], ipv4: bool) -> Vec<String> {
    let fitting = prefixes.iter().filter(|prefix| prefix.addr().is_ipv4() == ipv4);
    let networks: Vec<IpNet> = fitting.map(IpNet::trunc).collect();
    IpNet::aggregate(&networks).iter().map(ToString::to_string).collect()
}
