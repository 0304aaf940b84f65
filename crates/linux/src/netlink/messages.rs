//! Encodes and decodes route netlink messages: interfaces, addresses, routes and rules.

use std::net::IpAddr;

use ipnet::IpNet;
use netlink_packet_route::AddressFamily;
use netlink_packet_route::address::{AddressAttribute, AddressHeaderFlags, AddressMessage};
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkMessage};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteNextHop,
    RouteNextHopFlags, RouteProtocol, RouteScope, RouteType, RouteVia,
};
use netlink_packet_route::rule::{RuleAction, RuleAttribute, RuleMessage};

use super::{DEFAULT_V4, DEFAULT_V6, Lease, NetworkInterface, Route, Rule};
use crate::process::ROUTE_PROTOCOL;

pub(crate) fn parse_link(message: &LinkMessage) -> NetworkInterface {
    let mut link = NetworkInterface {
        index: message.header.index,
        up: message.header.flags.contains(LinkFlags::Up),
        carrier: message.header.flags.contains(LinkFlags::LowerUp),
        loopback: message.header.flags.contains(LinkFlags::Loopback),
        point_to_point: message.header.flags.intersects(LinkFlags::Pointopoint | LinkFlags::Noarp),
        ..NetworkInterface::default()
    };
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => link.name.clone_from(name),
            LinkAttribute::Mtu(mtu) => link.mtu = *mtu,
            LinkAttribute::Group(group) => link.group = *group,
            _ => {}
        }
    }
    link
}

pub(crate) fn parse_address(message: &AddressMessage) -> Option<(u32, IpNet)> {
    let unusable = AddressHeaderFlags::Tentative | AddressHeaderFlags::Dadfailed;
    if message.header.flags.intersects(unusable) {
        return None;
    }
    Some((message.header.index, own_address(message)?))
}

/// An address that may be taken away, including one that is not usable yet.
pub(crate) fn parse_lease(message: &AddressMessage) -> Option<Lease> {
    let broadcast = message.attributes.iter().find_map(|attribute| match attribute {
        AddressAttribute::Broadcast(address) => Some((*address).into()),
        _ => None,
    });
    let address = own_address(message)?;
    let is_permanent = message.header.flags.contains(AddressHeaderFlags::Permanent);
    Some(Lease {
        index: message.header.index,
        address,
        broadcast,
        is_permanent,
        message: message.clone(),
    })
}

fn own_address(message: &AddressMessage) -> Option<IpNet> {
    // IFA_LOCAL is ours; on a point-to-point interface IFA_ADDRESS is the peer's.
    let local = message.attributes.iter().find_map(|attribute| match attribute {
        AddressAttribute::Local(address) => Some(*address),
        _ => None,
    });
    let address = local.or_else(|| {
        message.attributes.iter().find_map(|attribute| match attribute {
            AddressAttribute::Address(address) => Some(*address),
            _ => None,
        })
    })?;
    IpNet::new(address, message.header.prefix_len).ok()
}

pub(crate) fn parse_routes(message: &RouteMessage) -> Vec<Route> {
    match message.header.kind {
        RouteType::Unicast | RouteType::Unreachable => {}
        // The kernel has a local route for each address.
        RouteType::Local | RouteType::Throw
            if u8::from(message.header.protocol) == ROUTE_PROTOCOL => {}
        _ => return Vec::new(),
    }
    let Some(route) = parse_route(message) else { return Vec::new() };
    let hops = message.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::MultiPath(hops) => Some(hops),
        _ => None,
    });
    match (message.header.kind, hops) {
        // IPv6 gives them the loopback interface.
        (RouteType::Unreachable | RouteType::Throw, _) => vec![Route { interface: None, ..route }],
        (_, Some(hops)) => {
            let alive = hops.iter().filter(|hop| !hop.flags.contains(RouteNextHopFlags::Dead));
            alive.map(|hop| over(&route, hop)).collect()
        }
        // The kernel does not report the interface: net.ipv4.nexthop_compat_mode is 0.
        (_, None) if route.interface.is_none() => Vec::new(),
        (_, None) => vec![route],
    }
}

fn over(route: &Route, hop: &RouteNextHop) -> Route {
    let gateway = hop.attributes.iter().find_map(gateway_of);
    Route { gateway, interface: Some(hop.interface_index), ..route.clone() }
}

/// The address may be of IPv6 in a route of IPv4 (RFC 5549, now RFC 8950).
fn gateway_of(attribute: &RouteAttribute) -> Option<IpAddr> {
    match attribute {
        RouteAttribute::Gateway(address) => ip_address(address),
        RouteAttribute::Via(RouteVia::Inet(address)) => Some((*address).into()),
        RouteAttribute::Via(RouteVia::Inet6(address)) => Some((*address).into()),
        _ => None,
    }
}

fn parse_route(message: &RouteMessage) -> Option<Route> {
    let mut route = Route {
        destination: match message.header.address_family {
            AddressFamily::Inet => DEFAULT_V4,
            AddressFamily::Inet6 => DEFAULT_V6,
            _ => return None,
        },
        table: u32::from(message.header.table),
        protocol: message.header.protocol.into(),
        local: message.header.kind == RouteType::Local,
        passes_by: message.header.kind == RouteType::Throw,
        ..Route::default()
    };
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Destination(address) => {
                let length = message.header.destination_prefix_length;
                route.destination = IpNet::new(ip_address(address)?, length).ok()?;
            }
            RouteAttribute::Gateway(_) | RouteAttribute::Via(_) => {
                route.gateway = gateway_of(attribute);
            }
            RouteAttribute::Oif(index) => route.interface = Some(*index),
            RouteAttribute::PrefSource(address) => route.preferred_source = ip_address(address),
            RouteAttribute::Priority(metric) => route.metric = *metric,
            RouteAttribute::Table(table) => route.table = *table,
            _ => {}
        }
    }
    Some(route)
}

pub(super) fn parse_rule(message: &RuleMessage) -> Rule {
    let mut rule = Rule {
        ipv4: message.header.family == AddressFamily::Inet,
        table: u32::from(message.header.table),
        ..Rule::default()
    };
    let (mut mark, mut mask) = (None, u32::MAX);
    for attribute in &message.attributes {
        match attribute {
            RuleAttribute::Priority(priority) => rule.priority = *priority,
            RuleAttribute::Oifname(name) => rule.output_interface = Some(name.clone()),
            RuleAttribute::Iifname(name) => rule.input_interface = Some(name.clone()),
            RuleAttribute::Goto(priority) => rule.goto = Some(*priority),
            RuleAttribute::FwMark(bits) => mark = Some(*bits),
            RuleAttribute::FwMask(bits) => mask = *bits,
            RuleAttribute::Table(table) => rule.table = *table,
            RuleAttribute::SuppressPrefixLen(u32::MAX) => {}
            RuleAttribute::SuppressPrefixLen(length) => rule.suppress_length = Some(*length),
            RuleAttribute::Protocol(protocol) => rule.protocol = (*protocol).into(),
            _ => {}
        }
    }
    rule.mark = mark.map(|mark| (mark, mask));
    rule
}

pub(super) fn build_address(index: u32, prefix: IpNet) -> AddressMessage {
    let mut message = AddressMessage::default();
    message.header.index = index;
    message.header.family = family(prefix.addr().is_ipv4());
    message.header.prefix_len = prefix.prefix_len();
    message.attributes.push(AddressAttribute::Local(prefix.addr()));
    message.attributes.push(AddressAttribute::Address(prefix.addr()));
    message
}

pub(super) fn build_route(route: &Route) -> RouteMessage {
    let mut message = RouteMessage::default();
    let destination = route.destination.trunc();
    message.header = RouteHeader {
        address_family: family(destination.addr().is_ipv4()),
        destination_prefix_length: destination.prefix_len(),
        // Tables beyond 255 fit the attribute only.
        table: u8::try_from(route.table).unwrap_or(0),
        protocol: RouteProtocol::from(route.protocol),
        // With the scope of a link the kernel would resolve any gateway over our route.
        scope: if route.local { RouteScope::Host } else { RouteScope::Universe },
        kind: match route.interface {
            Some(_) if route.local => RouteType::Local,
            Some(_) => RouteType::Unicast,
            None if route.passes_by => RouteType::Throw,
            None => RouteType::Unreachable,
        },
        // Cellular networks have gateways outside the prefix.
        flags: match (route.gateway, route.interface) {
            (Some(_), Some(_)) => RouteFlags::Onlink,
            _ => RouteFlags::empty(),
        },
        ..RouteHeader::default()
    };
    let attributes = &mut message.attributes;
    attributes.push(RouteAttribute::Table(route.table));
    if destination.prefix_len() > 0 {
        attributes.push(RouteAttribute::Destination(destination.addr().into()));
    }
    attributes.extend(route.gateway.map(|gateway| match gateway {
        IpAddr::V6(next) if destination.addr().is_ipv4() => RouteAttribute::Via(next.into()),
        gateway => RouteAttribute::Gateway(gateway.into()),
    }));
    attributes.extend(route.interface.map(RouteAttribute::Oif));
    let source = route.preferred_source;
    attributes.extend(source.map(|source| RouteAttribute::PrefSource(source.into())));
    if route.metric > 0 {
        attributes.push(RouteAttribute::Priority(route.metric));
    }
    message
}

pub(super) fn build_rule(rule: &Rule) -> RuleMessage {
    let mut message = RuleMessage::default();
    message.header.family = family(rule.ipv4);
    message.header.action = match rule.goto {
        Some(_) => RuleAction::Goto,
        None => RuleAction::ToTable,
    };
    message.header.table = u8::try_from(rule.table).unwrap_or(0);
    let attributes = &mut message.attributes;
    attributes.push(RuleAttribute::Priority(rule.priority));
    attributes.push(RuleAttribute::Table(rule.table));
    attributes.push(RuleAttribute::Protocol(RouteProtocol::from(rule.protocol)));
    attributes.extend(rule.output_interface.clone().map(RuleAttribute::Oifname));
    attributes.extend(rule.input_interface.clone().map(RuleAttribute::Iifname));
    attributes.extend(rule.goto.map(RuleAttribute::Goto));
    if let Some((mark, mask)) = rule.mark {
        attributes.push(RuleAttribute::FwMark(mark));
        attributes.push(RuleAttribute::FwMask(mask));
    }
    attributes.extend(rule.suppress_length.map(RuleAttribute::SuppressPrefixLen));
    message
}

fn family(ipv4: bool) -> AddressFamily {
    if ipv4 { AddressFamily::Inet } else { AddressFamily::Inet6 }
}

fn ip_address(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(address) => Some((*address).into()),
        RouteAddress::Inet6(address) => Some((*address).into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hop(interface: u32, attribute: RouteAttribute) -> RouteNextHop {
        let mut hop = RouteNextHop::default();
        (hop.interface_index, hop.attributes) = (interface, vec![attribute]);
        hop
    }

    fn gateway(text: &str) -> RouteAttribute {
        RouteAttribute::Gateway(text.parse::<IpAddr>().unwrap().into())
    }

    fn read(ipv4: bool, attributes: Vec<RouteAttribute>) -> Vec<(u32, String, u32)> {
        let mut message = RouteMessage::default();
        message.header.address_family = family(ipv4);
        message.header.kind = RouteType::Unicast;
        message.attributes = attributes;
        let routes = parse_routes(&message).into_iter();
        let text = |gateway: Option<IpAddr>| gateway.map(|it| it.to_string()).unwrap_or_default();
        routes.map(|it| (it.interface.unwrap(), text(it.gateway), it.metric)).collect()
    }

    #[test]
    fn a_route_by_several_next_hops_is_one_over_each() {
        let mut dead = hop(4, gateway("10.4.0.1"));
        dead.flags = RouteNextHopFlags::Dead;
        let hops = vec![hop(2, gateway("10.1.0.1")), hop(3, gateway("10.2.0.1")), dead];
        let seen = read(true, vec![RouteAttribute::MultiPath(hops), RouteAttribute::Priority(7)]);
        assert_eq!(seen, [(2, "10.1.0.1".to_owned(), 7), (3, "10.2.0.1".to_owned(), 7)]);
        let hops = vec![hop(2, gateway("fe80::1")), hop(3, gateway("fe80::1"))];
        let seen = read(false, vec![RouteAttribute::MultiPath(hops)]);
        assert_eq!(seen, [(2, "fe80::1".to_owned(), 0), (3, "fe80::1".to_owned(), 0)]);
    }

    #[test]
    fn an_ipv4_route_keeps_its_next_hop_of_ipv6() {
        let via = || RouteAttribute::Via(RouteVia::Inet6("fe80::1".parse().unwrap()));
        let seen = read(true, vec![via(), RouteAttribute::Oif(2)]);
        assert_eq!(seen, [(2, "fe80::1".to_owned(), 0)]);
        let hops = vec![hop(2, via()), hop(3, gateway("10.2.0.1"))];
        let seen = read(true, vec![RouteAttribute::MultiPath(hops)]);
        assert_eq!(seen, [(2, "fe80::1".to_owned(), 0), (3, "10.2.0.1".to_owned(), 0)]);
        let mut message = RouteMessage::default();
        message.header.address_family = AddressFamily::Inet;
        message.header.kind = RouteType::Unicast;
        message.attributes = vec![via(), RouteAttribute::Oif(2)];
        let built = build_route(&parse_routes(&message)[0]);
        assert!(built.attributes.contains(&via()), "{built:?}");
    }
}
