//! The tenants of a proxy with their anchors: those of its file, and those that its fleet names.
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

/// Where a proxy leads to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TenantRoutes {
    pub(super) tenants: Vec<ProxyTenant>,
    /// Where their anchors are.
    pub(super) places: Vec<AnchorPlace>,
}

/// All that a proxy leads to; nothing at a server or an anchor.
#[derive(Debug)]
pub(super) struct Anchors {
    of_file: TenantRoutes,
    of_fleet: TenantRoutes,
    names: AnchorNames,
}

impl Anchors {
    /// None yet; `waker` wakes the loop for answers to look-ups.
    pub(super) fn new(waker: Waker) -> Self {
        let (of_file, of_fleet) = (TenantRoutes::default(), TenantRoutes::default());
        Self { of_file, of_fleet, names: AnchorNames::new(waker) }
    }

    /// The file names these.
    pub(super) fn set_of_file(&mut self, now: Instant, node: &mut impl Serves, led: TenantRoutes) {
        // It is read again for other things as well.
        if self.of_file != led {
            self.of_file = led;
            self.lead(now, node);
        }
    }

    /// The fleet names these.
    pub(super) fn set_of_fleet(&mut self, now: Instant, node: &mut impl Serves, led: TenantRoutes) {
        self.of_fleet = led;
        self.lead(now, node);
    }

    fn lead(&mut self, now: Instant, node: &mut impl Serves) {
        let (file, fleet) = (&self.of_file, &self.of_fleet);
        node.set_anchors(now, [&file.tenants[..], &fleet.tenants].concat());
        // Where those of the file are nobody else says.
        let is_new = |(key, _): &&AnchorPlace| file.places.iter().all(|(known, _)| known != key);
        let others = fleet.places.iter().filter(is_new);
        let all: Vec<AnchorPlace> = file.places.iter().chain(others).cloned().collect();
        self.names.set(now, node, &all);
    }

    /// When [`Anchors::handle_timeout`] has something to do.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.names.poll_timeout()
    }

    /// Takes the answers to look-ups, and begins those that are due.
    pub(super) fn handle_timeout(&mut self, now: Instant, node: &mut impl Serves) {
        self.names.handle_timeout(now, node);
    }
}
