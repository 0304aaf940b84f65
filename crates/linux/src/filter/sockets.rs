//! The chain that marks packets for sockets of this machine which have clients' addresses. Rule 522
//! delivers marked packets here; without a socket, an answer goes into the TUN. SYNs are not looked
//! up: no such socket listens, while another program's may. ICMP errors are, by the packet that
//! they quote, so that the socket learns the path's MTU and unreachable hosts. Where neighbours may
//! have the same inner addresses, a TUN's packets are never for such a socket, and its packets
//! never enter a TUN: their connections end beyond all tunnels.

use ipnet::IpNet;
use roadweave_proto::{DropReason, Kind, Marks};

use super::apart;
use super::chain::{count_and_drop, family, set_mark, sets_of};
use super::nft::{REMOVAL_LIMIT, call_nft};
use super::options::FilterOptions;
use crate::DeviceError;
use crate::apart::GROUP;

/// After destination NAT, which undoes source NAT for answers.
pub(super) const HOOK: &str = "filter hook prerouting priority dstnat + 5";

pub(super) fn rules(options: &FilterOptions) -> Vec<String> {
    match options.client_sockets {
        true => rules_for(&apart::near(options), options.apart.is_some(), options.marks),
        false => Vec::new(),
    }
}

/// Drops packets of such sockets that would enter a TUN, where neighbours exist.
pub(super) fn leaving(options: &FilterOptions) -> Vec<String> {
    if !options.client_sockets || options.apart.is_none() {
        return Vec::new();
    }
    let drop = count_and_drop(DropReason::ForwardRefused);
    let mut rules = vec![format!("oifgroup != {GROUP} return")];
    let own = options.own_addresses.iter();
    rules.extend(own.map(|own| format!("{} saddr {own} return", family(own.is_ipv4()))));
    for (family, set) in sets_of(&apart::near(options), "near") {
        rules.push(format!("{family} saddr @{set} {drop}"));
    }
    rules
}

/// Masquerades packets of such sockets, where the prefix alone does not prove that they are local.
pub(super) fn masquerade(options: &FilterOptions) -> Vec<String> {
    if !options.client_sockets {
        return Vec::new();
    }
    let sets = sets_of(&apart::near(options), "near").into_iter();
    sets.map(|(family, set)| format!("iif 0 oifgroup != {GROUP} {family} saddr @{set} masquerade"))
        .collect()
}

fn rules_for(near: &[IpNet], has_neighbours: bool, marks: Marks) -> Vec<String> {
    let mark = set_mark("meta mark", marks.kind(Kind::ClientSocket));
    let found = format!("socket transparent 1 {mark}");
    let mut rules = Vec::new();
    if has_neighbours {
        rules.push(format!("iifgroup {GROUP} return"));
    }
    for (family, set) in sets_of(near, "near") {
        let icmp = if family == "ip" { "icmp" } else { "icmpv6" };
        rules.push(format!("{family} daddr @{set} tcp flags & (syn | ack) != syn {found}"));
        rules.push(format!("{family} daddr @{set} meta l4proto {icmp} {found}"));
    }
    rules
}

/// Checks that `nft` and the kernel can match sockets; nothing is installed.
pub fn check_sockets(table: &str) -> Result<(), DeviceError> {
    let rules = ["192.0.2.0/24", "2001:db8::/64"].map(|net| net.parse().expect("a network"));
    let rules = rules_for(&rules, false, Marks::default());
    let text = format!(
        "table inet {table} {{\n\
         set near4 {{ type ipv4_addr; flags interval; elements = {{ 192.0.2.0/24 }}; }}\n\
         set near6 {{ type ipv6_addr; flags interval; elements = {{ 2001:db8::/64 }}; }}\n\
         chain sockets {{ type {HOOK}; policy accept;\n{}\n}}\n}}\n",
        rules.join("\n")
    );
    call_nft(&["-c", "-f", "-"], &text, REMOVAL_LIMIT)
}
