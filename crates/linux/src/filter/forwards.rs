//! Ports of a server's machine that are forwarded to devices behind its clients. They apply to all
//! addresses of the machine but the inner ones. Their connections have a mark that outlives the
//! program, which distinguishes those of a removed forward even after a crash.

use roadweave_proto::{DropReason, Kind, Marks};

use super::chain::{count_and_drop, family, set_mark, sets_of};
use super::forward::{Forward, range};
use super::options::FilterOptions;
use super::sets::of_family;

/// Before the machine's own DNAT, which may use the port for a container that is denied to clients.
pub(super) const HOOK: &str = "nat hook prerouting priority dstnat - 1";

pub(super) fn translating(options: &FilterOptions) -> Vec<String> {
    let FilterOptions { tun, inner, own_addresses, forwards, .. } = options;
    if forwards.is_empty() {
        return Vec::new();
    }
    let mut rules = vec!["fib daddr type != local return".to_owned()];
    let own = own_addresses.iter();
    rules.extend(own.map(|it| format!("{} daddr {it} return", family(it.is_ipv4()))));
    for (family, set) in sets_of(inner, "inner") {
        rules.push(format!("iifname != \"{tun}\" {family} saddr @{set} return"));
    }
    let set_mark = set_mark("ct mark", options.marks.kind(Kind::Forwarded));
    for forward in forwards {
        let family = family(forward.to.is_ipv4());
        for (of, matches) in forward.protocols().zip(forward.matches()) {
            let to = forward.target(of);
            rules.push(format!("{matches} {set_mark} dnat {family} to {to}"));
        }
    }
    rules
}

/// Exceptions from denied destinations: `translating` handles new connections, `forwarded` others.
pub(super) fn excepted(options: &FilterOptions) -> Vec<String> {
    if options.forwards.is_empty() {
        return Vec::new();
    }
    let matches = options.forwards.iter().flat_map(Forward::matches);
    let new = matches.map(|it| format!("fib daddr type local {it} ct state new return"));
    new.chain([marked(options.marks) + " return"]).collect()
}

pub(super) fn judged(tun: &str, marks: Marks) -> [String; 2] {
    let marked = marked(marks);
    ["iifname", "oifname"].map(|side| format!("{side} \"{tun}\" {marked} goto forwarded"))
}

pub(super) fn forwarded(options: &FilterOptions) -> Vec<String> {
    let mut rules = Vec::new();
    for forward in &options.forwards {
        let device = forward.to;
        let (from, to) = (range(&forward.ports), range(&forward.to_ports));
        let family = family(device.is_ipv4());
        rules.extend(forward.protocols().map(|of| {
            format!(
                "meta l4proto {of} ct original proto-dst {from} ct reply {family} saddr {device} \
                 ct reply proto-src {to} return"
            )
        }));
    }
    rules.push("ct state related meta l4proto { icmp, icmpv6 } return".to_owned());
    rules.push(count_and_drop(DropReason::ForwardRefused));
    rules
}

pub(super) fn masquerade(options: &FilterOptions) -> Vec<String> {
    let marked = marked(options.marks);
    let rule = |forward: &Forward| {
        let to = forward.to;
        let (family, near) =
            (family(to.is_ipv4()), of_family(&forward.near, to.is_ipv4()).join(", "));
        format!(
            "oifname \"{}\" {marked} {family} daddr {to} {family} saddr {{ {near} }} masquerade",
            options.tun
        )
    };
    let mut rules: Vec<String> = options.forwards.iter().map(rule).collect();
    rules.dedup();
    rules
}

fn marked(marks: Marks) -> String {
    let (mark, mask) = marks.kind(Kind::Forwarded);
    format!("ct mark & {mask:#x} == {mark:#x}")
}
