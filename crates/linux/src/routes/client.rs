//! Keeps a client's rules and routes as planned; adopts those of an earlier run, so nothing opens.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use netlink_packet_route::route::RouteType;
use roadweave_proto::{Kind, UplinkId, UplinkSelector};

use super::entries::{
    PRIORITY_NEAR, RoutePlan, near_table, neighbours_table, split_table, uplink_table,
};
use super::passing::PassingKeeper;
use super::plan::{KernelState, Planner, leading_out};
use super::sockets::check_mark;
use super::{
    Change, Excluded, Grant, RouteSettings, Routes, hide_other_addresses,
    loosen_reverse_path_filter, mend_link, mend_local_rules, note_removed,
};
use crate::monitor::foreign;
use crate::netlink::{parse_address, parse_lease};
use crate::process::ROUTE_PROTOCOL;
use crate::{DeviceError, Instance, Netlink, Route, Rule, Uplink};

/// The rules and routes of one client, for the network namespace in which it was opened and must be
/// called. The rules outlive it: `cleanup` removes them.
#[derive(Debug)]
pub struct ClientRoutes {
    instance: Instance,
    netlink: Netlink,
    settings: RouteSettings,
    tun: u32,
    uplinks: BTreeMap<UplinkId, Uplink>,
    outside: BTreeSet<String>,
    split: BTreeSet<String>,
    grant: Option<Grant>,
    passing: Option<PassingKeeper>,
    has_other_passing: bool,
    installed: RoutePlan,
    local_networks: Vec<IpNet>,
    failures: Vec<Failure>,
}

#[derive(Debug)]
struct Failure {
    /// The table of the route or rule; zero for none.
    table: u32,
    /// Without this entry, traffic for the tunnel may leave in the clear.
    is_open: bool,
    error: DeviceError,
}

impl ClientRoutes {
    /// Changes nothing yet. `tun` is the index of the TUN.
    pub fn open(
        instance: &Instance,
        settings: RouteSettings,
        tun: u32,
    ) -> Result<Self, DeviceError> {
        Ok(Self {
            instance: instance.clone(),
            netlink: Netlink::open()?,
            settings,
            tun,
            uplinks: BTreeMap::new(),
            outside: BTreeSet::new(),
            split: BTreeSet::new(),
            grant: None,
            passing: None,
            has_other_passing: true,
            installed: RoutePlan::default(),
            local_networks: Vec::new(),
            failures: Vec::new(),
        })
    }

    /// Changes which interfaces are uplinks; call it before they come and go.
    pub fn set_selector(&mut self, selector: UplinkSelector) {
        self.outside.retain(|name| selector.matches(name));
        self.settings.selector = selector;
    }

    /// Changes the exclusions, from the next look on.
    pub fn set_excluded(&mut self, excluded: Excluded) {
        self.settings.excluded = excluded;
        self.has_other_passing = true;
    }

    /// Waits until the kernel has the throw routes of the last look; on an error they are retried.
    pub fn await_excluded(&mut self) -> Result<(), DeviceError> {
        self.passing.as_mut().map_or(Ok(()), PassingKeeper::wait)
    }

    /// Routes what is bound to an uplink by its gateway; repeat if it changes. Fails if refused.
    pub fn set_uplink(&mut self, uplink: &Uplink) -> Result<(), DeviceError> {
        self.outside.insert(uplink.name.clone());
        self.uplinks.insert(uplink.id, uplink.clone());
        self.sync()?;
        let own = uplink_table(&self.instance.routing_tables(), uplink.id);
        let failed = self.failures.iter().position(|failure| failure.table == own);
        if let Some(at) = failed {
            return Err(self.failures.swap_remove(at).error);
        }
        hide_other_addresses(&self.instance, &uplink.name)?;
        loosen_reverse_path_filter(&self.instance, &uplink.name).map(drop)
    }

    /// Removes an uplink that is gone or must not be used.
    pub fn remove_uplink(&mut self, id: UplinkId) -> Result<(), DeviceError> {
        match self.uplinks.remove(&id) {
            Some(_) => self.sync().map(drop),
            None => Ok(()),
        }
    }

    /// Receives packets of connections that end here, marked as such, from these interfaces. Fails
    /// with [`DeviceError::Unavailable`] if another program uses the mark.
    pub fn take_split(&mut self, interfaces: BTreeSet<String>) -> Result<(), DeviceError> {
        check_mark(&self.netlink.rules()?, self.instance.marks().kind(Kind::Taken))?;
        if self.split == interfaces {
            return Ok(());
        }
        self.split = interfaces;
        self.sync()?;
        let own = split_table(&self.instance.routing_tables());
        match self.failures.iter().position(|failure| failure.table == own) {
            None => Ok(()),
            Some(at) => {
                self.split.clear();
                Err(self.failures.swap_remove(at).error)
            }
        }
    }

    /// Leads traffic for the tunnel into the TUN, in the families in which `grant` has an address.
    pub fn set_grant(&mut self, grant: Grant) -> Result<(), DeviceError> {
        let before = self.grant.replace(grant).map(|grant| grant.gateways);
        self.has_other_passing |= before.as_ref() != self.grant.as_ref().map(|it| &it.gateways);
        self.sync().map(drop)
    }

    /// Refuses traffic for the tunnel, if the settings demand it. On an error only an earlier run's
    /// refusals remain; other failures are kept for [`ClientRoutes::take_failures`].
    pub fn close(&mut self) -> Result<(), DeviceError> {
        let seen = KernelState { routes: self.netlink.routes()?, ..KernelState::default() };
        let is_closed = self.find(&seen, &[]).routes.iter().any(is_refusal);
        self.sync()?;
        let excluded = self.await_excluded();
        self.note(0, false, excluded);
        let Some(at) = self.failures.iter().position(|failure| failure.is_open) else {
            return Ok(());
        };
        if !is_closed {
            // A half closed state would be open.
            self.passing = None;
            Routes::open(&self.instance).map(drop)?;
        }
        Err(self.failures.swap_remove(at).error)
    }

    /// Sets the uplinks' reverse path filters to loose again; returns those that were strict.
    pub fn mend_reverse_path_filters(&mut self) -> Result<Vec<Change>, DeviceError> {
        let mut changes = Vec::new();
        for uplink in self.uplinks.values() {
            if loosen_reverse_path_filter(&self.instance, &uplink.name)?.is_some() {
                changes.push(Change::ReversePathFilter(uplink.name.clone()));
            }
        }
        Ok(changes)
    }

    /// Makes rules, routes and addresses as planned; returns what another program had changed.
    /// Failures are kept for [`ClientRoutes::take_failures`]. Fails if the tables cannot be read.
    pub fn sync(&mut self) -> Result<Vec<Change>, DeviceError> {
        self.failures.clear();
        let links = self.netlink.links()?;
        // The kernel removed routes and addresses with the link, so it comes first.
        let mtu = self.grant.as_ref().map(|grant| grant.mtu);
        let (up, mut changes) = mend_link(&mut self.netlink, &links, self.tun, mtu);
        let rules = self.netlink.rules()?;
        let first = mend_local_rules(&mut self.netlink, &rules, &mut changes);
        self.note(0, false, up.and(first));
        let messages = self.netlink.address_messages()?;
        let addresses = messages.iter().filter_map(parse_address).collect();
        let seen = KernelState { links, addresses, routes: self.netlink.routes_of(&KINDS)? };
        self.outside.extend(leading_out(&self.settings, &seen));
        if self.settings.selector.guesses_inside() {
            let leases: Vec<_> = messages.iter().filter_map(parse_lease).collect();
            self.outside.extend(foreign(&seen.links, &leases));
        }
        let planner = Planner {
            tables: self.instance.routing_tables(),
            marks: self.instance.marks(),
            settings: &self.settings,
            uplinks: &self.uplinks,
            outside: &self.outside,
            tun: self.tun,
            split: &self.split,
            grant: self.grant.as_ref(),
            seen: &seen,
        };
        let (plan, local_networks) = (planner.plan(), planner.local_networks());
        let passing = self.has_other_passing.then(|| planner.passing());
        self.local_networks = local_networks;
        let found = self.find(&seen, &rules);
        let lost = self.count_lost(&plan, &found) + self.mend_addresses(&seen);
        note_removed(&mut changes, lost);
        self.change(&found, &plan);
        self.installed = plan;
        passing.map_or(Ok(()), |passing| self.set_passing(passing))?;
        Ok(changes)
    }

    fn set_passing(&mut self, wanted: BTreeSet<Route>) -> Result<(), DeviceError> {
        let is_any = !wanted.is_empty() || !self.netlink.routes_of(&[RouteType::Throw])?.is_empty();
        if self.passing.is_none() && is_any {
            self.passing = Some(PassingKeeper::start(&self.instance)?);
        }
        if let Some(passing) = &mut self.passing {
            passing.set(wanted);
        }
        self.has_other_passing = false;
        Ok(())
    }

    /// The failures of the last look.
    pub fn take_failures(&mut self) -> impl Iterator<Item = DeviceError> {
        self.failures.drain(..).map(|failure| failure.error)
    }

    /// The networks behind this box, in order, without those that the settings place in the tunnel.
    pub fn local_networks(&self) -> &[IpNet] {
        &self.local_networks
    }

    /// The networks near uplinks that are reached outside the tunnel, each with its uplink.
    pub fn neighbours(&self) -> BTreeSet<(String, IpNet)> {
        let table = neighbours_table(&self.instance.routing_tables());
        let routes = self.installed.routes.iter().filter(|route| route.table == table);
        let named = routes.filter_map(|route| {
            let uplink = self.uplinks().find(|uplink| Some(uplink.index) == route.interface)?;
            Some((uplink.name.clone(), route.destination))
        });
        named.collect()
    }

    /// The uplink whose own network holds `address` and reaches it outside the tunnel.
    pub fn neighbour_over(&self, address: IpAddr) -> Option<&str> {
        let within = |table| {
            let routes = self.installed.routes.iter().filter(move |route| route.table == table);
            routes.filter(move |route| route.destination.contains(&address))
        };
        let tables = self.instance.routing_tables();
        let passes_by = |passing: &PassingKeeper| passing.holds(near_table(&tables), address);
        if within(near_table(&tables)).next().is_some()
            || self.passing.as_ref().is_some_and(passes_by)
        {
            return None;
        }
        let index = within(neighbours_table(&tables)).next()?.interface?;
        self.uplinks().find(|uplink| uplink.index == index).map(|uplink| uplink.name.as_str())
    }

    /// What the session grants, if there is one.
    pub fn grant(&self) -> Option<&Grant> {
        self.grant.as_ref()
    }

    /// The uplinks in service.
    pub fn uplinks(&self) -> impl Iterator<Item = &Uplink> {
        self.uplinks.values()
    }

    /// Whether all traffic without another route is refused until a session is granted.
    pub fn refuses_all(&self) -> bool {
        let RouteSettings { into_tunnel, closed_before_join, .. } = &self.settings;
        *closed_before_join
            && into_tunnel.iter().any(|it| it.addr().is_ipv4() && it.prefix_len() == 0)
    }

    fn find(&self, seen: &KernelState, rules: &[Rule]) -> RoutePlan {
        let tables = self.instance.routing_tables();
        let ours = |protocol, table| protocol == ROUTE_PROTOCOL && tables.contains(&table);
        let (rules, routes) = (rules.iter(), seen.routes.iter());
        RoutePlan {
            rules: rules.filter(|rule| ours(rule.protocol, rule.table)).cloned().collect(),
            routes: routes.filter(|route| ours(route.protocol, route.table)).cloned().collect(),
        }
    }

    /// Counts what others removed, not the kernel (with an interface's carrier or address).
    fn count_lost(&self, plan: &RoutePlan, found: &RoutePlan) -> usize {
        let lasting = |route: &&Route| route.interface.is_none_or(|index| index == self.tun);
        let lost = |route: &&Route| plan.routes.contains(route) && !found.routes.contains(route);
        let rules = self.installed.rules.iter();
        rules.filter(|rule| plan.rules.contains(rule) && !found.rules.contains(rule)).count()
            + self.installed.routes.iter().filter(lasting).filter(lost).count()
    }

    fn mend_addresses(&mut self, seen: &KernelState) -> usize {
        let own = self.grant.iter().flat_map(|grant| &grant.addresses);
        let missing: Vec<IpNet> =
            own.filter(|own| !seen.addresses.contains(&(self.tun, **own))).copied().collect();
        for address in &missing {
            if let Err(error) = self.netlink.add_address(self.tun, *address) {
                self.failures.push(Failure { table: 0, is_open: false, error });
            }
        }
        missing.len()
    }

    /// Adds before it removes, so that nothing opens; routes before the rules that lead to them.
    fn change(&mut self, found: &RoutePlan, wanted: &RoutePlan) {
        for route in wanted.routes.difference(&found.routes) {
            let result = self.netlink.add_route(route);
            self.note(route.table, is_refusal(route), result);
        }
        for rule in wanted.rules.difference(&found.rules) {
            let result = self.netlink.add_rule(rule);
            // Traffic that is not bound to an interface meets these.
            self.note(rule.table, rule.priority >= PRIORITY_NEAR, result);
        }
        for rule in found.rules.difference(&wanted.rules) {
            let result = self.netlink.remove_rule(rule);
            self.note(rule.table, false, result);
        }
        for route in found.routes.difference(&wanted.routes) {
            let result = self.netlink.remove_route(route);
            self.note(route.table, false, result);
        }
    }

    fn note(&mut self, table: u32, is_open: bool, result: Result<(), DeviceError>) {
        match result {
            Ok(()) | Err(DeviceError::NoIpv6 { .. }) => {}
            Err(error) => self.failures.push(Failure { table, is_open, error }),
        }
    }
}

/// All but throw routes, which may be thousands.
const KINDS: [RouteType; 3] = [RouteType::Unicast, RouteType::Unreachable, RouteType::Local];

fn is_refusal(route: &Route) -> bool {
    route.interface.is_none() && !route.passes_by
}
