//! Route netlink: the links, addresses, routes and rules that the tunnel needs. Requests block for
//! microseconds, one at a time. A socket stays in the network namespace in which it was opened.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use netlink_packet_core::{
    NLM_F_ACK, NLM_F_APPEND, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REPLACE, NetlinkMessage,
};
use netlink_packet_route::address::{AddressHeaderFlags, AddressMessage};
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkMessage};
use netlink_packet_route::route::{RouteAttribute, RouteMessage, RouteType};
use netlink_packet_route::rule::RuleMessage;
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use rustix::io::Errno;
use rustix::net::{AddressFamily as SocketFamily, Protocol, RecvFlags, SocketFlags, SocketType};

use crate::DeviceError;
use crate::socket::set_option;

mod messages;
mod requests;

use self::messages::{build_address, build_route, build_rule, parse_rule};
pub(crate) use self::messages::{parse_address, parse_lease, parse_link, parse_routes};
pub(crate) use self::requests::Requests;

pub(crate) const DEFAULT_V4: IpNet = IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::UNSPECIFIED, 0));
pub(crate) const DEFAULT_V6: IpNet = IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::UNSPECIFIED, 0));

/// A connection to the kernel's tables of links, addresses, routes and rules.
#[derive(Debug)]
pub struct Netlink {
    requests: Requests,
    /// Whether the kernel checks dump requests strictly, and so filters routes by kind.
    filters: bool,
}

/// One interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetworkInterface {
    /// The kernel's number for it.
    pub index: u32,
    /// The name of the interface.
    pub name: String,
    /// Up, as set by the administrator.
    pub up: bool,
    /// Has a carrier: the modem is attached, the cable plugged in.
    pub carrier: bool,
    /// The loopback interface.
    pub loopback: bool,
    /// At most one peer, so no gateway is needed (ppp, many modems).
    pub point_to_point: bool,
    /// Largest packet, bytes.
    pub mtu: u32,
    /// The interface's group; zero is the default group.
    pub group: u32,
}

/// An interface, as rules name it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Interface {
    /// The interface's name.
    pub name: String,
    /// The kernel's number, used for names that nft cannot read.
    pub index: u32,
}

/// An address of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lease {
    pub(crate) index: u32,
    pub(crate) address: IpNet,
    pub(crate) broadcast: Option<IpAddr>,
    /// Leased and advertised addresses expire.
    pub(crate) is_permanent: bool,
    /// The kernel's message, to remove and restore the address.
    pub(crate) message: AddressMessage,
}

/// A route, either found or to be added or removed.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Route {
    /// The network that the route leads to.
    pub destination: IpNet,
    /// The next hop, for IPv4 an address of either family; `None` if directly attached.
    pub gateway: Option<IpAddr>,
    /// The index of the interface; `None` for an "unreachable" or a "throw" route.
    pub interface: Option<u32>,
    /// The routing table; 254 is the main one.
    pub table: u32,
    /// The smallest wins; zero: the kernel chooses.
    pub metric: u32,
    /// The origin of the route (`/etc/iproute2/rt_protos`).
    pub protocol: u8,
    /// The source address of packets that have none yet; `None`: the kernel chooses.
    pub preferred_source: Option<IpAddr>,
    /// A local route over the loopback interface: this machine receives what it matches.
    pub local: bool,
    /// A "throw" route: lookup continues with the next rule. Has no interface.
    pub passes_by: bool,
}

/// One policy rule: packets that match look into `table`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rule {
    /// IPv4; otherwise IPv6.
    pub ipv4: bool,
    /// The smallest is evaluated first.
    pub priority: u32,
    /// Matches sockets bound to this interface.
    pub output_interface: Option<String>,
    /// Matches packets that came in by this interface; `lo` is locally generated traffic.
    pub input_interface: Option<String>,
    /// Matches packets with `packet_mark & mask == mark`: (mark, mask).
    pub mark: Option<(u32, u32)>,
    /// Continues with the first rule of this priority instead of a table lookup.
    pub goto: Option<u32>,
    /// The routing table to look into.
    pub table: u32,
    /// Skips routes with a prefix of at most this length: 0 skips default routes.
    pub suppress_length: Option<u32>,
    /// The origin of the rule (`/etc/iproute2/rt_protos`).
    pub protocol: u8,
}

impl Netlink {
    /// Opens a socket in the network namespace of the calling thread.
    pub fn open() -> Result<Self, DeviceError> {
        let requests = Requests::open(None)
            .map_err(|error| DeviceError::system("open a netlink socket", error))?;
        let socket = &requests.socket;
        let filters = set_option(socket, libc::SOL_NETLINK, NETLINK_GET_STRICT_CHK, &1_i32).is_ok();
        Ok(Self { requests, filters })
    }

    /// All interfaces, by index.
    pub fn links(&mut self) -> Result<Vec<NetworkInterface>, DeviceError> {
        let message = RouteNetlinkMessage::GetLink(LinkMessage::default());
        self.list("list the interfaces", message, |message| match message {
            RouteNetlinkMessage::NewLink(link) => Some(parse_link(&link)),
            _ => None,
        })
    }

    /// All usable addresses, each with its interface's index, without tentative and duplicate ones.
    pub fn addresses(&mut self) -> Result<Vec<(u32, IpNet)>, DeviceError> {
        Ok(self.address_messages()?.iter().filter_map(parse_address).collect())
    }

    pub(crate) fn address_messages(&mut self) -> Result<Vec<AddressMessage>, DeviceError> {
        let message = RouteNetlinkMessage::GetAddress(AddressMessage::default());
        self.list("list the addresses", message, |message| match message {
            RouteNetlinkMessage::NewAddress(address) => Some(address),
            _ => None,
        })
    }

    fn list<T>(
        &mut self,
        what: &str,
        message: RouteNetlinkMessage,
        take: impl Fn(RouteNetlinkMessage) -> Option<T>,
    ) -> Result<Vec<T>, DeviceError> {
        let messages = self.dump(message).map_err(|error| DeviceError::system(what, error))?;
        Ok(messages.into_iter().filter_map(take).collect())
    }

    /// Unicast (by next hop) and unreachable routes, our local and throw routes; IPv4 before IPv6.
    pub fn routes(&mut self) -> Result<Vec<Route>, DeviceError> {
        let all = [RouteType::Unicast, RouteType::Unreachable, RouteType::Local, RouteType::Throw];
        self.routes_of(&all)
    }

    /// Routes of other kinds, possibly thousands, cost little.
    pub(crate) fn routes_of(&mut self, kinds: &[RouteType]) -> Result<Vec<Route>, DeviceError> {
        let mut routes = Vec::new();
        let asked = if self.filters { kinds } else { &[RouteType::Unspec] };
        let families = [AddressFamily::Inet, AddressFamily::Inet6].into_iter();
        for (family, kind) in families.flat_map(|family| asked.iter().map(move |it| (family, it))) {
            let mut message = RouteMessage::default();
            (message.header.address_family, message.header.kind) = (family, *kind);
            let is_of_kind = |message: &[u8]| {
                // The type, and the kind of the route, in a RTM_NEWROUTE message.
                message.get(4..6) != Some(&NEW_ROUTE.to_ne_bytes())
                    || message.get(23).is_some_and(|kind| kinds.contains(&(*kind).into()))
            };
            let messages = self
                .dump_some(RouteNetlinkMessage::GetRoute(message), is_of_kind)
                .map_err(|error| DeviceError::system("list the routes", error))?;
            routes.extend(messages.into_iter().flat_map(|message| match message {
                RouteNetlinkMessage::NewRoute(route) => parse_routes(&route),
                _ => Vec::new(),
            }));
        }
        Ok(routes)
    }

    /// All policy rules that look into a table, IPv4 before IPv6.
    pub fn rules(&mut self) -> Result<Vec<Rule>, DeviceError> {
        let mut rules = Vec::new();
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            let mut message = RuleMessage::default();
            message.header.family = family;
            let message = RouteNetlinkMessage::GetRule(message);
            rules.extend(self.list("list the policy rules", message, |message| match message {
                RouteNetlinkMessage::NewRule(rule) => Some(parse_rule(&rule)),
                _ => None,
            })?);
        }
        Ok(rules)
    }

    /// The interface of this name, or [`DeviceError::NoInterface`].
    pub fn link(&mut self, name: &str) -> Result<NetworkInterface, DeviceError> {
        self.links()?
            .into_iter()
            .find(|link| link.name == name)
            .ok_or_else(|| DeviceError::NoInterface { name: name.to_owned() })
    }

    /// Sets an interface up or down, and its MTU if one is given.
    pub fn set_link(&mut self, index: u32, up: bool, mtu: Option<u32>) -> Result<(), DeviceError> {
        let change = |message: &mut LinkMessage| {
            message.header.change_mask = LinkFlags::Up;
            message.header.flags = if up { LinkFlags::Up } else { LinkFlags::empty() };
            message.attributes.extend(mtu.map(LinkAttribute::Mtu));
        };
        self.change_link(index, change)
            .map_err(|error| DeviceError::system("set an interface up or its MTU", error))
    }

    pub(crate) fn set_group(&mut self, index: u32, group: u32) -> Result<(), DeviceError> {
        self.change_link(index, |message| message.attributes.push(LinkAttribute::Group(group)))
            .map_err(|error| DeviceError::system("set an interface's group", error))
    }

    /// Kernels before 6.2 rename only interfaces that are down.
    pub(crate) fn rename_link(&mut self, index: u32, name: &str) -> Result<(), DeviceError> {
        let failed = |error| DeviceError::system(format!("call an interface {name}"), error);
        match self.set_name(index, name) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                self.set_link(index, false, None)?;
                self.set_name(index, name).map_err(failed)?;
            }
            result => result.map_err(failed)?,
        }
        self.set_link(index, true, None)
    }

    fn set_name(&mut self, index: u32, name: &str) -> io::Result<()> {
        let name = LinkAttribute::IfName(name.to_owned());
        self.change_link(index, |message| message.attributes.push(name))
    }

    fn change_link(&mut self, index: u32, change: impl FnOnce(&mut LinkMessage)) -> io::Result<()> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        change(&mut message);
        self.request(RouteNetlinkMessage::SetLink(message), 0)
    }

    /// Adds an address to an interface; an existing one is no error.
    ///
    /// The address is usable when this returns: IPv6 skips duplicate address detection, and on
    /// interfaces that are up the call waits up to a second for the local route.
    pub fn add_address(&mut self, index: u32, prefix: IpNet) -> Result<(), DeviceError> {
        let mut message = build_address(index, prefix);
        if !prefix.addr().is_ipv4() {
            message.header.flags = AddressHeaderFlags::Nodad;
        }
        let result =
            self.request(RouteNetlinkMessage::NewAddress(message), NLM_F_CREATE | NLM_F_EXCL);
        ignore(result, io::ErrorKind::AlreadyExists)
            .and_then(|()| self.await_local_route(prefix.addr()))
            .map_err(|error| {
                let what = format!("add the address {prefix}");
                DeviceError::of_family(prefix.addr().is_ipv4(), what, error)
            })
    }

    /// Removes an address from an interface; a missing one is no error.
    pub fn remove_address(&mut self, index: u32, prefix: IpNet) -> Result<(), DeviceError> {
        let message = RouteNetlinkMessage::DelAddress(build_address(index, prefix));
        ignore(self.request(message, 0), io::ErrorKind::AddrNotAvailable).map_err(|error| {
            let what = format!("remove the address {prefix}");
            DeviceError::of_family(prefix.addr().is_ipv4(), what, error)
        })
    }

    /// An address that is missing, or already back, is no error.
    pub(crate) fn move_address(
        &mut self,
        message: AddressMessage,
        is_back: bool,
    ) -> Result<(), DeviceError> {
        let ipv4 = message.header.family == AddressFamily::Inet;
        let (result, harmless, what) = match is_back {
            true => (
                self.request(RouteNetlinkMessage::NewAddress(message), NLM_F_CREATE | NLM_F_EXCL),
                io::ErrorKind::AlreadyExists,
                "restore an uplink's address",
            ),
            false => (
                self.request(RouteNetlinkMessage::DelAddress(message), 0),
                io::ErrorKind::AddrNotAvailable,
                "remove an uplink's address",
            ),
        };
        ignore(result, harmless).map_err(|error| DeviceError::of_family(ipv4, what, error))
    }

    fn await_local_route(&mut self, address: IpAddr) -> io::Result<()> {
        let is_local = |message: &RouteNetlinkMessage| match message {
            RouteNetlinkMessage::NewRoute(route) => {
                route.header.kind == RouteType::Local
                    && route.attributes.contains(&RouteAttribute::Destination(address.into()))
            }
            _ => false,
        };
        for _ in 0..if address.is_ipv6() { LOCAL_ROUTE_TRIES } else { 0 } {
            let mut message = RouteMessage::default();
            message.header.address_family = AddressFamily::Inet6;
            if self.dump(RouteNetlinkMessage::GetRoute(message))?.iter().any(is_local) {
                break;
            }
            std::thread::sleep(LOCAL_ROUTE_PAUSE);
        }
        Ok(())
    }

    /// Adds a route, or replaces the one with the same destination, table and metric.
    pub(crate) fn replace_route(&mut self, route: &Route) -> Result<(), DeviceError> {
        let message = RouteNetlinkMessage::NewRoute(build_route(route));
        self.request(message, NLM_F_CREATE | NLM_F_REPLACE).map_err(|error| not_added(route, error))
    }

    /// Adds a route beside others to the same destination; an existing one is no error.
    pub(crate) fn add_route(&mut self, route: &Route) -> Result<(), DeviceError> {
        let message = RouteNetlinkMessage::NewRoute(build_route(route));
        let result = self.request(message, NLM_F_CREATE | NLM_F_APPEND);
        ignore(result, io::ErrorKind::AlreadyExists).map_err(|error| not_added(route, error))
    }

    pub(crate) fn remove_route(&mut self, route: &Route) -> Result<(), DeviceError> {
        match self.request(RouteNetlinkMessage::DelRoute(build_route(route)), 0) {
            Err(error) if error.raw_os_error() == Some(Errno::SRCH.raw_os_error()) => Ok(()),
            result => result.map_err(|error| {
                DeviceError::system(format!("remove the route to {}", route.destination), error)
            }),
        }
    }

    /// Adds a policy rule; an existing one is no error.
    pub(crate) fn add_rule(&mut self, rule: &Rule) -> Result<(), DeviceError> {
        let message = RouteNetlinkMessage::NewRule(build_rule(rule));
        ignore(self.request(message, NLM_F_CREATE | NLM_F_EXCL), io::ErrorKind::AlreadyExists)
            .map_err(|error| DeviceError::of_family(rule.ipv4, "add a policy rule", error))
    }

    pub(crate) fn remove_rule(&mut self, rule: &Rule) -> Result<(), DeviceError> {
        let message = RouteNetlinkMessage::DelRule(build_rule(rule));
        ignore(self.request(message, 0), io::ErrorKind::NotFound)
            .map_err(|error| DeviceError::system("remove a policy rule", error))
    }

    fn request(&mut self, message: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        self.requests.ask(message, flags | NLM_F_ACK, |_| true, drop).map(drop)
    }

    fn dump(&mut self, message: RouteNetlinkMessage) -> io::Result<Vec<RouteNetlinkMessage>> {
        self.dump_some(message, |_| true)
    }

    fn dump_some(
        &mut self,
        message: RouteNetlinkMessage,
        wanted: impl Fn(&[u8]) -> bool,
    ) -> io::Result<Vec<RouteNetlinkMessage>> {
        let mut found = Vec::new();
        self.requests.ask(message, NLM_F_DUMP, wanted, |message| found.push(message))?;
        Ok(found)
    }
}

impl AsFd for Netlink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.requests.socket.as_fd()
    }
}

pub(crate) fn open_socket(groups: u32) -> Result<OwnedFd, Errno> {
    open_socket_of(None, groups)
}

/// Opens a netlink socket. `None` is NETLINK_ROUTE; `groups` has one bit for each multicast group.
pub(crate) fn open_socket_of(protocol: Option<Protocol>, groups: u32) -> Result<OwnedFd, Errno> {
    let (family, flags) = (SocketFamily::NETLINK, SocketFlags::CLOEXEC);
    let socket = rustix::net::socket_with(family, SocketType::RAW, flags, protocol)?;
    rustix::net::bind(&socket, &rustix::net::netlink::SocketAddrNetlink::new(0, groups))?;
    Ok(socket)
}

/// `None` stands for lost datagrams.
pub(crate) fn drain(socket: &OwnedFd, mut each: impl FnMut(Option<&[u8]>)) {
    let mut buffer = [0; 8192];
    loop {
        match rustix::net::recv(socket, &mut buffer[..], RecvFlags::DONTWAIT) {
            Ok((length, _)) => each(Some(&buffer[..length])),
            Err(Errno::NOBUFS) => each(None),
            Err(Errno::INTR) => {}
            Err(_) => return,
        }
    }
}

/// The messages of one datagram. Those that do not parse, as with non-UTF-8 names, are skipped.
pub(crate) struct Messages<'a>(pub(crate) &'a [u8]);

impl Iterator for Messages<'_> {
    type Item = NetlinkMessage<RouteNetlinkMessage>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Ok(message) = NetlinkMessage::deserialize(take_message(&mut self.0)?) {
                return Some(message);
            }
        }
    }
}

pub(crate) fn take_message<'a>(datagram: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = usize::try_from(u32::from_ne_bytes(*datagram.first_chunk()?)).ok()?;
    let (bytes, _) = datagram.split_at_checked(length)?;
    *datagram = datagram.get(length.next_multiple_of(4)..).unwrap_or_default();
    Some(bytes)
}

fn not_added(route: &Route, error: io::Error) -> DeviceError {
    let what = format!("add the route to {}", route.destination);
    DeviceError::of_family(route.destination.addr().is_ipv4(), what, error)
}

fn ignore(result: io::Result<()>, kind: io::ErrorKind) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == kind => Ok(()),
        result => result,
    }
}

const NETLINK_GET_STRICT_CHK: libc::c_int = 12;
const NEW_ROUTE: u16 = 24;
const LOCAL_ROUTE_TRIES: usize = 500;
const LOCAL_ROUTE_PAUSE: Duration = Duration::from_millis(2);

#[cfg(test)]
pub(crate) fn test_link(index: u32, name: &str) -> NetworkInterface {
    NetworkInterface {
        index,
        name: name.to_owned(),
        up: true,
        carrier: true,
        mtu: 1500,
        ..NetworkInterface::default()
    }
}
