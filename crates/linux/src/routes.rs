//! Policy routes: each uplink by its own gateway, inner traffic into the TUN, no loop.
//!
//! ```text
//! priority  rule                               table
//! 518       came in by an uplink            -> continue at 520
//! 519       marked: answers by an uplink    -> of the uplink
//! 520       socket bound to uplink (oif)    -> of the uplink: its networks, default by its gateway
//! 521       socket bound to another interface with a default route -> copies of its main routes
//! 522       from inside, marked: ends here  -> this machine (see `filter::split`)
//! 523       marked: excluded                -> inner addresses of the server, into the TUN
//! 524       marked: excluded                -> continue at main (see [`self::excluded`])
//! 525       anything                        -> near: networks behind this box, prefixes led into the TUN
//! 526       anything                        -> the uplinks' gateways, or private networks         (*)
//! 532       anything                        -> of the tunnel: default into the TUN, or refused   (*)
//! 32766     anything                        -> main               (*) only when default routes are wanted
//! ```
//!
//! The tunnel's own packets leave sockets bound to an uplink, so rule 520 matches them before any
//! rule into the TUN. A route into the TUN does not match a bound socket even if the uplink's table
//! is empty. Rules select by interface, so uplinks may have equal addresses and gateways.
//!
//! Routes that an uplink's network announces (DHCP option 121, a wide netmask, router
//! advertisements) land in the main table, which is looked up last, so they draw no traffic out of
//! the tunnel (CVE-2024-3661). Its routes over other interfaces are copied into the near table.
//! Each route into the TUN has an "unreachable" route beside it that outlives it: traffic for the
//! tunnel never leaves in the clear, before a session, without an address, or after a crash.
//!
//! Strict reverse path filtering (`rp_filter` 1) drops packets by any interface but that of the
//! main default route; on uplinks it is loose (2) until the end. A loose filter drops packets whose
//! way back is unreachable; the marks of [`crate::answers`] route them by the uplink.
//!
//! A server and a router use [`Routes`]: prefixes in the main table, two rules for default routes:
//!
//! ```text
//! 530       anything                        -> main, without its default routes
//! 531       anything                        -> of the tunnel: default into the TUN
//! ```
//!
//! All instances share rule 530; the last one removes it. The prefixes' metric is the TUN's index:
//! of two tunnels to one network the older carries it. [`self::apart`] separates anchors' routes,
//! and [`self::sockets`] routes to a server's sockets that have its clients' addresses.

mod apart;
mod client;
mod entries;
mod excluded;
mod keeper;
mod passing;
mod plan;
mod repairs;
mod settings;
mod sockets;
mod watch;

use std::collections::BTreeSet;

use ipnet::IpNet;
use roadweave_proto::Kind;

use crate::apart::Apart;
use crate::process::ROUTE_PROTOCOL;
use crate::{DeviceError, Instance, Netlink, NetworkInterface, Route, Rule, Tun, sysctl};

pub use apart::AnchorTun;
use apart::{Clashes, OwnTable};
pub use client::ClientRoutes;
use entries::{KERNEL_PROTOCOL, LOCAL_TABLE, MAIN_TABLE, PRIORITY_MAIN, PRIORITY_TUNNEL};
pub use excluded::Excluded;
pub use keeper::RouteKeeper;
pub use repairs::Change;
pub use repairs::Repairs;
pub use settings::{Grant, LocalNetworks, RouteSettings};
use sockets::SocketTable;

/// The routes and rules of a server or router, for the network namespace in which it was opened and
/// must be called. Dropping it removes the routes and restores the settings.
#[derive(Debug)]
pub struct Routes {
    instance: Instance,
    netlink: Netlink,
    settings: BTreeSet<String>,
    wanted: BTreeSet<(u32, IpNet)>,
    tun: Option<(u32, u32)>,
    addresses: BTreeSet<(u32, IpNet)>,
    own_table: Option<OwnTable>,
    socket_table: Option<SocketTable>,
}

impl Routes {
    /// Starts without routes, in the calling thread's namespace; removes those of an earlier run.
    pub fn open(instance: &Instance) -> Result<Self, DeviceError> {
        let netlink = Netlink::open()?;
        let mut this = Self {
            instance: instance.clone(),
            netlink,
            settings: BTreeSet::new(),
            wanted: BTreeSet::new(),
            tun: None,
            addresses: BTreeSet::new(),
            own_table: None,
            socket_table: None,
        };
        this.remove_all()?;
        Ok(this)
    }

    /// Separates routes into the TUN from neighbours with the same prefixes. Call it once, before
    /// [`Routes::route_into_tun`]. Fails with [`DeviceError::Unavailable`], without a change, if
    /// another program uses the mark, or a network is known outside and a neighbour has it too.
    pub fn keep_apart(&mut self, apart: Apart, surroundings: AnchorTun) -> Result<(), DeviceError> {
        let number = self.tunnel_table() + 1;
        self.own_table = Some(OwnTable::open(&mut self.netlink, number, apart, surroundings)?);
        self.mend_settings().map(drop)
    }

    /// The `prefixes` that are known outside and that a neighbour has too, each with the reason.
    pub fn find_clashes(&mut self, prefixes: &[IpNet]) -> Result<Clashes, DeviceError> {
        let Some(own) = &self.own_table else { return Ok(Vec::new()) };
        own.find_clashes(&mut self.netlink, prefixes)
    }

    /// Receives marked packets to `networks`, and to prefixes that are led into the TUN later. Call
    /// it once, before [`Routes::route_into_tun`]. Fails with [`DeviceError::Unavailable`], without
    /// a change, if another program uses the mark.
    pub fn take_for_sockets(&mut self, networks: &[IpNet]) -> Result<(), DeviceError> {
        let (number, mark) =
            (self.tunnel_table() + 2, self.instance.marks().kind(Kind::ClientSocket));
        self.socket_table = Some(SocketTable::open(&mut self.netlink, number, mark, networks)?);
        Ok(())
    }

    /// Leads `prefixes` into the TUN with the index `tun`; `0.0.0.0/0` and `::/0` match what has no
    /// more specific route. The kernel removes the routes with the TUN.
    pub fn route_into_tun(&mut self, tun: u32, prefixes: &[IpNet]) -> Result<(), DeviceError> {
        let table = self.tunnel_table();
        for prefix in prefixes {
            for route in self.ways(tun, prefix) {
                self.netlink.replace_route(&route)?;
            }
            if prefix.prefix_len() == 0 {
                for rule in default_rules(prefix.addr().is_ipv4(), table) {
                    self.netlink.add_rule(&rule)?;
                }
            }
            self.wanted.insert((tun, *prefix));
        }
        Ok(())
    }

    /// Registers the TUN with its MTU and addresses, for [`Routes::mend`] to keep up.
    pub fn keep_tun(&mut self, tun: &Tun, addresses: &[IpNet]) {
        self.tun = Some((tun.index(), tun.mtu().into()));
        self.addresses.extend(addresses.iter().map(|address| (tun.index(), *address)));
    }

    /// Restores what another program changed, and returns it. After an error, restores the rest.
    pub fn mend(&mut self) -> Result<Vec<Change>, DeviceError> {
        let settings = self.mend_settings();
        let (link, mut changes) = match self.tun {
            // The kernel removed routes and addresses with the link, so it comes first.
            Some((index, mtu)) => {
                let links = self.netlink.links()?;
                mend_link(&mut self.netlink, &links, index, Some(mtu))
            }
            None => (Ok(()), Vec::new()),
        };
        let (addresses, table) = (self.netlink.addresses()?, self.tunnel_table());
        let is_gone = |address: &&(u32, IpNet)| !addresses.contains(address);
        let addresses: Vec<_> = self.addresses.iter().filter(is_gone).copied().collect();
        let (routes, rules) = (self.netlink.routes()?, self.netlink.rules()?);
        let routes: BTreeSet<&Route> = routes.iter().collect();
        let (own_routes, own_rules) = self.own_ways();
        let wanted = self.wanted.iter();
        let lost: Vec<Route> = wanted
            .clone()
            .flat_map(|(tun, prefix)| self.ways(*tun, prefix))
            .chain(own_routes)
            .filter(|route| !routes.contains(route))
            .collect();
        let defaults = wanted.filter(|(_, prefix)| prefix.prefix_len() == 0);
        let mut lost_rules: Vec<Rule> = defaults
            .flat_map(|(_, prefix)| default_rules(prefix.addr().is_ipv4(), table))
            .chain(own_rules)
            .filter(|rule| !rules.contains(rule))
            .collect();
        lost_rules.dedup();
        let count = addresses.len() + lost.len() + lost_rules.len();
        note_removed(&mut changes, count + settings.as_ref().copied().unwrap_or(0));
        let netlink = &mut self.netlink;
        let mut results: Vec<Result<(), DeviceError>> = vec![settings.map(drop), link];
        results.push(mend_local_rules(netlink, &rules, &mut changes));
        results.extend(addresses.iter().map(|(tun, address)| netlink.add_address(*tun, *address)));
        results.extend(lost.iter().map(|route| netlink.replace_route(route)));
        results.extend(lost_rules.iter().map(|rule| netlink.add_rule(rule)));
        results.into_iter().collect::<Result<(), _>>().map(|()| changes)
    }

    /// Undoes [`Routes::route_into_tun`] for some prefixes.
    pub fn route_out_of_tun(&mut self, tun: u32, prefixes: &[IpNet]) -> Result<(), DeviceError> {
        let table = self.tunnel_table();
        for prefix in prefixes {
            if prefix.prefix_len() == 0 {
                let [_, into_tunnel] = default_rules(prefix.addr().is_ipv4(), table);
                self.netlink.remove_rule(&into_tunnel)?;
                self.release_main_rules()?;
            }
            self.wanted.remove(&(tun, *prefix));
            for route in self.ways(tun, prefix) {
                self.netlink.remove_route(&route)?;
            }
        }
        Ok(())
    }

    fn ways(&self, tun: u32, prefix: &IpNet) -> Vec<Route> {
        let main = entries::tun_route(tun, *prefix, self.tunnel_table());
        let mut ways = match &self.own_table {
            None => vec![main],
            Some(own) => own.ways(prefix, main),
        };
        ways.extend(self.socket_table.as_ref().and_then(|table| table.route(prefix)));
        ways
    }

    fn own_ways(&self) -> (Vec<Route>, Vec<Rule>) {
        let sockets = self.socket_table.as_ref().map(SocketTable::ways);
        let own = self.own_table.as_ref().map(OwnTable::own_ways);
        let (routes, rules): (Vec<_>, Vec<_>) = sockets.into_iter().chain(own).unzip();
        (routes.concat(), rules.concat())
    }

    fn mend_settings(&mut self) -> Result<usize, DeviceError> {
        let Some(own) = &self.own_table else { return Ok(0) };
        own.mend_settings(&mut self.netlink, &self.instance, &mut self.settings)
    }

    fn tunnel_table(&self) -> u32 {
        *self.instance.routing_tables().start()
    }

    fn remove_all(&mut self) -> Result<(), DeviceError> {
        let tables = self.instance.routing_tables();
        for rule in self.netlink.rules()? {
            if rule.protocol == ROUTE_PROTOCOL && tables.contains(&rule.table) {
                self.netlink.remove_rule(&rule)?;
            }
        }
        self.release_main_rules()?;
        for route in self.netlink.routes()? {
            if route.protocol == ROUTE_PROTOCOL && tables.contains(&route.table) {
                self.netlink.remove_route(&route)?;
            }
        }
        Ok(())
    }

    fn release_main_rules(&mut self) -> Result<(), DeviceError> {
        let rules = self.netlink.rules()?;
        let ours = || rules.iter().filter(|rule| rule.protocol == ROUTE_PROTOCOL);
        for rule in ours().filter(|rule| rule.priority == PRIORITY_MAIN) {
            let needed =
                ours().any(|other| other.priority == PRIORITY_TUNNEL && other.ipv4 == rule.ipv4);
            if !needed {
                self.netlink.remove_rule(rule)?;
            }
        }
        Ok(())
    }

    /// Sets the reverse path filter of `interface` to loose until the instance ends.
    pub fn loosen_reverse_path_filter(&mut self, interface: &str) -> Result<(), DeviceError> {
        self.settings.extend(loosen_reverse_path_filter(&self.instance, interface)?);
        Ok(())
    }
}

impl Drop for Routes {
    fn drop(&mut self) {
        if let Err(error) = self.remove_all() {
            tracing::warn!(%error, "routes could not be removed; the next start tries again");
        }
        self.instance.settings().restore(|key| self.settings.contains(key));
    }
}

fn mend_link(
    netlink: &mut Netlink,
    links: &[NetworkInterface],
    index: u32,
    mtu: Option<u32>,
) -> (Result<(), DeviceError>, Vec<Change>) {
    let Some(link) = links.iter().find(|link| link.index == index) else {
        return (Ok(()), Vec::new());
    };
    let other_mtu = mtu.is_some_and(|mtu| mtu != link.mtu);
    let mut changes = Vec::new();
    changes.extend((!link.up).then_some(Change::LinkDown));
    changes.extend(other_mtu.then_some(Change::Mtu(link.mtu)));
    match changes.is_empty() {
        true => (Ok(()), changes),
        false => (netlink.set_link(index, true, mtu), changes),
    }
}

/// Adds the number of missing entries, unless the kernel removed them with a TUN that was set down.
fn note_removed(changes: &mut Vec<Change>, lost: usize) {
    if lost > 0 && !changes.contains(&Change::LinkDown) {
        changes.push(Change::Removed(lost));
    }
}

/// Restores the rule for the local table: else packets for this machine would enter the tunnel.
fn mend_local_rules(
    netlink: &mut Netlink,
    rules: &[Rule],
    changes: &mut Vec<Change>,
) -> Result<(), DeviceError> {
    let missing = missing_local_rules(rules);
    if !missing.is_empty() {
        changes.push(Change::LocalRule);
    }
    missing.iter().try_for_each(|rule| netlink.add_rule(rule))
}

fn missing_local_rules(rules: &[Rule]) -> Vec<Rule> {
    let local =
        |ipv4| Rule { ipv4, table: LOCAL_TABLE, protocol: KERNEL_PROTOCOL, ..Rule::default() };
    let is_missing = |wanted: &Rule| {
        let of_family = || rules.iter().filter(|rule| rule.ipv4 == wanted.ipv4);
        let ours = of_family().filter(|rule| rule.protocol == ROUTE_PROTOCOL);
        let first = ours.map(|rule| rule.priority).min();
        let is_local = |rule: &&Rule| {
            let bare = Rule { priority: 0, protocol: KERNEL_PROTOCOL, ..(*rule).clone() };
            bare == *wanted
        };
        first.is_some_and(|first| !of_family().filter(is_local).any(|rule| rule.priority < first))
    };
    [true, false].map(local).into_iter().filter(is_missing).collect()
}

fn loosen_reverse_path_filter(
    instance: &Instance,
    interface: &str,
) -> Result<Option<String>, DeviceError> {
    // The larger of both values counts (Linux Documentation/networking/ip-sysctl.rst).
    let key = format!("net.ipv4.conf.{}.rp_filter", interface.replace('.', "/"));
    let all = sysctl::read("net.ipv4.conf.all.rp_filter")?;
    let own = sysctl::read(&key)?;
    if own == "1" || (own == "0" && all == "1") {
        instance.settings().change(&key, "2")?;
        return Ok(Some(key));
    }
    Ok(None)
}

/// Whether the kernel drops packets whose sender it would reach by another interface.
pub fn has_reverse_path_filter(interface: &str) -> bool {
    let keys =
        ["all", &interface.replace('.', "/")].map(|of| format!("net.ipv4.conf.{of}.rp_filter"));
    keys.iter().any(|key| sysctl::read(key).is_ok_and(|value| value != "0"))
}

fn hide_other_addresses(
    instance: &Instance,
    interface: &str,
) -> Result<Option<String>, DeviceError> {
    let key = format!("net.ipv4.conf.{}.arp_ignore", interface.replace('.', "/"));
    let keys = ["net.ipv4.conf.all.arp_ignore", &key];
    for key in keys {
        if sysctl::read(key)? != "0" {
            return Ok(None);
        }
    }
    instance.settings().change(&key, "1")?;
    Ok(Some(key))
}

/// The families of rules to restore: a kernel without IPv6 has none of it.
fn families(networks: &[IpNet]) -> impl Iterator<Item = bool> {
    let has_ipv6 = networks.iter().any(|network| network.addr().is_ipv6())
        || sysctl::read("net.ipv6.conf.all.forwarding").is_ok();
    [true, false].into_iter().filter(move |ipv4| *ipv4 || has_ipv6)
}

fn default_rules(ipv4: bool, table: u32) -> [Rule; 2] {
    let rule = Rule { ipv4, protocol: ROUTE_PROTOCOL, ..Rule::default() };
    [
        Rule {
            priority: PRIORITY_MAIN,
            table: MAIN_TABLE,
            suppress_length: Some(0),
            ..rule.clone()
        },
        Rule { priority: PRIORITY_TUNNEL, table, ..rule },
    ]
}
