//! What a client sets up for what its server granted: addresses and routes, after the filters.
//!
//! ```text
//! welcome ─► filters ─► addresses of the TUN ─► routes of the families that have one
//! ```
//!
//! Another welcome may grant other addresses: what is no longer granted goes first. Nothing that the
//! system refuses here ends the client; it goes on with the rest, and says so.

use roadweave_wire::Welcome;

use super::guard::Guard;
use super::{ClientOptions, lead_into_tun, to_prefix};
use crate::{Netlink, Prefix, Routes, Tun};

/// All that one client has set up, but for the filters. The kernel removes it with the TUN.
#[derive(Debug, Default)]
pub(super) struct Granted {
    addresses: Vec<Prefix>,
    destinations: Vec<Prefix>,
}

impl Granted {
    /// Sets up what `welcome` grants, in place of what another granted.
    pub(super) fn apply(
        &mut self,
        routes: &mut Routes,
        tun: &Tun,
        guard: &mut Guard,
        options: &ClientOptions,
        welcome: &Welcome,
    ) {
        let mtu = welcome.mtu.min(options.tun.mtu);
        // First, so that nobody beside the tunnel ever reaches an inner address.
        guard.on_granted(mtu, &welcome.addresses);
        self.set_addresses(tun, mtu, welcome);
        let mut wanted: Vec<Prefix> = options.into_tunnel.iter().copied().map(to_prefix).collect();
        wanted.extend(welcome.gateways.iter().copied().map(Prefix::host));
        wanted.retain(|prefix| {
            self.addresses.iter().any(|address| address.is_ipv4() == prefix.is_ipv4())
        });
        let gone = missing(&self.destinations, &wanted);
        if let Err(error) = routes.route_out_of_tun(tun.index(), &gone) {
            tracing::debug!(%error, "routes of an earlier session were gone before");
        }
        lead_into_tun(routes, tun, &wanted);
        self.destinations = wanted;
    }

    fn set_addresses(&mut self, tun: &Tun, mtu: u16, welcome: &Welcome) {
        let mut netlink = match Netlink::open() {
            Ok(netlink) => netlink,
            Err(error) => return tracing::error!(%error, "the tunnel has no addresses"),
        };
        if let Err(error) = netlink.set_link(tun.index(), true, Some(u32::from(mtu))) {
            tracing::warn!("{error}");
        }
        // Prefixes behind the box are granted too; its own addresses are the whole ones.
        let own = welcome.addresses.iter().filter(|net| net.prefix_len() == net.max_prefix_len());
        let wanted: Vec<Prefix> = own.copied().map(to_prefix).collect();
        for prefix in missing(&self.addresses, &wanted) {
            if let Err(error) = netlink.remove_address(tun.index(), prefix) {
                tracing::warn!("{error}");
            }
        }
        self.addresses = wanted;
        self.addresses.retain(|prefix| match netlink.add_address(tun.index(), *prefix) {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!("{error}");
                false
            }
        });
    }
}

/// What of `old` is not in `new`.
fn missing(old: &[Prefix], new: &[Prefix]) -> Vec<Prefix> {
    old.iter().filter(|prefix| !new.contains(prefix)).copied().collect()
}
