//! Policy routes: each uplink by its own gateway, inner traffic into the TUN, no loop.
//!
//! ```text
//! priority  rule                            table
//! 520       socket bound to uplink (oif) -> of the uplink: its networks, default by its gateway
//! 530       anything                     -> main, but its default routes       (*)
//! 531       anything                     -> of the tunnel: default into the TUN (*)
//! 32766     anything                     -> main         (*) only when default routes are wanted
//! ```
//!
//! Several instances share rule 530, since it is the same for all; the last of them removes it.
//!
//! The tunnel's own packets leave sockets that are bound to an uplink, so they meet rule 520 before
//! all that leads into the TUN; were the uplink's table empty, a route into the TUN would still not
//! fit the interface that they are bound to. Two uplinks with equal addresses and gateways differ by
//! interface only, which is what the rules look at.
//!
//! Prefixes other than the default go into the main table, where the longest prefix wins. Their metric
//! is the TUN's index: of two tunnels to one network the older one carries it until it ends.
//!
//! Strict reverse path filtering (`rp_filter` 1) would drop what comes in by any but the main
//! default's interface; on uplinks it is made loose (2) and restored at the end.

use std::collections::{BTreeMap, BTreeSet};

use roadweave_types::UplinkId;

use crate::process::ROUTE_PROTOCOL;
use crate::{DeviceError, Instance, Netlink, Prefix, Route, Rule, Uplink, sysctl};

/// The routes and rules of one instance. Settings are those of the network namespace of the calling
/// thread, so call it always from the one where it was opened. Dropping it removes them and restores the
/// settings that the instance changed.
#[derive(Debug)]
pub struct Routes {
    instance: Instance,
    netlink: Netlink,
    uplinks: BTreeMap<UplinkId, Installed>,
    settings: BTreeSet<String>,
}

/// What was added for one uplink.
#[derive(Debug, Default)]
struct Installed {
    rules: Vec<Rule>,
    routes: Vec<Route>,
}

impl Routes {
    /// Starts without any, in the network namespace of the calling thread; what an earlier run of
    /// the instance left is removed.
    ///
    /// # Errors
    /// [`DeviceError::NoPermission`], or what else the kernel says.
    pub fn open(instance: &Instance) -> Result<Self, DeviceError> {
        let netlink = Netlink::open()?;
        let mut this = Self {
            instance: instance.clone(),
            netlink,
            uplinks: BTreeMap::new(),
            settings: BTreeSet::new(),
        };
        this.remove_all()?;
        Ok(this)
    }

    /// Makes an uplink reach everything by its own gateway; call it again when the uplink changes.
    ///
    /// # Errors
    /// What the kernel says; what could be added before stays, and is removed in time.
    pub fn set_uplink(&mut self, uplink: &Uplink) -> Result<(), DeviceError> {
        let wanted = self.plan(uplink);
        let before = self.uplinks.remove(&uplink.id).unwrap_or_default();
        for route in before.routes.iter().filter(|route| !wanted.routes.contains(route)) {
            self.netlink.remove_route(route)?;
        }
        for rule in before.rules.iter().filter(|rule| !wanted.rules.contains(rule)) {
            self.netlink.remove_rule(rule)?;
        }
        // Remembered before it is done, so that a failure half way leaves nothing unknown.
        let installed = self.uplinks.entry(uplink.id).or_insert(wanted);
        for rule in &installed.rules {
            self.netlink.add_rule(rule)?;
        }
        // Again even if unchanged: the kernel drops routes when an interface loses its carrier.
        for route in &installed.routes {
            self.netlink.replace_route(route)?;
        }
        self.loosen_reverse_path_filter(&uplink.name)
    }

    /// Forgets an uplink that is gone or shall not be used.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn remove_uplink(&mut self, id: UplinkId) -> Result<(), DeviceError> {
        let installed = self.uplinks.remove(&id).unwrap_or_default();
        for route in &installed.routes {
            self.netlink.remove_route(route)?;
        }
        installed.rules.iter().try_for_each(|rule| self.netlink.remove_rule(rule))
    }

    /// Leads `prefixes` into the TUN whose index is `tun`; `0.0.0.0/0` and `::/0` lead all that has
    /// no more specific route. The kernel removes the routes with the TUN.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn route_into_tun(&mut self, tun: u32, prefixes: &[Prefix]) -> Result<(), DeviceError> {
        let table = self.tunnel_table();
        for prefix in prefixes {
            self.netlink.replace_route(&tun_route(tun, *prefix, table))?;
            if prefix.length() == 0 {
                for rule in default_rules(prefix.is_ipv4(), table) {
                    self.netlink.add_rule(&rule)?;
                }
            }
        }
        Ok(())
    }

    /// Undoes [`Routes::route_into_tun`] for some prefixes.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn route_out_of_tun(&mut self, tun: u32, prefixes: &[Prefix]) -> Result<(), DeviceError> {
        let table = self.tunnel_table();
        for prefix in prefixes {
            if prefix.length() == 0 {
                let [_, into_tunnel] = default_rules(prefix.is_ipv4(), table);
                self.netlink.remove_rule(&into_tunnel)?;
                self.release_main_rules()?;
            }
            self.netlink.remove_route(&tun_route(tun, *prefix, table))?;
        }
        Ok(())
    }

    fn tunnel_table(&self) -> u32 {
        *self.instance.routing_tables().start()
    }

    /// What one uplink needs.
    fn plan(&self, uplink: &Uplink) -> Installed {
        let mut installed = Installed::default();
        let tables = self.instance.routing_tables();
        // The first table is the tunnel's; more than 255 uplinks would share tables, not fail.
        let table = tables.start() + 1 + uplink.id.0 % 255;
        for ipv4 in [true, false] {
            let networks = uplink.addresses.iter().filter(|prefix| prefix.is_ipv4() == ipv4);
            let networks: Vec<Prefix> = networks.map(Prefix::network).collect();
            if networks.is_empty() || !uplink.carrier {
                continue;
            }
            let route = |destination, gateway| Route {
                destination,
                gateway,
                interface: Some(uplink.index),
                table,
                metric: 0,
                protocol: ROUTE_PROTOCOL,
            };
            installed.rules.push(Rule {
                ipv4,
                priority: PRIORITY_UPLINK,
                output_interface: Some(uplink.name.clone()),
                table,
                protocol: ROUTE_PROTOCOL,
                ..Rule::default()
            });
            installed.routes.extend(networks.into_iter().map(|network| route(network, None)));
            if let Some(gateway) = uplink.gateway(ipv4) {
                let default = if ipv4 { Prefix::DEFAULT_V4 } else { Prefix::DEFAULT_V6 };
                installed.routes.push(route(default, gateway.address()));
            }
        }
        installed
    }

    /// Removes every rule and route that bears our protocol and lies in the instance's tables.
    fn remove_all(&mut self) -> Result<(), DeviceError> {
        self.uplinks.clear();
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

    /// Removes the rules that lead past the main table's default routes, for families in which no
    /// instance needs them any more.
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

    /// Lets `interface` take what the main routes would have come by another, until the instance ends.
    pub(crate) fn loosen_reverse_path_filter(
        &mut self,
        interface: &str,
    ) -> Result<(), DeviceError> {
        // The larger number of both counts, so that an interface at 2 is loose whatever "all" says
        // (Linux Documentation/networking/ip-sysctl.rst).
        let key = format!("net.ipv4.conf.{}.rp_filter", interface.replace('.', "/"));
        let all = sysctl::read("net.ipv4.conf.all.rp_filter")?;
        let own = sysctl::read(&key)?;
        if own == "1" || (own == "0" && all == "1") {
            self.settings.insert(key.clone());
            self.instance.change_setting(&key, "2")?;
        }
        Ok(())
    }
}

impl Drop for Routes {
    fn drop(&mut self) {
        if let Err(error) = self.remove_all() {
            tracing::warn!(%error, "routes could not be removed; the next start tries again");
        }
        self.instance.restore(|key| self.settings.contains(key));
    }
}

/// A route into the TUN: the default in the tunnel's own `table`, all else in the main table.
fn tun_route(tun: u32, prefix: Prefix, table: u32) -> Route {
    Route {
        destination: prefix,
        gateway: None,
        interface: Some(tun),
        table: if prefix.length() == 0 { table } else { MAIN_TABLE },
        metric: tun,
        protocol: ROUTE_PROTOCOL,
    }
}

/// The two rules that lead what has no specific route into the tunnel's table.
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

const MAIN_TABLE: u32 = 254;
const PRIORITY_UPLINK: u32 = 520;
const PRIORITY_MAIN: u32 = 530;
const PRIORITY_TUNNEL: u32 = 531;
