//! Changes the tenants of a proxy and their anchors while it runs.
//!
//! ```text
//! wanted ─► moved: tenants with another anchor, or none ─► their sessions end first
//!        ─► legs: kept by the anchor's key; an unused one is closed, its place used again
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use roadweave_identity::PublicKey;
use roadweave_proto::Instant;

use super::leg::Leg;
use super::{LegEvent, Legs, ProxyTenant, TENANTS_MAX, Tenant};
use crate::leg::{TenantAccount, TenantId};

impl Legs {
    /// The present tenants that have another anchor in `wanted`, or are not in it.
    pub(crate) fn moved(&self, wanted: &[ProxyTenant]) -> BTreeSet<String> {
        let after: BTreeMap<&str, PublicKey> =
            wanted.iter().rev().map(|tenant| (tenant.name.as_str(), tenant.anchor)).collect();
        let is_moved = |(name, id): &(&String, &TenantId)| {
            let leg = self.tenants[usize::from(id.0)].leg;
            after.get(name.as_str()) != Some(&self.legs[leg].anchor)
        };
        self.by_name.iter().filter(is_moved).map(|(name, _)| name.clone()).collect()
    }

    /// Sessions of the tenants that are [`Legs::moved`] must have ended. The first of two with one
    /// name counts.
    pub(crate) fn set_tenants(&mut self, now: Instant, wanted: Vec<ProxyTenant>) {
        let in_use: BTreeSet<PublicKey> = wanted.iter().map(|tenant| tenant.anchor).collect();
        for at in 0..self.legs.len() {
            if !in_use.contains(&self.legs[at].anchor) {
                self.retire(now, at);
            }
        }
        let known: BTreeMap<String, TenantId> =
            self.tenants.iter().zip(0..).map(|(it, id)| (it.name.clone(), TenantId(id))).collect();
        self.by_name.clear();
        let mut addresses: BTreeMap<usize, Vec<SocketAddr>> = BTreeMap::new();
        for tenant in wanted.into_iter().take(TENANTS_MAX) {
            if self.by_name.contains_key(&tenant.name) {
                continue;
            }
            let leg = self.leg_to(tenant.anchor, &in_use);
            let Some(id) = known.get(&tenant.name).copied().or_else(|| self.add(&tenant)) else {
                let told = format!("the tenant {} is one too many, and not served", tenant.name);
                self.events.push_back(LegEvent::Told(told));
                continue;
            };
            addresses.entry(leg).or_default().extend(tenant.addresses);
            let place = &mut self.tenants[usize::from(id.0)];
            (place.leg, place.gateways) = (leg, tenant.gateways);
            self.accounts[usize::from(id.0)].set_rate_limit(tenant.rate_limit);
            self.by_name.insert(tenant.name, id);
        }
        for (leg, addresses) in addresses {
            self.legs[leg].set_addresses(addresses);
        }
    }

    pub(crate) fn set_addresses(&mut self, anchor: PublicKey, addresses: Vec<SocketAddr>) {
        if let Some(leg) = self.legs.iter_mut().find(|leg| leg.anchor == anchor) {
            leg.set_addresses(addresses);
        }
    }

    pub(crate) fn is_up(&self, anchor: PublicKey) -> bool {
        self.legs.iter().any(|leg| leg.anchor == anchor && leg.up().is_some())
    }

    /// A place for a new tenant. Earlier ones keep theirs, since waiting packets are counted by it.
    fn add(&mut self, tenant: &ProxyTenant) -> Option<TenantId> {
        let id = u16::try_from(self.tenants.len()).ok().filter(|id| usize::from(*id) < PLACES)?;
        self.accounts.push(TenantAccount::new(tenant.rate_limit));
        self.tenants.push(Tenant { name: tenant.name.clone(), leg: 0, gateways: Vec::new() });
        Some(TenantId(id))
    }

    fn leg_to(&mut self, anchor: PublicKey, in_use: &BTreeSet<PublicKey>) -> usize {
        if let Some(at) = self.legs.iter().position(|leg| leg.anchor == anchor) {
            return at;
        }
        let leg = Leg::new(anchor, self.leg_rate);
        match self.legs.iter().position(|leg| !in_use.contains(&leg.anchor)) {
            Some(free) => {
                self.legs[free] = leg;
                free
            }
            None => {
                self.legs.push(leg);
                self.legs.len() - 1
            }
        }
    }
}

const PLACES: usize = 4 * TENANTS_MAX;
