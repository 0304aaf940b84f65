//! What a client's box forwards, from its start to its end.
//!
//! ```text
//! start ─► nothing from what may be an uplink       welcome ─► forwarding, source NAT into the TUN
//! ```
//!
//! The filters know the interfaces that are no uplinks, and shut out all others: one that is
//! plugged in later, or after this program died, is an uplink until the contrary is seen.

use ipnet::IpNet;
use roadweave_types::DropCounters;

use super::ClientOptions;
use crate::{
    DeviceError, Excluded, FilterKeeper, FilterOptions, Forwarding, Instance, Interface, Share, Tun,
};

/// The filters of a client. Dropping it removes them.
#[derive(Debug)]
pub(super) struct ClientFilters {
    keeper: FilterKeeper,
    options: FilterOptions,
}

impl ClientFilters {
    /// Filters nothing until [`ClientFilters::set_inside`].
    ///
    /// # Errors
    /// As [`FilterKeeper::start`].
    pub(super) fn start(
        instance: &Instance,
        tun: &Tun,
        options: &ClientOptions,
    ) -> Result<Self, DeviceError> {
        let options = FilterOptions {
            tun: tun.name().to_owned(),
            mtu: tun.mtu(),
            own_addresses: Vec::new(),
            inner: Vec::new(),
            masquerade: false,
            masquerade_into_tun: options.masquerade.then(Vec::new),
            excluded: options.routes.excluded.clone(),
            forwards: Vec::new(),
            client_sockets: false,
            forwarding: Forwarding::Box {
                inside: Vec::new(),
                between_uplinks: options.forward_between_uplinks,
            },
            // Nothing leads into the tunnel yet.
            apart: None,
            share: Some(Share::default()),
            forward: false,
        };
        Ok(Self { keeper: FilterKeeper::start(instance)?, options })
    }

    /// Keeps out what comes in by any interface but these, and the TUN, from now on. The first time
    /// it returns when that holds: no uplink is used before.
    pub(super) fn set_inside(&mut self, interfaces: Vec<Interface>) {
        if let Forwarding::Box { inside, .. } = &mut self.options.forwarding {
            *inside = interfaces;
            inside.retain(|interface| interface.name != self.options.tun);
        }
        if self.keeper.is_set() {
            self.keeper.set(self.options.clone());
        } else if let Err(error) = self.keeper.set_and_wait(self.options.clone()) {
            tracing::warn!("what comes in by uplinks is not kept out: {error}");
        }
    }

    /// Something else leaves outside the tunnel; returns when that has its source addresses.
    pub(super) fn set_excluded(&mut self, excluded: Excluded) {
        if self.options.excluded == excluded {
            return;
        }
        self.options.excluded = excluded;
        if self.keeper.is_set()
            && let Err(error) = self.keeper.set_and_wait(self.options.clone())
        {
            tracing::warn!("what is behind this box may not get out beside the tunnel: {error}");
        }
    }

    /// Lets a new uplink hear its routers although the box forwards, whether it has an address yet
    /// or not.
    pub(super) fn on_new_uplink(&mut self) {
        if self.options.forward {
            self.keeper.refresh();
        }
    }

    /// Lets through what is behind the box, once the server has granted `addresses`; before they
    /// can be used.
    pub(super) fn on_granted(&mut self, mtu: u16, addresses: &[IpNet]) {
        // Prefixes behind the box are granted too; its own addresses are the whole ones.
        let own = addresses.iter().filter(|net| net.prefix_len() == net.max_prefix_len());
        self.options.own_addresses = own.map(IpNet::addr).collect();
        self.options.mtu = mtu;
        if let Some(keep) = &mut self.options.masquerade_into_tun {
            *keep = addresses.to_vec();
        }
        self.options.forward = true;
        if let Err(error) = self.keeper.set_and_wait(self.options.clone()) {
            tracing::warn!("what is behind this box may not get through: {error}");
        }
    }

    /// The packets that were not forwarded, by reason.
    pub(super) fn drops(&mut self) -> DropCounters {
        self.keeper.drops()
    }
}
