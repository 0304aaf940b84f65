//! The routes and filters that a server or an anchor keeps around its TUN.

use std::sync::Arc;

use ipnet::IpNet;
use roadweave_config::{AnchorFile, ServerFile, TunFields};
use roadweave_identity::PublicKey;
use roadweave_linux::privileges::{self, Needs};
use roadweave_linux::{
    AnchorTun, Apart, DeviceError, FilterKeeper, FilterOptions, FlowRemover, Forwarding, Instance,
    RouteKeeper, Routes, Share, Tun, check_sockets,
};
use roadweave_proto::Marks;
use roadweave_tunnel::Peers;

use super::super::{DriverError, filters_of, from_config, needed_files};
use super::ServingOptions;
use super::departed::Departed;
use super::machine::{Leads, Machine};
use super::reload::Destinations;
use crate::streams::{Sources, check_rights};

#[derive(Clone, Debug)]
pub(in crate::driver) struct HostOptions {
    pub(in crate::driver) addresses: Vec<IpNet>,
    pub(super) tun: TunFields,
    pub(super) marks: Marks,
    masquerade: bool,
    pub(super) clients_reach_clients: bool,
    client_connections: u32,
    pub(super) connects_per_second: u32,
    pub(super) http_ports: Vec<u16>,
}

macro_rules! host_options_of {
    ($($file:ty),+) => {
        $(impl From<&$file> for HostOptions {
            fn from(file: &$file) -> Self {
                let streams = file.streams.as_ref();
                Self {
                    addresses: file.addresses.clone(),
                    tun: file.tun.clone(),
                    marks: file.packet_marks.into(),
                    masquerade: file.masquerade,
                    clients_reach_clients: file.clients_reach_clients,
                    client_connections: file.client_connections.get() as u32,
                    connects_per_second: streams
                        .map_or(1, |streams| streams.connects_per_second.get() as u32),
                    http_ports: streams.map_or_else(Vec::new, |it| it.http_ports.clone()),
                }
            }
        })+
    };
}

host_options_of!(ServerFile, AnchorFile);

pub(in crate::driver) struct Host {
    filter_options: FilterOptions,
    pub(super) destinations: Destinations,
    pub(super) sources: Sources,
    // Fields are dropped in this order.
    pub(super) filters: FilterKeeper,
    flows: FlowRemover,
    _routes: RouteKeeper,
}

impl Host {
    pub(super) fn start(
        instance: &Instance,
        tun: &Tun,
        options: &HostOptions,
        serving: &ServingOptions,
        clients: &Peers,
        takes_streams: bool,
        has_neighbours: bool,
    ) -> Result<(Self, Machine), DriverError> {
        // Before the first thread starts: threads inherit the restrictions.
        privileges::restrict(&Needs {
            files: needed_files(&serving.files, &serving.state_directory),
            ..Needs::default()
        })?;
        let mut routes = Routes::open(instance)?;
        routes.keep_tun(tun, &options.addresses);
        let apart = has_neighbours.then(|| Apart::of(instance));
        if let Some(apart) = apart {
            routes.keep_apart(apart, surroundings(tun, options))?;
        }
        // The machine's own address could reach other instances' networks.
        let own = options.masquerade && !has_neighbours;
        let client_sockets = takes_streams
            && take_client_sockets(instance, &mut routes, &options.addresses)
                .inspect_err(|error| log_source_error(error, own))
                .is_ok();
        let (_routes, machine) = Machine::start(routes, tun.index(), &options.addresses, clients)?;
        let filters = filter_options(instance, tun, options);
        let filter_options = FilterOptions { apart, client_sockets, ..filters };
        let destinations = serving.of_file.destinations.clone();
        let mut filters = FilterKeeper::start(instance, None)?;
        filters.set_and_wait(with_clients(&filter_options, &destinations, &machine.leads))?;
        let flows = FlowRemover::start(apart)?;
        let sources = Sources { clients: client_sockets, own };
        Ok((Self { filter_options, destinations, sources, filters, flows, _routes }, machine))
    }

    pub(super) fn lead(&mut self, destinations: &Destinations, leads: &Leads) {
        if self.destinations != *destinations {
            self.destinations.clone_from(destinations);
            let Destinations { denied, allowed, forwards } = destinations;
            tracing::info!(
                denied = denied.len(),
                allowed = allowed.len(),
                forwards = forwards.len(),
                "the destinations that clients may reach were read again"
            );
        }
        self.filters.set(with_clients(&self.filter_options, destinations, leads));
    }

    pub(super) fn forget(&self, peers: Arc<Peers>, keys: Vec<PublicKey>) {
        if !keys.is_empty() {
            let departed = Departed { peers, keys };
            self.flows.remove(Box::new(move |address| departed.has(address)));
        }
    }
}

fn take_client_sockets(
    instance: &Instance,
    routes: &mut Routes,
    addresses: &[IpNet],
) -> Result<(), DeviceError> {
    check_rights().map_err(|error| DeviceError::system("bind to a client's address", error))?;
    check_sockets(&format!("{}_check", instance.filter_table()))?;
    routes.take_for_sockets(addresses)
}

fn log_source_error(error: &DeviceError, own: bool) {
    match own {
        true => tracing::warn!(
            "streams use this machine's own address instead of their clients': {error}"
        ),
        false => tracing::error!(
            "no streams are accepted: they must leave with the clients' addresses, which failed: \
             {error}"
        ),
    }
}

fn surroundings(tun: &Tun, options: &HostOptions) -> AnchorTun {
    AnchorTun {
        tun: tun.name().to_owned(),
        index: tun.index(),
        networks: options.addresses.clone(),
        is_exposed: !options.masquerade,
    }
}

fn filter_options(instance: &Instance, tun: &Tun, options: &HostOptions) -> FilterOptions {
    let HostOptions { addresses, masquerade, clients_reach_clients, .. } = options;
    let forwarding = Forwarding::Server {
        // Without masquerade the clients' addresses are routable outside, and may be reached.
        outside_to_tunnel: !masquerade,
        clients_reach_clients: *clients_reach_clients,
        denied: Vec::new(),
        allowed: Vec::new(),
    };
    FilterOptions {
        own_addresses: addresses.iter().map(IpNet::addr).collect(),
        inner: addresses.clone(),
        masquerade: *masquerade,
        share: Some(Share { connections: options.client_connections, prefixes: Vec::new() }),
        ..filters_of(tun, instance.marks(), forwarding)
    }
}

fn with_clients(
    options: &FilterOptions,
    destinations: &Destinations,
    Leads { routed, shared }: &Leads,
) -> FilterOptions {
    let inner = options.inner.iter().chain(routed).copied().collect();
    let share = options.share.clone().map(|share| Share { prefixes: shared.clone(), ..share });
    let forwards = destinations.forwards.clone();
    let mut filters = FilterOptions { inner, share, forwards, ..options.clone() };
    if let Forwarding::Server { denied, allowed, .. } = &mut filters.forwarding {
        denied.clone_from(&destinations.denied);
        *allowed = from_config::destinations(&destinations.allowed);
    }
    filters
}
