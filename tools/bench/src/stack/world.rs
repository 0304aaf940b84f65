//! The connected namespaces, and the links of the boxes.
//!
//! ```text
//!  vehicleK ── boxK ════ linksK ──┐              ┌── proxy_a ┐
//!  192.168.7K.2  .1   10.201.N.x  ├─── net ──────┼── proxy_b ┤ backhauls over net
//!                     (its own    │              ├── anchor ──── cloud 203.0.113.2
//!                      NAT)       ┘ 172.20.K.0   └── controller   198.51.10x.2
//! ```
//!
//! The far end of each box's links has a NAT: the links of all boxes have the same addresses.

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::{Context as _, ensure};
use roadweave_linux::netns::NetNs;

use crate::demo::scenario::synthetic_links;
use crate::emulate::{EmulateFile, NamespaceSettings};
use crate::sandbox::connect;

pub const BOXES: usize = 2;
pub const CLOUD_NETWORK: &str = "203.0.113.0/24";
pub const PROXIES: [(&str, Ipv4Addr); 2] =
    [("proxy_a", Ipv4Addr::new(198, 51, 100, 2)), ("proxy_b", Ipv4Addr::new(198, 51, 101, 2))];
pub const ANCHOR: Ipv4Addr = Ipv4Addr::new(198, 51, 102, 2);
pub const CONTROLLER: Ipv4Addr = Ipv4Addr::new(198, 51, 103, 2);

#[derive(Debug)]
pub struct Vehicle {
    pub camera: NetNs,
    pub client: NetNs,
    pub links: EmulateFile,
    /// Kept open: the emulator finds it by name.
    _far: NetNs,
}

#[derive(Debug)]
pub struct StackWorld {
    pub vehicles: Vec<Vehicle>,
    pub proxies: Vec<NetNs>,
    pub anchor: NetNs,
    pub controller: NetNs,
    pub cloud: NetNs,
    _net: NetNs,
}

pub fn viewer(number: usize) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::new(203, 0, 113, 2), 5_004 + 2 * number as u16))
}

impl StackWorld {
    /// Builds the namespaces; only inside a sandbox. Equal seeds give equal links.
    pub fn build(seed: u64) -> anyhow::Result<Self> {
        let (net, cloud) = (create("net")?, create("cloud")?);
        net.set_forwarding()?;
        let vehicles = (0..BOXES).map(|number| Vehicle::build(&net, number, seed));
        let vehicles = vehicles.collect::<anyhow::Result<_>>()?;
        let proxies = PROXIES.iter().map(|(name, address)| member(&net, name, *address));
        let proxies = proxies.collect::<anyhow::Result<_>>()?;
        let anchor = member(&net, "anchor", ANCHOR)?;
        connect((&anchor, "lan0", "203.0.113.1/24"), (&cloud, "eth0", "203.0.113.2/24"))?;
        anchor.set_forwarding()?;
        let controller = member(&net, "controller", CONTROLLER)?;
        cloud.ip("route add default via 203.0.113.1")?;
        Ok(Self { vehicles, proxies, anchor, controller, cloud, _net: net })
    }
}

impl Vehicle {
    fn build(net: &NetNs, number: usize, seed: u64) -> anyhow::Result<Self> {
        let name = |what: &str| format!("{what}{number}");
        let (camera, client) = (create(&name("vehicle"))?, create(&name("box"))?);
        let far = create(&name("links"))?;
        let lan = |host: u8| format!("192.168.7{number}.{host}/24");
        connect((&camera, "eth0", &lan(2)), (&client, "lan0", &lan(1)))?;
        client.set_forwarding()?;
        camera.ip(&format!("route add default via 192.168.7{number}.1"))?;
        let outer = |host: u8| format!("172.20.{number}.{host}/24");
        connect((&far, "eth0", &outer(2)), (net, &name("links"), &outer(1)))?;
        far.ip(&format!("route add default via 172.20.{number}.1"))?;
        far.set_forwarding()?;
        translate(&far)?;
        let namespaces = NamespaceSettings {
            near: Some(name("box")),
            far: Some(name("links")),
            ..NamespaceSettings::default()
        };
        let links = synthetic_links();
        let links = EmulateFile { seed: seed + number as u64, namespaces, links };
        Ok(Self { camera, client, links, _far: far })
    }
}

fn create(name: &str) -> anyhow::Result<NetNs> {
    NetNs::create(name).with_context(|| format!("cannot create the namespace {name}"))
}

fn member(net: &NetNs, name: &str, address: Ipv4Addr) -> anyhow::Result<NetNs> {
    let namespace = create(name)?;
    let [a, b, c, _] = address.octets();
    let (near, far) = (format!("{address}/24"), format!("{a}.{b}.{c}.1/24"));
    connect((&namespace, "eth0", &near), (net, name, &far))?;
    namespace.ip(&format!("route add default via {a}.{b}.{c}.1"))?;
    Ok(namespace)
}

fn translate(namespace: &NetNs) -> anyhow::Result<()> {
    let rules = "add table ip carrier; add chain ip carrier out { type nat hook postrouting \
                 priority srcnat; }; add rule ip carrier out oifname eth0 masquerade";
    let output = namespace.command("nft").arg(rules).output().context("cannot start nft")?;
    ensure!(output.status.success(), "nft: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}
