//! The configuration of `roadweave emulate`: links, their devices and namespaces.
//!
//! ```text
//! emulate.toml ─> EmulateFile ─┐
//!                              ├─> Emulation ─> Emulator (TUN devices)
//! Drive, seed ─────────────────┘
//! ```

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use ipnet::IpNet;
use roadweave_config::read_text;
use roadweave_emulate::{Drive, DuplexLink, LinkError, LinkFields};
use roadweave_terminal::exit::BadInput;
use serde::{Deserialize, Serialize};
use thiserror::Error;

#[derive(Clone, Debug)]
pub struct Emulation {
    pub links: Vec<EmulatedLink>,
    pub namespaces: NamespaceSettings,
}

#[derive(Clone, Debug)]
pub struct EmulatedLink {
    pub link: DuplexLink,
    pub near: TunEnd,
    pub far: TunEnd,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunEnd {
    pub interface: String,
    /// Its addresses; their networks contain the other end.
    pub addresses: Vec<IpNet>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NamespaceSettings {
    /// The network namespace at the vehicle; absent: the caller's.
    pub near: Option<String>,
    /// The network namespace at the other end; absent: the caller's.
    pub far: Option<String>,
    /// Largest IP packet, bytes, at least 1280.
    pub mtu: u16,
    /// Whether the namespace at the vehicle gets a default route through each link.
    pub default_routes: bool,
    /// Whether the namespace at the other end forwards packets between its interfaces.
    pub forward: bool,
}

impl Default for NamespaceSettings {
    fn default() -> Self {
        Self { near: None, far: None, mtu: 1_500, default_routes: true, forward: true }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EmulateFile {
    #[serde(default = "default_seed")]
    pub seed: u64,
    #[serde(default, rename = "place")]
    pub namespaces: NamespaceSettings,
    #[serde(rename = "link")]
    pub links: Vec<LinkFields>,
}

#[derive(Debug, Error)]
pub enum EmulationError {
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error("mtu {0} is too small; IPv6 needs at least 1280")]
    Mtu(u16),
}

impl EmulateFile {
    pub fn read(file: &Path) -> Result<Self, BadInput> {
        let text = read_text(file, false).map_err(BadInput::new)?;
        roadweave_config::parse(file, &text).map_err(BadInput::new)
    }

    /// The emulation of the file; paths are relative to `dir`.
    pub fn resolve(&self, dir: &Path) -> Result<Emulation, EmulationError> {
        let links = DuplexLink::of_fields(&self.links, self.seed, dir)?;
        let mut emulation = Emulation::new(links, self.namespaces.clone())?;
        for ((index, fields), link) in self.links.iter().enumerate().zip(&mut emulation.links) {
            link.set_addresses(index, fields)?;
        }
        Ok(emulation)
    }
}

impl Emulation {
    /// The links of `drive` with default queues and addresses; `seed` decides all randomness.
    pub fn of_drive(
        drive: &Drive,
        seed: u64,
        namespaces: NamespaceSettings,
    ) -> Result<Self, EmulationError> {
        Self::new(DuplexLink::of_drive(drive, seed)?, namespaces)
    }

    fn new(links: Vec<DuplexLink>, namespaces: NamespaceSettings) -> Result<Self, EmulationError> {
        if namespaces.mtu < 1_280 {
            return Err(EmulationError::Mtu(namespaces.mtu));
        }
        let links = links.into_iter().enumerate();
        let links = links.map(|(index, link)| EmulatedLink::new(index, link)).collect();
        Ok(Self { links, namespaces })
    }
}

impl EmulatedLink {
    fn new(index: usize, link: DuplexLink) -> Self {
        let end = |interface: String, host| TunEnd { interface, addresses: addresses(index, host) };
        let (near, far) = (end(link.name.clone(), 2), end(format!("{}-far", link.name), 1));
        Self { link, near, far }
    }

    fn set_addresses(&mut self, index: usize, fields: &LinkFields) -> Result<(), LinkError> {
        for (texts, field, end) in [
            (&fields.near_addresses, "near_addresses", &mut self.near),
            (&fields.far_addresses, "far_addresses", &mut self.far),
        ] {
            if texts.is_empty() {
                continue;
            }
            let parsed = texts.iter().map(|text| parse_address(text));
            let parsed: Result<Vec<IpNet>, String> = parsed.collect();
            end.addresses = parsed.map_err(|problem| LinkError::Field {
                link: index + 1,
                field,
                problem,
                cure: "write an address such as 10.201.1.2/24",
            })?;
        }
        Ok(())
    }
}

/// An address without a length is a host.
fn parse_address(text: &str) -> Result<IpNet, String> {
    let host = || text.parse::<IpAddr>().map(IpNet::from);
    text.parse().or_else(|_| host()).map_err(|_| {
        let examples = "write an address and a length, such as 10.8.0.2/24 or fd00:8::2/64";
        format!("{text:?} is not a prefix: {examples}")
    })
}

fn addresses(index: usize, host: u8) -> Vec<IpNet> {
    let number = u8::try_from(index + 1).unwrap_or(u8::MAX);
    let v4 = Ipv4Addr::new(10, 201, number, host);
    let v6 = Ipv6Addr::new(0xfd00, 0x201, number.into(), 0, 0, 0, 0, host.into());
    vec![IpNet::new_assert(IpAddr::V4(v4), 24), IpNet::new_assert(IpAddr::V6(v6), 64)]
}

fn default_seed() -> u64 {
    1
}

#[cfg(test)]
mod tests;
