//! What a client sets up for what its server granted: addresses and routes, after the filters.
//!
//! ```text
//! welcome ─► within bounds? ─► filters ─► addresses of the TUN ─► routes of the families that have one
//! ```
//!
//! Another welcome may grant other addresses: what is no longer granted goes first. Nothing that the
//! system refuses here ends the client; it goes on with the rest, and says so.

use roadweave_wire::Welcome;

use super::guard::Guard;
use super::steering::Steering;
use super::{ClientOptions, to_network, to_prefix};
use crate::{Grant, Netlink, Prefix, Tun, Uplink};

/// All that one client has set up, but for the filters. The kernel removes it with the TUN.
#[derive(Debug, Default)]
pub(super) struct Granted {
    addresses: Vec<Prefix>,
}

impl Granted {
    /// Sets up what `welcome` grants, in place of what another granted. What it may not grant is told
    /// and left out.
    pub(super) fn apply(
        &mut self,
        steering: &mut Steering,
        tun: &Tun,
        guard: &mut Guard,
        options: &ClientOptions,
        welcome: &Welcome,
    ) {
        let mtu = welcome.mtu.min(options.tun.mtu);
        let uplinks: Vec<&Uplink> = steering.uplinks().collect();
        let bounds = Bounds {
            accept: options.routes.accept.iter().copied().map(to_prefix).collect(),
            uplinks: &uplinks,
            local_networks: steering.local_networks(),
        };
        let accepted = |granted: &mut dyn Iterator<Item = Prefix>, what: &str| -> Vec<Prefix> {
            let is_in_bounds = |prefix: &Prefix| {
                let refused = bounds.check(*prefix);
                if let Err(why) = &refused {
                    tracing::warn!(
                        "the server grants {what} {}, which is refused: {why}",
                        prefix.address()
                    );
                }
                refused.is_ok()
            };
            granted.filter(is_in_bounds).collect()
        };
        // Prefixes behind the box are granted too; its own addresses are the whole ones.
        let own = welcome.addresses.iter().filter(|net| net.prefix_len() == net.max_prefix_len());
        let addresses = accepted(&mut own.copied().map(to_prefix), "the address");
        let gateways =
            accepted(&mut welcome.gateways.iter().copied().map(Prefix::host), "the gateway");
        let behind = welcome.addresses.iter().filter(|net| net.prefix_len() < net.max_prefix_len());
        let all: Vec<_> =
            addresses.iter().copied().map(to_network).chain(behind.copied()).collect();
        // First, so that nobody beside the tunnel ever reaches an inner address.
        guard.on_granted(mtu, &all);
        self.set_addresses(tun, mtu, addresses);
        steering.set_grant(Grant { addresses: self.addresses.clone(), gateways });
    }

    fn set_addresses(&mut self, tun: &Tun, mtu: u16, wanted: Vec<Prefix>) {
        let mut netlink = match Netlink::open() {
            Ok(netlink) => netlink,
            Err(error) => return tracing::error!(%error, "the tunnel has no addresses"),
        };
        if let Err(error) = netlink.set_link(tun.index(), true, Some(u32::from(mtu))) {
            tracing::warn!("{error}");
        }
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

/// What a server may grant on this box as it is now.
struct Bounds<'a> {
    accept: Vec<Prefix>,
    uplinks: &'a [&'a Uplink],
    local_networks: &'a [Prefix],
}

impl Bounds<'_> {
    /// Whether an address or gateway may be granted; `Err` says why not, and what to do.
    ///
    /// The connected network of an uplink is no bound: whoever leases it could stop the tunnel by it.
    fn check(&self, granted: Prefix) -> Result<(), String> {
        let address = granted.address();
        if !self.accept.iter().any(|space| space.contains(address)) {
            return Err("it lies in none of the networks that routes.accept lists".to_owned());
        }
        for uplink in self.uplinks {
            let gateway = uplink.gateway(address.is_ipv4()).and_then(crate::Gateway::address);
            if gateway == Some(address) {
                return Err(format!("it is the gateway of the uplink {}", uplink.name));
            }
            if uplink.addresses.iter().any(|own| own.address() == address) {
                return Err(format!("it is the address of the uplink {}", uplink.name));
            }
        }
        match self.local_networks.iter().find(|network| network.contains(address)) {
            Some(network) => Err(format!("it lies in {network}, a network behind this box")),
            None => Ok(()),
        }
    }
}

/// What of `old` is not in `new`.
fn missing(old: &[Prefix], new: &[Prefix]) -> Vec<Prefix> {
    old.iter().filter(|prefix| !new.contains(prefix)).copied().collect()
}

#[cfg(test)]
mod tests {
    use roadweave_types::UplinkId;

    use super::*;
    use crate::Gateway;

    fn prefixes(texts: &[&str]) -> Vec<Prefix> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn a_grant_within_its_bounds_is_taken_and_another_is_told_why_not() {
        let uplink = Uplink {
            id: UplinkId(0),
            name: "wwan0".to_owned(),
            index: 3,
            carrier: true,
            mtu: 1500,
            // A hostile lease.
            addresses: prefixes(&["10.3.4.5/8", "fd00::5/64"]),
            gateway_v4: Some(Gateway::Known("10.0.0.1".parse().unwrap())),
            gateway_v6: None,
        };
        let local_networks = prefixes(&["192.168.50.0/24", "fd50::/64"]);
        let bounds = Bounds {
            accept: prefixes(&["10.0.0.0/8", "192.168.0.0/16", "fc00::/7"]),
            uplinks: &[&uplink],
            local_networks: &local_networks,
        };
        let check = |granted: &str, refused: Option<&str>| {
            let result = bounds.check(granted.parse().unwrap());
            match refused {
                None => assert_eq!(result, Ok(()), "{granted}"),
                Some(part) => assert!(result.clone().unwrap_err().contains(part), "{result:?}"),
            }
        };
        check("10.77.0.2", None);
        check("fd77::2", None);
        check("8.8.8.8", Some("routes.accept"));
        check("2001:db8::1", Some("routes.accept"));
        check("10.0.0.1", Some("gateway of the uplink wwan0"));
        check("10.3.4.5", Some("address of the uplink wwan0"));
        check("192.168.50.2", Some("192.168.50.0/24, a network behind"));
        check("fd50::2", Some("fd50::/64, a network behind"));
    }
}
