//! Addresses that an uplink may not have, because the machine would keep packets for others to
//! itself.
//!
//! ```text
//! address of an uplink ─► local table: the address, its broadcast, its network's first address
//!                             └─ asked before every rule: another uplink's server is "this machine"
//! ```
//!
//! A DHCP server or a router chooses what the kernel's local table holds. That table is asked
//! before the rules of [`crate::routes`], and the check of source addresses asks it too: one WiFi
//! that leases the server's address, or names it as the broadcast address, stops the tunnel over
//! all uplinks. So such an address is taken from the uplink, and the uplink is not used until it
//! has another one.
//!
//! What a name server of another network says counts less than the configuration: it could be said
//! to stop an honest uplink. It counts against an address with which the uplink has not reached a
//! server, or if two uplinks say it. What a server grants counts against addresses that an uplink
//! has for the first time alone, so that a bad one takes no uplink away.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use netlink_packet_route::address::AddressMessage;

use crate::Route;
use crate::process::ROUTE_PROTOCOL;
use crate::routes::space_length;

/// An address of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lease {
    pub(crate) index: u32,
    pub(crate) address: IpNet,
    /// The broadcast address that came with it.
    pub(crate) broadcast: Option<IpAddr>,
    /// Whether it has no end. An address with an end is leased or advertised.
    pub(crate) is_permanent: bool,
    /// As the kernel has it, to take it away and to give it back.
    pub(crate) message: AddressMessage,
}

impl Lease {
    /// What uplinks may not have if this address is of an interface behind the box: its network if
    /// that is small and private, else the address alone.
    ///
    /// An uplink may share the IPv6 prefix of what is behind the box (RFC 7278). A leased address
    /// may be a foreign network's.
    pub(crate) fn protects(&self) -> IpNet {
        let address = self.address.addr();
        let is_small = self.address.prefix_len() >= LAN_LENGTH_MIN && space_length(address) > 0;
        match address {
            IpAddr::V4(_) if self.is_permanent && is_small => self.address.trunc(),
            _ => address.into(),
        }
    }

    /// What the local table holds because of it (Linux `fib_add_ifaddr` and
    /// `addrconf_join_anycast`; the first address of an IPv4 network before Linux 5.14).
    fn taken(&self) -> Vec<IpAddr> {
        let (address, length) = (self.address, self.address.prefix_len());
        let mut taken = vec![address.addr()];
        taken.extend(self.broadcast);
        if length + 1 < address.max_prefix_len() && length > 0 {
            taken.push(address.network());
            taken.extend(address.addr().is_ipv4().then(|| address.broadcast()));
        }
        taken
    }
}

/// Whose an address is that an uplink may not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// The configuration or the fleet names it as a server's.
    Server,
    /// The server granted it, or has it inside the tunnel.
    Granted,
    /// It lies in a network that the configuration names to be behind this box.
    Lan,
    /// A name server of another uplink says that it is the server's.
    FoundServer,
}

impl Owner {
    fn text(self) -> &'static str {
        match self {
            Self::Server | Self::FoundServer => "the server's",
            Self::Granted => "an address inside the tunnel",
            Self::Lan => "an address of a network behind this box",
        }
    }
}

/// What an uplink has had an address for, which says how much the word of others counts against it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It has the address for the first time.
    New,
    /// It has had it before.
    Seen,
    /// A server has answered over it.
    Reached,
    /// The uplink may be a network behind the box.
    Inside,
}

impl Standing {
    /// How many other networks must say that the address is somebody else's.
    fn needed(self) -> usize {
        match self {
            Self::New | Self::Seen => 1,
            Self::Reached => 2,
            Self::Inside => usize::MAX,
        }
    }
}

/// The addresses that uplinks may not have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Protected {
    /// Certain, by the configuration or the server.
    pub(crate) certain: Vec<(IpNet, Owner)>,
    /// What the network under the uplink of this name says.
    pub(crate) said: Vec<(String, IpAddr, Owner)>,
}

impl Protected {
    /// The first address that the uplink would take from its owner.
    fn conflict(&self, uplink: &str, lease: &Lease, standing: Standing) -> Option<(IpAddr, Owner)> {
        let of_taken = |taken: IpAddr| {
            let certain = self.certain.iter().filter(|(network, owner)| {
                let counts = match owner {
                    Owner::Lan => !is_edge(network, taken),
                    Owner::Granted => standing == Standing::New,
                    _ => true,
                };
                counts && network.contains(&taken)
            });
            let certain = certain.map(|(_, owner)| *owner).next();
            certain
                .or_else(|| self.said(uplink, taken, standing.needed()))
                .map(|owner| (taken, owner))
        };
        lease.taken().into_iter().find_map(of_taken)
    }

    fn said(&self, uplink: &str, taken: IpAddr, needed: usize) -> Option<Owner> {
        let said = self.said.iter().filter(|(by, said, _)| by != uplink && *said == taken);
        let by: BTreeSet<&str> = said.clone().map(|(by, ..)| by.as_str()).collect();
        // Modems are known for their addresses: one name server could say them of the server.
        let is_private = space_length(taken) > 0;
        let mut owners = said.map(|(.., owner)| *owner);
        owners.find(|owner| {
            let least = if is_private && *owner == Owner::FoundServer { 2 } else { 1 };
            by.len() >= needed.max(least)
        })
    }
}

/// Whether it is the first or the last address of a network, which no host has.
fn is_edge(network: &IpNet, address: IpAddr) -> bool {
    network.prefix_len() + 1 < network.max_prefix_len()
        && (address == network.network() || (address.is_ipv4() && address == network.broadcast()))
}

/// The addresses that were taken from uplinks, with the reason.
#[derive(Debug, Default)]
pub(crate) struct Conflicts(BTreeMap<(u32, IpNet), Taken>);

#[derive(Debug)]
struct Taken {
    uplink: String,
    lease: Lease,
    /// The routes by gateways that went with it.
    routes: Vec<Route>,
    why: String,
    /// Whose it is does not depend on what other networks say.
    is_certain: bool,
    /// The uplink has another address of the family since.
    is_replaced: bool,
}

/// What follows from a look at the addresses.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Changes {
    /// Addresses to take away; the reason is given where it is news.
    pub(crate) remove: Vec<(Lease, Option<String>)>,
    /// Addresses to give back, with their routes: what they were in conflict with is elsewhere now.
    pub(crate) restore: Vec<(Lease, Vec<Route>)>,
}

impl Conflicts {
    /// Judges the addresses of `uplinks`, which are their names by index; `standing` is of an
    /// address of an uplink.
    pub(crate) fn look(
        &mut self,
        uplinks: &BTreeMap<u32, String>,
        leases: &[Lease],
        protected: &Protected,
        standing: impl Fn(&str, IpNet) -> Standing,
    ) -> Changes {
        let mut changes = Changes::default();
        let (mut found, mut good) = (Vec::new(), Vec::new());
        for lease in leases {
            let Some(uplink) = uplinks.get(&lease.index) else { continue };
            match protected.conflict(uplink, lease, standing(uplink, lease.address)) {
                Some(conflict) => found.push((uplink, lease, conflict)),
                None => good.push(lease),
            }
        }
        good.iter().for_each(|lease| self.replace(lease));
        self.0.retain(|(index, _), taken| {
            // What another network says goes with that network, and would come back with it.
            let is_over = || {
                taken.is_certain
                    && protected.conflict(&taken.uplink, &taken.lease, Standing::New).is_none()
            };
            let is_there = uplinks.get(index) == Some(&taken.uplink);
            if is_there && is_over() {
                changes.restore.extend((!taken.is_replaced).then(|| taken.give_back()));
                return false;
            }
            is_there
        });
        for (uplink, lease, (address, owner)) in found {
            let why = format!("its address {} takes {address}, {}", lease.address, owner.text());
            let is_certain = owner != Owner::FoundServer;
            let is_news = self.note(uplink, lease, &why, is_certain);
            changes.remove.push((lease.clone(), is_news.then_some(why)));
        }
        good.into_iter().for_each(|lease| self.replace(lease));
        changes
    }

    /// Remembers what is taken away; returns whether that is news.
    fn note(&mut self, uplink: &str, lease: &Lease, why: &str, is_certain: bool) -> bool {
        if let Some(known) = self.0.get_mut(&(lease.index, lease.address)) {
            known.lease.clone_from(lease);
            (known.is_replaced, known.is_certain) = (false, is_certain);
            return std::mem::replace(&mut known.why, why.to_owned()) != why;
        }
        if self.0.len() >= TAKEN_MAX {
            self.0.retain(|_, taken| !taken.is_replaced);
        }
        let (uplink, lease, why) = (uplink.to_owned(), lease.clone(), why.to_owned());
        let key = (lease.index, lease.address);
        let has_room = self.0.len() < TAKEN_MAX;
        if has_room {
            let routes = Vec::new();
            self.0
                .insert(key, Taken { uplink, lease, routes, why, is_certain, is_replaced: false });
        }
        has_room
    }

    /// Remembers those of the machine's `routes` that go with an address which is taken away.
    pub(crate) fn note_routes(&mut self, lease: &Lease, routes: &[Route]) {
        let Some(taken) = self.0.get_mut(&(lease.index, lease.address)) else { return };
        let ipv4 = lease.address.addr().is_ipv4();
        let go_with_it = routes.iter().filter(|route| {
            route.interface == Some(lease.index)
                && route.destination.addr().is_ipv4() == ipv4
                && route.protocol != ROUTE_PROTOCOL
                && (route.gateway.is_some() || route.destination.prefix_len() == 0)
        });
        let routes: Vec<Route> = go_with_it.take(ROUTES_MAX).cloned().collect();
        // A DHCP client that adds the address again has not added its routes yet.
        if !routes.is_empty() {
            taken.routes = routes;
        }
    }

    /// An uplink has an address that it may have, in the place of those before in that family.
    fn replace(&mut self, lease: &Lease) {
        let is_ipv4 = |address: &IpNet| address.addr().is_ipv4();
        for ((index, address), taken) in &mut self.0 {
            let is_same = *index == lease.index && is_ipv4(address) == is_ipv4(&lease.address);
            taken.is_replaced |= is_same;
        }
    }

    /// Why the uplink with this index is not used, if it is not.
    pub(crate) fn of(&self, index: u32) -> Option<&str> {
        let mut taken = self.0.iter().filter(|((at, _), taken)| *at == index && !taken.is_replaced);
        taken.next().map(|(_, taken)| taken.why.as_str())
    }

    /// All that was taken away and not replaced, to be given back.
    pub(crate) fn take_all(&mut self) -> Vec<(Lease, Vec<Route>)> {
        let taken = std::mem::take(&mut self.0).into_values();
        taken.filter(|taken| !taken.is_replaced).map(|mut taken| taken.give_back()).collect()
    }
}

impl Taken {
    fn give_back(&mut self) -> (Lease, Vec<Route>) {
        (self.lease.clone(), std::mem::take(&mut self.routes))
    }
}

/// The widest network behind the box that is protected as a whole.
const LAN_LENGTH_MIN: u8 = 24;
/// Addresses that are remembered, at most.
const TAKEN_MAX: usize = 64;
/// Routes that are remembered of each.
const ROUTES_MAX: usize = 8;

#[cfg(test)]
mod tests;
