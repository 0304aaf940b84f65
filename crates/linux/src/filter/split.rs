//! Selects TCP connections that end at this box (RFC 3135): to destinations that answered recently.
//!
//! ```text
//! SYN from inside ─► answered, not failed ─► TPROXY to a listener, mark ─► rule 522: this machine
//!                        │ no                       │ no listener takes them
//!                        └──────────────────────────┴─► the TUN, as a packet
//! SYN-ACK from the TUN ─► to inside, of a connection that began there, chosen ─► answered
//! FIN of such a socket ─► answered        marked RST of such a socket ─► failed
//! ```
//!
//! A socket accepts before it is known whether the destination does, so the kernel records which
//! answer. If the far end cannot connect, a marked reset ([`Kind::Failed`]) sends it by the TUN.
//! The mark of a connection keeps it here: without a socket it is answered by RST. A SYN that was
//! forwarded as a packet stays forwarded, since conntrack has given it another source.
//!
//! Excluded destinations are not taken: the mark would hide the one that excludes. Counters show
//! whether connections arrive: the box's own rules may drop or redirect them. The rules are in
//! their own table, `inet roadweave_NAME_split`, because replacing the filters would clear its
//! sets. It outlives the program: without a listener connections are forwarded.

use std::fmt::Write as _;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;

use ipnet::IpNet;
use roadweave_proto::{Kind, Marks};

use super::chain::{self, Chain, counter_from, end, family, has_family, set_mark};
use super::nft::remove_tables;
use super::sets::{excluded_sets, inside_sets, matches_excluded, matches_inside, of_family};
use super::table::MaintainedTable;
use crate::{DeviceError, Excluded, Instance, Interface};

/// Whether connections to some destinations are split.
#[derive(Clone, Debug)]
pub struct SplitRule {
    /// Their networks; empty: all.
    pub to: Vec<IpNet>,
    /// Their ports; empty: all.
    pub ports: Vec<RangeInclusive<u16>>,
    /// Whether they are split.
    pub split: bool,
}

/// What is handed over to which listeners.
#[derive(Debug)]
pub struct SplitOptions {
    /// The TUN's name.
    pub tun: String,
    /// The first that matches decides.
    pub rules: Vec<SplitRule>,
    /// Whether connections are split that match no rule.
    pub split_others: bool,
    /// Listeners to hand connections over to, at most one of each family.
    pub listeners: Vec<(IpAddr, u16)>,
    /// The interfaces that connections come from.
    pub inside: Vec<Interface>,
    /// What leaves outside the tunnel, and is not split.
    pub excluded: Excluded,
    /// The marks of connections that are handed over.
    pub marks: Marks,
}

/// How many SYNs since the installation of `table` were handed over and did not arrive.
pub fn astray(table: &mut MaintainedTable) -> io::Result<u64> {
    let counts = table.counters()?;
    let count = |name| counts.get(name).copied().unwrap_or_default();
    Ok(count(BEGUN).saturating_sub(count(COME_IN)))
}

/// Removes the table of an instance that is not running.
pub fn remove_left(instance: &Instance) -> Result<(), DeviceError> {
    remove_tables(&[instance.split_table()])
}

/// The table's text and number of rules. `cleanup` removes it. Replacing it loses destinations.
pub fn text(table: &str, options: &SplitOptions) -> (String, usize) {
    let mut text = chain::begin(table);
    for (set, minutes) in [("answered", ANSWERED_MINUTES), ("failed", FAILED_MINUTES)] {
        for (family, kind) in [(4, "ipv4_addr"), (6, "ipv6_addr")] {
            let _ = writeln!(
                text,
                "  set {set}{family} {{ type {kind} . inet_service; size {NOTED_MAX}; \
                 flags dynamic, timeout; timeout {minutes}m; }}"
            );
        }
    }
    [BEGUN, COME_IN].iter().for_each(|counter| text += &counter_from(counter, 0));
    text += &inside_sets(&options.inside);
    text += &excluded_sets(&options.excluded);
    end(text, &chains(options))
}

fn chains(options: &SplitOptions) -> Vec<Chain> {
    let (plain, base) = (Chain::plain, Chain::base);
    let mut chains = vec![
        plain("note", note("answered")),
        plain("blame", note("failed")),
        plain("choose", choose(&options.rules, options.split_others)),
        plain("taken", taken(options)),
    ];
    for (listener, name) in of_families(&options.listeners).into_iter().zip(["begin4", "begin6"]) {
        chains.extend(listener.map(|listener| plain(name, begin(listener, options.marks))));
    }
    chains.extend([
        plain("inside_out", inside_out(options)),
        base(
            "prerouting",
            // After destination NAT: what the machine's own rules redirect is left to them.
            "filter hook prerouting priority dstnat + 5",
            matches_inside(&options.inside, "iif", "").map(|it| it + " goto inside_out").collect(),
        ),
        base("input", "filter hook input priority 1000", input(options.marks)),
        base("forward", "filter hook forward priority filter + 10", forward(options)),
        base("output", "filter hook output priority filter + 10", output(options.marks)),
    ]);
    chains
}

fn of_families(listeners: &[(IpAddr, u16)]) -> [Option<(IpAddr, u16)>; 2] {
    let of = |ipv4| listeners.iter().find(|(address, _)| address.is_ipv4() == ipv4).copied();
    [of(true), of(false)]
}

fn note(set: &str) -> Vec<String> {
    let rule = |(family, of)| format!("update @{set}{of} {{ {family} saddr . tcp sport }}");
    [("ip", 4), ("ip6", 6)].map(rule).to_vec()
}

/// Records hosts that answer, if they may be split (asked first: one lookup for a SYN).
fn choose(rules: &[SplitRule], split_others: bool) -> Vec<String> {
    let verdict = |split| if split { "goto note" } else { "return" };
    let mut lines = Vec::new();
    for rule in rules {
        let SplitRule { to, ports, split } = rule;
        let ports = match ports.is_empty() {
            true => String::new(),
            false => format!("tcp sport {{ {} }} ", joined(ports)),
        };
        let verdict = verdict(*split);
        if to.is_empty() {
            lines.push(format!("{ports}{verdict}"));
        }
        for ipv4 in [true, false] {
            if has_family(to, ipv4) {
                let networks = of_family(to, ipv4).join(", ");
                let family = family(ipv4);
                lines.push(format!("{family} saddr {{ {networks} }} {ports}{verdict}"));
            }
        }
    }
    lines.push(verdict(split_others).to_owned());
    lines
}

/// Ports as nft reads them, adjacent ranges joined: it refuses overlapping intervals.
fn joined(ranges: &[RangeInclusive<u16>]) -> String {
    let mut ranges: Vec<(u16, u16)> = ranges.iter().map(|it| (*it.start(), *it.end())).collect();
    ranges.sort_unstable();
    let mut joined: Vec<(u16, u16)> = Vec::new();
    for (first, last) in ranges {
        match joined.last_mut() {
            Some((_, before)) if first <= before.saturating_add(1) => *before = last.max(*before),
            _ => joined.push((first, last)),
        }
    }
    let text = |(first, last): &(u16, u16)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    joined.iter().map(text).collect::<Vec<_>>().join(", ")
}

fn inside_out(SplitOptions { listeners, excluded, marks, .. }: &SplitOptions) -> Vec<String> {
    let (mark, mask) = marks.kind(Kind::Taken);
    let mut rules = vec![
        format!("ct mark & {mask:#x} == {mark:#x} goto taken"),
        "meta l4proto != tcp return".to_owned(),
        "tcp flags & (fin | syn | rst | ack) != syn return".to_owned(),
        "ct state != new return".to_owned(),
        "ct status & (confirmed | dnat) != 0 return".to_owned(),
    ];
    rules.extend(matches_excluded(excluded).map(|which| which + " return"));
    for (listener, of) in of_families(listeners).into_iter().zip([4, 6]) {
        let Some((address, _)) = listener else { continue };
        let to = format!("{} daddr . tcp dport", family(address.is_ipv4()));
        rules.push(format!("{to} @answered{of} {to} != @failed{of} goto begin{of}"));
    }
    rules
}

fn begin(listener: (IpAddr, u16), marks: Marks) -> Vec<String> {
    vec![
        format!("limit rate over {RATE}/second burst {BURST} packets return"),
        format!(
            "{} {} {} counter name {BEGUN}",
            to(listener),
            set_mark("ct mark", marks.kind(Kind::Taken)),
            set_mark("meta mark", marks.kind(Kind::Taken))
        ),
    ]
}

fn taken(SplitOptions { listeners, marks, .. }: &SplitOptions) -> Vec<String> {
    let set_mark = set_mark("meta mark", marks.kind(Kind::Taken));
    let listeners = of_families(listeners).into_iter().flatten();
    // The listener gets packets without a socket, such as the last one of a handshake.
    let mut rules: Vec<String> =
        listeners.map(|listener| format!("{} {set_mark} return", to(listener))).collect();
    rules.push(set_mark);
    rules
}

fn to((address, port): (IpAddr, u16)) -> String {
    let (protocol, family) = match address.is_ipv4() {
        true => ("ipv4", "ip"),
        false => ("ipv6", "ip6"),
    };
    let socket = SocketAddr::new(address, port);
    format!("meta nfproto {protocol} meta l4proto tcp tproxy {family} to {socket}")
}

fn input(marks: Marks) -> Vec<String> {
    let (mark, mask) = marks.kind(Kind::Taken);
    vec![format!(
        "meta mark & {mask:#x} == {mark:#x} tcp flags & (fin | syn | rst | ack) == syn \
         ct state new counter name {COME_IN}"
    )]
}

fn forward(SplitOptions { tun, inside, .. }: &SplitOptions) -> Vec<String> {
    let rule = |inside| {
        format!(
            "iifname \"{tun}\" {inside} tcp flags & (fin | syn | rst | ack) == syn | ack \
             ct direction reply goto choose"
        )
    };
    matches_inside(inside, "oif", "").map(rule).collect()
}

/// This machine's packets in the name of hosts: they ended in order, or do not answer.
fn output(marks: Marks) -> Vec<String> {
    let ((mark, mask), (failed, _)) = (marks.kind(Kind::Taken), marks.kind(Kind::Failed));
    vec![
        format!("meta mark & {mask:#x} == {failed:#x} tcp flags & rst == rst goto blame"),
        format!("ct mark & {mask:#x} == {mark:#x} tcp flags & (fin | rst) == fin goto note"),
    ]
}

const BEGUN: &str = "begun";
const COME_IN: &str = "come_in";
const ANSWERED_MINUTES: u32 = 10;
const FAILED_MINUTES: u32 = 30;
const NOTED_MAX: u32 = 8192;
/// New connections per second, and the burst: a server's default bound for a client.
const RATE: u32 = 25;
const BURST: u32 = 50;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden::assert_golden;

    fn options(inside: &[&str], rules: Vec<SplitRule>, split_others: bool) -> SplitOptions {
        let interface = |name: &&str| Interface { name: (*name).to_owned(), index: 7 };
        SplitOptions {
            tun: "rw0".to_owned(),
            rules,
            split_others,
            listeners: vec![("127.0.0.1".parse().unwrap(), 4000), ("::1".parse().unwrap(), 6000)],
            inside: inside.iter().map(interface).collect(),
            excluded: Excluded::default(),
            marks: Marks::default(),
        }
    }

    #[test]
    fn the_tables_are_in_their_golden_files() {
        let rule = |to: &[&str], ports: &[RangeInclusive<u16>], split| SplitRule {
            to: to.iter().map(|network| network.parse().unwrap()).collect(),
            ports: ports.to_vec(),
            split,
        };
        let ports = [85..=89, 22..=22, 80..=86];
        let rules = vec![
            rule(&["192.0.2.0/24", "2001:db8::/32"], &ports, false),
            rule(&["198.51.100.0/25", "198.51.100.128/25"], &[], true),
            rule(&[], &[443..=443], true),
        ];
        let mut excluded = options(&["lan0"], Vec::new(), true);
        excluded.excluded = Excluded {
            destinations: ["203.0.113.0/24", "2001:db8::/32"].map(|it| it.parse().unwrap()).into(),
            marks: vec![(0x10, 0xff)],
        };
        for (name, options) in [
            ("rules", options(&["lan0"], rules, false)),
            ("nothing-inside", options(&[], Vec::new(), true)),
            ("excluded", excluded),
        ] {
            assert_golden(&format!("nft-split-{name}.txt"), &text("t", &options).0);
        }
    }
}
