//! The inner networks of a tenant, which its boxes get addresses from.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use ipnet::IpNet;

/// The most inner networks of a tenant.
pub const INNER_NETWORKS_MAX: usize = 8;

/// The lengths that an inner network of this family may have.
pub fn inner_lengths(address: IpAddr) -> RangeInclusive<u8> {
    if address.is_ipv4() { 8..=30 } else { 32..=126 }
}

/// The anchor's own address in an inner network, with the length of the network. It is the first
/// host, in IPv6 after the anycast address (RFC 4291, 2.6.1); boxes get later ones.
pub fn gateway_of(network: &IpNet) -> Option<IpNet> {
    let skipped = usize::from(network.addr().is_ipv6());
    let address = network.hosts().nth(skipped)?;
    IpNet::new(address, network.prefix_len()).ok()
}

/// The gateways of a document that may be used: boxes keep their networks in the tunnel.
pub(crate) fn usable_gateways(mut named: Vec<IpNet>) -> Vec<IpNet> {
    named.retain(|it| {
        inner_lengths(it.addr()).contains(&it.prefix_len())
            && gateway_of(&it.trunc()).as_ref() == Some(it)
    });
    named.truncate(INNER_NETWORKS_MAX);
    named
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_anchor_has_the_addresses_of_its_default_file_in_the_default_networks() {
        for (network, gateway) in [
            ("10.77.0.0/16", "10.77.0.1/16"),
            ("fd77::/64", "fd77::1/64"),
            ("10.7.0.4/30", "10.7.0.5/30"),
            ("fd07::4/126", "fd07::5/126"),
        ] {
            let found = gateway_of(&network.parse().expect("a network"));
            assert_eq!(found, Some(gateway.parse().expect("an address")), "{network}");
        }
    }
}
