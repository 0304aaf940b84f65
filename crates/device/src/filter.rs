//! Packet filters of a tunnel end, by nftables: what is forwarded, what reaches inner addresses, source
//! NAT, MSS clamping.
//!
//! ```text
//! FilterKeeper (a thread) ─► Filters ─► ruleset ─► nft ─► table inet roadweave_NAME
//!      ▲ notices of nf_tables                                    │
//!      └────────────── not what it was: put back ◄───────────────┘
//! ```
//!
//! What is forwarded is bounded by [`Forwarding`], so that an end of the tunnel is no open router for
//! its neighbours. All lies in one table of our own, `inet roadweave_NAME`: replaced as a whole,
//! removed as a whole, and no rule of anybody else is touched. The table is there before forwarding
//! is turned on, and stays until it is off again; the kernel keeps it when the process dies.

mod keeper;
mod nftables;
mod ruleset;
#[cfg(test)]
mod tests;

use std::io::Write as _;
use std::net::IpAddr;
use std::process::{Command, Stdio};

pub use keeper::FilterKeeper;

use crate::{DeviceError, Instance, Prefix, sysctl};
use nftables::{Contents, Nftables};
use ruleset::{counter, ruleset};

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
    pub inner: Vec<Prefix>,
    /// Whether what comes out of the tunnel leaves with an address of this machine.
    pub masquerade: bool,
    /// Whether what enters the tunnel gets the TUN's own address, and the prefixes that keep theirs.
    pub masquerade_into_tun: Option<Vec<Prefix>>,
    /// What is forwarded.
    pub forwarding: Forwarding,
    /// Turn forwarding on, as a server, or a box with a network behind it, needs.
    pub forward: bool,
}

/// What this machine forwards. Its own packets always leave, answers always pass, and so does what
/// the machine's own rules have sent another way (DNAT).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Forwarding {
    /// What its routes and its own firewall let pass.
    Open,
    /// A vehicle's box: nothing from its uplinks.
    Box {
        /// The interfaces that are no uplinks. All others are, those that are not there yet among them.
        inside: Vec<Interface>,
        /// Whether connections may begin on one uplink and leave by another.
        between_uplinks: bool,
    },
    /// A server. Between interfaces other than the TUN everything is as it was before forwarding was
    /// turned on.
    Server {
        /// Whether connections may begin outside and enter the tunnel.
        outside_to_tunnel: bool,
        /// Whether what came out of the tunnel may enter it again.
        clients_reach_clients: bool,
        /// Where nothing that comes out of the tunnel may go. This machine's own addresses, but for
        /// `own_addresses`, are denied as well.
        denied: Vec<Prefix>,
        /// Where it may go all the same.
        allowed: Vec<Allowed>,
    },
}

/// An interface, as rules name it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// The kernel's number, for names that nft cannot read.
    pub index: u32,
}

/// A destination that is not denied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowed {
    /// Its addresses.
    pub prefix: Prefix,
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
    nftables: Nftables,
    installed: Installed,
}

/// What is known of the kernel's table since the last replacement.
#[derive(Clone, Copy, Debug)]
enum Installed {
    /// It could not be looked at.
    Unknown,
    /// It is ours: its contents, and the generation when it was looked at.
    Ours(Contents, u32),
    /// Somebody changed it at the same time.
    Changed,
}

impl Filters {
    /// Installs the filters in the network namespace of the calling thread, in place of any that an
    /// earlier run of the instance left. Call its methods from there, too.
    ///
    /// # Errors
    /// [`DeviceError::Unavailable`] without the program `nft`; [`DeviceError::Program`] with what it
    /// said.
    pub fn install(instance: &Instance, options: &FilterOptions) -> Result<Self, DeviceError> {
        let nftables = Nftables::open()?;
        let instance = instance.clone();
        let mut this =
            Self { instance, settings: Vec::new(), nftables, installed: Installed::Unknown };
        this.replace(options)?;
        Ok(this)
    }

    /// Puts others in the place of the filters, in one step. What was counted stays counted.
    ///
    /// # Errors
    /// As [`Filters::install`]; the filters are the old ones then.
    pub fn replace(&mut self, options: &FilterOptions) -> Result<(), DeviceError> {
        let table = self.instance.filter_table();
        let opened = self.opened(options);
        self.installed = Installed::Unknown;
        let counts = self.nftables.counters(&table).unwrap_or_default();
        let count = |reason| counts.get(&counter(reason)).copied().unwrap_or(0);
        let ruleset = ruleset(&table, options, opened, count);
        // What others change between our writing and our reading would pass for ours.
        for _ in 0..TRIES {
            let before = self.nftables.generation();
            run_nft(&ruleset.text)?;
            let contents = self.nftables.contents(&table);
            let after = self.nftables.generation();
            let (Ok(before), Ok(contents), Ok(after)) = (before, contents, after) else { break };
            let is_ours = contents.rules == ruleset.rules;
            self.installed = match is_ours {
                true => Installed::Ours(contents, after),
                false => Installed::Changed,
            };
            if is_ours && after == before.wrapping_add(1) {
                break;
            }
        }
        if options.forward { self.set_forwarding() } else { Ok(()) }
    }

    /// Whether the table is as it was installed. Cheap while nobody changes any table.
    pub fn is_in_place(&mut self) -> bool {
        let (installed, generation) = match self.installed {
            Installed::Ours(contents, generation) => (contents, generation),
            Installed::Unknown => return true,
            Installed::Changed => return false,
        };
        let Ok(now) = self.nftables.generation() else { return true };
        if now == generation {
            return true;
        }
        match self.nftables.contents(&self.instance.filter_table()) {
            Ok(contents) if contents == installed => {
                self.installed = Installed::Ours(contents, now)
            }
            Ok(_) => return false,
            // What cannot be read now is looked at the next time.
            Err(error) => tracing::debug!(%error, "the packet filters could not be looked at"),
        }
        true
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

    fn set_forwarding(&mut self) -> Result<(), DeviceError> {
        self.change_setting(FORWARD_V4, "1")?;
        // A machine that forwards IPv6 ignores router advertisements, and with them its own default
        // route, unless accept_ra is 2.
        for entry in std::fs::read_dir("/proc/sys/net/ipv6/conf").into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().replace('.', "/");
            let key = format!("net.ipv6.conf.{name}.accept_ra");
            if !["all", "default"].contains(&name.as_str())
                && sysctl::read(&key).is_ok_and(|value| value == "1")
            {
                self.change_setting(&key, "2")?;
            }
        }
        match self.change_setting(FORWARD_V6, "1") {
            // A kernel without IPv6 has no such key.
            Err(error) if sysctl::read(FORWARD_V6).is_err() => {
                tracing::info!(%error, "no forwarding of IPv6");
                Ok(())
            }
            result => result,
        }
    }
}

impl Drop for Filters {
    fn drop(&mut self) {
        let failed = self.instance.restore(|key| self.settings.iter().any(|mine| mine == key));
        if let Err(error) = remove_unless_needed(&self.instance, &failed) {
            tracing::warn!(%error, "filters could not be removed; the next start tries again");
        }
    }
}

/// Removes the table of an instance, unless forwarding is among the settings that could not be
/// restored: the table protects as long as the machine forwards because of us.
pub(crate) fn remove_unless_needed(
    instance: &Instance,
    failed: &[String],
) -> Result<(), DeviceError> {
    if failed.iter().any(|key| key == FORWARD_V4 || key == FORWARD_V6) {
        tracing::warn!(
            table = instance.filter_table(),
            "forwarding stays on, since it could not be turned off; the packet filters that protect \
             the networks of this machine stay with it"
        );
        return Ok(());
    }
    remove(instance)
}

/// Removes the table of an instance; that there is none is no error.
fn remove(instance: &Instance) -> Result<(), DeviceError> {
    let table = instance.filter_table();
    // "add" first, so that "delete" finds one.
    run_nft(&format!("add table inet {table}\ndelete table inet {table}\n"))
}

pub(crate) fn run_nft(script: &str) -> Result<(), DeviceError> {
    let failed = |error| DeviceError::system("run nft", error);
    let mut child = Command::new("nft")
        .args(["-f", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| DeviceError::Unavailable {
            why: format!("the program nft cannot be run ({error}): install nftables"),
        })?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(script.as_bytes()).map_err(failed)?;
    }
    let output = child.wait_with_output().map_err(failed)?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    let detail = text.lines().next().unwrap_or("it gave no reason").to_owned();
    if detail.contains("Operation not permitted") {
        return Err(DeviceError::NoPermission { what: "set packet filters".to_owned() });
    }
    Err(DeviceError::Program { program: "nft".to_owned(), detail })
}

const TRIES: usize = 5;
const FORWARD_V4: &str = "net.ipv4.ip_forward";
const FORWARD_V6: &str = "net.ipv6.conf.all.forwarding";
