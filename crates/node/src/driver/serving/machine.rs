//! The routes that depend on the clients. A thread changes them while the tunnel runs.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use ipnet::IpNet;
use roadweave_linux::threads::lock;
use roadweave_linux::{DeviceError, RouteKeeper, Routes};
use roadweave_tunnel::Peers;

use super::super::lead_into;

pub(in crate::driver) struct Machine {
    routes: Arc<Mutex<Routes>>,
    tun_index: u32,
    pub(super) addresses: Vec<IpNet>,
    pub(super) leads: Leads,
}

#[derive(Debug, Default)]
pub(super) struct Leads {
    /// Beyond the own inner networks.
    pub(super) routed: Vec<IpNet>,
    /// Prefixes that each have one share of the kernel's connection tables.
    pub(super) shared: Vec<IpNet>,
}

impl Machine {
    pub(super) fn start(
        mut routes: Routes,
        tun_index: u32,
        addresses: &[IpNet],
        clients: &Peers,
    ) -> Result<(RouteKeeper, Self), DeviceError> {
        let routed = without_clashes(&mut routes, &beyond(clients, addresses));
        lead_into(&mut routes, tun_index, &routed);
        let keeper = RouteKeeper::start(routes)?;
        let routes = keeper.share();
        let leads = Leads { routed, shared: shared(clients) };
        Ok((keeper, Self { routes, tun_index, addresses: addresses.to_vec(), leads }))
    }

    pub(super) fn lead(&mut self, clients: &Peers) {
        self.leads.shared = shared(clients);
        let is_in = |list: &[IpNet]| -> BTreeSet<IpNet> { list.iter().copied().collect() };
        let (before, after) = (is_in(&self.leads.routed), is_in(&beyond(clients, &self.addresses)));
        let gone: Vec<IpNet> = before.difference(&after).copied().collect();
        // They include prefixes that clashed with a neighbour the last time.
        let new: Vec<IpNet> = after.difference(&before).copied().collect();
        if gone.is_empty() && new.is_empty() {
            return;
        }
        let mut routes = lock(&self.routes);
        if let Err(error) = routes.route_out_of_tun(self.tun_index, &gone) {
            tracing::warn!(%error, "routes to networks behind some clients could not be removed");
        }
        let new = without_clashes(&mut routes, &new);
        lead_into(&mut routes, self.tun_index, &new);
        drop(routes);
        self.leads.routed = before.intersection(&after).copied().chain(new).collect();
    }
}

fn without_clashes(routes: &mut Routes, prefixes: &[IpNet]) -> Vec<IpNet> {
    let clashes = match routes.find_clashes(prefixes) {
        Ok(clashes) => clashes,
        Err(error) => {
            tracing::warn!(%error, "no new routes are set into the tunnel");
            return Vec::new();
        }
    };
    for (_, why) in &clashes {
        tracing::warn!("not routed into the tunnel: {why}");
    }
    let clashes: BTreeSet<IpNet> = clashes.into_iter().map(|(prefix, _)| prefix).collect();
    prefixes.iter().filter(|prefix| !clashes.contains(prefix)).copied().collect()
}

fn shared(clients: &Peers) -> Vec<IpNet> {
    let all = clients.iter().flat_map(|(_, peer)| &peer.addresses);
    let (single, mut shared): (Vec<IpNet>, Vec<IpNet>) =
        all.partition(|prefix| prefix.prefix_len() == prefix.max_prefix_len());
    let is_inside = |address: &IpNet| shared.iter().any(|prefix| prefix.contains(address));
    let inside: Vec<IpNet> = single.into_iter().filter(is_inside).collect();
    shared.extend(inside);
    shared
}

fn beyond(clients: &Peers, own: &[IpNet]) -> Vec<IpNet> {
    let prefixes = clients.iter().flat_map(|(_, peer)| &peer.addresses);
    let outside = prefixes.filter(|prefix| !own.iter().any(|network| network.contains(*prefix)));
    outside.copied().collect()
}
