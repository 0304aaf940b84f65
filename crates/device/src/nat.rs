//! Packet filters of a tunnel end, by nftables: source NAT, MSS clamping, forwarding.
//!
//! ```text
//! client > tunnel > TUN > forward (MSS clamped) > postrouting (masquerade) > public side
//! ```
//!
//! What is forwarded into the TUN is bounded by [`IntoTun`], so that an end of the tunnel is no open
//! router for its neighbours. All lies in one table of our own, `inet roadweave_NAME`: replaced as a whole, removed as a whole,
//! and no rule of anybody else is touched.

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Command, Stdio};

use crate::{DeviceError, Instance, Prefix, sysctl};

/// What the filters shall do.
#[derive(Clone, Debug)]
pub struct FilterOptions {
    /// The TUN's name.
    pub tun: String,
    /// Its MTU, bytes: TCP connections through it agree on segments that fit.
    pub mtu: u16,
    /// Inner networks whose packets leave with an address of this machine.
    pub masquerade: Vec<Prefix>,
    /// Whether what enters the tunnel gets the TUN's own address, and the prefixes that keep theirs.
    pub masquerade_into_tun: Option<Vec<Prefix>>,
    /// What may be forwarded into the TUN.
    pub into_tun: IntoTun,
    /// Turn forwarding on, as a server, or a box with a network behind it, needs.
    pub forward: bool,
}

/// What this machine forwards into the TUN. Its own packets always enter, and so do answers to what
/// came out of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IntoTun {
    /// Packets from anywhere.
    Anything,
    /// No connections that begin beyond these interfaces: uplinks, whose networks are foreign.
    NotFrom(Vec<String>),
    /// Only what comes from the TUN itself, that is from one client to another.
    Answers,
}

/// The filters of one instance. Dropping it removes them and restores the forwarding settings.
#[derive(Debug)]
pub struct Filters {
    instance: Instance,
    settings: Vec<String>,
}

impl Filters {
    /// Installs the filters in the network namespace of the calling thread, in place of any that an
    /// earlier run of the instance left.
    ///
    /// # Errors
    /// [`DeviceError::Unavailable`] without the program `nft`; [`DeviceError::Program`] with what it
    /// said.
    pub fn install(instance: &Instance, options: &FilterOptions) -> Result<Self, DeviceError> {
        let mut this = Self { instance: instance.clone(), settings: Vec::new() };
        this.replace(options)?;
        Ok(this)
    }

    /// Puts others in the place of the filters, in one step.
    ///
    /// # Errors
    /// As [`Filters::install`]; the filters are the old ones then.
    pub fn replace(&mut self, options: &FilterOptions) -> Result<(), DeviceError> {
        run_nft(&ruleset(&self.instance.filter_table(), options))?;
        if options.forward { self.set_forwarding() } else { Ok(()) }
    }

    fn change_setting(&mut self, key: &str, value: &str) -> Result<(), DeviceError> {
        if !self.settings.iter().any(|known| known == key) {
            self.settings.push(key.to_owned());
        }
        self.instance.change_setting(key, value)
    }

    fn set_forwarding(&mut self) -> Result<(), DeviceError> {
        self.change_setting("net.ipv4.ip_forward", "1")?;
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
        match self.change_setting("net.ipv6.conf.all.forwarding", "1") {
            // A kernel without IPv6 has no such key.
            Err(error) if sysctl::read("net.ipv6.conf.all.forwarding").is_err() => {
                tracing::info!(%error, "no forwarding of IPv6");
                Ok(())
            }
            result => result,
        }
    }
}

impl Drop for Filters {
    fn drop(&mut self) {
        if let Err(error) = remove(&self.instance) {
            tracing::warn!(%error, "filters could not be removed; the next start tries again");
        }
        self.instance.restore(|key| self.settings.iter().any(|mine| mine == key));
    }
}

/// Removes the table of an instance; that there is none is no error.
pub(crate) fn remove(instance: &Instance) -> Result<(), DeviceError> {
    let table = instance.filter_table();
    // "add" first, so that "delete" finds one.
    run_nft(&format!("add table inet {table}\ndelete table inet {table}\n"))
}

fn ruleset(table: &str, options: &FilterOptions) -> String {
    let FilterOptions { tun, mtu, masquerade, masquerade_into_tun, into_tun, .. } = options;
    let mut text = format!("add table inet {table}\ndelete table inet {table}\n");
    let _ = writeln!(text, "table inet {table} {{");
    let _ = writeln!(text, "  chain forward {{");
    let _ = writeln!(text, "    type filter hook forward priority filter - 10; policy accept;");
    if let Some(origin) = unwelcome_origin(tun, into_tun) {
        let _ = writeln!(
            text,
            "    oifname \"{tun}\" {origin} ct state != {{ established, related }} drop"
        );
    }
    for (family, headers) in [("ipv4", 40), ("ipv6", 60)] {
        let size = mtu.saturating_sub(headers);
        for side in ["iifname", "oifname"] {
            let _ = writeln!(
                text,
                "    {side} \"{tun}\" meta nfproto {family} tcp flags & (syn | rst) == syn \
                 tcp option maxseg size > {size} tcp option maxseg size set {size}"
            );
        }
    }
    let _ = writeln!(text, "  }}");
    let _ = writeln!(text, "  chain postrouting {{");
    let _ = writeln!(text, "    type nat hook postrouting priority srcnat; policy accept;");
    for prefix in masquerade {
        let family = if prefix.is_ipv4() { "ip" } else { "ip6" };
        let network = prefix.network();
        let _ = writeln!(text, "    oifname != \"{tun}\" {family} saddr {network} masquerade");
    }
    if let Some(keep) = masquerade_into_tun {
        for prefix in keep {
            let family = if prefix.is_ipv4() { "ip" } else { "ip6" };
            let network = prefix.network();
            let _ = writeln!(text, "    oifname \"{tun}\" {family} saddr {network} accept");
        }
        let _ = writeln!(text, "    oifname \"{tun}\" masquerade");
    }
    let _ = writeln!(text, "  }}\n}}");
    text
}

/// Matches the interfaces from beyond which no connection may enter the TUN.
fn unwelcome_origin(tun: &str, into_tun: &IntoTun) -> Option<String> {
    match into_tun {
        IntoTun::Anything => None,
        IntoTun::NotFrom(names) if names.is_empty() => None,
        IntoTun::NotFrom(names) => {
            let names: Vec<String> = names.iter().map(|name| format!("\"{name}\"")).collect();
            Some(format!("iifname {{ {} }}", names.join(", ")))
        }
        IntoTun::Answers => Some(format!("iifname != \"{tun}\"")),
    }
}

fn run_nft(script: &str) -> Result<(), DeviceError> {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn options(into_tun: IntoTun) -> FilterOptions {
        FilterOptions {
            tun: "rw0".to_owned(),
            mtu: 1400,
            masquerade: vec!["10.8.0.1/24".parse().unwrap(), "fd08::1/64".parse().unwrap()],
            masquerade_into_tun: Some(vec!["192.168.50.0/24".parse().unwrap()]),
            into_tun,
            forward: true,
        }
    }

    #[test]
    fn what_may_enter_the_tunnel_is_bounded() {
        let check = |into_tun, expected: &str| {
            let text = ruleset("roadweave_x", &options(into_tun));
            assert!(text.contains(expected), "{expected}\nis not in\n{text}");
        };
        let uplinks = vec!["wwan0".to_owned(), "eth1".to_owned()];
        check(
            IntoTun::NotFrom(uplinks),
            "oifname \"rw0\" iifname { \"wwan0\", \"eth1\" } ct state != { established, related } drop",
        );
        check(
            IntoTun::Answers,
            "oifname \"rw0\" iifname != \"rw0\" ct state != { established, related } drop",
        );
        for open in [IntoTun::Anything, IntoTun::NotFrom(Vec::new())] {
            assert!(!ruleset("roadweave_x", &options(open)).contains("drop"));
        }
    }

    #[test]
    fn the_ruleset_clamps_to_what_fits_the_tun() {
        let text = ruleset("roadweave_server", &options(IntoTun::Anything));
        for line in [
            "iifname \"rw0\" meta nfproto ipv4 tcp flags & (syn | rst) == syn tcp option maxseg size > 1360 tcp option maxseg size set 1360",
            "oifname \"rw0\" meta nfproto ipv6 tcp flags & (syn | rst) == syn tcp option maxseg size > 1340 tcp option maxseg size set 1340",
            "oifname != \"rw0\" ip saddr 10.8.0.0/24 masquerade",
            "oifname != \"rw0\" ip6 saddr fd08::/64 masquerade",
            "oifname \"rw0\" ip saddr 192.168.50.0/24 accept",
            "oifname \"rw0\" masquerade",
        ] {
            assert!(text.contains(line), "{line}\nis not in\n{text}");
        }
    }
}
