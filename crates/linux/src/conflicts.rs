//! Addresses that an uplink must not have, or the machine would take others' packets for its own.
//! DHCP servers and routers determine the kernel's local table, which precedes the rules of
//! [`crate::routes`]. A WiFi that leases the server's address, or names it as broadcast address,
//! would stop the tunnel. Such an address is removed; its uplink is unused until it has another.
//! Forged answers of another network's name server could stop an honest uplink, so they need a
//! second network, unless the uplink never reached a server with its address. A server's grant
//! counts only against new addresses.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;

use crate::Route;
use crate::netlink::Lease;
use crate::process::ROUTE_PROTOCOL;
use crate::space::space_length;

/// The addresses that uplinks must not have if `lease` belongs to an interface behind the box: its
/// whole network if that is private, permanent and small, else the address alone. IPv6 prefixes may
/// be shared with an uplink (RFC 7278); a leased address may be of a foreign network.
pub(crate) fn protected_by(lease: &Lease) -> IpNet {
    let address = lease.address.addr();
    let is_small = lease.address.prefix_len() >= LAN_LENGTH_MIN && space_length(address) > 0;
    match address {
        IpAddr::V4(_) if lease.is_permanent && is_small => lease.address.trunc(),
        _ => address.into(),
    }
}

/// The local table's entries for `lease` (Linux `fib_add_ifaddr` and `addrconf_join_anycast`; the
/// first address of an IPv4 network before Linux 5.14).
fn taken_by(lease: &Lease) -> Vec<IpAddr> {
    let (address, length) = (lease.address, lease.address.prefix_len());
    let mut taken = vec![address.addr()];
    taken.extend(lease.broadcast);
    if length + 1 < address.max_prefix_len() && length > 0 {
        taken.push(address.network());
        taken.extend(address.addr().is_ipv4().then(|| address.broadcast()));
    }
    taken
}

/// The owner of a protected address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// A server whose address is certain.
    Server,
    /// Granted by the server, or its own inner address.
    Granted,
    /// A host of a network that is named as behind this box.
    Lan,
    /// A server, by a name server of another uplink.
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

/// The history of an uplink's address, which weighs other networks' claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    New,
    Seen,
    Reached,
    Inside,
}

impl Standing {
    fn needed(self) -> usize {
        match self {
            Self::New | Self::Seen => 1,
            Self::Reached => 2,
            Self::Inside => usize::MAX,
        }
    }
}

/// Addresses that an uplink must not have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Protected {
    /// Whatever networks say.
    pub certain: Vec<(IpNet, Owner)>,
    /// By the network of the uplink of this name.
    pub said: Vec<(String, IpAddr, Owner)>,
}

impl Protected {
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
        taken_by(lease).into_iter().find_map(of_taken)
    }

    fn said(&self, uplink: &str, taken: IpAddr, needed: usize) -> Option<Owner> {
        let said = self.said.iter().filter(|(by, said, _)| by != uplink && *said == taken);
        let by: BTreeSet<&str> = said.clone().map(|(by, ..)| by.as_str()).collect();
        // Modems use well-known private addresses, which a single name server could claim.
        let is_private = space_length(taken) > 0;
        let mut owners = said.map(|(.., owner)| *owner);
        owners.find(|owner| {
            let least = if is_private && *owner == Owner::FoundServer { 2 } else { 1 };
            by.len() >= needed.max(least)
        })
    }
}

fn is_edge(network: &IpNet, address: IpAddr) -> bool {
    network.prefix_len() + 1 < network.max_prefix_len()
        && (address == network.network() || (address.is_ipv4() && address == network.broadcast()))
}

#[derive(Debug, Default)]
pub(crate) struct Conflicts(BTreeMap<(u32, IpNet), Taken>);

#[derive(Debug)]
struct Taken {
    uplink: String,
    lease: Lease,
    routes: Vec<Route>,
    why: String,
    is_certain: bool,
    /// The uplink has another address of the family since.
    is_replaced: bool,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Changes {
    pub(crate) remove: Vec<(Lease, Option<String>)>,
    pub(crate) restore: Vec<(Lease, Vec<Route>)>,
}

impl Conflicts {
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
            // A claim ends with the network that made it.
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
            let why =
                format!("its address {} conflicts with {address}, {}", lease.address, owner.text());
            let is_certain = owner != Owner::FoundServer;
            let is_new = self.note(uplink, lease, &why, is_certain);
            changes.remove.push((lease.clone(), is_new.then_some(why)));
        }
        good.into_iter().for_each(|lease| self.replace(lease));
        changes
    }

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
        // A DHCP client may add the address again before its routes.
        if !routes.is_empty() {
            taken.routes = routes;
        }
    }

    fn replace(&mut self, lease: &Lease) {
        let is_ipv4 = |address: &IpNet| address.addr().is_ipv4();
        for ((index, address), taken) in &mut self.0 {
            let is_same = *index == lease.index && is_ipv4(address) == is_ipv4(&lease.address);
            taken.is_replaced |= is_same;
        }
    }

    pub(crate) fn of(&self, index: u32) -> Option<&str> {
        let mut taken = self.0.iter().filter(|((at, _), taken)| *at == index && !taken.is_replaced);
        taken.next().map(|(_, taken)| taken.why.as_str())
    }

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

const LAN_LENGTH_MIN: u8 = 24;
const TAKEN_MAX: usize = 64;
const ROUTES_MAX: usize = 8;

#[cfg(test)]
mod tests;
