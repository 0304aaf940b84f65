//! A client's rules and routes in the present state. Pure: planning again mends any change.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::RangeInclusive;

use ipnet::IpNet;
use roadweave_proto::{Kind, Marks, UplinkId};

use super::entries::{
    LOOPBACK, MAIN_TABLE, METRIC_REFUSAL, METRIC_SOCKETS, METRIC_TUN, PRIORITY_ANSWERS,
    PRIORITY_BOUND, PRIORITY_INWARD, PRIORITY_NEAR, PRIORITY_NEIGHBOURS, PRIORITY_REST,
    PRIORITY_SOCKETS, PRIORITY_UPLINK, RoutePlan, inner_table, near_table, neighbours_table,
    refusal, split_table, uplink_table,
};
use super::settings::{Grant, LocalNetworks, RouteSettings};
use crate::netlink::{DEFAULT_V4, DEFAULT_V6};
use crate::process::ROUTE_PROTOCOL;
use crate::space::{is_link_local, is_private};
use crate::{Gateway, NetworkInterface, Route, Rule, Uplink};

#[derive(Clone, Debug, Default)]
pub(super) struct KernelState {
    pub links: Vec<NetworkInterface>,
    pub addresses: Vec<(u32, IpNet)>,
    pub routes: Vec<Route>,
}

#[derive(Debug)]
pub(super) struct Planner<'a> {
    pub tables: RangeInclusive<u32>,
    pub marks: Marks,
    pub settings: &'a RouteSettings,
    pub uplinks: &'a BTreeMap<UplinkId, Uplink>,
    /// Interfaces that ever were uplinks, had a default route, were wireless or had a lease.
    pub outside: &'a BTreeSet<String>,
    pub tun: u32,
    /// Interfaces from which connections may end at this box.
    pub split: &'a BTreeSet<String>,
    pub grant: Option<&'a Grant>,
    pub seen: &'a KernelState,
}

struct Belongings {
    whole: Vec<IpNet>,
    named: BTreeSet<IpNet>,
    /// The server's inner addresses, a subset of `named`.
    inner: BTreeSet<IpNet>,
}

/// Which networks of an interface count as behind this box.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trust {
    /// All: the configuration places the interface behind the box.
    Whole,
    /// Its private networks: the interface is not configured, and leads nowhere else.
    Private,
    /// None: the interface is an uplink, may be one, or is not named.
    None,
}

impl Planner<'_> {
    pub(super) fn plan(&self) -> RoutePlan {
        let mut plan = RoutePlan::default();
        for (id, uplink) in self.uplinks {
            self.plan_uplink(&mut plan, *id, uplink);
        }
        if !self.split.is_empty() {
            self.plan_split(&mut plan);
        }
        if self.grant.is_none() && !self.settings.closed_before_join {
            return plan;
        }
        for ipv4 in [true, false] {
            self.plan_tunnel(&mut plan, ipv4);
        }
        plan
    }

    pub(super) fn passing(&self) -> BTreeSet<Route> {
        let mut passing = BTreeSet::new();
        if self.grant.is_none() && !self.settings.closed_before_join {
            return passing;
        }
        for ipv4 in [true, false] {
            let Some(Belongings { whole, inner, .. }) = self.belongings(ipv4) else { continue };
            let (tables, excluded) = (&self.tables, &self.settings.excluded);
            passing.extend(excluded.passing(ipv4, tables, !whole.is_empty(), &inner));
        }
        passing
    }

    fn belongings(&self, ipv4: bool) -> Option<Belongings> {
        let of_family = |prefix: &&IpNet| prefix.addr().is_ipv4() == ipv4;
        let wanted = self.settings.into_tunnel.iter().filter(of_family).map(IpNet::trunc);
        let (whole, named): (Vec<_>, Vec<_>) = wanted.partition(|prefix| prefix.prefix_len() == 0);
        let inner = self.grant.iter().flat_map(|grant| &grant.gateways).filter(of_family);
        let inner: BTreeSet<IpNet> = inner.copied().collect();
        let named: BTreeSet<IpNet> = named.into_iter().chain(inner.iter().copied()).collect();
        let is_any = !whole.is_empty() || !named.is_empty();
        is_any.then_some(Belongings { whole, named, inner })
    }

    /// The networks behind this box, without holes that `into_tunnel` or `accept` name.
    pub(super) fn local_networks(&self) -> Vec<IpNet> {
        let connected = self.seen.addresses.iter().map(|(index, own)| (*index, own.trunc()));
        let routed = [true, false].into_iter().flat_map(|ipv4| self.main_routes(ipv4));
        let routed = routed.filter(|route| route.destination.prefix_len() > 0);
        let routed = routed.filter_map(|route| Some((route.interface?, route.destination)));
        let is_behind = |(index, network): &(u32, IpNet)| {
            let link = self.seen.links.iter().find(|link| link.index == *index);
            link.is_some_and(|link| {
                !link.loopback && !is_link_local(*network) && self.is_local(link, *network)
            })
        };
        let networks: BTreeSet<IpNet> =
            connected.chain(routed).filter(is_behind).map(|(_, network)| network).collect();
        let named = self.settings.into_tunnel.iter().chain(&self.settings.accept);
        let holes: Vec<IpNet> = named.map(IpNet::trunc).collect();
        let left = networks.into_iter().flat_map(|network| {
            let is_wider = |hole: &&IpNet| hole.prefix_len() > network.prefix_len();
            without(network, &holes.iter().filter(is_wider).copied().collect::<Vec<_>>())
        });
        left.collect::<BTreeSet<_>>().into_iter().collect()
    }

    fn plan_uplink(&self, plan: &mut RoutePlan, id: UplinkId, uplink: &Uplink) {
        let table = uplink_table(&self.tables, id);
        for ipv4 in [true, false] {
            let of_family = |prefix: &&IpNet| prefix.addr().is_ipv4() == ipv4;
            let networks: Vec<IpNet> =
                uplink.addresses.iter().filter(of_family).map(IpNet::trunc).collect();
            if networks.is_empty() || !uplink.carrier {
                continue;
            }
            let rule = Rule { ipv4, table, protocol: ROUTE_PROTOCOL, ..Rule::default() };
            plan.rules.insert(Rule {
                priority: PRIORITY_UPLINK,
                output_interface: Some(uplink.name.clone()),
                ..rule.clone()
            });
            if let Some(mark) = self.marks.answer(id) {
                plan.rules.insert(Rule {
                    priority: PRIORITY_INWARD,
                    input_interface: Some(uplink.name.clone()),
                    goto: Some(PRIORITY_UPLINK),
                    ..rule.clone()
                });
                plan.rules.insert(Rule { priority: PRIORITY_ANSWERS, mark: Some(mark), ..rule });
            }
            let neighbours = networks.into_iter().chain((!ipv4).then(link_local_v6));
            for network in neighbours {
                plan.routes.insert(Route {
                    interface: Some(uplink.index),
                    ..refusal(network, table, metric(ipv4))
                });
            }
            if let Some(gateway) = uplink.gateway(ipv4) {
                plan.routes.insert(Route {
                    interface: Some(uplink.index),
                    gateway: gateway.address(),
                    ..refusal(default_of(ipv4), table, metric(ipv4))
                });
            }
        }
    }

    /// Receives connections that end here. By interface, since own answers may have the mark too.
    fn plan_split(&self, plan: &mut RoutePlan) {
        let table = split_table(&self.tables);
        for ipv4 in [true, false] {
            for name in self.split {
                plan.rules.insert(Rule {
                    ipv4,
                    priority: PRIORITY_SOCKETS,
                    input_interface: Some(name.clone()),
                    mark: Some(self.marks.kind(Kind::Taken)),
                    table,
                    protocol: ROUTE_PROTOCOL,
                    ..Rule::default()
                });
            }
            plan.routes.insert(Route {
                interface: Some(LOOPBACK),
                local: true,
                ..refusal(default_of(ipv4), table, METRIC_SOCKETS)
            });
        }
    }

    fn plan_tunnel(&self, plan: &mut RoutePlan, ipv4: bool) {
        let Some(Belongings { whole, named, inner }) = self.belongings(ipv4) else { return };
        let is_open = self
            .grant
            .is_some_and(|grant| grant.addresses.iter().any(|own| own.addr().is_ipv4() == ipv4));
        let mut look = |priority, table| {
            plan.rules.insert(Rule {
                ipv4,
                priority,
                table,
                protocol: ROUTE_PROTOCOL,
                ..Rule::default()
            });
        };
        let [near, neighbours, rest] =
            [near_table(&self.tables), neighbours_table(&self.tables), *self.tables.start()];
        look(PRIORITY_NEAR, near);
        if !whole.is_empty() {
            look(PRIORITY_REST, rest);
            if self.settings.local != LocalNetworks::None {
                look(PRIORITY_NEIGHBOURS, neighbours);
            }
        }
        let excluded = &self.settings.excluded;
        let marked = inner.iter().filter(|_| !excluded.marks.is_empty());
        let into_tunnel = named.into_iter().map(|prefix| (prefix, near));
        let into_tunnel = into_tunnel.chain(whole.iter().map(|prefix| (*prefix, rest)));
        let into_tunnel =
            into_tunnel.chain(marked.map(|prefix| (*prefix, inner_table(&self.tables))));
        for (prefix, table) in into_tunnel {
            plan.routes.insert(refusal(prefix, table, METRIC_REFUSAL));
            if is_open {
                let route = refusal(prefix, table, METRIC_TUN);
                plan.routes.insert(Route { interface: Some(self.tun), ..route });
            }
        }
        excluded.plan_marks(plan, ipv4, &self.tables, !inner.is_empty());
        self.plan_near(plan, ipv4, near);
        if !whole.is_empty() {
            self.plan_neighbours(plan, ipv4, neighbours);
            self.plan_bound(plan, ipv4);
        }
    }

    fn plan_near(&self, plan: &mut RoutePlan, ipv4: bool, table: u32) {
        for route in self.main_routes(ipv4).filter(|route| route.destination.prefix_len() > 0) {
            let link = self.seen.links.iter().find(|link| Some(link.index) == route.interface);
            if link.is_some_and(|link| self.is_local(link, route.destination)) {
                plan.routes.insert(copy(route, table));
            }
        }
    }

    /// Routes to the private networks of the uplinks' own addresses. An uplink's network claims its
    /// own extent: nothing that belongs into the tunnel may be in it.
    fn plan_neighbours(&self, plan: &mut RoutePlan, ipv4: bool, table: u32) {
        let named = self.settings.into_tunnel.iter().filter(|it| it.prefix_len() > 0);
        let granted = self.grant.iter();
        let granted =
            granted.flat_map(|it| it.addresses.iter().chain(&it.gateways).chain(&it.networks));
        let inner: Vec<IpNet> = named.chain(granted).map(IpNet::trunc).collect();
        for uplink in self.uplinks.values().filter(|uplink| uplink.carrier) {
            let own = uplink.addresses.iter().filter(|own| own.addr().is_ipv4() == ipv4);
            for (own, near) in own.filter_map(|own| Some((own, self.near_gateway(uplink, own)?))) {
                if inner.iter().any(|inner| inner.contains(&near)) {
                    continue;
                }
                for left in without(near, &inner) {
                    plan.routes.insert(Route {
                        interface: Some(uplink.index),
                        preferred_source: Some(own.addr()),
                        // Identical modems have identical networks: the kernel's order decides.
                        ..refusal(left, table, uplink.index)
                    });
                }
            }
        }
    }

    fn near_gateway(&self, uplink: &Uplink, own: &IpNet) -> Option<IpNet> {
        let network = own.trunc();
        let gateway = uplink.gateway(own.addr().is_ipv4()).and_then(Gateway::address);
        let gateway = gateway.filter(|gateway| network.contains(gateway));
        let near = match self.settings.local {
            LocalNetworks::None => return None,
            LocalNetworks::Gateway => IpNet::from(gateway?),
            LocalNetworks::Network if is_host(network) => return None,
            LocalNetworks::Network => {
                let length = if own.addr().is_ipv4() { 24 } else { 64 };
                let centre = gateway.unwrap_or(own.addr());
                IpNet::new_assert(centre, length.max(network.prefix_len())).trunc()
            }
        };
        is_private(near).then_some(near)
    }

    /// Lets sockets bound to an interface that is no uplink in service use its default route.
    fn plan_bound(&self, plan: &mut RoutePlan, ipv4: bool) {
        let table = self.tables.end() - 2;
        for link in self.seen.links.iter().filter(|link| link.index != self.tun) {
            let over_it: Vec<&Route> = self
                .main_routes(ipv4)
                .filter(|route| route.interface == Some(link.index))
                .collect();
            let rule = Rule {
                ipv4,
                priority: PRIORITY_UPLINK,
                output_interface: Some(link.name.clone()),
                protocol: ROUTE_PROTOCOL,
                ..Rule::default()
            };
            let in_service = plan.rules.iter().any(|known| {
                known.priority == rule.priority
                    && known.ipv4 == ipv4
                    && known.output_interface == rule.output_interface
            });
            if in_service || over_it.iter().all(|route| route.destination.prefix_len() > 0) {
                continue;
            }
            plan.rules.insert(Rule { priority: PRIORITY_BOUND, table, ..rule });
            plan.routes.extend(over_it.into_iter().map(|route| copy(route, table)));
        }
    }

    fn main_routes(&self, ipv4: bool) -> impl Iterator<Item = &Route> {
        self.seen.routes.iter().filter(move |route| {
            route.table == MAIN_TABLE
                && route.destination.addr().is_ipv4() == ipv4
                && route.interface.is_some_and(|index| index != self.tun)
        })
    }

    fn is_local(&self, link: &NetworkInterface, network: IpNet) -> bool {
        link.index != self.tun
            && match self.trust(&link.name) {
                Trust::Whole => true,
                Trust::Private => is_private(network) || is_link_local(network),
                Trust::None => false,
            }
    }

    fn trust(&self, name: &str) -> Trust {
        let selector = &self.settings.selector;
        match selector.names_inside(name) {
            true => Trust::Whole,
            false if self.outside.contains(name) || !selector.guesses_inside() => Trust::None,
            false => Trust::Private,
        }
    }
}

pub(super) fn leading_out<'a>(
    settings: &'a RouteSettings,
    seen: &'a KernelState,
) -> impl Iterator<Item = String> + 'a {
    let leads_out = |link: &NetworkInterface| {
        seen.routes.iter().any(|route| {
            route.destination.prefix_len() == 0
                && route.interface == Some(link.index)
                && route.protocol != ROUTE_PROTOCOL
        })
    };
    let found = seen.links.iter().filter(move |link| {
        !link.loopback && settings.selector.matches(&link.name) && leads_out(link)
    });
    found.map(|link| link.name.clone())
}

fn copy(route: &Route, table: u32) -> Route {
    Route { table, protocol: ROUTE_PROTOCOL, ..route.clone() }
}

/// The kernel's default for IPv6 is 1024, and it reports that.
fn metric(ipv4: bool) -> u32 {
    if ipv4 { 0 } else { 1024 }
}

fn default_of(ipv4: bool) -> IpNet {
    if ipv4 { DEFAULT_V4 } else { DEFAULT_V6 }
}

fn link_local_v6() -> IpNet {
    IpNet::new_assert(IpAddr::from([0xfe80, 0, 0, 0, 0, 0, 0, 0]), 64)
}

fn is_host(network: IpNet) -> bool {
    network == IpNet::from(network.addr())
}

fn without(network: IpNet, holes: &[IpNet]) -> Vec<IpNet> {
    let inner: Vec<IpNet> =
        holes.iter().filter(|hole| network.contains(&hole.addr())).copied().collect();
    match network.subnets(network.prefix_len() + 1) {
        _ if inner.is_empty() => vec![network],
        _ if inner.contains(&network) => Vec::new(),
        Err(_) => vec![network],
        Ok(halves) => halves.flat_map(|half| without(half, &inner)).collect(),
    }
}

#[cfg(test)]
mod tests;
