//! What a client sets up for what its server granted: addresses, routes, packet filters.
//!
//! ```text
//! welcome ─► addresses of the TUN ─► routes of the families that have one ─► filters
//! ```
//!
//! Another welcome may grant other addresses: what is no longer granted goes first. Nothing that the
//! system refuses here ends the client; it goes on with the rest, and says so.

use roadweave_wire::Welcome;

use super::{ClientOptions, lead_into_tun, to_prefix};
use crate::{FilterOptions, Filters, Instance, IntoTun, Netlink, Prefix, Routes, Tun};

/// All that one client has set up. Dropping it removes the filters; the kernel removes the rest with
/// the TUN.
#[derive(Debug)]
pub(super) struct Granted {
    instance: Instance,
    addresses: Vec<Prefix>,
    destinations: Vec<Prefix>,
    /// The interfaces that were uplinks at any time.
    uplinks: Vec<String>,
    filters: Option<(Filters, FilterOptions)>,
}

impl Granted {
    /// Nothing yet.
    pub(super) fn new(instance: Instance) -> Self {
        Self {
            instance,
            addresses: Vec::new(),
            destinations: Vec::new(),
            uplinks: Vec::new(),
            filters: None,
        }
    }

    /// Sets up what `welcome` grants, in place of what another granted.
    pub(super) fn apply(
        &mut self,
        routes: &mut Routes,
        tun: &Tun,
        options: &ClientOptions,
        welcome: &Welcome,
    ) {
        let mtu = welcome.mtu.min(options.tun.mtu);
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
        self.set_filters(FilterOptions {
            tun: tun.name().to_owned(),
            mtu,
            masquerade: Vec::new(),
            masquerade_into_tun: options
                .masquerade
                .then(|| welcome.addresses.iter().copied().map(to_prefix).collect()),
            into_tun: IntoTun::NotFrom(self.uplinks.clone()),
            forward: true,
        });
    }

    /// Keeps what comes in by an uplink out of the tunnel, from now on.
    ///
    /// An interface stays on the list when it fails: it may come back before it is noticed.
    pub(super) fn guard_against(&mut self, uplink: &str) {
        if self.uplinks.iter().any(|known| known == uplink) {
            return;
        }
        self.uplinks.push(uplink.to_owned());
        if let Some((_, options)) = &self.filters {
            let into_tun = IntoTun::NotFrom(self.uplinks.clone());
            self.set_filters(FilterOptions { into_tun, ..options.clone() });
        }
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

    fn set_filters(&mut self, options: FilterOptions) {
        let result = match &mut self.filters {
            Some((filters, current)) => filters.replace(&options).map(|()| *current = options),
            none => Filters::install(&self.instance, &options)
                .map(|filters| *none = Some((filters, options))),
        };
        if let Err(error) = result {
            tracing::warn!("what is behind this box may not get through: {error}");
        }
    }
}

/// What of `old` is not in `new`.
fn missing(old: &[Prefix], new: &[Prefix]) -> Vec<Prefix> {
    old.iter().filter(|prefix| !new.contains(prefix)).copied().collect()
}
