//! The tenants of a proxy and their anchors, from the file and from the fleet. A thread looks up
//! the names of an anchor: every 10 to 60 s while its leg is away, else every 60 s to 1 h. Anchors
//! are authenticated by key, so a wrong address costs one attempt only.

use std::net::SocketAddr;

use roadweave_identity::PublicKey;
use roadweave_linux::Waker;
use roadweave_proto::{Instant, ServerHost, ServerName};
use roadweave_tunnel::{ProxyTenant, Server};

use super::node::Serves;
use crate::driver::resolver::{Resolver, SYSTEM};

const NAMES_MAX: usize = 8;
const SEARCHES_MAX: usize = 8;

pub(super) type AnchorPlace = (PublicKey, Vec<ServerName>);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TenantRoutes {
    pub(super) tenants: Vec<ProxyTenant>,
    pub(super) places: Vec<AnchorPlace>,
}

#[derive(Debug)]
pub(super) struct Anchors {
    of_file: TenantRoutes,
    of_fleet: TenantRoutes,
    resolvers: Vec<(PublicKey, Resolver)>,
    waker: Waker,
}

impl Anchors {
    pub(super) fn new(waker: Waker) -> Self {
        let (of_file, of_fleet) = (TenantRoutes::default(), TenantRoutes::default());
        Self { of_file, of_fleet, resolvers: Vec::new(), waker }
    }

    pub(super) fn set_of_file(&mut self, now: Instant, node: &mut impl Serves, led: TenantRoutes) {
        if self.of_file != led {
            self.of_file = led;
            self.lead(now, node);
        }
    }

    pub(super) fn set_of_fleet(&mut self, now: Instant, node: &mut impl Serves, led: TenantRoutes) {
        self.of_fleet = led;
        self.lead(now, node);
    }

    fn lead(&mut self, now: Instant, node: &mut impl Serves) {
        let Some(proxy) = node.proxy() else { return };
        let (file, fleet) = (&self.of_file, &self.of_fleet);
        proxy.set_tenants(now, [&file.tenants[..], &fleet.tenants].concat());
        let is_new = |(key, _): &&AnchorPlace| file.places.iter().all(|(known, _)| known != key);
        let others = fleet.places.iter().filter(is_new);
        let all: Vec<AnchorPlace> = file.places.iter().chain(others).cloned().collect();
        self.set_names(now, proxy, &all);
    }

    fn set_names(&mut self, now: Instant, proxy: &mut Server, anchors: &[AnchorPlace]) {
        let mut wanted: Vec<AnchorPlace> = Vec::new();
        for (key, names) in anchors {
            match wanted.iter_mut().find(|(known, _)| known == key) {
                Some((_, known)) => {
                    let new = names.iter().filter(|name| !known.contains(name));
                    let new: Vec<_> = new.cloned().collect();
                    known.extend(new);
                }
                None => wanted.push((*key, names.clone())),
            }
        }
        let mut before = std::mem::take(&mut self.resolvers);
        for (key, mut names) in wanted {
            names.truncate(NAMES_MAX);
            let known = before.iter().position(|(known, _)| *known == key);
            let mut resolver = match known.map(|at| before.swap_remove(at).1) {
                Some(resolver) => resolver,
                None => {
                    let mut resolver = Resolver::new(Vec::new(), self.waker.clone());
                    resolver.set_system(now);
                    resolver
                }
            };
            resolver.set_names(now, &names);
            let known = match resolver.found(SYSTEM) {
                [] => literals(&names),
                found => found.to_vec(),
            };
            proxy.set_anchor_addresses(key, known);
            if names.iter().any(|name| matches!(name.host(), ServerHost::Name(_))) {
                self.resolvers.push((key, resolver));
            }
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        if self.searching() >= SEARCHES_MAX {
            return None;
        }
        self.resolvers.iter().filter_map(|(_, resolver)| resolver.poll_timeout()).min()
    }

    pub(super) fn handle_timeout(&mut self, now: Instant, node: &mut impl Serves) {
        let Some(proxy) = node.proxy() else { return };
        let mut searching = self.searching();
        for (key, resolver) in &mut self.resolvers {
            resolver.set_content(proxy.is_leg_up(*key));
            let was_searching = resolver.is_searching();
            let mut is_new = !resolver.poll(now).is_empty();
            if was_searching || searching < SEARCHES_MAX {
                is_new |= !resolver.handle_timeout(now).is_empty();
            }
            searching += usize::from(resolver.is_searching());
            searching -= usize::from(was_searching);
            if is_new {
                let found = resolver.found(SYSTEM).to_vec();
                tracing::info!(anchor = %key, ?found, "the addresses of the anchor changed");
                proxy.set_anchor_addresses(*key, found);
            }
        }
    }

    fn searching(&self) -> usize {
        self.resolvers.iter().filter(|(_, resolver)| resolver.is_searching()).count()
    }
}

fn literals(names: &[ServerName]) -> Vec<SocketAddr> {
    let literal = |name: &ServerName| match name.host() {
        ServerHost::Address(address) => Some((*address, name.port()).into()),
        ServerHost::Name(_) => None,
    };
    names.iter().filter_map(literal).collect()
}
