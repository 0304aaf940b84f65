//! Changes the devices and proxies of an anchor, and ends their attachments and legs.

use std::sync::Arc;

use roadweave_identity::{PeerPolicy as _, PublicKey};
use roadweave_proto::Instant;
use roadweave_proto::wire::Detached;
use roadweave_quic::ConnectionId;

use super::Anchor;
use crate::leg::TenantId;
use crate::peers::{PeerTable, Peers, PeersChange};

impl Anchor {
    /// Replaces the devices of a tenant, and returns the former table, which may be dropped
    /// elsewhere. Devices that are gone are detached at once.
    pub fn replace_devices(
        &mut self,
        now: Instant,
        tenant: TenantId,
        change: PeersChange,
    ) -> Option<Arc<Peers>> {
        let PeersChange { peers, changed } = change;
        let table = self.tenants.get(usize::from(tenant.0))?.devices.clone();
        let former = table.replace(peers);
        for key in changed {
            if is_out(&table, &key) {
                self.forget_device(now, tenant, key);
            }
        }
        Some(former)
    }

    /// Replaces the proxies that may connect, and returns the former table. Legs of proxies that
    /// are gone end at once.
    pub fn replace_proxies(&mut self, now: Instant, change: PeersChange) -> Arc<Peers> {
        let former = self.proxies.replace(change.peers);
        self.end_refused(now);
        former
    }

    /// Ends legs and attachments whose keys have expired. Call it after setting the time of day of
    /// the tables.
    pub fn on_time_of_day(&mut self, now: Instant) {
        self.end_refused(now);
        let devices = self.bindings.attached();
        let expired = |(tenant, key): &(TenantId, PublicKey)| {
            is_out(&self.tenants[usize::from(tenant.0)].devices, key)
        };
        let expired: Vec<(TenantId, PublicKey)> = devices.filter(expired).collect();
        for (tenant, key) in expired {
            self.forget_device(now, tenant, key);
        }
    }

    fn forget_device(&mut self, now: Instant, tenant: TenantId, key: PublicKey) {
        let at = self.bindings.forget(&(tenant, key));
        self.leave_streams(now, &(tenant, key));
        if let Some(at) = at {
            self.tell_detached(now, at, Detached::Unknown);
        }
    }

    fn end_refused(&mut self, now: Instant) {
        let refused = self.legs.iter().filter(|(_, leg)| is_out(&self.proxies, &leg.proxy));
        let refused: Vec<ConnectionId> = refused.map(|(id, _)| *id).collect();
        for id in refused {
            self.end_leg(now, id, "this proxy is not let in any more");
        }
    }
}

fn is_out(table: &PeerTable, key: &PublicKey) -> bool {
    table.check(key).is_err_and(|why| why.ends_sessions())
}
