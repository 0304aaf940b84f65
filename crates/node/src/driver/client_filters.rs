//! Packet filters of a client. From the start they block all interfaces but those known not to be
//! uplinks, including later ones and after a crash. A welcome adds forwarding and source NAT. The
//! keeper's thread runs `nft` and retries forever. Uplinks and inner addresses are used only once
//! the filters are in place: see [`ClientFilters::hold`] and [`ClientFilters::are_in_place`].

use std::net::IpAddr;

use ipnet::IpNet;
use roadweave_config::ClientFile;
use roadweave_linux::{
    DeviceError, Excluded, FilterKeeper, FilterOptions, Forwarding, Instance, Interface, Share,
    Tun, Waker,
};
use roadweave_proto::DropCounters;

use super::filters_of;
use super::from_config::excluded;

#[derive(Debug)]
pub(super) struct ClientFilters {
    keeper: FilterKeeper,
    options: FilterOptions,
    awaited: u64,
}

impl ClientFilters {
    /// Filters nothing until [`ClientFilters::set_inside`]. `done` is woken after each attempt.
    pub(super) fn start(
        instance: &Instance,
        tun: &Tun,
        file: &ClientFile,
        done: Waker,
    ) -> Result<Self, DeviceError> {
        let forwarding = Forwarding::Box {
            inside: Vec::new(),
            addresses: Vec::new(),
            between_uplinks: file.uplinks.forward,
        };
        let options = FilterOptions {
            masquerade_into_tun: file.routes.masquerade.then(Vec::new),
            excluded: excluded(&file.routes),
            share: Some(Share::default()),
            forward: false,
            ..filters_of(tun, instance.marks(), forwarding)
        };
        let keeper = FilterKeeper::start(instance, Some(done))?;
        Ok(Self { keeper, options, awaited: 0 })
    }

    /// Whether packets from uplinks are filtered; no uplink is used before.
    pub(super) fn hold(&self) -> bool {
        self.keeper.hold()
    }

    pub(super) fn are_in_place(&self) -> bool {
        self.keeper.in_place() >= self.awaited
    }

    pub(super) fn obstacle(&self) -> Option<String> {
        let what = match (self.hold(), self.are_in_place()) {
            (false, _) => "no uplink is used",
            (true, false) => "the inner addresses are not used",
            (true, true) => return None,
        };
        let failure = self.keeper.failure().map(|why| format!(": {why}")).unwrap_or_default();
        Some(format!("{what} until the packet filters are in place{failure}"))
    }

    /// Blocks packets that come from other interfaces than these and the TUN, also those to `own`.
    pub(super) fn set_inside(&mut self, interfaces: Vec<Interface>, own: Vec<IpAddr>) {
        if let Forwarding::Box { inside, addresses, .. } = &mut self.options.forwarding {
            (*inside, *addresses) = (interfaces, own);
            inside.retain(|interface| interface.name != self.options.tun);
        }
        self.keeper.set(self.options.clone());
    }

    pub(super) fn add_excluded(&mut self, excluded: &Excluded) {
        self.set_excluded(excluded.and(&self.options.excluded));
    }

    pub(super) fn set_excluded(&mut self, excluded: Excluded) {
        self.options.excluded = excluded;
        self.awaited = self.keeper.set(self.options.clone());
    }

    pub(super) fn on_new_uplink(&mut self) {
        if self.options.forward {
            self.keeper.refresh();
        }
    }

    /// Allows forwarding into the tunnel. `addresses` are used once filters hold, never before.
    pub(super) fn on_granted(&mut self, mtu: u16, addresses: &[IpNet]) {
        let own = addresses.iter().filter(|net| net.prefix_len() == net.max_prefix_len());
        let own = own.map(IpNet::addr).filter(|own| !self.options.own_addresses.contains(own));
        // Addresses of an earlier grant stay the TUN's until the new ones replace them.
        self.options.own_addresses.extend(own.collect::<Vec<_>>());
        self.options.mtu = mtu;
        if let Some(keep) = &mut self.options.masquerade_into_tun {
            *keep = addresses.to_vec();
        }
        self.options.forward = true;
        self.awaited = self.keeper.set(self.options.clone());
    }

    pub(super) fn on_addresses_set(&mut self, own: &[IpNet]) {
        self.options.own_addresses = own.iter().map(IpNet::addr).collect();
        self.keeper.set(self.options.clone());
    }

    pub(super) fn drops(&mut self) -> DropCounters {
        self.keeper.drops()
    }
}
