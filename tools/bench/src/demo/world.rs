//! The world of a demo: five network namespaces in a sandbox that ends with the program.
//!
//! ```text
//!  vehicle ------- box ======= links ------- proxy ------- cloud
//!  camera          client      emulator's    server        viewer
//!                              far ends
//!  192.168.70.2    .1          198.51.100.1  .2 203.0.113.1  .2
//!                     10.201.N.2 = 10.201.N.1   (one per link; the emulator's devices)
//! ```
//!
//! No NAT: the server knows the network behind the box; the cloud replies through the proxy.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use anyhow::Context as _;
use roadweave_linux::netns::NetNs;

use crate::sandbox::connect;

pub const BOX: &str = "box";
pub const LINKS: &str = "links";

pub const VEHICLE_NETWORK: &str = "192.168.70.0/24";
pub const CLOUD_NETWORK: &str = "203.0.113.0/24";
pub const SERVER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(198, 51, 100, 2)), 4433);
pub const VIEWER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(203, 0, 113, 2)), 5004);

#[derive(Debug)]
pub struct DemoWorld {
    pub vehicle: NetNs,
    pub vehicle_box: NetNs,
    pub proxy: NetNs,
    pub cloud: NetNs,
    /// Kept open: the emulator finds it by name.
    _links: NetNs,
}

impl DemoWorld {
    pub fn build() -> anyhow::Result<Self> {
        let create = |name: &str| {
            NetNs::create(name).with_context(|| format!("cannot create the namespace {name}"))
        };
        let (vehicle, vehicle_box) = (create("vehicle")?, create(BOX)?);
        let (links, proxy, cloud) = (create(LINKS)?, create("proxy")?, create("cloud")?);
        connect((&vehicle, "eth0", "192.168.70.2/24"), (&vehicle_box, "lan0", "192.168.70.1/24"))?;
        connect((&links, "eth0", "198.51.100.1/24"), (&proxy, "wan0", "198.51.100.2/24"))?;
        connect((&proxy, "lan0", "203.0.113.1/24"), (&cloud, "eth0", "203.0.113.2/24"))?;
        vehicle_box.set_forwarding()?;
        proxy.set_forwarding()?;
        vehicle.ip("route add default via 192.168.70.1")?;
        proxy.ip("route add 10.201.0.0/16 via 198.51.100.1")?;
        cloud.ip("route add default via 203.0.113.1")?;
        Ok(Self { vehicle, vehicle_box, proxy, cloud, _links: links })
    }
}
