//! The text of the table for nft.

use std::fmt::Write as _;
use std::net::{Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use roadweave_proto::DropReason;

use super::super::chain::{Chain, begin, count_and_drop, counter, counter_from, end, family};
use super::super::sets::{inside_sets, matches_inside, of_family, set};
use super::{COUNTED, From, ShareLimits};

pub(super) fn text(
    table: &str,
    limits: &ShareLimits,
    before: Option<&ShareLimits>,
    counts: impl Fn(DropReason) -> u64,
) -> (String, usize) {
    let mut text = match before {
        None => begin(table),
        Some(before) => {
            let sets = lists(before).into_iter();
            let sets: String = sets.map(|set| format!("flush set inet {table} {set}\n")).collect();
            format!("flush table inet {table}\n{sets}table inet {table} {{\n")
        }
    };
    if before.is_none() {
        COUNTED.iter().for_each(|it| text += &counter_from(&counter(*it), counts(*it)));
        if limits.has_timeouts {
            let _ =
                writeln!(text, "  ct timeout {TIMEOUTS} {{ protocol tcp; policy = {{ {TCP} }}; }}");
        }
        text += &dynamic_sets(limits);
    }
    text += &list_sets(limits);
    end(text, &chains(limits))
}

fn dynamic_sets(limits: &ShareLimits) -> String {
    let mut text = String::new();
    // Hosts of a LAN may forge any source; the memory of a box is small.
    let (sources, host) = match &limits.from {
        From::Tun(_) => (65_536, None),
        From::Inside(_) => (1_024, Some("iface_index . ether_addr")),
    };
    let mut set = |name: &str, kind: &str, size: u32, rest: &str| {
        let _ = writeln!(text, "  set {name} {{ type {kind}; size {size}; flags dynamic{rest}; }}");
    };
    let flows = limits.table.min(MOST_ELEMENTS);
    for (family, address) in [(4, "ipv4_addr"), (6, "ipv6_addr")] {
        let source = host.unwrap_or(address);
        for name in ["known", "pace", "fragments"] {
            // Expired elements stay for a while; only known sources get into the other sets.
            let size = if name == "known" { sources } else { sources * 2 };
            set(&format!("{name}{family}"), source, size, ", timeout; timeout 1m");
        }
        if limits.has_counts {
            set(&format!("flows{family}"), &format!("{source} . mark"), flows, "");
            if host.is_none() {
                set(&format!("arrived{family}"), &format!("{address} . mark"), flows, "");
            }
        }
    }
    if limits.has_counts {
        set("total", "mark", TOTAL_PARTS, "");
    }
    text
}

fn lists(limits: &ShareLimits) -> Vec<String> {
    let mut names: Vec<String> =
        limits.prefixes.keys().map(|(ipv4, length)| wide(*ipv4, *length)).collect();
    if let From::Inside(inside) = &limits.from {
        let named = matches_inside(inside, "", "");
        names.extend(named.filter_map(|rule| Some(rule.split_once('@')?.1.to_owned())));
    }
    names
}

fn list_sets(limits: &ShareLimits) -> String {
    let mut text = match &limits.from {
        From::Tun(_) => String::new(),
        From::Inside(inside) => inside_sets(inside),
    };
    for ((ipv4, length), networks) in &limits.prefixes {
        let (wide, kind) = (wide(*ipv4, *length), if *ipv4 { "ipv4_addr" } else { "ipv6_addr" });
        let networks: Vec<IpNet> = networks.iter().copied().collect();
        text += &set(&wide, kind, of_family(&networks, *ipv4));
    }
    text
}

fn chains(limits: &ShareLimits) -> Vec<Chain> {
    let plain = Chain::plain;
    let [connections, fragments] = COUNTED.map(count_and_drop);
    let base = |name, hook, to: &str| {
        let from = match &limits.from {
            From::Tun(tun) => vec![format!("iifname \"{tun}\"")],
            From::Inside(inside) => matches_inside(inside, "iif", "").collect(),
        };
        Chain::base(name, hook, from.into_iter().map(|from| format!("{from} goto {to}")).collect())
    };
    let pace = rate((limits.connections / 16).max(16));
    let [rate4, rate6] = limits.fragments;
    let shared = |bound: String, drop: &String| vec![format!("{bound} return"), drop.clone()];
    let of = |ipv4, set, bound: &str, rest, drop| account(limits, ipv4, set, bound, rest, drop);
    let rates = limits.fragments.map(rate);
    let mut chains = vec![
        plain("rest_fragment", shared(rate(rate4.min(rate6)), &fragments)),
        plain("rest_turn", shared(pace.clone(), &connections)),
        plain("take_fragment4", of(true, "fragments", &rates[0], "rest_fragment", &fragments)),
        plain("take_fragment6", of(false, "fragments", &rates[1], "rest_fragment", &fragments)),
        plain("take_turn4", of(true, "pace", &pace, "rest_turn", &connections)),
        plain("take_turn6", of(false, "pace", &pace, "rest_turn", &connections)),
    ];
    if limits.has_counts {
        chains.extend(counts(limits, &connections));
    }
    let ends = |verb| [4, 6].map(|of| format!("meta nfproto ipv{of} {verb}{of}"));
    chains.push(plain("begun", begun(limits, ends("jump take_turn"), "take_flow")));
    let judged =
        ["ip frag-off & 0x3fff != 0 goto take_fragment4", "exthdr frag exists goto take_fragment6"];
    chains.push(plain("fragment", judged.map(str::to_owned).to_vec()));
    // Before the kernel reassembles fragments, at -400.
    chains.push(base("fragments", "filter hook prerouting priority -460", "fragment"));
    // After denied destinations, before any NAT.
    chains.push(base("connections", "filter hook prerouting priority mangle + 1", "begun"));
    if let From::Tun(tun) = &limits.from
        && limits.has_counts
    {
        // After NAT: the destination is the client's.
        chains.push(plain("arriving", begun(limits, [], "take_arrived")));
        let rule = format!("iifname != \"{tun}\" oifname \"{tun}\" goto arriving");
        let hook = "filter hook forward priority mangle + 1";
        chains.push(Chain::base("arrivals", hook, vec![rule]));
    }
    chains
}

fn begun(
    limits: &ShareLimits,
    before: impl IntoIterator<Item = String>,
    chain: &str,
) -> Vec<String> {
    let mut rules = vec![
        // All packets of a one-way flow are "new"; only the first is not confirmed.
        "ct state != new return".to_owned(),
        "ct status & confirmed != 0 return".to_owned(),
    ];
    if limits.has_timeouts {
        rules.push(format!("meta l4proto tcp ct timeout set \"{TIMEOUTS}\""));
    }
    rules.extend(before);
    if limits.has_counts {
        rules.extend([4, 6].map(|of| format!("meta nfproto ipv{of} jump {chain}{of}")));
        rules.push("goto take_total".to_owned());
    }
    rules
}

fn counts(limits: &ShareLimits, drop: &String) -> Vec<Chain> {
    let count = format!("ct count {}", (limits.connections / PARTS).max(1));
    let shared = format!("ct count {} return", limits.connections.min(512));
    let mut chains = vec![Chain::plain("rest_flow", vec![shared, drop.clone()])];
    for (ipv4, name) in [(true, "take_flow4"), (false, "take_flow6")] {
        let rules = account(limits, ipv4, "flows", &count, "rest_flow", drop);
        chains.push(Chain::plain(name, rules));
    }
    if let From::Tun(_) = &limits.from {
        for (ipv4, name) in [(true, "take_arrived4"), (false, "take_arrived6")] {
            let set = if ipv4 { "arrived4" } else { "arrived6" };
            let part = part(ipv4, "saddr");
            let mut rules = Vec::new();
            for (from, key) in sources(limits, ipv4, "daddr") {
                rules.push(format!("{from}add @{set} {{ {key} . {part} {count} }} return"));
                rules.push(format!("{from}{drop}"));
            }
            chains.push(Chain::plain(name, rules));
        }
    }
    // A quarter is left for the machine itself.
    let most = (u64::from(limits.table) * 3 / 4 / u64::from(TOTAL_PARTS)).max(1);
    let total = [true, false].map(|ipv4| {
        let (name, version) = (family(ipv4), if ipv4 { 4 } else { 6 });
        format!(
            "meta nfproto ipv{version} add @total {{ jhash {name} saddr . {name} daddr . th sport . \
             th dport mod {TOTAL_PARTS} ct count {most} }} return"
        )
    });
    let rules = total.into_iter().chain([drop.clone()]).collect();
    chains.push(Chain::plain("take_total", rules));
    chains
}

/// Charges the source in a set, or drops the packet; sources beyond the set's size go to `rest`.
fn account(
    limits: &ShareLimits,
    ipv4: bool,
    set: &str,
    bound: &str,
    rest: &str,
    drop: &str,
) -> Vec<String> {
    let version = if ipv4 { 4 } else { 6 };
    // Elements of counts have no timeout to update.
    let (verb, part) = match bound.starts_with("ct count") {
        true => ("add", format!(" . {}", part(ipv4, "daddr"))),
        false => ("update", String::new()),
    };
    let mut rules = Vec::new();
    for (from, key) in sources(limits, ipv4, "saddr") {
        let known = format!("update @known{version} {{ {key} }}");
        let taken = format!("{verb} @{set}{version} {{ {key}{part} {bound} }}");
        rules.push(format!("{from}{known} {taken} return"));
        // nft does not look up partly constant keys.
        match key.starts_with(NO_HOST) {
            true => rules.push(format!("{from}{drop}")),
            false => rules.push(format!("{from}{key} @known{version} {drop}")),
        }
        rules.push(format!("{from}goto {rest}"));
    }
    rules
}

fn sources(limits: &ShareLimits, ipv4: bool, side: &str) -> Vec<(String, String)> {
    let address = format!("{} {side}", family(ipv4));
    if let From::Inside(_) = &limits.from {
        // Hosts of a network without hardware addresses are one source.
        let without = ("iiftype != ether ".to_owned(), NO_HOST.to_owned());
        return vec![without, (String::new(), "iif . ether saddr".to_owned())];
    }
    let lengths = limits.prefixes.keys().rev().filter(|(of, _)| *of == ipv4);
    let prefixes = lengths.map(|(_, length)| {
        let set = wide(ipv4, *length);
        (format!("{address} @{set} "), format!("{address} & {}", mask(ipv4, *length)))
    });
    prefixes.chain([(String::new(), address.clone())]).collect()
}

fn part(ipv4: bool, far: &str) -> String {
    format!("jhash {} {far} . th sport . th dport mod {PARTS}", family(ipv4))
}

fn rate(a_second: u32) -> String {
    format!("limit rate {a_second}/second burst {a_second} packets")
}

fn wide(ipv4: bool, length: u8) -> String {
    format!("wide{}_{length}", if ipv4 { 4 } else { 6 })
}

fn mask(ipv4: bool, length: u8) -> String {
    match ipv4 {
        true => {
            Ipv4Addr::from(u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0)).to_string()
        }
        false => {
            Ipv6Addr::from(u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0)).to_string()
        }
    }
}

const NO_HOST: &str = "iif . 00:00:00:00:00:00";
const PARTS: u32 = 32;
const TOTAL_PARTS: u32 = 256;
/// The kernel allocates a set's elements at once.
const MOST_ELEMENTS: u32 = 262_144;
const TIMEOUTS: &str = "tcp_flows";
/// RFC 5382 section 5: 2 h 4 min idle, where Linux waits 5 days. A SYN is retransmitted earlier.
const TCP: &str = "established : 7440, syn_sent : 30, syn_recv : 30";

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;
    use crate::golden::assert_golden;

    #[test]
    fn a_prefix_is_one_source_in_all_its_addresses() {
        let networks = ["192.168.5.0/24", "192.168.6.0/24", "fd50::/48"];
        let mut prefixes: BTreeMap<(bool, u8), BTreeSet<IpNet>> = BTreeMap::new();
        for network in networks.map(|text| text.parse::<IpNet>().unwrap()) {
            let key = (network.addr().is_ipv4(), network.prefix_len());
            prefixes.entry(key).or_default().insert(network);
        }
        let limits = ShareLimits {
            from: From::Tun("rw0".to_owned()),
            prefixes,
            connections: 8_192,
            fragments: [117, 58],
            table: 262_144,
            has_timeouts: true,
            has_counts: true,
        };
        let (text, _) = text("x_shares", &limits, None, |_| 7);
        assert_golden("nft-shares.txt", &text);
    }
}
