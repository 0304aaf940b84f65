//! Where clients' streams may lead: the packet filter's rules, which such connections bypass.

use std::net::{IpAddr, SocketAddr, UdpSocket};

use ipnet::IpNet;
use roadweave_config::AllowedDestination;

/// Where clients may go; see the fields of the same names in docs/configuration.md.
#[derive(Clone, Debug, Default)]
pub struct ConnectorRules {
    /// Denied networks, in addition to this machine's own addresses.
    pub denied: Vec<IpNet>,
    /// Exceptions: addresses, with one port or all.
    pub allowed: Vec<AllowedDestination>,
    /// Whether clients may reach one another.
    pub clients_reach_clients: bool,
}

impl ConnectorRules {
    pub(super) fn allow(&self, to: SocketAddr, is_clients: impl Fn(IpAddr) -> bool) -> bool {
        let address = to.ip().to_canonical();
        let is_nobodys = match address {
            IpAddr::V4(v4) => v4.is_unspecified() || v4.is_multicast() || v4.is_broadcast(),
            IpAddr::V6(v6) => v6.is_unspecified() || v6.is_multicast(),
        };
        let matches = |it: &AllowedDestination| {
            it.network.contains(&address) && it.port.is_none_or(|port| port == to.port())
        };
        if is_nobodys {
            return false;
        }
        if self.allowed.iter().any(matches) {
            return true;
        }
        if self.denied.iter().any(|network| network.contains(&address)) {
            return false;
        }
        if is_local(address) {
            return false;
        }
        !is_clients(address) || self.clients_reach_clients
    }
}

/// Whether this machine has the address now, loopback included: other addresses cannot be bound. On
/// any other error (no descriptors) and with `ip_nonlocal_bind` the address counts as its own.
#[allow(clippy::disallowed_methods, reason = "nothing is sent by this socket")]
pub(super) fn is_local(address: IpAddr) -> bool {
    use rustix::io::Errno;

    let known = [Errno::ADDRNOTAVAIL, Errno::AFNOSUPPORT].map(|error| Some(error.raw_os_error()));
    UdpSocket::bind((address, 0)).err().is_none_or(|error| !known.contains(&error.raw_os_error()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_lead_where_packets_may_go() {
        let network = |text: &str| text.parse::<IpNet>().expect("a network");
        let rules = ConnectorRules {
            denied: vec![network("169.254.0.0/16"), network("203.0.113.0/24")],
            allowed: ["203.0.113.7:443", "127.0.0.9"].map(|it| it.parse().unwrap()).to_vec(),
            clients_reach_clients: false,
        };
        let inner = network("10.77.0.0/16");
        let check = |to: &str, expected: bool| {
            let address = to.parse().expect("an address and a port");
            assert_eq!(rules.allow(address, |ip| inner.contains(&ip)), expected, "{to}");
        };
        check("198.51.100.1:80", true);
        check("[2001:db8::1]:80", true);
        check("169.254.169.254:80", false);
        check("[::ffff:169.254.169.254]:80", false);
        check("203.0.113.7:443", true);
        check("203.0.113.7:80", false);
        check("127.0.0.1:22", false);
        check("[::ffff:127.0.0.1]:22", false);
        check("127.0.0.9:22", true);
        check("0.0.0.0:22", false);
        check("[::]:22", false);
        check("224.0.0.1:80", false);
        check("255.255.255.255:80", false);
        check("10.77.0.2:80", false);
        let friends = ConnectorRules { clients_reach_clients: true, ..rules };
        let other = "10.77.0.2:80".parse().expect("an address and a port");
        assert!(friends.allow(other, |ip| inner.contains(&ip)));
    }
}
