//! Watches the uplinks come, change and go.
//!
//! ```text
//! kernel --> "something changed" --> read all tables again --> compare --> UplinkEvent
//! ```
//!
//! A notice only says that it is time to look: the state comes from the tables, so that a burst of
//! notices, or one that was lost because the socket's buffer was full, cannot lead astray. One
//! thing the tables cannot tell: that an interface went down and came back in between. The kernel
//! has removed its routes then, so this is reported as a change.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ipnet::IpNet;
use netlink_packet_core::{NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::route::RouteType;
use roadweave_proto::{UplinkId, UplinkSelector};
use rustix::io::Errno;
use rustix::net::RecvFlags;

use crate::conflicts::{Changes, Conflicts, Lease, Owner, Protected, Standing};
use crate::netlink::{Messages, open_socket, parse_address, parse_lease, parse_link};
use crate::process::ROUTE_PROTOCOL;
use crate::technology::is_wireless;
use crate::{DeviceError, Interface, Netlink, NetworkInterface, Route};

/// One uplink as it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uplink {
    /// Ours: the same for the same name, however often it is replugged.
    pub id: UplinkId,
    /// The interface's name.
    pub name: String,
    /// The kernel's number; a replugged interface gets a new one.
    pub index: u32,
    /// Up, and the modem is attached or the cable plugged.
    pub carrier: bool,
    /// Largest packet, bytes.
    pub mtu: u32,
    /// Addresses that can reach the Internet or a private network; none that is local to the link.
    pub addresses: Vec<IpNet>,
    /// The next hop for IPv4.
    pub gateway_v4: Option<Gateway>,
    /// The next hop for IPv6.
    pub gateway_v6: Option<Gateway>,
    /// Why an address of it is not among them: it belongs to somebody else.
    pub conflict: Option<String>,
}

/// Where an uplink sends what is not for its neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gateway {
    /// As a default route over the interface says.
    Known(IpAddr),
    /// No gateway is needed, as a default route over the interface says.
    Direct,
    /// No default route says, but an interface with one neighbour needs no gateway. Modems are such
    /// interfaces, and so are tunnels.
    PointToPoint,
    /// No default route says: the first address of the network. Identical modems all claim the same
    /// default route, of which the system keeps one.
    Guessed(IpAddr),
}

impl Gateway {
    /// The next hop's address, if there is one.
    pub fn address(self) -> Option<IpAddr> {
        match self {
            Self::Known(address) | Self::Guessed(address) => Some(address),
            Self::Direct | Self::PointToPoint => None,
        }
    }
}

impl Uplink {
    /// Whether packets of the family can leave by it.
    pub fn is_usable(&self, ipv4: bool) -> bool {
        self.carrier && self.addresses.iter().any(|prefix| prefix.addr().is_ipv4() == ipv4)
    }

    /// Whether a default route leads over it, in one family at least.
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

/// What happened to an uplink.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UplinkEvent {
    /// The uplink is new, or was plugged again.
    Appeared(Uplink),
    /// The uplink's carrier, addresses, gateways or MTU changed, or it was down for a moment; this
    /// is how it is now.
    Changed(Uplink),
    /// The uplink is gone; sockets bound to it are dead.
    Vanished(Uplink),
}

/// Watches the interfaces of the network namespace in which it was opened.
#[derive(Debug)]
pub struct Monitor {
    notices: OwnedFd,
    netlink: Netlink,
    selector: UplinkSelector,
    /// The interface that is no uplink under any name.
    left_out: Option<u32>,
    known: BTreeMap<String, Uplink>,
    ids: BTreeMap<String, UplinkId>,
    /// The interfaces that are no uplinks, by the selector.
    others: Vec<Interface>,
    /// The addresses of all interfaces, by their numbers.
    addresses: Vec<(u32, IpNet)>,
    /// The names that had a default route at some time, or cannot be behind the box otherwise.
    led_out: BTreeSet<String>,
    /// What uplinks may not have for an address.
    protected: Protected,
    conflicts: Conflicts,
    /// Addresses that uplinks have had without a conflict, by name, [`SEEN_MAX`] of each, and
    /// whether a server has answered there.
    seen: BTreeMap<String, BTreeMap<IpNet, bool>>,
    /// Whether such addresses are taken away.
    enforces: bool,
    /// A look is due.
    stale: bool,
    /// Interfaces that were down at some time since the last look.
    went_down: BTreeSet<u32>,
}

impl Monitor {
    /// Starts watching; the first [`Monitor::poll`] reports what is there already.
    ///
    /// # Errors
    /// When the kernel lacks netlink or the process file descriptors.
    pub fn open(selector: UplinkSelector) -> Result<Self, DeviceError> {
        // Before the first look, so that nothing falls between both.
        let notices = open_socket(GROUPS)
            .map_err(|error| DeviceError::system("watch the interfaces", error))?;
        let netlink = Netlink::open()?;
        let (known, ids) = (BTreeMap::new(), BTreeMap::new());
        let went_down = BTreeSet::new();
        let (others, led_out) = (Vec::new(), BTreeSet::new());
        let (protected, conflicts) = (Protected::default(), Conflicts::default());
        let stale = true;
        Ok(Self {
            notices,
            netlink,
            selector,
            left_out: None,
            known,
            ids,
            others,
            addresses: Vec::new(),
            led_out,
            protected,
            conflicts,
            seen: BTreeMap::new(),
            enforces: false,
            stale,
            went_down,
        })
    }

    /// Other interfaces are uplinks from now on; the next [`Monitor::poll`] reports what that
    /// changes.
    pub fn set_selector(&mut self, selector: UplinkSelector) {
        self.selector = selector;
        self.stale = true;
    }

    /// Reports uplinks that have the address of one of these servers as in conflict, and changes
    /// nothing.
    pub fn protect_servers(&mut self, servers: impl IntoIterator<Item = IpAddr>) {
        let certain = servers.into_iter().map(|server| (IpNet::from(server), Owner::Server));
        self.protected.certain = certain.collect();
        self.stale = true;
    }

    /// Takes from uplinks what they may not have for an address, from the next [`Monitor::poll`]
    /// on.
    pub(crate) fn protect(&mut self, protected: Protected) {
        self.stale |= self.protected != protected || !self.enforces;
        self.protected = protected;
        self.enforces = true;
    }

    /// A server answers over an uplink in a family: its addresses are not somebody else's, whatever
    /// one other network says.
    pub(crate) fn settle(&mut self, uplink: &str, ipv4: bool) {
        let Some(known) = self.known.get(uplink) else { return };
        let addresses = known.addresses.iter().filter(|it| it.addr().is_ipv4() == ipv4);
        note(&mut self.seen, uplink, addresses, true);
    }

    /// Gives back what was taken from uplinks.
    pub(crate) fn give_back(&mut self) {
        self.conflicts.take_all().into_iter().for_each(|back| self.restore(back));
    }

    /// The interface with this number is no uplink, whatever it may be called.
    pub fn leave_out(&mut self, index: u32) {
        self.left_out = Some(index);
    }

    /// The name of an interface by its number, as of the last look; not that of one that is left
    /// out.
    pub fn name_of(&self, index: u32) -> Option<&str> {
        let uplinks = self.known.values().map(|uplink| (uplink.index, &uplink.name));
        let others = self.others.iter().map(|other| (other.index, &other.name));
        let mut found = uplinks.chain(others);
        found.find(|(number, _)| *number == index).map(|(_, name)| name.as_str())
    }

    /// What is known of all uplinks, by name.
    pub fn uplinks(&self) -> impl Iterator<Item = &Uplink> {
        self.known.values()
    }

    /// Why uplinks are not used that have what they may not have, by name.
    pub(crate) fn conflicts(&self) -> BTreeMap<String, String> {
        let conflict = |it: &Uplink| Some((it.name.clone(), it.conflict.clone()?));
        self.known.values().filter_map(conflict).collect()
    }

    /// The interfaces behind the box: those that the selector names. Where it names neither those
    /// nor the uplinks, those with an address and no default route. One that had a default route
    /// once is none of them: it may have it back before that is noticed. Neither is one that is
    /// wireless or has a leased address.
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

    /// This machine's addresses on [`Monitor::inside`].
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

    /// Takes what the file descriptor is readable for; the next [`Monitor::poll`] looks.
    pub fn take_notices(&mut self) {
        self.drain();
    }

    /// What has happened since the last call. Call it when the file descriptor is readable, or some
    /// time after [`Monitor::take_notices`]: each call that finds notices reads all tables.
    ///
    /// # Errors
    /// When the tables cannot be read.
    pub fn poll(&mut self) -> Result<Vec<UplinkEvent>, DeviceError> {
        self.drain();
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

    /// Takes all notices; keeps only that there were any, and which interfaces went down.
    fn drain(&mut self) {
        let mut buffer = [0; 8192];
        loop {
            match rustix::net::recv(&self.notices, &mut buffer[..], RecvFlags::DONTWAIT) {
                Ok((length, _)) => {
                    self.stale = true;
                    self.went_down.extend(Messages(&buffer[..length]).filter_map(down_notice));
                }
                // Notices were lost: any interface may have been down.
                Err(Errno::NOBUFS) => {
                    self.stale = true;
                    self.went_down.extend(self.known.values().map(|uplink| uplink.index));
                }
                Err(Errno::INTR) => {}
                Err(_) => return,
            }
        }
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

    /// Takes from uplinks the addresses that they may not have; returns those with their
    /// interfaces.
    fn take_away(
        &mut self,
        links: &[NetworkInterface],
        leases: &[Lease],
        routes: &[Route],
    ) -> BTreeSet<(u32, IpNet)> {
        // The TUN of another instance keeps what that was granted.
        let is_any = |link: &&NetworkInterface| {
            !link.loopback && Some(link.index) != self.left_out && !is_tun(&link.name)
        };
        let matching = links.iter().filter(is_any).filter(|it| self.selector.matches(&it.name));
        let names = matching.map(|link| (link.index, link.name.clone())).collect();
        let mut protected = self.protected.clone();
        for link in links.iter().filter(is_any).filter(|it| self.selector.names_inside(&it.name)) {
            let own = leases.iter().filter(|lease| lease.index == link.index);
            protected.certain.extend(own.map(|lease| (lease.protects(), Owner::Lan)));
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
                        "{why}: it is taken away, and without another one the uplink is not used"
                    );
                }
                // They go with the address.
                self.conflicts.note_routes(&lease, routes);
                self.move_address(lease, false);
            }
            restore.into_iter().for_each(|back| self.restore(back));
        }
        taken
    }

    fn restore(&mut self, (lease, routes): (Lease, Vec<Route>)) {
        tracing::info!("the address {} is given back to its uplink", lease.address);
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

/// Interfaces that are no network behind the box though they have no default route: a WiFi, and
/// whatever has leased its address.
pub(crate) fn foreign<'a>(
    links: &'a [NetworkInterface],
    leases: &'a [Lease],
) -> impl Iterator<Item = String> + 'a {
    // An IPv6 address of a network behind the box has an end if its prefix was delegated.
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
        id,
        index: link.index,
        carrier: link.up && link.carrier,
        mtu: link.mtu,
        name: link.name,
        addresses,
        gateway_v4,
        gateway_v6,
        conflict: None,
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

/// Whether an address leads beyond its link.
fn is_routable(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => !v4.is_link_local() && !v4.is_loopback(),
        IpAddr::V6(v6) => !v6.is_unicast_link_local() && !v6.is_loopback(),
    }
}

/// The index of the interface that a notice calls down.
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

/// RTMGRP_LINK, RTMGRP_IPV4_IFADDR, RTMGRP_IPV4_ROUTE, RTMGRP_IPV4_RULE, RTMGRP_IPV6_IFADDR,
/// RTMGRP_IPV6_ROUTE, and the bits of RTNLGRP_IPV6_RULE and RTNLGRP_NEXTHOP.
const GROUPS: u32 = 0x1 | 0x10 | 0x40 | 0x80 | 0x100 | 0x400 | 1 << 18 | 1 << 31;
const MAIN_TABLE: u32 = 254;
/// Addresses of an uplink that are remembered: as many as a lease and a few advertisements bring.
const SEEN_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    fn link(index: u32) -> NetworkInterface {
        NetworkInterface {
            index,
            name: "eth1".to_owned(),
            up: true,
            carrier: true,
            loopback: false,
            point_to_point: false,
            mtu: 1500,
            group: 0,
        }
    }

    #[test]
    fn a_modem_without_default_route_is_believed_to_be_the_first_of_its_network() {
        let addresses = [(2, "192.168.8.100/24".parse().unwrap())];
        let uplink = describe(UplinkId(0), link(2), &addresses, &[]);
        let guessed = Gateway::Guessed("192.168.8.1".parse().unwrap());
        assert_eq!(uplink.gateway_v4, Some(guessed));
        assert_eq!(uplink.gateway_v6, None);
    }

    #[test]
    fn a_tunnel_of_others_does_not_pass_for_a_way_out() {
        let link = NetworkInterface { point_to_point: true, ..link(2) };
        let addresses = [(2, "10.77.0.2/32".parse().unwrap())];
        let uplink = describe(UplinkId(0), link, &addresses, &[]);
        assert_eq!(uplink.gateway_v4, Some(Gateway::PointToPoint));
    }

    #[test]
    fn the_best_default_route_over_the_interface_names_the_gateway() {
        let addresses = [(2, "192.168.8.100/24".parse().unwrap())];
        let route = |interface, metric, gateway: &str, protocol| Route {
            destination: crate::netlink::DEFAULT_V4,
            gateway: Some(gateway.parse().unwrap()),
            interface: Some(interface),
            table: MAIN_TABLE,
            metric,
            protocol,
            preferred_source: None,
            local: false,
            passes_by: false,
        };
        let routes = [
            route(3, 1, "10.0.0.1", 4),
            route(2, 0, "192.168.8.7", ROUTE_PROTOCOL),
            route(2, 200, "192.168.8.254", 4),
            route(2, 100, "192.168.8.253", 4),
        ];
        let uplink = describe(UplinkId(0), link(2), &addresses, &routes);
        assert_eq!(uplink.gateway_v4, Some(Gateway::Known("192.168.8.253".parse().unwrap())));
    }

    #[test]
    fn an_interface_with_a_leased_address_is_no_network_behind_the_box() {
        let links = [link(2), NetworkInterface { name: "eth2".to_owned(), ..link(3) }];
        let lease = |index, address: &str, is_permanent| Lease {
            index,
            address: address.parse().unwrap(),
            broadcast: None,
            is_permanent,
            message: Default::default(),
        };
        // A delegated prefix of IPv6 has an end.
        let own = lease(2, "192.168.50.1/24", true);
        let leases = [own, lease(2, "2001:db8::1/64", false), lease(3, "10.9.0.7/24", false)];
        assert_eq!(foreign(&links, &leases).collect::<Vec<_>>(), ["eth2"]);
    }

    #[test]
    fn an_interface_that_was_replugged_vanished_and_appeared() {
        let uplink = |index| describe(UplinkId(0), link(index), &[], &[]);
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
