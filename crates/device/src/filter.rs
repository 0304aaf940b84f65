//! Packet filters of a tunnel end, as an nftables table: forwarding, access to inner addresses,
//! source NAT, MSS clamping.
//!
//! [`Forwarding`] bounds what is forwarded, so that an end of the tunnel is no open router for its
//! neighbours. All rules are in one table, which is replaced and removed as a whole; other
//! programs' rules are not touched. The table exists before forwarding is turned on, and stays
//! until it is off again; the kernel keeps it when the process dies.

mod apart;
mod chain;
mod flows;
mod forwards;
mod keeper;
mod netfilter;
mod nftables;
mod ruleset;
mod shares;
mod sockets;
pub(crate) mod split;
mod table;
#[cfg(test)]
mod tests;

use std::io;
use std::net::IpAddr;
use std::process::Command;
use std::time::Duration;

pub use keeper::FilterKeeper;

use crate::program::{self, Failure};
use crate::{Apart, DeviceError, Excluded, Instance, sysctl};
pub(crate) use chain::{Chain, begin, count_and_drop, counter, counter_from, end, set_mark};
pub(crate) use flows::{FlowRemover, Left};
pub use forwards::Forward;
use ipnet::IpNet;
use nftables::Nftables;
use roadweave_config::AllowedDestination;
use roadweave_proto::Marks;
pub(crate) use ruleset::is_quotable;
use ruleset::ruleset;
pub use shares::Share;
use shares::Shares;
pub(crate) use sockets::check_sockets;
pub(crate) use table::KeptTable;
use table::Table;
pub use table::Turn;

/// What the filters allow and change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilterOptions {
    /// The TUN's name.
    pub tun: String,
    /// Its MTU, bytes; TCP segments through it are clamped to fit.
    pub mtu: u16,
    /// The TUN's own addresses, reachable only from this machine and the tunnel.
    pub own_addresses: Vec<IpAddr>,
    /// A server's inner networks.
    pub inner: Vec<IpNet>,
    /// Whether packets out of the tunnel get an address of this machine.
    pub masquerade: bool,
    /// `Some`: packets into the tunnel get the TUN's own address, except from these prefixes.
    pub masquerade_into_tun: Option<Vec<IpNet>>,
    /// What leaves a box outside the tunnel, unless it came out of it. With `masquerade_into_tun`
    /// it gets the address of the outgoing interface.
    pub excluded: Excluded,
    /// Ports of a server's machine that are forwarded to devices behind its clients.
    pub forwards: Vec<Forward>,
    /// Whether sockets of this machine have addresses of `inner`.
    pub client_sockets: bool,
    /// What is forwarded.
    pub forwarding: Forwarding,
    /// Separates this end from neighbours on the same machine that may have the same inner
    /// addresses. Nothing passes between their interfaces.
    pub apart: Option<Apart>,
    /// The share of the kernel's tables for each client of a server, or each host behind a box.
    pub share: Option<Share>,
    /// The marks of forwarded packets, and of packets for sockets of this machine.
    pub marks: Marks,
    /// Whether to turn forwarding on, as a server, or a box with a network behind it, needs.
    pub forward: bool,
}

impl FilterOptions {
    /// Filters of a TUN, without NAT.
    pub fn new(tun: &str, mtu: u16, forwarding: Forwarding) -> Self {
        Self {
            tun: tun.to_owned(),
            mtu,
            own_addresses: Vec::new(),
            inner: Vec::new(),
            masquerade: false,
            masquerade_into_tun: None,
            excluded: Excluded::default(),
            forwards: Vec::new(),
            client_sockets: false,
            forwarding,
            apart: None,
            share: None,
            marks: Marks::default(),
            forward: true,
        }
    }
}

/// What this machine forwards. Its own packets, answers, and what its own rules redirect (DNAT)
/// always pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Forwarding {
    /// Anything that the machine's routes and firewall let pass.
    Open,
    /// A vehicle's box: nothing from its uplinks.
    Box {
        /// The interfaces that are no uplinks. All others are, including those added later.
        inside: Vec<Interface>,
        /// The machine's addresses on `inside`; not reachable from uplinks.
        addresses: Vec<IpAddr>,
        /// Whether connections may begin on one uplink and leave by another.
        between_uplinks: bool,
    },
    /// A server. Forwarding between interfaces other than the TUN stays as it was before.
    Server {
        /// Whether connections may begin outside and enter the tunnel.
        outside_to_tunnel: bool,
        /// Whether clients reach each other.
        clients_reach_clients: bool,
        /// Destinations denied to packets out of the tunnel. This machine's own addresses, except
        /// `own_addresses`, are denied as well.
        denied: Vec<IpNet>,
        /// Exceptions from `denied`.
        allowed: Vec<AllowedDestination>,
    },
}

/// An interface, as rules name it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Interface {
    /// The interface's name.
    pub name: String,
    /// The kernel's number, used for names that nft cannot read.
    pub index: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Opened {
    ipv4: bool,
    ipv6: bool,
}

/// The filters of one instance. Dropping it restores the forwarding settings and removes the table.
#[derive(Debug)]
pub struct Filters {
    instance: Instance,
    settings: Vec<String>,
    forwarded: Vec<&'static str>,
    table: Table,
    shares: Shares,
    exists: bool,
}

impl Filters {
    /// Installs the filters in the network namespace of the calling thread, replacing those of an
    /// earlier run. Call all methods from there. Fails with [`DeviceError::Unavailable`] without
    /// the program `nft`, and with [`DeviceError::Program`] when it reports an error.
    pub fn install(instance: &Instance, options: &FilterOptions) -> Result<Self, DeviceError> {
        let table = Table::open(instance.filter_table())?;
        let shares = Shares::open(instance)?;
        let instance = instance.clone();
        let (settings, forwarded) = (Vec::new(), Vec::new());
        let mut this = Self { instance, settings, forwarded, table, shares, exists: false };
        this.replace(options)?;
        Ok(this)
    }

    /// Replaces the filters in one step; counters keep their values. On an error the old filters
    /// stay.
    pub fn replace(&mut self, options: &FilterOptions) -> Result<(), DeviceError> {
        let opened = self.opened(options);
        let counts = self.table.counters().unwrap_or_default();
        let count = |reason| counts.get(&counter(reason)).copied().unwrap_or(0);
        let (text, rules) = ruleset(&self.instance.filter_table(), options, opened, count);
        self.table.replace(&text, rules)?;
        self.exists = true;
        if options.share.is_some() {
            self.make_room(options);
            // The table of the filters matters more than the bounds.
            self.shares.replace(options);
        }
        let result = if options.forward { self.set_forwarding(options) } else { Ok(()) };
        let families = [FORWARD_V4, FORWARD_V6].into_iter();
        self.forwarded = families.filter(|it| options.forward && is_on(it)).collect();
        result
    }

    fn is_forwarding_off(&self) -> bool {
        !self.forwarded.iter().all(|setting| is_on(setting))
    }

    fn stop_forwarding(&mut self) {
        self.forwarded.clear();
        for key in self.instance.restore(|key| [FORWARD_V4, FORWARD_V6].contains(&key)) {
            tracing::warn!("{key} could not be turned off");
        }
    }

    /// Whether the table is as it was installed; restores the bounds for each source. Cheap while
    /// no table changes.
    pub fn is_in_place(&mut self) -> bool {
        let is_in_place = self.table.is_in_place();
        if is_in_place {
            self.shares.keep();
        }
        is_in_place
    }

    fn make_room(&mut self, options: &FilterOptions) {
        for (key, value) in shares::room(options) {
            if let Err(error) = self.change_setting(key, &value) {
                tracing::info!(%error, "fragments have no more room");
            }
        }
    }

    fn opened(&self, options: &FilterOptions) -> Opened {
        let was_off = |key| self.instance.original_setting(key).is_ok_and(|value| value == "0");
        Opened {
            ipv4: options.forward && was_off(FORWARD_V4),
            ipv6: options.forward && was_off(FORWARD_V6),
        }
    }

    fn change_setting(&mut self, key: &str, value: &str) -> Result<(), DeviceError> {
        if !self.settings.iter().any(|known| known == key) {
            self.settings.push(key.to_owned());
        }
        self.instance.change_setting(key, value)
    }

    fn set_forwarding(&mut self, options: &FilterOptions) -> Result<(), DeviceError> {
        match options.forwarding {
            // The box itself can use the tunnel without forwarding.
            Forwarding::Box { .. } => self.change_if_possible(
                FORWARD_V4,
                "1",
                "what is behind this box does not get through",
            ),
            Forwarding::Open | Forwarding::Server { .. } => self.change_setting(FORWARD_V4, "1")?,
        }
        // A machine that forwards IPv6 ignores router advertisements, and with them its own default
        // route, unless accept_ra is 2.
        for entry in std::fs::read_dir("/proc/sys/net/ipv6/conf").into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().replace('.', "/");
            let key = format!("net.ipv6.conf.{name}.accept_ra");
            if !["all", "default", "lo"].contains(&name.as_str())
                && sysctl::read(&key).is_ok_and(|value| value == "1")
            {
                self.change_if_possible(&key, "2", "router advertisements are ignored there");
            }
        }
        match sysctl::read(FORWARD_V6) {
            // A kernel without IPv6 has no such key.
            Err(error) => tracing::info!(%error, "no forwarding of IPv6"),
            Ok(_) => self.change_if_possible(FORWARD_V6, "1", "IPv6 is not forwarded"),
        }
        Ok(())
    }

    fn change_if_possible(&mut self, key: &str, value: &str, otherwise: &str) {
        let is_first = !self.settings.iter().any(|known| known == key);
        if let Err(error) = self.change_setting(key, value)
            && is_first
        {
            tracing::warn!("{otherwise}: {error}");
        }
    }
}

fn is_on(setting: &str) -> bool {
    sysctl::read(setting).is_ok_and(|value| value != "0")
}

impl Drop for Filters {
    fn drop(&mut self) {
        if !self.exists {
            return;
        }
        let failed = self.instance.restore(|key| self.settings.iter().any(|mine| mine == key));
        let tables = tables_to_remove(&self.instance, &failed);
        if let Err(error) = remove_tables(&tables) {
            tracing::warn!(%error, "filters could not be removed; the next start tries again");
        }
    }
}

/// The tables to remove with the settings: none if forwarding could not be turned off, since they
/// protect while this machine forwards because of us.
pub(crate) fn tables_to_remove(instance: &Instance, failed: &[String]) -> Vec<String> {
    if failed.iter().any(|key| key == FORWARD_V4 || key == FORWARD_V6) {
        tracing::warn!(
            table = instance.filter_table(),
            "forwarding stays on, since it could not be turned off; the packet filters that protect \
             the networks of this machine stay with it"
        );
        return Vec::new();
    }
    vec![instance.filter_table(), instance.shares_table()]
}

pub(crate) fn remove_tables(tables: &[String]) -> Result<(), DeviceError> {
    // Without netlink `nft` reports the reason.
    let mut netlink = Nftables::open().ok();
    let is_there = |table: &&String| {
        let contents = netlink.as_mut().and_then(|netlink| netlink.contents(table).ok());
        contents.is_none_or(|contents| contents.rules > 0)
    };
    // "add" first, so that "delete" finds a table.
    let remove = |table| format!("add table inet {table}\ndelete table inet {table}\n");
    let script: String = tables.iter().filter(is_there).map(remove).collect();
    if script.is_empty() { Ok(()) } else { call_nft(&["-f", "-"], &script, REMOVAL_LIMIT) }
}

fn run_nft(script: &str) -> Result<(), DeviceError> {
    call_nft(&["-f", "-"], script, LIMIT)
}

fn call_nft(arguments: &[&str], script: &str, limit: Duration) -> Result<(), DeviceError> {
    match program::run(Command::new("nft").args(arguments), script, limit) {
        Ok(()) => Ok(()),
        Err(Failure::NotStarted(error)) => Err(match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied => DeviceError::Unavailable {
                why: format!("the program nft cannot be run ({error}): install nftables"),
            },
            // No descriptors or no memory: temporary.
            _ => DeviceError::system("run nft", error),
        }),
        Err(Failure::Said(detail)) if detail.contains("Operation not permitted") => {
            Err(DeviceError::NoPermission { what: "set packet filters".to_owned() })
        }
        Err(Failure::Said(detail)) => {
            Err(DeviceError::Program { program: "nft".to_owned(), detail })
        }
    }
}

/// The timeout of `nft`. 4,000 prefixes take a second on a slow machine; without processor time a
/// few need more than 10 s. No event loop waits for it.
const LIMIT: Duration = Duration::from_secs(60);
/// The timeout of removing tables, twice at an end: a service manager kills a program after 90 s.
/// `nft` waits for RCU grace periods of the kernel, which take seconds on a busy machine.
const REMOVAL_LIMIT: Duration = Duration::from_secs(30);
const FORWARD_V4: &str = "net.ipv4.ip_forward";
const FORWARD_V6: &str = "net.ipv6.conf.all.forwarding";
