//! What one source may take of tables of the kernel that all share: connections, and fragments
//! that wait for the rest of their packet.
//!
//! ```text
//! from a client ────────┐                   ┌─► fragments   by the second, before they are gathered
//! from a host of the LAN ┴─► which source? ─┴─► connections by the second, and at a time
//! ```
//!
//! A source is an inner address, or a prefix behind a client: the tunnel has checked both. Behind a
//! box it is the address of a host. A set that is full lets nothing more begin.
//!
//! `ct count` walks through all connections of an element, so those of a source are counted in
//! [`PARTS`] elements, by bits of the source port.
//!
//! All lies in a table of its own, `inet roadweave_NAME_shares`: the counts would begin at zero
//! whenever the filters are replaced.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::{Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use roadweave_types::DropReason;

use super::chain::{Chain, count_and_drop, counter};
use super::ruleset::{inside_sets, matches_inside, of_family};
use super::{FilterOptions, Forwarding, Interface, Table};
use crate::{DeviceError, Instance, sysctl};

/// What one source may take of the kernel's tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// The most connections at a time. It is never more than a quarter of the kernel's table.
    pub connections: u32,
    /// Prefixes that are one source each, the longest that fits; any other address is one.
    pub prefixes: Vec<IpNet>,
}

impl Default for Share {
    fn default() -> Self {
        Self { connections: Self::CONNECTIONS, prefixes: Vec::new() }
    }
}

impl Share {
    /// The connections of a source unless the configuration says otherwise.
    pub const CONNECTIONS: u32 = 8_192;
}

/// What the table counts.
pub(super) const COUNTED: [DropReason; 2] =
    [DropReason::ConnectionShare, DropReason::FragmentShare];

/// The table of one instance.
#[derive(Debug)]
pub(super) struct Shares {
    table: Table,
    name: String,
    /// What is installed.
    limits: Option<Limits>,
}

/// What the table is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Limits {
    from: From,
    /// By family and length: the networks that are one source each.
    prefixes: BTreeMap<(bool, u8), BTreeSet<IpNet>>,
    /// Connections of a source at a time.
    connections: u32,
    /// Fragments of a source in a second, of IPv4 and IPv6.
    fragments: [u32; 2],
    /// Whether the kernel knows timeouts for some connections alone.
    has_timeouts: bool,
}

/// Where sources are.
#[derive(Clone, Debug, PartialEq, Eq)]
enum From {
    Tun(String),
    Inside(Vec<Interface>),
}

impl Shares {
    /// Changes nothing yet.
    ///
    /// # Errors
    /// As [`Table::open`].
    pub(super) fn open(instance: &Instance) -> Result<Self, DeviceError> {
        let name = instance.shares_table();
        Ok(Self { table: Table::open(name.clone())?, name, limits: None })
    }

    /// Puts the table in place, unless it is there already. Where the kernel cannot count so, the
    /// log says it, and nothing is bounded.
    ///
    /// # Errors
    /// As [`Table::replace`].
    pub(super) fn replace(&mut self, options: &FilterOptions) -> Result<(), DeviceError> {
        let Some(mut limits) = Limits::of(options) else { return Ok(()) };
        limits.has_timeouts = self.limits.as_ref().is_none_or(|before| before.has_timeouts);
        if self.limits.as_ref() == Some(&limits) && self.table.is_in_place() {
            return Ok(());
        }
        let counts = self.table.counters().unwrap_or_default();
        let count = |reason| counts.get(&counter(reason)).copied().unwrap_or(0);
        let mut install = |limits: &Limits| {
            let (text, rules) = text(&self.name, limits, count);
            self.table.replace(&text, rules)
        };
        let mut result = install(&limits);
        if result.as_ref().is_err_and(is_unknown) && limits.has_timeouts {
            limits.has_timeouts = false;
            result = install(&limits);
            if result.is_ok() {
                tracing::warn!(
                    "the kernel has no ct timeout objects (NF_CONNTRACK_TIMEOUT): idle TCP \
                     connections stay in its table for \
                     net.netfilter.nf_conntrack_tcp_timeout_established"
                );
            }
        }
        match result {
            Err(error) if is_unknown(&error) => tracing::warn!(
                "one source may take the kernel's whole connection table, which needs ct count \
                 (NFT_CONNLIMIT) and limit (NFT_LIMIT) to be bounded: {error}"
            ),
            result => result?,
        }
        self.limits = Some(limits);
        Ok(())
    }

    /// Whether the table is as it was put in place.
    pub(super) fn is_in_place(&mut self) -> bool {
        self.limits.is_none() || self.table.is_in_place()
    }
}

impl Limits {
    fn of(options: &FilterOptions) -> Option<Self> {
        let Share { connections, prefixes } = options.share.as_ref()?;
        let from = match &options.forwarding {
            Forwarding::Open => return None,
            Forwarding::Box { inside, .. } => From::Inside(inside.clone()),
            Forwarding::Server { .. } => From::Tun(options.tun.clone()),
        };
        let mut by_length: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
        for prefix in prefixes {
            let key = (prefix.addr().is_ipv4(), prefix.prefix_len());
            by_length.entry(key).or_default().insert(prefix.trunc());
        }
        let table = read(CONNECTIONS_MAX).map_or(u32::MAX, |all| (all / 4) as u32);
        Some(Self {
            from,
            prefixes: by_length,
            connections: (*connections).min(table).max(PARTS),
            fragments: ROOMS.map(|(room, seconds)| fragments_a_second(room, seconds, options.mtu)),
            has_timeouts: true,
        })
    }
}

/// Gives fragments more room than Linux does, so that a share of it is enough for a client that
/// sends large datagrams. Returns the settings and their values.
pub(super) fn room() -> impl Iterator<Item = (&'static str, String)> {
    let small = ROOMS.into_iter().map(|(key, _)| key);
    let small = small.filter(|key| read(key).is_some_and(|room| room < ROOM));
    small.map(|key| (key, ROOM.to_string()))
}

/// How many fragments of a source a quarter of the room holds, if none finds its siblings.
fn fragments_a_second(key: &str, seconds: u64, mtu: u16) -> u32 {
    let room = read(key).unwrap_or(ROOM);
    (room / 4 / seconds / (u64::from(mtu) + OVERHEAD)).clamp(1, 10_000) as u32
}

/// Whether the kernel does not know what a rule asks for.
fn is_unknown(error: &DeviceError) -> bool {
    let DeviceError::Program { detail, .. } = error else { return false };
    ["No such file or directory", "not supported"].iter().any(|said| detail.contains(said))
}

fn read(key: &str) -> Option<u64> {
    sysctl::read(key).ok()?.parse().ok()
}

/// The text of the table, and how many rules it has.
fn text(table: &str, limits: &Limits, counts: impl Fn(DropReason) -> u64) -> (String, usize) {
    let mut text = format!("add table inet {table}\ndelete table inet {table}\n");
    let _ = writeln!(text, "table inet {table} {{");
    for reason in COUNTED {
        let count = counts(reason);
        let _ = writeln!(text, "  counter {} {{ packets {count} bytes 0 }}", counter(reason));
    }
    if limits.has_timeouts {
        let _ = writeln!(text, "  ct timeout {TIMEOUTS} {{ protocol tcp; policy = {{ {TCP} }}; }}");
    }
    text += &sets(limits);
    let mut rules = 0;
    for Chain { name, hook, rules: lines } in chains(limits) {
        rules += lines.len();
        let _ = writeln!(text, "  chain {name} {{");
        if let Some(hook) = hook {
            let _ = writeln!(text, "    type {hook}; policy accept;");
        }
        lines.iter().for_each(|rule| text += &format!("    {rule}\n"));
        text += "  }\n";
    }
    (text + "}\n", rules)
}

fn sets(limits: &Limits) -> String {
    let mut text = String::new();
    // Hosts of a LAN may write any source; the memory of a box is small.
    let sources = match &limits.from {
        From::Tun(_) => 65_536,
        From::Inside(inside) => {
            text += &inside_sets(inside);
            4_096
        }
    };
    for (family, kind) in [(4, "ipv4_addr"), (6, "ipv6_addr")] {
        for set in ["pace", "fragments"] {
            let _ = writeln!(
                text,
                "  set {set}{family} {{ type {kind}; size {sources}; flags dynamic, timeout; \
                 timeout 1m; }}"
            );
        }
        let _ = writeln!(
            text,
            "  set flows{family} {{ type {kind} . inet_service; size {}; flags dynamic; }}",
            sources * 4
        );
    }
    for ((ipv4, length), networks) in &limits.prefixes {
        let (set, kind) = (wide(*ipv4, *length), if *ipv4 { "ipv4_addr" } else { "ipv6_addr" });
        let networks: Vec<IpNet> = networks.iter().copied().collect();
        let elements = of_family(&networks, *ipv4).join(", ");
        let _ = writeln!(
            text,
            "  set {set} {{ type {kind}; flags interval; elements = {{ {elements} }}; }}"
        );
    }
    text
}

/// Chains that others go to stand before those.
fn chains(limits: &Limits) -> Vec<Chain> {
    let plain = |name, rules| Chain { name, hook: None, rules };
    let base = |name, hook, to: &str| {
        let from = match &limits.from {
            From::Tun(tun) => vec![format!("iifname \"{tun}\"")],
            From::Inside(inside) => matches_inside(inside, "iif", "").collect(),
        };
        let rules = from.into_iter().map(|from| format!("{from} goto {to}")).collect();
        Chain { name, hook: Some(hook), rules }
    };
    let [connections, fragments] = COUNTED;
    let parts = format!(" . th sport & {PART_BITS:#x}");
    let count = format!("ct count {}", limits.connections / PARTS);
    let pace = rate((limits.connections / 16).max(16));
    let [fragments4, fragments6] = limits.fragments.map(rate);
    let of = |ipv4, set, key: &str, bound: &str, reason| {
        account(limits, ipv4, set, key, bound, &count_and_drop(reason))
    };
    let mut chains = vec![
        plain("take_fragment4", of(true, "fragments4", "", &fragments4, fragments)),
        plain("take_fragment6", of(false, "fragments6", "", &fragments6, fragments)),
        plain("take_turn4", of(true, "pace4", "", &pace, connections)),
        plain("take_turn6", of(false, "pace6", "", &pace, connections)),
        plain("take_flow4", of(true, "flows4", &parts, &count, connections)),
        plain("take_flow6", of(false, "flows6", &parts, &count, connections)),
    ];
    let mut begun = vec![
        // What a one-way flow sends is all new; only its first packet is not confirmed.
        "ct state != new return".to_owned(),
        "ct status & confirmed != 0 return".to_owned(),
    ];
    if limits.has_timeouts {
        begun.push(format!("meta l4proto tcp ct timeout set \"{TIMEOUTS}\""));
    }
    let families = |verb| [4, 6].map(|of| format!("meta nfproto ipv{of} {verb}{of}"));
    begun.extend(families("jump take_turn"));
    begun.extend(families("goto take_flow"));
    let judged =
        ["ip frag-off & 0x3fff != 0 goto take_fragment4", "exthdr frag exists goto take_fragment6"];
    chains.push(plain("begun", begun));
    chains.push(plain("fragment", judged.map(str::to_owned).to_vec()));
    // Before the kernel gathers fragments, at -400.
    chains.push(base("fragments", "filter hook prerouting priority -460", "fragment"));
    // After what is denied, before any NAT.
    chains.push(base("connections", "filter hook prerouting priority mangle + 1", "begun"));
    chains
}

/// Takes from the share of the source in `set`, or drops the packet.
fn account(
    limits: &Limits,
    ipv4: bool,
    set: &str,
    key: &str,
    bound: &str,
    drop: &str,
) -> Vec<String> {
    let family = if ipv4 { "ip" } else { "ip6" };
    // Elements of counts have no time to be put off.
    let verb = if bound.starts_with("ct count") { "add" } else { "update" };
    let mut rules = Vec::new();
    // The longest that fits counts.
    let lengths = limits.prefixes.keys().rev().filter(|(of, _)| *of == ipv4);
    for length in lengths.map(|(_, length)| *length) {
        let from = format!("{family} saddr @{}", wide(ipv4, length));
        let source = format!("{family} saddr & {}", mask(ipv4, length));
        rules.push(format!("{from} {verb} @{set} {{ {source}{key} {bound} }} return"));
        rules.push(format!("{from} {drop}"));
    }
    rules.push(format!("{verb} @{set} {{ {family} saddr{key} {bound} }} return"));
    rules.push(drop.to_owned());
    rules
}

fn rate(a_second: u32) -> String {
    format!("limit rate {a_second}/second burst {} packets", a_second * 2)
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

/// Into how many elements the connections of a source are counted.
const PARTS: u32 = 16;
/// The bits of a source port that say in which. Ports that follow one another share them, as do
/// even and odd ones, of which some systems use one kind alone.
const PART_BITS: u32 = 0xf0;
/// The timeouts of TCP connections of sources.
const TIMEOUTS: &str = "tcp_flows";
/// RFC 5382 section 5: 2 h 4 min when idle, where Linux waits for 5 days. A SYN is sent again
/// before.
const TCP: &str = "established : 7440, syn_sent : 30, syn_recv : 30";
const CONNECTIONS_MAX: &str = "net.netfilter.nf_conntrack_max";
/// The settings of the rooms for fragments of IPv4 and IPv6, bytes, and for how many seconds one
/// waits there.
const ROOMS: [(&str, u64); 2] =
    [("net.ipv4.ipfrag_high_thresh", 30), ("net.netfilter.nf_conntrack_frag6_high_thresh", 60)];
/// What each of them is at least, bytes.
const ROOM: u64 = 32 * 1024 * 1024;
/// What the kernel keeps beside the bytes of a fragment, bytes.
const OVERHEAD: u64 = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_one_source_in_all_its_addresses() {
        let networks = ["192.168.5.0/24", "192.168.6.0/24", "fd50::/48"];
        let mut prefixes: BTreeMap<(bool, u8), BTreeSet<IpNet>> = BTreeMap::new();
        for network in networks.map(|text| text.parse::<IpNet>().unwrap()) {
            let key = (network.addr().is_ipv4(), network.prefix_len());
            prefixes.entry(key).or_default().insert(network);
        }
        let limits = Limits {
            from: From::Tun("rw0".to_owned()),
            prefixes,
            connections: 8_192,
            fragments: [117, 58],
            has_timeouts: true,
        };
        let (text, _) = text("x_shares", &limits, |_| 7);
        let drop = "counter name \"connection_share\" drop";
        for line in [
            "counter fragment_share { packets 7 bytes 0 }",
            "set wide4_24 { type ipv4_addr; flags interval; elements = { 192.168.5.0/24, 192.168.6.0/24 }; }",
            "iifname \"rw0\" goto begun",
            "ip saddr @wide4_24 add @flows4 { ip saddr & 255.255.255.0 . th sport & 0xf0 ct count 512 } return",
            &format!("ip saddr @wide4_24 {drop}"),
            "ip6 saddr @wide6_48 update @fragments6 { ip6 saddr & ffff:ffff:ffff:: limit rate 58/second burst 116 packets } return",
            "update @pace4 { ip saddr limit rate 512/second burst 1024 packets } return",
        ] {
            assert!(text.lines().any(|found| found.trim() == line), "{line}\nis not in\n{text}");
        }
    }
}
