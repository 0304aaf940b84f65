//! The chains that keep one anchor's packets from those of its neighbours (see [`crate::apart`]).
//!
//! ```text
//! zones       before reassembly: the conntrack zone of packets from the TUN
//! ownership   after conntrack: no answer to another's connection
//! marking     after other programs' marks, before routing and destination NAT
//! returning   this machine's answers go back into the TUN
//! unowned     this machine's replies to packets of no connection
//! entering    into the TUN: answers of its own connections, and what was let in from outside
//! ```

use std::net::IpAddr;

use ipnet::IpNet;
use roadweave_proto::DropReason;

use super::chain::{Chain, count_and_drop, family, set_mark, sets_of};
use super::options::FilterOptions;
use crate::apart::{Apart, GROUP};

pub(super) fn masquerade(tun: &str, apart: Apart) -> String {
    format!("oifname != \"{tun}\" ct original zone {} masquerade", apart.zone())
}

pub(super) fn forward(tun: &str) -> [String; 2] {
    let drop = count_and_drop(DropReason::ForwardRefused);
    [
        format!("iifname \"{tun}\" oifname != \"{tun}\" oifgroup {GROUP} {drop}"),
        format!("iifname != \"{tun}\" oifname \"{tun}\" iifgroup {GROUP} {drop}"),
    ]
}

/// Drops packets for `address` not by our TUN; those for a neighbour's client have a mark by then.
pub(super) fn own_address(tun: &str, apart: Apart, address: &IpAddr) -> [String; 2] {
    let (_, mask) = apart.mark();
    let drop = count_and_drop(DropReason::InnerFromOutside);
    let from = format!("iifname != {{ \"{tun}\", \"lo\" }}");
    let destination = format!("{from} {} daddr {address}", family(address.is_ipv4()));
    [
        format!("{destination} iifgroup != {GROUP} {drop}"),
        format!("{destination} iifgroup {GROUP} meta mark & {mask:#x} == 0 {drop}"),
    ]
}

pub(super) fn opened() -> [String; 2] {
    [format!("iifgroup {GROUP} return"), format!("oifgroup {GROUP} return")]
}

/// Prefixes in the TUN; a client reached by the default route cannot be distinguished from outside.
pub(super) fn near(options: &FilterOptions) -> Vec<IpNet> {
    let narrow = options.inner.iter().filter(|prefix| prefix.prefix_len() > 0);
    narrow.copied().collect()
}

pub(super) fn chains(options: &FilterOptions, apart: Apart) -> Vec<Chain> {
    let base = Chain::base;
    vec![
        base("zones", "filter hook prerouting priority -450", zones(options, apart)),
        base("ownership", "filter hook prerouting priority mangle - 5", ownership(options, apart)),
        base("marking", "filter hook prerouting priority dstnat - 5", marking(options, apart)),
        base("returning", "route hook output priority mangle + 5", returning(apart)),
        base("unowned", "filter hook output priority filter - 10", unowned(options, apart)),
        base("entering", "filter hook postrouting priority mangle", entering(options, apart)),
    ]
}

fn zones(options: &FilterOptions, apart: Apart) -> Vec<String> {
    let (zone, mark) = (apart.zone(), set_mark("meta mark", apart.mark()));
    let mut rules = vec![format!("iifname != \"{}\" return", options.tun)];
    for address in &options.own_addresses {
        let family = family(address.is_ipv4());
        // This machine's answers are looked up in the default zone.
        rules.push(format!("{family} daddr {address} {mark} ct original zone set {zone} return"));
    }
    for (family, set) in sets_of(&near(options), "near") {
        // Both directions come by the TUN.
        rules.push(format!("{family} daddr @{set} ct zone set {zone} return"));
    }
    rules.push(format!("ct original zone set {zone}"));
    rules
}

fn ownership(FilterOptions { tun, .. }: &FilterOptions, apart: Apart) -> Vec<String> {
    let (zone, (own, mask)) = (apart.zone(), apart.mark());
    let drop = count_and_drop(DropReason::ForwardRefused);
    vec![format!(
        "iifname \"{tun}\" ct direction reply ct original zone != {zone} \
         ct mark & {mask:#x} != {own:#x} {drop}"
    )]
}

fn marking(FilterOptions { tun, .. }: &FilterOptions, apart: Apart) -> Vec<String> {
    let (zone, mark) = (apart.zone(), set_mark("meta mark", apart.mark()));
    vec![
        format!("iifname \"{tun}\" {mark}"),
        format!("iifname != \"{tun}\" ct direction reply ct original zone {zone} {mark}"),
    ]
}

fn returning(apart: Apart) -> Vec<String> {
    vec![format!(
        "ct direction reply ct original zone {} {}",
        apart.zone(),
        set_mark("meta mark", apart.mark())
    )]
}

fn unowned(FilterOptions { tun, .. }: &FilterOptions, apart: Apart) -> Vec<String> {
    let (own, mask) = apart.mark();
    let drop = count_and_drop(DropReason::ForwardRefused);
    vec![format!("oifname \"{tun}\" ct state invalid meta mark & {mask:#x} != {own:#x} {drop}")]
}

fn entering(options: &FilterOptions, apart: Apart) -> Vec<String> {
    let FilterOptions { tun, masquerade, .. } = options;
    let (zone, (own, mask)) = (apart.zone(), apart.mark());
    let drop = count_and_drop(DropReason::ForwardRefused);
    let mut rules = vec![
        format!("oifname != \"{tun}\" return"),
        format!("ct original zone {zone} return"),
        format!("ct direction reply {drop}"),
        // Meant for another TUN, whose anchor and rules are gone.
        format!("meta mark & {mask:#x} != 0 meta mark & {mask:#x} != {own:#x} {drop}"),
        // The connection began outside: answers belong to the TUN that it enters first.
        format!(
            "ct direction original ct mark & {mask:#x} == 0 {}",
            set_mark("ct mark", (own, mask))
        ),
    ];
    if *masquerade {
        // The client's address may now be another tenant's. Without masquerade it is unique.
        rules.push(format!("ct direction original ct mark & {mask:#x} != {own:#x} {drop}"));
    }
    rules
}
