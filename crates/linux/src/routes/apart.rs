//! The table and rules that separate an anchor's routes from its neighbours' ([`crate::apart`]).
//!
//! ```text
//! priority  rule                               table
//! 523       came in by the TUN              -> of the anchor: its prefixes into the TUN, or refused
//! 523       has the anchor's mark           -> of the anchor
//! 523       socket bound to the TUN         -> of the anchor
//! ```
//!
//! The main table has the prefixes that connections may begin to: the own inner networks (of two
//! equal ones the older), and without masquerade all. With masquerade a client's prefix is in the
//! anchor's table only, so that it draws no packets of another tenant or of the machine.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;

use super::entries::{MAIN_TABLE, matches_mark, refusal};
use super::families;
use crate::apart::{Apart, GROUP};
use crate::process::ROUTE_PROTOCOL;
use crate::{DeviceError, Instance, Netlink, Route, Rule, sysctl};

/// The TUN of an anchor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnchorTun {
    /// The TUN's name.
    pub tun: String,
    /// Its index.
    pub index: u32,
    /// Its own inner networks.
    pub networks: Vec<IpNet>,
    /// Whether addresses behind it are known outside, as without masquerade.
    pub is_exposed: bool,
}

pub(super) type Clashes = Vec<(IpNet, String)>;

#[derive(Debug)]
pub(super) struct OwnTable {
    apart: Apart,
    surroundings: AnchorTun,
    number: u32,
}

impl OwnTable {
    pub(super) fn open(
        netlink: &mut Netlink,
        number: u32,
        apart: Apart,
        surroundings: AnchorTun,
    ) -> Result<Self, DeviceError> {
        check_mark(&netlink.rules()?, apart, &surroundings.tun)?;
        let own = Self { apart, surroundings, number };
        let networks = &own.surroundings.networks;
        let other_own = own.other_own_address(netlink)?;
        let clash = own.clashes(netlink, networks)?.into_iter().next().map(|(_, why)| why);
        if let Some(why) = other_own.or(clash) {
            return Err(DeviceError::Unavailable { why });
        }
        netlink.set_group(own.surroundings.index, GROUP)?;
        let (routes, rules) = own.own_ways();
        routes.iter().try_for_each(|it| unless_without_ipv6(netlink.replace_route(it)))?;
        rules.iter().try_for_each(|it| unless_without_ipv6(netlink.add_rule(it)))?;
        Ok(own)
    }

    pub(super) fn find_clashes(
        &self,
        netlink: &mut Netlink,
        prefixes: &[IpNet],
    ) -> Result<Clashes, DeviceError> {
        let AnchorTun { tun, networks, is_exposed, .. } = &self.surroundings;
        let mut found = Vec::new();
        for (name, address) in self.addresses_of_neighbours(netlink)? {
            let is_ours = networks.iter().any(|network| network.addr() == address.addr());
            let over = |prefix: &&IpNet| !is_default(prefix) && prefix.contains(&address.addr());
            for prefix in prefixes.iter().filter(|prefix| !is_ours && over(prefix)) {
                let why = format!(
                    "{prefix} is behind {tun}, and {} is the own address of {name}, another anchor \
                     of this machine, which would receive its packets",
                    address.addr()
                );
                found.push((*prefix, why));
            }
        }
        if *is_exposed {
            found.extend(self.clashes(netlink, prefixes)?);
        } else {
            for prefix in prefixes.iter().filter(|prefix| is_default(prefix)) {
                let why = format!(
                    "{prefix} is behind {tun}, which masquerades: it would attract all traffic"
                );
                found.push((*prefix, why));
            }
        }
        Ok(found)
    }

    fn addresses_of_neighbours(
        &self,
        netlink: &mut Netlink,
    ) -> Result<Vec<(String, IpNet)>, DeviceError> {
        let names = self.neighbours(netlink)?;
        let addresses = netlink.addresses()?.into_iter();
        let of_those = |(index, address)| Some((names.get(&index)?.clone(), address));
        Ok(addresses.filter_map(of_those).collect())
    }

    fn neighbours(&self, netlink: &mut Netlink) -> Result<BTreeMap<u32, String>, DeviceError> {
        let links = netlink.links()?.into_iter();
        let neighbours =
            links.filter(|link| link.group == GROUP && link.index != self.surroundings.index);
        Ok(neighbours.map(|link| (link.index, link.name)).collect())
    }

    /// In a network that a neighbour has too, own addresses must be equal: one of them answers.
    fn other_own_address(&self, netlink: &mut Netlink) -> Result<Option<String>, DeviceError> {
        let AnchorTun { tun, networks, .. } = &self.surroundings;
        for (name, theirs) in self.addresses_of_neighbours(netlink)? {
            let differs = |network: &&IpNet| {
                network.addr() != theirs.addr()
                    && (network.contains(&theirs.addr()) || theirs.contains(&network.addr()))
            };
            if let Some(network) = networks.iter().find(differs) {
                return Ok(Some(format!(
                    "{network} of {tun} overlaps with {theirs} of {name}, another anchor of this \
                     machine: the own addresses of both must be the same there, or the networks \
                     must not overlap"
                )));
            }
        }
        Ok(None)
    }

    fn clashes(&self, netlink: &mut Netlink, prefixes: &[IpNet]) -> Result<Clashes, DeviceError> {
        let AnchorTun { tun, is_exposed, .. } = &self.surroundings;
        let mut found = Vec::new();
        let neighbours = self.neighbours(netlink)?;
        if neighbours.is_empty() || prefixes.is_empty() {
            return Ok(found);
        }
        let routes = netlink.routes()?;
        let exposed: BTreeSet<u32> = routes
            .iter()
            .filter(|route| route.metric == METRIC_EXPOSED && route.protocol == ROUTE_PROTOCOL)
            .filter_map(|route| route.interface)
            .collect();
        let known = |route: &&Route| route.table == MAIN_TABLE || is_default(&route.destination);
        for route in routes.iter().filter(known) {
            let Some(index) = route.interface else { continue };
            let Some(name) = neighbours.get(&index) else { continue };
            if !is_exposed && !exposed.contains(&index) {
                continue;
            }
            for prefix in prefixes.iter().filter(|prefix| overlap(prefix, &route.destination)) {
                let theirs = route.destination;
                let why = format!(
                    "{} of {tun} overlaps with {theirs} of {name}, another anchor of this machine: \
                     only anchors that both masquerade can share prefixes",
                    prefix.trunc()
                );
                found.push((*prefix, why));
            }
        }
        Ok(found)
    }

    /// The routes for a prefix that is led into the TUN. `main`, the route of the main table, is
    /// added only if addresses are exposed.
    pub(super) fn ways(&self, prefix: &IpNet, main: Route) -> Vec<Route> {
        let exposed = self.surroundings.is_exposed.then_some(main);
        self.routes(prefix).into_iter().chain(exposed).collect()
    }

    pub(super) fn own_ways(&self) -> (Vec<Route>, Vec<Rule>) {
        let networks = self.surroundings.networks.iter();
        (networks.flat_map(|network| self.routes(network)).collect(), self.rules())
    }

    pub(super) fn mend_settings(
        &self,
        netlink: &mut Netlink,
        instance: &Instance,
        settings: &mut BTreeSet<String>,
    ) -> Result<usize, DeviceError> {
        let AnchorTun { tun, index, .. } = &self.surroundings;
        let (index, mut count) = (*index, 0);
        let valid = format!("net.ipv4.conf.{}.src_valid_mark", tun.replace('.', "/"));
        // The reverse path filter sees the mark, and rejections that this machine sends have it.
        for key in [valid].into_iter().chain(REFLECTING.map(str::to_owned)) {
            // A kernel without IPv6 has no such key.
            let Ok(value) = sysctl::read(&key) else { continue };
            // Recorded even if a neighbour has set it: it stays until the last of them ends.
            if value != "1" || !settings.contains(&key) {
                instance.settings().change(&key, "1")?;
                settings.insert(key);
                count += usize::from(value != "1");
            }
        }
        let links = netlink.links()?;
        if links.iter().any(|link| link.index == index && link.group != GROUP) {
            netlink.set_group(index, GROUP)?;
            count += 1;
        }
        Ok(count)
    }

    fn routes(&self, prefix: &IpNet) -> Vec<Route> {
        if is_default(prefix) {
            return Vec::new();
        }
        let metric = if self.surroundings.is_exposed { METRIC_EXPOSED } else { METRIC_HIDDEN };
        let route = |metric| refusal(prefix.trunc(), self.number, metric);
        let into = Route { interface: Some(self.surroundings.index), ..route(metric) };
        vec![into, route(METRIC_REFUSED)]
    }

    fn rules(&self) -> Vec<Rule> {
        let AnchorTun { tun, networks, .. } = &self.surroundings;
        let mut rules = Vec::new();
        for ipv4 in families(networks) {
            let rule = Rule {
                ipv4,
                priority: PRIORITY_APART,
                table: self.number,
                protocol: ROUTE_PROTOCOL,
                ..Rule::default()
            };
            rules.push(Rule { input_interface: Some(tun.clone()), ..rule.clone() });
            rules.push(Rule { mark: Some(self.apart.mark()), ..rule.clone() });
            rules.push(Rule { output_interface: Some(tun.clone()), ..rule });
        }
        rules
    }
}

fn check_mark(rules: &[Rule], apart: Apart, tun: &str) -> Result<(), DeviceError> {
    let unavailable = |why: String| Err(DeviceError::Unavailable { why });
    let (own, mine) = apart.mark();
    if own == 0 {
        return unavailable(format!(
            "the name {tun} yields no packet mark: choose another tun.name"
        ));
    }
    match rules.iter().find(|rule| matches_mark(rule, (own, mine))) {
        None => Ok(()),
        Some(rule) => {
            let (mark, mask) = rule.mark.unwrap_or_default();
            unavailable(format!(
                "the mark {own:#x} of {tun} is used by a rule of another program (priority {}, \
                 fwmark {mark:#x}/{mask:#x}): choose another tun.name, or set packet_marks to \
                 bits that no other program uses",
                rule.priority
            ))
        }
    }
}

fn is_default(prefix: &IpNet) -> bool {
    prefix.prefix_len() == 0
}

/// Default routes lose to all others, and clash with each other only.
fn overlap(a: &IpNet, b: &IpNet) -> bool {
    let same_kind = is_default(a) == is_default(b);
    same_kind && (a.contains(b) || b.contains(a))
}

fn unless_without_ipv6(result: Result<(), DeviceError>) -> Result<(), DeviceError> {
    match result {
        Err(DeviceError::NoIpv6 { .. }) => Ok(()),
        result => result,
    }
}

const PRIORITY_APART: u32 = 523;
/// Signals to neighbours that the prefix is known outside.
const METRIC_EXPOSED: u32 = 0x5256_0001;
/// Signals to neighbours that the prefix is masqueraded.
const METRIC_HIDDEN: u32 = 0x5256_0002;
const METRIC_REFUSED: u32 = u32::MAX - 1;
const REFLECTING: [&str; 2] = ["net.ipv4.fwmark_reflect", "net.ipv6.fwmark_reflect"];
