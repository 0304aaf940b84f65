//! An uplink's name servers from other programs; else the system's, and the uplink's gateway.
//! Daemons and local stubs are not asked: their queries may go into the tunnel.

use std::fs::File;
use std::io::Read;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use crate::dns;
use crate::socket::with_scope;

mod parse;

/// The network by which names are looked up.
#[derive(Clone, Debug, Default)]
pub struct Network {
    /// The interface's name; empty for the machine's own routes.
    pub interface: String,
    /// The interface's index.
    pub index: u32,
    /// Its gateways.
    pub gateways: Vec<IpAddr>,
    /// The name servers that its routers advertise.
    pub advertised: Vec<IpAddr>,
}

impl Network {
    pub(super) fn is_system(&self) -> bool {
        self.interface.is_empty()
    }
}

/// The best first; at most [`SERVERS_MAX`]. `root`: the root directory of the files, for tests.
pub(crate) fn name_servers(root: &Path, network: &Network) -> Vec<SocketAddr> {
    let (mut found, index) = (Vec::new(), network.index);
    if network.is_system() {
        for path in SYSTEM {
            let text = read(&root.join(path)).unwrap_or_default();
            found.extend(parse::resolv_conf(&text).into_iter().map(SocketAddr::from));
            if !found.is_empty() {
                break;
            }
        }
        found.truncate(SERVERS_MAX);
        return found;
    }
    add_all(&mut found, index, of_uplink(root, network));
    if found.is_empty() {
        add_all(&mut found, index, of_system(root));
        found.truncate(SERVERS_MAX - network.gateways.len().min(2));
        add_all(&mut found, index, network.gateways.iter().map(|gateway| (*gateway, PORT)));
    }
    found.truncate(SERVERS_MAX);
    found
}

/// The captive portal (RFC 8910) in the state of systemd-networkd. `root`: as for [`name_servers`].
pub(crate) fn advertised_portal(root: &Path, network: &Network) -> Option<String> {
    let text = read(&root.join(format!("run/systemd/netif/links/{}", network.index)))?;
    text.lines().find_map(|line| line.trim().strip_prefix("CAPTIVE_PORTAL=")).map(str::to_owned)
}

fn add_all(
    found: &mut Vec<SocketAddr>,
    index: u32,
    servers: impl IntoIterator<Item = (IpAddr, u16)>,
) {
    for (address, port) in servers {
        if address.is_loopback() || address.is_unspecified() || address.is_multicast() {
            continue;
        }
        let server = with_scope(SocketAddr::new(address, port), index);
        if !found.contains(&server) {
            found.push(server);
        }
    }
}

fn of_uplink(root: &Path, network: &Network) -> Vec<(IpAddr, u16)> {
    let Network { interface, index, advertised, .. } = network;
    let read = |path: &str| read(&root.join(path)).unwrap_or_default();
    let mut servers = parse::networkd(&read(&format!("run/systemd/netif/links/{index}")));
    servers.extend(parse::networkd(&read(&format!("run/systemd/netif/leases/{index}"))));
    servers.extend(parse::network_manager(&read(&format!("run/NetworkManager/devices/{index}"))));
    for directory in RESOLVCONF {
        for text in texts_of(&root.join(directory), interface) {
            servers.extend(parse::resolv_conf(&text));
        }
    }
    for path in DHCLIENT {
        let path = path.replace('*', interface);
        servers.extend(parse::dhclient(&read(&path), interface));
    }
    let devices = read("etc/config/network");
    for path in OPENWRT {
        servers.extend(parse::openwrt(&read(path), &devices, interface));
    }
    servers.extend(advertised.iter().map(|address| (*address, PORT)));
    servers
}

fn of_system(root: &Path) -> Vec<(IpAddr, u16)> {
    SYSTEM
        .iter()
        .map(|path| {
            let text = read(&root.join(path)).unwrap_or_default();
            // While a session sets resolvers inside the tunnel, the earlier ones count.
            let text = dns::before(root, &text).unwrap_or(text);
            let mut servers = parse::resolv_conf(&text);
            servers.retain(|(address, _)| !address.is_loopback());
            servers
        })
        .find(|servers| !servers.is_empty())
        .unwrap_or_default()
}

fn texts_of(directory: &Path, interface: &str) -> Vec<String> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut paths: Vec<_> = entries
        .filter(|entry| {
            let name = entry.file_name();
            let rest = name.to_str().and_then(|name| name.strip_prefix(interface));
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        })
        .map(|entry| entry.path())
        .collect();
    paths.sort();
    paths.truncate(FILES_MAX);
    paths.iter().filter_map(|path| read(path)).collect()
}

pub(super) fn read(path: &Path) -> Option<String> {
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(BYTES_MAX).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

const PORT: u16 = 53;
pub(crate) const SERVERS_MAX: usize = 4;
const FILES_MAX: usize = 8;
const BYTES_MAX: u64 = 1 << 20;
/// Of openresolv (old and new), of Debian's resolvconf, and of dhcpcd alone.
const RESOLVCONF: [&str; 5] = [
    "run/resolvconf/keys",
    "run/resolvconf/interfaces",
    "run/resolvconf/interface",
    "run/dhcpcd/hook-state/resolv.conf",
    "run/dhcpcd/resolv.conf",
];
/// Leases of dhclient: plain, under ifupdown (`*` is the interface), and of Red Hat.
const DHCLIENT: [&str; 5] = [
    "var/lib/dhcp/dhclient.*.leases",
    "var/lib/dhcp/dhclient.leases",
    "var/lib/dhcp/dhclient6.*.leases",
    "var/lib/dhclient/dhclient--*.lease",
    "var/lib/dhclient/dhclient.leases",
];
const OPENWRT: [&str; 2] = ["tmp/resolv.conf.d/resolv.conf.auto", "tmp/resolv.conf.auto"];
/// The system's servers, and those of the stubs of systemd-resolved, NetworkManager and OpenWrt.
const SYSTEM: [&str; 5] = [
    "etc/resolv.conf",
    "run/systemd/resolve/resolv.conf",
    "run/NetworkManager/no-stub-resolv.conf",
    "tmp/resolv.conf.d/resolv.conf.auto",
    "tmp/resolv.conf.auto",
];

#[cfg(test)]
mod tests;
