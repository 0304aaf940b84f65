//! What a client's box forwards, from its start to its end.
//!
//! ```text
//! start ─► nothing from what may be an uplink       welcome ─► forwarding, source NAT into the TUN
//!                │ in place                                         │ in place
//!                └─► uplinks are used                               └─► inner addresses are used
//! ```
//!
//! The filters know the interfaces that are no uplinks, and shut out all others: one that is
//! plugged in later, or after this program died, is an uplink until the contrary is seen.
//!
//! `nft` runs in the keeper's thread, which tries without end. What needs the filters waits for
//! them: see [`ClientFilters::hold`] and [`ClientFilters::are_in_place`].

use std::net::IpAddr;

use ipnet::IpNet;
use roadweave_proto::DropCounters;

use super::ClientOptions;
use crate::{
    DeviceError, Excluded, FilterKeeper, FilterOptions, Forwarding, Instance, Interface, Share,
    Tun, Waker,
};

/// The filters of a client. Dropping it removes them.
#[derive(Debug)]
pub(super) struct ClientFilters {
    keeper: FilterKeeper,
    options: FilterOptions,
    /// The last request that something waits for.
    awaited: u64,
}

impl ClientFilters {
    /// Filters nothing until [`ClientFilters::set_inside`]. `done` is woken after each attempt.
    ///
    /// # Errors
    /// As [`FilterKeeper::start`].
    pub(super) fn start(
        instance: &Instance,
        tun: &Tun,
        options: &ClientOptions,
        done: Waker,
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
                addresses: Vec::new(),
                between_uplinks: options.forward_between_uplinks,
            },
            // Nothing leads into the tunnel yet.
            apart: None,
            share: Some(Share::default()),
            marks: instance.marks(),
            forward: false,
        };
        let keeper = FilterKeeper::start(instance, Some(done))?;
        Ok(Self { keeper, options, awaited: 0 })
    }

    /// Whether the filters keep out what comes in by uplinks: no uplink is used otherwise.
    pub(super) fn hold(&self) -> bool {
        self.keeper.hold()
    }

    /// Whether the filters are in place for what was granted and excluded last.
    pub(super) fn are_in_place(&self) -> bool {
        self.keeper.in_place() >= self.awaited
    }

    /// What cannot be used yet, if the filters are the reason.
    pub(super) fn obstacle(&self) -> Option<String> {
        let what = match (self.hold(), self.are_in_place()) {
            (false, _) => "no uplink is used",
            (true, false) => "the inner addresses are not used",
            (true, true) => return None,
        };
        let failure = self.keeper.failure().map(|why| format!(": {why}")).unwrap_or_default();
        Some(format!("{what} until the packet filters are in place{failure}"))
    }

    /// Keeps out what comes in by any interface but these and the TUN, also what is for the
    /// machine's addresses on these.
    pub(super) fn set_inside(&mut self, interfaces: Vec<Interface>, own: Vec<IpAddr>) {
        if let Forwarding::Box { inside, addresses, .. } = &mut self.options.forwarding {
            (*inside, *addresses) = (interfaces, own);
            inside.retain(|interface| interface.name != self.options.tun);
        }
        self.keeper.set(self.options.clone());
    }

    /// Gives what leaves outside the tunnel its source addresses, beside what leaves already.
    pub(super) fn add_excluded(&mut self, excluded: &Excluded) {
        self.set_excluded(excluded.and(&self.options.excluded));
    }

    /// Gives what leaves outside the tunnel its source addresses, and nothing else.
    pub(super) fn set_excluded(&mut self, excluded: Excluded) {
        self.options.excluded = excluded;
        self.awaited = self.keeper.set(self.options.clone());
    }

    /// Lets a new uplink hear its routers although the box forwards, whether it has an address yet
    /// or not.
    pub(super) fn on_new_uplink(&mut self) {
        if self.options.forward {
            self.keeper.refresh();
        }
    }

    /// Lets through what is behind the box. The `addresses`, which the server has granted, are used
    /// once the filters are in place, so that they are never reached from beside the tunnel.
    pub(super) fn on_granted(&mut self, mtu: u16, addresses: &[IpNet]) {
        // Prefixes behind the box are granted too; its own addresses are the whole ones.
        let own = addresses.iter().filter(|net| net.prefix_len() == net.max_prefix_len());
        let own = own.map(IpNet::addr).filter(|own| !self.options.own_addresses.contains(own));
        // Those of before are the TUN's until these take their place.
        self.options.own_addresses.extend(own.collect::<Vec<_>>());
        self.options.mtu = mtu;
        if let Some(keep) = &mut self.options.masquerade_into_tun {
            *keep = addresses.to_vec();
        }
        self.options.forward = true;
        self.awaited = self.keeper.set(self.options.clone());
    }

    /// The TUN has these addresses and no others.
    pub(super) fn on_addresses_set(&mut self, own: &[IpNet]) {
        self.options.own_addresses = own.iter().map(IpNet::addr).collect();
        self.keeper.set(self.options.clone());
    }

    /// The packets that were not forwarded, by reason.
    pub(super) fn drops(&mut self) -> DropCounters {
        self.keeper.drops()
    }
}
