//! Packet filters of a tunnel end, as an nftables table: forwarding, access to inner addresses,
//! source NAT, MSS clamping. [`Forwarding`] bounds what is forwarded: a tunnel end is no open
//! router. All rules are in one table, replaced and removed as a whole; other programs' rules stay.
//! The table exists whenever forwarding is on; the kernel keeps it when the process dies.

mod apart;
mod chain;
mod flows;
mod forward;
mod forwards;
mod keeper;
mod netfilter;
mod nft;
mod nftables;
mod options;
mod ruleset;
mod sets;
mod shares;
mod sockets;
pub mod split;
mod table;
#[cfg(test)]
mod tests;

pub use keeper::FilterKeeper;

use std::collections::BTreeSet;

use crate::{DeviceError, Instance, sysctl};
pub(crate) use chain::{Chain, begin, count_and_drop, counter, counter_from, end, set_mark};
pub use flows::FlowRemover;
pub use forward::Forward;
pub(crate) use nft::remove_tables;
use options::Opened;
pub use options::{Destination, FilterOptions, Forwarding, Share};
use ruleset::ruleset;
pub(crate) use sets::is_quotable;
use shares::Shares;
pub use sockets::check_sockets;
pub use table::MaintainedTable;
use table::Table;
pub use table::TableTurn;

/// The filters of one instance. Dropping it restores the forwarding settings and removes the table.
#[derive(Debug)]
pub struct Filters {
    instance: Instance,
    settings: BTreeSet<String>,
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
        let (settings, forwarded) = (BTreeSet::new(), Vec::new());
        let mut this = Self { instance, settings, forwarded, table, shares, exists: false };
        this.replace(options)?;
        Ok(this)
    }

    /// Replaces the filters in one step; counters keep their values. On an error the old ones stay.
    pub fn replace(&mut self, options: &FilterOptions) -> Result<(), DeviceError> {
        let opened = self.opened(options);
        let counts = self.table.counters().unwrap_or_default();
        let count = |reason| counts.get(&counter(reason)).copied().unwrap_or(0);
        let (text, rules) = ruleset(&self.instance.filter_table(), options, opened, count);
        self.table.replace(&text, rules)?;
        self.exists = true;
        if options.share.is_some() {
            self.make_room(options);
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
        for key in self.instance.settings().restore(|key| [FORWARD_V4, FORWARD_V6].contains(&key)) {
            tracing::warn!("{key} could not be turned off");
        }
    }

    /// Whether the table is as installed; restores the bounds. Cheap without changes.
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
                tracing::info!(%error, "memory for IP fragments could not be increased");
            }
        }
    }

    fn opened(&self, options: &FilterOptions) -> Opened {
        let was_off = |key| self.instance.settings().original(key).is_ok_and(|value| value == "0");
        Opened {
            ipv4: options.forward && was_off(FORWARD_V4),
            ipv6: options.forward && was_off(FORWARD_V6),
        }
    }

    fn change_setting(&mut self, key: &str, value: &str) -> Result<(), DeviceError> {
        self.settings.insert(key.to_owned());
        self.instance.settings().change(key, value)
    }

    fn set_forwarding(&mut self, options: &FilterOptions) -> Result<(), DeviceError> {
        match options.forwarding {
            // The box itself can use the tunnel without forwarding.
            Forwarding::Box { .. } => self.change_if_possible(
                FORWARD_V4,
                "1",
                "traffic from networks behind this box is not forwarded",
            ),
            Forwarding::Open | Forwarding::Server { .. } => self.change_setting(FORWARD_V4, "1")?,
        }
        // A machine that forwards IPv6 keeps an advertised default route only if accept_ra is 2.
        for entry in std::fs::read_dir("/proc/sys/net/ipv6/conf").into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().replace('.', "/");
            let key = format!("net.ipv6.conf.{name}.accept_ra");
            if !["all", "default", "lo"].contains(&name.as_str())
                && sysctl::read(&key).is_ok_and(|value| value == "1")
            {
                self.change_if_possible(
                    &key,
                    "2",
                    "router advertisements are ignored on this interface",
                );
            }
        }
        match sysctl::read(FORWARD_V6) {
            // A kernel without IPv6 has no such key.
            Err(error) => tracing::info!(%error, "IPv6 forwarding is unavailable"),
            Ok(_) => self.change_if_possible(FORWARD_V6, "1", "IPv6 is not forwarded"),
        }
        Ok(())
    }

    fn change_if_possible(&mut self, key: &str, value: &str, otherwise: &str) {
        let is_first = !self.settings.contains(key);
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
        let failed = self.instance.settings().restore(|key| self.settings.contains(key));
        let tables = tables_to_remove(&self.instance, &failed);
        if let Err(error) = remove_tables(&tables) {
            tracing::warn!(%error, "filters could not be removed; the next start tries again");
        }
    }
}

/// None if forwarding could not be turned off: the filters protect this machine meanwhile.
pub(crate) fn tables_to_remove(instance: &Instance, failed: &[String]) -> Vec<String> {
    if failed.iter().any(|key| key == FORWARD_V4 || key == FORWARD_V6) {
        tracing::warn!(
            table = instance.filter_table(),
            "forwarding could not be turned off; the packet filters that protect the networks of \
             this machine stay in place"
        );
        return Vec::new();
    }
    vec![instance.filter_table(), instance.shares_table()]
}

const FORWARD_V4: &str = "net.ipv4.ip_forward";
const FORWARD_V6: &str = "net.ipv6.conf.all.forwarding";
