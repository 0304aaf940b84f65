//! Applies what a server grants: addresses and routes, after the filters. A later welcome may grant
//! others; the former are removed first. System errors are logged and do not end the client.

use std::net::IpAddr;

use ipnet::IpNet;
use roadweave_config::ClientFile;
use roadweave_linux::{Gateway, Grant, Netlink, Tun, Uplink, space_length};
use roadweave_proto::wire::Welcome;
use roadweave_tunnel::ClientEvent;

use super::client_filters::ClientFilters;
use super::steering::Steering;

#[derive(Debug, Default)]
pub(super) struct Granted {
    addresses: Vec<IpNet>,
    pub(super) due: Option<Due>,
}

#[derive(Debug)]
pub(super) struct Due {
    event: ClientEvent,
    grant: Grant,
}

impl Granted {
    /// Sets filters for `welcome`; logs parts out of bounds. The rest is due once filters hold.
    pub(super) fn begin(
        &mut self,
        steering: &Steering,
        filters: &mut ClientFilters,
        file: &ClientFile,
        welcome: &Welcome,
        event: ClientEvent,
    ) {
        let mtu = welcome.mtu.min(file.tun.mtu());
        let uplinks: Vec<&Uplink> = steering.routes.uplinks().collect();
        let bounds = Bounds {
            accept: file.routes.accept.clone(),
            uplinks: &uplinks,
            local_networks: steering.routes.local_networks(),
        };
        let is_taken = |what: &str, prefix: &IpNet, refused: Result<(), String>| {
            if let Err(why) = &refused {
                let address = prefix.addr();
                tracing::warn!("refused {what} {address} that the server assigned: {why}");
            }
            refused.is_ok()
        };
        // Grants include prefixes behind the box; full-length ones are its own addresses.
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
        // Filters come first, so that inner addresses are never reachable from outside the tunnel.
        filters.on_granted(mtu, &all);
        let networks = welcome.networks.clone();
        let grant = Grant { addresses, gateways, networks, mtu: u32::from(mtu) };
        self.due = Some(Due { event, grant });
    }

    /// Sets what is due once the filters are in place. Returns the event of its welcome.
    pub(super) fn set_due(
        &mut self,
        steering: &mut Steering,
        filters: &mut ClientFilters,
        tun: Option<&Tun>,
    ) -> Option<ClientEvent> {
        let Due { event, grant } = self.due.take_if(|_| filters.are_in_place())?;
        if let Some(tun) = tun {
            self.set_addresses(tun, grant.mtu, grant.addresses.clone());
            steering.set_grant(Grant { addresses: self.addresses.clone(), ..grant.clone() });
            filters.on_addresses_set(&grant.addresses);
        }
        Some(event)
    }

    fn set_addresses(&mut self, tun: &Tun, mtu: u32, wanted: Vec<IpNet>) {
        let mut netlink = match Netlink::open() {
            Ok(netlink) => netlink,
            Err(error) => return tracing::error!(%error, "the tunnel's addresses could not be set"),
        };
        if let Err(error) = netlink.set_link(tun.index(), true, Some(mtu)) {
            tracing::warn!("{error}");
        }
        for prefix in self.addresses.iter().filter(|prefix| !wanted.contains(prefix)) {
            if let Err(error) = netlink.remove_address(tun.index(), *prefix) {
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

struct Bounds<'a> {
    accept: Vec<IpNet>,
    uplinks: &'a [&'a Uplink],
    local_networks: &'a [IpNet],
}

impl Bounds<'_> {
    /// Whether the box may have this address. Leases cannot deny it: one may be hostile.
    fn check(&self, address: IpAddr) -> Result<(), String> {
        if !self.accept.iter().any(|space| space.contains(&address)) {
            return Err("it is in none of the networks in routes.accept".to_owned());
        }
        match self.local_networks.iter().find(|network| network.contains(&address)) {
            Some(network) => Err(format!(
                "it is in {network}, a network behind this box; to allow it, list a narrower \
                 network in routes.accept"
            )),
            None => Ok(()),
        }
    }

    /// Whether the server may have this inner address. It must not be one that an uplink needs,
    /// unless the configuration names its network more narrowly than the default does.
    fn check_gateway(&self, address: IpAddr) -> Result<(), String> {
        self.check(address)?;
        let space = space_length(address);
        if self.accept.iter().any(|named| named.contains(&address) && named.prefix_len() > space) {
            return Ok(());
        }
        for uplink in self.uplinks {
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

#[cfg(test)]
mod tests {
    use roadweave_proto::UplinkId;

    use super::*;

    fn prefixes(texts: &[&str]) -> Vec<IpNet> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn a_grant_within_its_bounds_is_taken_and_another_is_refused_with_the_reason() {
        let addresses = prefixes(&["10.3.4.5/8", "fd00::5/64"]);
        let uplink = Uplink {
            gateway_v4: Some(Gateway::Known("10.0.0.1".parse().unwrap())),
            ..Uplink::new(UplinkId(0), "wwan0", 3, addresses)
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
        // An address leased on an uplink is allowed for the box, but not as the server's gateway.
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
