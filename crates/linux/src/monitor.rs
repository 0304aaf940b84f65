//! Watches uplinks appear, change and vanish. A notice only triggers a read of the kernel's tables,
//! so bursts and lost notices are harmless; a brief outage, which removes routes, is a change.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ipnet::IpNet;
use netlink_packet_core::{NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::route::RouteType;
use roadweave_proto::{UplinkId, UplinkSelector};

use crate::conflicts::{Changes, Conflicts, Owner, Protected, Standing, protected_by};
use crate::netlink::{Lease, Messages, drain, open_socket, parse_address, parse_lease, parse_link};
use crate::process::ROUTE_PROTOCOL;
use crate::technology::is_wireless;
use crate::{DeviceError, Interface, Netlink, NetworkInterface, Route};

/// The state of an uplink.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uplink {
    /// Our ID; it stays the same for a name, however often the interface is replugged.
    pub id: UplinkId,
    /// The interface's name.
    pub name: String,
    /// The kernel's interface index; a replugged interface gets a new one.
    pub index: u32,
    /// Whether it is up and has a carrier: the modem is attached or the cable plugged.
    pub carrier: bool,
    /// MTU, bytes.
    pub mtu: u32,
    /// Its addresses, without link-local and loopback ones.
    pub addresses: Vec<IpNet>,
    /// The next hop for IPv4.
    pub gateway_v4: Option<Gateway>,
    /// The next hop for IPv6.
    pub gateway_v6: Option<Gateway>,
    /// Why an address of it is withheld: it belongs to another host.
    pub conflict: Option<String>,
}

/// The next hop of an uplink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gateway {
    /// The gateway of a default route over the interface.
    Known(IpAddr),
    /// A default route over the interface without a gateway.
    Direct,
    /// No default route; a point-to-point interface (a modem, a tunnel) needs no gateway.
    PointToPoint,
    /// No default route, as of identical modems but one: the first address of the network.
    Guessed(IpAddr),
}

impl Gateway {
    /// The next hop's address, if it has one.
    pub fn address(self) -> Option<IpAddr> {
        match self {
            Self::Known(address) | Self::Guessed(address) => Some(address),
            Self::Direct | Self::PointToPoint => None,
        }
    }
}

impl Uplink {
    /// An uplink with a carrier and an Ethernet's MTU, and without gateways.
    pub fn new(id: UplinkId, name: impl Into<String>, index: u32, addresses: Vec<IpNet>) -> Self {
        Self {
            id,
            name: name.into(),
            index,
            carrier: true,
            mtu: 1500,
            addresses,
            gateway_v4: None,
            gateway_v6: None,
            conflict: None,
        }
    }

    /// Whether packets of the family can be sent over it.
    pub fn is_usable(&self, ipv4: bool) -> bool {
        self.carrier && self.addresses.iter().any(|prefix| prefix.addr().is_ipv4() == ipv4)
    }

    /// Whether a default route leads over it in at least one family.
    pub fn leads_out(&self) -> bool {
        [self.gateway_v4, self.gateway_v6]
            .iter()
            .any(|gateway| matches!(gateway, Some(Gateway::Known(_) | Gateway::Direct)))
    }

    /// The next hop for the family.
    pub fn gateway(&self, ipv4: bool) -> Option<Gateway> {
        if ipv4 { self.gateway_v4 } else { self.gateway_v6 }
    }
}

/// A change of an uplink.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UplinkEvent {
    /// The uplink is new, or was replugged.
    Appeared(Uplink),
    /// Its carrier, addresses, gateways or MTU changed, or it was down briefly; the new state.
    Changed(Uplink),
    /// The uplink is gone; its sockets are dead.
    Vanished(Uplink),
}

/// Watches the interfaces of the network namespace in which it was opened.
#[derive(Debug)]
pub struct Monitor {
    notices: OwnedFd,
    netlink: Netlink,
    selector: UplinkSelector,
    /// The interface with this index is no uplink, under any name.
    pub left_out: Option<u32>,
    known: BTreeMap<String, Uplink>,
    ids: BTreeMap<String, UplinkId>,
    others: Vec<Interface>,
    addresses: Vec<(u32, IpNet)>,
    /// Interfaces that had a default route, or that cannot be behind the box for another reason.
    led_out: BTreeSet<String>,
    protected: Protected,
    conflicts: Conflicts,
    /// Addresses without conflict, at most [`SEEN_MAX`] each; whether a server answered over them.
    seen: BTreeMap<String, BTreeMap<IpNet, bool>>,
    enforces: bool,
    stale: bool,
    went_down: BTreeSet<u32>,
}

impl Monitor {
    /// Starts watching. The first [`Monitor::poll`] reports all uplinks as new.
    pub fn open(selector: UplinkSelector) -> Result<Self, DeviceError> {
        // Subscribed before the first look, so that no change is missed.
        let notices = open_socket(GROUPS)
            .map_err(|error| DeviceError::system("watch the interfaces", error))?;
        let netlink = Netlink::open()?;
        Ok(Self {
            notices,
            netlink,
            selector,
            left_out: None,
            known: BTreeMap::new(),
            ids: BTreeMap::new(),
            others: Vec::new(),
            addresses: Vec::new(),
            led_out: BTreeSet::new(),
            protected: Protected::default(),
            conflicts: Conflicts::default(),
            seen: BTreeMap::new(),
            enforces: false,
            stale: true,
            went_down: BTreeSet::new(),
        })
    }

    /// Sets which interfaces are uplinks; the next [`Monitor::poll`] reports the changes.
    pub fn set_selector(&mut self, selector: UplinkSelector) {
        self.selector = selector;
        self.stale = true;
    }

    /// Reports uplinks that have an address of these servers, without removing addresses.
    pub fn protect_servers(&mut self, servers: impl IntoIterator<Item = IpAddr>) {
        let certain = servers.into_iter().map(|server| (IpNet::from(server), Owner::Server));
        self.protected.certain = certain.collect();
        self.stale = true;
    }

    /// Replaces the addresses that uplinks must not have, and removes them from now on.
    pub fn protect(&mut self, protected: Protected) {
        self.stale |= self.protected != protected || !self.enforces;
        self.protected = protected;
        self.enforces = true;
    }

    /// A server answered over the uplink: a single other network cannot claim its addresses.
    pub fn settle(&mut self, uplink: &str, ipv4: bool) {
        let Some(known) = self.known.get(uplink) else { return };
        let addresses = known.addresses.iter().filter(|it| it.addr().is_ipv4() == ipv4);
        note(&mut self.seen, uplink, addresses, true);
    }

    /// Restores all removed addresses, at the end.
    pub fn give_back(&mut self) {
        self.conflicts.take_all().into_iter().for_each(|back| self.restore(back));
    }

    /// The name of an interface by its index, as of the last look; `None` for the excluded one.
    pub fn name_of(&self, index: u32) -> Option<&str> {
        let uplinks = self.known.values().map(|uplink| (uplink.index, &uplink.name));
        let others = self.others.iter().map(|other| (other.index, &other.name));
        let mut found = uplinks.chain(others);
        found.find(|(number, _)| *number == index).map(|(_, name)| name.as_str())
    }

    /// All uplinks, by name.
    pub fn uplinks(&self) -> impl Iterator<Item = &Uplink> {
        self.known.values()
    }

    /// Why addresses of uplinks are withheld, by uplink.
    pub fn conflicts(&self) -> BTreeMap<String, String> {
        let conflict = |it: &Uplink| Some((it.name.clone(), it.conflict.clone()?));
        self.known.values().filter_map(conflict).collect()
    }

    /// The interfaces behind the box: those named by the selector. If it names none, nor uplinks:
    /// those with an address but never a default route, not wireless, without leased address.
    pub fn inside(&self) -> Vec<Interface> {
        let named = self.others.iter().filter(|other| self.selector.names_inside(&other.name));
        let mut inside: Vec<Interface> = named.cloned().collect();
        let quiet = self.known.values().filter(|uplink| self.is_quiet(uplink));
        inside.extend(
            quiet.map(|uplink| Interface { name: uplink.name.clone(), index: uplink.index }),
        );
        inside.sort();
        inside
    }

    /// This machine's addresses on the interfaces of [`Monitor::inside`].
    pub fn inside_addresses(&self) -> Vec<IpAddr> {
        let inside = self.inside();
        let is_inside = |index: &u32| inside.iter().any(|interface| interface.index == *index);
        let found = self.addresses.iter().filter(|(index, _)| is_inside(index));
        let addresses: BTreeSet<IpAddr> = found.map(|(_, address)| address.addr()).collect();
        addresses.into_iter().filter(|address| is_routable(*address)).collect()
    }

    fn is_quiet(&self, uplink: &Uplink) -> bool {
        self.selector.guesses_inside()
            && !uplink.addresses.is_empty()
            && !self.led_out.contains(&uplink.name)
    }

    /// Reads notices of interfaces that went down. The next [`Monitor::poll`] looks at the tables.
    pub fn take_notices(&mut self) {
        let Self { notices, known, stale, went_down, .. } = self;
        drain(notices, |notice| {
            *stale = true;
            match notice {
                Some(bytes) => went_down.extend(Messages(bytes).filter_map(down_notice)),
                // Notices were lost: any interface may have been down.
                None => went_down.extend(known.values().map(|uplink| uplink.index)),
            }
        });
    }

    /// Changes since the last call, for a readable descriptor or after [`Monitor::take_notices`].
    pub fn poll(&mut self) -> Result<Vec<UplinkEvent>, DeviceError> {
        self.take_notices();
        if !self.stale {
            return Ok(Vec::new());
        }
        let now = self.look()?;
        let events = compare(&self.known, &now, &self.went_down);
        self.known = now;
        self.stale = false;
        self.went_down.clear();
        Ok(events)
    }

    fn look(&mut self) -> Result<BTreeMap<String, Uplink>, DeviceError> {
        let links = self.netlink.links()?;
        let messages = self.netlink.address_messages()?;
        let routes = self.netlink.routes_of(&[RouteType::Unicast])?;
        let mut leases: Vec<Lease> = messages.iter().filter_map(parse_lease).collect();
        leases.retain(|lease| is_routable(lease.address.addr()));
        let mut addresses: Vec<_> = messages.iter().filter_map(parse_address).collect();
        let taken = self.take_away(&links, &leases, &routes);
        addresses.retain(|address| !taken.contains(address));
        if self.selector.guesses_inside() {
            self.led_out.extend(foreign(&links, &leases));
        }
        let mut uplinks = BTreeMap::new();
        self.others.clear();
        let left_out = self.left_out;
        let links = links.into_iter().filter(|link| Some(link.index) != left_out);
        for link in links.filter(|link| !link.loopback) {
            if !self.selector.matches(&link.name) {
                self.others.push(Interface { name: link.name, index: link.index });
                continue;
            }
            let next = UplinkId(u32::try_from(self.ids.len()).unwrap_or(u32::MAX));
            let id = *self.ids.entry(link.name.clone()).or_insert(next);
            let conflict = self.conflicts.of(link.index).map(str::to_owned);
            let uplink = Uplink { conflict, ..describe(id, link, &addresses, &routes) };
            if uplink.leads_out() {
                self.led_out.insert(uplink.name.clone());
            }
            note(&mut self.seen, &uplink.name, uplink.addresses.iter(), false);
            uplinks.insert(uplink.name.clone(), uplink);
        }
        self.addresses = addresses;
        Ok(uplinks)
    }

    fn take_away(
        &mut self,
        links: &[NetworkInterface],
        leases: &[Lease],
        routes: &[Route],
    ) -> BTreeSet<(u32, IpNet)> {
        // The TUN of another instance keeps its granted addresses.
        let is_any = |link: &&NetworkInterface| {
            !link.loopback && Some(link.index) != self.left_out && !is_tun(&link.name)
        };
        let matching = links.iter().filter(is_any).filter(|it| self.selector.matches(&it.name));
        let names = matching.map(|link| (link.index, link.name.clone())).collect();
        let mut protected = self.protected.clone();
        for link in links.iter().filter(is_any).filter(|it| self.selector.names_inside(&it.name)) {
            let own = leases.iter().filter(|lease| lease.index == link.index);
            protected.certain.extend(own.map(|lease| (protected_by(lease), Owner::Lan)));
        }
        let mut conflicts = std::mem::take(&mut self.conflicts);
        let standing = |name: &str, address: IpNet| match self.known.get(name) {
            Some(known) if self.is_quiet(known) => Standing::Inside,
            _ => match self.seen.get(name).and_then(|seen| seen.get(&address)) {
                None => Standing::New,
                Some(false) => Standing::Seen,
                Some(true) => Standing::Reached,
            },
        };
        let Changes { remove, restore } = conflicts.look(&names, leases, &protected, standing);
        self.conflicts = conflicts;
        let taken = remove.iter().map(|(lease, _)| (lease.index, lease.address)).collect();
        if self.enforces {
            for (lease, why) in remove {
                if let (Some(why), Some(uplink)) = (why, names.get(&lease.index)) {
                    tracing::warn!(
                        uplink,
                        event = "uplink-conflict",
                        "{why}: the address is removed, and without another one the uplink is not \
                         used"
                    );
                }
                self.conflicts.note_routes(&lease, routes);
                self.move_address(lease, false);
            }
            restore.into_iter().for_each(|back| self.restore(back));
        }
        taken
    }

    fn restore(&mut self, (lease, routes): (Lease, Vec<Route>)) {
        tracing::info!("the address {} is restored on its uplink", lease.address);
        self.move_address(lease, true);
        for route in routes {
            if let Err(error) = self.netlink.add_route(&route) {
                tracing::warn!("{error}");
            }
        }
    }

    fn move_address(&mut self, lease: Lease, is_back: bool) {
        if let Err(error) = self.netlink.move_address(lease.message, is_back) {
            tracing::warn!("{error}: {}", lease.address);
        }
    }
}

fn note<'a>(
    seen: &mut BTreeMap<String, BTreeMap<IpNet, bool>>,
    uplink: &str,
    addresses: impl Iterator<Item = &'a IpNet>,
    has_reached: bool,
) {
    let seen = seen.entry(uplink.to_owned()).or_default();
    for address in addresses {
        if seen.len() >= SEEN_MAX && !seen.contains_key(address) {
            seen.clear();
        }
        *seen.entry(*address).or_default() |= has_reached;
    }
}

fn is_tun(name: &str) -> bool {
    std::path::Path::new("/sys/class/net").join(name).join("tun_flags").exists()
}

/// Interfaces not behind the box although without default route: wireless, or with a lease.
pub(crate) fn foreign<'a>(
    links: &'a [NetworkInterface],
    leases: &'a [Lease],
) -> impl Iterator<Item = String> + 'a {
    // Delegated IPv6 prefixes expire as well, so only IPv4 leases count.
    let is_leased = |index| {
        let mut own = leases.iter().filter(|lease| lease.index == index && !lease.is_permanent);
        own.any(|lease| lease.address.addr().is_ipv4())
    };
    let is_foreign = move |link: &&NetworkInterface| {
        !link.loopback && (is_leased(link.index) || is_wireless(&link.name))
    };
    links.iter().filter(is_foreign).map(|link| link.name.clone())
}

impl AsFd for Monitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.notices.as_fd()
    }
}

fn describe(
    id: UplinkId,
    link: NetworkInterface,
    addresses: &[(u32, IpNet)],
    routes: &[Route],
) -> Uplink {
    let addresses: BTreeSet<IpNet> = addresses
        .iter()
        .filter(|(index, prefix)| *index == link.index && is_routable(prefix.addr()))
        .map(|(_, prefix)| *prefix)
        .collect();
    let addresses: Vec<IpNet> = addresses.into_iter().collect();
    let gateway_v4 = find_gateway(&link, &addresses, routes, true);
    let gateway_v6 = find_gateway(&link, &addresses, routes, false);
    Uplink {
        carrier: link.up && link.carrier,
        mtu: link.mtu,
        gateway_v4,
        gateway_v6,
        ..Uplink::new(id, link.name, link.index, addresses)
    }
}

fn find_gateway(
    link: &NetworkInterface,
    addresses: &[IpNet],
    routes: &[Route],
    ipv4: bool,
) -> Option<Gateway> {
    let own = addresses.iter().find(|prefix| prefix.addr().is_ipv4() == ipv4)?;
    let route = routes
        .iter()
        .filter(|route| {
            route.destination.addr().is_ipv4() == ipv4
                && route.destination.prefix_len() == 0
                && route.interface == Some(link.index)
                && route.protocol != ROUTE_PROTOCOL
        })
        .min_by_key(|route| (route.table != MAIN_TABLE, route.metric));
    match (route, own.addr()) {
        (Some(route), _) => Some(route.gateway.map_or(Gateway::Direct, Gateway::Known)),
        (None, _) if link.point_to_point => Some(Gateway::PointToPoint),
        (None, IpAddr::V4(address)) if own.prefix_len() < 31 => {
            let IpAddr::V4(network) = own.network() else { return None };
            let first = Ipv4Addr::from_bits(network.to_bits() + 1);
            (first != address).then_some(Gateway::Guessed(first.into()))
        }
        _ => None,
    }
}

fn is_routable(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => !v4.is_link_local() && !v4.is_loopback(),
        IpAddr::V6(v6) => !v6.is_unicast_link_local() && !v6.is_loopback(),
    }
}

fn down_notice(message: NetlinkMessage<RouteNetlinkMessage>) -> Option<u32> {
    let NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewLink(message)) = message.payload
    else {
        return None;
    };
    let link = parse_link(&message);
    (!link.up || !link.carrier).then_some(link.index)
}

fn compare(
    before: &BTreeMap<String, Uplink>,
    now: &BTreeMap<String, Uplink>,
    went_down: &BTreeSet<u32>,
) -> Vec<UplinkEvent> {
    let mut events = Vec::new();
    for (name, old) in before {
        if now.get(name).is_none_or(|new| new.index != old.index) {
            events.push(UplinkEvent::Vanished(old.clone()));
        }
    }
    for (name, new) in now {
        match before.get(name) {
            Some(old) if old.index != new.index => events.push(UplinkEvent::Appeared(new.clone())),
            Some(old) if old != new || went_down.contains(&new.index) => {
                events.push(UplinkEvent::Changed(new.clone()))
            }
            Some(_) => {}
            None => events.push(UplinkEvent::Appeared(new.clone())),
        }
    }
    events
}

/// RTMGRP_LINK, _IPV4_(IFADDR, ROUTE, RULE), _IPV6_(IFADDR, ROUTE), RTNLGRP_IPV6_RULE, _NEXTHOP.
const GROUPS: u32 = 0x1 | 0x10 | 0x40 | 0x80 | 0x100 | 0x400 | 1 << 18 | 1 << 31;
const MAIN_TABLE: u32 = 254;
const SEEN_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::test_link as link;

    #[test]
    fn without_a_default_route_a_modem_is_the_first_of_its_network_and_a_tunnel_no_way_out() {
        let guessed = Gateway::Guessed("192.168.8.1".parse().unwrap());
        for (address, point_to_point, gateway) in
            [("192.168.8.100/24", false, guessed), ("10.77.0.2/32", true, Gateway::PointToPoint)]
        {
            let link = NetworkInterface { point_to_point, ..link(2, "eth1") };
            let uplink = describe(UplinkId(0), link, &[(2, address.parse().unwrap())], &[]);
            assert_eq!((uplink.gateway_v4, uplink.gateway_v6), (Some(gateway), None), "{address}");
        }
    }

    #[test]
    fn the_best_default_route_over_the_interface_names_the_gateway() {
        let addresses = [(2, "192.168.8.100/24".parse().unwrap())];
        let route = |interface, metric, gateway: &str, protocol| Route {
            gateway: Some(gateway.parse().unwrap()),
            interface: Some(interface),
            table: MAIN_TABLE,
            metric,
            protocol,
            ..Route::default()
        };
        let routes = [
            route(3, 1, "10.0.0.1", 4),
            route(2, 0, "192.168.8.7", ROUTE_PROTOCOL),
            route(2, 200, "192.168.8.254", 4),
            route(2, 100, "192.168.8.253", 4),
        ];
        let uplink = describe(UplinkId(0), link(2, "eth1"), &addresses, &routes);
        assert_eq!(uplink.gateway_v4, Some(Gateway::Known("192.168.8.253".parse().unwrap())));
    }

    #[test]
    fn an_interface_with_a_leased_address_is_no_network_behind_the_box() {
        let links = [link(2, "eth1"), link(3, "eth2")];
        let lease = |index, address: &str, is_permanent| Lease {
            index,
            address: address.parse().unwrap(),
            broadcast: None,
            is_permanent,
            message: Default::default(),
        };
        let own = lease(2, "192.168.50.1/24", true);
        let leases = [own, lease(2, "2001:db8::1/64", false), lease(3, "10.9.0.7/24", false)];
        assert_eq!(foreign(&links, &leases).collect::<Vec<_>>(), ["eth2"]);
    }

    #[test]
    fn an_interface_that_was_replugged_vanished_and_appeared() {
        let uplink = |index| describe(UplinkId(0), link(index, "eth1"), &[], &[]);
        let table = |index| BTreeMap::from([("eth1".to_owned(), uplink(index))]);
        let none = BTreeSet::new();
        assert_eq!(compare(&table(2), &table(2), &none), []);
        assert_eq!(
            compare(&table(2), &table(9), &none),
            [UplinkEvent::Vanished(uplink(2)), UplinkEvent::Appeared(uplink(9))]
        );
        let down = BTreeSet::from([2]);
        assert_eq!(compare(&table(2), &table(2), &down), [UplinkEvent::Changed(uplink(2))]);
    }
}
