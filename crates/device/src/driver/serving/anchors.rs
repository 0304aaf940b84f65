//! The tenants of a proxy and their anchors, from the file and from the fleet.
//!
//! ```text
//! file: start, SIGHUP ─┐
//! fleet: news ─────────┴─► all, those of the file first ─► node: legs, what each tenant may send
//!                                                       └► names: where the anchors are
//! ```

use roadweave_proto::Instant;
use roadweave_tunnel::ProxyTenant;

use super::anchor_names::{AnchorNames, AnchorPlace};
use super::node::Serves;
use crate::Waker;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TenantRoutes {
    pub(super) tenants: Vec<ProxyTenant>,
    pub(super) places: Vec<AnchorPlace>,
}

/// Empty at a server or an anchor.
#[derive(Debug)]
pub(super) struct Anchors {
    of_file: TenantRoutes,
    of_fleet: TenantRoutes,
    names: AnchorNames,
}

impl Anchors {
    pub(super) fn new(waker: Waker) -> Self {
        let (of_file, of_fleet) = (TenantRoutes::default(), TenantRoutes::default());
        Self { of_file, of_fleet, names: AnchorNames::new(waker) }
    }

    pub(super) fn set_of_file(&mut self, now: Instant, node: &mut impl Serves, led: TenantRoutes) {
        // Most reloads change other settings only.
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
        // The first of two tenants with the same name counts.
        proxy.set_tenants(now, [&file.tenants[..], &fleet.tenants].concat());
        // For anchors in the file, the file's addresses count.
        let is_new = |(key, _): &&AnchorPlace| file.places.iter().all(|(known, _)| known != key);
        let others = fleet.places.iter().filter(is_new);
        let all: Vec<AnchorPlace> = file.places.iter().chain(others).cloned().collect();
        self.names.set(now, proxy, &all);
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.names.poll_timeout()
    }

    pub(super) fn handle_timeout(&mut self, now: Instant, node: &mut impl Serves) {
        if let Some(proxy) = node.proxy() {
            self.names.handle_timeout(now, proxy);
        }
    }
}
