//! The text of the filter table: chains and sets, one function for each.
//!
//! ```text
//! prerouting   own_addresses (before conntrack) ─► destinations (before the machine's own DNAT)
//!              ─► forwards (before it as well) ─► sockets (after NAT, see super::sockets)
//! forward      forward ─► answers, forwarded (see super::forwards)
//! postrouting  postrouting (source NAT) ─► opened (a server), outside (a box)
//! ```
//!
//! The chains of [`super::apart`] are added where neighbours may have the same inner addresses.
//! "Answers" are packets in a connection's reply direction, and errors about one. Unlike
//! "established", the direction keeps connections closed that passed while the table was missing.

use std::net::IpAddr;

use roadweave_proto::DropReason;

use super::chain::{Chain, begin, count_and_drop, counter, counter_from, end, family, sets_of};
use super::options::{Destination, FilterOptions, Forwarding, Opened};
use super::sets::{excluded_sets, inside_sets, matches_excluded, matches_inside, of_family, set};
use super::{apart, forwards, sockets};

pub(super) const COUNTED: [DropReason; 3] =
    [DropReason::ForwardRefused, DropReason::InnerFromOutside, DropReason::DeniedDestination];

pub(super) fn ruleset(
    table: &str,
    options: &FilterOptions,
    opened: Opened,
    counts: impl Fn(DropReason) -> u64,
) -> (String, usize) {
    let mut text = begin(table);
    COUNTED.iter().for_each(|it| text += &counter_from(&counter(*it), counts(*it)));
    text += &sets(options);
    end(text, &chains(options, opened))
}

fn chains(options: &FilterOptions, opened: Opened) -> Vec<Chain> {
    let base = Chain::base;
    let mut chains = vec![
        Chain::plain("answers", answers(options)),
        base("own_addresses", "filter hook prerouting priority raw", own_addresses(options)),
        base("destinations", "filter hook prerouting priority mangle", destinations(options)),
        base("forwards", forwards::HOOK, forwards::translating(options)),
        base("sockets", sockets::HOOK, sockets::rules(options)),
        base("leaving", "filter hook output priority filter - 10", sockets::leaving(options)),
        base("forward", "filter hook forward priority filter - 10", forward(options)),
        base("postrouting", "nat hook postrouting priority srcnat", postrouting(options)),
        base("opened", AFTER_NAT, self::opened(options, opened)),
        base("outside", AFTER_NAT, outside(options)),
    ];
    if let Some(own) = options.apart {
        chains.extend(apart::chains(options, own));
    }
    if matches!(options.forwarding, Forwarding::Server { .. }) {
        chains.insert(0, Chain::plain("forwarded", forwards::forwarded(options)));
    }
    chains.retain(|chain| chain.hook.is_none() || !chain.rules.is_empty());
    chains
}

fn sets(options: &FilterOptions) -> String {
    let mut text = String::new();
    let mut add = |name: &str, kind: &str, elements| text += &set(name, kind, elements);
    for (family, kind) in [(4, "ipv4_addr"), (6, "ipv6_addr")] {
        add(&format!("inner{family}"), kind, of_family(&options.inner, family == 4));
        if options.apart.is_some() || options.client_sockets {
            let near = apart::near(options);
            add(&format!("near{family}"), kind, of_family(&near, family == 4));
        }
        if let Forwarding::Server { denied, .. } = &options.forwarding {
            add(&format!("denied{family}"), kind, of_family(denied, family == 4));
        }
    }
    if let Forwarding::Box { inside, .. } = &options.forwarding {
        text += &inside_sets(inside);
        text += &excluded_sets(&options.excluded);
    }
    text
}

/// Drops packets to inner addresses from outside the tunnel (CVE-2019-14899), whatever their
/// source. The chain is before conntrack, so that no guess is answered by its state.
fn own_addresses(options: &FilterOptions) -> Vec<String> {
    let FilterOptions { tun, own_addresses, forwarding, .. } = options;
    if let Some(own) = options.apart {
        let rules = |address| apart::own_address(tun, own, address);
        return own_addresses.iter().flat_map(rules).collect();
    }
    let drop = count_and_drop(DropReason::InnerFromOutside);
    let rule = |address: &IpAddr| {
        let family = family(address.is_ipv4());
        format!("iifname != {{ \"{tun}\", \"lo\" }} {family} daddr {address} {drop}")
    };
    let mut rules: Vec<String> = own_addresses.iter().map(rule).collect();
    if let Forwarding::Box { inside, addresses, .. } = forwarding {
        let beside: Vec<String> = matches_inside(inside, "iif", "!= ").collect();
        rules.extend(
            addresses.iter().map(|address| format!("{} {}", beside.join(" "), rule(address))),
        );
    }
    rules
}

fn destinations(options: &FilterOptions) -> Vec<String> {
    let FilterOptions { tun, own_addresses, forwarding, .. } = options;
    let Forwarding::Server { denied, allowed, .. } = forwarding else { return Vec::new() };
    let drop = count_and_drop(DropReason::DeniedDestination);
    let mut rules =
        vec![format!("iifname != \"{tun}\" return"), "ct direction reply return".to_owned()];
    // Echoes show that the tunnel works; other services are for the machine's own networks.
    for address in own_addresses {
        let (family, icmp) = match address.is_ipv4() {
            true => ("ip", "icmp"),
            false => ("ip6", "icmpv6"),
        };
        rules.push(format!("{family} daddr {address} meta l4proto {icmp} return"));
    }
    for Destination { network, port } in allowed {
        let destination = format!("{} daddr {}", family(network.addr().is_ipv4()), network.trunc());
        match port {
            None => rules.push(format!("{destination} return")),
            Some(port) => {
                let of = |protocol| format!("{destination} {protocol} dport {port} return");
                rules.extend(["tcp", "udp"].map(of));
            }
        }
    }
    rules.extend(forwards::excepted(options));
    for (family, set) in sets_of(denied, "denied") {
        rules.push(format!("{family} daddr @{set} {drop}"));
    }
    // Broadcast and multicast include this machine.
    rules.push(format!("fib daddr type {{ local, broadcast, anycast, multicast }} {drop}"));
    rules
}

fn forward(options: &FilterOptions) -> Vec<String> {
    let FilterOptions { tun, mtu, forwarding, .. } = options;
    let mut rules = Vec::new();
    if *forwarding != Forwarding::Open {
        // Linux drops the machine's own source by itself for IPv4.
        let drop = count_and_drop(DropReason::ForwardRefused);
        rules.push(format!("meta nfproto ipv6 fib saddr type local {drop}"));
    }
    if options.apart.is_some() {
        rules.extend(apart::forward(tun));
    }
    for (family, headers) in [("ipv4", 40), ("ipv6", 60)] {
        let size = mtu.saturating_sub(headers);
        for side in ["iifname", "oifname"] {
            rules.push(format!(
                "{side} \"{tun}\" meta nfproto {family} tcp flags & (syn | rst) == syn \
                 tcp option maxseg size > {size} tcp option maxseg size set {size}"
            ));
        }
    }
    match forwarding {
        Forwarding::Open => {}
        Forwarding::Box { inside, .. } => {
            rules.extend(no_exit(options));
            rules.push(format!("iifname \"{tun}\" return"));
            rules.extend(matches_inside(inside, "iif", "").map(|rule| rule + " return"));
            rules.push("goto answers".to_owned());
        }
        Forwarding::Server { outside_to_tunnel, clients_reach_clients, .. } => {
            rules.extend(forwards::judged(tun, options.marks));
            if !clients_reach_clients {
                let drop = count_and_drop(DropReason::ForwardRefused);
                rules.push(format!("iifname \"{tun}\" oifname \"{tun}\" {drop}"));
            }
            if !outside_to_tunnel {
                rules.push(format!("iifname != \"{tun}\" oifname \"{tun}\" goto answers"));
            }
        }
    }
    rules
}

fn answers(FilterOptions { tun, forwarding, .. }: &FilterOptions) -> Vec<String> {
    let mut rules = ANSWERS.map(str::to_owned).to_vec();
    if let Forwarding::Box { inside, between_uplinks: true, .. } = forwarding {
        let outside: Vec<String> = matches_inside(inside, "oif", "!= ").collect();
        rules.push(format!("oifname != \"{tun}\" {} return", outside.join(" ")));
    }
    rules.push(count_and_drop(DropReason::ForwardRefused));
    rules
}

fn postrouting(options: &FilterOptions) -> Vec<String> {
    let FilterOptions { tun, inner, masquerade, masquerade_into_tun, apart, .. } = options;
    let mut rules = forwards::masquerade(options);
    if *masquerade {
        // Checked already. Zone or prefixes match before Linux 5.7, without input interface.
        rules.push(format!("iifname \"{tun}\" oifname != \"{tun}\" masquerade"));
        if let Some(own) = *apart {
            rules.push(apart::masquerade(tun, own));
            rules.extend(sockets::masquerade(options));
        } else {
            for (family, set) in sets_of(inner, "inner") {
                rules.push(format!("oifname != \"{tun}\" {family} saddr @{set} masquerade"));
            }
        }
    }
    if let Some(keep) = masquerade_into_tun {
        for prefix in keep {
            let (family, network) = (family(prefix.addr().is_ipv4()), prefix.trunc());
            rules.push(format!("oifname \"{tun}\" {family} saddr {network} accept"));
        }
        rules.push(format!("oifname \"{tun}\" masquerade"));
    }
    rules.extend(masquerade_outside(options));
    rules
}

/// Masquerades what leaves a box outside the tunnel, even if it was marked after routing.
fn masquerade_outside(options: &FilterOptions) -> Vec<String> {
    let excluded = excluded(options);
    if options.masquerade_into_tun.is_none() || excluded.is_empty() {
        return Vec::new();
    }
    // Before Linux 5.7 the input interface is unknown here; packets out of the tunnel do not come.
    let mut rules = vec![format!("iifname \"{}\" return", options.tun)];
    rules.extend(excluded.into_iter().map(|which| which + " masquerade"));
    rules
}

/// Drops packets that would leave by an uplink with a source behind the box, as of the tunnel's.
fn outside(options: &FilterOptions) -> Vec<String> {
    let excluded = excluded(options);
    if options.masquerade_into_tun.is_none() || excluded.is_empty() {
        return Vec::new();
    }
    let drop = count_and_drop(DropReason::ForwardRefused);
    let mut rules = ["iif 0 return", "ip6 saddr :: return", "ct status snat return"]
        .map(str::to_owned)
        .to_vec();
    rules.extend(excluded.iter().map(|which| format!("{which} fib saddr type != local {drop}")));
    rules
}

/// Nothing out of the tunnel leaves by an uplink; answers to an uplink have that uplink's mark.
fn no_exit(options: &FilterOptions) -> impl Iterator<Item = String> {
    let (tun, drop) = (&options.tun, count_and_drop(DropReason::ForwardRefused));
    let unmarked = format!("meta mark & {:#x} == 0", options.marks.above_mask());
    let rule = move |which| format!("iifname \"{tun}\" {unmarked} {which} {drop}");
    excluded(options).into_iter().map(rule)
}

fn excluded(options: &FilterOptions) -> Vec<String> {
    let FilterOptions { tun, excluded, forwarding, .. } = options;
    let Forwarding::Box { inside, .. } = forwarding else { return Vec::new() };
    let behind: Vec<String> = matches_inside(inside, "oif", "!= ").collect();
    let leaves = format!("oifname != {{ \"{tun}\", \"lo\" }} {}", behind.join(" "));
    matches_excluded(excluded).map(|which| format!("{leaves} {which}")).collect()
}

/// Closes what forwarding opened: others exchange only answers, and what own rules translate.
fn opened(
    FilterOptions { tun, inner, forwarding, apart, .. }: &FilterOptions,
    opened: Opened,
) -> Vec<String> {
    let mut rules = Vec::new();
    if !matches!(forwarding, Forwarding::Server { .. }) || !(opened.ipv4 || opened.ipv6) {
        return rules;
    }
    let drop = count_and_drop(DropReason::ForwardRefused);
    for (is_opened, protocol) in [(opened.ipv4, "ipv4"), (opened.ipv6, "ipv6")] {
        if !is_opened {
            rules.push(format!("meta nfproto {protocol} return"));
        }
    }
    // Locally generated packets have no input interface. Before Linux 5.7 no packet has one here.
    rules.push("iif 0 return".to_owned());
    rules.push(format!("iifname \"{tun}\" return"));
    rules.push(format!("oifname \"{tun}\" return"));
    if apart.is_some() {
        rules.extend(apart::opened());
    }
    rules.extend(ANSWERS.map(str::to_owned));
    // Our own source NAT does not admit hosts that pretend to be clients.
    for (family, set) in sets_of(inner, "inner") {
        rules.push(format!("iifname != \"lo\" ct original {family} saddr @{set} {drop}"));
    }
    rules.push("ct status snat return".to_owned());
    // Neighbour discovery and multicast reports without a source seem to come in where they go out.
    rules.push("fib saddr type local return".to_owned());
    rules.push("ip6 saddr :: return".to_owned());
    rules.push(format!("iifname != \"lo\" {drop}"));
    rules
}

const AFTER_NAT: &str = "filter hook postrouting priority srcnat + 10";
const ANSWERS: [&str; 3] =
    ["ct direction reply return", "ct state related return", "ct status dnat return"];
