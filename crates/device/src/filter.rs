//! Packet filters of a tunnel end, by nftables: what is forwarded, what reaches inner addresses,
//! source NAT, MSS clamping.
//!
//! ```text
//! FilterKeeper (a thread) ─► Filters ─► ruleset ─► nft ─► table inet roadweave_NAME
//!      ▲ notices of nf_tables                                    │
//!      └────────────── not what it was: put back ◄───────────────┘
//! ```
//!
//! What is forwarded is bounded by [`Forwarding`], so that an end of the tunnel is no open router
//! for its neighbours. All lies in one table of our own, `inet roadweave_NAME`: replaced as a
//! whole, removed as a whole, and no rule of anybody else is touched. The table is there before
//! forwarding is turned on, and stays until it is off again; the kernel keeps it when the process
//! dies.

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
pub(crate) use chain::{count_and_drop, counter};
pub(crate) use flows::{FlowRemover, Left};
pub use forwards::Forward;
use ipnet::IpNet;
use nftables::Nftables;
use roadweave_proto::Marks;
pub(crate) use ruleset::is_quotable;
use ruleset::ruleset;
pub use shares::Share;
use shares::Shares;
pub(crate) use sockets::check_sockets;
pub(crate) use table::KeptTable;
use table::Table;
pub use table::Turn;

/// What the filters shall do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilterOptions {
    /// The TUN's name.
    pub tun: String,
    /// Its MTU, bytes: TCP connections through it agree on segments that fit.
    pub mtu: u16,
    /// The TUN's own addresses, which only this machine and the tunnel may reach.
    pub own_addresses: Vec<IpAddr>,
    /// A server's inner networks.
    pub inner: Vec<IpNet>,
    /// Whether what comes out of the tunnel leaves with an address of this machine.
    pub masquerade: bool,
    /// Whether what enters the tunnel gets the TUN's own address, and the prefixes that keep
    /// theirs.
    pub masquerade_into_tun: Option<Vec<IpNet>>,
    /// What leaves a box outside the tunnel, unless it came out of that. With `masquerade_into_tun`
    /// it gets the address of the interface by which it does.
    pub excluded: Excluded,
    /// Ports of a server's machine that lead to devices behind its clients.
    pub forwards: Vec<Forward>,
    /// Whether sockets of this machine bear addresses of `inner`.
    pub client_sockets: bool,
    /// What is forwarded.
    pub forwarding: Forwarding,
    /// What tells it from neighbours on the same machine that may have the same inner addresses, if
    /// there can be such. Between the interfaces of those nothing passes.
    pub apart: Option<Apart>,
    /// What each client of a server, or each host behind a box, may take of the kernel's tables.
    pub share: Option<Share>,
    /// The marks of what was forwarded, and of what is for sockets of this machine.
    pub marks: Marks,
    /// Turn forwarding on, as a server, or a box with a network behind it, needs.
    pub forward: bool,
}

/// What this machine forwards. Its own packets always leave, answers always pass, and so does what
/// the machine's own rules have sent another way (DNAT).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Forwarding {
    /// What the machine's routes and its own firewall let pass.
    Open,
    /// A vehicle's box: nothing from its uplinks.
    Box {
        /// The interfaces that are no uplinks. All others are, those that are not there yet among
        /// them.
        inside: Vec<Interface>,
        /// The machine's addresses on them, which uplinks do not reach.
        addresses: Vec<IpAddr>,
        /// Whether connections may begin on one uplink and leave by another.
        between_uplinks: bool,
    },
    /// A server. Between interfaces other than the TUN everything is as it was before forwarding
    /// was turned on.
    Server {
        /// Whether connections may begin outside and enter the tunnel.
        outside_to_tunnel: bool,
        /// Whether what came out of the tunnel may enter it again.
        clients_reach_clients: bool,
        /// Where nothing that comes out of the tunnel may go. This machine's own addresses, but for
        /// `own_addresses`, are denied as well.
        denied: Vec<IpNet>,
        /// Where it may go all the same.
        allowed: Vec<Allowed>,
    },
}

/// An interface, as rules name it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Interface {
    /// The interface's name.
    pub name: String,
    /// The kernel's number, for names that nft cannot read.
    pub index: u32,
}

/// A destination that is not denied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowed {
    /// The destination's addresses.
    pub prefix: IpNet,
    /// One port, of TCP and UDP; else everything.
    pub port: Option<u16>,
}

/// The families whose forwarding was off until an instance turned it on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Opened {
    ipv4: bool,
    ipv6: bool,
}

/// The filters of one instance. Dropping it restores the forwarding settings and removes them.
#[derive(Debug)]
pub struct Filters {
    instance: Instance,
    settings: Vec<String>,
    /// The families that are forwarded, by the settings that were on when they were set last.
    forwarded: Vec<&'static str>,
    table: Table,
    shares: Shares,
    /// There is a table of ours to remove.
    exists: bool,
}

impl Filters {
    /// Installs the filters in the network namespace of the calling thread, in place of any that an
    /// earlier run of the instance left. Call its methods from there, too.
    ///
    /// # Errors
    /// [`DeviceError::Unavailable`] without the program `nft`; [`DeviceError::Program`] with what
    /// it said.
    pub fn install(instance: &Instance, options: &FilterOptions) -> Result<Self, DeviceError> {
        let table = Table::open(instance.filter_table())?;
        let shares = Shares::open(instance)?;
        let instance = instance.clone();
        let (settings, forwarded) = (Vec::new(), Vec::new());
        let mut this = Self { instance, settings, forwarded, table, shares, exists: false };
        this.replace(options)?;
        Ok(this)
    }

    /// Puts others in the place of the filters, in one step. What was counted stays counted.
    ///
    /// # Errors
    /// As [`Filters::install`]; the filters are the old ones then.
    pub fn replace(&mut self, options: &FilterOptions) -> Result<(), DeviceError> {
        let opened = self.opened(options);
        let counts = self.table.counters().unwrap_or_default();
        let count = |reason| counts.get(&counter(reason)).copied().unwrap_or(0);
        let ruleset = ruleset(&self.instance.filter_table(), options, opened, count);
        self.table.replace(&ruleset.text, ruleset.rules)?;
        self.exists = true;
        if options.share.is_some() {
            self.make_room(options);
            // The table of the filters is worth more than the bounds.
            self.shares.replace(options);
        }
        let result = if options.forward { self.set_forwarding(options) } else { Ok(()) };
        let families = [FORWARD_V4, FORWARD_V6].into_iter();
        self.forwarded = families.filter(|it| options.forward && is_on(it)).collect();
        result
    }

    /// Whether another program switched off what [`Filters::replace`] had switched on.
    fn is_forwarding_off(&self) -> bool {
        !self.forwarded.iter().all(|setting| is_on(setting))
    }

    /// Turns forwarding off, where it was before, until the next [`Filters::replace`].
    fn stop_forwarding(&mut self) {
        self.forwarded.clear();
        for key in self.instance.restore(|key| [FORWARD_V4, FORWARD_V6].contains(&key)) {
            tracing::warn!("{key} could not be turned off");
        }
    }

    /// Whether the table is as it was installed; the bounds for each source are put back at once.
    /// Cheap while nobody changes any table.
    pub fn is_in_place(&mut self) -> bool {
        let is_in_place = self.table.is_in_place();
        if is_in_place {
            self.shares.keep();
        }
        is_in_place
    }

    /// Gives fragments more room; where the system refuses, a source may take less.
    fn make_room(&mut self, options: &FilterOptions) {
        for (key, value) in shares::room(options) {
            if let Err(error) = self.change_setting(key, &value) {
                tracing::info!(%error, "fragments have no more room");
            }
        }
    }

    /// The families that are closed again between interfaces of others.
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
            // The box itself has a use for the tunnel.
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

    /// Changes a setting, or logs once what follows if the system refuses, as it does in a
    /// container with a read-only /proc/sys.
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

/// The tables of an instance that go with its settings: none while forwarding is among the settings
/// that could not be restored, since they protect as long as the machine forwards because of us.
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

/// Removes those of the tables that are there, in one step, while the program starts or ends.
pub(crate) fn remove_tables(tables: &[String]) -> Result<(), DeviceError> {
    // Without netlink `nft` says why.
    let mut netlink = Nftables::open().ok();
    let is_there = |table: &&String| {
        let contents = netlink.as_mut().and_then(|netlink| netlink.contents(table).ok());
        contents.is_none_or(|contents| contents.rules > 0)
    };
    // "add" first, so that "delete" finds one.
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
            // No descriptors or no memory, which may be had again.
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

/// How long `nft` may take. 4,000 prefixes take a second on a slow machine, and a machine without
/// processor time needs more than 10 s for a few. No event loop waits for it.
const LIMIT: Duration = Duration::from_secs(60);
/// How long it may take to remove tables, twice at an end: a service manager ends a program that
/// takes 90 s. `nft` waits for grace periods (RCU) of the kernel, which take seconds where its
/// threads have no processor.
const REMOVAL_LIMIT: Duration = Duration::from_secs(30);
const FORWARD_V4: &str = "net.ipv4.ip_forward";
const FORWARD_V6: &str = "net.ipv6.conf.all.forwarding";
