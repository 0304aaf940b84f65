//! What a client sets up for what its server granted: addresses and routes, after the filters.
//!
//! ```text
//! welcome ─► within bounds? ─► filters ─► in place ─► addresses of the TUN ─► routes of the families
//!            begin                        take_due    set                    that have one
//! ```
//!
//! Another welcome may grant other addresses: what is no longer granted goes first. Nothing that
//! the system refuses here ends the client; it goes on with the rest, and says so.

use std::net::IpAddr;

use ipnet::IpNet;
use roadweave_proto::wire::Welcome;
use roadweave_tunnel::ClientEvent;

use super::ClientOptions;
use super::client_filters::ClientFilters;
use super::steering::Steering;
use crate::routes::space_length;
use crate::{Gateway, Grant, Netlink, Tun, Uplink};

/// All that one client has set up, but for the filters. The kernel removes it with the TUN.
#[derive(Debug, Default)]
pub(super) struct Granted {
    addresses: Vec<IpNet>,
    due: Option<Due>,
}

/// What a server granted, until the filters are in place.
#[derive(Debug)]
pub(super) struct Due {
    /// What brought it.
    pub(super) event: ClientEvent,
    pub(super) grant: Grant,
}

impl Granted {
    /// Sets the filters for what `welcome` grants. What is out of bounds is logged and left out.
    /// The rest is due once the filters are in place.
    pub(super) fn begin(
        &mut self,
        steering: &Steering,
        filters: &mut ClientFilters,
        options: &ClientOptions,
        welcome: &Welcome,
        event: ClientEvent,
    ) {
        let mtu = welcome.mtu.min(options.tun.mtu);
        let uplinks: Vec<&Uplink> = steering.uplinks().collect();
        let bounds = Bounds {
            accept: options.routes.accept.clone(),
            uplinks: &uplinks,
            local_networks: steering.local_networks(),
        };
        let is_taken = |what: &str, prefix: &IpNet, refused: Result<(), String>| {
            if let Err(why) = &refused {
                let address = prefix.addr();
                tracing::warn!("the server grants {what} {address}, which is refused: {why}");
            }
            refused.is_ok()
        };
        // Prefixes behind the box are granted too; its own addresses are the whole ones.
        let own = welcome.addresses.iter().filter(|net| net.prefix_len() == net.max_prefix_len());
        let own = own.copied();
        let addresses: Vec<_> =
            own.filter(|own| is_taken("the address", own, bounds.check(own.addr()))).collect();
        let gateways = welcome.gateways.iter().copied().map(IpNet::from);
        let gateways = gateways
            .filter(|it| is_taken("the gateway", it, bounds.check_gateway(it.addr())))
            .collect();
        let behind = welcome.addresses.iter().filter(|net| net.prefix_len() < net.max_prefix_len());
        let all: Vec<_> = addresses.iter().copied().chain(behind.copied()).collect();
        // First, so that nobody beside the tunnel ever reaches an inner address.
        filters.on_granted(mtu, &all);
        let networks = welcome.networks.clone();
        let grant = Grant { addresses, gateways, networks, mtu: u32::from(mtu) };
        self.due = Some(Due { event, grant });
    }

    /// What was granted, once the filters are in place.
    pub(super) fn take_due(&mut self, filters: &ClientFilters) -> Option<Due> {
        self.due.take_if(|_| filters.are_in_place())
    }

    /// The session that granted it is over.
    pub(super) fn forget_due(&mut self) {
        self.due = None;
    }

    /// Sets up what was granted, in place of what another welcome granted.
    pub(super) fn set(&mut self, steering: &mut Steering, tun: &Tun, due: &Due) {
        let grant = due.grant.clone();
        self.set_addresses(tun, grant.mtu, grant.addresses);
        steering.set_grant(Grant { addresses: self.addresses.clone(), ..due.grant.clone() });
    }

    fn set_addresses(&mut self, tun: &Tun, mtu: u32, wanted: Vec<IpNet>) {
        let mut netlink = match Netlink::open() {
            Ok(netlink) => netlink,
            Err(error) => return tracing::error!(%error, "the tunnel has no addresses"),
        };
        if let Err(error) = netlink.set_link(tun.index(), true, Some(mtu)) {
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
    accept: Vec<IpNet>,
    uplinks: &'a [&'a Uplink],
    local_networks: &'a [IpNet],
}

impl Bounds<'_> {
    /// Whether the box may get this address; `Err` says why not, and what to do.
    ///
    /// What an uplink has leased is no bound: whoever leases it could stop the tunnel by it.
    fn check(&self, address: IpAddr) -> Result<(), String> {
        if !self.accept.iter().any(|space| space.contains(&address)) {
            return Err("it lies in none of the networks that routes.accept lists".to_owned());
        }
        match self.local_networks.iter().find(|network| network.contains(&address)) {
            Some(network) => Err(format!(
                "it lies in {network}, a network behind this box; routes.accept may name a narrower one"
            )),
            None => Ok(()),
        }
    }

    /// Whether the server may have this inner address; `Err` says why not, and what to do. It may
    /// be none that an uplink needs, unless the file names its network more closely than the
    /// default does.
    fn check_gateway(&self, address: IpAddr) -> Result<(), String> {
        self.check(address)?;
        let space = space_length(address);
        if self.accept.iter().any(|named| named.contains(&address) && named.prefix_len() > space) {
            return Ok(());
        }
        for uplink in self.uplinks {
            // A guess is not worth a refusal.
            if uplink.gateway(address.is_ipv4()) == Some(Gateway::Known(address)) {
                return Err(format!("it is the gateway of the uplink {}", uplink.name));
            }
            if uplink.addresses.iter().any(|own| own.addr() == address) {
                return Err(format!("it is the address of the uplink {}", uplink.name));
            }
        }
        Ok(())
    }
}

/// What of `old` is not in `new`.
fn missing(old: &[IpNet], new: &[IpNet]) -> Vec<IpNet> {
    old.iter().filter(|prefix| !new.contains(prefix)).copied().collect()
}

#[cfg(test)]
mod tests {
    use roadweave_proto::UplinkId;

    use super::*;

    fn prefixes(texts: &[&str]) -> Vec<IpNet> {
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
            conflict: None,
        };
        let guessing = Uplink {
            gateway_v4: Some(Gateway::Guessed("10.77.0.1".parse().unwrap())),
            ..uplink.clone()
        };
        let local_networks = prefixes(&["192.168.50.0/24", "fd50::/64"]);
        let mut bounds = Bounds {
            accept: prefixes(&["10.0.0.0/8", "192.168.0.0/16", "fc00::/7"]),
            uplinks: &[&uplink, &guessing],
            local_networks: &local_networks,
        };
        let check = |result: Result<(), String>, refused: Option<&str>| match refused {
            None => assert_eq!(result, Ok(())),
            Some(part) => assert!(result.clone().unwrap_err().contains(part), "{result:?}"),
        };
        for (granted, refused) in [
            ("10.77.0.2", None),
            ("10.77.0.1", None),
            ("fd77::2", None),
            ("8.8.8.8", Some("routes.accept")),
            ("2001:db8::1", Some("routes.accept")),
            ("192.168.50.2", Some("192.168.50.0/24, a network behind")),
            ("fd50::2", Some("fd50::/64, a network behind")),
        ] {
            check(bounds.check(granted.parse().unwrap()), refused);
            check(bounds.check_gateway(granted.parse().unwrap()), refused);
        }
        // What an uplink has leased may be an address of the box, and no gateway of the server's.
        let leased: [(IpAddr, _); 2] = [
            ("10.0.0.1".parse().unwrap(), "gateway of the uplink wwan0"),
            ("10.3.4.5".parse().unwrap(), "address of the uplink wwan0"),
        ];
        for (address, refused) in leased {
            check(bounds.check(address), None);
            check(bounds.check_gateway(address), Some(refused));
        }
        for (named, counts) in [("10.0.0.0/8", false), ("0.0.0.0/0", false), ("10.0.0.0/14", true)]
        {
            bounds.accept = prefixes(&[named]);
            for (address, refused) in leased {
                check(bounds.check_gateway(address), (!counts).then_some(refused));
            }
        }
    }
}
