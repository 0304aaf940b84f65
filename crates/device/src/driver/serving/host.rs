//! What a server or an anchor holds of its machine: the device, and the routes and filters around
//! it.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ipnet::IpNet;
use roadweave_identity::PublicKey;
use roadweave_proto::DropCounters;
use roadweave_tunnel::Peers;

use super::super::{DriverError, TunSettings, needed_files};
use super::machine::{Leads, Machine};
use super::reload::Destinations;
use crate::filter::{FlowRemover, Left, check_sockets};
use crate::privileges::{self, Needs};
use crate::streams::{Sources, check_rights};
use crate::{
    Allowed, AnchorTun, Apart, DeviceError, Excluded, FilterKeeper, FilterOptions, Forwarding,
    Instance, RouteKeeper, Routes, Share, Tun, TunOptions,
};

/// What there is to be held.
#[derive(Clone, Copy, Debug)]
pub(in crate::driver) struct HostOptions<'a> {
    /// The inner addresses, with the length of the network that clients are in.
    pub(in crate::driver) addresses: &'a [IpNet],
    /// Whether what clients send leaves with this machine's own address.
    pub(in crate::driver) masquerade: bool,
    pub(in crate::driver) clients_reach_clients: bool,
    pub(in crate::driver) destinations: &'a Destinations,
    /// The connections that a client may have at a time.
    pub(in crate::driver) client_connections: u32,
    /// Whether neighbours on this machine may have the same inner addresses.
    pub(in crate::driver) has_neighbours: bool,
    /// Whether streams of clients are to end here.
    pub(in crate::driver) takes_streams: bool,
    /// Files that are read again later.
    pub(in crate::driver) files: &'a [PathBuf],
    pub(in crate::driver) state_directory: &'a Path,
}

/// What a server or an anchor holds of its machine, but for the device.
pub(in crate::driver) struct Host {
    /// What the filters are made of, but for the clients.
    filter_options: FilterOptions,
    /// The addresses that connections of clients leave with.
    sources: Sources,
    // Dropped in this order.
    filters: FilterKeeper,
    flows: FlowRemover,
    _routes: RouteKeeper,
}

/// The device that `settings` describe, with these inner addresses.
pub(in crate::driver) fn tun_options(settings: &TunSettings, addresses: &[IpNet]) -> TunOptions {
    TunOptions {
        name: settings.name.clone(),
        mtu: settings.mtu,
        addresses: addresses.to_vec(),
        offload: settings.offload,
    }
}

impl Host {
    /// Sets all of it up around `tun` for `clients`, and gives away the rights that are not needed
    /// any more: no thread may have been started before.
    ///
    /// # Errors
    /// When the system refuses.
    pub(in crate::driver) fn start(
        instance: &Instance,
        tun: &Tun,
        options: HostOptions<'_>,
        clients: &Peers,
    ) -> Result<(Self, Machine), DriverError> {
        // Before the first thread: those that follow inherit it.
        privileges::restrict(&Needs {
            files: needed_files(options.files, options.state_directory),
            ..Needs::default()
        })?;
        let mut routes = Routes::open(instance)?;
        routes.keep_tun(tun, options.addresses);
        let apart = options.has_neighbours.then(|| Apart::of(instance));
        if let Some(apart) = apart {
            routes.keep_apart(apart, surroundings(tun, &options))?;
        }
        // With the machine's own address they could reach what is a neighbour's.
        let own = options.masquerade && !options.has_neighbours;
        let client_sockets = options.takes_streams
            && take_client_sockets(instance, &mut routes, &options)
                .inspect_err(|error| tell_own_source(error, own))
                .is_ok();
        let (keeper, machine) = Machine::start(routes, tun.index(), options.addresses, clients)?;
        let filter_options =
            FilterOptions { apart, client_sockets, ..filter_options(instance, tun, &options) };
        let mut filters = FilterKeeper::start(instance, None)?;
        filters.set_and_wait(with_clients(&filter_options, machine.leads()))?;
        let flows = FlowRemover::start(apart)?;
        let sources = Sources { clients: client_sockets, own };
        Ok((Self { filter_options, sources, filters, flows, _routes: keeper }, machine))
    }

    /// Lets clients reach other `destinations`; `leads`: what they have of addresses.
    pub(super) fn lead(&mut self, destinations: &Destinations, leads: &Leads) {
        if set_destinations(&mut self.filter_options, destinations) {
            let Destinations { denied, allowed, forwards } = destinations;
            tracing::info!(
                denied = denied.len(),
                allowed = allowed.len(),
                forwards = forwards.len(),
                "the destinations that clients may reach were read again"
            );
        }
        self.filters.set(with_clients(&self.filter_options, leads));
    }

    /// Removes the connections of clients that left, soon.
    pub(super) fn forget(&self, peers: Arc<Peers>, keys: Vec<PublicKey>) {
        if !keys.is_empty() {
            self.flows.remove(Left { peers, keys });
        }
    }

    /// Where clients may go.
    pub(super) fn destinations(&self) -> Destinations {
        match &self.filter_options.forwarding {
            Forwarding::Server { denied, allowed, .. } => Destinations {
                denied: denied.clone(),
                allowed: allowed.iter().map(|to| (to.prefix, to.port)).collect(),
                forwards: self.filter_options.forwards.clone(),
            },
            _ => Destinations::default(),
        }
    }

    /// The addresses that connections of clients leave with; with neither kind there can be none.
    pub(in crate::driver) fn sources(&self) -> Sources {
        self.sources
    }

    /// What the filters have discarded.
    pub(in crate::driver) fn drops(&mut self) -> DropCounters {
        self.filters.drops()
    }
}

/// Leads to this machine what is for sockets of its own with addresses of clients.
fn take_client_sockets(
    instance: &Instance,
    routes: &mut Routes,
    options: &HostOptions<'_>,
) -> Result<(), DeviceError> {
    check_rights().map_err(|error| DeviceError::system("bind to a client's address", error))?;
    check_sockets(&format!("{}_check", instance.filter_table()))?;
    routes.take_for_sockets(options.addresses)
}

fn tell_own_source(error: &DeviceError, own: bool) {
    match own {
        true => tracing::warn!(
            "streams leave with this machine's own address, and not with their clients': {error}"
        ),
        false => tracing::error!(
            "no streams are taken: hosts are to see the clients' addresses, and they cannot be had: \
             {error}"
        ),
    }
}

fn surroundings(tun: &Tun, options: &HostOptions<'_>) -> AnchorTun {
    AnchorTun {
        tun: tun.name().to_owned(),
        index: tun.index(),
        networks: options.addresses.to_vec(),
        is_exposed: !options.masquerade,
    }
}

/// The filters without clients: an open router only for those.
fn filter_options(instance: &Instance, tun: &Tun, options: &HostOptions<'_>) -> FilterOptions {
    let HostOptions { addresses, masquerade, clients_reach_clients, destinations, .. } = *options;
    let mut filters = FilterOptions {
        tun: tun.name().to_owned(),
        mtu: tun.mtu(),
        own_addresses: addresses.iter().map(IpNet::addr).collect::<Vec<IpAddr>>(),
        inner: addresses.to_vec(),
        masquerade,
        masquerade_into_tun: None,
        excluded: Excluded::default(),
        forwards: Vec::new(),
        client_sockets: false,
        forwarding: Forwarding::Server {
            // Without masquerade the clients' addresses are known outside, and meant to be reached.
            outside_to_tunnel: !masquerade,
            clients_reach_clients,
            denied: Vec::new(),
            allowed: Vec::new(),
        },
        apart: None,
        share: Some(Share { connections: options.client_connections, prefixes: Vec::new() }),
        marks: instance.marks(),
        forward: true,
    };
    set_destinations(&mut filters, destinations);
    filters
}

/// Lets clients reach other destinations; returns whether they are others than before.
fn set_destinations(options: &mut FilterOptions, destinations: &Destinations) -> bool {
    let Forwarding::Server { denied, allowed, .. } = &mut options.forwarding else { return false };
    let now_denied = destinations.denied.clone();
    let to_allowed = |(network, port): &(IpNet, _)| Allowed { prefix: *network, port: *port };
    let now_allowed = destinations.allowed.iter().map(to_allowed).collect();
    let others = *denied != now_denied
        || *allowed != now_allowed
        || options.forwards != destinations.forwards;
    (*denied, *allowed) = (now_denied, now_allowed);
    options.forwards.clone_from(&destinations.forwards);
    others
}

/// The filters that `options` describe, with what clients have of addresses.
fn with_clients(options: &FilterOptions, Leads { routed, shared }: &Leads) -> FilterOptions {
    let inner = options.inner.iter().chain(routed).copied().collect();
    let share = options.share.clone().map(|share| Share { prefixes: shared.clone(), ..share });
    FilterOptions { inner, share, ..options.clone() }
}
